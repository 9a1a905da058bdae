# SPDX-License-Identifier: Apache-2.0
"""How many random problems the planner and plain enumeration agree on: `python -m tests.planning.agreement [COUNT]`.

Four families of tiny problems, COUNT of each: equal pods (podCountMultiple at every level, pipeline groups with short
ones and bound members, nodes without labels, attraction, several gangs, steps of what nodes hold), mixed kinds, members
that ask something of each other's places, and no gather goal. Each is solved by what the planner would choose and by
the solver, and all goals are compared. Ends with 1 where any differs, and names the seeds.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import replace

from koordpy.placement.counting import applies
from koordpy.placement.goals import violations
from koordpy.placement.problem import Problem, Solution
from koordpy.placement.solver.exact_placement import solve
from koordpy.plan.round_plan import Proof
from koordpy.problems.placement_methods import place_problem
from tests.planning.oracle import Place, best_placement, is_as_good, problem_of
from tests.planning.test_interacting import interacting_problem
from tests.planning.test_solver import random_problem as mixed_problem


def equal_pods(seed: int) -> Problem:
    """A unit of one shape on a tree of up to 3 layers above 2 to 6 nodes, with everything that counts can meet."""
    rng = random.Random(seed)
    layers, nodes = rng.choice([0, 1, 2, 2, 3]), rng.randint(2, 6)
    step = rng.choice([1, 1, 1, 2, 4])
    places = []
    for i in range(nodes):
        path = [f"{'sbr'[k]}{rng.randint(0, 1)}" if rng.random() < 0.92 else "-" for k in range(layers)]
        places.append(Place((*path, f"n{i}"), (step * rng.randint(0, {1: 3, 2: 2, 4: 1}[step]),)))
    names = [p.path[-1] for p in places]
    gangs, pipeline = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 2, 3, 4])
    bound = 0 if pipeline > 1 and rng.random() < 0.7 else rng.choice([0, 0, 0, 1, 2])
    members: list[tuple[int, int, str | None]] = [(rng.randrange(gangs), 0, rng.choice(names)) for _ in range(bound)]
    pods = rng.choice([1, 2, 3, 4, 4, 5, 6, 6] if nodes < 5 else [2, 3, 4, 4])
    members += [(rng.randrange(gangs), 0, None) for _ in range(pods)]
    rng.shuffle(members)
    needs = []
    for gang in range(gangs):
        own = sum(m[0] == gang and m[2] is None for m in members)
        needs.append(rng.choice([own, own, max(0, own - 1), 0]))
    multiples = {}
    if rng.random() < 0.5:
        multiples = {level: rng.choice([2, 2, 3, 4]) for level in range(layers + 2) if rng.random() < 0.4}
    return problem_of(
        places,
        [(1,)],
        members,
        needs,
        attract={name: 1 for name in names if rng.random() < 0.3} if rng.random() < 0.3 else None,
        scores=[{name: rng.choice([0, 0, 1, 3]) for name in names}] if rng.random() < 0.3 else None,
        pipeline=pipeline,
        hard=rng.choice([0, 0, 0, rng.randint(0, layers + 1)]),
        multiples=multiples,
        deterministic_time=100.0,
    )


def without_goal(seed: int) -> Problem:
    """A problem of mixed kinds or of one kind, in which bound siblings and pipeline groups play no part."""
    problem = mixed_problem(seed) if seed % 2 else equal_pods(seed)
    return replace(problem, gather=False, pipeline=1, hard=0, multiples={})


FAMILIES: dict[str, Callable[[int], Problem]] = {
    "equal pods": equal_pods,
    "mixed kinds": mixed_problem,
    "members that interact": interacting_problem,
    "no gather goal": without_goal,
}


def differs(problem: Problem, best: dict[int, int] | None, solution: Solution) -> str:
    """What is wrong with a solution, by the placement that enumeration found; empty where it is as good and proven."""
    if best is None:
        return "" if not solution.nodes and solution.proof is Proof.INFEASIBLE else "there is no placement"
    if not solution.nodes:
        return "there is a placement"
    broken = violations(problem, solution.nodes)
    if broken:
        return broken[0]
    if not is_as_good(problem, solution, best):
        return "enumeration found a better one"
    return "" if solution.proof is Proof.OPTIMAL else f"proof {solution.proof}"


def main(count: int, first: int) -> int:
    """Tries seeds first .. first + count - 1 of each family."""
    wrong = 0
    for name, make in FAMILIES.items():
        agreed = placed = counted = 0
        for seed in range(first, first + count):
            problem = make(seed)
            best = best_placement(problem)
            found = {"planner": place_problem(problem), "solver": solve(problem)}
            faults = {who: text for who, one in found.items() if (text := differs(problem, best, one))}
            agreed += not faults
            placed += best is not None
            counted += applies(problem)
            for who, text in faults.items():
                print(f"{name}, seed {seed}: {who}: {text}", flush=True)
            wrong += bool(faults)
        print(
            f"{name:<24}{agreed:>7} of {count} agree ({placed} can be placed, {counted} by counting alone)", flush=True
        )
    return int(wrong > 0)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    sys.exit(main(*(numbers + [1000, 0][len(numbers) :])))
