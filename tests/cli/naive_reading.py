# SPDX-License-Identifier: Apache-2.0
"""Manifests read as a person would: what each node says to a pod, filter by filter (kube-parity.md 1 and 2).

Knows the features that tests.cli.random_manifests uses and no others. Nothing here is shared with the planner: no
arrays, no shapes, no caches, only dictionaries and sums.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]
GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ALLOCATION = "topology.scheduling.koordinator.sh/gpu"
U, UU = "Unschedulable", "UnschedulableAndUnresolvable"
GIBI = 1 << 30


@dataclass(frozen=True)
class Verdict:
    """What a node says to a pod: nothing where it takes it."""

    plugin: str = ""
    code: str = ""
    reasons: tuple[str, ...] = ()


def asked(pod: Document) -> dict[str, int]:
    """Requests in whole units, of what the generator's pods ask for."""
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    return {name: int(amount) for name, amount in requests.items() if int(amount)}


def offered(node: Document) -> dict[str, int]:
    """Allocatable in whole units, memory in bytes."""
    given = node["status"]["allocatable"]
    return {name: int(a.removesuffix("Gi")) * GIBI if a.endswith("Gi") else int(a) for name, a in given.items()}


def app(pod: Document) -> str:
    """The label that selectors look for."""
    return str(pod["metadata"]["labels"]["app"])


class Reading:
    """A cluster as its manifests tell it; `on` is node -> pods there and may be added to."""

    def __init__(self, documents: Iterable[Document]) -> None:
        listed = list(documents)
        self.nodes = {d["metadata"]["name"]: d for d in listed if d["kind"] == "Node"}
        self.devices = {d["metadata"]["name"]: d for d in listed if d["kind"] == "Device"}
        self.pods = {d["metadata"]["name"]: d for d in listed if d["kind"] == "Pod"}
        self.on: dict[str, list[Document]] = {name: [] for name in self.nodes}
        for pod in self.pods.values():
            if "nodeName" in pod["spec"]:
                self.on[pod["spec"]["nodeName"]].append(pod)

    # -- one node ------------------------------------------------------------------------------------------------------

    def verdict(self, pod: Document, name: str) -> Verdict:
        """The first filter that has something against the node speaks for it."""
        for found in self._filters(pod, name):
            if found is not None:
                return found
        return Verdict()

    def verdicts(self, pod: Document) -> dict[str, Verdict]:
        """The same for every node."""
        return {name: self.verdict(pod, name) for name in self.nodes}

    def _filters(self, pod: Document, name: str) -> Iterator[Verdict | None]:
        node = self.nodes[name]
        if node["spec"].get("unschedulable"):
            yield Verdict("NodeUnschedulable", UU, ("node(s) were unschedulable",))
        hard = [taint for taint in node["spec"].get("taints", ()) if taint["effect"] != "PreferNoSchedule"]
        if hard and not pod["spec"].get("tolerations"):
            yield Verdict("TaintToleration", UU, ("node(s) had untolerated taint(s)",))
        labels = node["metadata"]["labels"]
        if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
            yield Verdict("NodeAffinity", UU, ("node(s) didn't match Pod's node affinity/selector",))
        if ports(pod) & {port for other in self.on[name] for port in ports(other)}:
            yield Verdict("NodePorts", U, ("node(s) didn't have free ports for the requested pod ports",))
        yield self._fit(pod, name)
        yield self._spread(pod, name)
        yield self._affinity(pod, name)
        yield self._gpus(pod, name)

    def free(self, name: str) -> dict[str, int]:
        """What the pods of a node leave, and how many more pods it takes."""
        left = offered(self.nodes[name])
        left["pods"] -= len(self.on[name])
        for pod in self.on[name]:
            for resource, amount in asked(pod).items():
                left[resource] = left.get(resource, 0) - amount
        return left

    def _fit(self, pod: Document, name: str) -> Verdict | None:
        left, whole = self.free(name), offered(self.nodes[name])
        lacking = [r for r, amount in asked(pod).items() if amount > left.get(r, 0)]
        reasons = ["Too many pods"] if left["pods"] < 1 else []
        reasons += [f"Insufficient {r}" for r in lacking]
        never = any(asked(pod)[r] > whole.get(r, 0) for r in lacking)
        return Verdict("NodeResourcesFit", UU if never else U, tuple(reasons)) if reasons else None

    def _spread(self, pod: Document, name: str) -> Verdict | None:
        every = pod["spec"].get("topologySpreadConstraints", ())
        rules = [rule for rule in every if rule["whenUnsatisfiable"] == "DoNotSchedule"]
        what = "node(s) didn't match pod topology spread constraints"
        for rule in rules:
            key, wanted = rule["topologyKey"], rule["labelSelector"]["matchLabels"]["app"]
            counts: Counter[str] = Counter()
            for other, node in self.nodes.items():
                labels = node["metadata"]["labels"]
                chosen = all(labels.get(k) == v for k, v in pod["spec"].get("nodeSelector", {}).items())
                if key in labels and chosen:
                    counts[labels[key]] += sum(app(one) == wanted for one in self.on[other])
            own = self.nodes[name]["metadata"]["labels"].get(key)
            if own is None:
                return Verdict("PodTopologySpread", UU, (f"{what} (missing required label)",))
            if counts[own] + (app(pod) == wanted) - min(counts.values()) > rule["maxSkew"]:
                return Verdict("PodTopologySpread", U, (what,))
        return None

    def _near(self, name: str, key: str) -> list[Document]:
        """Pods in the node's domain of a key; none where it lacks the key."""
        own = self.nodes[name]["metadata"]["labels"].get(key)
        same = [n for n, node in self.nodes.items() if own and node["metadata"]["labels"].get(key) == own]
        return [pod for other in same for pod in self.on[other]]

    def _affinity(self, pod: Document, name: str) -> Verdict | None:
        labels = self.nodes[name]["metadata"]["labels"]
        for term in terms(pod, "podAffinity"):
            wanted, key = term["labelSelector"]["matchLabels"]["app"], term["topologyKey"]
            anywhere = any(
                app(one) == wanted and key in self.nodes[n]["metadata"]["labels"]
                for n, pods in self.on.items()
                for one in pods
            )
            first = not anywhere and app(pod) == wanted and key in labels
            if not first and not any(app(one) == wanted for one in self._near(name, key)):
                return Verdict("InterPodAffinity", UU, ("node(s) didn't match pod affinity rules",))
        for term in terms(pod, "podAntiAffinity"):
            wanted = term["labelSelector"]["matchLabels"]["app"]
            if any(app(one) == wanted for one in self._near(name, term["topologyKey"])):
                return Verdict("InterPodAffinity", U, ("node(s) didn't match pod anti-affinity rules",))
        for other, pods in self.on.items():
            for one in pods:
                for term in terms(one, "podAntiAffinity"):
                    key = term["topologyKey"]
                    own = self.nodes[other]["metadata"]["labels"].get(key)
                    if term["labelSelector"]["matchLabels"]["app"] == app(pod) and own and labels.get(key) == own:
                        text = "node(s) didn't satisfy existing pods anti-affinity rules"
                        return Verdict("InterPodAffinity", U, (text,))
        return None

    def _gpus(self, pod: Document, name: str) -> Verdict | None:
        count = asked(pod).get(GPU, 0)
        if not count or name not in self.devices:
            return None
        healthy = {str(card["minor"]) for card in self.devices[name]["spec"]["devices"] if card["health"]}
        if count > len(healthy):
            return Verdict("GPUDevices", UU, ("Insufficient gpu devices",))
        return Verdict("GPUDevices", U, ("Insufficient gpu devices",)) if count > self.cards(name) else None

    def cards(self, name: str) -> int:
        """Free healthy GPUs of a node with a Device (gpu-topology.md 2)."""
        healthy = {str(card["minor"]) for card in self.devices[name]["spec"]["devices"] if card["health"]}
        whole = offered(self.nodes[name]).get(GPU, 0)
        holders = [one for one in self.on[name] if asked(one).get(GPU)]
        requested = sum(asked(one)[GPU] for one in holders)
        held: set[str] = set()
        for one in holders:
            note = one["metadata"].get("annotations", {}).get(ALLOCATION)
            if note is None:
                return min(whole, len(healthy)) - requested
            held |= {minor for minors in json.loads(note)["allocatedGPUs"].values() for minor in minors}
        return min(whole - requested, len(healthy - held))

    # -- slots ---------------------------------------------------------------------------------------------------------

    def slots(self, pod: Document, name: str) -> int:
        """Further copies that fit, alone, one after the other (gang-network.md 5)."""
        before, device = list(self.on[name]), self.devices.get(name)
        count = asked(pod).get(GPU, 0)
        most = max(0, self.cards(name)) // count if count and device is not None else None
        self.devices.pop(name, None)  # copies have no GPUs by name
        number = 0
        while (most is None or number < most) and not self.verdict(pod, name).reasons:
            self.on[name].append(pod)
            number += 1
        self.on[name] = before
        if device is not None:
            self.devices[name] = device
        return number

    def room(self, pods: Sequence[Document], inside: Callable[[str], bool]) -> int:
        """Slots in some nodes of the reference pod: the first of those that have fewest in the whole cluster."""
        reference = min(pods, key=lambda pod: sum(self.slots(pod, name) for name in self.nodes))
        return sum(self.slots(reference, name) for name in self.nodes if inside(name))

    def path(self, name: str) -> str:
        """Where a node stands in the tree of spines and blocks; without a label it is a domain of its own."""
        labels = self.nodes[name]["metadata"]["labels"]
        return f"{labels.get('spine', name)}/{labels.get('block', name)}"


def ports(pod: Document) -> set[int]:
    """Host ports."""
    return {port["hostPort"] for port in pod["spec"]["containers"][0].get("ports", ())}


def terms(pod: Document, kind: str) -> Sequence[Document]:
    """Required terms of podAffinity or podAntiAffinity."""
    found: Sequence[Document] = pod["spec"].get("affinity", {}).get(kind, {}).get(REQUIRED, ())
    return found


def sentence(verdicts: Mapping[str, Verdict], *, gang: bool) -> str:
    """`0/N nodes are available: ...` of kube-parity.md 1; gang: a node that would take the pod cannot hold them all."""
    counts = Counter(reason for verdict in verdicts.values() for reason in verdict.reasons)
    if gang and (taking := sum(not verdict.reasons for verdict in verdicts.values())):
        counts["node(s) cannot hold the whole gang"] = taking
    entries = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{len(verdicts)} nodes are available: {', '.join(entries)}."


def helpless(verdicts: Mapping[str, Verdict]) -> str:
    """The sentence on preemption where nothing was found."""
    never = sum(verdict.code == UU for verdict in verdicts.values())
    parts = [f"{len(verdicts) - never} No preemption victims found for incoming pod"] if never < len(verdicts) else []
    parts += [f"{never} Preemption is not helpful for scheduling"] if never else []
    return f"preemption: 0/{len(verdicts)} nodes are available: {', '.join(sorted(parts))}."
