# SPDX-License-Identifier: Apache-2.0
"""What users and their controllers do in a storm: pods, gangs, volumes and claims come and go."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koordpy.api import keys
from tests.engine.card_scenes import carded, carded_gang
from tests.engine.live import gang
from tests.engine.manifests import GROUPS, NPU, Manifest
from tests.engine.stage import Stage
from tests.engine.storage import LOCAL, MADE, pod_with
from tests.engine.test_reservations import claim, claiming


def asking(manifest: Manifest, resource: str, amount: int) -> Manifest:
    """The pod, asking for so much of a resource, too."""
    for amounts in manifest["spec"]["containers"][0]["resources"].values():
        amounts[resource] = str(amount)
    return manifest


@dataclass
class Users:
    """Each method without an argument is something that somebody does."""

    stage: Stage
    set_up: Callable[[Manifest, int], None] = lambda group, size: None
    """Hears of each PodGroup before it is created, and of the number of its pods."""

    @property
    def _name(self) -> str:
        return f"p{self.stage.made}"

    def gpus(self) -> None:
        (pod,) = gang(self._name, 1, gpus=self.stage.dice.choice([1, 1, 2, 4]))[1:]
        pod["metadata"]["labels"].clear()
        self.submit(pod)

    def cpu(self) -> None:
        self.stage.cluster.pod(self._name, cpu=str(self.stage.dice.choice([1, 2])))

    def npus(self) -> None:
        (pod,) = gang(self._name, 1, gpus=0)[1:]
        pod["metadata"]["labels"].clear()
        self.submit(asking(pod, NPU, self.stage.dice.choice([1, 2, 4, 8])))

    def npu_gang(self) -> None:
        group, *pods = gang(f"g{self.stage.made}", self.stage.dice.choice([2, 3]), gpus=0)
        chips = self.stage.dice.choice([2, 4, 8])
        self.create_gang(group, [asking(pod, NPU, chips) for pod in pods])

    def gang(self) -> None:
        dice = self.stage.dice
        members = dice.randrange(2, 5)
        options: dict[str, Any] = {"gpus": dice.choice([1, 2])}
        if "topology" in self.stage.traits and dice.random() < 0.7:
            rule = {
                "layer": dice.choice(["blockLayer", keys.NODE_LAYER]),
                "strategy": dice.choice(["MustGather", "PreferGather"]),
            }
            options["annotations"] = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [rule]})}
        least = dice.choice([members, members, members - 1, max(1, members - 2)])
        group, *pods = gang(f"g{self.stage.made}", members, min_member=least, **options)
        if "volumes" in self.stage.traits and dice.random() < 0.3:
            for pod in pods:
                self.stage.storage.claim(pod["metadata"]["name"])
                pod["spec"]["volumes"] = pod_with("x", pod["metadata"]["name"])["spec"]["volumes"]
        if "claims" in self.stage.traits and dice.random() < 0.2:
            claim(self.stage.cluster, f"d{self.stage.made}")
            pods[0]["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{self.stage.made}"}]
        self.create_gang(group, pods)

    def pair(self) -> None:
        """A GangGroup: two gangs, both or none."""
        names = (f"g{self.stage.made}a", f"g{self.stage.made}b")
        notes = {keys.GANG_GROUPS: json.dumps([f"default/{name}" for name in names])}
        for name in names:
            group, *pods = gang(
                name, self.stage.dice.choice([1, 2]), gpus=self.stage.dice.choice([1, 2]), annotations=notes
            )
            self.create_gang(group, pods)

    def join(self) -> None:
        """A gang gets one more member."""
        if groups := self.stage.cluster.server.store.list(GROUPS):
            group = self.stage.dice.choice(groups)["metadata"]["name"]
            (pod,) = gang(self._name, 1, gpus=1)[1:]
            pod["metadata"] |= {"name": f"{group}-{100 + self.stage.made}", "labels": {keys.LABEL_POD_GROUP: group}}
            self.submit(pod)

    def volume(self) -> None:
        self.stage.storage.claim(f"c{self.stage.made}", self.stage.dice.choice([LOCAL, MADE]))
        self.submit(pod_with(self._name, f"c{self.stage.made}", cpu="0"))

    def claimed(self) -> None:
        claim(self.stage.cluster, f"d{self.stage.made}", self.stage.dice.choice([1, 2]))
        self.submit(claiming(self._name, f"d{self.stage.made}", cpu="0"))
        if self.stage.dice.random() < 0.4:
            self.submit(claiming(f"{self._name}-too", f"d{self.stage.made}", cpu="0"))

    def card(self) -> None:
        self.submit(carded(self._name, self.stage.dice.choice([1, 1, 2])))

    def card_gang(self) -> None:
        group, *pods = carded_gang(f"g{self.stage.made}", self.stage.dice.choice([2, 3]))
        self.create_gang(group, pods)

    def both(self) -> None:
        self.stage.storage.claim(f"c{self.stage.made}")
        claim(self.stage.cluster, f"d{self.stage.made}")
        manifest = pod_with(self._name, f"c{self.stage.made}", cpu="0")
        manifest["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{self.stage.made}"}]
        self.submit(manifest)

    def delete(self) -> None:
        if names := sorted(self.stage.cluster.pods()):
            self.stage.cluster.delete(self.stage.dice.choice(names))

    def again(self) -> None:
        ours = {
            name: obj for name, obj in self.stage.cluster.pods().items() if obj["spec"]["schedulerName"] != "another"
        }
        if ours:
            self.make_anew(ours[self.stage.dice.choice(sorted(ours))])

    def make_anew(self, old: Manifest) -> None:
        """A controller makes a pod anew under its name."""
        self.stage.cluster.delete(old["metadata"]["name"])
        meta = {k: v for k, v in old["metadata"].items() if k in ("name", "namespace", "labels")}
        spec = {k: v for k, v in old["spec"].items() if k not in ("nodeName", "priority")}
        self.stage.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def foreign(self) -> None:
        self.stage.cluster.pod(self._name, cpu="1", scheduler_name="another")
        self.stage.cluster.bind(self._name, self.stage.dice.choice(self.stage.nodes))

    def create_gang(self, group: Manifest, pods: list[Manifest]) -> None:
        """Creates a gang, as users say it."""
        self.set_up(group, len(pods))
        self.stage.cluster.create(group)
        rank, quota = self._rank(), self.stage.dice.choice(["", "a", "b"])
        for pod in pods:
            self.stage.cluster.create(self.dressed(pod, rank, quota))

    def _rank(self) -> str:
        return self.stage.dice.choice(["", "", "middle", "high"]) if "priorities" in self.stage.traits else ""

    def submit(self, manifest: Manifest) -> None:
        """Creates a pod, as users say it."""
        self.stage.cluster.create(self.dressed(manifest, self._rank(), self.stage.dice.choice(["", "a", "b"])))

    def dressed(self, manifest: Manifest, rank: str, quota: str) -> Manifest:
        """The pod with a priority class, a quota and what else users say."""
        spec, labels = manifest["spec"], manifest["metadata"].setdefault("labels", {})
        if rank:
            spec["priorityClassName"] = rank
        if quota and "quotas" in self.stage.traits:
            labels[keys.QUOTA_NAME] = quota
        if self.stage.dice.random() < 0.2:
            labels["guarded"] = "yes"
        spec["terminationGracePeriodSeconds"] = self.stage.dice.choice([0, 1, 30])
        return manifest
