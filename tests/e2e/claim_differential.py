# SPDX-License-Identifier: Apache-2.0
"""koordpy's claims against the real kube-scheduler: verdict, nodes and, with `firstFit`, the allocation of every claim.

`python -m tests.e2e.differential --claims --pods 1000`. Kubernetes 1.37 or later. Whole allocations are compared
(devices, shares, parameters, nodes), and for extended resources also the claim and the pod's status. Pods of which
kube-scheduler ends the attempt with an error of `MARKED` are counted apart: koordpy refuses a node instead.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from koordpy.api.claim_objects import DeviceTaintRule, ResourceClaim, ResourceSlice
from koordpy.api.objects import Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod, Requirement, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.dra_settings import Dra
from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.planner.planning_round import plan_round
from koordpy.pods.claim_refs import CLAIMS, IMPLICIT
from tests.e2e import random_claims
from tests.e2e.client import Client, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.differential import ITS_SCORES, READ, Json, Outcome, filters_words, read_objects, verdict_on
from tests.e2e.random_claims import RESOURCE, ClaimMaker
from tests.e2e.random_pods import PLAIN
from tests.e2e.varied_claims import VariedMaker

PODS_A_CLUSTER = 12
FIRST_FIT = KoordpyConfiguration(dra=Dra(choice="firstFit"), scores=ITS_SCORES)
READ_HERE: Mapping[str, type[Wire]] = {**READ, f"{RESOURCE}/devicetaintrules": DeviceTaintRule}
MARKED = re.compile(
    "asks for all devices, but resource pool .* is currently (being updated|invalid)"
    "|cannot add device .* because a claim constraint would not be satisfied"
    "|nil or empty request mappings"
)
"""Errors of kube-scheduler that koordpy does not copy.

The first two refuse only a node (dra.md 2). By the last one, kube-scheduler 1.37.2 never binds a pod with a claim to a
node that serves its extended resources by a device plugin.
"""
IN_FILTER = 'running "DynamicResources" filter plugin: '
A_DEVICE = re.compile(r"claim \S+ selector #\d+ on device \S+ ")


async def compare(api: Client, maker: ClaimMaker, seed: int, *, pods: int, outcome: Outcome) -> None:
    """One random cluster and its pods. kube-scheduler must be running. seed: that of the maker, for names."""
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    for i, (labels, plugin) in enumerate(maker.nodes()):
        await api.make_nodes(1, labels=partial(_same, labels), allocatable={**room, **plugin}, name=partial(_name, i))
    await maker.make(api, 2 * pods)
    await asyncio.sleep(0.7)  # kube-scheduler's view of all this comes by watches of its own
    for number in range(pods):
        before = await read_objects(api, READ_HERE)
        made = await api.create(pods_path(), maker.pod(f"s{seed}-p{number}", number))
        await _one(api, made, before, outcome)
    await api.clear()
    await random_claims.clear(api)


def _same(labels: Json, _: int) -> Json:
    return labels


def _name(number: int, _: int) -> str:
    return f"n{number}"


async def _one(api: Client, made: Json, before: list[Wire], outcome: Outcome) -> None:
    """Compares one pod."""
    chosen, theirs = await verdict_on(api, made)
    outcome.tried += 1
    if chosen:
        outcome.fitted += 1
        claims = await api.items(f"{RESOURCE}/namespaces/default/resourceclaims")
        judge_placed(made, before, chosen, stated_claims(theirs, claims), outcome)
        return
    await api.delete(f"{pods_path()}/{made['metadata']['name']}")
    judge_refused(made, before, condition(theirs, "PodScheduled") or {}, outcome)


def _count(text: str, before: list[Wire], outcome: Outcome) -> None:
    """Adds a difference; counts it apart if kube-scheduler offers devices of an outdated generation (dra.md 1, marked).

    It does so on nodes that slices of an older generation reach, and none of the newest.
    """
    slices = {one.metadata.name: one for one in before if isinstance(one, ResourceSlice)}
    newest: dict[tuple[str, str], int] = {}
    for one in slices.values():
        key = one.spec.driver, one.spec.pool.name
        newest[key] = max(newest.get(key, 0), one.spec.pool.generation)
    old = {
        name: one
        for name, one in slices.items()
        if one.spec.pool.generation < newest[one.spec.driver, one.spec.pool.name]
    }
    offers = [DeviceOffers(some, {}, {}) for some in (old, {name: slices[name] for name in slices.keys() - old.keys()})]
    for node in (one.metadata for one in before if isinstance(one, Node)):
        outdated, current = ({one.pool.title for one in some.at(node).pools} for some in offers)
        if outdated - current:
            outcome.given_up += 1
            return
    outcome.differences.append(text)


def judge_placed(made: Json, before: list[Wire], chosen: str, given: Json, outcome: Outcome) -> None:
    """Compares koordpy with kube-scheduler, which bound the pod. given: `stated_claims`."""
    key, pod = f"default/{made['metadata']['name']}", msgspec.convert(made, Pod)
    found = explain(_state([*before, pod]).snapshot(0.0), FIRST_FIT, key)
    here = next(node for node in found.nodes if node.node == chosen)
    if not here.feasible:
        _count(f"{key}: kube-scheduler took {chosen}, koordpy refuses it: {here.reasons}", before, outcome)
        return
    outcome.scored += 1
    own = planned_claims([*before, pinned(pod, chosen)], key, chosen)
    allocated = {
        one.metadata.name for one in before if isinstance(one, ResourceClaim) and one.status.allocation is not None
    }
    given = {name: what for name, what in given.items() if name not in allocated}
    if own != given and _draws_beside_itself([*before, pinned(pod, chosen)], key):
        outcome.given_up += 1
    elif own != given:
        text = f"{key} on {chosen}: allocations differ\n    kube-scheduler: {given}\n    koordpy:        {own}"
        _count(text, before, outcome)


def judge_refused(made: Json, before: list[Wire], refused: Json, outcome: Outcome) -> None:
    """Compares koordpy with kube-scheduler, which did not bind the pod. refused: condition of the pod."""
    key = f"default/{made['metadata']['name']}"
    state = _state([*before, msgspec.convert(made, Pod)])
    told, failed = filters_words(refused["message"]), refused["reason"] == "SchedulerError"
    if failed and MARKED.search(refused["message"]):
        outcome.given_up += 1
        text = refused["message"].removeprefix(IN_FILTER)
        reasons = list(_errors(before, made))
        if "asks for all devices" in text and not any(text in one for one in reasons):
            outcome.differences.append(
                f"{key}: words differ\n    kube-scheduler: {text}\n    koordpy:        {reasons}"
            )
        return
    plan = plan_round(state.snapshot(0.0), FIRST_FIT, only=frozenset([key]))
    if plan.placements and _draws_beside_itself([*before, msgspec.convert(made, Pod)], key):
        outcome.given_up += 1
        return
    if plan.placements:
        _count(f"{key}: fits {plan.placements[0].node} for koordpy; kube-scheduler: {told}", before, outcome)
        return
    [pending] = plan.pending
    said = filters_words(pending.message)
    if failed and pending.reason == "SchedulerError":
        # kube-scheduler ends with the error of any node
        told, said = refused["message"].removeprefix(IN_FILTER), pending.message
        said = next((one for one in _errors(before, made) if one == told), said)
    if said != told or failed != (pending.reason == "SchedulerError"):
        _count(f"{key}: words differ\n    kube-scheduler: {told}\n    koordpy:        {said}", before, outcome)
    elif failed:
        outcome.reasons[A_DEVICE.sub("", told)] += 1
    else:
        outcome.reasons[told.partition(": ")[2].lstrip("0123456789 ")] += 1


def _draws_beside_itself(objects: list[Wire], key: str) -> bool:
    """Returns whether koordpy gives admin access to devices that draw more than remains beside the pod's others.

    Admin access blocks no request of its pod for koordpy, and does so for kube-scheduler (dra.md 2, marked).
    """
    state = _state(objects)
    snapshot = state.snapshot(0.0)
    plan = plan_round(snapshot, FIRST_FIT, only=frozenset([key]))
    view = claim_book(state.families).objects.view()
    usage = view.usage.copy()
    grants = [grant for one in plan.placements for grant in one.devices.get(CLAIMS, {}).values()]
    granted = [one for grant in grants for one in grant]
    for one in granted:
        usage.change(one._replace(admin=False), 1)
    admin = [view.offers.by_id[one.device] for one in granted if one.admin]
    return any(
        usage.counters[device.id.driver, device.id.pool, name] > device.pool.counters[name]
        for device in admin
        for name, _ in device.consumes
    )


def _errors(before: list[Wire], made: Json) -> Iterator[str]:
    """Yields koordpy's messages of a pod on single nodes."""
    pod = msgspec.convert(made, Pod)
    for node in (one.metadata.name for one in before if isinstance(one, Node)):
        plan = plan_round(_state([*before, pinned(pod, node)]).snapshot(0.0), FIRST_FIT, only=frozenset([pod.key]))
        yield from (one.message for one in plan.pending)


def _state(objects: list[Wire]) -> ClusterState:
    state = make_state(scheduler_names=(PLAIN,), dra=FIRST_FIT.dra)
    for obj in objects:
        state.upsert(obj)
    return state


def pinned(pod: Pod, node: str) -> Pod:
    """Returns the pod with an affinity to one node."""
    here = Requirement(key="metadata.name", operator="In", values=(node,))
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=(here,))])
    affinity = Affinity(node_affinity=NodeAffinity(required=terms))
    return replace(pod, spec=replace(pod.spec, affinity=affinity))


def stated_claims(pod: Json, claims: list[Json]) -> Json:
    """Returns name -> allocation of the claims of a bound pod. The claim for extended resources is `IMPLICIT`, with its
    requests and the pod's status."""
    names = {one["resourceClaimName"] for one in pod["spec"].get("resourceClaims", [])}
    of_pod = pod["status"].get("extendedResourceClaimStatus", {})
    found: Json = {}
    for claim in claims:
        allocation = claim.get("status", {}).get("allocation")
        if claim["metadata"]["name"] in names:
            found[claim["metadata"]["name"]] = allocation and _normal(allocation)
        elif claim["metadata"]["name"] == of_pod.get("resourceClaimName"):
            mappings = [
                [one["containerName"], one["resourceName"], one["requestName"]] for one in of_pod["requestMappings"]
            ]
            requests = [(one["name"], _plain(one["exactly"])) for one in claim["spec"]["devices"]["requests"]]
            found[IMPLICIT] = _normal(allocation), requests, sorted(mappings)
    return found


def planned_claims(objects: list[Wire], key: str, node: str) -> Json:
    """Returns what `stated_claims` returns, of the claims that koordpy allocates with a pod."""
    state = _state(objects)
    plan = plan_round(state.snapshot(0.0), FIRST_FIT, only=frozenset([key]))
    if not plan.placements:
        return {"refused": plan.pending[0].message}
    book, pod = claim_book(state.families).objects, state.snapshot(0.0).pods[key].pod
    found: Json = {}
    for name, grant in plan.placements[0].devices.get(CLAIMS, {}).items():
        if name.endswith(IMPLICIT):
            made = book.extended(pod, grant)
            claim = ResourceClaim(spec=replace(ResourceClaim().spec, devices=made.devices))
            requests = [(one.name, _plain(msgspec.to_builtins(one.exactly))) for one in made.devices.requests]
            stated = _normal(msgspec.to_builtins(book.allocation(claim, node, grant, str)))
            found[IMPLICIT] = stated, requests, sorted(map(list, made.mappings))
        else:
            claim = book.get(ResourceClaim, name)
            allocation = book.allocation(claim, node, grant, lambda i: f"share {i}")
            found[name.partition("/")[2]] = _normal(msgspec.to_builtins(allocation))
    return found


def _plain(exact: Json) -> Json:
    """Returns a request without the defaults that the API server sets."""
    return {"allocationMode": "ExactCount", "count": 1, **exact}


def _normal(allocation: Json) -> Json:
    """Returns an allocation without what differs by chance: times and shareIDs."""
    allocation = msgspec.json.decode(msgspec.json.encode(allocation))
    devices = allocation["devices"]
    results = [{**one, "shareID": "shared"} if "shareID" in one else one for one in devices["results"]]
    found: Json = {"results": results, "config": devices.get("config", [])}
    return {**found, "nodeSelector": allocation.get("nodeSelector")}


async def run(plane: ControlPlane, *, pods: int, seed: int) -> Outcome:
    """Clusters of PODS_A_CLUSTER pods each from consecutive seeds until `pods` were tried: even seeds are varied."""
    outcome = Outcome()
    async with plane.client() as api:
        await api.clear()
        await random_claims.clear(api)
        while outcome.tried < pods:
            maker = maker_of(seed)
            await compare(api, maker, seed, pods=min(PODS_A_CLUSTER, pods - outcome.tried), outcome=outcome)
            seed += 1
    return outcome


def maker_of(seed: int) -> ClaimMaker:
    """Returns the maker of a cluster; even seeds have the rarer fields."""
    kind = ClaimMaker if seed % 2 else VariedMaker
    return kind(seed, count=2 + seed % 3)
