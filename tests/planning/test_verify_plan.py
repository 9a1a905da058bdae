# SPDX-License-Identifier: Apache-2.0
"""The independent check of a plan finds what may not be carried out, however it came there, and nothing else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Affinity,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    NodeSpec,
    ObjectMeta,
    Requirement,
    SchedulingGroup,
    Taint,
    Toleration,
)
from koordpy.api.pod_groups import (
    UpstreamConstraints,
    UpstreamGang,
    UpstreamPodGroup,
    UpstreamPodGroupSpec,
    UpstreamPolicy,
    UpstreamTopologyConstraint,
)
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.verify.plan_check import check_plan
from tests.given_devices import given_to_pod
from tests.planning.node_rules import anti, term
from tests.scenarios.cluster import TWO_LAYERS, World, gang_pods, group, node, nodes_of, pod, wish
from tests.scenarios.gpus import gpu_node, gpu_pod, measured
from tests.scenarios.npus import npu_gang, npu_node, npu_pod, switched
from tests.scenarios.quotas import belongs, quota
from tests.scenarios.test_gpu_inits import with_inits

HOST = "kubernetes.io/hostname"
BOTH = (("p-0", "p-1"), ("p-1", "p-0"))
USED = Taint(key="team", value="a", effect="NoSchedule")
ASIDE = Taint(key="team", value="a", effect="PreferNoSchedule")
GONE = Taint(key="team", value="a", effect="NoExecute")
PAIRS = wish({"blockLayer": "Prefer"}, multiple={"blockLayer": 2})
LAB = belongs("lab")
RIGID = belongs("lab", rigid=True)
BLOCKS = nodes_of("s1{b1: n1:9 n2:9; b2: n3:9} s2{b3: n4:9}")


def tainted(*taints: Taint, cordoned: bool = False) -> Node:
    return replace(node("n1:9"), spec=NodeSpec(taints=list(taints), unschedulable=cordoned))


def near(*zones: str) -> Affinity:
    here = Requirement(key="zone", operator="In", values=list(zones))
    terms = [NodeSelectorTerm(match_expressions=[here])]
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=terms)))


def upstream(least: int, key: str = "") -> UpstreamPodGroup:
    limits = UpstreamConstraints(topology=[UpstreamTopologyConstraint(key=key)]) if key else None
    policy = UpstreamPolicy(gang=UpstreamGang(min_count=least))
    spec = UpstreamPodGroupSpec(scheduling_policy=policy, scheduling_constraints=limits)
    return UpstreamPodGroup(metadata=ObjectMeta(name="g", namespace="default"), spec=spec)


def of_upstream(count: int) -> list[Any]:
    return [pod(f"p-{i}", scheduling_group=SchedulingGroup(pod_group_name="g")) for i in range(count)]


@dataclass(frozen=True)
class Case:
    """A cluster, where its only unit is to go (pod -> node), and what is wrong with that."""

    objects: list[Any]
    nodes: Mapping[str, str]
    faults: list[str] = field(default_factory=list)
    chips: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


TABLE = {"annotations": {keys.GPU_PARTITIONS: json.dumps({"2": [
    {"minors": [0, 1], "allocationScore": 1}, {"minors": [2, 3], "allocationScore": 1, "ringBusBandwidth": "300"}
]})}}  # fmt: skip
RESTRICTED = {keys.GPU_PARTITION_SPEC: json.dumps({"allocatePolicy": "Restricted"})}
FAST = {keys.GPU_PARTITION_SPEC: json.dumps({"allocatePolicy": "Restricted", "ringBusBandwidth": "200"})}
CASES: dict[str, Case] = {
    "it fits to the last core": Case([node("n1:2"), pod("x", at="n1"), pod("p")], {"p": "n1"}),
    "one core too many": Case(
        [node("n1:2"), pod("x", at="n1"), pod("p", cpu="2")], {"p": "n1"}, ["node n1: cpu 1000 + 2000 > 2000"]
    ),
    "two that fit alone": Case(
        [node("n1:1"), group("g", 2), gang_pods("g", 2)],
        {"p-0": "n1", "p-1": "n1"},
        ["node n1: cpu 0 + 2000 > 1000"],
    ),
    "no place for another pod": Case(
        [node("n1:9", pods="1"), pod("x", at="n1", cpu="0"), pod("p", cpu="0")],
        {"p": "n1"},
        ["node n1: pods 1 + 1 > 1"],
    ),
    "what no node has": Case(
        [node("n1:9"), node("n2", **{"example.com/fpga": "1"}), pod("p", requests={"example.com/fpga": "1"})],
        {"p": "n1"},
        ["node n1: example.com/fpga 0 + 1 > 0"],
    ),
    "no such node": Case([node("n1"), pod("p")], {"p": "n2"}, ["default/p: node n2 does not exist"]),
    "somebody else's pod": Case(
        [node("n1:9"), node("n2:9"), pod("x", at="n2"), pod("p")],
        {"p": "n1", "x": "n1"},
        ["default/x is not a pending member of the unit"],
    ),
    "a member that is bound already": Case(
        [node("n1:9"), group("g", 1), pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")],
        {"p-0": "n1", "p-1": "n1"},
        ["default/p-0 is not a pending member of the unit"],
    ),
    "a taint": Case(
        [tainted(USED), pod("p")], {"p": "n1"}, ["default/p: node n1 has taint team that it does not tolerate"]
    ),
    "a taint that evicts": Case(
        [tainted(GONE), pod("p")], {"p": "n1"}, ["default/p: node n1 has taint team that it does not tolerate"]
    ),
    "a taint that is tolerated": Case(
        [tainted(USED), pod("p", tolerations=[Toleration(key="team", operator="Exists")])], {"p": "n1"}
    ),
    "a taint that only deters": Case([tainted(ASIDE), pod("p")], {"p": "n1"}),
    "a cordoned node": Case(
        [tainted(cordoned=True), pod("p")],
        {"p": "n1"},
        ["default/p: node n1 has taint node.kubernetes.io/unschedulable that it does not tolerate"],
    ),
    "its node selector": Case([node("n1", {"zone": "a"}), pod("p", node_selector={"zone": "a"})], {"p": "n1"}),
    "another label's value": Case(
        [node("n1", {"zone": "b"}), node("n2", {"zone": "a"}), pod("p", node_selector={"zone": "a"})],
        {"p": "n1"},
        ["default/p: node n1 does not match its node selector"],
    ),
    "one of two labels": Case(
        [node("n1", {"zone": "a"}), pod("p", node_selector={"zone": "a", "disk": "ssd"})],
        {"p": "n1"},
        ["default/p: node n1 does not match its node selector"],
    ),
    "its node affinity": Case([node("n1", {"zone": "b"}), pod("p", affinity=near("a", "b"))], {"p": "n1"}),
    "another zone": Case(
        [node("n1", {"zone": "c"}), pod("p", affinity=near("a", "b"))],
        {"p": "n1"},
        ["default/p: node n1 does not match its node affinity"],
    ),
    "each kind of pod is looked at on each node": Case(
        [node("n1:9"), node("n2:9", {"zone": "a"}), group("g", 2), gang_pods("g", 2, node_selector={"zone": "a"})],
        {"p-0": "n2", "p-1": "n1"},
        ["default/p-1: node n1 does not match its node selector"],
    ),
    "enough members": Case([node("n1:9"), group("g", 2), gang_pods("g", 3)], {"p-0": "n1", "p-2": "n1"}),
    "too few members": Case(
        [node("n1:9"), group("g", 3), gang_pods("g", 4)],
        {"p-0": "n1", "p-1": "n1"},
        ["gang default/g: 2 placed, needed 3"],
    ),
    "few members beside the bound ones": Case(
        [node("n1:9"), group("g", 2), pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")], {"p-1": "n1"}
    ),
    "one block": Case(
        [TWO_LAYERS, *BLOCKS, group("g", 2, wish({"blockLayer": "Must"})), gang_pods("g", 2)],
        {"p-0": "n1", "p-1": "n2"},
    ),
    "two blocks where one is a must": Case(
        [TWO_LAYERS, *BLOCKS, group("g", 2, wish({"blockLayer": "Must"})), gang_pods("g", 2)],
        {"p-0": "n1", "p-1": "n3"},
        ["MustGather blockLayer: members in 2 domains"],
    ),
    "two blocks where one is a wish": Case(
        [TWO_LAYERS, *BLOCKS, group("g", 2, wish({"blockLayer": "Prefer"})), gang_pods("g", 2)],
        {"p-0": "n1", "p-1": "n3"},
    ),
    "two blocks of one spine that is a must": Case(
        [TWO_LAYERS, *BLOCKS, group("g", 2, wish({"spineLayer": "Must"})), gang_pods("g", 2)],
        {"p-0": "n1", "p-1": "n3"},
    ),
    "away from a bound member": Case(
        [
            *(TWO_LAYERS, *BLOCKS, group("g", 1, wish({"spineLayer": "Must"}))),
            *(pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")),
        ],
        {"p-1": "n4"},
        ["MustGather spineLayer: members in 2 domains"],
    ),
    "blocks by twos": Case(
        [TWO_LAYERS, *BLOCKS, group("g", 4, PAIRS), *gang_pods("g", 4)],
        {"p-0": "n1", "p-1": "n2", "p-2": "n3", "p-3": "n3"},
    ),
    "three and one where twos are asked": Case(
        [TWO_LAYERS, *BLOCKS, group("g", 4, PAIRS), *gang_pods("g", 4)],
        {"p-0": "n1", "p-1": "n2", "p-2": "n2", "p-3": "n3"},
        ["podCountMultiple blockLayer=2 is broken"],
    ),
    "one that is counted with the bound ones": Case(
        [
            *(TWO_LAYERS, *BLOCKS, group("g", 1, PAIRS)),
            *(pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")),
        ],
        {"p-1": "n2"},
    ),
    "one zone": Case(
        [node("n1:9", {"zone": "a"}), node("n2:9", {"zone": "a"}), upstream(2, "zone"), *of_upstream(2)],
        {"p-0": "n1", "p-1": "n2"},
    ),
    "two zones where one is asked": Case(
        [node("n1:9", {"zone": "a"}), node("n2:9", {"zone": "b"}), upstream(2, "zone"), *of_upstream(2)],
        {"p-0": "n1", "p-1": "n2"},
        ["topology key zone: members in several domains"],
    ),
    "no zone where one is asked": Case(
        [node("n1:9"), upstream(2, "zone"), *of_upstream(2)],
        {"p-0": "n1", "p-1": "n1"},
        ["topology key zone: members in several domains"],
    ),
    "within its quota": Case([node("n1:9"), quota("lab", 0, 2), pod("p", labels=LAB, cpu="2")], {"p": "n1"}),
    "beyond its quota": Case(
        [
            node("n1:9"),
            quota("lab", 0, 2),
            pod("x", at="n1", labels=LAB),
            pod("p", labels=LAB, cpu="2"),
        ],
        {"p": "n1"},
        ["quota lab: cpu 1000 + 2000 > 2000"],
    ),
    "beyond the quota above": Case(
        [
            *(node("n1:9"), quota("all", 1, 1, inner=True), quota("lab", 0, 9, parent="all")),
            pod("p", labels=LAB, cpu="2"),
        ],
        {"p": "n1"},
        ["quota all: cpu 0 + 2000 > 1000", "quota lab: cpu 0 + 2000 > 1000"],
    ),
    "non-preemptible beyond the minimum": Case(
        [node("n1:9"), quota("lab", 1, 9), pod("p", labels=RIGID, cpu="2")],
        {"p": "n1"},
        ["quota lab: non-preemptible cpu 0 + 2000 > 1000"],
    ),
    "non-preemptible beyond the minimum with those that run": Case(
        [node("n1:9"), quota("lab", 2, 9), pod("x", at="n1", labels=RIGID), pod("p", labels=RIGID, cpu="2")],
        {"p": "n1"},
        ["quota lab: non-preemptible cpu 1000 + 2000 > 2000"],
    ),
    "non-preemptible up to the minimum": Case(
        [node("n1:9"), quota("lab", 2, 9), pod("p", labels=RIGID, cpu="2")], {"p": "n1"}
    ),
    "GPUs by name": Case([*measured("n1"), gpu_pod("p", 2)], {"p": "n1"}, chips={"p": (0, 1)}),
    "GPUs without names": Case(
        [*measured("n1"), gpu_pod("p", 2)], {"p": "n1"}, ["default/p: the plan names no GPU of node n1"]
    ),
    "GPUs of a node that only counts them": Case([gpu_node("n1"), gpu_pod("p", 2)], {"p": "n1"}),
    "GPUs that cannot be told, of another": Case(
        [*measured("n1"), gpu_pod("x", 1, at="n1"), gpu_pod("p", 2)], {"p": "n1"}
    ),
    "one GPU of two": Case(
        [*measured("n1"), gpu_pod("p", 2)], {"p": "n1"}, ["default/p: gets 1 of 2 GPUs"], chips={"p": (0,)}
    ),
    "a GPU that another holds": Case(
        [*measured("n1"), gpu_pod("x", 1, at="n1", held={1}), gpu_pod("p", 2)],
        {"p": "n1"},
        ["default/p: GPU 1 of node n1 is already in use"],
        chips={"p": (0, 1)},
    ),
    "a GPU twice": Case(
        [*measured("n1"), group("g", 2), gpu_pod("p-0", 1, gang="g"), gpu_pod("p-1", 1, gang="g")],
        {"p-0": "n1", "p-1": "n1"},
        ["default/p-1: GPU 3 of node n1 is already in use"],
        chips={"p-0": (3,), "p-1": (3,)},
    ),
    "a GPU that is not there": Case(
        [*measured("n1"), gpu_pod("p", 1)],
        {"p": "n1"},
        ["default/p: GPU 8 of node n1 is missing or unhealthy"],
        chips={"p": (8,)},
    ),
    "a sick GPU": Case(
        [*measured("n1", sick={2}), gpu_pod("p", 1)],
        {"p": "n1"},
        ["default/p: GPU 2 of node n1 is missing or unhealthy"],
        chips={"p": (2,)},
    ),
    "members on one node that shun each other": Case(
        [node("n1:9"), group("g", 2), gang_pods("g", 2, labels={"app": "w"}, affinity=anti(term(HOST, {"app": "w"})))],
        {"p-0": "n1", "p-1": "n1"},
        [f"default/{one} on n1: its anti-affinity excludes default/{other} on n1 ({HOST})" for one, other in BOTH],
    ),
    "NPUs by name": Case([npu_node("n1"), npu_pod("p", 2)], {"p": "n1"}, chips={"p": (0, 1)}),
    "NPUs without names": Case([npu_node("n1"), npu_pod("p", 2)], {"p": "n1"}, ["default/p: gets 0 of 2 chips"]),
    "two servers' pods on one": Case(
        [*switched({"a": (0, 1, 2)}, 3), *npu_gang("g", 2, 4, labels={keys.TOR_AFFINITY: "large-model-schema"})],
        {"p-0": "as0", "p-1": "as0"},
        ["default/g: 2 pods are on server as0, at most 1 is possible"],
        chips={"p-0": (0, 1, 2, 3), "p-1": (4, 5, 6, 7)},
    ),
    "GPUs that are linked as asked": Case(
        [*measured("n1"), gpu_pod("p", 2, annotations={keys.GPU_MIN_BANDWIDTH: "24"})],
        {"p": "n1"},
        [],
        chips={"p": (0, 1)},
    ),
    "GPUs that are not": Case(
        [*measured("n1"), gpu_pod("p", 2, annotations={keys.GPU_MIN_BANDWIDTH: "900"})],
        {"p": "n1"},
        ["default/p: GPUs 0, 1 are not linked at 900 GB/s of node n1"],
        chips={"p": (0, 1)},
    ),
    "a listed set": Case(
        [*measured("n1", **TABLE), gpu_pod("p", 2, annotations=RESTRICTED)], {"p": "n1"}, [], chips={"p": (2, 3)}
    ),
    "no listed set": Case(
        [*measured("n1", **TABLE), gpu_pod("p", 2, annotations=RESTRICTED)],
        {"p": "n1"},
        ["default/p: GPUs 1, 2 are not a listed set of node n1"],
        chips={"p": (1, 2)},
    ),
    "a listed set that is too slow": Case(
        [*measured("n1", **TABLE), gpu_pod("p", 2, annotations=FAST)],
        {"p": "n1"},
        ["default/p: GPUs 0, 1 are not a listed set of node n1"],
        chips={"p": (0, 1)},
    ),
    "GPUs for a pod that asks for none": Case(
        [*measured("n1"), pod("p")],
        {"p": "n1"},
        ["default/p: gets GPUs that it does not request"],
        chips={"p": (0,)},
    ),
    "GPUs for a pod that asks for none, on a node without known ones": Case(
        [node("n1", **{"nvidia.com/gpu": "8"}), pod("p")],
        {"p": "n1"},
        ["default/p: gets GPUs that it does not request"],
        chips={"p": (0,)},
    ),
    "GPUs by name on a node without known ones": Case(
        [node("n1", **{"nvidia.com/gpu": "8"}), gpu_pod("p", 2)],
        {"p": "n1"},
        ["default/p: gets GPUs 0, 1 of node n1, but the GPUs of the node are unknown"],
        chips={"p": (0, 1)},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_plan_is_refused_for_its_faults_and_for_nothing_else(case: Case) -> None:
    snapshot = World().add(*case.objects).snapshot()
    (unit,) = Groups(snapshot).units()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    nodes = {f"default/{name}": at for name, at in case.nodes.items()}
    given = {f"default/{name}": given_to_pod(snapshot.pods[f"default/{name}"], own) for name, own in case.chips.items()}
    assert check_plan(unit, nodes, round_state, given) == case.faults


@dataclass(frozen=True)
class Later:
    """As `Case`, with what the round did before: pods on n1 (with chips) that it placed, and those that it evicted."""

    objects: list[Any]
    faults: list[str]
    placed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    evicted: tuple[str, ...] = ()
    chips: tuple[int, ...] = ()


LATER: dict[str, Later] = {
    "room that is given": Later(
        [node("n1:2"), pod("a"), pod("p", cpu="2")], ["node n1: cpu 1000 + 2000 > 2000"], {"a": ()}
    ),
    "room that is made": Later([node("n1:2"), pod("x", at="n1"), pod("p", cpu="2")], [], evicted=("x",)),
    "a quota's room that is given": Later(
        [node("n1:9"), quota("lab", 0, 2), pod("a", labels=LAB), pod("p", labels=LAB, cpu="2")],
        ["quota lab: cpu 1000 + 2000 > 2000"],
        {"a": ()},
    ),
    "a quota's room that is made": Later(
        [node("n1:9"), quota("lab", 0, 2), pod("x", at="n1", labels=LAB), pod("p", labels=LAB, cpu="2")],
        [],
        evicted=("x",),
    ),
    "a GPU that is given": Later(
        [*measured("n1"), gpu_pod("a", 1), gpu_pod("p", 1)],
        ["default/p: GPU 1 of node n1 is already in use"],
        {"a": (1,)},
        chips=(1,),
    ),
    "another GPU": Later([*measured("n1"), gpu_pod("a", 1), gpu_pod("p", 1)], [], {"a": (1,)}, chips=(2,)),
    "GPUs without names beside named ones": Later(
        [*measured("n1"), gpu_pod("a", 1), gpu_pod("p", 1)],
        ["default/p: the plan names no GPU of node n1"],
        {"a": (1,)},
    ),
    "GPUs without names beside others": Later([*measured("n1"), gpu_pod("a", 1), gpu_pod("p", 1)], [], {"a": ()}),
    "GPUs without names, more than are healthy": Later(
        [*measured("n1", sick=range(1, 8)), gpu_pod("a", 1), gpu_pod("p", 1)],
        ["node n1: 1 + 1 GPUs requested, 1 healthy"],
        {"a": ()},
    ),
    "GPUs without names that are to be linked": Later(
        [*measured("n1"), gpu_pod("a", 1), gpu_pod("p", 2, annotations={keys.GPU_MIN_BANDWIDTH: "1"})],
        ["default/p: GPUs without names are not linked at 1 GB/s of node n1"],
        {"a": ()},
    ),
    "a GPU of one that goes": Later(
        [*measured("n1"), gpu_pod("x", 1, at="n1", held={1}), gpu_pod("p", 1)], [], evicted=("x",), chips=(1,)
    ),
    "GPUs without names where one goes that has none": Later(
        [*measured("n1"), gpu_pod("x", 1, at="n1"), gpu_pod("p", 1)],
        ["default/p: the plan names no GPU of node n1"],
        evicted=("x",),
    ),
    "a chip that is given": Later(
        [npu_node("n1"), npu_pod("a", 1), npu_pod("p", 1)],
        ["default/p: chip 3 of node n1 is already in use"],
        {"a": (3,)},
        chips=(3,),
    ),
    "another chip": Later([npu_node("n1"), npu_pod("a", 1), npu_pod("p", 1)], [], {"a": (3,)}, chips=(4,)),
    "a chip of one that goes": Later(
        [npu_node("n1"), npu_pod("x", 1, at="n1", holds=(3,)), npu_pod("p", 1)], [], evicted=("x",), chips=(3,)
    ),
}


@pytest.mark.parametrize("case", LATER.values(), ids=LATER.keys())
def test_what_the_round_did_before_counts(case: Later) -> None:
    snapshot = World().add(*case.objects).snapshot()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    for name, chips in case.placed.items():
        pod = snapshot.pods[f"default/{name}"]
        round_state.draft.assign(pod, snapshot.index["n1"], devices=given_to_pod(pod, chips))
    for name in case.evicted:
        round_state.draft.evict(snapshot.pods[f"default/{name}"])
    unit = next(unit for unit in Groups(snapshot).units() if unit.id == "default/p")
    assert (
        check_plan(
            unit, {"default/p": "n1"}, round_state, {"default/p": given_to_pod(snapshot.pods["default/p"], case.chips)}
        )
        == case.faults
    )


MINORS = '{"allocatedGPUs": {"0": ["0", "1"]}, "visibleGPUs": ["0", "1", "2"]}'
STRAY = "its containers get GPUs that the pod does not have"
IDS = {"0": "GPU-n1-0,GPU-n1-1", "init-0": "GPU-n1-0", "init-1": "GPU-n1-2"}


@pytest.mark.parametrize(
    ("changed", "faults"),
    [
        ({}, []),
        ({"init-0": "GPU-n1-2"}, []),
        (
            {"init-1": "GPU-n1-1"},
            ["container c0 shares GPUs with containers that run at the same time", "containers use 2 GPUs at"],
        ),
        ({"init-1": "GPU-n1-2,GPU-n1-3"}, [STRAY, "container i1 gets 2 of 1 GPUs", "containers use 4 GPUs"]),
        ({"init-0": "GPU-n1-9"}, ["container i0 gets 0 of 1 GPUs"]),
        ({"0": "GPU-n1-0,GPU-n1-3"}, ["its lists of minors and ids differ", STRAY]),
        ({"init-0": "GPU-n1-5"}, [STRAY]),
    ],
)
def test_the_containers_of_a_pod_are_followed_through_its_life(changed: dict[str, str], faults: list[str]) -> None:
    """One that runs once, a sidecar, and a container of two; the plan gives GPUs 0, 1 and 2."""
    own = with_inits(gpu_pod("p", 2), ("once", 1), ("side", 1))
    snapshot = World().add(*measured("n1"), own).snapshot()
    (unit,) = Groups(snapshot).units()
    listed = {f"{keys.GPU_CUDA_VISIBLE_PREFIX}{place}": ids for place, ids in {**IDS, **changed}.items()}
    notes = {"default/p": {keys.GPU_ALLOCATION: MINORS, **listed}}
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    found = check_plan(unit, {"default/p": "n1"}, round_state, {"default/p": {"gpus": (0, 1, 2)}}, notes)
    assert len(found) == len(faults)
    assert all(one.startswith(f"default/p: {fault}") for one, fault in zip(found, faults, strict=True)), found
