# SPDX-License-Identifier: Apache-2.0
"""Consolidation moves pods with claims, which get devices anew (dra.md 10, 13)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.devices.dra.test_simulated_claims import API, GPUS, MADE, node
from tests.workloads.cluster import Json, simulate, workload

DRIVER = "d.example.com"
NUMA = "resource.kubernetes.io/numaNode"
MOVES: Json = {"consolidation": {"enabled": True}, "protection": {"maxHarm": {"consolidation": None}}}
FIXED = {"quota.scheduling.koordinator.sh/preemptible": "false"}
HOST = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In"}]}]}


def offered(pool: str, *zones: int, where: Json | None = None, **device: Any) -> Json:
    """A pool with the devices d0, d1 and so on, one in each of the NUMA nodes. where: None for the node of its name."""
    spec = {"driver": DRIVER, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}
    devices = [{"name": f"d{i}", "attributes": {NUMA: {"int": zone}}, **device} for i, zone in enumerate(zones)]
    return workload(API, "ResourceSlice", pool, {**spec, **(where or {"nodeName": pool}), "devices": devices})


def claim(
    name: str, count: int, held: str = "", by: Sequence[str] = (), *, anywhere: bool = False, **more: Any
) -> Json:
    """A claim for a number of devices. held: `POOL/DEVICE DEVICE ...` that it has; by: its pods."""
    exact = {"deviceClassName": "gpu", "count": count, **more.pop("exact", {})}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exact}]}}
    meta = {"namespace": "default", **more.pop("meta", {})}
    pool, _, names = held.partition("/")
    share = more.pop("share", {})
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": one, **share} for one in names.split()]
    users = [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in by] + more.pop("others", [])
    field = {**HOST["nodeSelectorTerms"][0]["matchFields"][0], "values": [pool]}
    selector = {} if anywhere else {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    status = {"allocation": {"devices": {"results": results}, **selector}, "reservedFor": users} if held else {}
    return workload(API, "ResourceClaim", name, spec, meta=meta, status=status)


def pod(name: str, claims: Json | None = None, at: str = "", *, cpu: int = 1, labels: Json | None = None) -> Json:
    """A pod. claims: entry -> name of a claim, or `TEMPLATE=CLAIM` for one by a template."""
    entries, made = [], []
    for entry, text in (claims or {}).items():
        template, _, of_template = text.partition("=")
        source = {"resourceClaimTemplateName": template} if of_template else {"resourceClaimName": text}
        entries.append({"name": entry, **source})
        made += [{"name": entry, "resourceClaimName": of_template}] if of_template else []
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], "resourceClaims": entries}
    spec |= {"nodeName": at} if at else {}
    meta = {"uid": f"uid-{name}", "labels": labels or {}}
    return workload("v1", "Pod", name, spec, meta=meta, status={"resourceClaimStatuses": made} if at else {})


def moved(tmp_path: Path, *objects: Json, **config: Any) -> dict[str, list[str]]:
    """Moved pod -> its devices at the end; empty if no pod moves. If one moves, all pods but q must be bound."""
    document = simulate(tmp_path, *objects, config={**MOVES, **config}, args=("--rounds", "3")).document
    evicted = [one["pod"] for one in document["evictions"]]
    assert {one["rule"] for one in document["evictions"]} <= {"consolidation"}
    waiting = [one["pod"] for one in document["pending"] if one["pod"] != "q"]
    assert not (evicted and waiting), document["pending"]
    own: dict[str, list[str]] = {name: [] for name in evicted}
    for one in document["claims"]:
        for name in {*own} & {*one["reservedFor"]}:
            own[name] += [f"{result['pool']}/{result['device']}" for result in one["results"]]
    given = [f"{r['pool']}/{r['device']}" for one in document["claims"] for r in one["results"] if "shareID" not in r]
    assert len(given) == len(set(given)), "no device is given twice"
    return own


TWO = (node("n1"), node("n2"), GPUS)
PAIR = (*TWO, offered("n1", 0, 0), offered("n2", 0, 0), claim("c", 2), pod("p", {"g": "c"}))
A = (claim("ca", 1, "n1/d0", ["a"]), pod("a", {"g": "ca"}, "n1"))
B = (claim("cb", 1, "n2/d0", ["b"]), pod("b", {"g": "cb"}, "n2"))
GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
FOUR = (claim("c", 4), pod("p", {"g": "c"}))
LINKED = (claim("cb", 2, "n2/d0 d1", ["b"]), pod("b", {"g": "cb"}, "n2"))
CARD = {"allowMultipleAllocations": True, "capacity": {"mem": {"value": "80"}}}


def share(name: str, at: str, amount: int, number: int) -> Json:
    """A claim with a share of a card."""
    own = {"shareID": f"11111111-0000-4000-8000-{number:012}", "consumedCapacity": {"mem": str(amount)}}
    exact = {"capacity": {"requests": {"mem": str(amount)}}}
    return claim(f"c{name}", 1, f"{at}/d0", [name], share=own, exact=exact)


def owned(name: str, of: str, held: str, count: int = 1, **more: Any) -> Json:
    """A claim that a pod controls."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": of, "uid": f"uid-{of}", "controller": True}
    return claim(name, count, held, [of], meta={"ownerReferences": [owner], **more})


TEMPLATE = workload(
    API,
    "ResourceClaimTemplate",
    "t",
    {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}},
    meta={"namespace": "default"},
)
CASES: dict[str, tuple[Sequence[Json], dict[str, list[str]]]] = {
    "the younger pod moves": ([*PAIR, *A, *B], {"b": ["n1/d1"]}),
    "a claim that a pod without a move uses, too": (
        [*PAIR, *A, claim("cb", 1, "n2/d0", ["b", "w"]), B[1], pod("w", {"g": "cb"}, "n2", labels=FIXED)],
        {"a": ["n2/d1"]},
    ),
    "a claim of two pods that both move": (
        [*PAIR, *A, claim("cb", 1, "n2/d0", ["b", "w"]), B[1], pod("w", {"g": "cb"}, "n2"),
         claim("cx", 1, "n1/d1", ["x"]), pod("x", {"g": "cx"}, "n1", labels=FIXED), node("n3"), offered("n3", 0)],
        {"b": ["n3/d0"], "w": ["n3/d0"]},
    ),
    "a claim of an unknown pod": (
        [*PAIR, claim("ca", 1, "n1/d0", ["gone"]), claim("cb", 1, "n2/d0", ["b", "unknown"]), B[1]], {},
    ),
    "a claim of a PodGroup": (
        [*PAIR, claim("ca", 1, "n1/d0", ["a"], others=[GROUP]), A[1], claim("cb", 1, "n2/d0", ["gone"])], {},
    ),
    "a claim that a pending pod names": (
        [*PAIR, *A, claim("cb", 1, "n2/d0", ["b"]), B[1], pod("q", {"g": "cb"}, cpu=99)], {"a": ["n2/d1"]},
    ),
    "links that would be slower": ([*TWO, *FOUR, *LINKED, offered("n1", 0, 1), offered("n2", 0, 0, 1, 1)], {}),
    "links that are as fast": (
        [*TWO, *FOUR, *LINKED, offered("n1", 0, 0), offered("n2", 0, 0, 1, 1)], {"b": ["n1/d0", "n1/d1"]},
    ),
    "links that are faster": (
        [*TWO, *FOUR, claim("cb", 2, "n2/d1 d2", ["b"]), LINKED[1], offered("n1", 0, 0), offered("n2", 0, 0, 1, 1)],
        {"b": ["n1/d0", "n1/d1"]},
    ),
    "links that only a later node keeps": (
        [*TWO, *FOUR, *LINKED, offered("n1", 0, 1), offered("n2", 0, 0, 1, 1), node("n3"), offered("n3", 0, 1, 1)],
        {"b": ["n3/d1", "n3/d2"]},
    ),
    "shares": (
        [*TWO, offered("n1", 0, **CARD), offered("n2", 0, **CARD), share("a", "n1", 30, 1), A[1],
         share("b", "n2", 40, 2), B[1],
         claim("c", 1, exact={"capacity": {"requests": {"mem": "60"}}}), pod("p", {"g": "c"})],
        {"b": ["n1/d0"]},
    ),
    "a device that every node reaches": (
        [*TWO, offered("n1", 0, 0), offered("net", 0, 0, where={"allNodes": True}), claim("c", 2),
         pod("p", {"g": "c"}, cpu=8), claim("ca", 1, "net/d0", ["a"], anywhere=True), pod("a", {"g": "ca"}, "n1"),
         claim("cx", 1, "net/d1", ["x"], anywhere=True), pod("x", {"g": "cx"}, "n2", labels=FIXED)],
        {"a": ["net/d0"]},
    ),
    "a claim by a template is made anew": (
        [*PAIR, *A, TEMPLATE, owned("b-g-x", "b", "n2/d0"), pod("b", {"g": "t=b-g-x"}, "n2")], {"b": ["n1/d1"]},
    ),
    "extended resources": (
        [*PAIR, *A, owned("b-extended-resources-x", "b", "n2/d0", annotations=MADE),
         {**pod("b", at="n2"), "spec": {**pod("b", at="n2")["spec"], "containers": [
             {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}],
        {"b": ["n1/d1"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_pods_with_claims_move(tmp_path: Path, case: str) -> None:
    objects, wanted = CASES[case]
    assert moved(tmp_path, *objects) == wanted


def test_no_pod_with_claims_moves_if_evictions_free_no_devices(tmp_path: Path) -> None:
    assert moved(tmp_path, *PAIR, *A, *B, dra={"preemption": False}) == {}


def test_members_with_claims_by_a_template_move_together(tmp_path: Path) -> None:
    """A gang of two moves as a whole; no node takes both members before the others have moved."""
    notes = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "2"}
    members = [
        {**one, "metadata": {**one["metadata"], "annotations": notes}}
        for one in (pod(f"g-{i}", {"g": f"t=g-{i}-x"}, "n2") for i in range(2))
    ]
    claims = [owned(f"g-{i}-x", f"g-{i}", f"n2/d{i}") for i in range(2)]
    objects = [*TWO, offered("n1", 0, 0), offered("n2", 0, 0, 0), TEMPLATE, *claims, *members]
    found = moved(tmp_path, *objects, claim("c", 3), pod("p", {"g": "c"}))
    assert {name: len(own) for name, own in found.items()} == {"g-0": 1, "g-1": 1}
    assert sorted(one for own in found.values() for one in own) == ["n1/d0", "n1/d1"]
