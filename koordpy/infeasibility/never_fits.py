"""Finds the reason why a unit never fits, even after all other pods that can end have ended.

Source: gang-network.md 6. On that empty cluster only pods of DaemonSets, mirror pods and the unit's own pods use
capacity, quotas apply by max, and cordons and taints of `node.kubernetes.io/` are ignored. Sums and slots decide most
units, in O(nodes) per shape. A unit of several shapes is solved by CP-SAT. A unit with rules about other pods, or about
more than the number of devices, is placed with all filters on a draft without the other pods. The number of units for
these two methods is limited per round, and answers are cached until nodes, quotas or the tree change.

Only a proof makes a unit one that never fits: an undecided unit may fit. Claims of volumes and devices, jobs on NPUs,
and required affinity to pods of other units count as if they could be met.
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


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """The state that cached answers depend on besides the unit; they are valid while all of it is the same."""

    versions: tuple[int, int, int]
    objects: tuple[object, ...]

    @staticmethod
    def of(snapshot: Snapshot) -> "_ClusterState":
        versions = snapshot.static_version, snapshot.capacity_version, snapshot.staying_version
        return _ClusterState(
            versions, (snapshot.tree, snapshot.quotas.tree, *(view.ground() for view in snapshot.families.values()))
        )

    def same(self, other: "_ClusterState") -> bool:
        if self.versions != other.versions or len(self.objects) != len(other.objects):
            return False
        return all(a is b for a, b in zip(self.objects, other.objects, strict=True))


@dataclass
class _Answers:
    """Answers of earlier rounds for one state (`ground`)."""

    ground: _ClusterState | None = None
    known: dict[Hashable, str] = field(default_factory=dict)

    def at(self, snapshot: Snapshot) -> dict[Hashable, str]:
        """Returns the answers that are valid for a snapshot, by `kind_key`."""
        ground = _ClusterState.of(snapshot)
        if self.ground is None or not self.ground.same(ground) or len(self.known) > NEVER_KEPT:
            self.ground, self.known = ground, {}
        return self.known


def never_fits(unit: Unit, round_state: RoundState) -> str:
    """Returns why a unit that no gate blocks never fits, in the words of gang-network.md 6; empty if it may fit.

    unit: with the placements of the draft. A gang with its minimum met only waits for surplus members, and may always
    fit.
    """
    found = round_state.memo.get(EmptyCluster)
    if not isinstance(found, EmptyCluster):
        found = round_state.memo[EmptyCluster] = EmptyCluster(round_state)
    return found.why(unit)


class EmptyCluster(EmptyShortage):
    """The empty cluster of one round."""

    def __init__(self, round_state: RoundState) -> None:
        super().__init__(round_state)
        kept = round_state.cache.memo.get(_Answers)
        if not isinstance(kept, _Answers):
            kept = round_state.cache.memo[_Answers] = _Answers()
        self._known = kept.at(self._snapshot)
        factor = 1 if self._snapshot.live else EMPTIED_OFFLINE
        self._units, self._pods = EMPTIED_UNITS * factor, EMPTIED_PODS * factor
        """Remaining numbers of units to place, and of pods to evict on drafts, in this round."""
        self._all_emptied: RoundState | None = None
        """Round state of the cluster without any pod that can end; None until it is needed."""
        self._cache = PlannerCache() if self._open is not self._snapshot.nodes else None

    def why(self, unit: Unit) -> str:
        """Returns the answer of `never_fits`."""
        if not unit.pending or _waits_for_more(unit) or _lacks_members(unit):
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
        """Returns the answer for a unit; None if it is not decided."""
        found = self._beyond_quota(unit) or self._without_nodes(unit) or self._too_large(unit)
        if found:
            return found
        if unit.plain is not None or not unit.is_gang:
            return "" if any(self._nodes_for(pod).any() for pod in unit_kinds(unit)) else NO_PLACEMENT
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
        """Returns the lowest quota with a max below the needed amount, for the naturally first resource; else empty."""
        quotas = self._snapshot.quotas
        if not quotas.tree.quotas:
            return ""
        paths = {pod.owner: quotas.tree.path(quotas.quota_of(pod)) for pod in unit.members}
        levels = {name: depth for path in paths.values() for depth, name in enumerate(path)}
        for name in sorted(levels, key=lambda name: -levels[name]):
            most = quotas.tree.quotas[name].max
            for resource in sorted(most, key=natural_key):

                def asked(pod: PodInfo, name: str = name, resource: str = resource) -> int:
                    return pod.requests.get(resource, 0) if name in paths[pod.owner] else 0

                needed, held = least_asked(unit, asked), sum(asked(pod) for pod in unit.members if pod.bound)
                if needed > 0 and needed + held > most[resource]:
                    allowed = f"quota {name} allows at most {amount_text(resource, most[resource])}"
                    return f"{allowed}, {required_text(resource, needed + held)}"
        return ""

    def _without_nodes(self, unit: Unit) -> str:
        """Returns that a required member matches no node; else empty."""
        return NO_MATCH if missing_member(unit, lambda pod: bool(self._matches(pod).any())) is not None else ""

    def _too_large(self, unit: Unit) -> str:
        """Returns that a required member requests more than the largest matching node has; else empty."""
        pod = missing_member(unit, lambda pod: not self._lacking(pod))
        if pod is None:
            return ""
        resource, most, asked = min(self._lacking(pod), key=lambda one: natural_key(one[0]))
        return f"the largest node has {amount_text(resource, most)}, {required_text(resource, asked)}"

    # -- slots --------------------------------------------------------------------------------------------------------

    def _may_fit(self, unit: Unit, problem: Problem) -> bool:
        """Returns True if the unit may fit by its slots.

        For equal pods, a domain that may contain them must have enough slots.
        """
        if is_hopeless(problem):
            return False
        return len(problem.shapes) > 1 or has_domain(unit, problem, self._round_state)

    def _fits_by_numbers(self, unit: Unit, problem: Problem) -> bool | None:
        """Returns True if the problem by numbers has a placement; None if that is not decided."""
        may = self._may_fit(unit, problem)
        if not may or (len(problem.shapes) == 1 and not problem.multiples):
            return may
        if self._units <= 0:
            return None
        self._units -= 1
        return has_placement(unit, problem, self._round_state)

    # -- placement ----------------------------------------------------------------------------------------------------

    def _depends_on_more(self, unit: Unit) -> bool:
        """Returns True if placement by all filters does not prove anything.

        The unit depends on claims, NPUs, a refusal as a whole, or affinity to pods of other units.
        """
        for pod in unit_kinds(unit):
            spec, own = pod.pod.spec, self._round_state.of(pod)
            if own.refusal is not None or spec.resource_claims or pod.ties.volumes:
                return True
            if not counts_decide(pod):
                return True
            if any(not self._among_members(term, pod, unit) for term in pod.ties.terms.affinity.required):
                return True
        return False

    def _among_members(self, term: PodAffinityTerm, pod: PodInfo, unit: Unit) -> bool:
        """Returns True if a term matches a member."""
        namespaces = self._snapshot.namespaces
        return any(
            term_matches(term, pod.namespace, one.namespace, one.pod.metadata.labels, namespaces)
            for one in {(one.shape, one.node): one for one in unit.members}.values()
        )

    def _placed(self, unit: Unit) -> str | None:
        """Returns the answer of a placement on the empty cluster with every filter; None if it is not decided."""
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
                    given = self._round_state.draft.given(pod.key)
                    empty.draft.assign(self._snapshot.pods[pod.key], self._snapshot.index[pod.node], given=given)
            problem = replace(build(unit, empty), deterministic_time=EMPTIED_TIME, by_count=None)
            fits = has_placement(unit, problem, empty)
            if fits is not False:
                return "" if fits else None
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
        """Returns the round state of a draft without other pods that can end.

        None if too many would have to be evicted.
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
        draft.withhold(withheld("pods of DaemonSets and mirror pods", ClosedTo.ALL, self._snapshot.staying))
        found = self._round_state.of_draft(draft, config, self._cache)
        if not own:
            self._all_emptied = found
        return found


def _waits_for_more(unit: Unit) -> bool:
    """Returns True if all gangs of a unit have their minimum met, so that its pending members are surplus."""
    waiting = [gang for gang in unit.gangs if gang.pending]
    return unit.is_gang and all(len(gang.bound) >= max(1, gang.min_member) for gang in waiting)


def _lacks_members(unit: Unit) -> bool:
    """Returns True if a gang has fewer pending members than a plan must place; capacity does not change that."""
    return any(len(gang.pending) < unit.need(gang) for gang in unit.gangs)
