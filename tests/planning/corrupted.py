# SPDX-License-Identifier: Apache-2.0
"""Plans with victims, made wrong in every way that a planner could be: what the independent check has to refuse.

The plans are those of random clusters (`tests.scenarios.turmoil`), each taken where the planner has it checked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random

from koordpy.devices.family_registry import allocate
from koordpy.gangs.queue_units import Unit
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.search.preemption_plan import PreemptionPlan, Victim
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_units import VictimUnit, protected
from koordpy.verify.plan_check import check_plan
from koordpy.verify.plan_fault import Check, PlanFault
from tests.planning.minimality import proven
from tests.scenarios.cluster import World
from tests.scenarios.turmoil import Turmoil

FEW = 12
"""Of plans with more victims the proof gives back only some of them, each by itself (`REFITTED_UNITS`)."""


def whole_check(search: PreemptionSearch, unit: Unit, relief: PreemptionPlan) -> list[PlanFault]:
    """Everything that a plan is held against before it is carried out, and its minimality; the draft is left as it
    was."""
    round_state, draft = search.round_state, search.round_state.draft
    faults = search.faults(unit, relief)
    if faults:
        return faults
    mark = draft.mark()
    for victim in relief.victims:
        for pod in victim.unit.pods:
            draft.evict(pod)
    given = allocate(dict(relief.nodes), round_state)
    names = {key: round_state.snapshot.nodes[node].name for key, node in relief.nodes}
    faults = check_plan(unit, names, round_state, given.devices, {**given.notes, **relief.notes}, whole=True)
    if not faults and not given.faults:
        for key, node in relief.nodes:
            draft.assign(round_state.snapshot.pods[key], node, devices=given.devices.get(key, {}))
        faults = search.faults_of_returns(relief)
    draft.undo(mark)
    faults += [PlanFault(f"{key} need not go", Check.UNITS) for key in search.needless(unit, relief)]
    return [*faults, *given.faults]  # type: ignore[list-item]


Corruption = Callable[[PreemptionSearch, PreemptionPlan, Random], Iterator[PreemptionPlan]]


def _one_more(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    taken = {id(victim.unit) for victim in relief.victims}
    gangs = {victim.unit.group for victim in relief.victims} - {""}
    others = [
        unit
        for i, unit in enumerate(search.pool.units)
        if search.pool.alive[i] and id(unit) not in taken and unit.group not in gangs
    ]
    for unit in random.sample(others, min(3, len(others))) if not relief.back else ():
        yield replace(relief, victims=(*relief.victims, Victim(unit, random.choice(relief.victims).rule)))


def _one_less(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    out = random.randrange(len(relief.victims))
    gone = {pod.key for pod in relief.victims[out].unit.pods}
    kept = tuple(victim for i, victim in enumerate(relief.victims) if i != out)
    yield replace(relief, victims=kept, back=tuple(one for one in relief.back if one.pod.key not in gone))


def _half(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    for i, victim in enumerate(relief.victims):
        if len(victim.unit.pods) > 1:
            part = VictimUnit(victim.unit.kind, victim.unit.pods[1:], victim.unit.group, victim.unit.gang)
            victims = (*relief.victims[:i], replace(victim, unit=part), *relief.victims[i + 1 :])
            gone = victim.unit.pods[0].key
            yield replace(relief, victims=victims, back=tuple(one for one in relief.back if one.pod.key != gone))
            return


def _twice(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    yield replace(relief, victims=(*relief.victims, random.choice(relief.victims)))


def _untouchable(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    pods = search.round_state.snapshot.pods.values()
    safe = [pod for pod in pods if pod.bound and protected(pod)]
    if safe:
        pod = random.choice(safe)
        first = relief.victims[0]
        yield replace(relief, victims=(*relief.victims, replace(first, unit=VictimUnit(first.unit.kind, (pod,)))))


def _elsewhere(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    """A member on a node that has no room for it, with the victims gone."""
    draft, snapshot = search.round_state.draft, search.round_state.snapshot
    freed = {snapshot.index[pod.node] for victim in relief.victims for pod in victim.unit.pods if pod.node}
    key, _ = random.choice(relief.nodes)
    for column, amount in snapshot.vector(snapshot.pods[key].requests):
        full = [n for n in range(len(snapshot.nodes)) if draft.free()[n, column] < amount and n not in freed]
        if full and column:
            rest = tuple((one, random.choice(full) if one == key else node) for one, node in relief.nodes)
            yield replace(relief, nodes=rest)
            return


def _nobody(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    yield replace(relief, nodes=())


def _moved_for_good(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    """A pod that is to be moved and does not come back."""
    if relief.back:
        out = random.randrange(len(relief.back))
        yield replace(relief, back=tuple(one for i, one in enumerate(relief.back) if i != out))


def _mixed(search: PreemptionSearch, relief: PreemptionPlan, random: Random) -> Iterator[PreemptionPlan]:
    """One that is evicted is said to be moved, or the other way round."""
    i = random.randrange(len(relief.victims))
    rule = RuleName.PRIORITY if relief.back else RuleName.CONSOLIDATION
    victims = list(relief.victims)
    victims[i] = replace(victims[i], rule=rule)
    yield replace(relief, victims=tuple(victims))


CORRUPTIONS: Mapping[str, Corruption] = {
    "one more": _one_more,
    "one less": _one_less,
    "half a unit": _half,
    "one twice": _twice,
    "one that may never go": _untouchable,
    "a member on a full node": _elsewhere,
    "for nobody": _nobody,
    "moved and not brought back": _moved_for_good,
    "moved and evicted at once": _mixed,
}


class Attack(PreemptionSearch):
    """A search whose plans are made wrong when they are checked. let: what passed; seen: corruption -> how often."""

    let: list[str]
    seen: dict[str, int]
    random: Random
    _busy = False

    def faults(self, unit: Unit, relief: PreemptionPlan) -> list[PlanFault]:
        found = super().faults(unit, relief)
        if self._busy or found:
            return found
        self._busy = True
        if len(relief.victims) <= FEW and not whole_check(self, unit, relief):
            for name, corrupt in CORRUPTIONS.items():
                for wrong in corrupt(self, relief, self.random):
                    self.seen[name] = self.seen.get(name, 0) + 1
                    if not whole_check(self, unit, wrong):
                        victims = [(victim.unit.pods[0].key, str(victim.rule)) for victim in wrong.victims]
                        self.let.append(f"{name}: {unit.id} at {wrong.nodes} by {victims}")
        self._busy = False
        return found


def attacked(seed: int, put: Callable[[type[PreemptionSearch]], None]) -> type[Attack]:
    """Plans a random cluster and attacks every plan. put: puts the search in the planner's place."""
    turmoil = Turmoil(Random(seed))

    class Here(Attack):
        let: list[str] = []  # noqa: RUF012
        seen: dict[str, int] = {}  # noqa: RUF012
        random = Random(seed)

    put(Here)
    with proven():
        plan = plan_round(World().add(*turmoil.objects).snapshot(), turmoil.config)
    Here.let += [f"{unit} evicts a unit in vain" for unit in plan.not_minimal]
    return Here
