# SPDX-License-Identifier: Apache-2.0
"""The nominated pods that one unit must respect, and the filters with these pods on their nodes (kube-parity.md 2.2).

`ReservationLedger.available_to` returns it. A pod must pass every filter twice: with the nominated pods on their nodes,
and without them. So the pod does not use the capacity of a nominated pod, and does not depend on a nominated pod, which
may never start. As in kube-scheduler, a node is filtered with the pods that are nominated to this node, and not with
pods nominated to other nodes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import Reservation
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.framework.filter_protocol import Refusal, Verdict
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plugins.resource_fit import check_fit
from koordpy.plugins.volume_binding import VolumeBinding, VolumeReach
from koordpy.plugins.volume_claims import claims_of, claims_refusal
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True, eq=False)
class AvailableCapacity:
    """Reservations of other pods that one unit must respect. Arrays are computed on first use.

    In this class, "[n]" means one entry for each node with such a nominated pod, in the order of `positions`.
    """

    snapshot: Snapshot
    others: Mapping[str, int]
    """Pod key -> node position of the nominated pods with capacity closed to the unit; at least one."""
    freed: Callable[[int], Ints]
    """Called with a node position: returns [resources] requests of the pods that are terminating on the node."""
    takes_freed: Callable[[PodInfo, str], bool]
    """Called with (nominated pod, node name): True if the pod first uses the capacity that terminating pods free on the
    node. Then only the rest of its requests is subtracted from the capacity that is free now."""

    @cached_property
    def pods(self) -> Mapping[int, Sequence[PodInfo]]:
        """Node position -> nominated pods there."""
        out: dict[int, list[PodInfo]] = {}
        for key, node in self.others.items():
            out.setdefault(node, []).append(self.snapshot.pods[key])
        return out

    @cached_property
    def positions(self) -> Ints:
        """[n] positions of the nodes with nominated pods of `others`, ascending."""
        return np.array(sorted(self.pods), dtype=np.int64)

    @cached_property
    def reserved(self) -> Ints:
        """[n, resources] requests of the nominated pods on each node, less the capacity of terminating pods that they
        use first."""
        snapshot = self.snapshot
        out = np.zeros((len(self.positions), snapshot.allocatable.shape[1]), dtype=np.int64)
        for i, node in enumerate(self.positions.tolist()):
            name = snapshot.nodes[node].name
            first = [pod for pod in self.pods[node] if self.takes_freed(pod, name)]
            keys = {pod.key for pod in first}
            if first:
                out[i] = np.maximum(0, snapshot.requests_of(first) - self.freed(node))
            out[i] += snapshot.requests_of(pod for pod in self.pods[node] if pod.key not in keys)
        return out

    def passes(self, rules: Sequence[Rule]) -> Ints:
        """Returns [n]: 1 where every rule also passes with the nominated pods there, else 0."""
        out = np.ones(len(self.positions), dtype=np.int64)
        for i, node in enumerate(self.positions.tolist()):
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
        """Returns the combined verdict of all filters with the nominated pods on their nodes. Nodes without such pods
        pass.

        rules: filters that depend on other pods. used: [nodes, resources] on the draft. request: ((column, amount),
        ...) of the pod. names: resource of each entry of `request`. If several filters refuse a node, the first one in
        kube-scheduler's order counts.
        """
        which = np.zeros(len(snapshot.nodes), dtype=np.int32)
        refusals: list[Refusal] = []
        for i, node in enumerate(self.positions.tolist()):
            self._change_nominated(rules, node, 1)
            row = slice(node, node + 1)
            fit = check_fit(snapshot.allocatable[row], used[row] + self.reserved[i : i + 1], request, names).of(0)
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
        """Returns [n]: the number of copies of the pod that all rules allow on each node beside the nominated pods.

        columns: resource -> its column of `reserved`.
        """
        most = np.iinfo(np.int64).max
        rows = range(len(self.positions))
        found = (min((count for count, _ in self._copies_beside(rules, i, columns)), default=most) for i in rows)
        return np.fromiter(found, dtype=np.int64, count=len(rows))

    def _copies_beside(self, rules: Sequence[Rule], i: int, columns: Mapping[str, int]) -> list[tuple[int, Refusal]]:
        """Returns (number of copies, refusal of a further copy) for each rule that limits copies on the i-th node."""
        held, node = self.requests(i, columns), int(self.positions[i])
        return [found for rule in rules if (found := rule.copies_with_nominated(node, held)) is not None]

    def requests(self, i: int, columns: Mapping[str, int]) -> dict[str, int]:
        """Returns resource -> requests of the nominated pods on the i-th node.

        columns: resource -> its column of `reserved`.
        """
        row = self.reserved[i].tolist()
        return {name: row[column] for name, column in columns.items() if row[column]}

    def _change_nominated(self, rules: Sequence[Rule], node: int, sign: int) -> bool:
        """Adds (sign 1) or removes (sign -1) the nominated pods of a node in all rules.

        Returns True if any rule counts them.
        """
        moved = False
        for pod in self.pods[node]:
            for rule in rules:
                moved |= rule.change(pod, node, sign)
        return moved


class ClaimsOfNominated:
    """Volumes and devices that the claims of nominated pods need on their nodes, computed once a round.

    No claim of another pod may use them, whatever the node of that pod, because they may be reachable from several
    nodes. Otherwise pods would have been evicted for a nominated pod that then cannot start.
    """

    def __init__(
        self, snapshot: Snapshot, reach: VolumeReach, devices: Callable[[PodInfo, int, Draft], AllocatedDevices]
    ) -> None:
        """devices: called with (pod, node position, draft), returns the devices that the pod needs on that node."""
        self._draft, self._reach, self._devices = Draft(snapshot), reach, devices
        self._known: dict[str, Reservation] = {}

    def of(self, keys: Iterable[str], nodes: Mapping[str, int], ledger: Mapping[str, Reservation]) -> list[Reservation]:
        """Returns the reservations of the given nominated pods, with their volumes and devices.

        keys: keys of these pods. nodes: key -> node position of all nominated pods, in the order in which volumes and
        devices are chosen. ledger: key -> reservation without volumes and devices.
        """
        for key, node in nodes.items():
            if key not in self._known:
                self._known[key] = self._take(self._draft.snapshot.pods[key], node, ledger[key])
        return [self._known[key] for key in keys]

    def _take(self, pod: PodInfo, node: int, reservation: Reservation) -> Reservation:
        """Returns the reservation of a nominated pod, with the volumes and devices of its claims.

        The pod is assigned to its node on a private draft, so that the next pod gets other volumes and devices.
        """
        draft, storage = self._draft, self._draft.snapshot.storage
        claims: dict[str, str] = {}
        if claims_of(pod) and claims_refusal(pod, storage) is None:
            claims = VolumeBinding(pod, draft, storage, self._reach).choice(node)
        devices = self._devices(pod, node, draft) or NO_DEVICES
        if not claims and not devices:
            return reservation
        draft.assign(pod, node, claims, devices)
        return replace(reservation, volumes={claim: draft.claim_volumes[claim] for claim in claims}, devices=devices)
