# SPDX-License-Identifier: Apache-2.0
"""Never is not the same as not now: decided as a plain enumeration of the empty cluster decides it, and said first."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Affinity,
    LabelSelector,
    Node,
    NodeSpec,
    OwnerReference,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Taint,
    Toleration,
)
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import PlannerCache, RoundState
from koordpy.infeasibility.never_fits import never_fits
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import Proof, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.pods.gang_refs import GangRef
from tests.scenarios.cluster import TWO_LAYERS, World, gang_pods, group, messages, node, nodes_of, pod, wish
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"
MUST = wish({"blockLayer": "Must"})


def apart(key: str) -> Affinity:
    """A pod of app x keeps off others of it, over a label of nodes."""
    term = PodAffinityTerm(label_selector=LabelSelector(match_labels={"app": "x"}), topology_key=key)
    return Affinity(pod_anti_affinity=PodAffinity(required=[term]))


APART = apart("kubernetes.io/hostname")


def daemon(one: Pod) -> Pod:
    """The same as a pod of a DaemonSet."""
    owner = OwnerReference(kind="DaemonSet", name="agent", controller=True)
    return replace(one, metadata=replace(one.metadata, owner_references=[owner]))


def tainted(one: Node, *keys_of: str, cordoned: bool = False) -> Node:
    """The same with NoSchedule taints of these keys."""
    taints = [Taint(key=key, effect="NoSchedule") for key in keys_of]
    return replace(one, spec=NodeSpec(unschedulable=cordoned, taints=taints))


# -- the enumeration: nothing of it is shared with the planner --------------------------------------------------------


@dataclass
class Machine:
    name: str
    room: dict[str, int]
    block: str
    pool: str
    taints: list[str]
    cordoned: bool


@dataclass
class Member:
    name: str
    gang: str
    asks: dict[str, int]
    pool: str
    tolerates: bool
    app: bool
    """Whether it keeps off nodes with others like it."""
    at: str = ""


@dataclass
class Case:
    machines: list[Machine]
    members: list[Member]
    minimum: dict[str, int]
    must: bool
    multiple: int
    others: list[tuple[str, str, int, bool]] = field(default_factory=list)
    """(name, node, cpu, whether of a DaemonSet)."""
    most: dict[str, int] | None = None
    """max of the quota of all members."""

    def world(self) -> World:
        world = World().add(TWO_LAYERS)
        for one in self.machines:
            amounts = {GPU: str(one.room[GPU])} if one.room[GPU] else {}
            labels = {"spine": "s", "block": one.block, "pool": one.pool}
            made = node(f"{one.name}:{one.room['cpu']}", labels, **amounts)
            world.add(tainted(made, *one.taints, cordoned=one.cordoned))
        notes = wish({"blockLayer": "Must" if self.must else "Prefer"}, multiple={"blockLayer": self.multiple})
        for name, minimum in self.minimum.items():
            linked = {keys.GANG_GROUPS: str([f"default/{n}" for n in self.minimum]).replace("'", '"')}
            world.add(group(name, minimum, {**(notes if self.must or self.multiple > 1 else {}), **linked}))
        if self.most is not None:
            world.add(quota("q", {}, self.most))
        for member in self.members:
            gpus = {GPU: str(member.asks[GPU])} if member.asks[GPU] else {}
            world.add(
                pod(
                    member.name,
                    gang=member.gang,
                    at=member.at,
                    cpu=str(member.asks["cpu"]),
                    requests=gpus,
                    labels={**({"app": "x"} if member.app else {}), **(belongs("q") if self.most is not None else {})},
                    affinity=APART if member.app else None,
                    node_selector={"pool": member.pool} if member.pool else {},
                    tolerations=[Toleration(key="dedicated", operator="Exists")] if member.tolerates else [],
                )
            )
        for name, at, cpu, stays in self.others:
            other = pod(name, at=at, cpu=str(cpu), scheduler="other", priority=9)
            world.add(daemon(other) if stays else other)
        return world

    def fits(self) -> bool:
        """Whether some choice of nodes for the pending members is a plan on the empty cluster."""
        waiting = [one for one in self.members if not one.at]
        return any(self._is_plan(waiting, choice) for choice in product([None, *self.machines], repeat=len(waiting)))

    def room_of_all(self) -> int:
        """Members that the empty cluster takes at once, whatever is needed and whatever quotas allow."""
        free = Case(self.machines, self.members, dict.fromkeys(self.minimum, 0), self.must, self.multiple, self.others)
        waiting = [one for one in self.members if not one.at]
        return max(
            len(waiting) - choice.count(None)
            for choice in product([None, *self.machines], repeat=len(waiting))
            if choice.count(None) == len(waiting) or free._is_plan(waiting, choice)
        )

    def has(self, resource: str, *, block: bool) -> int:
        """What matching nodes of the cluster, or of the block that has most, leave to the pending members."""
        standing = [one for one in self.members if one.at]
        asking = [one for one in self.members if not one.at and one.asks[resource]]
        sums = Counter[str]()
        for at in self.machines:
            if any(self._lets_in(one, at) for one in asking):
                stay = sum(
                    cpu for _, name, cpu, stays in self.others if stays and name == at.name and resource == "cpu"
                )
                own = sum(one.asks[resource] for one in standing if one.at == at.name)
                sums[at.block if block else ""] += max(0, at.room[resource] - stay - own)
        held = {at.block for at in self.machines for one in standing if one.at == at.name} if block else set[str]()
        return max((amount for name, amount in sums.items() if not held or name in held), default=0)

    def least(self, resource: str) -> int:
        """What the need of all gangs asks at least."""
        waiting = [one for one in self.members if not one.at]
        if len(waiting) < len(self.members) or not any(self.minimum.values()):
            return min(one.asks[resource] for one in waiting)
        asks = {name: sorted(one.asks[resource] for one in waiting if one.gang == name) for name in self.minimum}
        return sum(sum(asks[name][:minimum]) for name, minimum in self.minimum.items())

    def _is_plan(self, waiting: list[Member], choice: tuple[Machine | None, ...]) -> bool:
        placed = [(one, at) for one, at in zip(waiting, choice, strict=True) if at is not None]
        if not placed:
            return False
        by_name = {one.name: one for one in self.machines}
        standing = [(one, by_name[one.at]) for one in self.members if one.at]
        if any(not self._lets_in(one, at) for one, at in placed):
            return False
        for at in {at.name: at for _, at in placed}.values():
            here = [one for one, there in [*standing, *placed] if there is at]
            stay = sum(cpu for _, name, cpu, stays in self.others if stays and name == at.name)
            if sum(one.asks["cpu"] for one in here) + stay > at.room["cpu"]:
                return False
            if sum(one.asks[GPU] for one in here) > at.room[GPU]:
                return False
            if sum(one.app for one in here) > 1:
                return False
        blocks = Counter(at.block for _, at in [*standing, *placed])
        if self.must and len(blocks) > 1:
            return False
        if self.multiple > 1 and any(count % self.multiple for count in blocks.values()):
            return False
        if self.most is not None:
            total = Counter[str]()
            for one, _ in [*standing, *placed]:
                total.update(one.asks)
            if any(total[resource] > most for resource, most in self.most.items()):
                return False
        started = bool(standing)
        for name, minimum in self.minimum.items():
            need = 0 if started else minimum
            if sum(one.gang == name for one, _ in placed) < need:
                return False
        return True

    def _lets_in(self, one: Member, at: Machine) -> bool:
        lasting = [key for key in at.taints if not key.startswith("node.kubernetes.io/")]
        return (not one.pool or one.pool == at.pool) and (one.tolerates or not lasting)

    @property
    def met(self) -> bool:
        """Whether every gang with a pending member has its minimum: the rest waits for room."""
        bound, waits = Counter(o.gang for o in self.members if o.at), {o.gang for o in self.members if not o.at}
        return bool(self.minimum) and all(bound[name] >= max(1, self.minimum[name]) for name in waits)


def cases(seed: int, number: int) -> Iterator[Case]:
    dice = random.Random(seed)
    for _ in range(number):
        machines = [
            Machine(
                f"n{i}",
                {"cpu": dice.randint(1, 5), GPU: dice.choice([0, 0, 1, 2])},
                f"b{dice.randint(0, 1)}",
                dice.choice(["a", "a", "b"]),
                dice.choices([[], ["dedicated"], ["node.kubernetes.io/not-ready"]], [6, 1, 1])[0],
                dice.random() < 0.1,
            )
            for i in range(dice.randint(1, 4))
        ]
        gangs = dice.choice([0, 1, 1, 1, 2])
        alike, app = dice.random() < 0.6, dice.random() < 0.25
        asks = {"cpu": dice.randint(1, 4), GPU: dice.choice([0, 0, 1, 2])}
        pool, tolerates = dice.choices(["", "a", "c"], [6, 2, 1])[0], dice.random() < 0.5
        members, minimum = [], dict[str, int]()
        for g in range(max(1, gangs)):
            count = dice.randint(1, 3) if gangs else 1
            if gangs:
                minimum[f"g{g}"] = dice.randint(0, count)
            for i in range(count):
                own = asks if alike else {"cpu": dice.randint(1, 4), GPU: dice.choice([0, 1])}
                members.append(Member(f"p{g}-{i}", f"g{g}" if gangs else "", own, pool, tolerates, app))
        case = Case(
            machines,
            members,
            minimum,
            must=bool(gangs) and dice.random() < 0.4,
            multiple=dice.choice([1, 1, 1, 2]) if gangs else 1,
            others=[(f"o{i}", dice.choice(machines).name, dice.randint(1, 3), dice.random() < 0.4) for i in range(2)],
            most={"cpu": dice.randint(2, 9)} if dice.random() < 0.25 else None,
        )
        if gangs and dice.random() < 0.3:
            at = dice.choice(machines)
            if members[0].asks["cpu"] <= at.room["cpu"] and members[0].asks[GPU] <= at.room[GPU]:
                members[0].at = at.name
        yield case


def replace_at(one: Member, at: str) -> Member:
    """The same on a node."""
    return Member(one.name, one.gang, one.asks, one.pool, one.tolerates, one.app, at)


def verdicts(plan: RoundPlan) -> dict[str, str]:
    """Unit -> why it never fits, of the units that wait and that no gate holds."""
    waits = {one.unit: one.never for one in plan.pending if not one.gated}
    assert waits == {one.unit: one.never for one in plan.units if one.unit in waits}
    return waits


@pytest.mark.parametrize("seed", range(8))
def test_never_is_what_an_enumeration_of_the_empty_cluster_says(seed: int) -> None:
    seen = Counter[bool]()
    for case in cases(seed, 40):
        plan = case.world().plan()
        at = {one.pod_key.partition("/")[2]: one.node for one in plan.placements}
        case.members = [replace_at(one, at.get(one.name, one.at)) for one in case.members]
        for why in verdicts(plan).values():
            never = not case.met and not case.fits()
            assert bool(why) == never, f"{why}: {case}"
            seen[never] += 1
    assert min(seen[True], seen[False]) > 3


def test_the_numbers_of_never_are_those_of_an_enumeration() -> None:
    seen = Counter[str]()
    for case in cases(99, 900):
        plan = case.world().plan()
        at = {one.pod_key.partition("/")[2]: one.node for one in plan.placements}
        case.members = [replace_at(one, at.get(one.name, one.at)) for one in case.members]
        for why in verdicts(plan).values():
            if found := re.match(r"(the largest blockLayer|blockLayer \S+|the cluster) has room for (\d+) ", why):
                if "podCountMultiple" not in why:
                    assert int(found[2]) == case.room_of_all(), f"{why}: {case}"
                    seen["room"] += 1
            elif found := re.match(r"(.*lockLayer.*|the cluster) has (\d+) (?:more )?(\S+), (\d+) (?:is|are) ", why):
                block = found[1] != "the cluster"
                assert int(found[2]) == case.has(found[3], block=block), f"{why}: {case}"
                assert int(found[4]) == case.least(found[3]), f"{why}: {case}"
                seen["sum in a block" if block else "sum"] += 1
    assert min(seen["room"], seen["sum"], seen["sum in a block"]) > 3, seen


# -- what is said -----------------------------------------------------------------------------------------------------

IN_B0 = node("a:8", {"spine": "s", "block": "b0"})

WHY: dict[str, tuple[World, str]] = {
    "quota": (
        World()
        .add(node("n:9", **{GPU: "8"}), quota("team-a", {}, {GPU: 4}), group("g", 5))
        .add(gang_pods("g", 5, labels=belongs("team-a"), requests={GPU: "1"})),
        f"quota team-a allows at most 4 {GPU}, 5 are required",
    ),
    "the lowest quota, the naturally first resource": (
        World()
        .add(node("n:9", memory="64Gi"), quota("org", {}, {"cpu": 2, "memory": "1Gi"}, inner=True))
        .add(quota("team", {}, {"cpu": 2, "memory": "1Gi"}, parent="org"))
        .add(pod("p-0", cpu="3", requests={"memory": "2Gi"}, labels=belongs("team"))),
        "quota team allows at most 2 cpu, 3 are required",
    ),
    "bound members count in their quota": (
        World()
        .add(node("n:9"), quota("team", {}, 2), group("g", 3))
        .add(pod("p-9", gang="g", at="n", cpu="2", labels=belongs("team")))
        .add(gang_pods("g", 2, labels=belongs("team"))),
        "quota team allows at most 2 cpu, 3 are required",
    ),
    "a label that no node has": (
        World().add(node("n:9"), group("g", 2), gang_pods("g", 2, node_selector={"pool": "x"})),
        "no node matches its node selector, affinity and tolerations",
    ),
    "a taint that stays": (
        World().add(tainted(node("n:9"), "dedicated"), pod("p-0")),
        "no node matches its node selector, affinity and tolerations",
    ),
    "a master without a node": (
        World().add(node("n:9"), group("g", 3), pod("m", gang="g", node_selector={"pool": "x"})).add(gang_pods("g", 2)),
        "no node matches its node selector, affinity and tolerations",
    ),
    "the largest node": (
        World().add(node("n:9", **{GPU: "8"}), node("m:9", **{GPU: "4"}), pod("p-0", requests={GPU: "9"})),
        f"the largest node has 8 {GPU}, 9 are required",
    ),
    "only nodes that match": (
        World().add(node("n:9"), node("m:2", {"pool": "x"}), pod("p-0", cpu="3", node_selector={"pool": "x"})),
        "the largest node has 2 cpu, 3 are required",
    ),
    "what DaemonSets hold is not there": (
        World().add(node("n:8"), daemon(pod("agent", at="n")), pod("p-0", cpu="8")),
        "the largest node has 7 cpu, 8 are required",
    ),
    "a resource that no node has": (
        World().add(node("n:8"), pod("p-0", requests={"example.com/fpga": "1"})),
        "the largest node has 0 example.com/fpga, 1 is required",
    ),
    "the largest domain": (
        World().add(TWO_LAYERS, nodes_of("s{b0: a c; b1: d}"), group("g", 3, MUST), gang_pods("g", 3)),
        "the largest blockLayer has room for 2 members, 3 are required",
    ),
    "the domain of bound members": (
        World()
        .add(TWO_LAYERS, nodes_of("s{b0: a c; b1: d e f}"), group("g", 3, MUST))
        .add(pod("p-8", gang="g", at="a"), pod("p-9", gang="g", at="c"), pod("p-0", gang="g")),
        "blockLayer s/b0 has room for 0 more members, 1 is required",
    ),
    "the cluster": (
        World().add(node("n:2"), node("m:2"), group("g", 5), gang_pods("g", 5)),
        "the cluster has room for 4 members, 5 are required",
    ),
    "members that keep off each other": (
        World()
        .add(node("n:9"), node("m:9"), group("g", 3))
        .add(gang_pods("g", 3, labels={"app": "x"}, affinity=APART)),
        "the cluster has room for 2 members, 3 are required",
    ),
    "no node has all of it": (
        World().add(node("n:9", memory="1Gi"), node("m:1"), pod("p-0", cpu="2", requests={"memory": "2Gi"})),
        "no placement on the empty cluster",
    ),
    "kinds that fit one by one": (
        World()
        .add(node("n:4"), group("g", 3))
        .add(pod("p-0", gang="g", cpu="3"), pod("p-1", gang="g"), pod("p-2", gang="g")),
        "the cluster has 4 cpu, 5 are required",
    ),
    "several kinds in one domain": (
        World()
        .add(TWO_LAYERS, IN_B0, node("c:8", {"spine": "s", "block": "b0"}), node("d:8", {"spine": "s", "block": "b1"}))
        .add(group("g", 4, MUST), [pod(f"p-{i}", gang="g", cpu=cpu) for i, cpu in enumerate("8333")]),
        "the largest blockLayer has 16 cpu, 17 are required",
    ),
    "several kinds beside a bound member": (
        World()
        .add(TWO_LAYERS, IN_B0, node("c:8", {"spine": "s", "block": "b1"}), node("d:8", {"spine": "s", "block": "b1"}))
        .add(group("g", 3, {**MUST, keys.GANG_MATCH_POLICY: "waiting-and-running"}))
        .add(pod("p-9", gang="g", at="a", cpu="2"), pod("p-0", gang="g", cpu="4"), pod("p-1", gang="g", cpu="3")),
        "blockLayer s/b0 has 6 more cpu, 7 are required",
    ),
    "no number of members is a multiple": (
        World()
        .add(TWO_LAYERS, nodes_of("s{b0: a c e f}"))
        .add(group("g", 4, wish({"blockLayer": "Prefer"}, multiple={"blockLayer": 3})))
        .add(gang_pods("g", 4)),
        "4 members are not a multiple of 3 (podCountMultiple blockLayer)",
    ),
    "a multiple that no domain has room for": (
        World()
        .add(TWO_LAYERS, nodes_of("s{b0: a c; b1: d}"))
        .add(group("g", 3, wish({"blockLayer": "Prefer"}, multiple={"blockLayer": 3})))
        .add(gang_pods("g", 3)),
        "the largest blockLayer has room for 2 members, podCountMultiple is 3",
    ),
    "members that keep apart over a label": (
        World()
        .add(TWO_LAYERS, nodes_of("s{b0: a c; b1: d}"), group("g", 3))
        .add(gang_pods("g", 3, labels={"app": "x"}, affinity=apart("block"))),
        "anti-affinity over block: 2 domains, 3 are required",
    ),
    "members that keep apart and must be together": (
        World()
        .add(TWO_LAYERS, nodes_of("s{b0: a c; b1: d e}"), group("g", 2, MUST))
        .add(gang_pods("g", 2, labels={"app": "x"}, affinity=apart("block"))),
        "no placement on the empty cluster; anti-affinity over block",
    ),
}


@pytest.mark.parametrize(("world", "why"), WHY.values(), ids=WHY)
def test_the_number_that_decides_is_said_first(world: World, why: str) -> None:
    plan = world.plan()
    assert not plan.placements
    [unit] = plan.units
    assert (unit.never, unit.proof) == (why, Proof.INFEASIBLE)
    text = messages(plan)["p-0"]
    if plan.gangs:
        first = f"gang default/g: never fits: {why}."
        assert text.startswith(f"{first} 0/" if len(first) <= 120 else f"{first[:117]}... 0/")
        text = text.partition(" no new node would help")[0]
        assert text.rpartition(" gang default/g: ")[2].startswith("needed ")
        assert plan.gangs[0].proof is Proof.INFEASIBLE and plan.gangs[0].never == why
    else:
        assert text.startswith("0/") and text.endswith(f". never fits: {why}.")
    # only a larger node may help; it does not help against a quota, nor against a wrong number of members
    reason = (
        Reason.QUOTA_EXCEEDED
        if why.startswith("quota ")
        else Reason.NODES_CANNOT_HELP
        if "not a multiple" in why
        else Reason.UNSCHEDULABLE
    )
    offline = Reason.NEVER_FITS if reason is Reason.UNSCHEDULABLE else reason
    assert {(one.reason, one.offline_reason) for one in plan.pending} == {(reason, offline)}


NOT_NOW: dict[str, World] = {
    "a busy node": World().add(node("n:2"), pod("r", at="n", cpu="2"), pod("p-0")),
    "a cordoned node": World().add(tainted(node("n:2"), cordoned=True), pod("p-0")),
    "a node that is not ready": World().add(tainted(node("n:2"), "node.kubernetes.io/not-ready"), pod("p-0")),
    "pods that keep off": World()
    .add(node("n:2"), pod("r", at="n", labels={"app": "x"}))
    .add(pod("p-0", labels={"app": "x"}, affinity=APART)),
    "a runtime below max": World()
    .add(node("n:4"), quota("q", 0, 4), pod("r", at="n", cpu="3", labels=belongs("q")))
    .add(pod("p-0", cpu="2", labels=belongs("q"))),
    "members above a minimum": World()
    .add(TWO_LAYERS, nodes_of("s{b0: a}"), group("g", 1, MUST))
    .add(pod("p-9", gang="g", at="a"), pod("p-0", gang="g")),
}


@pytest.mark.parametrize("world", NOT_NOW.values(), ids=NOT_NOW)
def test_what_may_change_by_pods_that_end_is_not_never(world: World) -> None:
    plan = world.plan()
    assert [one.pod_key for one in plan.pending] == ["default/p-0"]
    assert "never fits" not in messages(plan)["p-0"] and not plan.pending[0].never


def test_answers_are_kept_while_nodes_quotas_and_tree_stay_and_no_longer() -> None:
    cache = PlannerCache()
    world = World().add(node("n:2"), group("g", 3), gang_pods("g", 3))

    def why() -> str:
        round_state = RoundState(Draft(world.snapshot()), KoordpyConfiguration(), cache)
        unit = round_state.groups.unit(GangRef("default", "g"))
        return never_fits(unit, round_state)

    assert why() == why() == "the cluster has room for 2 members, 3 are required"
    world.add(pod("other", at="n"))
    assert why() == "the cluster has room for 2 members, 3 are required"
    world.add(daemon(pod("agent", at="n")))
    assert why() == "the cluster has room for 1 member, 3 are required"
    world.add(node("m:9"))
    assert why() == ""


def test_an_answer_of_an_earlier_round_is_no_other_units() -> None:
    cache = PlannerCache()
    world = World().add(node("n:2", **{GPU: "1"}), pod("p-0", requests={GPU: "2"}), pod("p-1", cpu="3"))
    for _ in range(2):
        plan = plan_round(world.snapshot(), planner_cache=cache)
        assert {one.pod_key: one.never for one in plan.pending} == {
            "default/p-0": f"the largest node has 1 {GPU}, 2 are required",
            "default/p-1": "the largest node has 2 cpu, 3 are required",
        }
