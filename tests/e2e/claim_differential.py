# SPDX-License-Identifier: Apache-2.0
"""koordpy's claims against the real kube-scheduler: verdict, nodes and, with `firstFit`, the devices of every claim.

`python -m tests.e2e.differential --claims --pods 1000`. Kubernetes 1.37 or later. Pods that kube-scheduler gives up
with an error are counted apart: koordpy refuses the node instead (dra.md 9).
"""

from __future__ import annotations

import asyncio

import msgspec

from koordpy.api.claim_objects import DeviceTaintRule
from koordpy.api.objects import Pod
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.dra_settings import Dra
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.planner.planning_round import plan_round
from tests.e2e import random_claims
from tests.e2e.client import Client, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.differential import ITS_SCORES, READ, Json, Outcome, filters_words, read_objects, verdict_on
from tests.e2e.random_claims import RESOURCE, ClaimMaker
from tests.e2e.random_pods import PLAIN

PODS_A_CLUSTER = 12
FIRST_FIT = KoordpyConfiguration(dra=Dra(choice="firstFit"), scores=ITS_SCORES)
READ_HERE = {**READ, f"{RESOURCE}/devicetaintrules": DeviceTaintRule}


async def compare(api: Client, seed: int, *, pods: int, outcome: Outcome) -> None:
    """One random cluster and its pods. kube-scheduler must be running."""
    maker = ClaimMaker(seed, count=2 + seed % 3)
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    await api.make_nodes(maker.count, labels=lambda i: {}, allocatable=room, name=lambda i: f"n{i}")
    await maker.make(api, 2 * pods)
    await asyncio.sleep(0.7)  # kube-scheduler's view of all this comes by watches of its own
    for number in range(pods):
        before = await read_objects(api, READ_HERE)
        made = await api.create(pods_path(), maker.pod(f"s{seed}-p{number}", number))
        await _one(api, made, before, outcome)
    await api.clear()
    await random_claims.clear(api)


async def _one(api: Client, made: Json, before: list[msgspec.Struct], outcome: Outcome) -> None:
    """Compares one pod."""
    name = made["metadata"]["name"]
    chosen, theirs = await verdict_on(api, made)
    state = make_state(scheduler_names=(PLAIN,), dra=FIRST_FIT.dra)
    for obj in (*before, msgspec.convert(made, Pod)):
        state.upsert(obj)  # type: ignore[arg-type]
    key = f"default/{name}"
    found = explain(state.snapshot(0.0), FIRST_FIT, key)
    feasible = {node.node: node for node in found.nodes if node.feasible}
    outcome.tried += 1
    if not chosen:
        await api.delete(f"{pods_path()}/{name}")
        refused = condition(theirs, "PodScheduled") or {}
        if refused["reason"] == "SchedulerError":
            outcome.given_up += 1
            return
        told = filters_words(refused["message"])
        if feasible:
            outcome.differences.append(f"{key}: fits {sorted(feasible)} for koordpy; kube-scheduler: {told}")
            return
        plan = plan_round(state.snapshot(0.0), FIRST_FIT, only=frozenset([key]))
        said = filters_words(plan.pending[0].message)
        if said != told:
            outcome.differences.append(f"{key}: words differ\n    kube-scheduler: {told}\n    koordpy:        {said}")
        else:
            outcome.reasons[told.partition(": ")[2].lstrip("0123456789 ")] += 1
        return
    outcome.fitted += 1
    if chosen not in feasible:
        why = next((node.reasons for node in found.nodes if node.node == chosen), ())
        outcome.differences.append(f"{key}: kube-scheduler took {chosen}, koordpy refuses it: {why}")
        return
    given = await random_claims.devices_of(api, theirs)
    own = [(one["request"], one["driver"], one["pool"], one["device"]) for one in feasible[chosen].devices]
    outcome.scored += 1
    if own != given:
        outcome.differences.append(
            f"{key} on {chosen}: devices differ\n    kube-scheduler: {given}\n    koordpy: {own}"
        )


async def run(plane: ControlPlane, *, pods: int, seed: int) -> Outcome:
    """Clusters of PODS_A_CLUSTER pods each from consecutive seeds until `pods` were tried."""
    outcome = Outcome()
    async with plane.client() as api:
        await api.clear()
        await random_claims.clear(api)
        while outcome.tried < pods:
            await compare(api, seed, pods=min(PODS_A_CLUSTER, pods - outcome.tried), outcome=outcome)
            seed += 1
    return outcome
