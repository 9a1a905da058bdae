# SPDX-License-Identifier: Apache-2.0
"""What the condition of a scheduling.k8s.io PodGroup says, and the group's priority."""

from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from koordpy.api.objects import Condition, OwnerReference, Pod
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.cache.gang_members import Members
from koordpy.config.configuration import Gangs
from koordpy.devices.family_registry import make_state
from koordpy.engine.status.upstream_status import CONDITION, condition, conditions_of_version, wanted_condition
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo, pod_info
from koordpy.workloads.kinds.kind_registry import workload_of
from koordpy.workloads.workload_manifest import Source, head_of

OURS = frozenset({"koord-scheduler"})


def group(policy: dict[str, Any], *, done: bool = False, **spec: Any) -> UpstreamPodGroup:
    told = [{"type": CONDITION, "status": "True", "reason": "Scheduled"}] if done else []
    manifest = {
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"schedulingPolicy": policy, **spec},
        "status": {"conditions": told},
    }
    return convert(manifest, UpstreamPodGroup)


def member(name: str, node: str = "", phase: str = "Pending", priority: int = 0) -> Pod:
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "nodeName": node,
            "schedulerName": "koord-scheduler",
            "schedulingGroup": {"podGroupName": "g"},
            "priority": priority,
            "containers": [{"name": "c"}],
        },
        "status": {"phase": phase},
    }
    return convert(manifest, Pod)


def info(*args: Any, assumed: str = "") -> PodInfo:
    return pod_info(member(*args), scheduler_names=OURS, assumed_node=assumed)


def evicted(one: PodInfo) -> PodInfo:
    disrupted = Condition(type="DisruptionTarget", status="True")
    return replace(one, pod=replace(one.pod, status=replace(one.pod.status, conditions=[disrupted])))


def report(status: GangStatus, message: str = "no room") -> GangReport:
    return GangReport("default/g", 2, 2, 0, status, None, None, message)


GANG, BASIC = {"gang": {"minCount": 2}}, {"basic": {}}
ON = [info("a", "n1"), info("b", "n1")]


@pytest.mark.parametrize(
    ("of", "pods", "verdict", "said"),
    [
        (group(GANG), ON, None, condition("True", "Scheduled", "2 pods bound, 2 required")),
        (group(GANG), [ON[0], info("b", assumed="n1")], None, None),
        (group(GANG), [ON[0], info("b", "", "Succeeded")], None, "True"),
        (group(GANG), [ON[0], evicted(info("b", "", "Succeeded"))], None, None),
        (group(GANG), [ON[0], info("b", "", "Failed")], None, None),
        (group(GANG), ON[:1], GangStatus.UNSCHEDULABLE, condition("False", "Unschedulable", "no room")),
        (group(GANG), ON[:1], GangStatus.INVALID, condition("False", "SchedulerError", "no room")),
        (group(GANG), ON[:1], GangStatus.INCOMPLETE, None),
        (group(BASIC), ON[:1], GangStatus.UNSCHEDULABLE, "True"),
        (group(BASIC), [], GangStatus.UNSCHEDULABLE, "False"),
        (group(GANG, done=True), [], GangStatus.UNSCHEDULABLE, None),
    ],
)
def test_the_condition_follows_the_requirement_until_it_is_true(
    of: UpstreamPodGroup, pods: list[PodInfo], verdict: GangStatus | None, said: Condition | str | None
) -> None:
    found = wanted_condition(of, Members(pods=tuple(pods)), report(verdict) if verdict is not None else None)
    assert (found.status if isinstance(said, str) and found is not None else found) == said


@pytest.mark.parametrize(("minimum", "said"), [(0, "True"), (2, "True"), (3, "False")])
def test_a_group_made_by_default_has_its_condition_from_the_gang(minimum: int, said: str) -> None:
    found = wanted_condition(group(BASIC), Members(pods=tuple(ON)), report(GangStatus.UNSCHEDULABLE), minimum)
    assert found is not None and found.status == said


def test_the_gang_of_a_group_made_by_default_is_known() -> None:
    state = make_state(scheduler_names=tuple(OURS), gangs=Gangs())
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    made = group(BASIC, priority=50, preemptionPolicy="Never")
    made = replace(made, metadata=replace(made.metadata, owner_references=[convert(owner, OwnerReference)]))
    template = {"metadata": {}, "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]}}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    meta = {"name": "train", "namespace": "default", "uid": "j"}
    source = Source({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
    state.workloads.put_workload(workload_of(source, head_of(source)))
    pods = [member(name) for name in ("a", "b")]
    pods = [
        replace(one, metadata=replace(one.metadata, owner_references=made.metadata.owner_references)) for one in pods
    ]
    for obj in (pods[0], made, pods[1]):
        state.upsert(obj)
    snapshot, gang = state.snapshot(0.0), GangRef("default", "train", GangSource.WORKLOAD)
    assert {(pod.gang, pod.priority, pod.preemption_policy) for pod in snapshot.pending} == {(gang, 50, "Never")}
    assert (list(state.gangs.made_of(gang)), list(state.gangs.gangs_of_made("default/g"))) == (["default/g"], [gang])
    assert snapshot.made_groups == {gang: (made,)} and snapshot.passed_groups == {"default/g"}
    state.upsert(group(BASIC))  # it lost its owner: its author asked for no minimum
    assert {pod.gang for pod in state.snapshot(0.0).pending} == {GangRef("default", "g", GangSource.UPSTREAM)}
    state.upsert(made)
    state.delete(UpstreamPodGroup, "default/g")
    snapshot = state.snapshot(0.0)
    assert {(pod.gang, pod.priority) for pod in snapshot.pending} == {(GangRef("default", "g", GangSource.UPSTREAM), 0)}
    assert not snapshot.made_groups and not snapshot.passed_groups


def test_each_version_reads_the_condition_by_its_own_name() -> None:
    assert conditions_of_version("v1beta1") == conditions_of_version("v1alpha3") == (CONDITION,)
    assert conditions_of_version("v1alpha2") == (CONDITION, "PodGroupScheduled")


@pytest.mark.parametrize(
    ("mode", "one"),
    [
        (None, False),
        ("Pod", False),
        ("PodGroup", True),
        ({"single": {}}, False),
        ({"all": {}}, True),
        ({}, False),
    ],
)
def test_the_disruption_mode_is_read_in_the_spelling_of_every_version(mode: Any, one: bool) -> None:
    assert group(GANG, disruptionMode=mode).spec.disrupted_as_one is one


@pytest.mark.parametrize("group_first", [True, False])
def test_the_priority_of_a_group_counts_while_the_group_is_there(group_first: bool) -> None:
    state = make_state()
    objects = [group(GANG, priority=50), member("a", priority=7)]
    for obj in objects if group_first else reversed(objects):
        state.upsert(obj)
    found, alone = state.pod("default/a"), info("a", "", "Pending", 7)
    assert found is not None and found.priority == 50 and found.shape != alone.shape
    assert state.snapshot(0.0).pending == (found,)
    state.upsert(group(GANG))
    assert state.pod("default/a") == alone
    state.upsert(group(GANG, priority=-1))
    state.delete(UpstreamPodGroup, "default/g")
    assert state.pod("default/a") == alone
