# SPDX-License-Identifier: Apache-2.0
"""How gangs form and when they are planned: gang-network.md section 2, through whole rounds."""

import json

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    OwnerReference,
    Pod,
    PodSpec,
    SchedulingGate,
    SchedulingGroup,
)
from koordpy.api.objects import ObjectMeta as Meta
from koordpy.api.pod_groups import (
    UpstreamConstraints,
    UpstreamGang,
    UpstreamPodGroup,
    UpstreamPodGroupSpec,
    UpstreamPolicy,
    UpstreamTopologyConstraint,
)
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus, Proof, RoundPlan
from tests.scenarios.cluster import (
    TWO_LAYERS,
    World,
    bound,
    gang_pods,
    group,
    hierarchy,
    messages,
    node,
    nodes_of,
    pod,
    wish,
)


def status(plan: RoundPlan, name: str = "default/g") -> GangStatus:
    return next(report.status for report in plan.gangs if report.name == name)


def gated(name: str, gang: str) -> Pod:
    return pod(name, gang=gang, scheduling_gates=[SchedulingGate(name="wait")])


def test_a_label_that_names_no_group_holds_the_pod() -> None:
    plan = World().add(node("n1"), pod("p-0", gang="g")).plan()
    assert messages(plan) == {"p-0": "gang default/g: PodGroup not found"}
    assert status(plan) is GangStatus.INCOMPLETE


def test_a_listed_gang_that_is_absent_holds_the_group() -> None:
    linked = {keys.GANG_GROUPS: json.dumps(["default/g", "default/h"])}
    plan = World().add(node("n1:9"), group("g", 1, linked), pod("p-0", gang="g")).plan()
    assert messages(plan) == {"p-0": "gang default/h: PodGroup not found, listed in groups of gang default/g"}


def test_gated_pods_are_no_members() -> None:
    world = World().add(node("n1:9"), group("g", 2), pod("p-0", gang="g"), gated("p-1", "g"))
    plan = world.plan()
    assert messages(plan) == {"p-0": "gang default/g: waiting for members, 1 of minMember 2 exist"}
    assert bound(world.add(pod("p-2", gang="g")).plan()) == {"p-0": "n1", "p-2": "n1"}


def test_succeeded_members_count_for_the_gate_and_failed_ones_do_not() -> None:
    world = World().add(node("n1:9"), group("g", 2, {keys.GANG_MATCH_POLICY: "waiting-and-running"}))
    world.add(pod("p-0", gang="g", at="n1", phase="Failed"), pod("p-1", gang="g"))
    assert "1 of minMember 2" in messages(world.plan())["p-1"]
    world.add(pod("p-2", gang="g", at="n1", phase="Succeeded"), pod("p-3", gang="g"))
    assert bound(world.plan()) == {"p-1": "n1", "p-3": "n1"}


def test_an_unreadable_wish_holds_the_gang_and_says_where() -> None:
    broken = {keys.GANG_TOPOLOGY: '{"gatherStrategy": [{"layer": "b", "strategy": "Must"}]}'}
    plan = World().add(node("n1:9"), group("g", 1, broken), pod("p-0", gang="g")).plan()
    text = messages(plan)["p-0"]
    assert text.startswith(f"gang default/g: annotation {keys.GANG_TOPOLOGY} cannot be read: ")
    assert "gatherStrategy[0].strategy" in text and status(plan) is GangStatus.INVALID


def test_an_unknown_hard_layer_holds_the_gang_and_a_soft_one_warns() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:9}"))
    world.add(group("g", 1, wish({"rackLayer": "Must"})), pod("p-0", gang="g"))
    known = "layers: spineLayer, blockLayer, nodeLayer"
    assert messages(world.plan()) == {"p-0": f'gang default/g: unknown layer "rackLayer", {known}'}
    plan = world.add(group("g", 1, wish({"rackLayer": "Prefer"}))).plan()
    assert bound(plan) == {"p-0": "n1"}
    assert any("rackLayer" in text for _, text in plan.warnings)
    bare = World().add(node("n1"), group("g", 1, wish({"rackLayer": "Must"})), pod("p-0", gang="g"))
    assert messages(bare.plan())["p-0"].endswith('unknown layer "rackLayer", no ClusterNetworkTopology')


@pytest.mark.parametrize("name", ["blocklayer", "BlockLayer", "blokLayer", "blockLayers"])
def test_a_layer_that_was_meant_is_named(name: str) -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:9}"))
    world.add(group("g", 1, wish({name: "Must"})), pod("p-0", gang="g"))
    assert messages(world.plan()) == {"p-0": f'gang default/g: unknown layer "{name}", did you mean blockLayer?'}
    plan = world.add(group("g", 1, wish({name: "Prefer"}))).plan()
    assert [text.partition(" is ignored")[2] for _, text in plan.warnings if name in text] == [
        ", did you mean blockLayer?"
    ]


def test_while_the_topology_is_invalid_a_gang_is_told_that_and_not_to_look_at_its_own_layers() -> None:
    broken = hierarchy(("blockLayer", "b"), ("spineLayer", ""))
    says = "ClusterNetworkTopology default is invalid: spec.hierarchy[1].labelKey: layer spineLayer needs a label key"
    for world in (
        World().add(broken, nodes_of("s{b: n1:9}")),
        # the last good layers go on counting; a layer that is new with the fault is none of them
        World().add(TWO_LAYERS, nodes_of("s{b: n1:9}")).add(broken),
    ):
        world.add(group("g", 1, wish({"rackLayer": "Must"})), pod("p-0", gang="g"))
        plan = world.plan()
        assert messages(plan)["p-0"].startswith(f"gang default/g: {says}") and status(plan) is GangStatus.INVALID
        plan = world.add(group("g", 1, wish({"rackLayer": "Prefer"}))).plan()
        assert bound(plan) == {"p-0": "n1"}
        assert any(f'unknown layer "rackLayer" of PreferGather is ignored: {says}' in text for _, text in plan.warnings)


def test_a_wrong_number_of_members_is_warned_of_once_the_gang_can_start() -> None:
    size = {"parallelModel": [{"parallelStrategy": "data-parallel", "parallelism": 4}]}
    world = World().add(node("n1:9"), group("g", 3, {keys.GANG_TOPOLOGY: json.dumps(size)}))
    warned = []
    for i in range(4):
        plan = world.add(pod(f"p-{i}", gang="g")).plan()
        warned.append([text for _, text in plan.warnings if "data-parallel" in text])
    text = "networkTopologyAware: data-parallel 4 x pipeline-parallel 1 is 4, the gang has 3 members"
    assert warned == [[], [], [text], []]


def test_the_oldest_pod_decides_the_settings_of_a_gang_without_an_object() -> None:
    notes = {keys.GANG_NAME: "a"}
    world = World().add(node("n1:2"))
    world.add(pod("p-1", annotations={**notes, keys.GANG_MIN: "5"}, created=9))
    world.add(pod("p-0", annotations={**notes, keys.GANG_MIN: "2"}, created=1))
    assert set(bound(world.plan())) == {"p-0", "p-1"}
    bad = World().add(node("n1:2"), pod("p-0", annotations={**notes, keys.GANG_MIN: "two"}))
    assert "cannot be read" in messages(bad.plan())["p-0"]


def test_a_group_is_linked_from_either_side_and_goes_together_or_not_at_all() -> None:
    linked = {keys.GANG_GROUPS: json.dumps(["default/a"])}
    world = World().add(node("n1:3"), group("a", 2), group("b", 2, linked))
    world.add([pod(f"{g}-{i}", gang=g) for g in "ab" for i in range(2)])
    plan = world.plan()
    assert bound(plan) == {}
    assert messages(plan)["a-0"].endswith("gang default/a,default/b: needed 4, available in the cluster: 3.")
    assert len(bound(world.add(node("n2:1")).plan())) == 4


def test_once_satisfied_lets_the_rest_in_one_by_one() -> None:
    world = World().add(node("n1:3"), group("g", 3), gang_pods("g", 3))
    assert len(world.run().placements) == 3
    world.state.delete(Pod, "default/p-1")
    world.state.delete(Pod, "default/p-2")
    world.add(pod("other", at="n1"), pod("p-3", gang="g"), pod("p-4", gang="g"))
    assert bound(world.plan()) == {"p-3": "n1"}
    waiting = World().add(node("n1:2"), group("g", 3, {keys.GANG_MATCH_POLICY: "only-waiting"}), gang_pods("g", 3))
    waiting.add(pod("p-9", gang="g", at="n1"))
    assert bound(waiting.plan()) == {}


def test_every_binding_carries_rank_domain_and_its_group() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: a0 a1; b1: c0}"))
    plan = world.add(group("g", 2, wish({"blockLayer": "Must"})), gang_pods("g", 2)).plan()
    assert [dict(p.annotations) for p in plan.placements] == [
        {
            keys.BOUND_RANK: str(i),
            keys.BOUND_DOMAIN: "s/b0",
            keys.BIND_GROUP_ID: "default/g",
            keys.BIND_MEMBER_COUNT: "2",
        }
        for i in range(2)
    ]
    report = plan.gangs[0]
    assert report.domain == ("blockLayer", "s/b0") and report.proof is Proof.OPTIMAL
    alone = World().add(node("n1"), pod("p")).plan()
    assert dict(alone.placements[0].annotations) == {}


def test_late_members_of_a_gang_torn_over_two_hard_domains_wait() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: a0 a1; b1: c0 c1}"), group("g", 3, wish({"blockLayer": "Must"})))
    world.add(pod("p-0", gang="g", at="a0"), pod("p-1", gang="g", at="c0"), pod("p-2", gang="g"))
    plan = world.plan()
    assert bound(plan) == {} and "in two domains of blockLayer: s/b0, s/b1" in messages(plan)["p-2"]


def upstream(name: str, count: int, *keys_: str) -> UpstreamPodGroup:
    limits = UpstreamConstraints(topology=[UpstreamTopologyConstraint(key=key) for key in keys_])
    policy = UpstreamPolicy(gang=UpstreamGang(min_count=count))
    spec = UpstreamPodGroupSpec(scheduling_policy=policy, scheduling_constraints=limits if keys_ else None)
    return UpstreamPodGroup(metadata=Meta(name=name, namespace="default"), spec=spec)


def upstream_pod(name: str, cpu: str = "1", **settings: object) -> Pod:
    return pod(name, cpu=cpu, scheduling_group=SchedulingGroup(pod_group_name="g"), **settings)  # type: ignore[arg-type]


def test_an_upstream_topology_key_is_a_hard_domain_of_its_own() -> None:
    nodes = [node("n1:2", {"zone": "a"}), node("n2:1", {"zone": "b"}), node("n3:2", {"zone": "b"}), node("n4:9")]
    world = World().add(nodes, upstream("g", 3, "zone"), [upstream_pod(f"p-{i}") for i in range(3)])
    assert sorted(bound(world.plan()).values()) == ["n2", "n3", "n3"]
    hopeless = World().add(nodes, upstream("g", 4, "zone"), [upstream_pod(f"p-{i}") for i in range(4)])
    assert bound(hopeless.plan()) == {}


def test_an_upstream_group_of_mixed_priorities_is_an_error() -> None:
    world = World().add(node("n1:9"), upstream("g", 1), upstream_pod("p-0"), upstream_pod("p-1", priority=5))
    assert {p.reason for p in world.plan().pending} == {Reason.SCHEDULER_ERROR}


def test_min_resources_that_cannot_fit_hold_the_gang() -> None:
    world = World().add(node("n1:4"), pod("x", at="n1", cpu="2"))
    plan = world.add(group("g", 1, min_resources={"cpu": "3"}), pod("p-0", gang="g")).plan()
    assert messages(plan) == {"p-0": "gang default/g: minResources do not fit: cpu 3, free 2"}
    assert bound(world.add(group("g", 1, min_resources={"cpu": "2"})).plan()) == {"p-0": "n1"}


def test_pods_of_other_schedulers_are_left_alone() -> None:
    world = World().add(node("n1:9"), pod("theirs", scheduler="default-scheduler"), pod("ours"))
    assert bound(world.plan()) == {"ours": "n1"}
    assert PodSpec().scheduler_name == "default-scheduler"


def test_features_without_a_filter_are_refused_and_named() -> None:
    from koordpy.api.objects import PodResourceClaim

    plan = World().add(node("n1:9"), pod("p", resource_claims=[PodResourceClaim(name="c")])).plan()
    assert bound(plan) == {} and "0/1 nodes are available: " in messages(plan)["p"]


def test_gangs_of_a_group_that_nothing_is_planned_for_are_all_told_of_once() -> None:
    linked = {keys.GANG_GROUPS: json.dumps(["default/h", "default/i"])}
    world = World().add(node("n1"), group("g", 1, linked), group("h", 2), group("i", 1), group("alone", 1))
    world.add(pod("g-0", gang="g", at="n1"), pod("h-0", gang="h", at="n1"), pod("i-0", gang="i", at="n1"))
    reports = sorted((report.name, report.bound, report.status) for report in world.plan().gangs)
    assert reports == [
        ("default/alone", 0, GangStatus.INCOMPLETE),
        ("default/g", 1, GangStatus.SCHEDULED),
        ("default/h", 1, GangStatus.DEGRADED),
        ("default/i", 1, GangStatus.SCHEDULED),
    ]


def of_job(job: str, made: Pod, ended: str = "") -> Pod:
    """The pod, of a Job; ended: when its container did."""
    owner = OwnerReference(kind="Job", name=job, uid=job, controller=True)
    state = ContainerState(terminated=ContainerStateTerminated(finished_at=ended))
    statuses = [ContainerStatus(name="main", state=state)] if ended else []
    return replace(
        made,
        metadata=replace(made.metadata, owner_references=[owner]),
        status=replace(made.status, container_statuses=statuses),
    )


@pytest.mark.parametrize(
    ("ended", "starts"),
    [
        pytest.param("2026-01-01T00:05:00Z", True, id="beside the workers"),
        pytest.param("2025-12-31T23:00:00Z", False, id="before them: an earlier run"),
        pytest.param("", False, id="nobody knows when"),
    ],
)
@pytest.mark.parametrize("others", ["Running", "Failed"])
def test_a_driver_that_has_succeeded_stands_for_workers_that_ran_beside_it(
    ended: str, starts: bool, others: str
) -> None:
    world = World().add(node("n1:9"), group("g", 4))
    world.add(of_job("driver", pod("d-0", gang="g", at="n1", phase="Succeeded"), ended))
    world.add(*(of_job("workers", pod(f"w-{i}", gang="g", at="n1", phase=others)) for i in (0, 1)))
    waiting = 1 if others == "Running" else 3
    plan = world.add(*(of_job("workers", pod(f"v-{i}", gang="g", created=600)) for i in range(waiting))).plan()
    assert len(bound(plan)) == (waiting if starts else 0), messages(plan)
