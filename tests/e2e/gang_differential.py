# SPDX-License-Identifier: Apache-2.0
"""koordpy's gangs with required affinity among their members against the real kube-scheduler, pod by pod.

`python -m tests.e2e.gang_differential --gangs 500 --seed 1` tries many by hand; test_differential.py tries some in CI.
kube-scheduler gets the members one after the other, some of them before the others (late members). koordpy plans the
same members at once on the same objects. What is compared:

- kube-scheduler places each member where koordpy's plan has it, in an order that `AffinityLaw` names;
- where kube-scheduler places all members by a final state that the rule of kube-parity.md 2.7 allows, so does koordpy;
- where kube-scheduler leaves all that require a domain in one, and nothing that they match stands elsewhere, so does
  koordpy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from koordpy.api.objects import Namespace, Node, ObjectMeta, Pod, Wire
from koordpy.api.pod_groups import PodGroup, PodGroupSpec
from koordpy.devices.family_registry import make_state
from koordpy.engine.client.api_resources import NAMESPACES as NAMESPACE
from koordpy.engine.client.api_resources import NODES, PODS
from koordpy.planner.planning_round import plan_round
from tests.e2e.assets import find_assets
from tests.e2e.client import Client, Refused, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually
from tests.e2e.random_gangs import NAMESPACES, SCHEDULER, GangMaker, pinned
from tests.planning.affinity_law import AffinityLaw, Placed, terms
from tests.scenarios.cluster import bound

Json = dict[str, Any]
READ: dict[str, type[Wire]] = {NODES.path(): Node, PODS.path(): Pod, NAMESPACE.path(): Namespace}


@dataclass
class GangOutcome:
    """What was tried, and where the two differ."""

    tried: int = 0
    placed: int = 0
    """Gangs that koordpy placed, whole."""
    both: int = 0
    """Of these, those that kube-scheduler placed whole as well."""
    late: int = 0
    """Gangs of which members stood before."""
    wider: int = 0
    """Gangs that kube-scheduler spread over more domains than the rule allows: over several that hold linked pods."""
    differences: list[str] = field(default_factory=list)


async def prepare(api: Client) -> None:
    await api.clear()
    for name in NAMESPACES:
        with contextlib.suppress(Refused):
            await api.make_namespace(name)


async def compare(api: Client, seed: int, outcome: GangOutcome) -> None:
    """One random cluster and its gang. kube-scheduler must be running."""
    maker = GangMaker(seed)
    nodes = maker.nodes()
    for i, (labels, room) in enumerate(nodes):
        amounts = {"cpu": str(room), "memory": "8Gi", "pods": "110"}
        await api.make_nodes(1, labels=lambda _, own=labels: own, allocatable=amounts, name=lambda _, at=i: f"n{at}")
    await asyncio.sleep(0.3)  # kube-scheduler's view of the nodes comes by a watch of its own
    for pod, at in maker.standing(len(nodes)):
        made = await api.create(
            pods_path(pod["metadata"]["namespace"]), {**pod, "spec": {**pod["spec"], "schedulerName": "nobody"}}
        )
        await api.bind(made, f"n{at}")
    members = maker.members()
    late = maker.late(len(members))
    first = [await _try(api, member) for member in members[:late]]
    for pod, node in first:
        if not node:
            await _remove(api, [pod])
    there = sum(bool(node) for _, node in first)
    before = await _read(api)
    theirs = [await _try(api, member) for member in members[late:]]
    pods = [msgspec.convert(_unbound(pod), Pod) for pod, _ in theirs]
    await _remove(api, [pod for pod, _ in theirs])
    ours = _planned(before, pods, maker.name, there + len(pods))
    outcome.tried += 1
    outcome.late += bool(there)
    law = AffinityLaw.of(
        [one for one in before if isinstance(one, Node)], {name: _labels(before, name) for name in NAMESPACES}
    )
    stood = [(one, one.spec.node_name) for one in before if isinstance(one, Pod) and one.spec.node_name]
    their_plan = [(pod, node) for pod, (_, node) in zip(pods, theirs, strict=True) if node]
    their_all = len(their_plan) == len(pods)
    if their_all and not law.keeps(their_plan, stood):
        outcome.wider += 1
    elif their_all and len(ours) < len(pods):
        outcome.differences.append(f"seed {seed}: kube-scheduler places {_told(their_plan)}, koordpy {_told(ours)}")
    if ours:
        manifests = {member["metadata"]["name"]: member for member in members}
        outcome.placed += len(ours) == len(pods)
        outcome.both += their_all and len(ours) == len(pods)
        outcome.differences += [f"seed {seed}: {text}" for text in await _replayed(api, law, ours, stood, manifests)]
        if their_all:
            outcome.differences += [f"seed {seed}: {text}" for text in _opened(law, ours, their_plan, stood)]
    await api.clear()


def _unbound(pod: Json) -> Json:
    """The pod as it was before kube-scheduler looked at it."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {key: value for key, value in pod.items() if key != "status"} | {"spec": spec}


def _planned(before: Sequence[Wire], pods: Sequence[Pod], name: str, count: int) -> list[Placed]:
    """Where koordpy places the members, which it is shown without a verdict."""
    state = make_state(scheduler_names=(SCHEDULER,))
    meta = ObjectMeta(name=name, namespace="default")
    for obj in (*before, PodGroup(metadata=meta, spec=PodGroupSpec(min_member=count)), *pods):
        state.upsert(obj)
    at = bound(plan_round(state.snapshot(0.0)))
    return [(pod, at[pod.metadata.name]) for pod in pods if pod.metadata.name in at]


async def _replayed(
    api: Client, law: AffinityLaw, ours: Sequence[Placed], stood: Sequence[Placed], manifests: Mapping[str, Json]
) -> list[str]:
    """What kube-scheduler refuses of a plan, each member pinned to its node. manifests: name of a member -> the pod."""
    order = law.order(ours, stood)
    if order is None:
        return [f"no order leads to {_told(ours)}"]
    made = []
    refused = []
    for i in order:
        pod, node = ours[i]
        found, at = await _try(api, pinned(manifests[pod.metadata.name], node, f"again-{pod.metadata.name}"))
        made.append(found)
        if at != node:
            why = (condition(found, "PodScheduled") or {}).get("message", "")
            refused.append(f"kube-scheduler refuses {pod.metadata.name} on {node} of {_told(ours)}: {why}")
    await _remove(api, made)
    return refused


def _opened(law: AffinityLaw, ours: Sequence[Placed], theirs: Sequence[Placed], stood: Sequence[Placed]) -> list[str]:
    """Keys of whose domains kube-scheduler used one for all members that require one, and koordpy several."""
    out = []
    for key in {term.topology_key for pod, _ in theirs for term in terms(pod)}:
        owners = [pod for pod, _ in theirs if any(term.topology_key == key for term in terms(pod))]
        elsewhere = {
            law.nodes[at].get(key) for other, at in stood if any(law.matches(owner, other) for owner in owners)
        }
        without = [one for one, _ in theirs if not terms(one)]
        if any(law.matches(owner, other) for owner in owners for other in without):
            continue  # members without terms may stand anywhere, and others beside them
        used = {
            who: {law.nodes[at].get(key) for pod, at in plan if any(term.topology_key == key for term in terms(pod))}
            for who, plan in (("theirs", theirs), ("ours", ours))
        }
        if len(used["theirs"] | elsewhere) == 1 and len(used["ours"]) > 1:
            out.append(f"{_told(ours)} is in several domains of {key}, {_told(theirs)} in one")
    return out


async def _try(api: Client, member: Json) -> tuple[Json, str]:
    """(the pod, its node): the node is empty when kube-scheduler found none."""
    namespace, name = member["metadata"]["namespace"], member["metadata"]["name"]
    await api.create(pods_path(namespace), member)

    async def decided() -> Json | None:
        pod = await api.get(f"{pods_path(namespace)}/{name}")
        return pod if pod["spec"].get("nodeName") or condition(pod, "PodScheduled") else None

    pod = await eventually(decided, what=f"kube-scheduler's verdict on {name}", every_s=0.005)
    return pod, pod["spec"].get("nodeName", "")


async def _remove(api: Client, pods: Sequence[Json]) -> None:
    for pod in pods:
        await api.delete(f"{pods_path(pod['metadata']['namespace'])}/{pod['metadata']['name']}")
    await asyncio.sleep(0.1)


async def _read(api: Client) -> list[Wire]:
    lists = await asyncio.gather(*map(api.items, READ))
    return [msgspec.convert(o, kind) for kind, found in zip(READ.values(), lists, strict=True) for o in found]


def _labels(objects: Sequence[Wire], namespace: str) -> dict[str, str]:
    found = [one.metadata.labels for one in objects if isinstance(one, Namespace) and one.metadata.name == namespace]
    return dict(found[0]) if found else {}


def _told(plan: Sequence[Placed]) -> str:
    return ", ".join(f"{pod.metadata.name} on {node}" for pod, node in plan) or "nothing"


async def run(plane: ControlPlane, *, gangs: int, seed: int) -> GangOutcome:
    """So many gangs of consecutive seeds, each on a cluster of its own."""
    outcome = GangOutcome()
    async with plane.client() as api:
        await prepare(api)
        for number in range(seed, seed + gangs):
            await compare(api, number, outcome)
    return outcome


def main() -> int:
    """Starts a control plane of its own, compares, prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    began = time.monotonic()
    with ControlPlane(find_assets(), scheduler=True, unlimited=True, folder=args.folder) as plane:
        outcome = asyncio.run(run(plane, gangs=args.gangs, seed=args.seed))
    for difference in outcome.differences:
        print(difference)
    told = f"{outcome.placed} placed, {outcome.both} by both, {outcome.late} with late members, {outcome.wider} wider"
    print(f"{outcome.tried} gangs ({told}), {len(outcome.differences)} differ, {time.monotonic() - began:.0f} s")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
