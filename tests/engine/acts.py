"""What users, controllers, other schedulers, machines and the network do while koordpy schedules."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from koordpy.api import keys
from tests.engine.live import Live, gang, small
from tests.engine.manifests import (
    BLOCK,
    BUDGETS,
    DEVICES,
    GPU,
    GROUPS,
    NPU,
    QUOTAS,
    TOPOLOGIES,
    Manifest,
    nominated_node,
)
from tests.engine.replica import Replica
from tests.engine.storage import HOST, LOCAL, MADE, Storage, pod_with
from tests.engine.test_reservations import claim, claiming, offer
from tests.engine.virtual import VirtualLoop, Wire

NODES = ("n1", "n2", "n3")
GPUS_A_NODE, NPUS_A_NODE = 4, 8
CLASSES = {"middle": 100, "high": 1000}
BLOCKS = dict(zip(NODES, ("b0", "b0", "b1"), strict=True))
TRAITS = {
    "devices": 0.5,
    "npus": 0.25,
    "quotas": 0.4,
    "budget": 0.3,
    "topology": 0.4,
    "volumes": 0.3,
    "claims": 0.3,
    "priorities": 0.6,
    "foreign": 0.3,
    "machines": 0.4,
    "replicas": 0.25,
    "kills": 0.5,
    "cuts": 0.3,
    "ambushes": 0.5,
    "slow": 0.15,
}
"""What there is in a schedule, and how often."""
ROUTES = {
    "binding": ("POST", "*/binding"),
    "eviction": ("POST", "*/eviction"),
    "delete": ("DELETE", "*/pods/*"),
    "status": ("PATCH", "*/pods/*/status"),
    "volume": ("PATCH", "*/persistentvolume*"),
    "claim": ("PATCH", "*/resourceclaims/*"),
    "lease": ("PUT", "*/leases/*"),
    "group": ("PATCH", "*/podgroups/*"),
    "read": ("GET", "/api/v1/namespaces/*/pods/*"),
}
"""Requests at which others lie in wait."""
MOMENTS = ("before", "after")
"""Before the API server looks at a request, and when it has been carried out and nobody knows yet."""


def device(name: str, *, sick: tuple[int, ...] = ()) -> Manifest:
    """Four GPUs, linked in two pairs."""
    matrix = [["X" if i == j else ("NV4" if i // 2 == j // 2 else "SYS") for j in range(4)] for i in range(4)]
    gpus = [{"type": "gpu", "minor": i, "id": f"{name}-{i}", "health": i not in sick} for i in range(GPUS_A_NODE)]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": gpus, "topologies": {"gpu": [{"name": "links", "topology": json.dumps(matrix)}]}},
    }


def blocks() -> Manifest:
    """A topology of one layer over the nodes."""
    layers = [
        {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": keys.CLUSTER_LAYER},
        {"layerName": keys.NODE_LAYER, "parentTopologyLayer": "blockLayer"},
    ]
    return {"metadata": {"name": keys.TOPOLOGY_OBJECT}, "spec": {"hierarchy": layers}}


def asking(manifest: Manifest, resource: str, amount: int) -> Manifest:
    """The pod, asking for so much of a resource, too."""
    for amounts in manifest["spec"]["containers"][0]["resources"].values():
        amounts[resource] = str(amount)
    return manifest


@dataclass
class Ambush:
    """Something that happens at the moment of a request."""

    route: str
    moment: str
    count: int
    """How many such requests pass before it."""
    action: Callable[[Replica, str], None]


@dataclass
class Acts:
    """One thing after the other. `tally` counts what was done."""

    cluster: Live
    dice: random.Random
    traits: frozenset[str]
    storage: Storage
    replicas: list[Replica]
    tally: Counter[str] = field(default_factory=Counter)
    made: int = 0
    _ambushes: list[Ambush] = field(default_factory=list)

    def prepare(self) -> None:
        """The cluster as it is before anybody schedules."""
        store = self.cluster.server.store
        for name, value in CLASSES.items():
            store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
        for name in NODES:
            self._add_node(name)
        if "topology" in self.traits:
            store.create(TOPOLOGIES, blocks())
        if "devices" in self.traits:
            for name in NODES:
                store.create(DEVICES, device(name))
        if "quotas" in self.traits:
            for name, least, most in (("a", 8, 12), ("b", 4, 7)):
                spec = {"min": {GPU: str(least)}, "max": {GPU: str(most)}}
                store.create(QUOTAS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        if "budget" in self.traits:
            self._put_budget("some", 2)
        if "volumes" in self.traits:
            self.storage.classes()
            for name in NODES:
                for i in range(2):
                    self.storage.volume(f"v-{name}-{i}", name)
        if "claims" in self.traits:
            for name in NODES:
                offer(self.cluster, name, *(f"{name}-{i}" for i in range(2)))

    def _add_node(self, name: str) -> None:
        labels = {HOST: name, BLOCK: BLOCKS[name]}
        if "npus" in self.traits:
            labels[keys.ACCELERATOR_TYPE] = "module-910b-8"
        manifest = small(name, gpus=GPUS_A_NODE, labels=labels)
        if "npus" in self.traits:
            for amounts in (manifest["status"]["capacity"], manifest["status"]["allocatable"]):
                amounts[NPU] = str(NPUS_A_NODE)
        self.cluster.nodes(manifest)

    def _put_budget(self, name: str, least: int) -> None:
        spec = {"minAvailable": least, "selector": {"matchLabels": {"guarded": "yes"}}}
        self.cluster.server.store.create(BUDGETS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    def chances(self) -> dict[str, float]:
        """Act -> how likely it is, in proportion."""
        traits = self.traits
        several = {
            "npus": {"npus": 3.0, "npu_gang": 2.0},
            "volumes": {"volume": 3.0},
            "claims": {"claimed": 3.0},
            "foreign": {"foreign": 2.0},
            "devices": {"sick": 1.0},
            "topology": {"topology": 0.4, "relabel": 0.6},
            "quotas": {"quota": 0.8},
            "budget": {"budget": 0.7, "veto": 0.7},
            "machines": {"shrink": 0.6, "lose": 0.5, "find": 0.8},
            "kills": {"kill": 1.0},
            "cuts": {"cut": 1.0},
            "replicas": {"retire": 0.7, "unrenewed": 0.7},
            "ambushes": {"ambush": 3.0},
        }
        out = {"gpus": 6.0, "cpu": 2.0, "gang": 4.0, "pair": 1.0, "join": 0.7, "delete": 3.0, "again": 1.0}
        out |= {"watch": 1.0, "cordon": 0.5}
        for trait, acts in several.items():
            if trait in traits:
                out |= acts
        if {"volumes", "claims"} <= traits:
            out["both"] = 2.0
        if not isinstance(asyncio.get_running_loop(), VirtualLoop):
            out.pop("ambush", None)
        return out

    def act(self) -> None:
        """One of them."""
        chances = self.chances()
        self.made += 1
        name = self.dice.choices(list(chances), list(chances.values()))[0]
        self.tally[f"act {name}"] += 1
        getattr(self, f"_{name}")()

    @property
    def _name(self) -> str:
        return f"p{self.made}"

    # -- pods and gangs -----------------------------------------------------------------------------------------------

    def _gpus(self) -> None:
        (pod,) = gang(self._name, 1, gpus=self.dice.choice([1, 1, 2, 4]))[1:]
        pod["metadata"]["labels"].clear()
        self._submit(pod)

    def _cpu(self) -> None:
        self.cluster.pod(self._name, cpu=str(self.dice.choice([1, 2])))

    def _npus(self) -> None:
        (pod,) = gang(self._name, 1, gpus=0)[1:]
        pod["metadata"]["labels"].clear()
        self._submit(asking(pod, NPU, self.dice.choice([1, 2, 4, 8])))

    def _npu_gang(self) -> None:
        group, *pods = gang(f"g{self.made}", self.dice.choice([2, 3]), gpus=0)
        chips = self.dice.choice([2, 4, 8])
        self._create_gang(group, [asking(pod, NPU, chips) for pod in pods])

    def _gang(self) -> None:
        dice = self.dice
        members = dice.randrange(2, 5)
        options: dict[str, Any] = {"gpus": dice.choice([1, 2])}
        if "topology" in self.traits and dice.random() < 0.7:
            rule = {
                "layer": dice.choice(["blockLayer", keys.NODE_LAYER]),
                "strategy": dice.choice(["MustGather", "PreferGather"]),
            }
            options["annotations"] = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [rule]})}
        least = dice.choice([members, members, members - 1, max(1, members - 2)])
        group, *pods = gang(f"g{self.made}", members, min_member=least, **options)
        if "volumes" in self.traits and dice.random() < 0.3:
            for pod in pods:
                self.storage.claim(pod["metadata"]["name"])
                pod["spec"]["volumes"] = pod_with("x", pod["metadata"]["name"])["spec"]["volumes"]
        if "claims" in self.traits and dice.random() < 0.2:
            claim(self.cluster, f"d{self.made}")
            pods[0]["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{self.made}"}]
        self._create_gang(group, pods)

    def _pair(self) -> None:
        """A GangGroup: two gangs, both or none."""
        names = (f"g{self.made}a", f"g{self.made}b")
        notes = {keys.GANG_GROUPS: json.dumps([f"default/{name}" for name in names])}
        for name in names:
            group, *pods = gang(name, self.dice.choice([1, 2]), gpus=self.dice.choice([1, 2]), annotations=notes)
            self._create_gang(group, pods)

    def _join(self) -> None:
        """A gang gets one more member."""
        if groups := self.cluster.server.store.list(GROUPS):
            group = self.dice.choice(groups)["metadata"]["name"]
            (pod,) = gang(self._name, 1, gpus=1)[1:]
            pod["metadata"] |= {"name": f"{group}-{100 + self.made}", "labels": {keys.LABEL_POD_GROUP: group}}
            self._submit(pod)

    def _create_gang(self, group: Manifest, pods: list[Manifest]) -> None:
        self.cluster.create(group)
        rank, quota = self._rank(), self.dice.choice(["", "a", "b"])
        for pod in pods:
            self.cluster.create(self.dressed(pod, rank, quota))

    def _rank(self) -> str:
        return self.dice.choice(["", "", "middle", "high"]) if "priorities" in self.traits else ""

    def _submit(self, manifest: Manifest) -> None:
        self.cluster.create(self.dressed(manifest, self._rank(), self.dice.choice(["", "a", "b"])))

    def dressed(self, manifest: Manifest, rank: str, quota: str) -> Manifest:
        """The pod with a priority class, a quota and what else users say."""
        spec, labels = manifest["spec"], manifest["metadata"].setdefault("labels", {})
        if rank:
            spec["priorityClassName"] = rank
        if quota and "quotas" in self.traits:
            labels[keys.QUOTA_NAME] = quota
        if self.dice.random() < 0.2:
            labels["guarded"] = "yes"
        spec["terminationGracePeriodSeconds"] = self.dice.choice([0, 1, 30])
        return manifest

    def _volume(self) -> None:
        self.storage.claim(f"c{self.made}", self.dice.choice([LOCAL, MADE]))
        self._submit(pod_with(self._name, f"c{self.made}", cpu="0"))

    def _claimed(self) -> None:
        claim(self.cluster, f"d{self.made}", self.dice.choice([1, 2]))
        self._submit(claiming(self._name, f"d{self.made}", cpu="0"))
        if self.dice.random() < 0.4:
            self._submit(claiming(f"{self._name}-too", f"d{self.made}", cpu="0"))

    def _both(self) -> None:
        self.storage.claim(f"c{self.made}")
        claim(self.cluster, f"d{self.made}")
        manifest = pod_with(self._name, f"c{self.made}", cpu="0")
        manifest["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{self.made}"}]
        self._submit(manifest)

    def _delete(self) -> None:
        if names := sorted(self.cluster.pods()):
            self.cluster.delete(self.dice.choice(names))

    def _again(self) -> None:
        ours = {name: obj for name, obj in self.cluster.pods().items() if obj["spec"]["schedulerName"] != "another"}
        if ours:
            self.make_anew(ours[self.dice.choice(sorted(ours))])

    def make_anew(self, old: Manifest) -> None:
        """A controller makes a pod anew under its name."""
        self.cluster.delete(old["metadata"]["name"])
        meta = {k: v for k, v in old["metadata"].items() if k in ("name", "namespace", "labels")}
        spec = {k: v for k, v in old["spec"].items() if k not in ("nodeName", "priority")}
        self.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def _foreign(self) -> None:
        self.cluster.pod(self._name, cpu="1", scheduler_name="another")
        self.cluster.bind(self._name, self.dice.choice(NODES))

    # -- machines and settings ----------------------------------------------------------------------------------------

    def _node(self) -> str:
        """A node that is there, or nothing."""
        return self.dice.choice([obj["metadata"]["name"] for obj in self.cluster.server.store.list("nodes")] or [""])

    def _cordon(self) -> None:
        if name := self._node():
            self.close(name, closed=self.dice.random() < 0.5)

    def close(self, name: str, *, closed: bool) -> None:
        spec = {"unschedulable": True} if closed else {}
        self.cluster.server.store.update("nodes", name, lambda obj: {**obj, "spec": spec})

    def _relabel(self) -> None:
        if name := self._node():
            block = self.dice.choice(["b0", "b1"])

            def moved(obj: Manifest) -> Manifest:
                meta = obj["metadata"]
                return {**obj, "metadata": {**meta, "labels": {**meta["labels"], BLOCK: block}}}

            self.cluster.server.store.update("nodes", name, moved)

    def _shrink(self) -> None:
        if name := self._node():
            gpus = str(self.dice.choice([2, GPUS_A_NODE, GPUS_A_NODE]))

            def changed(obj: Manifest) -> Manifest:
                status = obj["status"]
                return {**obj, "status": {**status, "allocatable": {**status["allocatable"], GPU: gpus}}}

            self.cluster.server.store.update("nodes", name, changed, status=True)

    def _lose(self) -> None:
        if (name := self._node()) and len(self.cluster.server.store.list("nodes")) > 1:
            self.cluster.server.store.remove("nodes", name)

    def _find(self) -> None:
        there = {obj["metadata"]["name"] for obj in self.cluster.server.store.list("nodes")}
        if lost := [name for name in NODES if name not in there]:
            self._add_node(self.dice.choice(lost))

    def _sick(self) -> None:
        """A GPU falls sick, or all of a machine are well again."""
        name = self.dice.choice(NODES)
        sick = (self.dice.randrange(GPUS_A_NODE),) if self.dice.random() < 0.5 else ()
        self.cluster.server.store.update(DEVICES, name, lambda obj: {**obj, "spec": device(name, sick=sick)["spec"]})

    def _topology(self) -> None:
        store = self.cluster.server.store
        if store.list(TOPOLOGIES):
            store.remove(TOPOLOGIES, keys.TOPOLOGY_OBJECT)
        else:
            store.create(TOPOLOGIES, blocks())

    def _quota(self) -> None:
        most, least = self.dice.choice([5, 7, 12]), self.dice.choice([2, 4])
        spec = {"min": {GPU: str(least)}, "max": {GPU: str(most)}}
        name = self.dice.choice("ab")
        self.cluster.server.store.update(QUOTAS, name, lambda obj: {**obj, "spec": spec}, namespace="default")

    def _budget(self) -> None:
        """The budget is taken away, or a stricter or looser one is put in its place."""
        store = self.cluster.server.store
        for budget in store.list(BUDGETS):
            store.remove(BUDGETS, budget["metadata"]["name"], "default")
        if self.dice.random() < 0.7:
            self._put_budget(f"some-{self.made}", self.dice.choice([1, 2, 9]))

    def _veto(self) -> None:
        """Somebody keeps a pod from being evicted or deleted until the weather clears."""
        if names := sorted(self.cluster.places()):
            name = self.dice.choice(names)
            faults = self.cluster.server.faults
            faults.fail(429, method="POST", path=f"*/pods/{name}/eviction", retry_after=0)
            faults.fail(429, method="DELETE", path=f"*/pods/{name}", retry_after=0)

    # -- the network and the processes --------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.dice.random() < 0.5:
            self.cluster.server.faults.expire_versions()
            self.tally["versions expired"] += 1
        which = self.dice.choice([None, "pods", "pods", "nodes", GROUPS, QUOTAS])
        abort = self.dice.random() < 0.5
        self.cluster.server.faults.drop_watches(which, abort=abort)
        self.tally["watches cut" if abort else "watches ended"] += 1

    def _kill(self) -> None:
        self.dice.choice(self.replicas).kill()

    def _retire(self) -> None:
        self.dice.choice(self.replicas).retire()

    def _unrenewed(self) -> None:
        """For a while nobody can write the lease, though everything else goes on."""
        times = self.dice.choice([3, 6, 9])
        self.cluster.server.faults.fail(500, method="PUT", path="*/leases/*", times=times)

    def _cut(self) -> None:
        self._cut_off(self.dice.choice(self.replicas), self.dice.choice([0.1, 0.6, 3.0]))

    def _cut_off(self, replica: Replica, seconds: float) -> None:
        """The network between a replica and the API server is gone for a while."""
        client = replica.client
        if isinstance(client, Wire):
            client.cut = True
            asyncio.get_running_loop().call_later(seconds, setattr, client, "cut", False)

    def _ambush(self) -> None:
        """Somebody waits for a request, to do at that moment what hurts most."""
        actions: dict[str, Callable[[Replica, str], None]] = {
            "kill": lambda replica, pod: replica.kill(),
            "cut": lambda replica, pod: self._cut_off(replica, 0.3),
            "delete": self._delete_at,
            "anew": self._make_anew_at,
            "cordon": self._close_at,
            "forget": lambda replica, pod: self._watch(),
        }
        action = self.dice.choice(["kill", "kill", "cut", "delete", "anew", "cordon", "forget"])
        route, moment = self.dice.choice(["binding", "binding", *ROUTES]), self.dice.choice(MOMENTS)
        self.lie_in_wait(route, moment, self.dice.choice([0, 0, 1, 2]), actions[action])

    def lie_in_wait(self, route: str, moment: str, count: int, action: Callable[[Replica, str], None]) -> None:
        """`action(replica, pod)` happens at a request, when so many of its route have passed."""
        self._ambushes.append(Ambush(route, moment, count, action))

    def requested(self, wire: Wire, method: str, path: str, moment: str) -> None:
        """A request is at the API server."""
        for ambush in self._ambushes:
            if ambush.moment == moment and method == ROUTES[ambush.route][0]:
                if not fnmatchcase(path, ROUTES[ambush.route][1]):
                    continue
                ambush.count -= 1
                if ambush.count < 0:
                    self._ambushes.remove(ambush)
                    self.tally[f"ambush {moment} a {ambush.route}"] += 1
                    replica = next(one for one in self.replicas if one.client is wire)
                    ambush.action(replica, path.partition("/pods/")[2].partition("/")[0])
                return

    def stand_down(self) -> None:
        """Nobody waits for anything any more."""
        self._ambushes.clear()

    def _delete_at(self, replica: Replica, pod: str) -> None:
        if pod in self.cluster.pods():
            self.cluster.delete(pod)

    def _make_anew_at(self, replica: Replica, pod: str) -> None:
        if (old := self.cluster.pods().get(pod)) is not None:
            self.make_anew(old)

    def _close_at(self, replica: Replica, pod: str) -> None:
        """Whatever node the pod is to go to, or one of them."""
        name = nominated_node(self.cluster.pods().get(pod, {"spec": {}})) or self._node()
        if any(obj["metadata"]["name"] == name for obj in self.cluster.server.store.list("nodes")):
            self.close(name, closed=True)
