# SPDX-License-Identifier: Apache-2.0
"""Random clusters as manifests, with all that meets in one: layers, GPUs, quotas, budgets, gangs, ties, priorities.

    python -m tests.cli.random_manifests 0 2000      # seeds, run and judged; stops at nothing, prints what is wrong

`judged` reads the command's answer with its own arithmetic and shares nothing with the planner.
"""

import contextlib
import io
import json
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from koordpy.cli.main import main as koordpy

Document = dict[str, Any]
GPU = "nvidia.com/gpu"
GANG = "pod-group.scheduling.sigs.k8s.io"
GANG_NOTE = "example.com/gang"
"""Annotation with the gang of a pod that has no gang label. koordpy does not read it."""
GANG_KEYS = "gang.scheduling.koordinator.sh/"
QUOTA_KEYS = "quota.scheduling.koordinator.sh/"
GROUP_KEYS = "gputopology.scheduling.koordinator.sh/"
LAYER_LABELS = {"spineLayer": "spine", "blockLayer": "block"}
APPS = "abc"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
# Waits that room alone does not end.
OTHER_WAITS = ("Insufficient quotas", "non-preemptible", "promise", "nominat", "waiting for members", " share")


def gang_name(pod: Document) -> str:
    """The name of a pod's gang; empty without one."""
    meta = pod["metadata"]
    return str(meta.get("labels", {}).get(GANG) or meta.get("annotations", {}).get(GANG_NOTE, ""))


@dataclass
class Cluster:
    """What one seed makes: manifests, the configuration and further arguments of `koordpy simulate`."""

    documents: list[Document]
    config: Document
    arguments: list[str] = field(default_factory=list)

    def of(self, kind: str) -> dict[str, Document]:
        """Documents of a kind by name."""
        return {one["metadata"]["name"]: one for one in self.documents if one["kind"] == kind}


class _Maker:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.documents: list[Document] = []
        self.waiting: list[Document] = []
        self.quotas: list[str] = []
        self.free: dict[str, list[int]] = {}
        self.gpus = self.dice.choice([0, 2, 4, 8])
        self.layered = self.chance(0.7)

    def chance(self, part: float) -> bool:
        return self.dice.random() < part

    def make(self) -> Cluster:
        for i in range(self.dice.randint(2, 9)):
            self.node(i)
        self.rest_of_the_cluster()
        for i in range(self.dice.randint(0, 10)):
            self.running(f"run-{i}")
        for i in range(self.dice.randint(0, 4)):
            self.gang(i)
        for i in range(self.dice.randint(0, 6)):
            kind = self.dice.choice([None, "lo", "mid", "hi"])
            self.waiting.append(self.tied(self.pod(f"p-{i}", self.amounts(4), kind, self.owner(0.6))))
        self.dice.shuffle(self.waiting)
        arguments = self.dice.choice([[], ["--evicted", "drop"]])
        return Cluster([*self.documents, *self.waiting], self.config(), arguments)

    def add(self, kind: str, version: str, name: str, metadata: Mapping[str, Any] | None = None, **body: Any) -> None:
        meta = {"name": name, **({} if kind in ("Node", "Device", "PriorityClass") else {"namespace": "default"})}
        self.documents.append({"apiVersion": version, "kind": kind, "metadata": {**meta, **(metadata or {})}, **body})

    def node(self, i: int) -> None:
        name = f"n{i}"
        labels = {"kubernetes.io/hostname": name}
        if self.layered and self.chance(0.93):
            labels |= {"block": f"b{i // 2}", "spine": f"s{i // 4}"}
        if self.chance(0.5):
            labels["zone"] = self.dice.choice("ab")
        cpu, pods = self.dice.choice([4, 8, 16]), self.dice.choice([4, 10, 110])
        spec: Document = {"unschedulable": True} if self.chance(0.08) else {}
        if self.chance(0.08):
            effect = self.dice.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"])
            spec["taints"] = [{"key": "t", "value": "x", "effect": effect}]
        amounts = {"cpu": str(cpu), "memory": "64Gi", "pods": str(pods), **({GPU: str(self.gpus)} if self.gpus else {})}
        self.add("Node", "v1", name, {"labels": labels}, spec=spec, status={"allocatable": amounts})
        self.free[name] = [cpu, self.gpus, pods]
        if self.gpus and self.chance(0.5):
            self.device(name)

    def device(self, name: str) -> None:
        matrix = [[0] * self.gpus for _ in range(self.gpus)]
        for a in range(self.gpus):
            for b in range(a):
                matrix[a][b] = matrix[b][a] = self.dice.choice([10, 25, 50])
        cards = [
            {"type": "gpu", "minor": k, "id": f"GPU-{name}-{k}", "health": self.chance(0.95)} for k in range(self.gpus)
        ]
        links = {"gpu": [{"name": "bandwidth", "topology": json.dumps(matrix)}]}
        spec = {"topologies": links, "devices": cards}
        self.add("Device", "scheduling.koordinator.sh/v1alpha1", name, spec=spec)

    def rest_of_the_cluster(self) -> None:
        if self.layered:
            layers = [
                {"layerName": "spineLayer", "labelKey": "spine"},
                {"layerName": "blockLayer", "labelKey": "block", "parentTopologyLayer": "spineLayer"},
                {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"},
            ]
            version = "scheduling.koordinator.sh/v1alpha1"
            self.documents.append(
                {
                    "apiVersion": version,
                    "kind": "ClusterNetworkTopology",
                    "metadata": {"name": "default"},
                    "spec": {"hierarchy": layers},
                }
            )
        for name, value in (("lo", -10), ("mid", 100), ("hi", 1000)):
            never = {"preemptionPolicy": "Never"} if self.chance(0.1) else {}
            self.add("PriorityClass", "scheduling.k8s.io/v1", name, value=value, **never)
        for name in ("qa", "qb", "qc")[: self.dice.randint(0, 3)]:
            least = self.dice.randint(0, 6)
            what = GPU if self.gpus and self.chance(0.7) else "cpu"
            spec = {"min": {what: str(least)}, "max": {what: str(least + self.dice.randint(0, 12))}}
            labels = {QUOTA_KEYS + "allow-lent-resource": "false"} if self.chance(0.2) else {}
            self.add("ElasticQuota", "scheduling.sigs.k8s.io/v1alpha1", name, {"labels": labels}, spec=spec)
            self.quotas.append(name)
        if self.chance(0.3):
            selector = {"matchLabels": {"app": self.dice.choice(APPS)}}
            spec = {"minAvailable": self.dice.randint(0, 3), "selector": selector}
            status = {"disruptionsAllowed": self.dice.randint(0, 2), "currentHealthy": 3, "desiredHealthy": 2}
            self.add("PodDisruptionBudget", "policy/v1", "budget", spec=spec, status={**status, "expectedPods": 3})

    def owner(self, part: float) -> dict[str, str]:
        labels = {}
        if self.quotas and self.chance(part):
            labels[QUOTA_KEYS + "name"] = self.dice.choice(self.quotas)
        if self.chance(0.15):
            labels[QUOTA_KEYS + "preemptible"] = "false"
        return labels

    def amounts(self, most_cpu: int) -> tuple[int, int]:
        return self.dice.randint(1, most_cpu), self.dice.choice([0, 1, 2, self.gpus]) if self.gpus else 0

    def pod(
        self,
        name: str,
        amounts: tuple[int, int],
        priority: str | None,
        labels: Mapping[str, str],
        *,
        gang: str = "",
        at: str = "",
    ) -> Document:
        cpu, gpus = amounts
        limits = {GPU: str(gpus)} if gpus else {}
        resources = {"requests": {"cpu": str(cpu), **limits}, "limits": limits}
        spec: Document = {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        }
        if priority:
            spec["priorityClassName"] = priority
        if at:
            spec["nodeName"] = at
        own = {**labels, "app": self.dice.choice(APPS), **({GANG: gang} if gang else {})}
        meta = {"name": name, "namespace": "default", "labels": own}
        status = {"phase": "Running"} if at else {}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}

    def tied(self, pod: Document) -> Document:
        """The pod, at times with something that other pods or nodes' marks have a say in."""
        selector = {"labelSelector": {"matchLabels": {"app": self.dice.choice(APPS)}}}
        term = {**selector, "topologyKey": self.dice.choice(["kubernetes.io/hostname", "zone"])}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        more: list[Document] = [
            {"affinity": {"podAntiAffinity": {required: [term]}}},
            {"affinity": {"podAffinity": {required: [term]}}},
            {
                "topologySpreadConstraints": [
                    {
                        **term,
                        "maxSkew": self.dice.randint(1, 2),
                        "whenUnsatisfiable": self.dice.choice(["DoNotSchedule", "ScheduleAnyway"]),
                    }
                ]
            },
            {"nodeSelector": {"zone": "a"}},
            {"tolerations": [{"key": "t", "operator": "Exists"}]},
        ]
        if self.chance(0.3):
            pod["spec"] |= self.dice.choice(more)
        elif self.chance(0.06):
            pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": self.dice.choice([80, 81])}]
        return pod

    def running(self, name: str) -> None:
        node = self.dice.choice(sorted(self.free))
        cpu, gpus = self.amounts(4)
        left = self.free[node]
        if left[0] >= cpu and left[1] >= gpus and left[2]:
            self.free[node] = [left[0] - cpu, left[1] - gpus, left[2] - 1]
            priority, gang = self.dice.choice([None, "lo", "mid"]), self.dice.choice(["", "", "old"])
            self.documents.append(self.pod(name, (cpu, gpus), priority, self.owner(0.7), gang=gang, at=node))

    def gang(self, i: int) -> None:
        size = self.dice.randint(1, 6)
        notes = {}
        if self.layered and self.chance(0.6):
            notes[GANG_KEYS + "networkTopologyAware"] = json.dumps(self.wish())
        if self.chance(0.2):
            notes[GANG_KEYS + "groups"] = json.dumps([f"default/g{i}", f"default/g{i + 1}"])
        if self.chance(0.15):
            notes[GANG_KEYS + "mode"] = "NonStrict"
        if self.chance(0.2):
            notes[GANG_KEYS + "match-policy"] = self.dice.choice(["only-waiting", "waiting-and-running"])
        if self.chance(0.1):
            notes[GANG_KEYS + "stale-grace"] = "10s"
        spec = {"minMember": self.dice.randint(1, size)}
        self.add("PodGroup", "scheduling.sigs.k8s.io/v1alpha1", f"g{i}", {"annotations": notes}, spec=spec)
        priority, owner = self.dice.choice([None, "lo", "mid", "hi"]), self.owner(0.6)
        if self.chance(0.2):
            owner |= {GROUP_KEYS + "name": f"gg{i}", GROUP_KEYS + "replica": str(size)}
        amounts, mixed = self.amounts(2), self.chance(0.25)
        for k in range(size + self.chance(0.2)):
            pod = self.pod(f"g{i}-{k}", self.amounts(2) if mixed else amounts, priority, owner, gang=f"g{i}")
            self.waiting.append(self.tied(pod) if self.chance(0.3) else pod)

    def wish(self) -> Document:
        layers = self.dice.sample(sorted(LAYER_LABELS), self.dice.randint(1, 2))
        wish: Document = {
            "gatherStrategy": [
                {
                    "layer": layer,
                    "strategy": self.dice.choice(["MustGather", "PreferGather"]),
                    **({"podCountMultiple": 2} if self.chance(0.15) else {}),
                }
                for layer in layers
            ]
        }
        if self.chance(0.25):
            wish["parallelModel"] = [{"parallelStrategy": "pipeline-parallel", "parallelism": 2}]
        return wish

    def config(self) -> Document:
        pick = self.dice.choice
        return {
            "fairness": {"mode": pick(["off", "gpu-count", "exact", "kai"]), "reclaim": pick(["off", "quotas", "all"])},
            "preemption": {"enabled": self.chance(0.85), "acrossQuotas": pick(["overMin", "any", "never"])},
            "consolidation": {"enabled": self.chance(0.3)},
            "queue": {"backfill": self.chance(0.2)},
            "quota": {"enableRuntimeQuota": self.chance(0.8), "guaranteeUsage": self.chance(0.2)},
            "gpu": {"objective": pick(["bottleneck", "bottleneck", "sum"])},
        }


def cluster(seed: int) -> Cluster:
    """The cluster of a seed."""
    return _Maker(seed).make()


def stamped(one: Cluster) -> Cluster:
    """With uid and creation time of each object, as `simulate` would make them up."""
    made: list[Document] = json.loads(json.dumps(one.documents))
    for at, document in enumerate(made):
        document["metadata"].setdefault("uid", f"u-{at:05}")
        document["metadata"].setdefault("creationTimestamp", _moment(at + 1 - len(made)))
    return Cluster(made, one.config, one.arguments)


def _moment(second: int) -> str:
    return (NOW + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_again(one: Cluster, said: Document) -> Cluster:
    """A stamped cluster as a simulation left it: who is bound runs, who was evicted has been made anew or is gone."""
    notes = {binding["pod"]: binding for binding in said["bindings"]}
    final = {at["pod"]: at["node"] for at in said["final"]}
    waits = {wait["pod"] for wait in said["pending"]}
    evicted = [eviction["pod"] for eviction in said["evictions"]]
    left: list[Document] = []
    anew: dict[int, Document] = {}
    for document in json.loads(json.dumps(one.documents)):
        name, place = document["metadata"]["name"], left.append
        if document["kind"] == "Pod":
            if name in evicted:
                last = max(at for at, pod in enumerate(evicted) if pod == name)
                document["metadata"] |= {"uid": f"again-{last}", "creationTimestamp": _moment(last + 1)}
                place = partial(anew.__setitem__, last)
            if name in final:
                document["spec"]["nodeName"], document["status"] = final[name], {"phase": "Running"}
                if name in notes and notes[name]["node"] == final[name]:
                    document["metadata"].setdefault("annotations", {}).update(notes[name]["annotations"])
            elif name in waits:
                document["spec"].pop("nodeName", None)
                document["status"] = {}
            else:
                continue
        place(document)
    return Cluster(left + [anew[at] for at in sorted(anew)], one.config, one.arguments)


def answer(one: Cluster, folder: Path) -> Document:
    """What `koordpy simulate` says of it. Raises AssertionError where it does not say anything."""
    (folder / "input.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": one.documents}))
    (folder / "config.json").write_text(json.dumps(one.config))
    words = ["simulate", "-f", str(folder / "input.json"), "--config", str(folder / "config.json"), "-o", "json"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = koordpy([*words, *one.arguments])
    assert status == 0, err.getvalue()
    found: Document = json.loads(out.getvalue())
    return found


def judged(one: Cluster, said: Document) -> list[str]:
    """What is wrong with an answer; empty where all is well."""
    return [*_room(one, said), *_gangs(one, said), *_quiet(said), *_waits(one, said)]


def _asked(pod: Document) -> tuple[int, int]:
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    return int(requests["cpu"]), int(requests.get(GPU, 0))


def _left(one: Cluster, said: Document) -> dict[str, list[int]]:
    """Node -> cpu, GPUs by count, pods that are free in the end."""
    pods = one.of("Pod")
    left = {}
    for name, node in one.of("Node").items():
        amounts = node["status"]["allocatable"]
        left[name] = [int(amounts["cpu"]), int(amounts.get(GPU, 0)), int(amounts["pods"])]
    for at in said["final"]:
        cpu, gpus = _asked(pods[at["pod"]])
        left[at["node"]][0] -= cpu
        left[at["node"]][1] -= gpus
        left[at["node"]][2] -= 1
    return left


def _room(one: Cluster, said: Document) -> Iterable[str]:
    for name, left in _left(one, said).items():
        if min(left) < 0:
            yield f"{name} is over-booked: {left} left of cpu, GPUs, pods"
    pods, nodes = one.of("Pod"), {at["pod"]: at["node"] for at in said["final"]}
    taken: dict[tuple[str, str], str] = {}
    last = {binding["pod"]: binding for binding in said["bindings"]}  # evicted pods may be bound again
    for binding in last.values():
        note = binding["annotations"].get("topology.scheduling.koordinator.sh/gpu")
        if note is None or binding["pod"] not in nodes:
            continue
        given = [minor for minors in json.loads(note)["allocatedGPUs"].values() for minor in minors]
        if len(given) != _asked(pods[binding["pod"]])[1]:
            yield f"{binding['pod']} is given GPUs {given}"
        for minor in given:
            other = taken.setdefault((binding["node"], minor), binding["pod"])
            if other != binding["pod"]:
                yield f"GPU {minor} of {binding['node']} is given to {other} and {binding['pod']}"


def _members(one: Cluster, gang: str) -> dict[str, Document]:
    return {name: pod for name, pod in one.of("Pod").items() if pod["metadata"]["labels"].get(GANG) == gang}


def _gangs(one: Cluster, said: Document) -> Iterable[str]:
    placed = {at["pod"] for at in said["final"]}
    for name, group in one.of("PodGroup").items():
        bound = sum(member in placed for member in _members(one, name))
        notes = group["metadata"].get("annotations", {})
        if notes.get(GANG_KEYS + "mode") != "NonStrict" and 0 < bound < group["spec"]["minMember"]:
            yield f"gang {name} is half bound: {bound} of {group['spec']['minMember']}"


def _quiet(said: Document) -> Iterable[str]:
    if not said["stable"] or said["rounds"] > 8:
        yield f"no rest after {said['rounds']} rounds"
    for name, times in Counter(one["pod"] for one in said["evictions"]).items():
        if times > 2:
            yield f"{name} was evicted {times} times"


def _plain(pod: Document) -> bool:
    """Whether nothing but room decides where it goes."""
    known = {"schedulerName", "containers", "priorityClassName", "nodeName"}
    return set(pod["spec"]) <= known and "ports" not in pod["spec"]["containers"][0]


def _waits(one: Cluster, said: Document) -> Iterable[str]:
    """Nothing waits that fits: judged where room alone decides."""
    pods = one.of("Pod")
    if not all(_plain(pods[at["pod"]]) for at in said["final"]):
        return
    seen = set()
    for wait in said["pending"]:
        if wait["reason"] != "Unschedulable" or any(words in wait["message"] for words in OTHER_WAITS):
            continue
        gang = wait["gang"].partition("/")[2] if wait["gang"] else ""
        if not gang:
            if _plain(pods[wait["pod"]]) and _most([pods[wait["pod"]]], one, said):
                yield f"{wait['pod']} fits and waits: {wait['message']}"
        elif gang not in seen:
            seen.add(gang)
            if _gang_fits(gang, one, said):
                yield f"gang {gang} fits and waits: {wait['message']}"


def _gang_fits(gang: str, one: Cluster, said: Document) -> bool:
    """Whether its missing members fit, by a first fit; False where more than room and one MustGather layer counts."""
    groups = one.of("PodGroup")
    if gang not in groups or any(
        f'default/{gang}"' in group["metadata"]["annotations"].get(GANG_KEYS + "groups", "")
        for group in groups.values()
        if "annotations" in group["metadata"]
    ):
        return False
    members = _members(one, gang)
    if not all(_plain(pod) and GROUP_KEYS + "name" not in pod["metadata"]["labels"] for pod in members.values()):
        return False
    wish = json.loads(groups[gang]["metadata"]["annotations"].get(GANG_KEYS + "networkTopologyAware", "{}"))
    rules = wish.get("gatherStrategy", [])
    if "parallelModel" in wish or any("podCountMultiple" in rule for rule in rules):
        return False
    placed = {at["pod"] for at in said["final"]}
    missing = [pod for name, pod in members.items() if name not in placed]
    need = max(1, groups[gang]["spec"]["minMember"] - (len(members) - len(missing)))
    must = [rule["layer"] for rule in rules if rule["strategy"] == "MustGather"]
    if must and len(missing) < len(members):
        return False
    if not rules:
        return _most(missing, one, said) >= need
    lowest = LAYER_LABELS["blockLayer" if "blockLayer" in must else "spineLayer"]

    def domain(labels: Mapping[str, str]) -> Any:
        return (labels["spine"], labels[lowest] if must else "") if "spine" in labels else None

    domains = {domain(node["metadata"]["labels"]) for node in one.of("Node").values()} - {None}
    if not must:
        return _most(missing, one, said, lambda labels: "spine" in labels) >= need
    return any(
        _most(missing, one, said, lambda labels, place=place: domain(labels) == place) >= need for place in domains
    )


def _most(
    pods: Iterable[Document], one: Cluster, said: Document, where: Callable[[Mapping[str, str]], bool] = lambda _: True
) -> int:
    """Pods that a first fit finds room for, those that ask least first."""
    healthy = {
        name: sum(card["health"] for card in device["spec"]["devices"]) for name, device in one.of("Device").items()
    }
    left = {}
    for name, amounts in _left(one, said).items():
        node = one.of("Node")[name]
        shut = any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", ()))
        if shut or node["spec"].get("unschedulable") or not where(node["metadata"]["labels"]):
            continue
        sick = int(node["status"]["allocatable"].get(GPU, 0)) - healthy[name] if name in healthy else 0
        left[name] = [amounts[0], amounts[1] - sick, amounts[2]]
    count = 0
    for cpu, gpus in sorted(map(_asked, pods), key=lambda asked: asked[::-1]):
        room = [amounts for amounts in left.values() if amounts[0] >= cpu and amounts[1] >= gpus and amounts[2]]
        if room:
            best = min(room, key=lambda amounts: (amounts[1], amounts[0]))
            best[0], best[1], best[2] = best[0] - cpu, best[1] - gpus, best[2] - 1
            count += 1
    return count


def main(first: int, last: int) -> int:
    """Runs seeds; the number of those with something wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            try:
                one = cluster(seed)
                faults = judged(one, answer(one, Path(folder)))
            except Exception:
                faults = [traceback.format_exc(limit=-3)]
            wrong += bool(faults)
            for fault in faults:
                print(f"seed {seed}: {fault}", flush=True)
    print(f"{last - first} clusters, {wrong} with something wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]))))
