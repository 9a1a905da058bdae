# SPDX-License-Identifier: Apache-2.0
"""Workloads and pods as nobody should write them: every field of every kind is refused by its path, or read."""

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import convert, structs
from msgspec.json import decode

from koordpy.api.field_faults import UnreadableError
from koordpy.api.objects import OwnerReference
from koordpy.api.owner_objects import WorkloadObject
from koordpy.config.configuration import Gangs
from koordpy.devices.family_registry import make_state
from koordpy.engine.changes.workload_changes import WatchedKinds, WorkloadChanges
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.pod_making import followed
from koordpy.workloads.kinds.batch_jobs import read_job
from koordpy.workloads.kinds.jobsets import read_jobset
from koordpy.workloads.kinds.kind_registry import BY_KEY, kind_of, workload_of
from koordpy.workloads.pod_indexes import indexes
from koordpy.workloads.volcano_gangs import VolcanoGroup
from koordpy.workloads.workload_manifest import ReadFields, Source, head_of
from tests.cluster.test_hostile import CALLS_OF_NOTHING, calls_of
from tests.halves import own_half
from tests.scenarios.cluster import nodes_of
from tests.scenarios.cluster import pod as plain_pod
from tests.workloads.cluster import Json, job, jobset, nodes, pod, role, simulate, template, workload

ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**12, "x", "9" * 5000, [], [1], [None], {}, {"a": 1})
REPLICAS = {"replicas": 2, "template": template()}
VOLCANO = workload(
    "scheduling.volcano.sh/v1beta1",
    "PodGroup",
    "v",
    {
        "minMember": 1,
        "minTaskMember": {"t": 1},
        "minResources": {"cpu": 1},
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1, "highestTierName": ""},
        "subGroupPolicy": [{"minSubGroups": 1, "subGroupSize": 1}],
    },
)
GIVEN = (
    job(status={"succeeded": 1, "failedIndexes": "2", "conditions": [{"type": "Ready", "status": "True"}]}),
    job(completionMode="NonIndexed", completions=5, activeDeadlineSeconds=60, suspend=False),
    jobset(
        role("a", 2, 2, groupName="g"),
        role("b", 1, 2, dependsOn=[{"name": "a", "status": "Ready"}]),
        startupPolicy={"startupPolicyOrder": "AnyOrder"},
        notes={"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"},
    ),
    workload(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "lws",
        {
            "replicas": 2,
            "startupPolicy": "LeaderReady",
            "leaderWorkerTemplate": {
                "size": 3,
                "leaderTemplate": template(),
                "workerTemplate": template(),
                "subGroupPolicy": {"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"},
            },
        },
    ),
    workload(
        "kubeflow.org/v1",
        "PyTorchJob",
        "pt",
        {
            "pytorchReplicaSpecs": {"Master": REPLICAS, "Worker": REPLICAS},
            "elasticPolicy": {"minReplicas": 1},
            "runPolicy": {"schedulingPolicy": {"minAvailable": 1}, "suspend": False},
        },
    ),
    workload(
        "kubeflow.org/v2beta1",
        "MPIJob",
        "mpi",
        {"mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS}, "launcherCreationPolicy": "AtStartup"},
        status={"replicaStatuses": {"Worker": {"succeeded": 1}}},
    ),
    workload(
        "ray.io/v1",
        "RayCluster",
        "ray",
        {
            "headGroupSpec": {"template": template()},
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {"resources": {"requests": {"cpu": 1}}},
            "workerGroupSpecs": [
                {"groupName": "g", "replicas": 1, "minReplicas": 1, "maxReplicas": 2, "numOfHosts": 2, **REPLICAS}
            ],
        },
    ),
    workload(
        "scheduler.grove.io/v1alpha1",
        "PodGang",
        "pg",
        {
            "podgroups": [{"name": "a", "minReplicas": 1, "podReferences": [{"namespace": "default", "name": "p"}]}],
            "topologyConstraint": {"packConstraint": {"required": "rack"}},
        },
    ),
    workload(
        "apps/v1",
        "StatefulSet",
        "sts",
        {
            **REPLICAS,
            "ordinals": {"start": 1},
            "podManagementPolicy": "Parallel",
            "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}],
        },
    ),
    workload("apps/v1", "Deployment", "dep", {**REPLICAS, "selector": {"matchLabels": {"a": "b"}}}),
    workload("batch/v1", "CronJob", "cron", {"jobTemplate": {"spec": {"template": template()}}}),
    workload("ray.io/v1", "RayJob", "rj", {"rayClusterSpec": {"headGroupSpec": {"template": template()}}}),
    VOLCANO,
)


def paths(raw: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field of a manifest but who it is."""
    inner = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for key, value in inner:
        if at or key in ("spec", "status"):
            yield (*at, key)
            yield from paths(value, (*at, key))


def changed(raw: Json, path: tuple[Any, ...], value: Any) -> Json:
    found = deepcopy(raw)
    inner: Any = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize("given", GIVEN, ids=lambda one: one["kind"])
def test_whatever_a_field_holds_is_read_or_is_a_fault(given: Json) -> None:
    group = given["apiVersion"].rpartition("/")[0]
    kind = BY_KEY.get((group, given["kind"]))
    read = kind.read if kind is not None else None
    for path in paths(given) if read is not None else ():
        for value in ODD:
            source = Source(changed(given, path, value), read_fields=ReadFields())
            found = read(source, head_of(source, uid="u"))
            assert all(fault.text for fault in source.faults)
            if not source.faults:
                made = [slot for one in found.roles for part in one.parts for slot in islice(part.slots(), 3)]
                assert all(slot.name.startswith(given["metadata"]["name"]) for slot in made)


def _many(number: int) -> Iterator[Json]:
    """Workloads of so many parts, or faults."""
    parts = [role(f"r{i}", 1, 1, dependsOn=[{"name": f"r{max(0, i - 1)}", "status": "Ready"}]) for i in range(number)]
    counts = {"replicatedJobsStatus": [{"name": f"r{i}", "succeeded": 1} for i in range(number)]}
    yield {**jobset(*parts, startupPolicy={"startupPolicyOrder": "InOrder"}), "status": counts}
    yield jobset(*([1] * number))
    yield workload("ray.io/v1", "RayCluster", "r", {"headGroupSpec": {}, "workerGroupSpecs": [1] * number})
    yield workload(
        "kubeflow.org/v1", "PyTorchJob", "t", {"pytorchReplicaSpecs": dict.fromkeys(map(str, range(number)))}
    )


COUNTS = (1, 5000, 2**31 - 1)
"""Of one field; those above 5,000 make too many Jobs or groups."""
EACH = 30
"""Calls of functions for a Job or a group that is read ..."""
CALLS_A_BYTE = 3
"""... and for a byte of a manifest."""


def _counted(number: int) -> Iterator[Json]:
    """Workloads of which each number that says how many pods there are is a given one."""
    pods = {"replicas": number, "template": template()}
    for each in (1, number):
        yield jobset(role("a", number, each))
        yield workload(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            "lws",
            {"replicas": number, "leaderWorkerTemplate": {"size": each, "workerTemplate": template()}},
            {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"},
        )
        groups = [{"groupName": "w", "numOfHosts": each, "minReplicas": number, **pods}]
        yield workload(
            "ray.io/v1",
            "RayCluster",
            "r",
            {"headGroupSpec": {"template": template()}, "workerGroupSpecs": groups, "enableInTreeAutoscaling": True},
        )
    yield job(number=number, status={"completedIndexes": f"0-{number // 2}", "failedIndexes": f"1-{number}"})
    yield job(number=number, completionMode="NonIndexed", status={"succeeded": number})
    yield workload("apps/v1", "StatefulSet", "s", {**pods, "podManagementPolicy": "Parallel"})
    yield workload("apps/v1", "ReplicaSet", "s", pods)
    yield workload("kubeflow.org/v1", "PyTorchJob", "t", {"pytorchReplicaSpecs": {"Worker": pods}})
    yield workload("kubeflow.org/v2beta1", "MPIJob", "m", {"mpiReplicaSpecs": {"Launcher": pods, "Worker": pods}})
    cliques = [{"name": "a", "minReplicas": number, "podReferences": []}]
    yield workload("scheduler.grove.io/v1alpha1", "PodGang", "g", {"podgroups": cliques})


@pytest.mark.parametrize("number", COUNTS)
def test_a_number_of_pods_costs_no_more_than_its_jobs_or_groups(number: int) -> None:
    for given in _counted(number):
        kind, size = given["kind"], len(json.dumps(given))
        parts = number if kind in ("JobSet", "LeaderWorkerSet") and number <= 5000 else 0
        calls = calls_of(partial(_read, given))
        assert calls < 500 + CALLS_A_BYTE * size + EACH * parts, (kind, calls)


LIVE = [one for one in GIVEN if (kind := kind_of(head_of(Source(one)))) is not None and kind.versions]
SIZES = (0, 1, 7, 5000, 100_000, 2**31 - 1)


def _swollen(raw: Any, random: Random, many: int) -> Any:
    """The same with lists and mappings as long, and numbers as large, as an API server takes them."""
    if isinstance(raw, dict):
        own = {key: _swollen(value, random, many) for key, value in raw.items()}
        more = random.choice((0, 0, many)) if raw and all(isinstance(value, str) for value in raw.values()) else 0
        return own | {f"x{i}": f"v{i}" for i in range(more)}
    if isinstance(raw, list):
        count = random.choice((len(raw), len(raw), many)) if raw else 0
        found = [_swollen(raw[i % len(raw)], random, max(1, many // 20)) for i in range(count)]
        return [_named(one, i) if isinstance(one, dict) else one for i, one in enumerate(found)]
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        return raw
    if isinstance(raw, int):
        return random.choice(SIZES)
    return random.choice((raw, raw, raw, ",".join(str(2 * i) for i in range(many)), "y" * 5000))


def _named(raw: Json, number: int) -> Json:
    """The same under another name."""
    return {**raw, **{key: f"{raw[key]}{number}" for key in ("name", "groupName") if key in raw}}


@pytest.mark.parametrize("seed", own_half(range(60)))
def test_a_hostile_workload_and_its_pods_cost_work_by_its_bytes(seed: int) -> None:
    random = Random(seed)
    for given in LIVE:
        raw = {**given, **{part: _swollen(given.get(part, {}), random, 600) for part in ("spec", "status")}}
        raw["metadata"] = {**given["metadata"], "uid": "u", "namespace": "default"}
        size = len(json.dumps(raw))
        if size > 2 << 20:
            continue
        state = make_state(gangs=Gangs())
        kind = kind_of(head_of(Source(raw)))
        assert kind is not None
        changes = WorkloadChanges(kind, WatchedKinds(state.workloads, lambda: None))
        obj = decode(json.dumps(raw), type=WorkloadObject)
        state.upsert(nodes_of("s1{b1: n1:9}")[0])
        reference = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "name": raw["metadata"]["name"]}
        owner = convert({**reference, "uid": "u", "controller": True}, OwnerReference)
        for i in range(3):
            one = plain_pod(f"p-{i}")
            state.upsert(structs.replace(one, metadata=structs.replace(one.metadata, owner_references=[owner])))

        def act(changes=changes, obj=obj, state=state) -> None:  # type: ignore[no-untyped-def]
            with suppress(UnreadableError):
                changes.upsert(obj, None)
            plan_round(state.snapshot(0.0))

        calls = calls_of(act)
        assert calls < CALLS_OF_NOTHING + CALLS_A_BYTE * size + EACH * 5000, (given["kind"], size, calls)


def test_a_pod_group_of_volcano_of_twice_as_many_tasks_takes_twice_the_work() -> None:
    def calls(number: int) -> int:
        state = make_state(gangs=Gangs(volcano="on"))
        state.read_volcano(True)
        state.upsert(nodes_of("s1{b1: n1:9}")[0])
        tasks = {"minMember": 1, "minTaskMember": {f"t{i}": 1 for i in range(number)}}
        source = Source({**VOLCANO, "spec": tasks})
        state.put_volcano_group("default/v", VolcanoGroup.read(source, head_of(source)))
        state.upsert(plain_pod("p", annotations={"scheduling.k8s.io/group-name": "v", "volcano.sh/task-spec": "t0"}))
        snapshot = state.snapshot(0.0)
        return calls_of(lambda: plan_round(snapshot))

    assert calls(800) < 2.5 * calls(400)


def _read(given: Json) -> None:
    source = Source(given)
    with suppress(UnreadableError):
        workload_of(source, head_of(source))


def test_indexes_of_a_job_cost_their_text_and_no_more() -> None:
    ended = indexes("0-999999,2000000-2999999,5")
    assert calls_of(lambda: indexes("0-999999,2000000-2999999,5")) < 100
    assert (len(ended), ended.below(2_000_001)) == (2_000_000, 1_000_001)
    assert 999_999 in ended and 1_000_000 not in ended and 2_000_000 in ended and -1 not in ended


def test_a_jobset_is_read_with_its_jobs_as_they_were_read() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": "u", "controller": True}
    listed = [job(f"js-a-{i}", 2, meta={"uid": f"j{i}", "ownerReferences": [owner]}) for i in range(100)]
    jobs = {("default", one["metadata"]["name"]): read_job(s := Source(one), head_of(s)) for one in listed}
    source = Source({**jobset(role("a", 100, 2)), "metadata": {"name": "js", "uid": "u"}})
    read = []
    assert calls_of(lambda: read.append(read_jobset(source, head_of(source), jobs))) < 100 * EACH
    assert [part.owner.uid for part in read[0].roles[0].parts] == [f"j{i}" for i in range(100)]


@pytest.mark.parametrize("which", range(4))
def test_a_workload_is_read_in_work_bounded_by_its_bytes(which: int) -> None:
    def calls(number: int) -> int:
        given = next(islice(_many(number), which, None))
        return calls_of(lambda: workload_of(source := Source(given), head_of(source)))

    calls(10)  # what is loaded with the first one
    assert calls(2400) < 7 * calls(400)


@pytest.mark.parametrize("seed", range(4))
def test_simulate_answers_or_names_the_field(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    for given in GIVEN:
        for _ in range(4):
            path, value = random.choice(list(paths(given))), random.choice(ODD)
            answer = simulate(tmp_path, *nodes(2, 8), changed(given, path, value))
            assert answer.status in (0, 2), (path, value)
            if answer.status == 2:
                assert f"{given['kind']} default/{given['metadata']['name']}" in answer.err, (path, value, answer.err)


LWS, KUEUE = "leaderworkerset.sigs.k8s.io/", "kueue.x-k8s.io/pod-group-"
MANY = "9" * 5000


@pytest.mark.parametrize(
    ("notes", "labels"),
    [
        ({"batch.kubernetes.io/job-completion-index": MANY}, {}),
        ({LWS + "size": MANY}, {LWS + "name": "x", LWS + "group-index": "0"}),
        ({KUEUE + "total-count": MANY}, {KUEUE + "name": "g"}),
        ({"scheduling.k8s.io/group-name": "v", "volcano.sh/task-index": MANY}, {}),
        ({"scheduling.koordinator.sh/bind-gang-member-count": MANY}, {}),
        ({"pod-group.scheduling.koordinator.sh/rank-index": MANY}, {}),
    ],
)
def test_numbers_of_thousands_of_digits_are_none(notes: Json, labels: Json, tmp_path: Path) -> None:
    for node in ("", "n0"):
        there = pod("p", node=node, template={"notes": notes, "labels": labels})
        assert simulate(tmp_path, *nodes(2, 8), job(meta={"uid": "j1"}), VOLCANO, there).status == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (job(number=10**12), "spec.parallelism: makes 1000000000000 pods, 100000 at most"),
        (jobset(role("a", 10**12, 2)), "spec.replicatedJobs: makes 2000000000000 pods, 100000 at most"),
        (jobset(role("a", 1, 60_000), role("b", 1, 60_000)), "spec.replicatedJobs: makes 120000 pods, 100000 at most"),
        (
            workload(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                "lws",
                {"replicas": 10**12, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
            ),
            "spec.replicas: makes 2000000000000 pods, 100000 at most",
        ),
        (jobset(role("a", 5000, 1), role("b", 1, 1)), "spec.replicatedJobs: makes 5001 Jobs, 5000 at most"),
        (
            workload(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                "lws",
                {"replicas": 5001, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template()}},
            ),
            "spec.replicas: makes 5001 groups, 5000 at most",
        ),
    ],
)
def test_more_pods_than_are_made_are_told_before_any_is_made(given: Json, text: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(1), given)
    assert answer.status == 2 and answer.err.count("makes") == 1 and text in answer.err


def test_the_first_of_a_pod_group_of_kueue_has_index_zero(tmp_path: Path) -> None:
    group = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {KUEUE + "name": "g", KUEUE + "pod-index": str(index), "volcano.sh/task-index": "7"},
                "annotations": {KUEUE + "total-count": "3"},
            },
            "spec": template()["spec"],
        }
        for index, name in enumerate("cab")
    ]
    assert simulate(tmp_path, *nodes(3), *group).ranks == {"c": 0, "a": 1, "b": 2}


def test_roles_of_one_name_that_follow_each_other_end() -> None:
    """Against the API server's schema, but what is read is not all from there."""
    listed: list[Json] = [{"name": name, "template": {"spec": {"parallelism": 1}}} for name in "aba"]
    listed[1]["dependsOn"] = [{"name": "a", "status": "Complete"}]
    listed[2]["dependsOn"] = [{"name": "b", "status": "Complete"}]
    source = Source({"metadata": {"name": "js", "uid": "u"}, "spec": {"replicatedJobs": listed}})
    read = read_jobset(source, head_of(source))
    assert [followed(read, one) for one in read.roles] == [{"b": 1}, {"a": 1}, {"b": 1}]
    assert '"a" is given twice' in [fault.text for fault in source.faults]
