# SPDX-License-Identifier: Apache-2.0
"""Every sentence about a pod that waits is true: recounted by a naive reading of the manifests, or tried.

By hand on more seeds: python -m tests.cli.test_explanations_hold 40 500
By hand on a folder of case files: python -m tests.cli.test_explanations_hold --cases FOLDER [PART-OF-A-NAME]
"""

import json
import random
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.agreement import compared, first_of_gangs, key
from tests.cli.case_files import CaseFile, cases, files_of, left_by, note_gangs
from tests.cli.counterfactuals import CARRIED, Job, remedied, told, untruths
from tests.cli.naive_reading import Reading, helpless, sentence
from tests.cli.random_manifests import GANG, Cluster, cluster, run_again, stamped
from tests.cli.test_random_manifests import small
from tests.halves import own_half

SEEDS = 40
IN_ONE = 5


def with_daemons(one: Cluster, seed: int) -> Cluster:
    """The cluster, of every third seed with a DaemonSet's pod on each node that has capacity for it."""
    if seed % 3:
        return one
    dice = random.Random(seed)
    cpu, port = dice.choice([1, 2]), {"containerPort": 80, "hostPort": 80} if dice.random() < 0.5 else {}
    running = [pod for pod in one.of("Pod").values() if "nodeName" in pod["spec"]]
    for name, node in one.of("Node").items():
        there = [pod["spec"] for pod in running if pod["spec"]["nodeName"] == name]
        used = sum(int(spec["containers"][0]["resources"]["requests"]["cpu"]) for spec in there)
        amounts = node["status"]["allocatable"]
        if used + cpu > int(amounts["cpu"]) or len(there) >= int(amounts["pods"]):
            continue
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "agent", "controller": True}
        meta = {"name": f"agent-{name}", "namespace": "default", "labels": {"app": "agent"}, "ownerReferences": [owner]}
        ports = {"ports": [port]} if port else {}
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}, **ports}
        spec = {"nodeName": name, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}
        one.documents.append(pod)
    return one


def unfounded(seed: int, folder: Path) -> Iterator[str]:
    """What `simulate` and `explain` say of a random cluster that is not so."""
    one = stamped(with_daemons(cluster(seed), seed))
    said = told(["simulate", *one.arguments], one, folder)
    after = run_again(one, said)
    reading = Reading(after.documents)
    classes = after.of("PriorityClass")
    for wait in said["pending"]:
        pod, text = reading.pods[wait["pod"]], wait["message"]
        count = re.search(r"(?:^|\. |\.\.\. )(0/\d+ nodes are available: .*)", text)
        if count and "quotaName" not in text and wait["reason"] in ("Unschedulable", "NeverFits"):
            verdicts = reading.verdicts(pod)
            expected = sentence(verdicts, gang=bool(wait["gang"]))
            if after.config["preemption"]["enabled"]:
                job = Job(after, wait["pod"], folder)
                mates = [mate for mate in reading.pods.values() if job.gangs and gang_of(mate) in job.gangs]
                own = [classes.get(one["spec"].get("priorityClassName", ""), {}) for one in mates or [pod]]
                never = any(one.get("preemptionPolicy") == "Never" for one in own)
                said_never = "preemption: not eligible due to preemptionPolicy=Never."
                expected += " " + (said_never if never else helpless(verdicts))
            if not count[1].startswith(expected):
                yield f"{wait['pod']}: {text} instead of {expected}"
        if "available in " in text and "podCountMultiple" not in text:
            yield from misjudged(Job(after, wait["pod"], folder), reading, text)
        yield from untruths(after, wait["pod"], folder)
    # what is said of a job that nothing waits beside: one pod of each gang
    seen = set[str]()
    for name, pod in one.of("Pod").items():
        gang = pod["metadata"]["labels"].get(GANG, name)
        if "nodeName" not in pod["spec"] and gang not in seen:
            seen.add(gang)
            yield from untruths_alone(Job(one, name, folder).alone(), name, folder)


def untruths_alone(one: Cluster, pod: str, folder: Path) -> Iterator[str]:
    """The same of a pod that the first round binds, or that waits: then the members that are bound stand there."""
    said = told(["simulate", *one.arguments], one, folder)
    if any(wait["pod"] == pod for wait in said["pending"]):
        yield from untruths(run_again(one, said), pod, folder)
    elif any((bound["pod"], bound["round"]) == (pod, 1) for bound in said["bindings"]):
        yield from untruths(one, pod, folder)


def misjudged(job: Job, reading: Reading, text: str) -> Iterator[str]:
    """Slots that a gang is told of and that are others (gang-network.md 6)."""
    pods = job.cluster.of("Pod")
    waiting = [pod for pod in pods.values() if "nodeName" not in pod["spec"] and gang_of(pod) in job.gangs]
    waiting.sort(key=lambda pod: (int(pod["metadata"]["name"].rpartition("-")[2]), gang_of(pod)))
    whole = re.search(r"available in the cluster: (\d+)", text)
    layered = re.search(r".*available in \w+: (.*?)(?:\.(?: |$)|;)", text)  # the whole sentence is the last one
    told = [("", whole[1])] if whole else re.findall(r"([\w/]+): (\d+)", layered[1]) if layered else []
    if not told:
        yield f"{job.pod}: no slots in {text}"
    for path, number in told:
        found = reading.room(waiting, lambda name, path=path: f"{reading.path(name)}/".startswith(path and f"{path}/"))
        if found != int(number):
            yield f"{job.pod}: {found} slots in {path or 'the cluster'}, told of {number}"


def gang_of(pod: dict[str, Any]) -> str:
    """The gang that its label names."""
    return str(pod["metadata"]["labels"].get(GANG, ""))


@pytest.mark.parametrize("first", own_half(range(0, SEEDS, IN_ONE)))
def test_what_is_said_of_who_waits_is_so(first: int, tmp_path: Path) -> None:
    wrong = {}
    for seed in range(first, first + IN_ONE):
        if found := list(unfounded(seed, tmp_path)):
            wrong[seed] = found
    assert wrong == {}


def crowded() -> Cluster:
    """Two nodes of four cores; one is cordoned, the other has two cores left; a pod of four waits."""
    one = small()
    one.documents = [document for document in one.documents if document["kind"] != "PodGroup"]
    one.config = {"preemption": {"enabled": False}}
    one.of("Node")["n1"]["spec"]["unschedulable"] = True
    for name, cpu in (("g-0", "4"), ("g-1", "2")):
        pod = one.of("Pod")[name]
        pod["metadata"]["labels"] = {"app": "a"}
        pod["spec"]["schedulerName"] = "koord-scheduler"
        pod["spec"]["containers"][0] |= {"image": "i", "resources": {"requests": {"cpu": cpu}}}
    one.of("Pod")["g-1"]["spec"]["nodeName"] = "n0"
    return one


def test_two_changes_in_one_line_help_wherever_a_new_node_stands(tmp_path: Path) -> None:
    assert list(unfounded(50, tmp_path)) == []


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        ("node n0 had 2 more cpu free (now 2), for example after pod default/g-1 completed", True),
        ("node n1 were uncordoned", True),
        ("node n0 were uncordoned", False),
        ("it requested 2 cpu (it requests 4)", True),
        ("it requested 3 cpu (it requests 4)", False),
        ("there were 1 more node with 4 cpu in the cluster, like node n0", True),
        ("there were 1 more node with 4 cpu in zone a and 1 in zone b, like nodes n0 and n0", True),
        ("pod default/g-1 completed", True),
        ("the topology spread constraint over zone were removed, and node n1 were uncordoned", True),
        ("pod default/g-1 were not placed before it", False),
        ("the moon were full", False),
    ],
)
def test_the_judge_tries_a_remedy(words: str, helps: bool, tmp_path: Path) -> None:
    assert (not remedied(Job(crowded(), "g-0", tmp_path), words)) == helps


@dataclass
class Tally:
    """What was tried of cases, and what of it was wrong."""

    cases: int = 0
    units: int = 0
    """Pending pods that were explained: one of each gang with one message."""
    suggestions: int = 0
    wrong: int = 0
    compared: int = 0
    """Pods of which `simulate` and `explain` were compared."""
    otherwise: int = 0

    def faults(self, case: CaseFile, folder: Path) -> Iterator[str]:
        """What is untrue of a case's pending units. A case without one is not counted."""
        options = [*files_of(case.manifests, case.config, folder), *case.arguments]
        after = left_by(options, case.config)
        waits = first_of_gangs(told(["simulate", *after.arguments], after, folder)["pending"])
        if not waits:
            return
        self.cases += 1
        if "--fail" in case.arguments:  # explain has no such option: compare at the end of the run
            options = [*files_of(yaml.safe_dump_all(after.documents), case.config, folder), *after.arguments]
        for pod, faults in compared(options, BOUND + len(waits), one_a_gang=True):
            self.compared += 1
            self.otherwise += bool(faults)
            yield from (f"{pod}: {fault}" for fault in faults)
        note_gangs(after, gangs_in(after, folder))
        for wait in waits:
            self.units += 1
            said = told(["explain", "--pod", key(wait), *after.arguments], after, folder)
            job = Job(decided_round(after, said, folder), wait["pod"], folder)
            for words in said["wouldFitIf"]:
                self.suggestions += 1
                if wrong := remedied(job, words):
                    self.wrong += 1
                    yield f"{key(wait)} would not fit if {wrong}"


BOUND = 4
"""Bound pods of a case that are compared."""


def decided_round(one: Cluster, said: dict[str, Any], folder: Path) -> Cluster:
    """The cluster before the round that an explanation is about."""
    before = (said["round"] or 1) - 1
    if not before:
        return one
    manifests = "---\n".join(json.dumps(document) + "\n" for document in one.documents)
    return left_by([*files_of(manifests, one.config, folder), *one.arguments, "--rounds", str(before)], one.config)


def gangs_in(one: Cluster, folder: Path) -> dict[str, str]:
    """Pod -> gang, of all pods that have a gang without its label."""
    said = told(["simulate", *one.arguments], one, folder)
    found = {key(wait): wait["gang"] for wait in said["pending"] if wait["gang"]}
    lacking = Counter({gang["name"]: gang["members"] for gang in said["gangs"]}) - Counter(found.values())
    for pod in one.of("Pod").values():
        name = key({"pod": pod["metadata"]["name"], "namespace": pod["metadata"].get("namespace", "default")})
        if "nodeName" not in pod["spec"] or gang_of(pod) or not lacking:
            continue
        if gang := told(["explain", "--pod", name, *one.arguments], one, folder)["gang"]:
            found[name] = gang
            lacking -= Counter([gang])
    return found


def try_cases(folder: Path, text: str = "") -> Tally:
    """Prints what is untrue of the pending units of a folder's cases."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        for case in cases(folder, text):
            try:
                for fault in tally.faults(case, Path(place)):
                    print(f"{case.name}: {fault}", flush=True)
            except (Exception, SystemExit):  # argparse exits for an option that a command lacks
                tally.wrong += 1
                print(f"{case.name}: {traceback.format_exc(limit=-3)}", flush=True)
    return tally


if __name__ == "__main__" and sys.argv[1] == "--cases":
    found = try_cases(Path(sys.argv[2]), *sys.argv[3:])
    print(f"{found}, carried out: {dict(CARRIED.most_common())}")
    sys.exit(bool(found.wrong or found.otherwise))
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            for fault in unfounded(number, Path(place)):
                print(f"seed {number}: {fault}", flush=True)
    print(f"carried out: {CARRIED.total()}, {dict(CARRIED.most_common())}")
