# SPDX-License-Identifier: Apache-2.0
"""NodeResourceTopologyMatch: the filter of nodes by what the kubelet's Topology Manager will admit (numa.md 5).

Nodes in equal states of their zones share one result, so the cost is O(different states + changed nodes).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from koordpy.api.bounded_memory import cached
from koordpy.cache.snapshot import Ints, NodeInfo
from koordpy.devices.numa.admission import Policy, RequestPart, ZoneAdmission, copies
from koordpy.devices.numa.numa_nodes import NodeValues, NumaNodes
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.zone_state import ZoneState
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Rule
from koordpy.pods.claim_refs import CLAIMS
from koordpy.pods.pod_info import PodInfo

PLUGIN = "NodeResourceTopologyMatch"
_WORDS = {
    RequestPart.POD: "cannot align pod",
    RequestPart.INIT: "cannot align init container",
    RequestPart.SIDECAR: "cannot align sidecar container",
    RequestPart.CONTAINER: "cannot align container",
}
NO_DATA = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) have no NUMA data",))
NOT_ALIGNED = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) do not align the pod's resources",))
_MISALIGNED = {(part, code): Refusal(PLUGIN, code, (text,)) for part, text in _WORDS.items() for code in Code}
_REFUSALS = (NO_DATA, NOT_ALIGNED, *_MISALIGNED.values())
_MOST = 1 << 12
"""Largest number of copies of a pod on one node; no kubelet runs as many pods."""


@cached(1 << 14)
def judge(
    ask: NumaAsk, state: ZoneState, *, has_claims: bool, served: frozenset[str] = frozenset()
) -> tuple[int, Refusal | None]:
    """Returns (number of copies of a pod that a node takes one after the other, refusal if it takes none); numa.md 5.

    Computed once for equal pods and states. has_claims: whether the pod has resource claims. served: resources that
    devices of a claim serve on the node, so that its kubelet does not align them.
    """
    kind, fits = state.kind, (ANY_NUMBER, None)
    amounts = state.amounts_of(ask)
    # a pod without requests to align meets its demand by the zones of its claims' devices (numa.md 7)
    beside = [one for one in ask.containers if not served.issuperset(dict(one.amounts))]
    requests = amounts.requests if kind.has_data else beside
    may_refuse = ask.demand.rejects and bool(requests or not (has_claims or served))
    if not kind.numbers:
        return (0, NO_DATA) if may_refuse else fits
    if len(kind.numbers) < 2:
        return fits
    if kind.policy is Policy.NONE:
        return (0, NOT_ALIGNED) if may_refuse else fits
    if not amounts.requests:
        return (0, NOT_ALIGNED) if may_refuse else fits
    policy = state.policy_for(ask)
    if not policy.rejects:
        return fits
    number = copies(amounts, kind.zones, state.free, policy, state.groups, most=_MOST)
    if number:
        return (ANY_NUMBER if number >= _MOST else number), None
    part = state.admit(ask)
    assert not isinstance(part, ZoneAdmission)
    never = not isinstance(state.empty.admit(ask), ZoneAdmission)
    return 0, _MISALIGNED[part, Code.UNRESOLVABLE if never else Code.UNSCHEDULABLE]


class Alignment(Rule):
    """The filter for pods of one shape. Docstrings of the methods are in `Rule`."""

    plugin = PLUGIN
    local = True

    def __init__(self, pod: PodInfo, nodes: NumaNodes) -> None:
        self._pod, self._ask, self._numa = pod, pod.ask(NUMA), nodes
        has_claims, view = bool(pod.pod.spec.resource_claims), nodes.draft.snapshot.families.get(CLAIMS)
        by_devices = view.served_resources(pod.requests) if view is not None and self._ask.demand.rejects else ()
        self._judges = [
            (partial(_numbers, self._ask, has_claims=has_claims, served=served), at)
            for served, at in _served_sets(nodes.draft.snapshot.nodes, by_devices)
        ]
        """(function of a state, [nodes] True for the nodes that it is for). The function returns how many copies of the
        pod fit; and if none does, the position of the refusal in `_REFUSALS`, counted from 1, else 0."""
        self._judged = [NodeValues(nodes, 2, judge) for judge, _ in self._judges]
        """Results of each function for all nodes."""
        self._added: dict[int, dict[str, PodInfo]] = {}
        """Node -> pod key -> pod that counts as on the node although the draft has not placed it."""
        self._removed: dict[int, dict[str, PodInfo]] = {}
        """Node -> pod key -> bound pod that does not count although the draft has not evicted it."""

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        if pod.ask(NUMA) is None:
            return False
        draft = self._numa.draft
        is_here = pod.bound and pod.key not in draft.evicted
        if sign > 0:
            if not _remove(self._removed, node, pod) and not pod.bound and draft.placed.get(pod.key) != node:
                self._added.setdefault(node, {})[pod.key] = pod
        elif not _remove(self._added, node, pod) and is_here:
            self._removed.setdefault(node, {})[pod.key] = pod
        return bool(self._numa.aligned(node).kind.numbers)

    def _state(self, node: int) -> ZoneState:
        """Returns the zones of a node with the pods that count there."""
        removed = self._removed.get(node)
        state = self._numa.state_without(node, removed) if removed else self._numa.state(node)
        for pod in self._added.get(node, {}).values():
            state = state.after_pod(pod.ask(NUMA))
        return state

    def _of_nodes(self) -> Ints:
        """Returns [2, nodes] the integers of `_judged`, with the pods that count on each node."""
        found = [judged.refresh() for judged in self._judged]
        for node in self._added.keys() | self._removed.keys():
            number = self._numa.number_of(self._state(node))
            for judged in self._judged:
                judged.overwrite(node, number)
        return self._joined(found)

    def _joined(self, found: Sequence[Ints]) -> Ints:
        """Returns [rows, nodes] of each node what its function says. found: [rows, nodes] of each function."""
        if len(found) == 1:
            return found[0]
        return np.select([at for _, at in self._judges], found)

    def verdict(self) -> Verdict:
        which = self._of_nodes()[1].astype(np.int32)
        return Verdict(which, _REFUSALS if which.any() else ())

    def fits_at(self, rows: Ints) -> NDArray[np.bool_]:
        return np.asarray(self._of_nodes()[1, rows] == 0)

    def permanent_verdict(self) -> Verdict:
        verdict = self.verdict()
        never = np.array([0, *(one.code is Code.UNRESOLVABLE for one in verdict.refusals)], dtype=bool)
        return Verdict(np.where(never[verdict.which], verdict.which, 0).astype(np.int32), verdict.refusals)

    def copies(self) -> Ints:
        return np.asarray(self._of_nodes()[0])

    def empty_copies(self, own: Collection[str]) -> Ints:
        """Implements `Rule.empty_copies`: a count-only node aligns GPUs once its pods with unknown GPUs have left."""
        values = [NodeValues(self._numa, 1, partial(_empty_copies, judge)).values for judge, _ in self._judges]
        found = np.array(self._joined(values)[0])
        for node in self._numa.count_only:
            if not self._numa.stays_count_only(node, own):
                judge = next(one for one, at in self._judges if at[node])
                found[node] = judge(self._numa.aligned(node).by_name.start.empty)[0]
        return found

    @cached_property
    def is_monotone(self) -> bool:
        """Implements `Rule.is_monotone`: False if a node aligns several requests of the pod.

        The first request takes the first zone set that is free. With fewer pods on the node, this may be a zone that a
        later request needs, or one with too little for the containers that an init container ties to it.
        """
        kinds = {state.kind for state in self._numa.states if state.kind.has_data}
        return all(len(self._ask.on(kind.resources, kind.scope).requests) < 2 for kind in kinds)

    def copies_with_nominated(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Implements `Rule.copies_with_nominated`: the nominated pods of the node are admitted first."""
        draft = self._numa.draft
        name, state = draft.snapshot.nodes[node].name, self._numa.state(node)
        if not state.kind.has_data:
            return None
        for key, one in draft.reservations.items():
            pod = draft.snapshot.pods.get(key)
            is_other = pod is not None and key not in draft.placed and key != self._pod.key
            if one.node == name and pod is not None and is_other and (ask := pod.ask(NUMA)) is not None:
                state = state.after_pod(ask)
        judged = next(one for one, (_, at) in zip(self._judged, self._judges, strict=True) if at[node])
        number, which = judged.of_state(self._numa.number_of(state))
        return number, _REFUSALS[which - 1] if which else _MISALIGNED[RequestPart.POD, Code.UNSCHEDULABLE]


def _served_sets(
    nodes: Sequence[NodeInfo], resources: Collection[str]
) -> list[tuple[frozenset[str], NDArray[np.bool_]]]:
    """Returns (resources that devices serve there, [nodes] True for these nodes). resources: those that devices may
    serve; they do on nodes that have none of the resource."""
    if not resources:
        return [(frozenset(), np.ones(len(nodes), dtype=bool))]
    stated = [node.node.status.allocatable or node.node.status.capacity for node in nodes]
    sets = [frozenset(name for name in resources if str(have.get(name, "0")) == "0") for have in stated]
    return [(one, np.array([own == one for own in sets], dtype=bool)) for one in dict.fromkeys(sets)]


def _empty_copies(judge: Callable[[ZoneState], tuple[int, ...]], state: ZoneState) -> tuple[int, ...]:
    """Returns (number of copies of a pod that a node takes without other pods)."""
    return judge(state.empty)[:1]


def _numbers(
    ask: NumaAsk, state: ZoneState, *, has_claims: bool, served: frozenset[str] = frozenset()
) -> tuple[int, int]:
    """Returns (number of copies of a pod that a node takes, 1 + position of the refusal in `_REFUSALS`, or 0)."""
    number, refusal = judge(ask, state, has_claims=has_claims, served=served)
    return number, 0 if refusal is None else _REFUSALS.index(refusal) + 1


def _remove(pods: dict[int, dict[str, PodInfo]], node: int, pod: PodInfo) -> bool:
    """Removes a pod of a node from node -> key -> pod; returns whether it was there."""
    own = pods.get(node, {})
    found = own.pop(pod.key, None) is not None
    if found and not own:
        del pods[node]
    return found
