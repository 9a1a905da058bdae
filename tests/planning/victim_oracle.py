# SPDX-License-Identifier: Apache-2.0
"""Ground truth for the choice of victims: every subset of the units is tried, placed by the planner itself."""

from collections.abc import Iterator
from random import Random

from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.gpu.gpu_allocation import allocate
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_nodes import gpu_nodes
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.placement.goals import Goals
from koordpy.placement.problem import only_ranks
from koordpy.preemption.rules.victim_rules import BY_NAME
from koordpy.preemption.search.candidates import candidates
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.search.preemptor_sets import PreemptorSet, preemptor_sets
from koordpy.preemption.search.reachable_nodes import ReachableNodes
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_choice import cost_levels, keeps, late_levels
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit
from tests.scenarios.cluster import World, group, hierarchy, node, pod, wish

GPU = "nvidia.com/gpu"
TWO_LAYERS = hierarchy(("blockLayer", "block"), ("spineLayer", "spine"))


def least_harmful(snapshot: Snapshot) -> list[str] | None:
    """Names of the pods that priority preemption evicts for the one pending unit; None where it fits without."""
    groups, draft = Groups(snapshot), Draft(snapshot)
    round_state = RoundState(draft, KoordpyConfiguration())
    search = PreemptionSearch(round_state)
    [unit] = groups.units()
    problem = build(unit, round_state)
    if place_unit(unit, problem, round_state, Question.TRIAL).placed:
        return None
    for ranks in preemptor_sets(unit, problem, round_state):
        asked = PreemptorSet(unit, only_ranks(problem, ranks), tuple(unit.members[rank] for rank in ranks))
        rule_inputs = search.rule_inputs(asked)
        mask = BY_NAME[RuleName.PRIORITY].units(rule_inputs, search.free_units(asked))
        if not mask.any():
            continue
        everything = ReachableNodes(asked.problem, {}, frozenset())
        running = candidates(
            asked,
            asked.problem,
            rules={RuleName.PRIORITY: mask},
            rule_inputs=rule_inputs,
            open_to=everything,
        )
        choices = running.choices
        best: tuple[tuple[object, ...], list[str]] | None = None
        for taken in _subsets(len(choices.options)):
            if not keeps(choices, taken):
                continue
            early = cost_levels(choices, taken)
            if best is not None and early > best[0][: len(early)]:
                continue
            pods = [p for i in running.of(taken) for p in search.pool.units[i].pods]
            if len({p.key for p in pods}) < len(pods):
                continue
            mark = draft.mark()
            for one in pods:
                draft.evict(one)
            room = only_ranks(build(unit, round_state), set(ranks))
            found = place_unit(unit, room, round_state, Question.TRIAL)
            short = len(found.nodes) < len(ranks)
            if not short and any(pod.ask(GPUS) is not None for pod in asked.pods):
                seats = [(unit.members[rank], node) for rank, node in found.nodes.items()]
                short = bool(allocate(seats, gpu_nodes(round_state.inputs)).faults)
            draft.undo(mark)
            if short:
                continue
            goals: tuple[object, ...] = ()
            if room.gather:
                worth = Goals(room)
                goals = tuple(g(found.nodes) for g in (worth.layers, worth.attraction, worth.pipeline, worth.domains))
            cost = (*early, goals, *late_levels(choices, taken))
            if best is None or cost < best[0]:
                best = cost, sorted(p.name for p in pods)
        if best is not None:
            return best[1]
    return []


def _subsets(number: int) -> Iterator[list[int]]:
    for bits in range(1 << number):
        yield [o for o in range(number) if bits >> o & 1]


def tiny_world(random: Random) -> World:
    """A few nodes full of running pods and gangs, and one pod or gang that waits."""
    world, free = World(), dict[str, int]()
    layers = random.random() < 0.5
    if layers:
        world.add(TWO_LAYERS)
    for i in range(random.randint(1, 5)):
        free[f"n{i}"] = random.randint(1, 6)
        labels = {"spine": f"s{random.randint(0, 1)}", "block": f"b{random.randint(0, 2)}"}
        world.add(node(f"n{i}", labels, cpu="64", **{GPU: str(free[f"n{i}"])}))
    gangs = [f"g{i}" for i in range(random.randint(0, 2))]
    world.add(*(group(name, random.randint(0, 4)) for name in gangs))
    for i in range(random.randint(1, 7)):
        at, amount = random.choice(list(free)), random.randint(1, 3)
        if amount > free[at]:
            continue
        free[at] -= amount
        world.add(
            pod(
                f"v{i}",
                at=at,
                gang=random.choice(["", "", *gangs]),
                cpu="0",
                requests={GPU: str(amount)},
                priority=random.choice([0, 0, 1, 2, 5, 9]),
                created=random.randint(0, 50),
                labels={"app": random.choice("ab")} if random.random() < 0.4 else {},
            )
        )
    if random.random() < 0.4:
        world.add(
            PodDisruptionBudget(
                metadata=ObjectMeta(name="pdb", namespace="default"),
                spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "a"})),
                status=PodDisruptionBudgetStatus(disruptions_allowed=random.randint(0, 2)),
            )
        )
    _waiting(world, random, layers=layers)
    return world


def _waiting(world: World, random: Random, *, layers: bool) -> None:
    priority = random.choice([1, 5, 9])
    count = random.randint(1, 4)
    if random.random() < 0.3:
        amount = str(random.randint(1, 4))
        world.add(pod("p", cpu="0", requests={GPU: amount}, priority=priority, created=100))
        return
    notes = None
    if layers and random.random() < 0.7:
        layer, strategy = random.choice(["blockLayer", "spineLayer"]), random.choice(["Prefer", "Must"])
        notes = wish({layer: strategy}, pp=random.choice([1, 1, 2]))
    world.add(group("me", random.randint(1, count), notes))
    mixed, amount = random.random() < 0.25, str(random.randint(1, 3))
    for i in range(count):
        asks = {GPU: str(random.randint(1, 3)) if mixed else amount}
        world.add(pod(f"m-{i}", gang="me", cpu="0", requests=asks, priority=priority, created=100))
