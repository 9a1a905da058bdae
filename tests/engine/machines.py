# SPDX-License-Identifier: Apache-2.0
"""What becomes of machines in a storm, and of what administrators have set."""

from dataclasses import dataclass

from koordpy.api import keys
from tests.engine.manifests import BLOCK, BUDGETS, DEVICES, GPU, QUOTAS, TOPOLOGIES, Manifest
from tests.engine.stage import GPUS_A_NODE, Stage, blocks, device


@dataclass
class Machines:
    """Each method without an argument is something that happens."""

    stage: Stage

    def node(self) -> str:
        """A node that is there, or nothing."""
        return self.stage.dice.choice(
            [obj["metadata"]["name"] for obj in self.stage.cluster.server.store.list("nodes")] or [""]
        )

    def cordon(self) -> None:
        if name := self.node():
            self.close(name, closed=self.stage.dice.random() < 0.5)

    def close(self, name: str, *, closed: bool) -> None:
        spec = {"unschedulable": True} if closed else {}

        def changed(obj: Manifest) -> Manifest:
            return {**obj, "spec": {**spec, **{k: v for k, v in obj["spec"].items() if k != "unschedulable"}}}

        self.stage.cluster.server.store.update("nodes", name, changed)

    def relabel(self) -> None:
        if name := self.node():
            block = self.stage.dice.choice(["b0", "b1"])

            def moved(obj: Manifest) -> Manifest:
                meta = obj["metadata"]
                return {**obj, "metadata": {**meta, "labels": {**meta["labels"], BLOCK: block}}}

            self.stage.cluster.server.store.update("nodes", name, moved)

    def shrink(self) -> None:
        if name := self.node():
            gpus = str(self.stage.dice.choice([2, GPUS_A_NODE, GPUS_A_NODE]))

            def changed(obj: Manifest) -> Manifest:
                status = obj["status"]
                return {**obj, "status": {**status, "allocatable": {**status["allocatable"], GPU: gpus}}}

            self.stage.cluster.server.store.update("nodes", name, changed, status=True)

    def lose(self) -> None:
        if (name := self.node()) and len(self.stage.cluster.server.store.list("nodes")) > 1:
            self.stage.cluster.server.store.remove("nodes", name)

    def find(self) -> None:
        there = {obj["metadata"]["name"] for obj in self.stage.cluster.server.store.list("nodes")}
        if lost := [name for name in self.stage.nodes if name not in there]:
            self.stage.add_node(self.stage.dice.choice(lost))

    def sick(self) -> None:
        """A GPU falls sick, or all of a machine are well again."""
        name = self.stage.dice.choice(self.stage.nodes)
        sick = (self.stage.dice.randrange(GPUS_A_NODE),) if self.stage.dice.random() < 0.5 else ()
        if not any(obj["metadata"]["name"] == name for obj in self.stage.cluster.server.store.list(DEVICES)):
            return
        self.stage.cluster.server.store.update(
            DEVICES, name, lambda obj: {**obj, "spec": device(name, sick=sick)["spec"]}
        )

    def topology(self) -> None:
        store = self.stage.cluster.server.store
        if store.list(TOPOLOGIES):
            store.remove(TOPOLOGIES, keys.TOPOLOGY_OBJECT)
        else:
            store.create(TOPOLOGIES, blocks())

    def quota(self) -> None:
        most, least = self.stage.dice.choice([5, 7, 12]), self.stage.dice.choice([2, 4])
        spec = {"min": {GPU: str(least)}, "max": {GPU: str(most)}}
        name = self.stage.dice.choice("ab")
        self.stage.cluster.server.store.update(QUOTAS, name, lambda obj: {**obj, "spec": spec}, namespace="default")

    def budget(self) -> None:
        """The budget is taken away, or a stricter or looser one is put in its place."""
        store = self.stage.cluster.server.store
        for budget in store.list(BUDGETS):
            store.remove(BUDGETS, budget["metadata"]["name"], "default")
        if self.stage.dice.random() < 0.7:
            self.stage.put_budget(f"some-{self.stage.made}", self.stage.dice.choice([1, 2, 9]))
