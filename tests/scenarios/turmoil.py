# SPDX-License-Identifier: Apache-2.0
"""Random clusters in which everything happens at once: quotas in trees, users, gangs and groups of gangs, budgets,
ending pods, gangs that lost members, two resources and a topology."""

from random import Random
from typing import Literal

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.config.configuration import (
    Consolidation,
    Fairness,
    KoordpyConfiguration,
    MaxHarm,
    Preemption,
    Protection,
    Quota,
)
from tests.scenarios.cluster import group, hierarchy, node, pod, wish
from tests.scenarios.quotas import GPU, belongs, quota

GROUPS = "gang.scheduling.koordinator.sh/groups"
LAYERS = hierarchy(("blockLayer", "block"), ("spineLayer", "spine"))
ENDS = ("2026-01-01T00:59:30Z", "2026-01-01T00:10:00Z")
"""Coming free, and stuck, as seen from 01:00."""
FACTORS = [None, None, None, None, 1.0, 2.0, 0.5]


class Turmoil:
    """objects and config of one random cluster."""

    def __init__(self, random: Random, *, moves: bool = True) -> None:
        self.random = random
        self.objects: list[object] = []
        self.layers = random.random() < 0.35
        if self.layers:
            self.objects.append(LAYERS)
        self.free: dict[str, list[int]] = {}
        for i in range(random.randint(1, 5)):
            amounts = [random.randint(1, 6), random.choice([4, 8, 64])]
            self.free[f"n{i}"] = amounts
            labels = {"spine": f"s{random.randint(0, 1)}", "block": f"b{random.randint(0, 2)}"}
            self.objects.append(node(f"n{i}", labels, cpu=str(amounts[1]), **{GPU: str(amounts[0])}))
        self.leaves = self._quotas() if random.random() < 0.8 else [""]
        # a gang that a bound one of its group keeps from asking for all its members would come and go as a stale one
        self.linked = random.random() < 0.5
        for i in range(random.randint(0, 5)):
            self._gang(f"g{i}")
        for i in range(random.randint(1, 10)):
            self._plain(f"p{i}")
        for i in range(random.choice([0, 0, 1, 2])):
            self._budget(i)
        self.config = KoordpyConfiguration(
            fairness=Fairness(
                mode=random.choice(["gpu-count", "exact", "kai", "off"]),
                reclaim=random.choice(["quotas", "all", "all", "off"]),
            ),
            preemption=Preemption(
                enabled=random.random() < 0.8, across_quotas=random.choice(["overMin", "overMin", "never", "any"])
            ),
            consolidation=Consolidation(enabled=moves and random.random() < 0.2),
            quota=Quota(
                monitor_all_quotas=random.random() < 0.15,
                delay_evict_time=0.0,
                enable_runtime_quota=random.random() < 0.8,
                guarantee_usage=random.random() < 0.15,
                no_quota_yields=random.choice(["lowerPriority", "lowerPriority", "lowerPriority", "always", "never"]),
            ),
            protection=Protection(
                max_harm=MaxHarm(
                    priority=random.choice(FACTORS),
                    quota=random.choice(FACTORS),
                    fair_share=random.choice(FACTORS),
                    consolidation=random.choice([1.0, 1.0, 2.0, None]),
                )
            ),
        )
        any_victims = random.random() < 0.25
        if any_victims:
            self.config = replace(self.config, preemption=replace(self.config.preemption, surplus_victims="any"))
        across: list[Literal["overShare", "any", "never"]] = ["overShare", "overShare", "never"]
        if self.config.fairness.reclaim != "all":
            across.append("any")
        preemption = replace(self.config.preemption, across_users=random.choice(across))
        self.config = replace(self.config, preemption=preemption)

    def _quotas(self) -> list[str]:
        random = self.random
        inner, leaves = list[str](), [""]
        for i in range(random.randint(1, 5)):
            parent, is_inner = random.choice(["", *inner]), random.random() < 0.3
            counted = [GPU] if random.random() < 0.7 else [GPU, "cpu"]
            least = {name: random.randint(0, 5) for name in counted}
            most: dict[str, int] = dict.fromkeys(counted, 1000)
            if random.random() < 0.25 and not is_inner:
                most = {name: max(least[name], random.randint(1, 8)) for name in counted}
            lends = random.random() < 0.85
            self.objects.append(quota(f"q{i}", least, most, parent=parent, inner=is_inner, forced=True, lends=lends))
            (inner if is_inner else leaves).append(f"q{i}")
        return leaves

    def _spot(self, gpus: int, cpus: int) -> str:
        fitting = [name for name, (g, c) in self.free.items() if g >= gpus and c >= cpus]
        if not fitting:
            return ""
        at = self.random.choice(fitting)
        self.free[at][0] -= gpus
        self.free[at][1] -= cpus
        return at

    def _add(self, name: str, gpus: int, cpus: int, *, ends: str = "", **settings: object) -> None:
        random = self.random
        asked = {GPU: str(gpus)} if gpus else {}
        one: Pod = pod(name, cpu=str(cpus), requests=asked, created=random.randint(1, 3000), **settings)  # type: ignore[arg-type]
        if ends and settings.get("at"):
            one = replace(one, metadata=replace(one.metadata, deletion_timestamp=ends))
        self.objects.append(one)

    def _labels(self, leaf: str, *, rigid: bool = False) -> dict[str, str]:
        random = self.random
        out = belongs(leaf, user=random.choice(["", "", "alice", "bob"]), rigid=rigid)
        return {**out, "app": random.choice("abc")}

    def _gang(self, name: str) -> None:
        random = self.random
        least, gpus, cpus = random.randint(0, 4), random.randint(0, 3), random.randint(0, 2)
        notes: dict[str, str] = {}
        if self.linked and random.random() < 0.4:
            notes[GROUPS] = f'["default/g{random.randint(0, 4)}"]'
        if random.random() < 0.3:
            notes["gang.scheduling.koordinator.sh/match-policy"] = random.choice(
                ["waiting-and-running", "only-waiting"]
            )
        if random.random() < 0.5:
            notes[keys.GANG_STALE_GRACE] = "-1" if self.linked else random.choice(["-1", "0s", "30s"])
        multiple = 1
        if self.layers and random.random() < 0.5:
            layer, strategy = random.choice(["blockLayer", "spineLayer"]), random.choice(["Prefer", "Must"])
            multiple = random.choice([1, 1, 1, 2])
            notes |= wish({layer: strategy}, pp=random.choice([1, 1, 2]), multiple={layer: multiple})
        self.objects.append(group(name, least, notes))
        leaf, count = random.choice(self.leaves), random.randint(max(1, least), max(1, least) + 2)
        priority, mixed = random.choice([0, 0, 1, 5, 9]), random.random() < 0.2
        before = {key: list(amounts) for key, amounts in self.free.items()}
        spots: list[str] = []
        if multiple == 1 and random.random() < 0.65:
            spots = [at for _ in range(count) if (at := self._spot(gpus, cpus))]
            if len(spots) < least and random.random() < 0.8:
                self.free, spots = before, []
        policy = {"preemption_policy": "Never"} if random.random() < 0.05 else {}
        labels = self._labels(leaf, rigid=random.random() < 0.05)
        for i in range(count):
            at = spots[i] if i < len(spots) else ""
            own = random.choice([0, 1, 5, 9]) if mixed else priority
            lost = not at and bool(spots) and random.random() < 0.3
            phase = random.choice(["Failed", "Succeeded"]) if lost else ""
            ends = random.choice(ENDS) if random.random() < 0.04 else ""
            bigger = gpus + random.choice([0, 0, 1]) if not at and random.random() < 0.1 else gpus
            self._add(
                f"{name}-{i}",
                bigger,
                cpus,
                ends=ends,
                gang=name,
                at=at,
                priority=own,
                labels=labels,
                phase=phase,
                **policy,
            )

    def _plain(self, name: str) -> None:
        random = self.random
        gpus, cpus = random.choice([0, 1, 1, 2, 3, 4]), random.randint(0, 3)
        at = self._spot(gpus, cpus) if random.random() < 0.65 else ""
        ends = random.choice(ENDS) if random.random() < 0.06 else ""
        labels = self._labels(random.choice(self.leaves), rigid=random.random() < 0.08)
        extra: dict[str, object] = {"scheduler": "other"} if at and random.random() < 0.06 else {}
        if random.random() < 0.06:
            extra["preemption_policy"] = "Never"
        self._add(name, gpus, cpus, ends=ends, at=at, priority=random.choice([0, 0, 1, 5, 9]), labels=labels, **extra)

    def _budget(self, number: int) -> None:
        random = self.random
        spec = PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": random.choice("abc")}))
        allowed = random.choice([None, 0, 1, 2])
        if allowed is None:
            spec = replace(spec, max_unavailable=random.choice([0, 1, "50%"]))
        self.objects.append(
            PodDisruptionBudget(
                metadata=ObjectMeta(name=f"pdb{number}", namespace="default"),
                spec=spec,
                status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
            )
        )
