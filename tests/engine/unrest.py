# SPDX-License-Identifier: Apache-2.0
"""What users and administrators change under way, of what others have begun to plan on.

Pods are resized, relabelled and let through their gates; groups, quotas, classes, machines and Devices are made anew;
clocks are set. It has dice of its own, so that schedules without unrest stay as they are.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.apiserver.status_errors import StatusError
from tests.engine.live import gang
from tests.engine.machines import Machines
from tests.engine.manifests import DEVICES, GPU, GROUPS, QUOTAS, Manifest
from tests.engine.network import Network
from tests.engine.replica import Replica
from tests.engine.stage import CLASSES, Stage, device
from tests.faults import InjectedFault

CLASSES_KIND = "priorityclasses.scheduling.k8s.io"
TOP = "top"
"""A quota above the others, now and then."""
GARBAGE = (
    ("POST", "*/binding"),
    ("DELETE", "*/pods/*"),
    ("PATCH", "*/pods/*/status"),
    ("GET", "/api/v1/namespaces/*/pods/*"),
)
JUMPS_SECONDS = (-3600.0, -300.0, -61.0, -1.0, 1.0, 61.0, 300.0, 3600.0)


@dataclass
class Unrest:
    """That of one schedule. Each method that `_acts` names is something that somebody does."""

    stage: Stage
    machines: Machines
    network: Network
    replicas: Sequence[Replica]
    by_others: Callable[[], AbstractContextManager[None]]
    """What is written within is written by somebody else than a scheduler."""

    def __post_init__(self) -> None:
        self._dice = random.Random(f"unrest {self.stage.dice.getstate()[1][:8]}")
        self._made = 0
        self._over = False
        self._faults: list[InjectedFault] = []

    def over(self) -> None:
        """Nobody changes anything any more; what was taken away for a moment is there again."""
        self._over = True
        for fault in self._faults:
            self.stage.tally[f"unrest {fault.effect}"] += fault.hits

    def prepare(self) -> None:
        """Weather of its own; a quota above the others."""
        faults = self.stage.cluster.server.faults
        for method, path in GARBAGE:
            if self._dice.random() < 0.3:
                after = self._dice.random() < 0.5
                self._faults.append(faults.fail("garbage", method=method, path=path, share=0.2, after=after))
        if self._dice.random() < 0.3:
            self._faults.append(faults.fail(429, method="POST", path="*/binding", share=0.3, retry_after=1))
        if "topology" in self.stage.traits and self._dice.random() < 0.5:
            self.network.lie_in_wait(
                "binding", "before", self._dice.randrange(3), lambda replica, pod: self.untopology()
            )
        if "quotas" in self.stage.traits:
            spec = {"min": {GPU: "12"}, "max": {GPU: str(self._dice.choice((9, 12)))}}
            labels = {keys.QUOTA_IS_PARENT: "true"}
            self._create(QUOTAS, {"metadata": {"name": TOP, "namespace": "default", "labels": labels}, "spec": spec})

    async def run(self) -> None:
        """Acts now and then, until `over`."""
        for _ in range(self._dice.choice((2, 4, 8, 12))):
            await asyncio.sleep(self._dice.random() * self._dice.choice((0.03, 0.3, 1.0)))
            if self._over:
                return
            with self.by_others():
                self._made += 1
                name = self._dice.choice(self._acts())
                self.stage.tally[f"unrest {name}"] += 1
                getattr(self, name)()

    def _acts(self) -> list[str]:
        several = {"quotas": ("requota", "reparent"), "devices": ("undevice",), "topology": ("untopology",)}
        out = ["resize", "guard", "transfer", "gated", "ungate", "ungate", "declass", "regroup", "minimum", "smaller"]
        out += ["clock", "clock"]
        return out + [act for trait, acts in several.items() if trait in self.stage.traits for act in acts]

    # -- pods ---------------------------------------------------------------------------------------------------------

    def resize(self) -> None:
        """Room on a node is given back, or asked for without asking anybody but the kubelet."""
        cpu = str(self._dice.choice((0, 1, 2, 3)))

        def resized(spec: Manifest) -> Manifest:
            (container,) = spec["containers"]
            amounts = {key: {**one, "cpu": cpu} for key, one in container["resources"].items()}
            return {**spec, "containers": [{**container, "resources": amounts}]}

        self._change_pod(lambda obj: {**obj, "spec": resized(obj["spec"])})

    def guard(self) -> None:
        """A pod comes under a budget, or leaves it."""
        self._relabel("guarded", None if self._dice.random() < 0.5 else "yes")

    def transfer(self) -> None:
        """A pod is said to be of another gang, or of none."""
        groups = [obj["metadata"]["name"] for obj in self._all(GROUPS)]
        self._relabel(keys.LABEL_POD_GROUP, self._dice.choice([None, *groups]))

    def requota(self) -> None:
        self._relabel(keys.QUOTA_NAME, self._dice.choice([None, "a", "b"]))

    def gated(self) -> None:
        (pod,) = gang(f"u{self._made}", 1, gpus=self._dice.choice([1, 2]))[1:]
        pod["metadata"]["labels"] = {}
        pod["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
        if "priorities" in self.stage.traits and self._dice.random() < 0.5:
            pod["spec"]["priorityClassName"] = self._dice.choice(sorted(CLASSES))
        self.stage.cluster.create(pod)

    def ungate(self) -> None:
        """A gated pod may start, perhaps on one node only."""
        waiting = [obj for obj in self._all("pods") if obj["spec"].get("schedulingGates")]
        if not waiting:
            self.gated()
            return
        tight = (
            {"nodeSelector": {"kubernetes.io/hostname": self._dice.choice(self.stage.nodes)}}
            if self._dice.random() < 0.3
            else {}
        )

        def free(obj: Manifest) -> Manifest:
            return {**obj, "spec": {**{k: v for k, v in obj["spec"].items() if k != "schedulingGates"}, **tight}}

        name = self._dice.choice(waiting)["metadata"]["name"]
        self.stage.cluster.server.store.update("pods", name, free, namespace="default")

    def _relabel(self, key: str, value: str | None) -> None:
        def relabelled(obj: Manifest) -> Manifest:
            labels = {k: v for k, v in obj["metadata"].get("labels", {}).items() if k != key}
            return {**obj, "metadata": {**obj["metadata"], "labels": {**labels, **({key: value} if value else {})}}}

        self._change_pod(relabelled)

    def _change_pod(self, change: Callable[[Manifest], Manifest]) -> None:
        if names := sorted(self.stage.cluster.pods()):
            self.stage.cluster.server.store.update("pods", self._dice.choice(names), change, namespace="default")

    # -- what pods go by ----------------------------------------------------------------------------------------------

    def declass(self) -> None:
        """A priority class is made anew with another value: pods keep the one that they came with."""
        name = self._dice.choice(sorted(CLASSES))
        self.stage.cluster.server.store.remove(CLASSES_KIND, name)
        value = CLASSES[name] + self._dice.choice((-20, 0, 20))
        self._create(CLASSES_KIND, {"metadata": {"name": name}, "value": value})

    def regroup(self) -> None:
        """A PodGroup is made anew with another minimum, at once or after a moment without."""
        if not (groups := self._all(GROUPS)):
            return
        old = self._dice.choice(groups)
        meta = {k: v for k, v in old["metadata"].items() if k in ("name", "namespace", "annotations", "labels")}
        least = max(1, old["spec"]["minMember"] + self._dice.choice((-1, 1)))
        new = {"kind": "PodGroup", "metadata": meta, "spec": {**old["spec"], "minMember": least}}
        self.stage.cluster.server.store.remove(GROUPS, meta["name"], "default")
        self._later(lambda: self._create(GROUPS, new))

    def minimum(self) -> None:
        if groups := self._all(GROUPS):
            least = max(1, (old := self._dice.choice(groups))["spec"]["minMember"] + self._dice.choice((-1, 1)))
            self.stage.cluster.server.store.update(
                GROUPS,
                old["metadata"]["name"],
                lambda obj: {**obj, "spec": {**obj["spec"], "minMember": least}},
                namespace="default",
            )

    def reparent(self) -> None:
        """A quota is hung below another, or taken off it."""

        def hung(obj: Manifest) -> Manifest:
            labels = dict(obj["metadata"].get("labels", {}))
            if labels.pop(keys.QUOTA_PARENT, None) is None:
                labels[keys.QUOTA_PARENT] = TOP
            return {**obj, "metadata": {**obj["metadata"], "labels": labels}}

        self.stage.cluster.server.store.update(QUOTAS, self._dice.choice("ab"), hung, namespace="default")

    # -- machines -----------------------------------------------------------------------------------------------------

    def smaller(self) -> None:
        """A machine is taken away and comes back under its name with half of its GPUs."""
        if not (name := self._dice.choice([obj["metadata"]["name"] for obj in self._all("nodes")] or [""])):
            return
        old = self.stage.cluster.server.store.get("nodes", name)
        meta = {k: v for k, v in old["metadata"].items() if k in ("name", "labels")}
        amounts = {**old["status"]["allocatable"], GPU: self._dice.choice(("2", "4"))}
        new = {"kind": "Node", "metadata": meta, "spec": {}, "status": {**old["status"], "allocatable": amounts}}
        self.stage.cluster.server.store.remove("nodes", name)
        self._later(lambda: self._create("nodes", new))

    def undevice(self) -> None:
        """What is known of a machine's GPUs is taken away, or there again."""
        name = self._dice.choice(self.stage.nodes)
        if any(obj["metadata"]["name"] == name for obj in self._all(DEVICES)):
            self.stage.cluster.server.store.remove(DEVICES, name)
        else:
            self._create(DEVICES, device(name))

    def untopology(self) -> None:
        self.machines.topology()

    def clock(self) -> None:
        """The clock of a replica's machine is set; no time passes by that."""
        self._dice.choice(self.replicas).ahead_seconds += self._dice.choice(JUMPS_SECONDS)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _all(self, plural: str) -> list[Manifest]:
        return self.stage.cluster.server.store.list(plural)

    def _create(self, plural: str, manifest: Manifest) -> None:
        self.stage.cluster.server.store.create(plural, manifest)

    def _later(self, act: Callable[[], None]) -> None:
        """Now, or in a moment; nothing where others were first."""

        def do() -> None:
            with self.by_others():
                try:
                    act()
                except StatusError:
                    self.stage.tally["unrest came too late"] += 1

        if self._dice.random() < 0.5:
            do()
        else:
            asyncio.get_running_loop().call_later(self._dice.random() * 0.5, do)
