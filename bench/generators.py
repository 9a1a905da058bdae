# SPDX-License-Identifier: Apache-2.0
"""What each method of the search for victims is worth: the same rounds with one method off at a time (preemption.md 6).

`python -m bench.generators [SEEDS]`: the cases of `bench.victims`, gangs over gangs and of several shapes, and SEEDS
(60) random clusters of each family with victims. A method is taken away only in rounds in which the whole search has
used it. Plans are compared by victims and places, times by the processor time of the rounds.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from bench import victims
from bench.objects import group, node, pod, state_of
from bench.timing import Row, timed
from koordpy.api.objects import Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.plan.round_plan import Proof, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.search import select_victims
from koordpy.preemption.search.dry_run import DryRun
from koordpy.preemption.search.preemption_scenario import PreemptionScenario
from koordpy.preemption.search.select_victims import VictimSelection
from koordpy.preemption.selection import counted_victims
from koordpy.preemption.selection.gathered_victims import Gathered
from koordpy.preemption.selection.node_covers import Unwieldy
from koordpy.preemption.selection.victim_choice import Choice
from tests.golden.clusters import CLUSTERS
from tests.planning import victims_at_size
from tests.scenarios.turmoil import Turmoil

SEEDS = 60
NOW = 5400.0 + 1767225600.0
"""An hour and a half after the pods of the random clusters were created."""

Round = Callable[[], tuple[Snapshot, KoordpyConfiguration | None]]
"""Makes the snapshot and the settings of one round."""


@dataclass(frozen=True)
class Method:
    """A method, where it is called, and what stands in for it while it is off."""

    name: str
    owner: Any
    attribute: str
    off: Callable[..., Any]
    """Called with the original function first, then as the original."""
    used: Callable[..., bool] = lambda answer, *_, **__: bool(answer)
    """Called with the answer of the original first, then as the original: True if the method had its part."""


def _unwieldy(*_: Any) -> Any:
    raise Unwieldy


def _tables(whole: Callable[..., Any], own: Any, *, gather: bool) -> Any:
    return _unwieldy() if own.problem.gather == gather else whole(own)


METHODS = (
    Method("cheapest node of a plain pod", PreemptionScenario, "cheapest_node", lambda *_: None),
    Method("counting", select_victims, "shortcut", lambda *_: None),
    Method("counting: cheapest next pod", counted_victims._Search, "_cheapest_steps",
           lambda _, own, nodes: Gathered(own.problem, own.regions, nodes, own.number, late=own.late).solve()),
    Method("counting: tables without a gather goal", Gathered, "solve", partial(_tables, gather=False),
           lambda _, own: not own.problem.gather),
    Method("counting: tables with a gather goal", Gathered, "solve", partial(_tables, gather=True),
           lambda _, own: own.problem.gather),
    Method("CP-SAT", VictimSelection, "_by_model", lambda *_: Choice((), Proof.UNKNOWN),
           lambda answer, _: bool(answer.options)),
    Method("CP-SAT: one more of an overfull node", DryRun, "overfull", lambda *_: []),
    Method("CP-SAT: closed places", DryRun, "closed_places", lambda *_: ()),
    Method("CP-SAT: largest set that does not fit", select_victims, "no_good_set",
           lambda _, choices, taken, *__, **___: list(taken)),
    Method("greedy", select_victims, "cheapest", lambda *_: ()),
    Method("reprieve", select_victims, "reprieved", lambda _, choices, enough, start: start,
           lambda answer, choices, enough, start: tuple(answer) != tuple(start)),
    Method("bounds by sums", PreemptionScenario, "bound",
           lambda whole, own: whole(own) if own.moves or not own.eligible.any() else None,
           lambda answer, own: answer is not None and not own.moves and bool(own.eligible.any())),
)  # fmt: skip


@contextmanager
def watched(methods: Mapping[str, Method], used: set[str]) -> Iterator[None]:
    """Adds the names of the methods that have a part in the rounds of the context."""

    def spy(method: Method, whole: Callable[..., Any], *given: Any, **named: Any) -> Any:
        answer = whole(*given, **named)
        if method.used(answer, *given, **named):
            used.add(method.name)
        return answer

    with ExitStack() as stack:
        for owner, attribute in {(m.owner, m.attribute): None for m in methods.values()}:
            whole = getattr(owner, attribute)
            for method in methods.values():
                if (method.owner, method.attribute) == (owner, attribute):
                    whole = partial(spy, method, whole)
            stack.enter_context(patch.object(owner, attribute, _function(whole)))
        yield


def _function(whole: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function, which becomes a method of a class."""
    return lambda *given, **named: whole(*given, **named)


@contextmanager
def without(method: Method) -> Iterator[None]:
    """Takes a method away."""
    whole = getattr(method.owner, method.attribute)
    with patch.object(method.owner, method.attribute, _function(partial(method.off, whole))):
        yield


# --- rounds -----------------------------------------------------------------------------------------------------------


def rounds(seeds: int) -> Iterator[tuple[str, Round]]:
    """(name, round) of everything that is planned."""

    def fixed(state: Callable[[], ClusterState]) -> Round:
        return lambda: (state().snapshot(NOW), None)

    for case in victims.cases():
        part = 1 if "over 8,000" in case.name else 5  # without counting, the others take minutes at full size
        small = replace(case, nodes=case.nodes // part, busy=case.busy // part, members=max(5, case.members // part))
        yield case.name, fixed(small.state)
    for nodes, gangs, sizes in ((64, True, (8, 8)), (64, True, (8, 4)), (250, True, (8, 8)), (250, False, (8, 4, 4))):
        yield f"{sizes} on {nodes}, gangs: {gangs}", fixed(partial(over_pods_or_gangs, nodes, sizes, gangs=gangs))
    for seed in range(seeds):
        yield f"victims {seed}", partial(_nearly_full, seed)
        yield f"turmoil {seed}", partial(_turmoil, seed)
        for name, make in CLUSTERS.items():
            yield f"{name} {seed}", partial(_of_cluster, make, seed)


def over_pods_or_gangs(nodes: int, sizes: tuple[int, ...], *, gangs: bool) -> ClusterState:
    """Full nodes of 8 GPUs, and a gang of 16 pods of these sizes; running pods of two GPUs, in gangs of four or not."""
    random, out = Random(1), list[Wire]()
    out += [node(f"n{i}", {victims.GPU: 8, "cpu": "64"}) for i in range(nodes)]
    seats = [i for i in range(nodes) for _ in range(4)]
    random.shuffle(seats)
    for number, at in enumerate(seats):
        gang = f"r{number // 4}" if gangs else ""
        if gang and number % 4 == 0:
            out.append(group(gang, 4))
        out.append(pod(f"r-{number}", {victims.GPU: 2}, at=f"n{at}", gang=gang, age=random.randrange(3000)))
    out.append(group("g", 16))
    out += [pod(f"p-{i}", {victims.GPU: sizes[i % len(sizes)]}, gang="g", priority=9, age=3500) for i in range(16)]
    return state_of(out)


def _nearly_full(seed: int) -> tuple[Snapshot, KoordpyConfiguration]:
    random, rich = Random(seed), seed % 3 > 0
    world = victims_at_size.cluster(random, random.choice([60, 120]), rich=rich, npus=seed % 4 == 3)
    return world.snapshot(), victims_at_size.config(random, rich=rich)


def _turmoil(seed: int) -> tuple[Snapshot, KoordpyConfiguration]:
    made = Turmoil(Random(seed))
    return state_of(made.objects).snapshot(NOW), made.config  # type: ignore[arg-type]


def _of_cluster(make: Callable[..., Any], seed: int) -> tuple[Snapshot, KoordpyConfiguration]:
    objects, config = make(seed)
    return state_of(objects).snapshot(NOW), config


# --- the comparison ---------------------------------------------------------------------------------------------------


@dataclass
class Worth:
    """What was measured of a method, over all rounds that use it."""

    rounds: int = 0
    lost: int = 0
    """Rounds in which fewer pods get a place."""
    other: int = 0
    """Rounds with as many places, but other victims or other places."""
    unproven: int = 0
    """Rounds with equal plans of which fewer are proven."""
    seconds: float = 0.0
    """Of the whole search."""
    seconds_without: float = 0.0
    where: list[str] = field(default_factory=list)
    """Names of rounds with another plan."""


def compare(seeds: int, methods: tuple[Method, ...] = METHODS) -> dict[str, Worth]:
    """Method -> what it is worth."""
    known = {one.name: one for one in methods}
    out = {name: Worth() for name in known}
    for name, made in rounds(seeds):
        compare_round(name, made, known, out)
    return out


def compare_round(name: str, made: Round, methods: Mapping[str, Method], worth: Mapping[str, Worth]) -> None:
    """Plans one round with all methods, and again without each of those that it uses."""
    used: set[str] = set()
    with watched(methods, used):
        _planned(made)
    if not used:
        return
    seconds, plan = _planned(made)
    for method in (one for one in methods.values() if one.name in used):
        with without(method):
            seconds_without, other = _planned(made)
        own = worth[method.name]
        own.rounds += 1
        own.seconds += seconds
        own.seconds_without += seconds_without
        was, now = _places(plan), _places(other)
        if len(now) < len(was):
            own.lost += 1
        elif now != was or _victims(plan) != _victims(other):
            own.other += 1
        elif _proven(other) < _proven(plan):
            own.unproven += 1
        else:
            continue
        own.where.append(name)


def _planned(made: Round) -> tuple[float, RoundPlan]:
    """(seconds of a round, its plan)."""
    snapshot, config = made()
    (seconds,), plan = timed(partial(plan_round, snapshot, config), 1)
    return seconds, plan


def _places(plan: RoundPlan) -> dict[str, str]:
    """Pod -> node, of pods that start now or once their victims have ended."""
    starting = {one.pod_key: one.node for one in plan.placements}
    return starting | {one.pod_key: one.node for one in plan.nominations}


def _victims(plan: RoundPlan) -> set[tuple[str, str, str]]:
    return {(one.pod_key, str(one.rule), one.returns_to) for one in plan.evictions}


def _proven(plan: RoundPlan) -> int:
    return sum(one.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) for one in plan.units)


def run(seeds: int = SEEDS) -> Iterator[Row]:
    """Rows of (method, time without it as a multiple, what changes)."""
    for name, own in compare(seeds).items():
        ratio = f"{own.seconds_without / own.seconds:.2f}" if own.seconds else "-"
        note = f"{own.rounds} rounds: {own.lost} lost, {own.other} other, {own.unproven} unproven"
        yield name, ratio, f"{note}  {', '.join(own.where[:4])}"


if __name__ == "__main__":
    for row in run(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS):
        print("{:<46}{:>6}  {}".format(*row), flush=True)
