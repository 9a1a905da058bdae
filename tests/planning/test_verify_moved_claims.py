# SPDX-License-Identifier: Apache-2.0
"""The independent check of moved pods' devices: each fault of a plan, made by hand (dra.md 10)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.claim_refs import CLAIMS, DeviceId, Granted
from koordpy.preemption.search.relocation import as_pending
from koordpy.verify.move_check import MovedPod, check_moved_devices
from koordpy.verify.plan_fault import Check
from tests.planning.node_rules import node, states
from tests.planning.test_claim_victims import holding
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, facts, offers, resource_claim, user

NUMA = "resource.kubernetes.io/numaNode"
ROOT = "resource.kubernetes.io/pcieRoot"


def in_zones(at: str, *zones: int) -> Any:
    """A pool of a node with one device in each of the NUMA nodes."""
    made = offers(at, *(f"g{i}" for i in range(len(zones))))
    for one, zone in zip(made.spec.devices, zones, strict=True):
        one.attributes.update(facts(**{NUMA: zone}))
    return made


def grant(at: str, *devices: str) -> tuple[Granted, ...]:
    return tuple(Granted("r", DeviceId(DRIVER, at, one)) for one in devices)


OBJECTS: Sequence[Any] = [
    CLASS, *(node(f"{at}:8") for at in ("n1", "n2", "n3")),
    in_zones("n1", 0, 1, 1), in_zones("n2", 0, 0, 1), in_zones("n3", 0, 0),
    holding("ca", "n1", ["g1", "g2"], "a"), holding("cb", "n1", ["g0"], "b", "w"),
    user("a", "ca", at="n1"), user("b", "cb", at="n1"), user("w", "cb", at="n1"),
    holding("cx", "n3", ["g0"], "x"), user("x", "cx", at="n3"), resource_claim("c", asks(1)), user("p", "c"),
]  # fmt: skip
FAULTS: dict[str, tuple[Mapping[str, str], Mapping[str, tuple[str, ...]], str]] = {
    "links as fast": ({"a": "n2"}, {"ca": ("g0", "g1")}, ""),
    "links slower": (
        {"a": "n2"}, {"ca": ("g1", "g2")}, "default/a on n2: its devices are linked at 8.0 GB/s, before at 9.0",
    ),
    "a device of the preemptor": (
        {"b": "n1", "w": "n1"}, {"cb": ("g0",)},
        "default/b on n1: device g0 of pool n1 is not available to resource claim default/cb",
    ),
    "a device of a pod that stays": (
        {"b": "n3", "w": "n3"}, {"cb": ("g0",)},
        "default/b on n3: device g0 of pool n3 is not available to resource claim default/cb",
    ),
    "all pods of a claim": ({"b": "n3", "w": "n3"}, {"cb": ("g1",)}, ""),
    "one pod of a claim": (
        {"b": "n3"}, {"cb": ("g1",)}, "default/b is moved, and its resource claim default/cb is used by w, too",
    ),
    "pods of a claim on two nodes": (
        {"b": "n3", "w": "n2"}, {"cb": ("g1",)}, "default/w on n2: resource claim default/cb is allocated to n3",
    ),
    "no devices": ({"b": "n3", "w": "n3"}, {}, "default/b on n3: resource claim default/cb has no devices"),
    "too few devices": (
        {"a": "n2"}, {"ca": ("g0",)}, "default/a on n2: resource claim default/ca requests 2 devices and gets 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_the_devices_of_moved_pods_are_checked(case: str) -> None:
    """p gets device g0 of n1, which b and w use; the claims of a case are allocated with their first moved pod."""
    moves, devices, fault = FAULTS[case]
    config = KoordpyConfiguration()
    snapshot = states(OBJECTS).snapshot(0.0)
    draft = Draft(snapshot)
    round_state, left = RoundState(draft, config), dict(devices)
    moved = []
    for name, at in moves.items():
        pod = snapshot.pods[f"default/{name}"]
        draft.evict(pod)
        claim = "ca" if name == "a" else "cb"
        own = {f"default/{claim}": grant(at, *left.pop(claim))} if claim in left else {}
        moved.append(MovedPod(as_pending(pod, round_state), snapshot.index[at], {CLAIMS: own}))
    if "b" in moves and "w" in moves:
        given = {"default/c": grant("n1", "g0")}
        draft.assign(snapshot.pods["default/p"], snapshot.index["n1"], devices={CLAIMS: given})
    found = check_moved_devices(moved, draft, config)
    assert [str(one) for one in found][:1] == ([fault] if fault else [])
    assert {one.check for one in found} <= {Check.RETURNS}


@pytest.mark.parametrize(
    ("before", "after", "slower"),
    [
        pytest.param({ROOT: "a"}, {NUMA: 0}, True, id="one PCIe root before"),
        pytest.param({NUMA: 0}, {ROOT: "a"}, False, id="one PCIe root after"),
        pytest.param({NUMA: 0}, {}, True, id="unknown after"),
        pytest.param({}, {NUMA: 0}, False, id="unknown before"),
    ],
)
def test_links_are_compared_by_attributes(before: dict[str, Any], after: dict[str, Any], *, slower: bool) -> None:
    objects = [CLASS, node("n1:8"), node("n2:8"), holding("ca", "n1", ["g0", "g1"], "a"), user("a", "ca", at="n1")]
    objects += [offers(at, "g0", "g1", attributes=facts(**own)) for at, own in (("n1", before), ("n2", after))]
    config = KoordpyConfiguration()
    snapshot = states(objects).snapshot(0.0)
    draft = Draft(snapshot)
    pod = snapshot.pods["default/a"]
    draft.evict(pod)
    devices = {CLAIMS: {"default/ca": grant("n2", "g0", "g1")}}
    back = MovedPod(as_pending(pod, RoundState(draft, config)), snapshot.index["n2"], devices)
    assert bool(check_moved_devices([back], draft, config)) is slower
