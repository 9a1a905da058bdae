# SPDX-License-Identifier: Apache-2.0
"""DynamicResources: the filter of nodes by resource claims.

An allocated claim restricts its pods to the nodes of its allocation. For claims without an allocation, the node must
have devices for all of them together. `DeviceSearch` computes the answer of a node. Answers are stored in the ledger of
the draft, for all pods with equal claims. After a change, only nodes that reach a changed pool are searched again.
Sources: dra.md 2, 7, 8, 9.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import NodeSelector
from koordpy.cache.snapshot import Ints
from koordpy.devices.dra.filters import claim_refusal as refusal_texts
from koordpy.devices.dra.filters.all_devices import fails_beyond
from koordpy.devices.dra.filters.claim_refusal import ELSEWHERE, PLUGIN, LastingRefusal, refuse
from koordpy.devices.dra.filters.claim_requests import AttemptFault, UndecidedNode, alternatives_of
from koordpy.devices.dra.filters.claim_zones import NUMA, demands_zones
from koordpy.devices.dra.filters.device_choice import BestChoice
from koordpy.devices.dra.filters.evictable_devices import usage_with
from koordpy.devices.dra.filters.gate_limits import allocated_limit, extended_limit, find_gate_limit
from koordpy.devices.dra.filters.joint_choice import JointChoice
from koordpy.devices.dra.filters.pod_claims import DraftClaims, Mask, Wants
from koordpy.devices.dra.ledger.binding_conditions import is_given_up
from koordpy.devices.dra.ledger.claim_allocation import asks_for_name, node_selector
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import is_selected
from koordpy.framework.attempt_error import AttemptError
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.framework.pod_rule_filter import Rule
from koordpy.pods.claim_refs import CLAIMS, DeviceId, implicit_key
from koordpy.pods.pod_info import PodInfo


@dataclass(eq=False)
class _NodeAnswers:
    """The answers of all nodes for the given claims, on one draft."""

    which: NDArray[np.int32]
    """[nodes] 0 if the node has devices for all claims, else 1 + index in `refusals`."""
    refusals: list[Refusal]
    seen: int
    """Length of `ClaimLedger.changed` at the last update."""


class DynamicResources(DraftClaims, Rule):
    """The filter of one pod: its claims against the devices that drivers offer."""

    plugin = PLUGIN
    may_end_attempt = True
    outlasts_pods = True

    def is_lasting(self, refusal: Refusal) -> bool:
        """Implements `Rule.is_lasting`.

        Returns True if the node's devices could never satisfy the claims, even if all were free.
        """
        return isinstance(refusal, LastingRefusal)

    @property
    def is_in_problem(self) -> bool:  # type: ignore[override]
        """True if columns express how pods of different shapes share devices of a node (`member_limits.py`)."""
        return self.pod.shape not in self._ledger.apart

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: only pods with claims use devices, and pods with amounts of zones use zones."""
        return CLAIMS in pod.asks or (self.demands_zones and NUMA in pod.asks)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`.

        Refused are nodes that an allocated claim excludes, then all nodes if the devices of an allocated claim need an
        unsupported feature, then nodes that exclude a nominated pod with the same claim, then nodes without devices for
        all claims together. Like kube-scheduler, nodes of the first kind that also lack devices for the other claims
        are refused for that reason.
        """
        count = len(self._nodes)
        which = np.zeros(count, dtype=np.int32)
        refusals: list[Refusal] = []
        elsewhere, tied = ~self._inside(), self._tied_claim()
        cause = f"claim {tied} is tied to a node" if tied else ""
        if cause or elsewhere.any():  # the cause also holds if the cluster has no other node
            refusals.append(replace(ELSEWHERE, no_node_helps=cause) if cause else ELSEWHERE)
            which[elsewhere] = 1
            if not self._ledger.taken.keys().isdisjoint(self.keys):
                elsewhere[:] = False  # errors count as if the plan took nothing
        if limit := self._allocated_limit():
            refusals.append(refuse(limit))
            which[which == 0] = len(refusals)
        promised = (which == 0) & ~self._beside_nominated()
        if promised.any():
            refusals.append(refuse(refusal_texts.CANNOT_TEXT))
            which[promised] = len(refusals)
        closed, unserved = self.closed(), extended_limit(self.view.gates_off)
        for wants in self.wants():
            if not wants.claims and not (self.demands_zones and self.keys):
                continue
            if unserved and any(one.key == implicit_key(self.pod) for one in wants.claims):
                refusals.append(refuse(unserved))
                answer = np.full(count, len(refusals), dtype=np.int32)
            else:
                found = self._answers(wants, closed)
                answer = np.where(found.which > 0, found.which + len(refusals), 0).astype(np.int32)
                refusals += found.refusals
            here = np.ones(count, dtype=bool) if wants.at is None else wants.at
            which[here & (which == 0)] = answer[here & (which == 0)]
            for number in sorted(set(answer[here & elsewhere].tolist()) - {0}):
                refusal = refusals[number - 1]
                if isinstance(refusal, AttemptError) or refusal_texts.is_of_devices(refusal):
                    refusals.append(replace(refusal, code=Code.UNRESOLVABLE, no_node_helps=cause))
                    which[here & elsewhere & (answer == number)] = len(refusals)
        return Verdict(which, tuple(refusals))

    def permanent_verdict(self) -> Verdict:
        """Implements `Rule.permanent_verdict`: of a pod with a demand, refusals that other zones cannot remove."""
        found = self.verdict()
        if self.is_monotone:
            return found
        which = found.which.copy()
        for node in np.nonzero((which > 0) & self._inside())[0].tolist():
            if self._fits(self.wants_at(node), node, self._ledger.usage, pods=()):
                which[node] = 0
        return Verdict(which, found.refusals)

    def _inside(self) -> Mask:
        """Returns [nodes] True for nodes on which every allocated claim of the pod may be used."""
        inside = np.ones(len(self._nodes), dtype=bool)
        for key in self.keys:
            planned = self._ledger.taken.get(key)
            allocation = self._ledger.allocation(key)
            selector = None
            if planned is not None:
                first = self._ledger.nodes.get(key)
                name = self._nodes[first].name if first is not None else ""
                selector = node_selector(planned, name, self.offers)
            elif allocation is not None:
                selector = allocation.node_selector
            if selector is not None:
                inside &= self._selected(selector)
            if planned is None and allocation is not None and self._is_given_up(key):
                inside[:] = False
        return inside

    def _is_given_up(self, key: str) -> bool:
        """Returns whether no pod can be bound with the devices of an allocated claim, because they are not ready.

        A live cluster learns it when it binds the pod (`DeviceConditions`).
        """
        claim = self.objects.claims[key]
        return not self.view.live and is_given_up(claim, self._draft.snapshot.now, self._dra.binding_timeout)

    def _allocated_limit(self) -> str:
        """Returns the unsupported feature, as a reason, that an allocated claim of the pod needs; empty for none."""
        allocations = (self._ledger.allocation(key) for key in self.keys if key not in self._ledger.taken)
        limits = (allocated_limit(one, self.offers) for one in allocations if one is not None)
        return next(filter(None, limits), "")

    def _beside_nominated(self) -> Mask:
        """Returns [nodes] True for nodes that can use the devices reserved for claims shared with nominated pods.

        A claim is allocated once, so that an allocation elsewhere would keep a nominated pod from its node.
        """
        inside = np.ones(len(self._nodes), dtype=bool)
        waiting = set(self.open_keys())
        for one in self._draft.reserved_claims(self.pod) if waiting else ():
            for key, grant in one.devices.get(CLAIMS, {}).items():
                selector = node_selector(grant, one.node, self.offers) if key in waiting else None
                if selector is not None:
                    inside &= self._selected(selector)
        return inside

    def _tied_claim(self) -> str:
        """Returns the name of the first claim that only named nodes may use, and that pods of other units have
        reserved; empty for none (dra.md 9)."""
        for key in self.keys:
            allocation = self._ledger.allocation(key) if key not in self._ledger.taken else None
            selector = allocation.node_selector if allocation is not None else None
            terms = selector.node_selector_terms if selector is not None else ()
            if terms and all(map(asks_for_name, terms)) and self._is_reserved_by_others(key):
                return key.partition("/")[2]
        return ""

    def _is_reserved_by_others(self, key: str) -> bool:
        """Returns True if a claim is reserved for a pod of another unit.

        A reservation for an unknown pod counts as such.
        """
        memo = self._ledger.memo
        if "uids" not in memo:
            memo["uids"] = {pod.uid: pod for pod in self._draft.snapshot.pods.values() if CLAIMS in pod.asks}
        for one in self.objects.claims[key].status.reserved_for:
            pod: PodInfo | None = memo["uids"].get(one.uid)
            is_own = pod is not None and (
                pod.key == self.pod.key or (pod.gang is not None and pod.gang == self.pod.gang)
            )
            if not is_own and one.resource != "podgroups":
                return True
        return False

    def _selected(self, selector: NodeSelector) -> Mask:
        known: dict[NodeSelector, Mask] = self._ledger.memo.setdefault("selectors", {})
        key: Any = repr(selector)
        if key not in known:
            terms = selector.node_selector_terms
            if len(terms) == 1 and not terms[0].match_expressions and len(terms[0].match_fields) == 1:
                mask = np.zeros(len(self._nodes), dtype=bool)
                index = self._draft.snapshot.index
                mask[[index[name] for name in terms[0].match_fields[0].values if name in index]] = True
            else:
                mask = np.fromiter((is_selected(selector, node) for node in self._nodes), dtype=bool)
            known[key] = mask
        return known[key]

    def _answers(self, wants: Wants, closed: frozenset[DeviceId]) -> _NodeAnswers:
        """Returns the answers of all nodes, current with the draft."""
        ledger = self._ledger
        usage = ledger.usage
        key = "answers", wants.content, closed, self._names_matter(wants), self.pair_key(), self.own_freed()
        found: _NodeAnswers | None = ledger.memo.get(key)
        if found is None:
            found = _NodeAnswers(np.zeros(len(self._nodes), dtype=np.int32), [], len(ledger.changed))
            ledger.memo[key] = found
            rows: Collection[int] = range(len(self._nodes))
        else:
            rows = self.changed_nodes(ledger.changed[found.seen :])
            found.seen = len(ledger.changed)
        for row in rows:
            if wants.at is not None and not wants.at[row]:
                continue
            refusal = self._refusal(wants, row, usage, closed)
            if refusal is None:
                found.which[row] = 0
                continue
            if refusal not in found.refusals:
                found.refusals.append(refusal)
            found.which[row] = 1 + found.refusals.index(refusal)
        return found

    def _names_matter(self, wants: Wants) -> tuple[str, ...]:
        """Returns the names of the claims if refusals may name them; else an empty tuple."""
        named = any(one.all or one.selectors for claim in wants.claims for one in alternatives_of([claim.spec]))
        if not named or not self._ledger.memo.get("errors"):
            return ()
        return tuple(one.key for one in wants.claims)

    def changed_nodes(self, pools: Sequence[tuple[str, str]]) -> Collection[int]:
        """Returns the positions of nodes that reach a changed pool."""
        rows: dict[int, None] = {}
        index = self._draft.snapshot.index
        for pool in dict.fromkeys(pools):
            name = self.offers.node_of(pool)
            if name is None:
                return range(len(self._nodes))
            if name in index:
                rows[index[name]] = None
        return rows

    def _refusal(self, wants: Wants, node: int, usage: DeviceUsage, closed: frozenset[DeviceId]) -> Refusal | None:
        """Returns why a node cannot serve the claims; None if it can."""
        offer = self.offers.at(self._nodes[node])
        search = self.searching(node, wants.claims, usage=usage, closed=closed)
        fits, text, error = False, "", ""
        try:
            fits = search.first() is not None
        except UndecidedNode as end:
            text = end.text
        except AttemptFault as fault:
            error = fault.text
        if search.met_errors or fails_beyond(offer, wants.claims, self.offers):
            try:
                self.searching(node, wants.claims, usage=usage, closed=closed, lazy=True).first()
            except UndecidedNode:
                pass
            except AttemptFault as fault:
                error = fault.text
        self._ledger.memo["errors"] = bool(self._ledger.memo.get("errors") or text or error)
        if error:
            return AttemptError(PLUGIN, Code.UNRESOLVABLE, (error,))
        if fits:
            return None
        if text:
            return refuse(text)
        is_enough = partial(self._fits, wants, node, usage)
        if text := find_gate_limit(offer, self.offers, self.view.gates_off, is_enough):
            return refuse(text)
        text = refusal_texts.INVALID_TEXT if offer.has_invalid else refusal_texts.CANNOT_TEXT
        if not self.keeps_zones(node):
            text = ELSEWHERE.reasons[0]
        elif self.least_bandwidth and self._fits(wants, node, usage, pods=(), closed=closed):
            text = refusal_texts.slow_links(self.pod)
        if self._could_fit(wants, node):
            return refuse(text, Code.UNSCHEDULABLE)
        pods = () if self.zones_may_change(node) else None
        could_fit = offer.is_changing or text == ELSEWHERE.reasons[0]
        if could_fit or self._fits(wants, node, DeviceUsage(self.offers), pods):
            return refuse(text)
        return LastingRefusal(PLUGIN, Code.UNRESOLVABLE, (text,))

    def _could_fit(self, wants: Wants, node: int) -> bool:
        """Returns whether a node could serve the claims if all devices of pods that may be evicted were free.

        Allocated claims of this pod that evictions free need devices again.
        """
        lasting, own = self.lasting_usage(), self.own_freed()
        pods = () if self.zones_may_change(node) else None
        if lasting is None:
            return pods is not None and self._fits(wants, node, self._ledger.usage, pods)
        with_freed = Wants((*wants.claims, *self.unallocated(own)), wants.at)
        return self._fits(with_freed, node, lasting.usage, pods) or (
            bool(own) and self._fits(wants, node, usage_with(lasting.usage, self.objects, own), pods)
        )

    def _fits(
        self,
        wants: Wants,
        node: int,
        usage: DeviceUsage,
        pods: Sequence[tuple[DraftClaims, Sequence[int]]] | None = None,
        closed: frozenset[DeviceId] = frozenset(),
    ) -> bool:
        """Returns True if a node could serve the claims beside the devices in use.

        pods: empty to ignore minimum bandwidths. closed: devices that must not be allocated.
        """
        try:
            return self.searching(node, wants.claims, usage=usage, closed=closed, pods=pods).first() is not None
        except (UndecidedNode, AttemptFault):
            return False

    # -- pods of one plan ----------------------------------------------------------------------------------------------

    def copies(self) -> Ints | None:
        """Implements `Rule.copies`: pods with claims like these, some shared; None if columns count them."""
        if self.is_in_problem:
            return None
        out = np.zeros(len(self._nodes), dtype=np.int64)
        fits = self.verdict().fits
        most = self._ledger.apart[self.pod.shape]
        for node in np.nonzero(fits)[0].tolist():
            out[node] = self._most_pods(node, most)
        return out

    def _most_pods(self, node: int, most: int) -> int:
        """Returns the number of pods like this one, at most `most`, for which a node has devices. Stored for nodes that
        reach the same devices, and for pods with equal claims."""
        ledger, devices = self._ledger, self.offers.at(self._nodes[node]).devices
        at = node if self.has_pair_rule or not self.reaches_network(node) else -1
        content, pairs = self.wants_at(node).content, self.pair_key()
        key = "pods", at, devices, content, self.capacity_key(), pairs, self.closed(), most
        known: tuple[int, int] | None = ledger.memo.get(key)
        if known is None or known[0] != len(ledger.changed):
            low, high = 1, most
            while low < high:
                middle = (low + high + 1) // 2  # a node that serves a number of pods serves any smaller one
                low, high = (middle, high) if self._holds(node, middle) else (low, middle - 1)
            known = ledger.memo[key] = len(ledger.changed), low
        return known[1]

    def _holds(self, node: int, number: int) -> bool:
        """Returns whether a node has devices for a number of pods with claims like these."""
        shared = self._ledger.shared
        return JointChoice([self] * number, node, self._draft, shared=shared).choose(every=False) is not None

    def capacity_key(self) -> Hashable:
        """Implements `Rule.capacity_key`: pods with equal claims, and equal rules about them, share the devices."""
        named = tuple(sorted({*self.keys_in_use(), *self._ledger.shared.intersection(self.keys)}))
        return PLUGIN, tuple(wants.content for wants in self.wants()), named, self.rule_key

    def cost_key(self) -> Hashable:
        """Implements `Rule.cost_key`: equal claims, allocated or not, and equal rules about pairs of devices."""
        return self.capacity_key(), self.least_bandwidth, self.pod.ask(NUMA) if self.demands_zones else None

    def fits_after(self, others: Sequence[PodInfo], node: int) -> bool:
        """Implements `Rule.fits_after`: the claims of all pods find devices together."""
        pods = (*others, self.pod)
        is_zoned = any(map(demands_zones, pods))  # then zones of pods without claims matter, too
        rules = [
            self if pod is self.pod else DynamicResources(pod, self._draft, self._config)
            for pod in pods
            if CLAIMS in pod.asks or is_zoned
        ]
        return JointChoice(rules, node, self._draft).choose(every=False) is not None

    def choose(self, node: int) -> BestChoice | None:
        """Returns the devices that the pod gets on a node, on the draft; None if the node lacks devices."""
        return JointChoice([self], node, self._draft).choose(every=self._dra.choice == "topology")
