"""What `koordpy explain` says would help, done: each remedy is carried out in the manifests, and then it has to help.

`remedied` knows every form of wouldFitIf that tests.cli.random_manifests brings up; it answers what kind of remedy it
was and what is untrue of it.
"""

import contextlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordpy.cli.main import main as koordpy
from tests.cli.naive_reading import Reading, asked
from tests.cli.random_manifests import GANG, GANG_KEYS, GPU, Cluster

Document = dict[str, Any]
WISH = GANG_KEYS + "networkTopologyAware"
MANY = "1000"


def told(words: Iterable[str], one: Cluster, folder: Path) -> Document:
    """The JSON that a command says of a cluster."""
    command, *rest = words
    (folder / "input.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": one.documents}))
    (folder / "config.json").write_text(json.dumps(one.config))
    out, err = io.StringIO(), io.StringIO()
    files = ["-f", str(folder / "input.json"), "--config", str(folder / "config.json")]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = koordpy([command, *files, "-o", "json", *rest])
    assert status == 0, err.getvalue()
    found: Document = json.loads(out.getvalue())
    return found


def without_evictions(one: Cluster) -> Cluster:
    """The same where nobody has to go."""
    config = {**one.config, "consolidation": {"enabled": False}}
    config["preemption"] = {**config["preemption"], "enabled": False}
    config["fairness"] = {**config["fairness"], "reclaim": "off"}
    return Cluster(one.documents, config, one.arguments)


@dataclass
class Job:
    """A pending pod with its gangs, in a cluster that may be changed for it."""

    cluster: Cluster
    pod: str
    folder: Path

    def __post_init__(self) -> None:
        self.gangs = self._gangs()

    def _gangs(self) -> set[str]:
        first = self.cluster.of("Pod")[self.pod]["metadata"]["labels"].get(GANG)
        found = {first} if first else set()
        linked = []
        for name, group in self.cluster.of("PodGroup").items():
            notes = json.loads(group["metadata"].get("annotations", {}).get(GANG_KEYS + "groups", "[]"))
            linked.append({name, *(note.partition("/")[2] for note in notes)})
        while any(links & found and not links <= found for links in linked):
            found |= {name for links in linked if links & found for name in links}
        return found

    def alone(self) -> Cluster:
        """A copy of the cluster in which nobody else waits."""
        documents = []
        for document in json.loads(json.dumps(self.cluster.documents)):
            waits = document["kind"] == "Pod" and "nodeName" not in document["spec"]
            if not waits or document["metadata"]["name"] == self.pod or self._own(document):
                documents.append(document)
        return Cluster(documents, self.cluster.config, self.cluster.arguments)

    def _own(self, pod: Document) -> bool:
        return pod["metadata"]["labels"].get(GANG) in self.gangs

    def placed(self, cluster: Cluster) -> bool:
        """Whether the first round binds the pod, or some of its gangs."""
        found = told(["simulate", "--rounds", "1", *cluster.arguments], cluster, self.folder)
        pods = cluster.of("Pod")
        return any(b["pod"] == self.pod or (self.gangs and self._own(pods[b["pod"]])) for b in found["bindings"])


def remedied(job: Job, words: str) -> tuple[str, str]:
    """(kind of remedy, what is untrue of it: empty where it helps). An unknown kind is empty."""
    for kind, (form, does) in REMEDIES.items():
        if match := re.match(form, words):
            return kind, "" if does(job, match) else words
    return "", ""


def _node_lacks(job: Job, match: re.Match[str]) -> bool:
    return _nodes_take(job, match[0], [match[1]], match[2])


def _nodes_refuse(job: Job, match: re.Match[str]) -> bool:
    return _nodes_take(job, match[0], None, "")


def _nodes_take(job: Job, words: str, names: list[str] | None, lacks: str) -> bool:
    """Carries out all that is said of some nodes; the pod alone has to fit at least as many of them as are counted."""
    one = Cluster(json.loads(json.dumps(job.cluster.documents)), {})
    before = Reading(job.cluster.documents).verdicts(job.cluster.of("Pod")[job.pod])
    nodes, pods = one.of("Node"), one.of("Pod")
    pod = pods[job.pod]
    for node in names or ():
        for amount, resource, _ in re.findall(r"(\d+) more ([\w./]+) \(free (\d+)\)", lacks):
            _give(one, node, resource, int(amount))
        for resource, _, _ in re.findall(r"([\w./]+) of (\d+) \(it has (\d+) in all\)", lacks):
            _give(one, node, resource, int(MANY))
    for name, node in nodes.items():
        if "uncordon them" in words:
            node["spec"].pop("unschedulable", None)
        for resource in re.findall(r"Insufficient (cpu|nvidia\.com/gpu)", words):
            _give(one, name, resource, int(MANY))
        if "Too many pods" in words:
            node["status"]["allocatable"]["pods"] = MANY
    if "Insufficient gpu devices" in words:
        one.documents = [document for document in one.documents if document["kind"] != "Device"]
    if "tolerate the taint" in words:
        pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    if "affinity/selector" in words:
        del pod["spec"]["nodeSelector"]
    if "spread constraints" in words:
        del pod["spec"]["topologySpreadConstraints"]
    if "free ports" in words:
        del pod["spec"]["containers"][0]["ports"]
    if "pod affinity rules" in words or "anti-affinity rules" in words:
        for other in pods.values() if "existing pods" in words else (pod,):
            other["spec"].pop("affinity", None)
    after = Reading(one.documents).verdicts(pod)
    gained = [name for name in names or nodes if before[name].reasons and not after[name].reasons]
    return len(gained) >= (1 if names else int(words.split()[0]))


def _give(one: Cluster, node: str, resource: str, amount: int) -> None:
    """Room, and sound cards for it."""
    allocatable = one.of("Node")[node]["status"]["allocatable"]
    allocatable[resource] = str(int(allocatable.get(resource, 0)) + amount)
    device = one.of("Device").get(node) if resource == GPU else None
    if device is not None:
        cards = device["spec"]["devices"]
        first = len(cards)
        cards += [
            {"type": "gpu", "minor": k, "id": f"GPU-new-{k}", "health": True} for k in range(first, first + amount)
        ]


def _slots(job: Job, match: re.Match[str]) -> bool:
    """A node of that many slots in that domain; of gangs of one kind that nothing but room decides on."""
    one = without_evictions(job.alone())
    members = [pod for pod in one.of("Pod").values() if "nodeName" not in pod["spec"]]
    plain = {"schedulerName", "containers", "priorityClassName"}
    if len({json.dumps(asked(pod)) for pod in members}) > 1 or any(set(pod["spec"]) - plain for pod in members):
        return True
    path = (match[2] or "").split("/") if match[2] else []
    labels = dict(zip(("spine", "block"), path, strict=False))
    there = [node["metadata"]["labels"] for node in one.of("Node").values()]
    if not any(labels.items() <= known.items() for known in there):  # a node without labels is a domain of its own
        return True
    slots = int(match[1])
    amounts = {resource: str(amount * slots) for resource, amount in asked(members[0]).items()}
    status = {"allocatable": {**amounts, "memory": "64Gi", "pods": str(slots)}}
    meta = {"name": "extra", "labels": labels}
    one.documents.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status})
    return job.placed(one)


def _wishes(job: Job, match: re.Match[str]) -> bool:
    """MustGather and podCountMultiple given up as told."""
    one = without_evictions(job.alone())
    preferred = re.findall(r"(\w+) were PreferGather", match[0])
    uncounted = re.findall(r"podCountMultiple (\w+)=\d+ were left out", match[0])
    for name, group in one.of("PodGroup").items():
        notes = group["metadata"].get("annotations", {})
        if name in job.gangs and WISH in notes:
            wish = json.loads(notes[WISH])
            for rule in wish["gatherStrategy"]:
                if rule["layer"] in preferred:
                    rule["strategy"] = "PreferGather"
                if rule["layer"] in uncounted:
                    rule.pop("podCountMultiple", None)
            notes[WISH] = json.dumps(wish)
    return job.placed(one)


def _quotas(job: Job, match: re.Match[str]) -> bool:
    """Limits as large as told; that a runtime grows with its quota's max is what is tried."""
    claims = "others would give back" in match[0]
    one = job.alone() if claims else without_evictions(job.alone())
    quotas = one.of("ElasticQuota")
    for which, name, needed, resource, had in re.findall(
        r"(min|max) of quota (\w+) were (\d+) ([\w./]+) \(it is (\d+)\)", match[0]
    ):
        spec = quotas[name]["spec"]
        if int(spec[which].get(resource, 0)) != int(had):
            return False
        spec[which][resource] = needed
        spec["max"][resource] = str(max(int(spec["max"].get(resource, 0)), int(needed)))
    room = re.sub(r"(?:, and )?(?:min|max) of quota \w+ were \d+ [\w./]+ \(it is \d+\)(?:, and )?", "", match[0])
    room = room.removesuffix(": others would give back")
    raised = Cluster(one.documents, job.cluster.config, one.arguments)
    if job.placed(one) or (not room and job.placed(raised)):
        return not room
    if claims or not room or remedied(job, room)[1]:
        return False
    found = told(["simulate", "--rounds", "1"], one, job.folder)
    text = next(wait["message"] for wait in found["pending"] if wait["pod"] == job.pod)
    return "quotas, quotaName" not in text


def _before(job: Job, match: re.Match[str]) -> bool:
    return job.placed(job.alone())


REMEDIES = {
    "resources": (r"node (\S+) had (.*?)(?:; and .*)?$", _node_lacks),
    "filters": (r"\d+ (?:node\(s\) |Insufficient |Too many pods).*$", _nodes_refuse),
    "slots": (r"(\d+) more slot\(s\) were free in (?:\w+ (\S+/\S+|s\d+)|the cluster)$", _slots),
    "wishes": (r"(?:\w+ were PreferGather|podCountMultiple ).*$", _wishes),
    "quotas": (r"(?:min|max) of quota (?!.*runtime of quota).*$", _quotas),
    "queue": (r"the jobs before it in the queue left it their room$", _before),
}


def untruths(one: Cluster, pod: str, folder: Path) -> Iterator[str]:
    """What `explain` says of a pod that does not hold."""
    said = told(["explain", "--pod", pod], one, folder)
    own = one.of("Pod")[pod]
    verdicts = Reading(one.documents).verdicts(own)
    if said["nodes"] or not said["message"]:
        found = {
            node["node"]: {(r["plugin"], r["code"], r["message"]) for r in node["reasons"]} for node in said["nodes"]
        }
        expected = {name: {(v.plugin, v.code, reason) for reason in v.reasons} for name, v in verdicts.items()}
        if found != expected:
            yield f"{pod}: {found} instead of {expected}"
    if said["feasibleNodes"] != sum(not verdict.reasons for verdict in verdicts.values()) and said["nodes"]:
        yield f"{pod}: {said['feasibleNodes']} feasible nodes"
    job = Job(one, pod, folder)
    for words in said["wouldFitIf"]:
        if wrong := remedied(job, words)[1]:
            yield f"{pod} would not fit if {wrong}"
