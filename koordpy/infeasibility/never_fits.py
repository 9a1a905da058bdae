# SPDX-License-Identifier: Apache-2.0
"""Finds units that can never start, even after all other pods that can end have ended, and the reason.

Such a unit waits for something that cannot happen, so its message says so, and its demand must not reserve capacity.
The question is answered on the *empty cluster*. There, only pods of DaemonSets, mirror pods and the unit's own pods use
capacity, quotas limit by max, and cordons and taints of `node.kubernetes.io/` are ignored, because they are temporary
(docs/rules/gang-network.md 6).

Sums and slots decide most units, in O(nodes) per shape. Other units are placed: a unit of several shapes by CP-SAT, and
a unit with rules about other pods, or about more than the number of devices, with all filters on a draft without the
other pods. In each round the number of such placements is limited. Answers are cached until nodes, quotas or the tree
change.

A unit counts as one that never fits only if that is proven; an undecided unit may fit. Some conditions are assumed to
be possible to meet: claims of volumes, rules of jobs on NPUs, and required affinity to pods of other units. Claims of
devices are assumed to be met if some node has devices for one pod.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as changed

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import PodAffinityTerm
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import ClosedTo, withheld
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.family_registry import counts_decide
from koordpy.feasibility.round_state import PlannerCache, RoundState
from koordpy.gangs.gathered_parts import without_parts
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import lacks_members
from koordpy.infeasibility.empty_fit import (
    amount_text,
    has_domain,
    has_placement,
    is_numeric,
    kind_key,
    least_asked,
    required_text,
    unit_kinds,
)
from koordpy.infeasibility.empty_shortage import NO_PLACEMENT, EmptyShortage
from koordpy.infeasibility.limiting_rules import (
    limiting_rules,
    missing_member,
)
from koordpy.placement.problem import Problem
from koordpy.plan.limits import (
    EMPTIED_OFFLINE,
    EMPTIED_PODS,
    EMPTIED_TIME,
    EMPTIED_UNITS,
    NEVER_KEPT,
)
from koordpy.plugins.interpod_affinity import term_matches
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.placement_methods import is_hopeless
from koordpy.problems.problem_building import build

NO_MATCH = "no node matches its node selector, affinity and tolerations"
ALL_SPARES = "all nodes that match it are spares"


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """The parts of a snapshot on which answers depend, besides the unit.

    Cached answers are valid while these are the same.
    """

    versions: tuple[int, int, int]
    """Versions of the nodes' labels and taints, of their capacity, and of the pods that never end."""
    objects: tuple[object, ...]
    """The tree, the quotas, and the state of each device family; compared by identity (`is`)."""

    @staticmethod
    def from_snapshot(snapshot: Snapshot) -> "_ClusterState":
        """Returns the state of a snapshot."""
        versions = snapshot.static_version, snapshot.capacity_version, snapshot.staying_version
        return _ClusterState(
            versions, (snapshot.tree, snapshot.quotas.tree, *(view.ground() for view in snapshot.families.values()))
        )

    def same(self, other: "_ClusterState") -> bool:
        """Returns True if both states give the same answers."""
        if self.versions != other.versions or len(self.objects) != len(other.objects):
            return False
        return all(a is b for a, b in zip(self.objects, other.objects, strict=True))


@dataclass
class _Answers:
    """Answers of earlier rounds for one state of the cluster."""

    ground: _ClusterState | None = None
    """The cluster state for which `known` is valid; None before the first round."""
    known: dict[Hashable, str] = field(default_factory=dict)
    """`kind_key` of a unit -> why it never fits; empty if it may fit."""

    def at(self, snapshot: Snapshot) -> dict[Hashable, str]:
        """Returns the answers that are valid for a snapshot; the caller may add to them."""
        ground = _ClusterState.from_snapshot(snapshot)
        if self.ground is None or not self.ground.same(ground) or len(self.known) > NEVER_KEPT:
            self.ground, self.known = ground, {}
        return self.known


def never_fits(unit: Unit, round_state: RoundState) -> str:
    """Returns why a unit never fits, in the words of docs/rules/gang-network.md 6; empty if it may fit or is not
    decided.

    Only for a unit that no gate blocks. Empty also for a gang that has its minimum, because its pending members are
    only surplus. unit: with the placements of the draft.
    """
    found = round_state.memo.get(EmptyCluster)
    if not isinstance(found, EmptyCluster):
        found = round_state.memo[EmptyCluster] = EmptyCluster(round_state)
    return found.why(unit)


class EmptyCluster(EmptyShortage):
    """Decides for a round if units could ever fit the empty cluster, and caches the answers."""

    def __init__(self, round_state: RoundState) -> None:
        super().__init__(round_state)
        kept = round_state.cache.memo.get(_Answers)
        if not isinstance(kept, _Answers):
            kept = round_state.cache.memo[_Answers] = _Answers()
        self._known = kept.at(self._snapshot)
        factor = 1 if self._snapshot.live else EMPTIED_OFFLINE
        self._units, self._pods = EMPTIED_UNITS * factor, EMPTIED_PODS * factor
        """Numbers of units that may still be placed, and of pods that may still be evicted on drafts, in this round."""
        self._all_emptied: RoundState | None = None
        """Round state of the cluster without all pods that can end; None until it is needed."""
        self._cache = PlannerCache() if self._open is not self._snapshot.nodes else None

    def why(self, unit: Unit) -> str:
        """Returns why a unit never fits; empty if it may fit or is not decided. See `never_fits`."""
        if not unit.pending or _waits_for_more(unit) or lacks_members(unit):
            return ""
        key = kind_key(unit)
        found = self._known.get(key)
        if found is None:
            answer = self._decide(unit)
            if answer is None:
                return ""
            found = self._known[key] = answer
        return found

    def _decide(self, unit: Unit) -> str | None:
        """Returns why a unit never fits; empty if it may fit; None if that is not decided.

        The cheapest proofs are tried first: quotas, matching nodes, size of nodes, slots, then a placement.
        """
        found = self._beyond_quota(unit) or self._without_nodes(unit) or self._too_large(unit)
        if found:
            return found
        if unit.plain is not None or not unit.is_gang:
            return "" if any(self._nodes_for(pod, unit).any() for pod in unit_kinds(unit)) else NO_PLACEMENT
        problem = self._problem(unit)
        if is_numeric(unit, self._round_state):
            fits = self._fits_by_numbers(unit, problem)
            return None if fits is None else "" if fits else self._short(unit, problem, self._round_state)
        answer = None if self._depends_on_more(unit) else self._placed(unit)
        if answer is None and not self._may_fit(unit, problem):
            return self._short(without_parts(unit), problem, self._round_state)
        return answer

    # -- sums ---------------------------------------------------------------------------------------------------------

    def _beyond_quota(self, unit: Unit) -> str:
        """Returns a sentence about the lowest quota with a max below the amount that the unit needs; else empty.

        If several resources exceed the max, the first one in natural order is named. The needed amount includes running
        members.
        """
        quotas = self._snapshot.quotas
        if not quotas.tree.quotas:
            return ""
        paths = {pod.owner: quotas.tree.path(quotas.quota_of(pod)) for pod in unit.members}
        levels = {name: depth for path in paths.values() for depth, name in enumerate(path)}
        for name in sorted(levels, key=lambda name: -levels[name]):
            most = quotas.tree.quotas[name].max
            for resource in sorted(most, key=natural_key):

                def asked(pod: PodInfo, name: str = name, resource: str = resource) -> int:
                    return pod.charged.get(resource, 0) if name in paths[pod.owner] else 0

                needed, held = least_asked(unit, asked), sum(asked(pod) for pod in unit.members if pod.bound)
                if needed > 0 and needed + held > most[resource]:
                    allowed = f"quota {name} allows at most {amount_text(resource, most[resource])}"
                    return f"{allowed}, {required_text(resource, needed + held)}"
        return ""

    def _without_nodes(self, unit: Unit) -> str:
        """Returns a sentence if a member that must be placed matches no node; else empty."""
        pod = missing_member(unit, lambda pod: bool(self._matches(pod).any()))
        if pod is None:
            return ""
        return ALL_SPARES if self._admits(pod).any() else NO_MATCH

    def _too_large(self, unit: Unit) -> str:
        """Returns a sentence if a member that must be placed requests more than any matching node has; else empty."""
        pod = missing_member(unit, lambda pod: not self._lacking(pod))
        if pod is None:
            return ""
        resource, most, asked = min(self._lacking(pod), key=lambda one: natural_key(one[0]))
        return f"the largest node has {amount_text(resource, most)}, {required_text(resource, asked)}"

    # -- slots --------------------------------------------------------------------------------------------------------

    def _may_fit(self, unit: Unit, problem: Problem) -> bool:
        """Returns False if sums of slots prove that the unit cannot fit.

        If all pods have one shape, a domain that may contain all of them must have enough slots.
        """
        if is_hopeless(problem):
            return False
        return len(problem.shapes) > 1 or has_domain(unit, problem, self._round_state)

    def _fits_by_numbers(self, unit: Unit, problem: Problem) -> bool | None:
        """Returns True or False if numbers of pods, resources and devices decide whether the unit fits; else None."""
        may = self._may_fit(unit, problem)
        if not may or (len(problem.shapes) == 1 and not problem.multiples):
            return may
        if self._units <= 0:
            return None
        self._units -= 1
        return has_placement(unit, problem, self._round_state)

    # -- placement ----------------------------------------------------------------------------------------------------

    def _depends_on_more(self, unit: Unit) -> bool:
        """Returns True if a failed placement with all filters would not prove that the unit never fits.

        The unit then depends on something that may change: claims, a refusal of the pod on all nodes, or affinity to
        pods of other units. Or it requests devices for which the number of free devices is not enough to decide.
        """
        for pod in unit_kinds(unit):
            spec, own = pod.pod.spec, self._round_state.of(pod)
            if own.refusal is not None or spec.resource_claims or pod.ties.volumes:
                return True
            if not counts_decide(pod, self._round_state.snapshot):
                return True
            if any(not self._among_members(term, pod, unit) for term in pod.ties.terms.affinity.required):
                return True
        return False

    def _among_members(self, term: PodAffinityTerm, pod: PodInfo, unit: Unit) -> bool:
        """Returns True if an affinity term of a pod matches any member of the unit."""
        namespaces = self._snapshot.namespaces
        return any(
            term_matches(term, pod.namespace, one.namespace, one.pod.metadata.labels, namespaces)
            for one in {(one.shape, one.node): one for one in unit.members}.values()
        )

    def _placed(self, unit: Unit) -> str | None:
        """Places the unit on the empty cluster with every filter. Returns a result as `_decide`.

        If there is no placement, causes are tested in this order: a shortage without regard to parts, a shortage for
        a part, a rule among the members without which the unit would fit.
        """
        if self._units <= 0:
            return None
        self._units -= 1
        empty = self._emptied(unit)
        if empty is None:
            return None
        mark = empty.draft.mark()
        try:
            for pod in unit.members:
                if pod.bound and pod.key in self._round_state.draft.placed:
                    devices = self._round_state.draft.devices_of(pod.key)
                    empty.draft.assign(self._snapshot.pods[pod.key], self._snapshot.index[pod.node], devices=devices)
            # does the unit fit? (placements of this round were repeated on the empty cluster above)
            problem = replace(build(unit, empty), deterministic_time=EMPTIED_TIME, device_costs=None)
            fits = has_placement(unit, problem, empty)
            if fits is not False:
                return "" if fits else None
            # the unit does not fit: find what it lacks
            whole = without_parts(unit)
            asked = problem if whole is unit else replace(build(whole, empty), deterministic_time=EMPTIED_TIME)
            found = self._short(whole, asked, empty)
            if found == NO_PLACEMENT and whole is not unit:
                found = self._part_short(unit, asked, empty)
            if found == NO_PLACEMENT:
                rule = next(limiting_rules(unit, empty, emptied_time=EMPTIED_TIME), "")
                found += f"; {rule}" if rule else ""
            return found
        finally:
            empty.draft.undo(mark)

    def _emptied(self, unit: Unit) -> RoundState | None:
        """Returns the round state of a draft without the pods of other units that can end.

        None if more pods would be removed than is allowed in this round. Units without bound pods share one such state.
        """
        own = {pod.key for pod in unit.members if pod.bound}
        if not own and self._all_emptied is not None:
            return self._all_emptied
        leaving = [pod for pod in self._snapshot.pods.values() if pod.bound and pod.key not in own]
        self._pods -= len(leaving)
        if self._pods < 0:
            return None
        quotas, config = self._snapshot.quotas, self._round_state.config
        if quotas.tree.quotas:
            limits = {name: replace(one, min=dict(one.max)) for name, one in quotas.tree.quotas.items()}
            quotas = replace(quotas, tree=replace(quotas.tree, quotas=limits))
            config = changed(config, quota=changed(config.quota, enable_runtime_quota=False))
        draft = Draft(replace(self._snapshot, nodes=self._open, quotas=quotas, reservations={}))
        draft.evict_all(leaving)
        draft.withhold(withheld("pods of DaemonSets and mirror pods", ClosedTo.ALL, self._snapshot.unevictable_used))
        found = self._round_state.of_draft(draft, config, self._cache)
        if not own:
            self._all_emptied = found
        return found


def _waits_for_more(unit: Unit) -> bool:
    """Returns True if all gangs of a unit have their minimum, so that its pending members are only surplus."""
    waiting = [gang for gang in unit.gangs if gang.pending]
    return unit.is_gang and all(len(gang.bound) >= max(1, gang.min_member) for gang in waiting)
