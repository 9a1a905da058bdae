"""Every sentence about a pod that waits is true: recounted by a naive reading of the manifests, or tried.

By hand on more seeds: python -m tests.cli.test_explanations_hold 40 500
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.counterfactuals import Job, remedied, told, untruths
from tests.cli.naive_reading import Reading, helpless, sentence
from tests.cli.random_manifests import GANG, Cluster, cluster, run_again, stamped
from tests.cli.test_random_manifests import small

SEEDS = 40
IN_ONE = 5


def unfounded(seed: int, folder: Path) -> Iterator[str]:
    """What `simulate` and `explain` say of a random cluster that is not so."""
    one = stamped(cluster(seed))
    said = told(["simulate", *one.arguments], one, folder)
    after = run_again(one, said)
    reading = Reading(after.documents)
    classes = after.of("PriorityClass")
    for wait in said["pending"]:
        pod, text = reading.pods[wait["pod"]], wait["message"]
        if text.startswith("0/") and "quotaName" not in text and wait["reason"] == "Unschedulable":
            verdicts = reading.verdicts(pod)
            expected = sentence(verdicts, gang=bool(wait["gang"]))
            if after.config["preemption"]["enabled"]:
                job = Job(after, wait["pod"], folder)
                mates = [mate for mate in reading.pods.values() if job.gangs and gang_of(mate) in job.gangs]
                own = [classes.get(one["spec"].get("priorityClassName", ""), {}) for one in mates or [pod]]
                never = any(one.get("preemptionPolicy") == "Never" for one in own)
                said_never = "preemption: not eligible due to preemptionPolicy=Never."
                expected += " " + (said_never if never else helpless(verdicts))
            if not text.startswith(expected):
                yield f"{wait['pod']}: {text} instead of {expected}"
        if "available in " in text and "podCountMultiple" not in text:
            yield from misjudged(Job(after, wait["pod"], folder), reading, text)
        yield from untruths(after, wait["pod"], folder)
    # what is said before anything is placed: one pod of each gang
    seen = set[str]()
    for name, pod in one.of("Pod").items():
        gang = pod["metadata"]["labels"].get(GANG, name)
        if "nodeName" not in pod["spec"] and gang not in seen:
            seen.add(gang)
            yield from untruths(one, name, folder)


def misjudged(job: Job, reading: Reading, text: str) -> Iterator[str]:
    """Slots that a gang is told of and that are others (gang-network.md 6)."""
    pods = job.cluster.of("Pod")
    waiting = [pod for pod in pods.values() if "nodeName" not in pod["spec"] and gang_of(pod) in job.gangs]
    waiting.sort(key=lambda pod: (int(pod["metadata"]["name"].rpartition("-")[2]), gang_of(pod)))
    whole = re.search(r"available in the cluster: (\d+)", text)
    layered = re.search(r"available in \w+: (.*?)(?:$|;)", text)
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


@pytest.mark.parametrize("first", range(0, SEEDS, IN_ONE))
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


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        ("node n0 had 2 more cpu (free 2)", True),
        ("node n0 had 1 more cpu (free 3)", False),
        ("1 node(s) were unschedulable: uncordon them", True),
        ("2 node(s) were unschedulable: uncordon them", False),
        ("1 Insufficient cpu: wait for pods there to end", True),
        ("the jobs before it in the queue left it their room", False),
    ],
)
def test_the_judge_tries_a_remedy(words: str, helps: bool, tmp_path: Path) -> None:
    kind, wrong = remedied(Job(crowded(), "g-0", tmp_path), words)
    assert kind
    assert (not wrong) == helps


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            for fault in unfounded(number, Path(place)):
                print(f"seed {number}: {fault}", flush=True)
