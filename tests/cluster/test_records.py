# SPDX-License-Identifier: Apache-2.0
"""What the status of a Job counts for the gangs that its pods name, of every kind (gang-network.md 2.4)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import convert

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import PodGroup, PodGroupStatus, UpstreamPodGroup
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.gang_members import Members
from koordpy.devices.family_registry import make_state
from koordpy.gangs.gang_reading import read_gang
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.workloads.kinds.kind_registry import workload_of
from koordpy.workloads.volcano_gangs import VolcanoGroup
from koordpy.workloads.workload_manifest import Source, head_of

Json = dict[str, Any]
LABELLED = {"labels": {keys.LABEL_POD_GROUP: "g"}}
LABELLED_X = {"labels": {keys.LABEL_POD_GROUP_X: "g"}}
BY_LABELS = {"labels": {keys.LABEL_GANG_NAME: "g", keys.LABEL_GANG_MIN: "3"}}
BY_NOTES = {"annotations": {keys.GANG_NAME: "g", keys.GANG_MIN: "3"}}
OF_VOLCANO = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
UPSTREAM = {"spec": {"schedulingGroup": {"podGroupName": "g"}}}
KINDS: dict[str, tuple[Json, GangSource]] = {
    "koordinator": (LABELLED, GangSource.GROUP),
    "x-k8s": (LABELLED_X, GangSource.GROUP),
    "upstream": (UPSTREAM, GangSource.UPSTREAM),
    "labels": (BY_LABELS, GangSource.NAMED),
    "annotations": (BY_NOTES, GangSource.NAMED),
    "volcano": (OF_VOLCANO, GangSource.WORKLOAD),
}


def job(uid: str, naming: Json, *, indexed: bool = True, completions: int = 3, **status: Any) -> Json:
    template = {"metadata": {**naming, "spec": None}, "spec": {**naming.get("spec", {}), "containers": [{}]}}
    template["metadata"].pop("spec")
    mode = "Indexed" if indexed else "NonIndexed"
    spec = {"completionMode": mode, "completions": completions, "parallelism": completions, "template": template}
    meta = {"name": uid, "namespace": "default", "uid": uid}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec, "status": status}


def member(
    owner: str, index: int, naming: Json, *, phase: str = "", conditions: Sequence[Json] = (), created: int = 0
) -> Pod:
    meta = {
        "name": f"{owner}-{index}",
        "namespace": "default",
        "uid": f"{owner}-{index}",
        "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
        "ownerReferences": [{"kind": "Job", "name": owner, "uid": owner, "controller": True}],
        "annotations": dict(naming.get("annotations", {})),
        "labels": {keys.JOB_COMPLETION_INDEX: str(index), **naming.get("labels", {})},
    }
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}], **naming.get("spec", {})}
    if phase:
        spec["nodeName"] = "n"
    status = {"phase": phase or "Pending", "conditions": list(conditions)}
    return convert({"metadata": meta, "spec": spec, "status": status}, Pod)


def put(state: ClusterState, raw: Json) -> None:
    source = Source(raw)
    state.workloads.put_workload(workload_of(source, head_of(source)))


def groups(state: ClusterState, status: Json | None = None) -> None:
    meta = {"name": "g", "namespace": "default"}
    told = convert(status or {}, PodGroupStatus)
    one = convert({"metadata": meta, "spec": {"minMember": 3}}, PodGroup)
    state.upsert(PodGroup(metadata=one.metadata, spec=one.spec, status=told))
    policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    state.upsert(convert({"metadata": meta, "spec": policy}, UpstreamPodGroup))
    source = Source({"metadata": meta, "spec": {"minMember": 3}})
    state.put_volcano_group("default/g", VolcanoGroup.read(source, head_of(source)))


def gang(state: ClusterState, kind: str) -> Members:
    return read_gang(state.snapshot(0.0), GangRef("default", "g", KINDS[kind][1]))


def counts(state: ClusterState, kind: str) -> tuple[int, int]:
    found = gang(state, kind)
    return found.succeeded, found.done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["job-first", "pods-first"])
@pytest.mark.parametrize(
    ("says", "number"),
    [
        ({"succeeded": 2, "completedIndexes": "0-1"}, 2),
        ({"succeeded": 1, "completedIndexes": "1"}, 1),
        ({"succeeded": 0}, 0),
        ({}, 0),
    ],
)
def test_a_process_that_starts_anew_counts_what_the_job_records(kind: str, order: str, says: Json, number: int) -> None:
    state, naming = make_state(), KINDS[kind][0]
    steps: list[Callable[[], None]] = [
        lambda: put(state, job("j", naming, **says)),
        lambda: state.upsert(member("j", 2, naming)),
    ]
    groups(state)
    for step in steps if order == "job-first" else reversed(steps):
        step()
    assert counts(state, kind) == (number, number)


@pytest.mark.parametrize("kind", KINDS)
def test_the_larger_counts_of_the_record_and_the_pods_seen(kind: str) -> None:
    state, naming = make_state(), KINDS[kind][0]
    groups(state)
    put(state, job("j", naming, completions=5, succeeded=1, completedIndexes="0"))
    for index in (0, 1, 2):
        state.upsert(member("j", index, naming, phase="Succeeded"))
    state.upsert(member("j", 3, naming))
    assert counts(state, kind) == (3, 3)
    put(state, job("j", naming, completions=5, succeeded=4, completedIndexes="0-2,4"))
    assert counts(state, kind) == (4, 4)
    state.delete(Pod, "default/j-0")
    assert counts(state, kind) == (4, 4)
    state.workloads.drop_workload("j")
    assert counts(state, kind) == (3, 3)


@pytest.mark.parametrize("seen", [0, 1])
def test_members_that_only_the_job_counts_are_succeeded_with_deleted_pods(seen: int) -> None:
    """The watch may show that a pod Succeeded and that it is deleted in one event, which alone is no success."""
    state, naming = make_state(), LABELLED
    groups(state)
    for index in range(2):
        state.upsert(member("j", index, naming, phase="Running"))
    for index in range(seen):
        state.upsert(member("j", index, naming, phase="Succeeded"))
    put(state, job("j", naming, succeeded=2, completedIndexes="0-1"))
    for index in range(2):
        state.delete(Pod, f"default/j-{index}")
    state.upsert(member("j", 2, naming, phase="Running"))
    found = gang(state, "koordinator")
    assert (found.succeeded, found.deleted_succeeded) == (2, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("indexed", "says", "number", "failed"),
    [
        (True, {"completedIndexes": "0"}, 1, 0),
        (True, {"completedIndexes": "1"}, 1, 1),
        (True, {}, 0, 1),
        (False, {"succeeded": 1}, 1, 1),
        (False, {}, 0, 1),
    ],
)
def test_an_evicted_member_that_exits_0_has_succeeded_where_its_job_counts_it(
    kind: str, indexed: bool, says: Json, number: int, failed: int
) -> None:
    state, naming = make_state(), KINDS[kind][0]
    groups(state)
    put(state, job("j", naming, indexed=indexed, **says))
    evicted = {"type": "DisruptionTarget", "status": "True"}
    state.upsert(member("j", 0, naming, phase="Succeeded", conditions=[evicted]))
    state.upsert(member("j", 2, naming))
    assert counts(state, kind) == (number, number)
    if kind != "volcano":  # a failed pod is kept by its workload alone there
        assert len(gang(state, kind).failed) == failed


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"volcano"}))  # there a Job is found by its pods alone
def test_a_driver_that_is_complete_counts_for_workers_that_ran_beside_it_though_no_pod_of_it_is_left(kind: str) -> None:
    naming = KINDS[kind][0]

    def world(done: str) -> ClusterState:
        state = make_state()
        groups(state)
        driver = job("driver", naming, indexed=False, completions=1, succeeded=1, completionTime=done)
        put(state, driver)
        put(state, job("w", naming))
        state.upsert(member("w", 0, naming, phase="Running", created=10))
        state.upsert(member("w", 1, naming, created=40))
        return state

    assert counts(world("2026-01-01T00:00:30Z"), kind) == (1, 1)
    assert counts(world("2026-01-01T00:00:05Z"), kind) == (0, 0)  # of an earlier run


def test_a_job_of_an_earlier_run_counts_for_nothing() -> None:
    state = make_state()
    groups(state)
    put(state, job("old", LABELLED, succeeded=3, completedIndexes="0-2"))
    put(state, job("j", LABELLED))
    state.upsert(member("j", 0, LABELLED, created=9))
    assert counts(state, "koordinator") == (0, 0)


@pytest.mark.parametrize("owner", ["j", ""])
def test_a_member_of_the_record_that_the_status_told_of_counts_once(owner: str) -> None:
    state = make_state()
    groups(state, {"scheduled": 3, "succeeded": 2, "departed": 2, "occupiedByUID": owner})
    put(state, job("j", LABELLED, succeeded=2, completedIndexes="0-1"))
    state.upsert(member("j", 2, LABELLED))
    assert counts(state, "koordinator") == (2, 2)


def test_gangs_whose_record_changed_are_looked_at() -> None:
    state = make_state()
    groups(state)
    state.upsert(member("j", 2, UPSTREAM))
    put(state, job("j", UPSTREAM))
    state.snapshot(0.0)
    assert not state.gangs.recorded
    put(state, job("j", UPSTREAM, succeeded=1, completedIndexes="0"))
    state.snapshot(0.0)
    assert [*state.gangs.recorded] == [GangRef("default", "g", GangSource.UPSTREAM)]
