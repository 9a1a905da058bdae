"""Capacity that is available to a unit: free capacity without reservations of other holders (kube-parity.md 2.2).

The result of `ReservationLedger.available_to`. A pod must pass every filter twice: with the nominated pods that have
capacity closed to it, and without them. So it neither uses their capacity nor depends on a pod that may never start. As
in kube-scheduler, a node is filtered with the pods nominated to it, not with pods nominated to other nodes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import Reservation
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.devices.dra.filters.claim_filter import DynamicResources, Taken, resource_claims, resource_claims_refusal
from koordpy.devices.dra.ledger.claim_book import CLAIMS, claim_view
from koordpy.framework.filter_protocol import Refusal, Verdict
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plugins.resource_fit import check_fit
from koordpy.plugins.volume_binding import VolumeBinding, VolumeReach
from koordpy.plugins.volume_claims import claims_of, claims_refusal
from koordpy.pods.family_books import NOTHING_GIVEN
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True, eq=False)
class AvailableCapacity:
    """Reservations of other holders that one unit must respect. Arrays are computed on first use."""

    snapshot: Snapshot
    others: Mapping[str, int]
    """Key -> node position of the nominated pods that have capacity closed to the unit; at least one."""
    freed: Callable[[int], Ints]
    """Returns for a node position [resources]: requests of the pods that are terminating there."""
    takes_freed: Callable[[PodInfo, str], bool]
    """Returns True if a nominated pod is charged first to capacity that terminating pods free on the node of that
    name."""

    @cached_property
    def pods(self) -> Mapping[int, Sequence[PodInfo]]:
        """Node position -> nominated pods there."""
        out: dict[int, list[PodInfo]] = {}
        for key, node in self.others.items():
            out.setdefault(node, []).append(self.snapshot.pods[key])
        return out

    @cached_property
    def at(self) -> Ints:
        """[n] positions of the nodes with such nominated pods, ascending."""
        return np.array(sorted(self.pods), dtype=np.int64)

    @cached_property
    def held(self) -> Ints:
        """[n, resources] requests of the nominated pods on these nodes, beyond freed capacity."""
        snapshot = self.snapshot
        out = np.zeros((len(self.at), snapshot.allocatable.shape[1]), dtype=np.int64)
        for i, node in enumerate(self.at.tolist()):
            name = snapshot.nodes[node].name
            first = [pod for pod in self.pods[node] if self.takes_freed(pod, name)]
            keys = {pod.key for pod in first}
            if first:
                out[i] = np.maximum(0, snapshot.asked(first) - self.freed(node))
            out[i] += snapshot.asked(pod for pod in self.pods[node] if pod.key not in keys)
        return out

    def passes(self, rules: Sequence[Rule]) -> Ints:
        """Returns [n]: 1 where every rule also passes with the nominated pods there, else 0."""
        out = np.ones(len(self.at), dtype=np.int64)
        for i, node in enumerate(self.at.tolist()):
            if self._change_nominated(rules, node, 1):
                out[i] = all(bool(rule.verdict().fits[node]) for rule in rules)
            self._change_nominated(rules, node, -1)
        return out

    def verdict(
        self,
        rules: Sequence[Rule],
        snapshot: Snapshot,
        used: Ints,
        request: Sequence[tuple[int, int]],
        names: Sequence[str],
    ) -> Verdict:
        """Returns the verdict of all filters with the nominated pods on their nodes.

        Nodes without nominated pods pass.
        """
        which = np.zeros(len(snapshot.nodes), dtype=np.int32)
        refusals: list[Refusal] = []
        for i, node in enumerate(self.at.tolist()):
            self._change_nominated(rules, node, 1)
            row = slice(node, node + 1)
            fit = check_fit(snapshot.allocatable[row], used[row] + self.held[i : i + 1], request, names).of(0)
            early = [rule.verdict().of(node) for rule in rules if rule.before_fit]
            late = [rule.verdict().of(node) for rule in rules if not rule.before_fit]
            self._change_nominated(rules, node, -1)
            short = [why for count, why in self._copies_beside(rules, i, snapshot.columns) if not count]
            first = next((refusal for refusal in (*early, fit, *late, *short) if refusal is not None), None)
            if first is not None:
                refusals.append(first)
                which[node] = len(refusals)
        return Verdict(which, tuple(refusals))

    def copies(self, rules: Sequence[Rule], columns: Mapping[str, int]) -> Ints:
        """Returns [n]: how many copies of the pod every rule allows on each node beside the nominated pods.

        columns: resource -> its column of `held`.
        """
        most = np.iinfo(np.int64).max
        rows = range(len(self.at))
        found = (min((count for count, _ in self._copies_beside(rules, i, columns)), default=most) for i in rows)
        return np.fromiter(found, dtype=np.int64, count=len(rows))

    def _copies_beside(self, rules: Sequence[Rule], i: int, columns: Mapping[str, int]) -> list[tuple[int, Refusal]]:
        held, node = self.requests(i, columns), int(self.at[i])
        return [found for rule in rules if (found := rule.beside(node, held)) is not None]

    def requests(self, i: int, columns: Mapping[str, int]) -> dict[str, int]:
        """Returns resource -> requests of the nominated pods on the i-th node.

        columns: resource -> its column of `held`.
        """
        row = self.held[i].tolist()
        return {name: row[column] for name, column in columns.items() if row[column]}

    def _change_nominated(self, rules: Sequence[Rule], node: int, sign: int) -> bool:
        moved = False
        for pod in self.pods[node]:
            for rule in rules:
                moved |= rule.change(pod, node, sign)
        return moved


class ClaimsOfNominated:
    """Volumes and devices that the claims of nominated pods need on their nodes, computed once a round.

    No other claim may use them, wherever its pod is placed: they may be reachable from several nodes, and without them
    a nominated pod has evicted victims for nothing.
    """

    def __init__(self, snapshot: Snapshot, reach: VolumeReach) -> None:
        self._draft, self._reach = Draft(snapshot), reach
        self._known: dict[str, Reservation] = {}

    def of(self, keys: Iterable[str], nodes: Mapping[str, int], ledger: Mapping[str, Reservation]) -> list[Reservation]:
        """Returns the reservations of some nominated pods, with their volumes and devices.

        nodes: key -> node position of all nominated pods; each pod uses what the pods before it left.
        """
        for key, node in nodes.items():
            if key not in self._known:
                self._known[key] = self._take(self._draft.snapshot.pods[key], node, ledger[key])
        return [self._known[key] for key in keys]

    def _take(self, pod: PodInfo, node: int, reservation: Reservation) -> Reservation:
        """Assigns a nominated pod on the draft, and returns its reservation with volumes and devices of its claims."""
        draft, storage = self._draft, self._draft.snapshot.storage
        offered = claim_view(draft.snapshot.families).objects
        claims: dict[str, str] = {}
        devices: dict[str, Taken] = {}
        if claims_of(pod) and claims_refusal(pod, storage) is None:
            claims = VolumeBinding(pod, draft, storage, self._reach).choice(node)
        if resource_claims(pod) and resource_claims_refusal(pod, offered, draft.snapshot.upstream_groups) is None:
            devices = DynamicResources(pod, draft, offered).choice(node)
        if not claims and not devices:
            return reservation
        given = {CLAIMS: devices} if devices else NOTHING_GIVEN
        draft.assign(pod, node, claims, given)
        return replace(reservation, volumes={claim: draft.promised[claim] for claim in claims}, given=given)
