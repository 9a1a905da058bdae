# SPDX-License-Identifier: Apache-2.0
"""PodGroups of scheduling.k8s.io: those that controllers make by default do not end the search for a gang, and what is
not served yet holds (groups.md 2.3 and 2.4, kube-parity.md 6)."""

from pathlib import Path
from typing import Any

import pytest

from tests.workloads.cluster import Json, job, jobset, nodes, role, simulate, template, workload

BASIC: Json = {"basic": {}}
OF_JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j1"}


def group(name: str = "pg", policy: Json | None = None, owner: Json | None = OF_JOB, **spec: Any) -> Json:
    meta = {"ownerReferences": [owner] if owner else []}
    body = {"schedulingPolicy": BASIC if policy is None else policy, **spec}
    return workload("scheduling.k8s.io/v1beta1", "PodGroup", name, body, meta=meta)


def member(name: str = "pg", notes: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    """A pod template that names a PodGroup."""
    return template(notes, labels, schedulingGroup={"podGroupName": name}, **spec)


def train(number: int = 4, pod: Json | None = None, **spec: Any) -> Json:
    return job("train", number, pod=pod or member(), **{"meta": {"uid": "j1"}, **spec})


@pytest.mark.parametrize(
    ("room", "objects", "bound", "gangs"),
    [
        pytest.param(3, [group(), train()], 0, {"train": 4}, id="the Job's gang"),
        pytest.param(4, [group(), train()], 4, {"train": 4}, id="the Job's gang with room"),
        pytest.param(3, [group("train"), train(pod=member("train"))], 0, {"train": 4}, id="a group of the gang's name"),
        pytest.param(
            3,
            [group(), train(scheduling={"schedulingPolicy": BASIC})],
            3,
            {"pg": 0},
            id="the Job says basic",
        ),
        pytest.param(3, [group(owner=None), train()], 3, {"pg": 0}, id="of an author"),
        pytest.param(3, [group(owner={**OF_JOB, "uid": "j2"}), train()], 3, {"pg": 0}, id="of another Job"),
        pytest.param(3, [group(policy={"gang": {"minCount": 2}}), train()], 3, {"pg": 2}, id="with a minimum"),
        pytest.param(
            3,
            [group(owner={**OF_JOB, "uid": ""}), train(meta={})],
            0,
            {"train": 4},
            id="known by its name",
        ),
        pytest.param(3, [group(), train(completionMode="NonIndexed")], 3, {"pg": 0}, id="nothing is found"),
        pytest.param(
            3,
            [
                group(),
                train(
                    pod=member(
                        notes={
                            "gang.scheduling.koordinator.sh/name": "own",
                            "gang.scheduling.koordinator.sh/min-available": "4",
                        }
                    )
                ),
            ],
            0,
            {"own": 4},
            id="a gang by annotations",
        ),
        pytest.param(
            3,
            [
                group(),
                train(
                    completionMode="NonIndexed",
                    pod=member(
                        notes={"kueue.x-k8s.io/pod-group-total-count": "4"},
                        labels={"kueue.x-k8s.io/pod-group-name": "k"},
                    ),
                ),
            ],
            0,
            {"k": 4},
            id="a pod group of Kueue",
        ),
        pytest.param(
            3,
            [
                group(owner={"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": ""}),
                jobset(role("w", 2, 2, member())),
            ],
            0,
            {"js": 4},
            id="of a JobSet",
        ),
        pytest.param(
            3,
            [train(pod=template(), completionMode="NonIndexed", scheduling={"schedulingPolicy": {"gang": {}}})],
            0,
            {"train": 4},
            id="the Job asks",
        ),
        pytest.param(
            3,
            [
                train(
                    pod=template(),
                    completionMode="NonIndexed",
                    scheduling={"schedulingPolicy": {"gang": {"minCount": 3}}},
                )
            ],
            3,
            {"train": 3},
            id="the Job asks for fewer",
        ),
        pytest.param(
            3, [train(pod=template(), scheduling={"schedulingPolicy": BASIC})], 3, {}, id="the Job wants plain pods"
        ),
    ],
)
def test_a_group_made_by_default_does_not_end_the_search(
    tmp_path: Path, room: int, objects: list[Json], bound: int, gangs: dict[str, int]
) -> None:
    answer = simulate(tmp_path, *nodes(room), *objects)
    assert len(answer.bound) == bound, answer.document["pending"]
    assert {name: one["minMember"] for name, one in answer.gangs.items()} == gangs


@pytest.mark.parametrize(
    "objects",
    [
        [group(schedulingConstraints={"topology": [{"key": "rack"}]}), train(2)],
        [train(2, pod=template(), scheduling={"schedulingConstraints": {"topology": [{"key": "rack"}]}})],
    ],
    ids=["the group", "the Job"],
)
def test_its_topology_key_holds_for_the_gang(tmp_path: Path, objects: list[Json]) -> None:
    apart = [*nodes(1, name="a", labels={"rack": "a"}), *nodes(1, name="b", labels={"rack": "b"})]
    assert not simulate(tmp_path, *apart, *objects).bound
    more = nodes(2, name="c", labels={"rack": "c"})
    answer = simulate(tmp_path, *apart, *more, *objects)
    assert {one["node"] for one in answer.document["bindings"]} == {"c0", "c1"}


def running(name: str, node: str, **spec: Any) -> Json:
    made = template(**spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**made["spec"], "nodeName": node},
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize(
    ("said", "own", "evicted"),
    [
        ({"priority": 100}, "", True),
        ({"priority": 100, "preemptionPolicy": "Never"}, "", False),
        ({"priority": 100, "preemptionPolicy": "PreemptLowerPriority"}, "Never", True),
        ({"priority": 100}, "Never", False),
        ({}, "", False),
    ],
)
def test_its_priority_and_preemption_policy_hold(tmp_path: Path, said: Json, own: str, evicted: bool) -> None:
    pod = member(**({"preemptionPolicy": own} if own else {}))
    low = [running(f"low-{i}", f"n{i}", priority=10) for i in range(2)]
    answer = simulate(tmp_path, *nodes(2), group(**said), train(2, pod=pod), *low)
    assert bool(answer.document["evictions"]) is evicted
    assert len(answer.bound) == (2 if evicted else 0)


@pytest.mark.parametrize("mode", [{"all": {}}, "PodGroup", None], ids=str)
@pytest.mark.parametrize("by_job", [False, True], ids=["the group", "the Job"])
def test_its_disruption_mode_holds(tmp_path: Path, mode: Any, by_job: bool) -> None:
    """A gang of which one is enough goes whole where its mode is all."""
    said = {"disruptionMode": mode} if mode is not None else {}
    if by_job and mode == "PodGroup":
        return
    notes = {"gang.scheduling.koordinator.sh/min-available": "1"}
    runs = []
    for i in range(2):
        made = running(f"train-{i}", f"n{i}")
        made["metadata"] |= {
            "annotations": notes,
            "labels": {"batch.kubernetes.io/job-completion-index": str(i)},
            "ownerReferences": [{**OF_JOB, "controller": True}],
        }
        if not by_job:
            made["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
        runs.append(made)
    pod = template(notes) if by_job else member(notes=notes)
    objects = [train(2, pod=pod, **({"scheduling": said} if by_job else {}))]
    objects += [] if by_job else [group(**said)]
    high = running("high", "", priority=100)
    del high["spec"]["nodeName"]
    answer = simulate(tmp_path, *nodes(2), *objects, *runs, {**high, "status": {}}, args=("--evicted", "drop"))
    assert len(answer.document["evictions"]) == (1 if mode is None else 2)


@pytest.mark.parametrize(
    ("said", "own", "text"),
    [
        ({"parentCompositePodGroupName": "root"}, "", "spec.parentCompositePodGroupName"),
        ({"preemptionPolicy": "Never"}, "", "spec.preemptionPolicy"),
        ({"preemptionPolicy": "PreemptLowerPriority"}, "Never", "spec.preemptionPolicy"),
        ({"preemptionPolicy": "Never"}, "Never", ""),
        ({"preemptionPolicy": "PreemptLowerPriority"}, "", ""),
        ({}, "Never", ""),
    ],
)
@pytest.mark.parametrize("policy", [BASIC, {"gang": {"minCount": 1}}], ids=["basic", "gang"])
def test_what_is_not_served_holds_by_its_name(tmp_path: Path, said: Json, own: str, text: str, policy: Json) -> None:
    pod = member(**({"preemptionPolicy": own} if own else {}))
    answer = simulate(tmp_path, *nodes(2), group(policy=policy, owner=None, **said), train(2, pod=pod))
    assert len(answer.bound) == (0 if text else 2)
    if text:
        assert answer.message("train-0") == f"gang default/pg: unsupported: {text}"
        assert answer.gangs["pg"]["status"] == "Invalid"
        assert answer.document["pending"][0]["reason"] == "SchedulerError"


CLAIM = {"name": "gpus", "resourceClaimName": "shared"}


@pytest.mark.parametrize("own", [CLAIM, {**CLAIM, "resourceClaimName": "other"}, None])
@pytest.mark.parametrize("owner", [OF_JOB, None], ids=["by default", "of an author"])
def test_a_pod_that_names_a_claim_of_its_group_needs_that_claim(
    tmp_path: Path, own: Json | None, owner: Json | None
) -> None:
    pod = member(**({"resourceClaims": [own]} if own else {}))
    answer = simulate(tmp_path, *nodes(2), group(owner=owner, resourceClaims=[CLAIM]), train(2, pod=pod))
    if own is None:
        assert len(answer.bound) == 2
    else:
        assert not answer.bound
        assert f'resourceclaim "{own["resourceClaimName"]}" not found' in answer.message("train-0")


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [
        ({"preemptionPolicy": "Always"}, 2, 'spec.preemptionPolicy: "Always" is none of Never, PreemptLowerPriority'),
        ({"parentCompositePodGroup": "root"}, 0, "spec.parentCompositePodGroup: unknown field, not read"),
        ({"anything": 1}, 0, "spec.anything: unknown field, not read"),
        ({"schedulingPolicy": {"gagn": {"minCount": 2}}}, 0, "spec.schedulingPolicy.gagn: unknown field, not read"),
        ({"schedulingPolicy": {"gagn": {}}}, 0, "spec.schedulingPolicy: exactly one of basic and gang must be set"),
        ({"schedulingPolicy": {"gang": {"minCuont": 2}}}, 0, "spec.schedulingPolicy.gang.minCuont: unknown field"),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, 0, "spec.schedulingPolicy.gang.minCount: 0 is less than 1"),
        ({"schedulingConstraints": {"topolgy": []}}, 0, "spec.schedulingConstraints.topolgy: unknown field, not read"),
        ({"workloadRef": {"name": "w"}, "podGroupTemplateRef": {}}, 0, ""),
    ],
)
def test_nothing_of_a_group_is_ignored_silently(tmp_path: Path, said: Json, status: int, text: str) -> None:
    answer = simulate(tmp_path, *nodes(1), group(**said))
    assert answer.status == status
    assert text in answer.err if text else "spec." not in answer.err


def test_a_composite_group_is_said_to_be_not_served(tmp_path: Path) -> None:
    root = workload("scheduling.k8s.io/v1alpha3", "CompositePodGroup", "root", {"schedulingPolicy": BASIC})
    answer = simulate(tmp_path, *nodes(1), root)
    assert "is not supported yet: the pods of the groups below it stay pending" in answer.err
