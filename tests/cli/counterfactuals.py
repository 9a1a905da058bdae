# SPDX-License-Identifier: Apache-2.0
"""What `koordpy explain` says would help, done: each suggestion is carried out in the manifests and has to help then.

`carried_out` reads the sentence alone and shares nothing with the planner. A sentence of a form that it does not know
is as wrong as one that does not help.
"""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from koordpy.api.quantity import parse_exact
from koordpy.cli.main import main as koordpy
from tests.cli.naive_reading import Reading
from tests.cli.random_manifests import GANG_KEYS, QUOTA_KEYS, Cluster, gang_name, run_again

Document = dict[str, Any]
WISH = GANG_KEYS + "networkTopologyAware"
PLACES = ("kubernetes.io/hostname", "zone", "rack", "block", "spine")
"""Node labels by which places differ."""


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


@dataclass
class Job:
    """A pending pod with its gangs, in a cluster that may be changed for it."""

    cluster: Cluster
    pod: str
    folder: Path
    place: int = 0
    """Which of the places new nodes are added in that may stand anywhere."""

    def __post_init__(self) -> None:
        self.gangs = self._gangs()

    def _gangs(self) -> set[str]:
        first = gang_name(self.cluster.of("Pod")[self.pod])
        found = {first} if first else set()
        linked = []
        for name, group in self.cluster.of("PodGroup").items():
            notes = json.loads(group["metadata"].get("annotations", {}).get(GANG_KEYS + "groups", "[]"))
            linked.append({name, *(note.partition("/")[2] for note in notes)})
        roles = {name for pod in self.cluster.of("Pod").values() if ":" in (name := gang_name(pod))}
        linked += [{one, other} for one in roles for other in roles if one.split(":")[0] == other.split(":")[0]]
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
        return gang_name(pod) in self.gangs

    def bound(self, cluster: Cluster) -> set[str]:
        """Own pods that the first round binds."""
        found = told(["simulate", "--rounds", "1", *cluster.arguments], cluster, self.folder)
        pods = cluster.of("Pod")
        bound = [b["pod"] for b in found["bindings"]]
        return {name for name in bound if name == self.pod or (self.gangs and self._own(pods[name]))}

    def placed(self, cluster: Cluster) -> bool:
        """Whether the first round binds the pod, or its gangs where it binds none of them as things are.

        A gang is bound where as many members as it asks for have nodes then, counted with those that run.
        """
        found = self.bound(cluster)
        if not self._whole(cluster, found):
            return False
        return self.pod in found or (bool(found) and not self.bound(self.cluster))

    def _whole(self, cluster: Cluster, found: set[str]) -> bool:
        """Whether every gang of the unit has the minimum of its PodGroup."""
        have = Counter[str]()
        for name, pod in cluster.of("Pod").items():
            have[gang_name(pod)] += name in found or "nodeName" in pod["spec"]
        groups = cluster.of("PodGroup")
        least = {name: int(groups[name]["spec"].get("minMember", 0)) for name in self.gangs if name in groups}
        return all(have[name] >= number for name, number in least.items())

    def own_pods(self, cluster: Cluster) -> list[Document]:
        """The pending pods of its unit."""
        return [
            pod
            for name, pod in cluster.of("Pod").items()
            if "nodeName" not in pod["spec"] and (name == self.pod or (self.gangs and self._own(pod)))
        ]


def remedied(job: Job, words: str) -> str:
    """What is untrue of a suggestion; empty where it helps."""
    if words.startswith("free "):  # one choice of devices is enough
        tried = [_wrong(job, words) for job.place in range(CHOICES)]
        return min(tried)
    places = range(3) if "in the cluster, like" in words else (0,)
    for job.place in places:
        if wrong := _wrong(job, words):
            return wrong
    return ""


CHOICES = 12
"""Choices of devices that are tried of a sentence that names only their number."""


def _wrong(job: Job, words: str) -> str:
    """What is untrue of a suggestion for one of its places; empty where it helps."""
    try:
        one = carried_out(job, words)
    except ValueError as unknown:
        return f"{words} ({unknown})"
    if more := quota_faults(one) - quota_faults(job.cluster):
        return f"{words} ({more})"
    return "" if job.placed(one) else words


def quota_faults(one: Cluster) -> set[str]:
    """Quotas whose min is above their max, and parents whose min is less than the sum of their children's."""
    faults, quotas = set[str](), one.of("ElasticQuota")
    resources = {resource for quota in quotas.values() for resource in quota["spec"].get("min", {})}
    for resource in resources:
        least = {name: parse_exact(quota["spec"].get("min", {}).get(resource, 0)) for name, quota in quotas.items()}
        sums: dict[str, Fraction] = dict.fromkeys(quotas, Fraction(0))
        for name, quota in quotas.items():
            most = quota["spec"].get("max", {}).get(resource)
            if most is not None and least[name] > parse_exact(most):
                faults.add(f"min above max of {name}: {resource}")
            parent = quota["metadata"].get("labels", {}).get(QUOTA_KEYS + "parent", "")
            sums[parent] = sums.get(parent, Fraction(0)) + least[name]
        faults |= {f"sum of min below {name}: {resource}" for name in quotas if sums[name] > least[name]}
    return faults


def carried_out(job: Job, words: str) -> Cluster:
    """The cluster after a suggestion. Raises ValueError where a part of it has no form that is known."""
    one = Cluster(json.loads(json.dumps(job.cluster.documents)), json.loads(json.dumps(job.cluster.config)))
    one.arguments = list(job.cluster.arguments)
    left = re.sub(
        r"(: pods of other quotas or users would be evicted|: \d+ pods? would be (evicted|moved) for it"
        r"(, more than PodDisruptionBudgets? [^:]+ allows?)?)$",
        "",
        words,
    )
    while left:
        for form, does in FORMS.items():
            match = re.match(rf"(?:{form})(?=$|, and )", left)
            if match:
                CARRIED[does.__name__.removeprefix("_")] += 1
                does(one, job, match)
                left = left[match.end() :].removeprefix(", and ")
                break
        else:
            raise ValueError(f"no such form: {left}")
    return one


CARRIED: Counter[str] = Counter()
"""How often each kind of suggestion was carried out."""
NAMES = r"[\w./-]+(?: to [\w./-]+)?(?:(?:, | and )[\w./-]+(?: to [\w./-]+)?)*"
Doing = Callable[[Cluster, Job, re.Match[str]], None]


def _names(text: str) -> list[str]:
    return re.split(r", | and ", text)


def _specs(one: Cluster, job: Job) -> Iterator[Document]:
    for pod in job.own_pods(one):
        yield pod["spec"]


def _tolerate(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for spec in _specs(one, job):
        for taint in match[1].split(" and "):
            rest, _, effect = taint.rpartition(":")
            key, _, value = rest.partition("=")
            spec.setdefault("tolerations", []).append({"key": key, "value": value, "effect": effect})


def _give_up(one: Cluster, job: Job, match: re.Match[str]) -> None:
    kind, key = match[1].split()[-1], match[2]
    for spec in _specs(one, job):
        if kind == "constraint":
            spec["topologySpreadConstraints"] = [
                rule
                for rule in spec.get("topologySpreadConstraints", [])
                if rule["topologyKey"] != key or rule["whenUnsatisfiable"] == "ScheduleAnyway"
            ]
            continue
        terms = spec.get("affinity", {}).get("podAffinity" if kind == "affinity" else "podAntiAffinity", {})
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        if required in terms:
            terms[required] = [term for term in terms[required] if term["topologyKey"] != key]


def _give_up_port(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for spec in _specs(one, job):
        for container in spec["containers"]:
            for port in container.get("ports", []):
                if port.get("hostPort") == int(match[1]):
                    del port["hostPort"]


def _unselect(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for spec in _specs(one, job):
        if match[1]:
            if spec.get("nodeSelector", {}).get(match[1]) == match[2]:
                del spec["nodeSelector"][match[1]]
        elif "node selector" in match[0]:
            spec.pop("nodeSelector", None)
        if "node affinity" in match[0]:
            spec.get("affinity", {}).pop("nodeAffinity", None)


def _ask_less(one: Cluster, job: Job, match: re.Match[str]) -> None:
    def edit(amounts: Document) -> None:
        if match["what"] in amounts:
            amounts[match["what"]] = match["less"]

    _each_amount(one, job, edit, lambda pod: _is_meant(match["of"], pod))


def _is_meant(whose: str, pod: Document) -> bool:
    """Whether a pod is one of `it`, `each member`, `each pod of gang NS/NAME` or `role NAME`, or `pod NS/NAME`."""
    role = whose.partition("each pod of role ")[2]
    named = bool(role) and f"-{role}-" in pod["metadata"]["name"]
    return named or whose in ("it", "each member", f"each pod of gang {_gang_of(pod)}", _job_of_pod(pod))


def _job_of_pod(pod: Document) -> str:
    return f"pod {pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


def _rename(one: Cluster, job: Job, match: re.Match[str]) -> None:
    def edit(amounts: Document) -> None:
        if match[2] in amounts:
            amounts[match[1]] = amounts.pop(match[2])

    _each_amount(one, job, edit)


def _each_amount(
    one: Cluster, job: Job, edit: Callable[[Document], None], chosen: Callable[[Document], bool] = lambda pod: True
) -> None:
    for spec in (pod["spec"] for pod in job.own_pods(one) if chosen(pod)):
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            for amounts in container.get("resources", {}).values():
                edit(amounts)


def _evictable(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for pod in job.own_pods(one):
        pod["metadata"]["labels"].pop(QUOTA_KEYS + "preemptible", None)


def _unannotate(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for pod in job.own_pods(one):
        pod["metadata"].get("annotations", {}).pop(match[1], None)


def _wish(one: Cluster, job: Job, match: re.Match[str]) -> None:
    layer, scope, uncounted = match["layer"], match["scope"] or "group", match["uncounted"]
    listed = match["gangs"] or match["counting"]
    gangs = {name.partition("/")[2] for name in _names(listed)} if listed else job.gangs
    groups = [group for name, group in one.of("PodGroup").items() if name in gangs]
    for holder in _annotated([*groups, *job.own_pods(one), *_workloads(one, job)]):
        notes = holder["metadata"]["annotations"]
        if WISH not in notes:
            continue
        wish = json.loads(notes[WISH])
        for rule in wish["gatherStrategy"]:
            if rule["layer"] == layer and rule.get("scope", "group") == scope:
                rule["strategy"] = "PreferGather"
                rule.pop("scope", None)
            if rule["layer"] == uncounted:
                rule.pop("podCountMultiple", None)
        notes[WISH] = json.dumps(wish)


def _workloads(one: Cluster, job: Job) -> list[Document]:
    """The workloads whose name the pods of the unit begin with."""
    names = [pod["metadata"]["name"] for pod in job.own_pods(one)]
    kinds = ("Pod", "Node", "PodGroup")
    found = [document for document in one.documents if document["kind"] not in kinds]
    return [it for it in found if any(name.startswith(f"{it['metadata']['name']}-") for name in names)]


def _annotated(value: Any) -> Iterator[Document]:
    """All objects and pod templates in a value that have annotations."""
    if isinstance(value, dict):
        if isinstance(value.get("metadata"), dict) and value["metadata"].get("annotations"):
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _annotated(each)


def _least_of_workload(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """`annotation KEY of KIND NAME`, or `annotation KEY on the pod template of role ROLE of KIND NAME`."""
    kind, name = match["kind"], match["name"]
    holder = one.of(kind)[name]
    if match["template"]:
        found = list(_templates(_role(holder, match["role"]) if match["role"] else holder))
        holder = found[0]
    meta = holder.setdefault("metadata", {})
    meta["annotations"] = {**(meta.get("annotations") or {}), match["key"]: match["least"]}


def _least_of_pods(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """`annotation KEY` or `label KEY` of the members of a gang."""
    for pod in one.of("Pod").values():
        if _gang_of(pod) == match["whose"]:
            pod["metadata"].setdefault(f"{match['field']}s", {})[match["key"]] = match["least"]


def _templates(value: Any) -> Iterator[Document]:
    """All pod templates in a value."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _templates(each)


def _role(value: Any, role: str) -> Any:
    """The part of a workload that is about a role: an object with this name, or under a key that begins with it."""
    parts = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for name, part in parts:
        named = isinstance(part, dict) and role in (part.get("name"), part.get("groupName"))
        if named or str(name).lower().startswith(role.lower()):
            return part
    return next((found for _, part in parts if (found := _role(part, role)) is not None), None)


def _members(one: Cluster, job: Job, match: re.Match[str]) -> None:
    own = job.own_pods(one)
    for number in range(int(match[1]) - int(match[2])):
        pod = json.loads(json.dumps(own[-1]))
        pod["metadata"]["name"] += f"-new-{number}"
        pod["metadata"].pop("uid", None)
        one.documents.append(pod)


def _missing_members(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """Copies of the last member of a gang, which exist beside the present ones."""
    own = [pod for pod in job.own_pods(one) if _gang_of(pod) == match[2]]
    for number in range(int(match[1])):
        pod = json.loads(json.dumps(own[-1]))
        pod["metadata"]["name"] += f"-new-{number}"
        pod["metadata"].pop("uid", None)
        one.documents.append(pod)


def _grouped(one: Cluster, job: Job, match: re.Match[str]) -> None:
    space, _, name = match[1].partition("/")
    meta = {"name": name, "namespace": space}
    made = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
    one.documents.append(made | {"spec": {"minMember": int(match[2])}})


def _claimed(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """Bound claims, each with a volume without node affinity."""
    for key in _names(match[1]):
        space, _, name = key.partition("/")
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"]}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"of-{name}"}}
        bound = {"claimRef": {"namespace": space, "name": name, "uid": f"uid-{name}"}}
        one.documents.append(volume | {"spec": spec | bound, "status": {"phase": "Bound"}})
        meta = {"name": name, "namespace": space, "uid": f"uid-{name}"}
        meta |= {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}  # type: ignore[dict-item]
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta}
        wants = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        one.documents.append(claim | {"spec": wants | {"volumeName": f"of-{name}"}, "status": {"phase": "Bound"}})


def _uncordon(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for name, node in one.of("Node").items():
        if match[1] is None or name in _names(match[1]):
            node["spec"].pop("unschedulable", None)


def _label(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for name in _names(match[1]):
        labels = one.of("Node")[name]["metadata"].setdefault("labels", {})
        for key, value in (text.split("=") for text in match[2].split(" and ")):
            assert labels.setdefault(key, value) == value, match[0]


def _new_nodes(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """`2 more nodes with 8 GPU in layer a and 1 in layer b, like nodes m and n`: copies in the order of the places."""
    places = re.findall(r"(\d+) (?:more nodes? with (?:room for )?\S+ \S+ )?in ", match["new"])
    numbers = [int(number) for number in places]
    amount, resource, templates = match["amount"], match["resource"], _names(match["like"])
    assert len(numbers) == len(templates), match[0]
    if match["new"].endswith(" in the cluster"):
        rules = json.dumps(
            [(s.get("nodeSelector"), s.get("affinity", {}).get("nodeAffinity")) for s in _specs(one, job)]
        )
        free = [key for key in PLACES if json.dumps(key) not in rules]
        templates = [_anywhere(one, templates[0], job.place, free)]
    names = iter(f"new-{i}" for i in range(sum(numbers)))
    for number, like in zip(numbers, templates, strict=True):
        assert one.of("Node")[like]["status"]["allocatable"].get(resource, amount) == amount, match[0]
        for name in [next(names) for _ in range(number)]:
            for kind in ("Node", "Device", "NodeResourceTopology"):
                if like not in one.of(kind):
                    continue
                made = json.loads(json.dumps(one.of(kind)[like]))
                made["metadata"] |= {"name": name, "uid": f"{kind}-{name}"}
                if "kubernetes.io/hostname" in made["metadata"].get("labels", {}):
                    made["metadata"]["labels"]["kubernetes.io/hostname"] = name
                one.documents.append(made)
            one.documents += [_like(found, like, name) for found in _slices(one, like)]
            one.documents += [on_node(pod, name) for pod in daemons_of(one, like)]


def _slices(one: Cluster, node: str) -> list[Document]:
    """The ResourceSlices of a node, which a node like it has, too."""
    return [it for it in one.of("ResourceSlice").values() if it["spec"].get("nodeName") == node]


def _like(found: Document, like: str, name: str = "") -> Document:
    """A ResourceSlice as another node has it. Its pool has the name of the node."""
    made: Document = json.loads(json.dumps(found))
    made["metadata"] = {"name": f"{found['metadata']['name']}-{name}" if name else ""}
    made["spec"]["nodeName"] = name
    pool = made["spec"]["pool"]
    pool["name"] = name if pool["name"] == like else f"{pool['name']}-{name}"
    return made


def daemons_of(one: Cluster, node: str) -> list[Document]:
    """The pods of DaemonSets and the mirror pods of a node, which a node like it has, too."""

    def stays(meta: Document) -> bool:
        mirrors = "kubernetes.io/config.mirror" in meta.get("annotations", {})
        return mirrors or any(owner["kind"] == "DaemonSet" for owner in meta.get("ownerReferences", []))

    return [pod for pod in one.of("Pod").values() if pod["spec"].get("nodeName") == node and stays(pod["metadata"])]


def on_node(pod: Document, node: str) -> Document:
    """A pod as it is on another node."""
    made = json.loads(json.dumps(pod))
    made["metadata"] |= {"name": f"{pod['metadata']['name']}-{node}", "uid": f"{pod['metadata']['name']}-{node}"}
    made["spec"]["nodeName"] = node
    return made  # type: ignore[no-any-return]


def _anywhere(one: Cluster, like: str, place: int, places: Iterable[str]) -> str:
    """A node that differs from one in the labels of places alone: the one itself at place 0, then each other."""
    keys = tuple(places)
    seen = [key for key in keys if key != PLACES[0]]
    nodes = one.of("Node")

    def sort(name: str) -> Document:
        node = nodes[name]
        labels = {k: v for k, v in node["metadata"].get("labels", {}).items() if k not in keys}
        devices = [
            (kind, document.get("spec"), document.get("zones"), document["metadata"].get("annotations"))
            for kind in ("Device", "NodeResourceTopology")
            if (document := one.of(kind).get(name)) is not None
        ]
        slices = [_like(document, name) for document in _slices(one, name)]
        spec, amounts = node.get("spec", {}), node["status"]["allocatable"]
        return {"labels": labels, "spec": spec, "allocatable": amounts, "devices": devices, "slices": slices}

    alike = [name for name in nodes if name != like and sort(name) == sort(like)]
    found = {tuple(nodes[name]["metadata"].get("labels", {}).get(k, "") for k in seen): name for name in alike}
    others = list(found.values())
    return others[(place - 1) % len(others)] if place and others else like


def _succeed(one: Cluster, gone: Callable[[Document], bool]) -> int:
    """Ends pods: those of a gang or of a workload have Succeeded, others are left out. Returns their number."""
    ended = [pod for pod in one.of("Pod").values() if gone(pod)]
    for pod in ended:
        if gang_name(pod) or _controllers(pod) - REPLACING:
            pod["status"] = {"phase": "Succeeded"}
        else:
            one.documents = [document for document in one.documents if document is not pod]
    return len(ended)


def _drop(one: Cluster, gone: Callable[[Document], bool]) -> None:
    kept = [document for document in one.documents if document["kind"] != "Pod" or not gone(document)]
    one.documents = kept


REPLACING = {"ReplicaSet", "ReplicationController", "StatefulSet", "LeaderWorkerSet", "RayCluster"}
"""Kinds of controllers that replace each pod which ends."""


def _controllers(pod: Document) -> set[str]:
    """The kind of the controller of a pod; empty without one."""
    return {owner["kind"] for owner in pod["metadata"].get("ownerReferences", []) if owner.get("controller")}


def _shrunk(one: Cluster, ended: Iterable[Document]) -> None:
    """One replica less of the controllers of each pod that ended, and of their owners."""
    for pod in ended:
        owners = pod["metadata"].get("ownerReferences", [])
        while owners:
            found = [one.of(owner["kind"])[owner["name"]] for owner in owners if owner["name"] in one.of(owner["kind"])]
            for owner in found:
                owner["spec"]["replicas"] = owner["spec"].get("replicas", 1) - 1
            owners = [each for owner in found for each in owner["metadata"].get("ownerReferences", [])]


def _completed(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """`gang ns/g (8 pods), the 4 pods of gang ns/h (of 8) in layer a/b and pods ns/a and ns/b-0 to ns/b-3`."""
    before = one.of("Pod")
    _complete(one, job, match)
    after = one.of("Pod")
    ended = [pod for name, pod in before.items() if name not in after]
    replaced = sorted(kind for pod in ended for kind in _controllers(pod) & REPLACING)
    assert bool(replaced) == bool(match["controllers"]), match[0]
    _shrunk(one, ended if replaced else ())


def _complete(one: Cluster, job: Job, match: re.Match[str]) -> None:
    text = match["completed"]
    for key, number in re.findall(GANG_PART[0], text):
        assert _succeed(one, partial(_runs_in, key, job.gangs)) == int(number), match[0]
    paths = Reading(one.documents)
    for number, every, key, place in re.findall(GANG_PART[1], text):
        running = [pod for pod in one.of("Pod").values() if _runs_in(key, job.gangs, pod)]
        there = [pod for pod in running if f"{paths.path(pod['spec']['nodeName'])}/".startswith(f"{place}/")]
        assert (len(there), len(running)) == (int(number), int(every)), match[0]
        names = {pod["metadata"]["name"] for pod in there}
        _succeed(one, lambda pod, names=names: pod["metadata"]["name"] in names)  # type: ignore[misc]
    for number, name in re.findall(GANG_PART[2], text):
        assert _succeed(one, partial(_runs_in, name, job.gangs)) == int(number), match[0]
    rest = re.sub("|".join(GANG_PART), "", text)
    for listed, gang, every in re.findall(rf"pods? ({NAMES})(?: of gang ([\w./-]+) \(\d+ of its (\d+) pods\))?", rest):
        members = [pod for pod in job.cluster.of("Pod").values() if _runs_in(gang, job.gangs, pod)] if gang else []
        assert len(members) == int(every or 0), match[0]
        for key in _names(listed):
            first, _, last = key.partition(" to ")
            stem, _, start = first.rpartition("-")
            keys = [f"{stem}-{n}" for n in range(int(start), int(last.rpartition("-")[2]) + 1)] if last else [first]
            assert not gang or all(any(_is_pod(name, pod) for pod in members) for name in keys), match[0]
            for name in keys:
                _succeed(one, partial(_is_pod, name))


GANG_PART = (
    r"gang ([\w./-]+) \((\d+) pods\)",
    r"the (\d+) pods \(of (\d+)\) of gang ([\w./-]+) in \w+ ([\w./-]+)",
    r"all (\d+) pods on node ([\w.-]+) that can complete",
)


def _runs_in(place: str, own: set[str], pod: Document) -> bool:
    """Whether a pod runs in a gang (`namespace/name`), or on a node beside its unit."""
    node, gang = pod["spec"].get("nodeName", ""), gang_name(pod)
    if pod.get("status", {}).get("phase") == "Succeeded":
        return False
    return bool(node) and (_gang_of(pod) == place if "/" in place else node == place and gang not in own)


def _is_pod(key: str, pod: Document) -> bool:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}" == key


def _gang_of(pod: Document) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{gang_name(pod)}"


def _tried_again(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """The pods that a node rejected are forgotten."""
    _drop(one, lambda pod: pod["spec"].get("nodeName") == match[1] and pod.get("status", {}).get("phase") == "Failed")


def _waits(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """The pods with an end that is known and passed have ended."""
    until = datetime.fromisoformat(match[1])

    def ended(pod: Document) -> bool:
        seconds = re.fullmatch(r"(\d+)([smh]?)", pod["metadata"].get("annotations", {}).get(RUNTIME, ""))
        if "nodeName" not in pod["spec"] or not seconds:
            return False
        began = pod.get("status", {}).get("startTime") or pod["metadata"]["creationTimestamp"]
        length = int(seconds[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[seconds[2]]
        return datetime.fromisoformat(began) + timedelta(seconds=length) <= until

    _succeed(one, ended)


def _declare_end(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for pod in job.own_pods(one):
        pod["metadata"].setdefault("annotations", {})[RUNTIME] = match[1]


RUNTIME = "scheduling.koordinator.sh/max-runtime"


def _gone(one: Cluster, job: Job, match: re.Match[str]) -> None:
    _drop(one, partial(_is_pod, match[1]))


def _devices_freed(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """The claims of some devices of a node have none, and the pods that use them end. `job.place`: which devices."""
    number, node = int(match[1]), match[2]
    held: dict[str, set[str]] = {}
    for name, claim in one.of("ResourceClaim").items():
        for result in _allocated(claim, node):
            held.setdefault("/".join(result[key] for key in ("driver", "pool", "device")), set()).add(name)
    choices = list(combinations(held, number))
    few = set[str]().union(*(held[device] for device in choices[job.place % len(choices)]))
    for name in few:
        claim = one.of("ResourceClaim")[name]
        users = {user["name"] for user in claim["status"].get("reservedFor", [])}
        claim["status"] = {}
        _drop(one, lambda pod, users=users: pod["metadata"]["name"] in users)  # type: ignore[misc]


def _allocated(claim: Document, node: str) -> list[Document]:
    """The devices of a node that a claim holds."""
    found = claim.get("status", {}).get("allocation", {})
    results: list[Document] = found.get("devices", {}).get("results", [])
    return results if f'"{node}"' in json.dumps(found.get("nodeSelector", {})) else []


def _zone_freed(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """A NUMA zone of a node, and the node, have more of a resource."""
    name, amount, resource, zone = match[1], parse_exact(match[2]), match[3], int(match[4])
    of_node = one.of("Node")[name]["status"]["allocatable"]
    of_node[resource] = str(parse_exact(of_node[resource]) + amount)
    zones = [it for it in one.of("NodeResourceTopology")[name]["zones"] if it["type"] == "Node"]
    for given in zones[zone]["resources"]:
        if given["name"] == resource:
            for field in ("capacity", "allocatable", "available"):
                given[field] = str(parse_exact(given[field]) + amount)


def _terminated(one: Cluster, job: Job, match: re.Match[str]) -> None:
    _drop(one, lambda pod: "deletionTimestamp" in pod["metadata"])


def _limit(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """A limit as it is told. What else it takes, as a max that a larger min needs, has to be told beside it."""
    which, name, needed, resource, had = match[1], match[2], match[3], match[4], match[5]
    spec = one.of("ElasticQuota")[name]["spec"]
    assert parse_exact(spec.get(which, {}).get(resource, 0)) == parse_exact(had), match[0]
    spec.setdefault(which, {})[resource] = needed


def _unasked(one: Cluster, job: Job, match: re.Match[str]) -> None:
    label = QUOTA_KEYS + "name"
    own = {pod["metadata"]["labels"].get(label) for pod in job.own_pods(one)}
    quotas = {match[1]} if match[1] else set(one.of("ElasticQuota")) - own
    names = {pod["metadata"]["name"] for pod in job.own_pods(one)}
    _drop(
        one,
        lambda pod: (
            "nodeName" not in pod["spec"]
            and pod["metadata"]["labels"].get(label) in quotas
            and pod["metadata"]["name"] not in names
        ),
    )


def _not_first(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """Jobs that are not pending: those of the line, or all that the first round places or evicts pods for."""
    if match["number"] is None:
        found = [name.removeprefix("pod ").removeprefix("gang ") for name in _names(match["jobs"])]
    else:
        said = told(["simulate", "--rounds", "1", *job.cluster.arguments], job.cluster, job.folder)
        pods = job.cluster.of("Pod")
        found = [_job_of(pods[bound["pod"]]) for bound in said["bindings"]]
        found = list(dict.fromkeys([*found, *(eviction["beneficiary"] for eviction in said["evictions"])]))
    own = {pod["metadata"]["name"] for pod in job.own_pods(one)}
    _drop(
        one,
        lambda pod: "nodeName" not in pod["spec"] and _job_of(pod) in found and pod["metadata"]["name"] not in own,
    )


def _job_of(pod: Document) -> str:
    """`namespace/name` of its gang, else of the pod."""
    meta = pod["metadata"]
    return f"{meta.get('namespace', 'default')}/{gang_name(pod) or meta['name']}"


def _alone(one: Cluster, job: Job, match: re.Match[str]) -> None:
    one.documents = job.alone().documents


def _fewer_members(one: Cluster, job: Job, match: re.Match[str]) -> None:
    spec = one.of("PodGroup")[match["gang"].partition("/")[2]]["spec"]
    assert str(spec["minMember"]) == match["had"], match[0]
    spec["minMember"] = int(match["least"])


def _prioritise(one: Cluster, job: Job, match: re.Match[str]) -> None:
    """Another class, or a number that no class has."""
    classes = {name: found["value"] for name, found in one.of("PriorityClass").items()}
    for spec in _specs(one, job):
        spec.pop("priority", None)
        own = one.of("PriorityClass").get(spec.get("priorityClassName", ""), {})
        if match["both"] or own.get("preemptionPolicy") == "Never":
            spec.pop("preemptionPolicy", None)
        if match["class"]:
            assert str(classes[match["class"]]) == match["value"], match[0]
            spec["priorityClassName"] = match["class"]
        else:
            assert all(value < int(match["number"]) for value in classes.values()), match[0]
            spec.pop("priorityClassName", None)
            spec["priority"] = int(match["number"])


def _preempts(one: Cluster, job: Job, match: re.Match[str]) -> None:
    for spec in _specs(one, job):
        spec["preemptionPolicy"] = "PreemptLowerPriority"


def _unheld(one: Cluster, job: Job, match: re.Match[str]) -> None:
    one.config.setdefault("fairness", {})["starvationAfter"] = "0s"


def _reclaimed(one: Cluster, job: Job, match: re.Match[str]) -> None:
    one.config.setdefault("fairness", {})["reclaim"] = "all"


def _heavier(one: Cluster, job: Job, match: re.Match[str]) -> None:
    one.config.setdefault("fairness", {}).setdefault("weights", {})[match[1]] = float(match[2])


COMPLETED = r"(?P<completed>(?:gang|pods?|the|all) [^:]+?) completed"
OWNER = rf"(?:{'|'.join(sorted({*REPLACING, 'Deployment'}))}) [\w./-]+"
REPLACED = rf"(?P<controllers> without being replaced by (?:\d+ controllers|{OWNER}(?:(?:, | and ){OWNER})*))?"
JOBS = r"(?:gang|pod) [\w./-]+(?:(?:, | and )(?:gang|pod) [\w./-]+)*"
FORMS: dict[str, Doing] = {
    r"it tolerated taints? (\S+(?: and \S+)*)": _tolerate,
    r"the (topology spread constraint|required pod (?:anti-)?affinity) over (\S+) were removed": _give_up,
    r"host port (\d+) were removed": _give_up_port,
    r"(?:node selector (\S+)=(\S*)|its node selector|its required node affinity|"
    r"its node selector and its required node affinity) were removed(?: \(no node has [^)]*\))?": _unselect,
    r"(?P<of>it|each member|each pod of (?:gang|role) \S+|pod \S+) requested (?P<less>\S+) (?P<what>\S+) "
    r"\(it requests \S+\)": _ask_less,
    r"it requested (\S+) instead of (\S+), which no node has": _rename,
    r"(?:the pod|its members) were preemptible \(without label \S+(?: and \S+)*\)": _evictable,
    r"annotation (\S+) were removed": _unannotate,
    rf"the gather strategy for (?P<layer>\w+)(?: \(scope (?P<scope>\w+)\))?"
    rf"(?: of gangs? (?P<gangs>{NAMES})| of \d+ gangs)? were PreferGather instead of MustGather|"
    rf"podCountMultiple (?P<uncounted>\w+)=\d+(?: of gangs? (?P<counting>{NAMES})| of \d+ gangs)? were removed": _wish,
    r"it had (\d+) members \(it has (\d+), which is not a multiple of \d+\)": _members,
    r"(\d+) more members? of gang (\S+) existed \(minMember is \d+, \d+ members? exists?\)": _missing_members,
    r"PodGroup (\S+) existed with minMember (\d+)": _grouped,
    rf"PersistentVolumeClaims? ({NAMES}) existed, with (?:a volume|volumes) that every node can use": _claimed,
    rf"nodes? ({NAMES}) were uncordoned|all \d+ cordoned nodes were uncordoned": _uncordon,
    rf"nodes? ({NAMES}) had labels? (\S+=\S+(?: and \S+=\S+)*)": _label,
    rf"there were (?P<new>\d+ more nodes? with (?:room for )?(?P<amount>\S+) (?P<resource>\S+) in \S+(?: [\w./-]+?)?"
    rf"(?:(?:, | and )\d+ in \S+ [\w./-]+)*), like nodes? (?P<like>{NAMES})"
    r"(?: \(needed for the pods of [\w.-]+; the pods of [^;:]+ fit\))?": _new_nodes,
    rf"node [\w.-]+ had [^:]*, for example after {COMPLETED}{REPLACED}": _completed,
    rf"[^,]+ had room for \d+ more (?:members?|pods? like \S+), for example after {COMPLETED}{REPLACED}": _completed,
    rf"{COMPLETED}(?: on node [\w.-]+| and released what (?:it uses|they use) of quota [^\s,]+)?{REPLACED}": _completed,
    r"node ([\w.-]+) took pods of this shape again: it rejected \d+, until [\w:-]+": _tried_again,
    r"it waited until (\S+): by then enough running pods will have completed": _waits,
    rf"annotation {RUNTIME} were (\d+s), so that it ends by [\w:-]+": _declare_end,
    r"pod (\S+) were deleted \(it uses GPU \d+ of node \S+, which is unhealthy\)": _gone,
    r"free (\d+) devices of class \S+ on (\S+)": _devices_freed,
    r"node ([\w.-]+) had (\S+) more (\S+) free in NUMA zone (\d+)": _zone_freed,
    r"\d+ terminating pods? on .* had ended": _terminated,
    r"(min|max) of quota (\S+) were (\S+) (\S+) \(it is (\S+)\)": _limit,
    r"the pending pods of (?:quota (\S+)|the \d+ other quotas) were deleted \(they request [^)]*\)": _unasked,
    rf"(?P<jobs>{JOBS}) were not placed before it|"
    r"the (?P<number>\d+) jobs of this round \([^)]*\) were not placed before it": _not_first,
    r"no other pod were pending \(capacity is reserved for jobs ahead of it\)": _alone,
    r"annotation (?P<key>\S+) (?P<template>on the pod template )?of (?:role (?P<role>\S+) of )?(?P<kind>[A-Z]\w+) "
    r"(?P<name>\S+) were (?P<least>\d+) \((?:it is \d+|now \d+ members? must start together)\)": _least_of_workload,
    r"(?P<field>annotation|label) (?P<key>\S+) of the pods of gang (?P<whose>\S+) were (?P<least>\d+) "
    r"\(it is \d+\)": _least_of_pods,
    r"minMember of PodGroup (?P<gang>\S+) were (?P<least>\d+) \(it is (?P<had>\d+)\)": _fewer_members,
    r"its PriorityClass were (?P<class>\S+) with priority (?P<value>-?\d+) \(its priority is -?\d+\)"
    r"(?P<both> and its preemptionPolicy were PreemptLowerPriority)?|"
    r"its priority were (?P<number>\d+) \(it is -?\d+, and no PriorityClass is high enough\)": _prioritise,
    r"its preemptionPolicy were PreemptLowerPriority \(it is Never\)": _preempts,
    r"no nodes were reserved for a starving job \(fairness.starvationAfter: 0s in the configuration\)": _unheld,
    r"fairness.reclaim were all": _reclaimed,
    r"fairness.weights of user (\S+) were (\S+) \(it is \S+\)": _heavier,
}


def decided(one: Cluster, said: Document, folder: Path) -> Cluster:
    """The cluster before the round that an explanation is about."""
    rounds = (said.get("round") or 1) - 1
    if not rounds:
        return one
    return run_again(one, told(["simulate", "--rounds", str(rounds), *one.arguments], one, folder))


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
    job = Job(decided(one, said, folder), pod, folder)
    for words in said["wouldFitIf"]:
        if wrong := remedied(job, words):
            yield f"{pod} would not fit if {wrong}"
