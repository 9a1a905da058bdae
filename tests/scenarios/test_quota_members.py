# SPDX-License-Identifier: Apache-2.0
"""Which members of a gang start under quotas: every choice of them tried, on a node with room for all.

Sources: quota-fairness.md 5, gang-network.md 2.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.fairness.quota_runtime import all_quota_amounts, limits
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, bound, group, node, pod
from tests.scenarios.quotas import belongs, quota


@dataclass(frozen=True)
class Member:
    """rank: place in the order of the group, by index, then gang."""

    name: str
    gang: int
    quota: str
    rigid: bool
    cpu: int
    rank: int


def best(members: Sequence[Member], needs: Sequence[int], fits: "Fits") -> set[str]:
    """2.6: all of them; else the lowest core, or the lowest other one, with the most others, of the lowest ranks."""

    def core(chosen: Sequence[Member]) -> list[int]:
        by_gang = ([m.rank for m in chosen if m.gang == g][:need] for g, need in enumerate(needs))
        return sorted(rank for ranks in by_gang for rank in ranks)

    able = [
        chosen
        for count in range(1, len(members) + 1)
        for chosen in combinations(members, count)
        if all(sum(m.gang == g for m in chosen) >= need for g, need in enumerate(needs)) and fits.all(chosen)
    ]
    if not able:
        return set()
    whole = [chosen for chosen in able if len(chosen) == len(members)]
    wanted = core(members)
    if not any(set(wanted) <= {m.rank for m in chosen} for chosen in able):
        wanted = min(core(chosen) for chosen in able)
    of_core = [chosen for chosen in able if set(wanted) <= {m.rank for m in chosen}]
    found = min(whole or of_core, key=lambda chosen: (-len(chosen), [m.rank for m in chosen]))
    return {m.name for m in found}


class Fits:
    """The limits of the round, quota by quota, for those who ask."""

    def __init__(self, world: World, config: KoordpyConfiguration) -> None:
        quotas = world.snapshot().quotas
        self.tree = quotas.tree
        round_state = all_quota_amounts(quotas, config.quota)
        self.most = limits(round_state, quotas, config.quota)
        self.used = {name: round_state[name].used["cpu"] for name in self.tree.quotas}
        self.rigid = {name: round_state[name].rigid_used["cpu"] for name in self.tree.quotas}

    def all(self, chosen: Sequence[Member]) -> bool:
        for name, one in self.tree.quotas.items():
            inside = [m for m in chosen if name in self.tree.path(m.quota)]
            asked = 1000 * sum(m.cpu for m in inside)
            fixed = 1000 * sum(m.cpu for m in inside if m.rigid)
            if asked and self.used[name] + asked > self.most[name]["cpu"]:
                return False
            if fixed and self.rigid[name] + fixed > one.least("cpu"):
                return False
        return True


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_the_members_that_start_are_the_best_that_the_quotas_admit(data: st.DataObject, runtime: bool) -> None:
    draw = data.draw
    world = World().add(node("n1:1000"))
    inner: list[str] = []
    leaves = [""]
    for i in range(draw(st.integers(1, 4))):
        name, most, is_inner = f"q{i}", draw(st.integers(0, 14)), draw(st.integers(0, 4)) < 2
        parent = draw(st.sampled_from(["", *inner]))
        world.add(quota(name, draw(st.integers(0, most)), most, parent=parent, inner=is_inner, forced=True))
        (inner if is_inner else leaves).append(name)
    needs = [draw(st.integers(0, 3)) for _ in range(draw(st.integers(1, 2)))]
    linked = {keys.GANG_GROUPS: '["default/g0", "default/g1"]'} if len(needs) == 2 else {}
    kinds = st.tuples(st.sampled_from(leaves), st.booleans(), st.integers(0, 5))
    drawn = []
    for g, need in enumerate(needs):
        world.add(group(f"g{g}", need, linked))
        count, alike = draw(st.integers(max(1, need), max(1, need, 4 - len(needs) + 1))), draw(st.booleans())
        first = draw(kinds)
        drawn += [(i, g, first if alike else draw(kinds)) for i in range(count)]
    members = [
        Member(f"g{g}-{i}", g, quota_name, rigid, cpu, rank)
        for rank, (i, g, (quota_name, rigid, cpu)) in enumerate(sorted(drawn))
    ]
    for m in members:
        world.add(pod(m.name, gang=f"g{m.gang}", labels=belongs(m.quota, rigid=m.rigid), cpu=str(m.cpu)))
    if draw(st.booleans()):
        world.add(pod("r", labels=belongs(draw(st.sampled_from(leaves))), cpu=str(draw(st.integers(0, 4))), at="n1"))
    config = KoordpyConfiguration(
        preemption=Preemption(enabled=False),
        fairness=Fairness(reclaim="off"),
        quota=Quota(enable_runtime_quota=runtime),
    )
    wanted = best(members, needs, Fits(world, config))
    assert set(bound(plan_round(world.snapshot(), config))) == wanted
