# SPDX-License-Identifier: Apache-2.0
"""Members of derived gangs on lost nodes: they do not count, and their gang is broken (repair.md 4.1, workloads.md
5.6)."""

from pathlib import Path

import pytest

from koordpy.api import keys
from tests.workloads.cluster import Json, job, jobset, nodes, pod, role, simulate, template, workload

EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "z"}
TAINT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


def member(index: int, node: str = "", name: str = "", together: int = 3) -> Json:
    """Member train-INDEX; with a node it was bound together with `together` members, at the rank of its index."""
    made = pod(name or f"train-{index}", index, node=node)
    if node:
        bound = {keys.BOUND_RANK: str(index), keys.BIND_GROUP_ID: "default/train"}
        made["metadata"]["annotations"] |= {**bound, keys.BIND_MEMBER_COUNT: str(together)}
    return made


def cluster(at: str) -> list[Json]:
    """Nodes n0 to n3, where n1 is unreachable, and a Job of 3 with one member on n0, `at` and n2 each."""
    found = nodes(4)
    found[1]["spec"] = {"taints": [TAINT]}
    return [*found, job(meta={"uid": "j1"}), member(0, "n0"), member(1, at), member(2, "n2")]


@pytest.mark.parametrize(("at", "cause"), [("n1", "NodeTaint"), ("n9", "NodeGone")])
def test_a_member_of_a_job_on_a_lost_node_is_missing(at: str, cause: str, tmp_path: Path) -> None:
    gang = simulate(tmp_path, *cluster(at)).gangs["train"]
    assert (gang["status"], gang["bound"], gang["members"]) == ("Degraded", 2, 2)
    assert gang["repair"] == {
        "policy": "replace",
        "missing": 1,
        "ranks": [1],
        "lost": [{"pod": "default/train-1", "node": at, "cause": cause}],
        "hurt": [],
        "seats": {"n3": 1},
        "seatsUntil": "2026-01-01T00:05:00Z",
    }


@pytest.mark.parametrize("at", ["n1", "n9"])
def test_its_replacement_gets_the_rank(at: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *cluster(at), member(1, name="train-1-new"))
    assert answer.ranks == {"train-1-new": 1}
    gang = answer.gangs["train"]
    assert (gang["status"], gang["bound"], gang["members"]) == ("Scheduled", 3, 3)


def test_a_job_whose_members_were_not_bound_together_has_lost_none(tmp_path: Path) -> None:
    found = nodes(4)
    found[1]["spec"] = {"taints": [TAINT]}
    members = [member(i, f"n{i}", together=1) for i in range(3)]
    gang = simulate(tmp_path, *found, job(meta={"uid": "j1"}), *members).gangs["train"]
    assert (gang["status"], gang["bound"], gang["repair"]["missing"]) == ("Incomplete", 2, 0)
    assert gang["message"] == "2 of 3 members, Job train has not made the others"


def torch() -> Json:
    replicas = {"Master": {"replicas": 1, "template": template()}, "Worker": {"replicas": 3, "template": template()}}
    return workload("kubeflow.org/v1", "PyTorchJob", "pt", {"pytorchReplicaSpecs": replicas})


def mpi() -> Json:
    replicas = {"Launcher": {"replicas": 1, "template": template()}, "Worker": {"replicas": 3, "template": template()}}
    return workload("kubeflow.org/v2beta1", "MPIJob", "mpi", {"mpiReplicaSpecs": replicas})


def ray() -> Json:
    group = {"groupName": "w", "replicas": 3, "minReplicas": 3, "maxReplicas": 3, "template": template()}
    spec = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [group]}
    return workload("ray.io/v1", "RayCluster", "ray", spec)


@pytest.mark.parametrize(
    ("workload", "fails", "gang", "ranks"),
    [
        (torch(), "n3", "pt:worker", [3]),
        (mpi(), "n2", "mpi:worker", [2]),
        (ray(), "n3", "ray:w", [3]),
        (jobset(role("d", 1, 1), role("w", 1, 3)), "n3", "js:w", [3]),
        (jobset(role("d", 1, 1), role("w", 2, 2)), "n4", "js:w", [4]),
        (jobset(role("w", 1, 4), notes=EXCLUSIVE), "n3", "js:w-followers", [3]),
    ],
)  # fmt: skip
def test_missing_ranks_are_indexes_of_the_role(
    workload: Json, fails: str, gang: str, ranks: list[int], tmp_path: Path
) -> None:
    """They are the indexes that the controller gives, without those of other roles."""
    args = ("--fail", f"{fails}@4", "--evicted", "drop", "--rounds", "4")
    cluster = nodes(5 if gang == "js:w" else 4, labels={"z": "a"})
    assert simulate(tmp_path, *cluster, workload, args=args).gangs[gang]["repair"]["ranks"] == ranks


def test_missing_ranks_are_of_indexes_that_have_not_ended(tmp_path: Path) -> None:
    """The pods of ended indexes may be deleted."""
    found = nodes(4)
    found[3]["spec"] = {"taints": [TAINT]}
    ended = job(number=4, meta={"uid": "j1"}, status={"completedIndexes": "0,2", "succeeded": 2})
    members = [member(i, f"n{i}", together=4) for i in (1, 3)]
    assert simulate(tmp_path, *found, ended, *members).gangs["train"]["repair"]["ranks"] == [3]


def test_missing_ranks_of_linked_gangs_are_indexes_in_the_gang(tmp_path: Path) -> None:
    """The rank annotations count the members of both gangs."""
    notes = {"gang.scheduling.koordinator.sh/groups": '["default/a", "default/b"]'}
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "spec": {"minMember": 3}}
    groups = [{**group, "metadata": {"name": name, "annotations": notes}} for name in "ab"]
    label = "pod-group.scheduling.sigs.k8s.io"
    pods = [{"apiVersion": "v1", "kind": "Pod", **template(labels={label: name})} for name in "ab" for _ in range(3)]
    for i, one in enumerate(pods):
        one["metadata"] = {**one["metadata"], "name": f"{'ab'[i // 3]}-{i % 3}"}
    gangs = simulate(tmp_path, *nodes(6), *groups, *pods, args=("--fail", "n5@2", "--evicted", "drop")).gangs
    assert gangs["b"]["repair"]["ranks"] == [2]


def test_members_that_succeeded_on_a_failing_node_still_count(tmp_path: Path) -> None:
    """The two others come back and complete the gang of four; without the Succeeded one a gate would block them."""
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    made = template(labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    pods: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**made["metadata"], "name": f"g-{i}"},
            "spec": {**made["spec"], "nodeName": "n0" if i == 0 else "n1"},
            "status": {"phase": "Succeeded" if i == 1 else "Running"},
        }
        for i in range(4)
    ]
    answer = simulate(tmp_path, *nodes(3, cpu=2), {**group, "spec": {"minMember": 4}}, *pods, args=("--fail", "n1@2"))
    assert (answer.bound, answer.gangs["g"]["status"]) == (["g-2", "g-3"], "Scheduled")
    assert answer.document["failures"] == [{"node": "n1", "round": 2, "pods": ["default/g-2", "default/g-3"]}]
