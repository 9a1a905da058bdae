# SPDX-License-Identifier: Apache-2.0
"""NodeResourceTopologyMatch: the filter of nodes by what the kubelet's Topology Manager will admit (numa.md 5).

Nodes with equal zones and equal free amounts share one result, so the cost is O(different nodes).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.numa.admission import Policy, RequestPart, ZoneAdmission, copies
from koordpy.devices.numa.numa_nodes import NumaNodes, ZoneState
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Rule
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
_MOST = 1 << 12
"""Largest number of copies of a pod on one node; no kubelet runs as many pods."""
Judgement = tuple[int, Refusal | None]
"""(copies of a pod that a node takes, refusal of a first one)."""
_FITS: Judgement = ANY_NUMBER, None


def judge(pod: PodInfo, ask: NumaAsk, state: ZoneState | None) -> Judgement:
    """Returns (number of copies of a pod that a node takes one after the other, refusal if it takes none); numa.md
    5."""
    if state is None:
        return (0, NO_DATA) if ask.demand.rejects else _FITS
    if len(state.node.numbers) < 2:
        return _FITS
    if state.node.policy is Policy.NONE:
        return (0, NOT_ALIGNED) if ask.demand.rejects else _FITS
    amounts = state.amounts_of(ask)
    if not amounts.requests:
        return (0, NOT_ALIGNED) if ask.demand.rejects and not pod.pod.spec.resource_claims else _FITS
    policy = state.policy_for(ask)
    if not policy.rejects:
        return _FITS
    number = copies(amounts, state.node.zones, state.free, policy, state.groups, most=_MOST)
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
        ask = pod.ask(NUMA)
        self._pod, self._ask, self._numa = pod, ask, nodes
        self._known: dict[object, Judgement] = {}
        """Key of a node's state -> result."""
        count = len(nodes.draft.snapshot.nodes)
        self._added: dict[int, dict[str, PodInfo]] = {}
        """Node -> pod key -> pod that counts as on the node although the draft has not placed it."""
        self._removed: dict[int, dict[str, PodInfo]] = {}
        """Node -> pod key -> bound pod that does not count although the draft has not evicted it."""
        self._copies: Ints = np.zeros(count, dtype=np.int64)
        self._refusals: dict[int, Refusal] = {}
        self._stale: set[int] = set(range(count))

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        if pod.ask(NUMA) is None:
            return False
        draft = self._numa.draft
        added, removed = self._added.setdefault(node, {}), self._removed.setdefault(node, {})
        is_here = pod.bound and pod.key not in draft.evicted
        if sign > 0:
            if removed.pop(pod.key, None) is None and not pod.bound and draft.placed.get(pod.key) != node:
                added[pod.key] = pod
        elif added.pop(pod.key, None) is None and is_here:
            removed[pod.key] = pod
        self._stale.add(node)
        return self._numa.state(node) is not None

    def _state(self, node: int) -> ZoneState | None:
        """Returns the zones of a node with the pods that count there."""
        state, removed, added = self._numa.state(node), self._removed.get(node), self._added.get(node)
        if state is None or not (removed or added):
            return state
        if removed:
            state = self._numa.state_without_bound(node, state.node, removed)
        for pod in (added or {}).values():
            state = state.after_pod(pod.ask(NUMA))
        return state

    def _judge(self, state: ZoneState | None) -> Judgement:
        """Returns the result for a state of a node; cached for equal states."""
        if state is None or not state.node.has_data:
            return judge(self._pod, self._ask, state)
        found = self._known.get(state.key)
        if found is None:
            found = self._known[state.key] = judge(self._pod, self._ask, state)
        return found

    def _refresh(self) -> None:
        """Computes the results of nodes that have changed."""
        for node in self._stale:
            number, refusal = self._judge(self._state(node))
            self._copies[node] = number
            if refusal is None:
                self._refusals.pop(node, None)
            else:
                self._refusals[node] = refusal
        self._stale.clear()

    def verdict(self) -> Verdict:
        self._refresh()
        which = np.zeros(len(self._copies), dtype=np.int32)
        numbers: dict[Refusal, int] = {}
        for node, refusal in self._refusals.items():
            which[node] = numbers.setdefault(refusal, len(numbers) + 1)
        return Verdict(which, tuple(numbers))

    def permanent_verdict(self) -> Verdict:
        verdict = self.verdict()
        never = np.array([0, *(one.code is Code.UNRESOLVABLE for one in verdict.refusals)], dtype=bool)
        return Verdict(np.where(never[verdict.which], verdict.which, 0).astype(np.int32), verdict.refusals)

    def copies(self) -> Ints:
        self._refresh()
        return self._copies

    outlasts_pods = True

    def copies_with_nominated(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Implements `Rule.copies_with_nominated`: the nominated pods of the node are admitted first."""
        draft = self._numa.draft
        name, state = draft.snapshot.nodes[node].name, self._numa.state(node)
        if state is None or not state.node.has_data:
            return None
        for key, one in draft.reservations.items():
            pod = draft.snapshot.pods.get(key)
            is_other = pod is not None and key not in draft.placed and key != self._pod.key
            if one.node == name and pod is not None and is_other and (ask := pod.ask(NUMA)) is not None:
                state = state.after_pod(ask)
        number, refusal = self._judge(state)
        return number, refusal or _MISALIGNED[RequestPart.POD, Code.UNSCHEDULABLE]

    def takes_after(self, others: Sequence[PodInfo], node: int) -> bool:
        state = self._state(node)
        for other in others:
            ask = other.ask(NUMA)
            if state is not None and ask is not None:
                state = state.after_pod(ask)
        return self._judge(state)[1] is None
