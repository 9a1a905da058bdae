# SPDX-License-Identifier: Apache-2.0
"""Gangs with random terms and constraints: what is placed is what the plan's own check lets stand, found by trying all.

The check reads objects pod by pod and shares nothing with the filters and the solver, so both readings are compared.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

from koordpy.api.objects import LabelSelector, TopologySpreadConstraint
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.planner.planning_round import plan_round
from koordpy.verify.plan_check import check_plan
from tests.halves import own_half
from tests.planning.node_rules import anti, near, node, pod, states, term
from tests.scenarios.cluster import bound, group, messages

KINDS = [{"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}]
SELECTED: list[dict[str, str]] = [{"app": "a"}, {"app": "b"}, {"tier": "x"}, {}]
KEYS = ["zone", "rack", "kubernetes.io/hostname"]


def random_cluster(seed: int) -> list[Any]:
    """Four nodes, a few pods that run and a gang of two to four of one or two kinds."""
    rng = np.random.default_rng(seed)

    def pick(options: list[Any]) -> Any:
        return options[int(rng.integers(len(options)))]

    def ties(share: float) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if rng.random() < share:
            terms = [term(pick(KEYS), pick(SELECTED)) for _ in range(1 + (rng.random() < 0.2))]
            out["affinity"] = (near if rng.random() < 0.5 else anti)(*terms)
        if rng.random() < share or not out:
            out["topology_spread_constraints"] = [
                TopologySpreadConstraint(
                    max_skew=int(rng.integers(1, 3)),
                    topology_key=pick(KEYS),
                    label_selector=LabelSelector(match_labels=pick(SELECTED)),
                    min_domains=pick([None, None, 2, 3]),
                    node_affinity_policy=pick(["Honor", "Ignore"]),
                    match_label_keys=pick([[], ["tier"]]),
                )
                for _ in range(1 + (rng.random() < 0.2))
            ]
        if rng.random() < 0.2:
            out["node_selector"] = {"zone": pick(["z0", "z1"])}
        return out

    objects: list[Any] = []
    for i in range(4):
        labels = {key: f"{key[0]}{rng.integers(2)}" for key in ("zone", "rack") if rng.random() < 0.9}
        objects.append(node(f"n{i}:{rng.integers(1, 5)}", labels))
    for i in range(int(rng.integers(0, 4))):
        spec = ties(0.3)
        spec.pop("node_selector", None)
        objects.append(pod(f"run-{i}", at=f"n{rng.integers(4)}", labels=pick(KINDS), cpu="100m", **spec))
    count = int(rng.integers(2, 5))
    kinds = [(pick(KINDS), ties(0.8)), (pick(KINDS), ties(0.4) if rng.random() < 0.6 else {})]
    objects.append(group("g", count))
    for i in range(count):
        labels, spec = kinds[int(rng.integers(2)) if i else 0]
        objects.append(pod(f"p-{i}", gang="g", labels=labels, **spec))
    return objects


@pytest.mark.parametrize("seed", own_half(range(250)))
def test_a_gang_is_placed_exactly_where_all_members_may_stand_together(seed: int) -> None:
    snapshot = states(random_cluster(seed)).snapshot(0.0)
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    unit = next(iter(Groups(snapshot).units()))
    keys = [one.key for one in unit.pending]
    ways = product([one.name for one in snapshot.nodes], repeat=len(keys))
    possible = any(not check_plan(unit, dict(zip(keys, way, strict=True)), round_state) for way in ways)
    plan = plan_round(snapshot)
    said = messages(plan)
    assert not any("failed koordpy's own check" in text or "unsupported" in text for text in said.values())
    assert len(bound(plan)) == (len(keys) if possible else 0)
