# SPDX-License-Identifier: Apache-2.0
"""Random lives of units that take room from one another, in virtual time: quotas in trees, gangs, gathers, budgets,
spreads and affinities, victims that end one at a time, in any order, and are made again.

Users, kubelets and controllers are played here; the scheduler, its planner, its client and the API server are the real
ones. With answers of the planner that come late, rounds of small pods that come meanwhile are planned beside others.
Once nobody else changes anything more, no unit has others evicted twice without starting between, whoever others went
for starts, everything comes to rest, and then nobody waits whom a planner that looks at all of it would start.

`python -m tests.engine.contention --seeds 0-2000` runs many; one that fails is told by its seed, which repeats it, and
`--least` leaves out of it what it goes wrong without.
"""

import argparse
import asyncio
import gc
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from msgspec import structs, to_builtins

from koordpy.api.objects import Node, Pod
from koordpy.engine.dispatch import RoundInput
from koordpy.engine.evictions.evictor import EvictionPlan
from koordpy.engine.queue_entry import State
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.engine.live import Live
from tests.engine.manifests import BUDGETS, GROUPS, QUOTAS, TOPOLOGIES, Manifest, nominated_node
from tests.engine.replica import NAMED_GANGS, SETTINGS
from tests.engine.tuning import NO_LEASE
from tests.engine.virtual import EPOCH_SECONDS, VirtualLoop, one_after_the_other, run, virtual_server
from tests.planning.minimality import proven
from tests.scenarios.cluster import World, pod
from tests.scenarios.quotas import belongs
from tests.scenarios.turmoil import Turmoil

PLURALS = {
    "Node": "nodes", "Pod": "pods", "PodGroup": GROUPS, "ElasticQuota": QUOTAS, "PodDisruptionBudget": BUDGETS,
    "ClusterNetworkTopology": TOPOLOGIES,
}  # fmt: skip
NAMESPACES = ("default", "east", "west")
CLASSES = {1: "low", 5: "middle", 9: "high"}
ENDLESS = 8
"""A pod that is evicted so often is evicted without end."""
LATEST_SECONDS = 900.0
"""By then all is at rest."""
AGAIN_SECONDS = 310.0
"""After this whoever waits was tried again, whatever happened."""
BUSY = (State.ACTIVE, State.BACKOFF, State.IN_FLIGHT)


@dataclass
class Began:
    """A plan with victims that is carried out."""

    at: float
    """The moment that it was made on: what changed while it was made disturbs it, too."""
    plan: EvictionPlan
    priority: int

    @property
    def pods(self) -> frozenset[str]:
        """uids of those that go for it."""
        return frozenset(one.uid for one in self.plan.evictions)

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(one.node for one in self.plan.nominations)


@dataclass
class Story:
    """What there is, and when it comes."""

    seed: int
    without: frozenset[str] = frozenset()
    late: float = 0.0
    """Seconds that the planner's answers take at the most."""
    tenants: bool = False
    """Whether plain pods are of several namespaces, many come late, and rounds are short of time."""

    def __post_init__(self) -> None:
        self.turmoil = Turmoil(random.Random(self.seed))
        if self.late:
            self.turmoil.objects += self._small(random.Random(f"small {self.seed}"))
        dice = random.Random(f"story {self.seed}")
        self.slow = dice.choice((0.0, 0.3, 1.0, 1.0))
        """How often a pod takes long to end."""
        self.apart = dice.random() < 0.4
        """Whether pods wait one after the other; else all come at once."""
        self.leaning = {app: self._lean(app, dice) for app in "abc"} if dice.random() < 0.5 else {}
        self.remade = dice.random() < 0.9

    def _small(self, dice: random.Random) -> list[Pod]:
        """Pods that often fit, and come when others are planned."""
        leaves = self.turmoil.leaves
        return [
            pod(f"l{i}", cpu="1", labels={**belongs(dice.choice(leaves)), "app": dice.choice("abc")})
            for i in range(dice.randint(6, 20) if self.tenants else dice.randint(3, 9))
        ]

    def _lean(self, app: str, dice: random.Random) -> Manifest:
        """What pods of an app say of each other."""
        selector, zone = {"matchLabels": {"app": app}}, dice.choice(("spine", "kubernetes.io/hostname"))
        term = [{"labelSelector": selector, "topologyKey": zone}]
        return dice.choice(
            (
                {},
                {
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": zone,
                            "whenUnsatisfiable": "DoNotSchedule",
                            "labelSelector": selector,
                        }
                    ]
                },
                {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}},
                {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}},
            )
        )

    @property
    def dull(self) -> bool:
        """Whether nobody would be evicted, were all there at once."""
        return not plan_round(World().add(*self.turmoil.objects).snapshot(), self.turmoil.config).evictions

    def objects(self) -> list[tuple[str, Manifest]]:
        """(kind, manifest) in the order in which they are made."""
        out = []
        for one in self.turmoil.objects:
            name = one.metadata.name  # type: ignore[attr-defined]
            if name not in self.without and name.partition("-")[0] not in self.without:
                made = to_builtins(one)
                made["metadata"].pop("uid", None)
                if isinstance(one, Pod):
                    made["metadata"]["namespace"] = self.namespace(name)
                if isinstance(one, Pod):
                    made = self._pod(made)
                out.append((type(one).__name__, made))
        return out

    def _pod(self, made: Manifest) -> Manifest:
        name, spec = made["metadata"]["name"], made["spec"]
        for container in spec["containers"]:
            asks = container["resources"]
            asks["limits"] = {key: amount for key, amount in asks["requests"].items() if key != "cpu"}
        if (value := spec.pop("priority", 0)) in CLASSES:
            spec["priorityClassName"] = CLASSES[value]
        dice = random.Random(f"{self.seed} {name.partition('-')[0]}")
        if "leaning" not in self.without and dice.random() < 0.6:
            spec |= self.leaning.get(made["metadata"]["labels"].get("app", ""), {})
        return made

    def namespace(self, name: str) -> str:
        """That of a pod; members of gangs are where their PodGroups are."""
        dice = random.Random(f"{self.seed} {name} is of")
        return dice.choice(NAMESPACES) if self.tenants and name[0] in "lp" else "default"

    def comes(self, name: str) -> float:
        """Seconds after which a pod that waits is there."""
        dice = random.Random(f"{self.seed} {name.partition('-')[0]} comes")
        if self.tenants and dice.random() < 0.5:
            return dice.choice((0.4, 0.8, 1.5, 3.0)) + 0.1 * dice.random()
        return dice.random() * 12.0 if self.apart or name.startswith("l") else 0.0

    def lasts(self, uid: str) -> float:
        """Seconds that a pod takes to end."""
        dice = random.Random(f"{self.seed} {uid} lasts")
        return dice.choice((0.5, 2.0, 5.0, 12.0)) * (0.5 + dice.random()) if dice.random() < self.slow else 0.05


@dataclass
class Contention:
    """One history."""

    cluster: Live
    loop: VirtualLoop
    story: Story
    trace: ClassVar[bool] = False
    faults: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    began: list[Began] = field(default_factory=list)
    evictions: Counter[str] = field(default_factory=Counter)
    _changed_at: float = 0.0
    """When anybody but the scheduler and those who make pods again last did anything."""
    _moment: float = 0.0
    """On which the plan was made that is handed on."""
    _placed: dict[str, str] = field(default_factory=dict)
    """Where plans have seen room for each pod last."""
    _bound_at: dict[str, float] = field(default_factory=dict)
    _ended_at: dict[str, float] = field(default_factory=dict)
    """Pod name -> when one of that name was told to end."""

    # -- what is played -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        store = self.cluster.server.store
        for value, name in CLASSES.items():
            store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
        for name in NAMESPACES[1:] if self.story.tenants else ():
            store.create("namespaces", {"metadata": {"name": name}})
        if self.trace:
            store.listeners.append(self._print)
        store.listeners.append(self._changed)
        self.manifests: dict[str, Manifest] = {}
        later = []
        for kind, made in self.story.objects():
            name = made["metadata"]["name"]
            if kind == "Pod":
                self.manifests[name] = {**made, "spec": {k: v for k, v in made["spec"].items() if k != "nodeName"}}
                if not made["spec"].get("nodeName") and made["status"].get("phase", "") not in ("Succeeded", "Failed"):
                    later.append((self.story.comes(name), name))
                    continue
            self._make(kind, made)
        self.later = sorted(later)
        self._quoted = bool(store.list(QUOTAS))

    def _make(self, kind: str, made: Manifest) -> None:
        store, meta = self.cluster.server.store, made["metadata"]
        created = {**made, "metadata": {k: v for k, v in meta.items() if k != "deletionTimestamp"}}
        store.create(PLURALS[kind], created)
        if kind == "Pod" and (phase := made.get("status", {}).get("phase")) in ("Succeeded", "Failed", "Running"):
            self._phase(meta["name"], phase)
        if "deletionTimestamp" in meta:
            store.delete(PLURALS[kind], meta["name"], namespace=meta.get("namespace", "default"))

    def _phase(self, name: str, phase: str) -> None:
        def change(old: Manifest) -> Manifest:
            ready = {"type": "Ready", "status": "True"}
            kept = [c for c in old["status"].get("conditions", []) if c["type"] != "Ready"]
            return {**old, "status": {**old["status"], "phase": phase, "conditions": [*kept, ready]}}

        namespace = self.story.namespace(name)
        self.cluster.server.store.update("pods", name, change, namespace=namespace, status=True)

    async def others(self) -> None:
        """Users make pods; kubelets start and end them; controllers make again what was evicted."""
        due: dict[str, float] = {}
        while True:
            now = self.loop.time()
            while self.later and self.later[0][0] <= now:
                self._changed_at = now
                self._make("Pod", self.manifests[self.later.pop(0)[1]])
            for name, obj in self.cluster.pods().items():
                uid = obj["metadata"]["uid"]
                if obj["metadata"].get("deletionTimestamp"):
                    if now >= due.setdefault(uid, now + self.story.lasts(uid)):
                        self.cluster.server.store.remove("pods", name, self.story.namespace(name))
                        if self.story.remade:
                            self.cluster.create(self._again(name))
                        else:
                            self._changed_at = now
                elif obj["spec"].get("nodeName") and obj["status"]["phase"] == "Pending":
                    self._phase(name, "Running")
            await asyncio.sleep(0.05 if due or self.later else 0.25)
            due = {uid: at for uid, at in due.items() if at > now}

    def _again(self, name: str) -> Manifest:
        made = self.manifests[name]
        meta = {key: value for key, value in made["metadata"].items() if key != "deletionTimestamp"}
        return {"kind": "Pod", **made, "metadata": meta, "status": {}}

    # -- what is heard ------------------------------------------------------------------------------------------------

    def listen(self, scheduler: Scheduler) -> None:
        evictor, dispatcher = scheduler.evictor, scheduler._loop._dispatcher
        assert evictor is not None
        self.scheduler = scheduler
        submit, apply = evictor.submit, dispatcher.apply

        def heard(plan: EvictionPlan, done: Callable[[EvictionPlan, str], None]) -> None:
            infos = [info for one in plan.nominations if (info := scheduler.state.pod(one.pod_key)) is not None]
            begun = Began(self._moment, plan, min((info.priority for info in infos), default=0))
            self._begins(begun)

            def ended(plan: EvictionPlan, why: str) -> None:
                if why:
                    self.began.remove(begun)
                done(plan, why)

            submit(plan, ended)

        def handed_on(plan: RoundPlan, begun: RoundInput, **options: Any) -> None:
            self._planned(plan)
            self._moment = begun.snapshot.now - EPOCH_SECONDS
            self.tally["placed beside others"] += bool(begun.concurrent.placed and plan.placements)
            apply(plan, begun, **options)

        evictor.submit = heard  # type: ignore[method-assign]
        dispatcher.apply = handed_on  # type: ignore[method-assign]

    def hurried(self, budget: PlanningBudget) -> PlanningBudget:
        """A budget that ends at any moment."""
        dice, over = self.loop.dice, False
        chance = dice.choice((0.0, 0.0, 0.1, 0.5))

        def ends() -> bool:
            nonlocal over
            over = over or budget.ends() or dice.random() < chance
            return over

        if budget.searches:
            return replace(budget, ends=ends)
        return replace(budget, ends=ends, shared=lambda: dice.choice((0.0, 1.0)) * chance)

    def _fault(self, text: str) -> None:
        self.faults.append(f"{self.loop.time():.2f}: {text}")
        if self.trace:
            print("FAULT", self.faults[-1])

    def _planned(self, plan: RoundPlan) -> None:
        self.tally["rounds"] += 1
        self._placed |= {one.pod_key: one.node for one in (*plan.placements, *plan.awaiting_nominations)}
        for one in plan.rejected:
            self._fault(f"{one.unit}: {one.text}")
        for unit_id in plan.not_minimal:
            self._fault(f"{unit_id}: a unit is evicted in vain")
        for unit in plan.units:
            for text in unit.solver_faults:
                self._fault(f"{unit.unit}: {text}")

    def _begins(self, new: Began) -> None:
        plan = new.plan
        self.tally["plans with victims"] += 1
        for one in plan.evictions:
            self.tally[one.rule] += 1
            self.evictions[one.pod_key] += 1
            if self.evictions[one.pod_key] >= ENDLESS:
                self._fault(f"{one.pod_key} is evicted without end, now for {plan.unit}")
        if self.trace:
            goes = [f"{one.pod_key}@{one.node} ({one.rule})" for one in plan.evictions]
            comes = [f"{one.pod_key}@{one.node}" for one in plan.nominations]
            print(f"{self.loop.time():8.3f} {plan.unit}: {comes} for {goes}")
        for old in self.began:
            both = {o.uid for o in old.plan.nominations} & {o.uid for o in plan.nominations}
            if both and not new.pods <= old.pods and not self._disturbed(old):
                self._fault(f"{plan.unit} takes more before it has started: {[o.pod_key for o in plan.evictions]}")
        self.began.append(new)

    def _disturbed(self, old: Began) -> bool:
        """Whether something else explains that a unit has not started in the room that was made for it."""
        state = self.scheduler.state
        if self._changed_at >= old.at:
            return True
        mine = {one.pod_key for one in old.plan.nominations}
        gangs = {info.gang for key in mine if (info := state.pod(key)) is not None and info.gang is not None}
        for info in state.pods():
            name = info.key.partition("/")[2]
            if (info.key in mine or info.gang in gangs) and self._ended_at.get(name, -1.0) >= old.at:
                return True
            at = info.node or info.nominated_node or self._placed.get(info.key)
            if info.priority > old.priority and info.key not in mine and at in old.nodes:
                return True
            if info.priority > old.priority and self._quoted and self._bound_at.get(info.uid, -1.0) >= old.at:
                return True  # what it uses without a quota is taken off what quotas share
        return False

    def _changed(self, shelf: str, change: Any) -> None:
        if shelf != "pods":
            return
        obj, now = change.entry.obj, self.loop.time()
        name = obj["metadata"]["name"]
        if obj["metadata"].get("deletionTimestamp"):
            self._ended_at.setdefault(obj["metadata"]["uid"], now)
            self._ended_at[name] = max(self._ended_at.get(name, 0.0), self._ended_at[obj["metadata"]["uid"]])
        elif obj["spec"].get("nodeName"):
            self._bound_at.setdefault(obj["metadata"]["uid"], now)

    def _print(self, shelf: str, change: Any) -> None:
        obj = change.entry.obj
        meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
        if shelf not in ("pods", "nodes", QUOTAS, BUDGETS, GROUPS, TOPOLOGIES):
            return
        told = [f"{self.loop.time():8.3f} {change.kind} {shelf.partition('.')[0]} {meta['name']}"]
        if change.kind == "ADDED" and shelf == "pods":
            asks = spec["containers"][0]["resources"]["requests"]
            leans = {
                k: v for k, v in spec.items() if k in ("affinity", "topologySpreadConstraints", "preemptionPolicy")
            }
            told += [
                str(asks),
                spec.get("priorityClassName", ""),
                str(meta["labels"]),
                str(leans),
            ]
        elif change.kind == "ADDED":
            told += [str(meta.get("labels", "")), str(meta.get("annotations", "")), str(spec)]
            told += [str(status.get("allocatable", ""))]
        told += [f"on {spec['nodeName']}"] if spec.get("nodeName") else []
        told += ["ending"] if meta.get("deletionTimestamp") else []
        told += [f"nominated={status['nominatedNodeName']}"] if status.get("nominatedNodeName") else []
        told += [c["message"] for c in status.get("conditions") or [] if c["type"] == "PodScheduled" and "message" in c]
        print(*told)

    # -- the end ------------------------------------------------------------------------------------------------------

    def quiet(self) -> bool:
        scheduler = self.scheduler
        committer, evictor = scheduler.committer, scheduler.evictor
        assert evictor is not None
        return not (
            self.later
            or committer.open
            or committer.waiting_for_claims
            or evictor.open
            or scheduler.queue._wakes
            or any(entry.state in BUSY for entry in scheduler.queue.entries.values())
            or any(
                nominated_node(obj) or obj["metadata"].get("deletionTimestamp") for obj in self.cluster.pods().values()
            )
            or not self.cluster.is_known_to(scheduler, "pods")
        )

    async def live(self) -> None:
        """The whole history, and what must hold after it."""
        self.prepare()
        config = structs.replace(
            self.story.turmoil.config,
            leader_election=NO_LEASE,
            gangs=NAMED_GANGS,
            pod_initial_backoff=0.05,
            pod_max_backoff=0.2,
        )
        self.cluster.planner.config = config
        if self.story.tenants:
            self.cluster.planner.hurried = self.hurried
        played = asyncio.create_task(self.others())
        try:
            async with self.cluster.running(replace(SETTINGS, config=config)) as scheduler:
                self.listen(scheduler)
                wrong = await self.come_to_rest(config)
        finally:
            played.cancel()
            await asyncio.gather(played, return_exceptions=True)
        assert not (self.faults or wrong), "; ".join((*self.faults, *wrong))

    async def come_to_rest(self, config: Any) -> list[str]:
        """What is wrong when all is at rest. Stale gangs and overused quotas have time until later, and whom others'
        demand gives a right to victims is tried again after five minutes."""
        quiet = 0
        while not self.faults:
            if self.loop.time() > LATEST_SECONDS:
                return ["it does not come to rest"]
            await asyncio.sleep(0.5)
            quiet = quiet + 1 if self.quiet() else 0
            if quiet in (4, 30, 120) and not self.wrong(config, late=True):
                break
            if quiet == 120 and (wrong := self.wrong(config, late=False)):
                return wrong
            if quiet >= 2 * AGAIN_SECONDS:
                return self.wrong(config, late=True)
        return []

    def wrong(self, config: Any, *, late: bool) -> list[str]:
        """late: whoever was refused was tried again since."""
        out = []
        snapshot = self.scheduler.state.snapshot(self.loop.wall())
        plan = plan_round(snapshot, config, evict=late)
        if plan.placements:
            out.append(f"these could start: {[(one.pod_key, one.node) for one in plan.placements]}")
        if plan.evictions:
            out.append(f"these could be evicted: {[(o.pod_key, o.rule, o.beneficiary) for o in plan.evictions]}")
        for old in self.began:
            left = [one.pod_key for one in old.plan.nominations if one.uid not in self._bound_at]
            if left and not self._disturbed(old):
                out.append(f"{[o.pod_key for o in old.plan.evictions]} went for {left}, that wait all the same")
        return out


async def _in_virtual_time(loop: VirtualLoop, story: Story) -> Contention:
    loop.on_result = lambda found: loop.dice.random() * story.late if isinstance(found, RoundPlan) else 0.0
    async with virtual_server(story.seed) as server:
        contention = Contention(Live(server), loop, story)
        await contention.live()
        return contention


def live_through(
    seed: int, without: frozenset[str] = frozenset(), late: float = 0.0, *, tenants: bool = False
) -> Contention:
    """One history in virtual time; AssertionError where something must not be."""
    with proven():
        return run(lambda loop: _in_virtual_time(loop, Story(seed, without, late, tenants)), seed)


def fails(seed: int, without: frozenset[str] = frozenset(), late: float = 0.0, *, tenants: bool = False) -> str:
    try:
        live_through(seed, without, late, tenants=tenants)
    except AssertionError as error:
        return str(error) or "wrong"
    return ""


def least(seed: int, late: float = 0.0, *, tenants: bool = False) -> frozenset[str]:
    """What can be left out of a history that goes wrong."""
    objects = Story(seed, late=late, tenants=tenants).turmoil.objects
    names = ["leaning"]
    for one in sorted(objects, key=lambda one: isinstance(one, Node)):
        name = one.metadata.name  # type: ignore[attr-defined]
        names += [name] if "-" not in name else [name.partition("-")[0], name]
    without: frozenset[str] = frozenset()
    for name in dict.fromkeys(names):
        left = Story(seed, without | {name}, late, tenants).objects()
        nodes = {made["metadata"]["name"] for kind, made in left if kind == "Node"}
        stood = {made["spec"].get("nodeName") for kind, made in left if kind == "Pod"} - {None}
        if stood <= nodes and fails(seed, without | {name}, late, tenants=tenants):
            without |= {name}
    return without


def main() -> int:
    parser = argparse.ArgumentParser(description="Random lives of units that take room from one another")
    parser.add_argument("--seeds", default="0-2000", help="FIRST-LAST, LAST left out, or one seed")
    parser.add_argument("--late", type=float, default=0.0, help="seconds that the planner takes at the most")
    parser.add_argument("--tenants", action="store_true", help="several namespaces, and rounds that are short of time")
    parser.add_argument("--trace", action="store_true", help="print every write")
    parser.add_argument(
        "--least", action="store_true", help="leave out what it goes wrong without, then print every write"
    )
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    tally: Counter[str] = Counter()
    failed = 0
    logging.disable(logging.CRITICAL if not options.trace else logging.NOTSET)
    with one_after_the_other():
        for seed in range(int(first), int(last or int(first) + 1)):
            if Story(seed, late=options.late, tenants=options.tenants).dull:
                continue
            without = least(seed, options.late, tenants=options.tenants) if options.least else frozenset()
            Contention.trace = options.trace or options.least
            try:
                tally += live_through(seed, without, options.late, tenants=options.tenants).tally
            except Exception as error:
                failed += 1
                print(f"seed {seed}: {type(error).__name__} {error}", flush=True)
                if not isinstance(error, AssertionError):
                    raise
            Contention.trace = False
            if seed % 100 == 0:
                gc.collect()  # what is left of a history refers to itself in circles
    print(dict(tally), f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
