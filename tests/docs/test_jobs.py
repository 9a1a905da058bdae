# SPDX-License-Identifier: Apache-2.0
"""docs/jobs.md and examples/jobs hold: what they show starts as a gang, and pods as operators write them do, too."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from tests.docs.jobs import pods_of, with_pods
from tests.docs.test_gangs import RANK, group, pod, simulated
from tests.docs.worked import ROOT, blocks_of

PAGE = ROOT / "docs" / "jobs.md"
BLOCKS = {block.path: block.text for block in blocks_of(PAGE)}
EXAMPLE = list(yaml.safe_load_all((ROOT / "examples" / "jobs" / "train.yaml").read_text(encoding="utf-8")))
X = "scheduling.x-k8s.io/v1alpha1"
GATHER = {keys.GANG_TOPOLOGY: '{"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]}'}
Json = dict[str, Any]
READ_OFFLINE = ("Kueue", "Volcano")
"""Whose groups `simulate` knows."""


def read(made: Json, entry: Json) -> str:
    """A variable of a container as the kubelet fills it in."""
    if "value" in entry:
        return str(entry["value"])
    path = entry["valueFrom"]["fieldRef"]["fieldPath"]
    (key,) = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path).groups()  # type: ignore[union-attr]
    return str(made["metadata"]["annotations"][key])


def test_the_example_starts_whole_with_ranks_and_an_address_of_rank_0(tmp_path: Path) -> None:
    answer, warned = simulated(with_pods(EXAMPLE), tmp_path)
    (gang,) = answer["gangs"]
    assert (gang["status"], gang["domain"]["layer"], warned) == ("Scheduled", "blockLayer", "")
    pod_group, service, job = EXAMPLE
    bound = {one["pod"]: one["annotations"][RANK] for one in answer["bindings"]}
    for index, made in enumerate(pods_of(job)):
        (container,) = made["spec"]["containers"]
        told = {entry["name"]: read(made, entry) for entry in container["env"]}
        assert told["RANK"] == bound[made["metadata"]["name"]] == str(index)
        # a pod of an Indexed Job is called JOB-INDEX; its Service gives it a name where its subdomain is the Service's
        first = f"{job['metadata']['name']}-0.{made['spec']['subdomain']}"
        assert (told["MASTER_ADDR"], made["spec"]["subdomain"]) == (first, service["metadata"]["name"])
        assert service["spec"]["selector"].items() <= made["metadata"]["labels"].items()
        assert int(told["WORLD_SIZE"]) == job["spec"]["completions"] == pod_group["spec"]["minMember"]


def test_its_policy_is_that_of_the_page() -> None:
    assert yaml.safe_load(BLOCKS["policy.yaml"])["podFailurePolicy"] == EXAMPLE[-1]["spec"]["podFailurePolicy"]


def kubeflow() -> list[Json]:
    """As the Training Operator writes a PyTorchJob with the annotation: PodGroup of coscheduling, its label."""
    labels = {keys.LABEL_POD_GROUP_X: "bert"}
    names = ["bert-master-0", "bert-worker-0", "bert-worker-1", "bert-worker-2"]
    made = group("bert", 4, GATHER)
    return [{**made, "apiVersion": X}, *(pod(name, gpus=8, labels=labels) for name in names)]


def jobset() -> list[Json]:
    """Two replicated jobs under one PodGroup: indexes begin anew in each."""
    pods = []
    for name, count in (("set-driver-0", 1), ("set-worker-0", 3)):
        labels = {keys.LABEL_POD_GROUP: "set"}
        template = {"metadata": {"labels": labels}, "spec": pod("", gpus=8)["spec"]}
        spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": template}
        pods += pods_of({"metadata": {"name": name}, "spec": spec})
    return [group("set", 4, GATHER), *pods]


def ray() -> list[Json]:
    notes = {keys.GANG_NAME: "ray", keys.GANG_MIN: "4", **GATHER}
    names = ["ray-head-x7k2p", "ray-small-worker-abc12", "ray-small-worker-q9z9z", "ray-small-worker-00000"]
    return [pod(name, gpus=8, notes=notes) for name in names]


def leader_workers() -> list[Json]:
    labels = {keys.LABEL_POD_GROUP: "lws"}
    names = ["lws-0", "lws-0-1", "lws-0-2", "lws-0-3"]
    return [group("lws", 4, GATHER), *(pod(name, gpus=8, labels=labels) for name in names)]


def upstream() -> list[Json]:
    kind = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"}
    made = {
        **kind,
        "metadata": {"name": "up", "annotations": GATHER},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}},
    }
    pods = [pod(f"up-{i}", gpus=8) for i in range(4)]
    for one in pods:
        one["spec"]["schedulingGroup"] = {"podGroupName": "up"}
    return [made, *pods]


ORDERS = {
    "kubeflow": ["bert-master-0", "bert-worker-0", "bert-worker-1", "bert-worker-2"],
    "jobset": ["set-driver-0-0-x0yz", "set-worker-0-0-x0yz", "set-worker-0-1-x1yz", "set-worker-0-2-x2yz"],
    "leader_workers": ["lws-0", "lws-0-1", "lws-0-2", "lws-0-3"],
    "upstream": ["up-0", "up-1", "up-2", "up-3"],
}


@pytest.mark.parametrize("made", [kubeflow, jobset, ray, leader_workers, upstream])
def test_pods_as_operators_write_them_start_together(made: Any, tmp_path: Path) -> None:
    objects = made()
    answer, warned = simulated(objects, tmp_path)
    (gang,) = answer["gangs"]
    assert (gang["bound"], gang["minMember"], gang["domain"]["layer"], warned) == (4, 4, "blockLayer", "")
    order = [one["pod"] for one in sorted(answer["bindings"], key=lambda one: int(one["annotations"][RANK]))]
    assert order == ORDERS.get(made.__name__, order)
    short, _ = simulated(objects[:-1], tmp_path)
    assert short["bindings"] == []
    assert all("waiting for members, 3 of minMember 4 exist" in one["message"] for one in short["pending"])


@pytest.mark.parametrize("key", [key for key, whose in keys.FOREIGN_GANGS.items() if whose not in READ_OFFLINE])
@pytest.mark.parametrize("place", ["labels", "notes"])
def test_gangs_of_others_are_warned_of_and_start_one_by_one(key: str, place: str, tmp_path: Path) -> None:
    """Kueue's is a label, the others' are annotations."""
    answer, warned = simulated([pod("p-0", **{place: {key: "g"}})], tmp_path)
    assert len(answer["bindings"]) == 1
    assert f"and ignored: the pod is in no gang; koordpy reads the label {keys.LABEL_POD_GROUP} instead" in warned
    assert key in (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", list(keys.FOREIGN))
@pytest.mark.parametrize("place", ["labels", "notes"])
def test_what_others_would_honour_is_warned_of_with_what_is_read_instead(key: str, place: str, tmp_path: Path) -> None:
    owner, instead = keys.FOREIGN[key]
    member = pod("p-0", labels={keys.LABEL_POD_GROUP: "g"})
    for own in ([pod("p-0", **{place: {key: "x"}})], [group("g", 1, **{place: {key: "x"}}), member]):
        _, warned = simulated(own, tmp_path)
        assert f"{key} is {owner}'s key and ignored: {instead}" in warned
    assert key in (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


def test_two_jobs_under_one_pod_group_are_one_gang(tmp_path: Path) -> None:
    pod_group, _, job = EXAMPLE
    half = {**job["spec"], "parallelism": 2, "completions": 2}
    two = [{"kind": "Job", "metadata": {"name": name}, "spec": half} for name in ("one", "other")]
    answer, _ = simulated(with_pods([pod_group, *two]), tmp_path)
    assert len(answer["bindings"]) == 4
    answer, _ = simulated(with_pods([pod_group, two[0]]), tmp_path)
    assert answer["bindings"] == []


def test_simulate_makes_the_pods_of_a_job(tmp_path: Path) -> None:
    answer, warned = simulated(EXAMPLE, tmp_path)
    assert warned == ""
    assert [(one["kind"], one["made"]) for one in answer["workloads"]] == [("Job", len(answer["bindings"]))]
