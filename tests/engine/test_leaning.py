# SPDX-License-Identifier: Apache-2.0
"""Which placements of a round must wait until the victims of others in the same round have gone."""

from koordpy.engine.staleness import units_waiting_for_victims
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, bound, gang_pods, group
from tests.scenarios.test_promised_room import GPU, gpus, runs, waits


def test_who_was_placed_before_somebody_evicts_on_his_node_is_bound_at_once() -> None:
    cluster = [gpus("n", 2), runs("low", "n")]
    snapshot = World().add(*cluster, waits("a", priority=5), waits("b", priority=5, created=3001)).snapshot()
    plan = plan_round(snapshot)
    assert set(bound(plan)) == {"a", "b"}
    assert [eviction.unit for eviction in plan.evictions] == ["default/b"]
    assert units_waiting_for_victims(plan, snapshot) == frozenset()


def test_who_takes_what_victims_leave_over_waits_for_their_end() -> None:
    gang = gang_pods("g", 2, prefix="g", at="n", cpu="0", requests={GPU: "1"})
    cluster = [gpus("n", 2), group("g", 2), gang]
    snapshot = World().add(*cluster, waits("vip", priority=5), waits("late", created=3001)).snapshot()
    plan = plan_round(snapshot)
    assert set(bound(plan)) == {"vip", "late"}
    assert units_waiting_for_victims(plan, snapshot) == {"default/late"}
