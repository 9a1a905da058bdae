# SPDX-License-Identifier: Apache-2.0
"""Which members have Succeeded, in `simulate` (gang-network.md 2.4): by their pods, and by the status of their Job."""

from pathlib import Path

import pytest

from tests.workloads.cluster import Json, job, nodes, pod, simulate

EVICTED = {"phase": "Succeeded", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}
GROUPS: dict[str, tuple[Json, Json]] = {
    "koordinator": (
        {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "spec": {"minMember": 3}},
        {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
    ),
    "x-k8s": (
        {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "spec": {"minMember": 3}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
    ),
    "upstream": (
        {"apiVersion": "scheduling.k8s.io/v1beta1", "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}},
        {},
    ),
    "volcano": (
        {"apiVersion": "scheduling.volcano.sh/v1beta1", "spec": {"minMember": 3}},
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
    ),
}
UIDS = [("j1", "j1"), ("", ""), ("", "j9")]


def group(kind: str) -> Json:
    return {**GROUPS[kind][0], "kind": "PodGroup", "metadata": {"name": "g"}}


def named(one: Json, kind: str, uid: str) -> Json:
    """A pod that names the group, of an owner with this uid, or without one."""
    for field, said in GROUPS[kind][1].items():
        one["metadata"].setdefault(field, {}).update(said)
    if kind == "upstream":
        one["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    if "ownerReferences" in one["metadata"]:
        one["metadata"]["ownerReferences"][0]["uid"] = uid
    return one


def train(kind: str, uid: str, **status: object) -> Json:
    """An Indexed Job of three."""
    made = job(number=3, meta={"uid": uid} if uid else {}, status=status)
    named(made["spec"]["template"], kind, uid)
    return made


@pytest.mark.parametrize(("of_job", "of_pod"), UIDS)
@pytest.mark.parametrize("kind", GROUPS)
def test_what_a_job_records_counts_for_the_group_of_its_pods(
    tmp_path: Path, kind: str, of_job: str, of_pod: str
) -> None:
    last = named(pod("train-2", 2), kind, of_pod)
    says = {"succeeded": 2, "completedIndexes": "0-1"}
    answer = simulate(tmp_path, *nodes(1), group(kind), train(kind, of_job, **says), last)
    assert (answer.bound, answer.pending) == (["train-2"], [])


@pytest.mark.parametrize("says", [{}, {"completedIndexes": "1", "succeeded": 1}])
@pytest.mark.parametrize("kind", GROUPS)
def test_a_member_that_was_evicted_and_exits_0_is_waited_for(tmp_path: Path, kind: str, says: Json) -> None:
    """Its Job makes it again, and the gang needs as many nodes as it has members that are not done."""
    gone = named(pod("train-0", 0, node="n0", status=EVICTED), kind, "j1")
    left = 3 - len(says and [1])
    few = simulate(tmp_path, *nodes(left - 1), group(kind), train(kind, "j1", **says), gone)
    enough = simulate(tmp_path, *nodes(left), group(kind), train(kind, "j1", **says), gone)
    if not says:  # of a gang with a success others start one by one
        assert few.bound == []
    assert len(enough.bound) == left


@pytest.mark.parametrize("kind", [*GROUPS, "derived"])
def test_an_evicted_member_that_its_job_counts_has_succeeded(tmp_path: Path, kind: str) -> None:
    made = (
        train(kind, "j1", completedIndexes="0", succeeded=1)
        if kind in GROUPS
        else job(number=3, meta={"uid": "j1"}, status={"completedIndexes": "0", "succeeded": 1})
    )
    gone = pod("train-0", 0, node="n0", status=EVICTED)
    given = [group(kind), named(gone, kind, "j1")] if kind in GROUPS else [gone]
    assert simulate(tmp_path, *nodes(2), made, *given).bound == ["train-1", "train-2"]


def test_an_evicted_member_of_a_derived_gang_is_made_again(tmp_path: Path) -> None:
    gone = pod("train-0", 0, node="n0", status=EVICTED)
    made = job(number=3, meta={"uid": "j1"})
    assert simulate(tmp_path, *nodes(2), made, gone).bound == []
    assert len(simulate(tmp_path, *nodes(3), made, gone).bound) == 3
