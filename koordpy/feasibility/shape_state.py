# SPDX-License-Identifier: Apache-2.0
"""Shape state: filter and score results of every node for pods of one shape, updated as a round places and evicts pods.

There are three kinds of results (docs/rules/kube-parity.md 2 and 3), by what they depend on:

- The node object alone (labels, taints, images): `Static`, which is computed before and passed in.
- Free capacity of the node: arrays, in which `refresh` computes the rows of changed nodes again.
- Other pods, volumes and devices: objects (`Rule`, `SoftScore`) that count them once, and then follow every change of
  the draft.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.cost_registry import devices_costs
from koordpy.devices.family_registry import left_out_of_fit
from koordpy.feasibility.filtering import rules_of
from koordpy.feasibility.score_registry import SCORES, SHOWN_IF_GIVEN, SoftTotal, scores_of
from koordpy.framework.filter_protocol import Refusal, Verdict, chain
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Rule
from koordpy.plan.limits import FEW_ROWS
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.node_scores import (
    BALANCED,
    PACKING,
    StaticScores,
    balanced_allocation,
    first_node,
    normalised,
    resources_fit,
    resources_fit_at,
)
from koordpy.plugins.resource_fit import check_fit
from koordpy.plugins.soft_scores import SoftScore
from koordpy.pods.pod_info import PodInfo
from koordpy.reservations.available_capacity import AvailableCapacity
from koordpy.reservations.reservation_ledger import ReservationLedger

_TIES = frozenset({"NodePorts", "PodTopologySpread", "InterPodAffinity"})
"""Plugins by which copies of one pod exclude or attract each other."""


@dataclass(frozen=True, eq=False)
class Static:
    """A shape's verdicts and scores that depend on node objects alone."""

    before: Verdict
    """Combined verdict of the filters that read only node objects: the first four of the table in kube-parity.md 1."""
    refusal: Refusal | None
    """Refusal of the pod on every node, so that no node is tried; None if there is none."""
    scores: StaticScores
    """Scores by taints, node affinity and images, before normalisation."""


class StateOwner(Protocol):
    """The attributes that a shape state needs of its owner, the round state."""

    draft: Draft
    snapshot: Snapshot
    config: KoordpyConfiguration
    inputs: FilterInputs
    """The inputs of filters and scores."""

    @property
    def reservations(self) -> ReservationLedger:
        """Capacity that is reserved for pods."""

    def ignored(self, resource: str) -> bool:
        """Returns True if the configuration excludes a resource from the fit check."""

    def available_to(self, pod: PodInfo) -> AvailableCapacity | None:
        """Returns the reserved capacity that a pod may not use; None if there is none."""


class ShapeState:
    """Verdicts, slots and scores of one shape on a draft. All values are current after `refresh`.

    slots: [nodes] number of copies of the pod that the node takes; 0 if a filter refuses it. allowed: [nodes] 1 if
    every filter except the resource fit passes, else 0. fit: [nodes] score of NodeResourcesFit. soft, total: [nodes]
    weighted sum of scores, without and with the scores that depend on free capacity.
    """

    def __init__(self, owner: StateOwner, pod: PodInfo, static: Static, refusal: Refusal | None = None) -> None:
        """pod: any pod of the shape. refusal: of the pod on all nodes, in addition to that in `static`; None if there
        is none."""
        self._owner = owner
        self.pod = pod
        self.static = static
        self.refusal = static.refusal or refusal
        snapshot = owner.snapshot
        ignored = owner.ignored
        asked = {name: amount for name, amount in pod.requests.items() if not ignored(name)}
        self.request = snapshot.vector(asked)
        """((column of the snapshot's resources, amount), ...); the first entry counts the pod itself."""
        self.names = ("", *asked)
        """Resource of each entry of `request`; the first entry is the pod itself."""
        self._left_out = left_out_of_fit(pod, owner.inputs) if pod.asks else {}
        """Resource -> [nodes] True for nodes on which a device family's filter, not NodeResourcesFit, checks the
        resource."""
        self.rules: Sequence[Rule] = rules_of(pod, owner.inputs) if self.refusal is None else []
        """The filters that depend on other pods, volumes or devices."""
        self._copies: list[Ints] = []
        """For each rule that limits copies, [nodes] the number of copies of the pod that a node takes."""
        self._soft_scores: list[SoftScore] = scores_of(pod, owner.inputs) if self.refusal is None else []
        self._by_feasible = any(one.fixed for one in self._soft_scores)
        """True if some score depends on the set of feasible nodes and on nothing else that changes."""
        self._followers: tuple[Rule | SoftScore, ...] = (
            *self.rules,
            *(one for one in self._soft_scores if not one.fixed),
        )
        """Rules and scores to which every change of the draft must be reported."""
        for change in owner.draft.changes:
            for one in self._followers:
                one.change(*change)
        self._reserved = owner.available_to(pod)
        self._ledger = owner.draft.reservations
        self.allowed: Ints = self._passes()
        count = len(snapshot.nodes)
        self.slots: Ints = np.zeros(count, dtype=np.int64)
        self.fit: Ints = np.zeros(count, dtype=np.int64)
        self._cached_verdict: tuple[int, Verdict] | None = None
        self._version_seen, self._changes_seen = owner.draft.version, len(owner.draft.changes)
        self._update(slice(None))
        self._normalise()

    def _passes(self) -> Ints:
        """Returns [nodes] 1 if every filter except the resource fit passes, else 0."""
        if self.refusal is not None:
            return np.zeros(len(self._owner.snapshot.nodes), dtype=np.int64)
        passes = self.static.before.fits
        for rule in self.rules:
            if not rule.local:
                passes = passes & rule.verdict().fits
        self._far_passes = passes
        for rule in self.rules:
            if rule.local:
                passes = passes & rule.verdict().fits
        if self._reserved is not None:
            passes = passes.copy()
            passes[self._reserved.positions] &= self._reserved.passes(self.rules).astype(bool)
        self._copies = [copies for rule in self.rules if (copies := rule.copies()) is not None]
        return passes.astype(np.int64)

    def allowed_beside(self, judged: Collection[str]) -> Ints:
        """Returns [nodes] 1 if every filter passes, except the resource fit and refusals that other members may remove.

        A member of a gang may be refused now because another member is not placed yet, for example by affinity. So of
        the rules of the plugins in `judged`, only refusals count that no other pod can remove
        (`Rule.permanent_verdict`).
        """
        if not judged or self.refusal is not None:
            return self.allowed
        passes = self.static.before.fits
        for rule in self.rules:
            word = rule.permanent_verdict() if rule.plugin in judged else rule.verdict()
            passes = passes & word.fits
        if self._reserved is not None:
            passes = passes.copy()
            whole = [rule for rule in self.rules if rule.plugin not in judged]
            passes[self._reserved.positions] &= self._reserved.passes(whole).astype(bool)
        return passes.astype(np.int64)

    def copies_alone(self) -> Ints | None:
        """Returns [nodes] the number of copies of the pod that host ports, spread and (anti-)affinity admit.

        The copies are placed one after the other; other new pods and free capacity are ignored. None if the pod has no
        such rule.
        """
        if not any(rule.plugin in _TIES for rule in self.rules) or self.refusal is not None:
            return None
        passes = self.static.before.fits
        most = np.full(len(passes), ANY_NUMBER, dtype=np.int64)
        for rule in self.rules:
            if rule.plugin in _TIES:
                passes = passes & rule.verdict().fits
                copies = rule.copies()
                most = most if copies is None else np.minimum(most, copies)
        return most * passes.astype(np.int64)

    def looks_at(self, pod: PodInfo, node: int) -> bool:
        """Returns True if removing a bound pod from its node (position) may change the verdict of a rule."""
        moved = [rule.change(pod, node, -1) for rule in self.rules]
        for rule in self.rules:
            rule.change(pod, node, 1)
        return any(moved)

    def allowed_with(self, pod: PodInfo, node: int, judged: Collection[str]) -> Ints:
        """Returns `allowed_beside` for the draft with one more pod on a node.

        The draft and this state stay as they are.
        """
        for rule in self.rules:
            rule.change(pod, node, 1)
        out = self.allowed_beside(judged) if judged else self._passes()
        for rule in self.rules:
            rule.change(pod, node, -1)
        self._passes()
        return out

    @property
    def has_rules(self) -> bool:
        """True if a filter depends on other pods, volumes or devices."""
        return bool(self.rules)

    def best_node(self) -> int | None:
        """Returns the position of the best node for a single pod; None if no node takes it. Compared in order: least
        device cost, largest total score, fewest free slots, first natural name."""
        names, able = self._owner.snapshot.name_rank, np.nonzero(self.slots > 0)[0]
        costs = devices_costs(self.pod, able, self._owner.inputs) if self.pod.asks and len(able) > 1 else ()
        if not costs:
            return first_node(able, -self.total, self.slots, names)
        best = first_node(np.arange(len(able)), *costs, -self.total[able], self.slots[able], names[able])
        return int(able[best]) if best is not None else None

    def refresh(self) -> None:
        """Applies the draft's changes since the last call: computes only changed nodes again if possible, else all
        nodes. All nodes are necessary if a verdict may have changed on other nodes, or if reservations have changed.
        Scores must be normalised again if their range over the feasible nodes may have changed."""
        draft = self._owner.draft
        if self._version_seen == draft.version:
            return
        # what has changed since the last call: rows of nodes, pods added or removed, reservations
        renewed = self._ledger is not draft.reservations
        rows, changes = (
            np.array(draft.touched_since(self._version_seen), dtype=np.int64),
            draft.changes[self._changes_seen :],
        )
        self._version_seen, self._changes_seen = draft.version, len(draft.changes)
        moved = bool(changes) and self._apply_changes(changes, rows)
        if renewed:
            self._ledger, self._reserved = draft.reservations, self._owner.available_to(self.pod)
            self.allowed = self._passes()
        if moved or renewed:
            self._update(slice(None))
            self._normalise()
            return
        # only the changed nodes
        fitted = self.slots[rows] > 0 if self._by_feasible else None
        if len(rows) <= FEW_ROWS and self._reserved is None:
            for row in rows.tolist():
                self._update_row(row)
        else:
            self._update(rows)
        refitted = fitted is not None and not np.array_equal(fitted, self.slots[rows] > 0)
        if refitted or not self._soft.renew(rows, self.slots):
            self._normalise()
        else:
            self.total[rows] = self.soft[rows] + self._capacity_scores(rows)

    def _apply_changes(self, changes: Sequence[tuple[PodInfo, int, int]], rows: NDArray[np.int64]) -> bool:
        """Reports the draft's latest changes, all on the nodes `rows`, to the rules and scores. Returns True if a
        verdict may also have changed on other nodes."""
        owner = self._owner
        if not self._followers and not owner.draft.has_nominations:
            return False
        moved = False
        if owner.draft.has_nominations and any(owner.reservations.concerns(change[0]) for change in changes):
            self._reserved = owner.available_to(self.pod)
            moved = True
        for change in changes:
            for one in self._followers:
                changed = one.change(*change)
                moved |= changed and not one.local
        local = [rule for rule in self.rules if rule.local]
        if moved or (local and self._reserved is not None):
            self.allowed = self._passes()
        elif local:
            passes = self._far_passes[rows]
            for rule in local:
                passes = passes & rule.fits_at(rows)
            # problems that were built before refer to this array and must not change, so it is copied
            self.allowed = self.allowed.copy()
            self.allowed[rows] = passes
        return moved

    def _update_row(self, row: int) -> None:
        """Computes one node again, like `_update`, but with plain integers: several times faster than short arrays."""
        owner = self._owner
        have, used = owner.snapshot.allocatable[row].tolist(), owner.draft.used[row].tolist()
        room: int = have[0] - used[0]
        for column, amount in self.request[1:]:
            room = min(room, (have[column] - used[column]) // amount)
        for copies in self._copies:
            room = min(room, int(copies[row]))
        self.slots[row] = max(room, 0) * int(self.allowed[row])
        self.fit[row] = resources_fit_at(
            owner.snapshot.columns,
            have,
            used,
            owner.draft.score_used[row].tolist(),
            self.pod,
            config=owner.config.scores.node_resources_fit,
        )

    def _update(self, rows: NDArray[np.int64] | slice) -> None:
        """Computes `slots` and `fit` of the given nodes (positions, or a slice) from the draft's free capacity."""
        owner = self._owner
        free = owner.snapshot.allocatable[rows] - owner.draft.used[rows]
        room = free[:, 0]
        for column, amount in self.request[1:]:
            room = np.minimum(room, np.floor_divide(free[:, column], amount))
        for copies in self._copies:
            room = np.minimum(room, copies[rows])
        self.slots[rows] = np.maximum(room, 0) * self.allowed[rows]
        if self._reserved is not None:
            self._subtract_reservations(self._reserved)
        self.fit[rows] = resources_fit(
            owner.snapshot,
            owner.draft.used,
            owner.draft.score_used,
            self.pod,
            rows=rows,
            config=owner.config.scores.node_resources_fit,
        )

    def _subtract_reservations(self, reserved: AvailableCapacity) -> None:
        """Lowers the slots of nodes with reservations that the pod may not use."""
        at = reserved.positions
        free = self._owner.snapshot.allocatable[at] - self._owner.draft.used[at] - reserved.reserved
        room = np.min([np.floor_divide(free[:, column], amount) for column, amount in self.request], axis=0)
        if self.pod.asks:
            room = np.minimum(room, reserved.copies(self.rules, self._owner.snapshot.columns))
        self.slots[at] = np.minimum(self.slots[at], np.maximum(room, 0) * self.allowed[at])

    def _normalise(self) -> None:
        """Computes `soft` and `total`, with scores normalised over the nodes that are feasible now."""
        self._soft = SoftTotal(self._soft_scores, self.static.scores, self._owner.config.scores, self.slots > 0)
        self.total: Ints = self.soft + self._capacity_scores(slice(None))

    @property
    def soft(self) -> Ints:
        """`total` without the scores that depend on free capacity. Used with a gather goal, because its goals pack
        already."""
        return self._soft.values

    def _capacity_scores(self, rows: NDArray[np.int64] | slice) -> Ints:
        """Returns the weighted scores of the given nodes that depend on their free capacity."""
        weights = self._owner.config.scores
        total = weights.weight(PACKING) * self.fit[rows]
        if weights.weight(BALANCED):
            total = total + weights.weight(BALANCED) * self._balanced(rows)
        return np.asarray(total)

    def _balanced(self, rows: NDArray[np.int64] | slice) -> Ints:
        return balanced_allocation(self._owner.snapshot, self._owner.draft.used, self.pod, rows=rows)

    @property
    def pulled(self) -> bool:
        """True if removing a pod on another node may make a filter refuse a node: required affinity, spread."""
        return any(not rule.local for rule in self.rules)

    @property
    def follows(self) -> bool:
        """True if placing another pod may change verdicts of other nodes, or scores: a failed pod is then tried again.
        If only scores change, trying again is needless but harmless."""
        return any(not (isinstance(one, Rule) and one.local) for one in self._followers)

    def plugin_scores(self) -> dict[str, Ints]:
        """Returns plugin -> [nodes] its score 0..100, normalised over the feasible nodes and not weighted."""
        feasible = self.slots > 0
        soft = {plugin: np.zeros(len(feasible), dtype=np.int64) for plugin in SCORES if plugin not in SHOWN_IF_GIVEN}
        soft |= {one.plugin: one.values(feasible) for one in self._soft_scores}
        return {
            **normalised(self.static.scores, feasible),
            **soft,
            PACKING: self.fit,
            BALANCED: self._balanced(slice(None)),
        }

    def verdict(self) -> Verdict:
        """Returns the combined verdict of all filters on the current draft, for this pod alone."""
        version = self._owner.draft.version
        if self._cached_verdict is None or self._cached_verdict[0] != version:
            self._cached_verdict = version, chain([self.static.before, *self.later_words()])
        return self._cached_verdict[1]

    def later_words(self) -> list[Verdict]:
        """Returns the verdict of each filter after the static filters, in order, including the resource fit. If
        reservations are closed to the pod, the first verdict is that of all filters with the nominated pods on their
        nodes."""
        owner = self._owner
        fit = check_fit(owner.snapshot.allocatable, owner.draft.used, self.request, self.names, self._left_out)
        early = [rule.verdict() for rule in self.rules if rule.before_fit]
        late = [rule.verdict() for rule in self.rules if not rule.before_fit]
        first = []
        if self._reserved is not None:
            used = owner.draft.used
            first.append(self._reserved.verdict(self.rules, owner.snapshot, used, self.request, self.names))
        return [*first, *early, fit, *late]
