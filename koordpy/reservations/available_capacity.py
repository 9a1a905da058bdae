"""Room kept for pods that are promised a node and not there yet (kube-parity.md 2.2).

A pod must pass every filter twice: with the nominated pods of its priority or above on their node, and without them,
so that it neither takes their room nor leans on one that may never come. As in kube-scheduler a node is judged with
the pods nominated to it, not with those nominated elsewhere.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koordpy.cluster.devices import DeviceId
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import NOTHING_KEPT, Draft, Ints, KeptClaims, Snapshot
from koordpy.planning.filters.base import Refusal, Verdict
from koordpy.planning.filters.claims import claims_of, claims_refusal
from koordpy.planning.filters.dra import DynamicResources, Taken, resource_claims, resource_claims_refusal
from koordpy.planning.filters.fit import check_fit
from koordpy.planning.filters.rules import Rule
from koordpy.planning.filters.volumes import VolumeBinding, VolumeReach


@dataclass(frozen=True, eq=False)
class Reserved:
    """Nominated pods that count against one pod. at: [n] node positions; held: [n, resources] what they ask there."""

    pods: Mapping[int, Sequence[PodInfo]]
    at: Ints
    held: Ints

    def passes(self, rules: Sequence[Rule]) -> Ints:
        """[n] 1 where every rule also passes with the nominated pods there."""
        out = np.ones(len(self.at), dtype=np.int64)
        for i, node in enumerate(self.at.tolist()):
            if self._come(rules, node, 1):
                out[i] = all(bool(rule.verdict().fits[node]) for rule in rules)
            self._come(rules, node, -1)
        return out

    def verdict(
        self,
        rules: Sequence[Rule],
        snapshot: Snapshot,
        used: Ints,
        request: Sequence[tuple[int, int]],
        names: Sequence[str],
    ) -> Verdict:
        """The word of ports, room and the other filters with the nominated pods there; other nodes fit."""
        which = np.zeros(len(snapshot.nodes), dtype=np.int32)
        refusals: list[Refusal] = []
        for i, node in enumerate(self.at.tolist()):
            self._come(rules, node, 1)
            row = slice(node, node + 1)
            fit = check_fit(snapshot.allocatable[row], used[row] + self.held[i : i + 1], request, names).of(0)
            early = [rule.verdict().of(node) for rule in rules if rule.before_fit]
            late = [rule.verdict().of(node) for rule in rules if not rule.before_fit]
            self._come(rules, node, -1)
            short = [why for count, why in self._beside(rules, i, snapshot.columns) if not count]
            first = next((refusal for refusal in (*early, fit, *late, *short) if refusal is not None), None)
            if first is not None:
                refusals.append(first)
                which[node] = len(refusals)
        return Verdict(which, tuple(refusals))

    def copies(self, rules: Sequence[Rule], columns: Mapping[str, int]) -> Ints:
        """[n] how many copies of the pod every rule lets on each node beside the nominated pods. columns: resource ->
        its column of `held`."""
        most = np.iinfo(np.int64).max
        rows = range(len(self.at))
        found = (min((count for count, _ in self._beside(rules, i, columns)), default=most) for i in rows)
        return np.fromiter(found, dtype=np.int64, count=len(rows))

    def _beside(self, rules: Sequence[Rule], i: int, columns: Mapping[str, int]) -> list[tuple[int, Refusal]]:
        held, node = self.requests(i, columns), int(self.at[i])
        return [found for rule in rules if (found := rule.beside(node, held)) is not None]

    def requests(self, i: int, columns: Mapping[str, int]) -> dict[str, int]:
        """Resource -> what the pods ask on the i-th node. columns: resource -> its column of `held`."""
        row = self.held[i].tolist()
        return {name: row[column] for name, column in columns.items() if row[column]}

    def _come(self, rules: Sequence[Rule], node: int, sign: int) -> bool:
        moved = False
        for pod in self.pods[node]:
            for rule in rules:
                moved |= rule.change(pod, node, sign)
        return moved


def reserve(
    pods: Mapping[str, int],
    snapshot: Snapshot,
    *,
    less: Callable[[int], Ints],
    at: Collection[str] | None = None,
    up_to: int | None = None,
) -> Reserved | None:
    """What the given pods (key -> node position) hold; None without any.

    less: node position -> [resources] what pods that are ending there leave for them, which they take first; `at`: on
    the nodes of these names, on all where it is None; `up_to`: those up to this priority, all where it is None.
    """
    where: dict[int, list[PodInfo]] = {}
    for key, node in pods.items():
        where.setdefault(node, []).append(snapshot.pods[key])
    if not where:
        return None
    rows = np.array(sorted(where), dtype=np.int64)
    held = np.zeros((len(rows), snapshot.allocatable.shape[1]), dtype=np.int64)
    for i, node in enumerate(rows.tolist()):
        netted = at is None or snapshot.nodes[node].name in at
        first = [pod for pod in where[node] if netted and (up_to is None or pod.priority <= up_to)]
        keys = {pod.key for pod in first}
        if first:
            held[i] = np.maximum(0, snapshot.asked(first) - less(node))
        held[i] += snapshot.asked(pod for pod in where[node] if pod.key not in keys)
    return Reserved(where, rows, held)


class NominatedClaims:
    """Volumes and devices that the claims of nominated pods take on their nodes, as the round found them.

    No other claim may have them, wherever its pod goes: they may be reached from several nodes, and who goes on without
    them would have evicted others in vain.
    """

    def __init__(self, snapshot: Snapshot, reach: VolumeReach) -> None:
        self._draft, self._reach = Draft(snapshot), reach
        self._known: dict[str, KeptClaims] = {}

    def of(self, pods: Mapping[str, int], among: Mapping[str, int]) -> KeptClaims:
        """What some pods keep; among: key -> node position of all that keep anything, each takes after those before."""
        for key, node in among.items():
            if key not in self._known:
                self._known[key] = self._take(self._draft.snapshot.pods[key], node)
        volumes: dict[str, str] = {}
        devices: dict[DeviceId, str] = {}
        for key in pods:
            volumes |= self._known[key].volumes
            devices |= self._known[key].devices
        return KeptClaims(volumes, devices)

    def _take(self, pod: PodInfo, node: int) -> KeptClaims:
        draft, storage, offered = self._draft, self._draft.snapshot.storage, self._draft.snapshot.devices
        claims: dict[str, str] = {}
        devices: dict[str, Taken] = {}
        if claims_of(pod) and claims_refusal(pod, storage) is None:
            claims = VolumeBinding(pod, draft, storage, self._reach).choice(node)
        if resource_claims(pod) and resource_claims_refusal(pod, offered) is None:
            devices = DynamicResources(pod, draft, offered).choice(node)
        if not claims and not devices:
            return NOTHING_KEPT
        draft.assign(pod, node, claims, devices)
        return KeptClaims(
            {volume: claim for claim, volume in claims.items() if volume},
            {device: claim for claim, taken in devices.items() for _, device in taken},
        )
