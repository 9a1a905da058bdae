# SPDX-License-Identifier: Apache-2.0
"""koordpy's claims of PodGroups against the real kube-scheduler: verdict, nodes and devices of each group.

`python -m tests.e2e.group_claim_differential --pods 500`. Kubernetes 1.37 or later, with the feature gate
DRAWorkloadResourceClaims. kube-scheduler gets all pods of a group at once. koordpy plans the same pods on the objects
before them, each pinned to kube-scheduler's node. What is compared:

- koordpy places each pod that kube-scheduler places, and gives each claim the same devices (`firstFit`);
- koordpy places no pod of a group that kube-scheduler refuses, except in the cases that `GroupOutcome` counts apart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordpy.api.claim_objects import DeviceTaintRule, ResourceClaim
from koordpy.api.objects import Pod, Wire
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.api.quantity import parse_exact
from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.devices.family_registry import make_state
from koordpy.planner.planning_round import plan_round
from koordpy.pods.claim_refs import Granted
from tests.e2e import random_claims
from tests.e2e.assets import find_assets
from tests.e2e.claim_differential import FIRST_FIT, pinned
from tests.e2e.client import Client, Refused, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.differential import PROFILES, READ, read_objects
from tests.e2e.process import eventually
from tests.e2e.random_claims import RESOURCE, GroupMaker
from tests.e2e.random_pods import PLAIN

GATE = "DRAWorkloadResourceClaims"
GROUPS_A_CLUSTER = 6
IN_WRITING = "is in the process of being allocated"
"""Of a pod that kube-scheduler tries again, because it writes the allocation of a claim for another pod."""
Json = dict[str, Any]
Devices = dict[str, list[tuple[str, str, str, str]]]
"""Claim -> (request, driver, pool, device) of its results."""


@dataclass
class GroupOutcome:
    """What was tried, and where the two differ."""

    tried: int = 0
    """Pods."""
    groups: int = 0
    fitted: int = 0
    """Pods that kube-scheduler bound."""
    whole: int = 0
    """Groups that kube-scheduler bound whole, with equal devices in koordpy's plan."""
    given_up: int = 0
    """Groups that kube-scheduler or koordpy gives up with an error of an expression."""
    wider: int = 0
    """Gangs that koordpy plans together and kube-scheduler, pod by pod, does not place."""
    unserved: int = 0
    """Groups with a claim for all devices that koordpy does not place, because kube-scheduler's nodes reach different
    devices."""
    doubled: int = 0
    """Groups to which kube-scheduler gives more of a device than other claims have left (`is_given_twice`)."""
    differences: list[str] = field(default_factory=list)


async def compare(api: Client, seed: int, *, pods: int, outcome: GroupOutcome) -> None:
    """One random cluster and its groups. kube-scheduler must be running."""
    maker = GroupMaker(seed, count=2 + seed % 3)
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    await api.make_nodes(maker.count, labels=lambda i: {}, allocatable=room, name=lambda i: f"n{i}")
    await maker.make(api, 2 * GROUPS_A_CLUSTER)
    await maker.templates(api, 2 * GROUPS_A_CLUSTER)
    await asyncio.sleep(0.7)  # kube-scheduler's view of all this comes by watches of its own
    until = outcome.tried + pods
    for number in range(GROUPS_A_CLUSTER):
        if outcome.tried < until:
            await _one(api, maker, f"s{seed}-g{number}", number, outcome)
    await api.clear()
    await _clear_groups(api)
    await random_claims.clear(api)


async def _clear_groups(api: Client) -> None:
    for item in await api.items(api.gangs.groups):
        path = f"{api.gangs.groups}/{item['metadata']['name']}"
        with contextlib.suppress(Refused):
            if item["metadata"].get("finalizers"):
                await api.patch(path, {"metadata": {"finalizers": None}})
            await api.delete(path)
    for item in await api.items(f"{RESOURCE}/namespaces/default/resourceclaimtemplates"):
        with contextlib.suppress(Refused):
            await api.delete(f"{RESOURCE}/namespaces/default/resourceclaimtemplates/{item['metadata']['name']}")


async def _one(api: Client, maker: GroupMaker, name: str, number: int, outcome: GroupOutcome) -> None:
    """Compares one group."""
    group = maker.group(name, number)
    body = {"apiVersion": api.gangs.group_version, "kind": "PodGroup", "metadata": {"name": name}}
    await api.create(api.gangs.groups, {**body, "spec": group["spec"]})
    await _named(api, f"{api.gangs.groups}/{name}", group["spec"]["resourceClaims"])
    manifests = maker.members(group)
    # claims of single pods are made before kube-scheduler may look at the pods
    for manifest in manifests:
        manifest["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
        made = await api.create(pods_path(), manifest)
        await _named(api, f"{pods_path()}/{made['metadata']['name']}", _own_entries(manifest, group))
    read: Mapping[str, type[Wire]] = {
        **READ,
        f"{RESOURCE}/devicetaintrules": DeviceTaintRule,
        api.gangs.groups: UpstreamPodGroup,
    }
    await asyncio.sleep(0.1)
    before = await read_objects(api, read)
    for manifest in manifests:
        await api.patch(f"{pods_path()}/{manifest['metadata']['name']}", {"spec": {"schedulingGates": None}})
    theirs = [await _verdict(api, one["metadata"]["name"]) for one in manifests]
    await asyncio.sleep(0.1)
    theirs = [await api.get(f"{pods_path()}/{one['metadata']['name']}") for one in manifests]
    outcome.tried += len(theirs)
    outcome.groups += 1
    at = {one["metadata"]["name"]: one["spec"]["nodeName"] for one in theirs if one["spec"].get("nodeName")}
    outcome.fitted += len(at)
    told = [(condition(one, "PodScheduled") or {}) for one in theirs if not one["spec"].get("nodeName")]
    if any(one.get("reason") == "SchedulerError" for one in told):
        outcome.given_up += 1
    else:
        claims = await read_objects(api, {f"{RESOURCE}/resourceclaims": ResourceClaim})
        after = [one for one in before if not isinstance(one, ResourceClaim)] + claims
        judge(name, group, at, after, before, [one.get("message", "") for one in told], outcome)
    await asyncio.gather(
        *(api.delete(f"{pods_path()}/{one['metadata']['name']}") for one in theirs if not one["spec"].get("nodeName"))
    )


def _own_entries(manifest: Json, group: Json) -> list[Json]:
    return [one for one in manifest["spec"]["resourceClaims"] if one not in group["spec"]["resourceClaims"]]


async def _named(api: Client, path: str, entries: Sequence[Json]) -> None:
    """Waits until the claims of templates are made and named in the status of their owner."""
    wanted = {one["name"] for one in entries if "resourceClaimTemplateName" in one}

    async def made() -> bool:
        found = await api.get(path)
        return wanted <= {one["name"] for one in found.get("status", {}).get("resourceClaimStatuses", [])}

    await eventually(made, what=f"claims of {path}", every_s=0.02)


async def _verdict(api: Client, name: str) -> Json:
    async def decided() -> Json | None:
        pod = await api.get(f"{pods_path()}/{name}")
        said = condition(pod, "PodScheduled")
        passing = said is None or said.get("reason") == "SchedulingGated" or IN_WRITING in said.get("message", "")
        return pod if pod["spec"].get("nodeName") or not passing else None

    return await eventually(decided, what=f"kube-scheduler's verdict on {name}", every_s=0.01)


def _devices(objects: Sequence[Wire]) -> Devices:
    """Returns the devices of all allocated claims."""
    return {
        f"default/{one.metadata.name}": [(r.request, *r.device) for r in grant_of(one.status.allocation)]
        for one in objects
        if isinstance(one, ResourceClaim) and one.status.allocation is not None
    }


def is_given_twice(objects: Sequence[Wire], names: Collection[str]) -> bool:
    """Returns whether allocations of the named claims take more of a device than other claims leave.

    kube-scheduler does so after an error: it forgets an allocation that it has written if a later write for the same
    pod fails, because its cache goes back to the claim before the write.
    """
    state = make_state(scheduler_names=(PLAIN,), dra=FIRST_FIT.dra)
    for obj in objects:
        state.upsert(obj)
    view = claim_book(state.families).objects.view()
    allocations = (one.status.allocation for key, one in view.claims.items() if key.partition("/")[2] in names)
    grants = (granted for one in allocations if one is not None for granted in grant_of(one))
    return any(_exceeds(granted, view.usage, view.offers.by_id[granted.device]) for granted in grants)


def _exceeds(granted: Granted, usage: DeviceUsage, offered: OfferedDevice) -> bool:
    """Returns whether more of a device than there is is allocated. usage: with the granted device."""
    device, is_whole = granted.device, granted.consumed is None
    if not granted.admin and usage.whole.get(device, 0) + (usage.shares.get(device, 0) if is_whole else 1) > 1:
        return True
    for name, amount in granted.consumed or ():
        full = offered.full_name(name)
        if usage.shared(device).get(full, 0) + (parse_exact(amount) if granted.admin else 0) > offered.capacity[full]:
            return True
    drawn = {key: usage.counters.get((device.driver, device.pool, key), 0) for key, _ in offered.consumes}
    return any(amount > offered.pool.counters[key] for key, amount in drawn.items())


def judge(
    name: str,
    group: Json,
    at: Mapping[str, str],
    after: Sequence[Wire],
    before: Sequence[Wire],
    told: Sequence[str],
    outcome: GroupOutcome,
) -> None:
    """Compares koordpy's plan of a group with kube-scheduler's.

    at: pod -> node. after: the objects with kube-scheduler's allocations. told: messages of refused pods.
    """
    text = _difference(name, group, at, _devices(after), before, told, outcome)
    allocated = _devices(before).keys()
    if text and is_given_twice(after, {key.partition("/")[2] for key in _devices(after).keys() - allocated}):
        outcome.doubled += 1
    elif text:
        outcome.differences.append(text)


def _difference(
    name: str,
    group: Json,
    at: Mapping[str, str],
    given: Devices,
    before: Sequence[Wire],
    told: Sequence[str],
    outcome: GroupOutcome,
) -> str:
    """Returns how koordpy's plan differs; empty if it does not, or if the group is counted apart."""
    members = [one for one in before if isinstance(one, Pod) and one.metadata.name.startswith(f"{name}-")]
    others = [one for one in before if one not in members]
    placed = [pinned(_free(one), at[one.metadata.name]) for one in members if one.metadata.name in at]
    refused = [_free(one) for one in members if one.metadata.name not in at]
    gang = "gang" in group["spec"]["schedulingPolicy"]
    # of pods that start alone, kube-scheduler tries those of one second in any order
    plan, pending = _planned([*others, *placed, *(refused if gang or not placed else ())])
    what = f"{name} ({'gang' if gang else 'basic'}, {len(members)} pods)"
    missing = sorted(at.keys() - plan.keys())
    if missing and all("CEL runtime error" in pending.get(key, "") for key in missing):
        outcome.given_up += 1  # an error that the member meets alone (dra.md 3), and not after the others
        return ""
    if missing and len(set(at.values())) > 1 and _has_all_claim(others):
        outcome.unserved += 1
        return ""
    if missing:
        why = [f"{key}: {pending.get(key)}" for key in missing]
        return f"{what}: kube-scheduler binds {dict(at)}; koordpy refuses {why}"
    more = sorted(plan.keys() - at.keys())
    if more and gang:
        outcome.wider += 1
        return ""
    if more:
        return f"{what}: koordpy places {more}; kube-scheduler: {told}"
    own = {claim: grant for pod in plan.values() for claim, grant in pod.items()}
    differing = {claim: (given.get(claim), grant) for claim, grant in own.items() if given.get(claim) != grant}
    if differing:
        return f"{what} on {dict(at)}: devices differ (kube-scheduler, koordpy): {differing}"
    outcome.whole += bool(at)
    return ""


def _has_all_claim(objects: Sequence[Wire]) -> bool:
    """Returns whether a claim without an allocation asks for all devices."""
    waiting = (one for one in objects if isinstance(one, ResourceClaim) and one.status.allocation is None)
    requests = (request for one in waiting for request in one.spec.devices.requests)
    return any(exact.allocation_mode == "All" for request in requests for _, exact in request.alternatives)


def _free(pod: Pod) -> Pod:
    """A pod without its gate and without a verdict."""
    return replace(pod, spec=replace(pod.spec, scheduling_gates=[]), status=replace(pod.status, conditions=[]))


def _planned(objects: Sequence[Wire]) -> tuple[dict[str, Devices], dict[str, str]]:
    """Returns (pod -> its claims with devices of the pods that koordpy places, pod -> message of the others)."""
    state = make_state(scheduler_names=(PLAIN,), dra=FIRST_FIT.dra)
    for obj in objects:
        state.upsert(obj)
    plan = plan_round(state.snapshot(0.0), FIRST_FIT)
    placed: dict[str, Devices] = {}
    for one in plan.placements:
        claims = one.devices.get("claims", {})
        placed[one.pod_key.partition("/")[2]] = {
            claim: [(r.request, *r.device) for r in grant] for claim, grant in claims.items()
        }
    return placed, {one.pod_key.partition("/")[2]: one.message for one in plan.pending}


def plane_of(assets: Path, folder: Path | None) -> ControlPlane:
    """A control plane that serves claims of PodGroups."""
    return ControlPlane(
        assets,
        upstream_gangs=True,
        controller_manager=True,
        scheduler=True,
        scheduler_profiles=PROFILES[:1],
        gates=[GATE],
        unlimited=True,
        folder=folder,
    )


async def run(plane: ControlPlane, *, pods: int, seed: int) -> GroupOutcome:
    """Clusters from consecutive seeds until `pods` were tried."""
    outcome = GroupOutcome()
    async with plane.client() as api:
        await api.clear()
        await _clear_groups(api)
        await random_claims.clear(api)
        template = {"devices": {"requests": [{"name": "own", "exactly": {"deviceClassName": "claims-gpu"}}]}}
        while outcome.tried < pods:
            body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "own"}}
            await api.create(
                f"{RESOURCE}/namespaces/default/resourceclaimtemplates", {**body, "spec": {"spec": template}}
            )
            await compare(api, seed, pods=pods - outcome.tried, outcome=outcome)
            seed += 1
    return outcome


def main() -> int:
    """Starts a control plane of its own, compares, prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    began = time.monotonic()
    with plane_of(find_assets(), args.folder) as plane:
        outcome = asyncio.run(run(plane, pods=args.pods, seed=args.seed))
    for difference in outcome.differences:
        print(difference)
    told = f"{outcome.fitted} bound, {outcome.groups} groups, {outcome.whole} with equal devices"
    apart = (
        f"{outcome.given_up} given up, {outcome.wider} wider, {outcome.unserved} unserved, {outcome.doubled} doubled"
    )
    print(
        f"{outcome.tried} pods ({told}; {apart}), {len(outcome.differences)} differ, {time.monotonic() - began:.0f} s"
    )
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
