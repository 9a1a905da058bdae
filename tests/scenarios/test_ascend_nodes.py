# SPDX-License-Identifier: Apache-2.0
"""Inside a node (ascend.md 1 to 3): reports, products, illegal jobs, and which node a pod or a gang without a gather
goal goes to."""

import json
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.devices.ascend.tables.npu_book import MOST_CHIPS, read_reports
from koordpy.explain.explanation import explain
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import RoundPlan
from tests.scenarios.cluster import TWO_LAYERS, World, bound, messages, wish
from tests.scenarios.npus import (
    N310,
    N310P,
    N910,
    NPU,
    ascend,
    chips,
    device_info,
    ids,
    notes,
    npu_gang,
    npu_node,
    npu_pod,
    settle,
    super_pods,
)

UNHEALTHY, UNLINKED, FAULT = f"{N910}-Unhealthy", f"{N910}-NetworkUnhealthy", f"{N910}-Fault"


def reasons(world: World, name: str) -> dict[str, tuple[str, str]]:
    """Node -> (code, reason) for a pod alone."""
    found = explain(world.snapshot(), None, f"default/{name}")
    return {n.node: (n.reasons[0][1], n.reasons[0][2]) for n in found.nodes if n.reasons}


def scores(world: World, name: str, **settings: Any) -> dict[str, int]:
    """Node -> AscendAffinity of the feasible ones."""
    found = explain(world.snapshot(), ascend(**settings), f"default/{name}")
    return {n.node: int(n.scores["AscendAffinity"]) for n in found.nodes if n.feasible}


def illegal(plan: RoundPlan) -> dict[str, str]:
    """Pod name -> why its job is illegal."""
    return {
        p.pod_key.partition("/")[2]: p.message.removeprefix("JobValidateFailed: ")
        for p in plan.pending
        if p.reason is Reason.JOB_VALIDATE_FAILED
    }


# --- held, broken and reported chips ------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", [N910, N310, N310P, NPU])
def test_a_number_of_chips_that_no_server_has_is_cut(resource: str) -> None:
    """A typo, such as an amount of memory: what is tried for each chip must not be tried a trillion times."""
    node = npu_node("n1", 10**12, "", resource=resource)
    report = read_reports(node, None)[resource]
    assert (report.capacity, report.listed.bit_count()) == (10**12, MOST_CHIPS)
    world = World().add(node, npu_pod("p", 4, resource=resource))
    assert set(reasons(world, "p")) | set(scores(world, "p")) == {"n1"}


def test_chips_of_running_pods_are_held_whoever_bound_them() -> None:
    world = World().add(npu_node("n1"), npu_pod("x", 3, at="n1", holds=(0, 2, 5), scheduler="other"))
    world.add(npu_pod("p", 4))
    assert chips(world.plan()) == {"p": [1, 3, 4, 6]}


def test_chips_of_finished_pods_are_free() -> None:
    world = World().add(npu_node("n1"))
    done = npu_pod("x", 8, at="n1", holds=range(8))
    import msgspec

    done = msgspec.structs.replace(done, status=msgspec.structs.replace(done.status, phase="Succeeded"))
    world.add(done, npu_pod("p", 8))
    assert chips(world.plan()) == {"p": list(range(8))}


def test_pods_of_one_round_share_no_chips() -> None:
    """Worked example 4: 3, 4 and 1 chips on nodes of 8."""
    world = World().add(npu_node("n1"), npu_node("n2"))
    world.add(npu_pod("a", 3), npu_pod("b", 4, created=1), npu_pod("c", 1, created=2))
    assert bound(world.plan()) == {"a": "n1", "b": "n1", "c": "n1"}
    assert chips(world.plan()) == {"a": [0, 1, 2], "b": [3, 4, 5, 6], "c": [7]}


def test_a_node_whose_report_and_ledger_disagree_is_skipped() -> None:
    """Worked example 7."""
    world = World().add(npu_node("n1"), npu_pod("x", 2, at="n1"), npu_pod("p", 1))
    assert reasons(world, "p") == {"n1": ("Unschedulable", "node(s) had an inconsistent Ascend chip report")}
    assert "1 node(s) had an inconsistent Ascend chip report" in messages(world.plan())["p"]


def test_fewer_chips_than_the_ledger_is_fine() -> None:
    world = World().add(npu_node("n1", annotations={UNHEALTHY: ids((0, 1))}), npu_pod("p", 6))
    assert chips(world.plan()) == {"p": [2, 3, 4, 5, 6, 7]}


def test_unhealthy_chips_lower_the_height_of_a_node() -> None:
    nodes = npu_node("a", annotations={UNHEALTHY: ids((0,))}), npu_node("b")
    assert scores(World().add(*nodes, npu_pod("p", 7)), "p") == {"a": 8 * 7, "b": 8 * 7}
    assert reasons(World().add(*nodes, npu_pod("q", 8)), "q")["a"] == (
        "Unschedulable",
        "node(s) didn't have 8 free Ascend chips in one affinity group",
    )


def test_only_jobs_of_several_npu_pods_lose_chips_without_a_network() -> None:
    world = World().add(npu_node("n1", annotations={UNLINKED: ids((0, 1))}))
    world.add(npu_pod("alone", 7), npu_gang("g", 2, 3, prefix="g"))
    assert chips(world.plan())["alone"] == [0, 1, 2, 3, 4, 5, 6]
    world = World().add(npu_node("n1", annotations={UNLINKED: ids((0, 1))}), npu_gang("g", 2, 3, prefix="g"))
    assert chips(world.plan()) == {"g-0": [2, 3, 4], "g-1": [5, 6, 7]}
    world = World().add(npu_node("n1", annotations={UNLINKED: ids((0, 1))}), npu_gang("g", 2, 4, prefix="g"))
    assert bound(world.plan()) == {}


def test_the_device_plugins_report_replaces_the_annotations() -> None:
    world = World().add(npu_node("n1", annotations={UNHEALTHY: ids((0, 1, 2, 3))}))
    world.add(device_info("n1", chips=ids(range(7)), unhealthy=ids((6,)), unlinked=""), npu_pod("p", 6))
    assert chips(world.plan()) == {"p": [0, 1, 2, 3, 4, 5]}
    world.add(npu_pod("q", 7))
    assert "q" in messages(world.plan())


def test_a_report_of_broken_chips_alone_replaces_the_annotations_too() -> None:
    world = World().add(npu_node("n1", annotations={UNHEALTHY: ids((0, 1))}))
    world.add(device_info("n1", unhealthy=ids((7,))), npu_pod("p", 7))
    assert chips(world.plan()) == {"p": [0, 1, 2, 3, 4, 5, 6]}


def test_a_report_of_another_resource_leaves_the_annotations() -> None:
    world = World().add(npu_node("n1", annotations={UNHEALTHY: ids((0,))}))
    world.add(device_info("n1", N310, unhealthy="Ascend310-3"), npu_pod("p", 7))
    assert chips(world.plan()) == {"p": [1, 2, 3, 4, 5, 6, 7]}


def test_an_absurd_number_of_chips_is_read_as_far_as_ids_go() -> None:
    world = World().add(npu_node("n1", 10**18), npu_pod("p", 8))
    assert chips(world.plan()) == {"p": list(range(8))}


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"DeviceInfo": {"DeviceList": []}})])
def test_a_report_that_cannot_be_read_counts_for_nothing(text: str) -> None:
    report = device_info("n1")
    report.data[keys.DEVICE_INFO_KEY] = text
    world = World().add(npu_node("n1", annotations={UNHEALTHY: ids((0,))}), report, npu_pod("p", 7))
    assert chips(world.plan()) == {"p": [1, 2, 3, 4, 5, 6, 7]}


def test_sub_healthy_nodes_come_after_healthy_ones_among_equals() -> None:
    fault = json.dumps([{"npu_name": "Ascend910-1", "fault_level": "SubHealthFault"}])
    world = World().add(npu_node("a", annotations={FAULT: fault}), npu_node("b"), npu_pod("p", 2))
    assert bound(world.plan()) == {"p": "b"}
    world.add(npu_pod("x", 5, at="a", holds=range(5)))
    assert bound(world.plan()) == {"p": "a"}, "a better fit is no equal"


def test_deleting_a_pod_or_its_report_frees_and_restores() -> None:
    world = World().add(npu_node("n1"), npu_pod("x", 8, at="n1", holds=range(8)), npu_pod("p", 8))
    assert bound(world.plan()) == {}
    world.state.delete(Pod, "default/x")
    assert bound(world.plan()) == {"p": "n1"}


# --- products and legality ------------------------------------------------------------------------------------------

ILLEGAL: list[tuple[str, list[Any], dict[str, str]]] = [
    (
        "three of a module",
        [npu_node("n", product="module"), npu_pod("p", 3)],
        {"p": f"{N910} request 3 is illegal for 910-module"},
    ),
    (
        "no label is a module",
        [npu_node("n", product=""), npu_pod("p", 3)],
        {"p": f"{N910} request 3 is illegal for 910-module"},
    ),
    (
        "no node at all is a module",
        [npu_node("n", resource=N310), npu_pod("p", 6)],
        {"p": f"{N910} request 6 is illegal for 910-module"},
    ),
    (
        "legal for none of two products",
        [npu_node("a", product="module"), npu_node("b", 16, "module-910b-16"), npu_pod("p", 9)],
        {"p": f"{N910} request 9 is illegal for 910-module, 910b-x16"},
    ),
    (
        "one of half a job of several",
        [npu_node("n", 16, "module-a3-16"), npu_gang("g", 2, 1)],
        dict.fromkeys(("p-0", "p-1"), f"{N910} request 1 is illegal for a3-x16"),
    ),
    (
        "a policy decides alone",
        [npu_node("n"), npu_pod("p", 3, annotations={keys.SCHEDULE_POLICY: "chip4-node8"})],
        {"p": f"{N910} request 3 is illegal for 910-module"},
    ),
    (
        "a policy of another resource",
        [npu_node("n"), npu_pod("p", 3, annotations={keys.SCHEDULE_POLICY: "chip4-node16"})],
        {"p": f"{N910} request 3 is illegal for mesh-x16"},
    ),
    (
        "two resources",
        [npu_node("n"), npu_pod("p", containers=[{N910: 1}, {N310: 1}])],
        {"p": "more than one Ascend resource in one pod"},
    ),
    (
        "an unknown policy",
        [npu_node("n"), npu_pod("p", 1, annotations={keys.SCHEDULE_POLICY: "chip8-node8-ra64-sp"})],
        {"p": f"unknown {keys.SCHEDULE_POLICY} chip8-node8-ra64-sp"},
    ),
    (
        "npu without a policy",
        [npu_node("n", resource=NPU), npu_pod("p", 1, resource=NPU)],
        {"p": f"{NPU} needs annotation {keys.SCHEDULE_POLICY}"},
    ),
    (
        "members of two minds",
        [
            npu_node("n"),
            npu_gang("g", 1, 1, prefix="a"),
            npu_pod("b-0", 1, gang="g", labels={keys.TOR_AFFINITY: "normal-schema"}),
        ],
        dict.fromkeys(("a-0", "b-0"), f"members disagree on {keys.TOR_AFFINITY}"),
    ),
    (
        "one illegal member",
        [npu_node("n", product="module"), npu_gang("g", 1, 1, prefix="a"), npu_pod("b-0", 3, gang="g")],
        dict.fromkeys(("a-0", "b-0"), f"{N910} request 3 is illegal for 910-module"),
    ),
    (
        "five chips of a card",
        [npu_node("n", 8, "", resource=N310), npu_pod("p", 5, resource=N310, labels={keys.NPU_310_STRATEGY: "card"})],
        {"p": f"{N310} request 5 is illegal for 310-card"},
    ),
    (
        "an unknown strategy",
        [npu_node("n", 8, "", resource=N310), npu_pod("p", 1, resource=N310, labels={keys.NPU_310_STRATEGY: "core"})],
        {"p": f"label {keys.NPU_310_STRATEGY}=core is unknown"},
    ),
    (
        "three of a duo card",
        [
            npu_node("n", 8, "", resource=N310P),
            npu_pod("p", 3, resource=N310P, labels={keys.NPU_DUO: "true", keys.NPU_310_STRATEGY: "card"}),
        ],
        {"p": f"{N310P} request 3 is illegal for 310p-duo-card"},
    ),
    (
        "an unknown switch affinity",
        [npu_node("n"), npu_pod("p", 1, labels={keys.TOR_AFFINITY: "big"})],
        {"p": f"label {keys.TOR_AFFINITY}=big is unknown"},
    ),
]


@pytest.mark.parametrize(("objects", "want"), [case[1:] for case in ILLEGAL], ids=[case[0] for case in ILLEGAL])
def test_illegal_jobs_are_told_why(objects: list[Any], want: dict[str, str]) -> None:
    world = World().add(*objects)
    said = illegal(world.plan())
    assert said.keys() == want.keys()
    for name, text in want.items():
        assert said[name].startswith(text)
        assert all(p.message.startswith("JobValidateFailed: ") for p in world.plan().pending)
    name = next(iter(want))
    found = explain(world.snapshot(), None, f"default/{name}")
    assert found.message.startswith(f"JobValidateFailed: {want[name]}")
    assert found.feasible_nodes == 0


def test_illegal_jobs_hold_up_nobody() -> None:
    world = World().add(npu_node("n", product="module"), npu_pod("p", 3), npu_pod("q", 4, created=1))
    assert bound(world.plan()) == {"q": "n"}
    report = World().add(npu_node("n", product="module"), npu_gang("g", 2, 3)).plan().gangs[0]
    assert str(report.status) == "Invalid"


def test_nodes_of_other_products_are_filtered_where_the_request_is_legal_for_some() -> None:
    world = World().add(npu_node("a", product="module"), npu_node("b"), npu_node("c", 2, "card"), npu_pod("p", 3))
    assert bound(world.plan()) == {"p": "b"}
    assert reasons(world, "p") == {
        "a": ("UnschedulableAndUnresolvable", "node(s) had an Ascend product that cannot serve 3 chips"),
        "c": ("UnschedulableAndUnresolvable", f"Insufficient {N910}"),
    }


def test_a_node_of_an_unknown_product_serves_nobody() -> None:
    world = World().add(npu_node("a", product="module-920"), npu_node("b"), npu_pod("p", 2))
    assert bound(world.plan()) == {"p": "b"}
    assert "a" in reasons(world, "p")


def test_keys_of_the_pod_group_come_before_those_of_pods() -> None:
    own = npu_gang("g", 1, 3, annotations={keys.SCHEDULE_POLICY: "chip4-node8"})
    world = World().add(npu_node("n"), own)
    assert illegal(world.plan())["p-0"].startswith(f"{N910} request 3 is illegal for 910-module")


@pytest.mark.parametrize(
    ("request_", "label", "legal"),
    [(3, {}, True), (3, {keys.NPU_DUO: "true"}, True), (7, {keys.NPU_DUO: "true", keys.NPU_DISTRIBUTED: "true"}, True)],
)
def test_310p_by_its_labels(request_: int, label: dict[str, str], legal: bool) -> None:
    world = World().add(npu_node("n", 8, "", resource=N310P), npu_pod("p", request_, resource=N310P, labels=label))
    assert (bound(world.plan()) == {"p": "n"}) is legal


def test_sp_block_means_the_product_of_superpod_nodes() -> None:
    wish_ = {keys.SP_BLOCK: "8"}
    eight = [npu_node("e", 8, "module-a3-8-super-pod", labels={keys.SUPER_POD_ID: "1"})]
    both = [*eight, *super_pods(1)]
    assert bound(World().add(*eight, npu_pod("p", 8, annotations=wish_)).plan()) == {"p": "e"}
    assert bound(World().add(*both, npu_pod("p", 8, annotations=wish_)).plan()) == {"p": "e"}
    assert bound(World().add(*both, npu_pod("p", 16, annotations={keys.SP_BLOCK: "16"})).plan()) == {"p": "s0-0"}
    assert bound(World().add(*both, npu_pod("p", 4, annotations={keys.SP_BLOCK: "4"})).plan()) == {"p": "s0-0"}
    assert (
        "a3-x16" in illegal(World().add(npu_node("n"), npu_pod("p", 3, annotations={keys.SP_BLOCK: "3"})).plan())["p"]
    )


# --- where a pod goes -----------------------------------------------------------------------------------------------


def test_affinity_ranks_before_every_other_score() -> None:
    """Worked example 1: the node with the exact fit wins, though the other is preferred by the pod."""
    preferred = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]
                    },
                }
            ]
        }
    }
    import msgspec

    from koordpy.api.objects import Affinity

    world = World().add(npu_node("a", product="module"), npu_node("b", product="module"))
    world.add(npu_pod("x", 7, at="a", holds=range(1, 8)), npu_pod("y", 3, at="b", holds=(2, 3, 7)))
    world.add(npu_pod("p", 1, affinity=msgspec.convert(preferred, Affinity)))
    assert scores(world, "p") == {"a": 263, "b": 251}
    assert bound(world.plan()) == {"p": "a"}


def test_pods_without_npus_have_no_affinity() -> None:
    world = World().add(npu_node("a"), npu_pod("p", 0))
    found = explain(world.snapshot(), None, "default/p")
    assert all("AscendAffinity" not in node.scores for node in found.nodes)


def test_the_affinity_is_no_part_of_the_total() -> None:
    world = World().add(npu_node("a"), npu_pod("p", 8), npu_pod("q", 0, created=1))
    with_, without = (explain(world.snapshot(), None, f"default/{name}").nodes[0].total for name in "pq")
    assert abs(with_ - without) <= 700


# --- gangs without a gather goal ------------------------------------------------------------------------------------


def test_a_gang_takes_the_best_node_pod_by_pod() -> None:
    world = World().add(npu_node("a"), npu_node("b"), npu_pod("x", 5, at="b", holds=range(5)))
    world.add(npu_gang("g", 3, 3))
    assert bound(world.plan()) == {"p-0": "b", "p-1": "a", "p-2": "a"}


def test_no_pod_takes_the_node_that_a_later_one_needs() -> None:
    """The best node of the first pod is the only one of the second."""
    world = World().add(npu_node("a", product="module"), npu_node("b", product="module"))
    world.add(npu_pod("x", 4, at="a", holds=range(4)), npu_pod("y", 2, at="b", holds=(0, 4)))
    world.add(npu_gang("g", 1, 1, prefix="a", minimum=2), npu_pod("b-1", 4, gang="g"))
    assert scores(world, "a-0")["a"] < scores(world, "a-0")["b"]
    world = World().add(npu_node("a", 4, "half"), npu_node("b", 4, "half"), npu_pod("x", 1, at="b", holds=(3,)))
    world.add(npu_gang("g", 1, 2, prefix="a", minimum=2), npu_pod("b-1", 4, gang="g"))
    assert bound(world.plan()) == {"a-0": "b", "b-1": "a"}
    world = World().add(npu_node("a", 4, "half"), npu_node("b", 4, "half"), npu_pod("x", 3, at="b", holds=(0, 1, 2)))
    world.add(npu_gang("g", 1, 1, prefix="a", minimum=2), npu_pod("b-1", 4, gang="g"))
    assert bound(world.plan()) == {"a-0": "b", "b-1": "a"}


def test_a_better_score_yields_to_a_later_member() -> None:
    """b suits the first pod best, and is the only node with cpu for the second."""
    world = World().add(npu_node("a", cpu="2"), npu_node("b"), npu_pod("x", 4, at="b", holds=range(4)))
    large = npu_pod("b-1", 4, gang="g", containers=[{N910: 4, "cpu": 32}])
    world.add(npu_gang("g", 1, 4, prefix="a", minimum=2), large)
    assert scores(world, "a-0") == {"a": 32, "b": 64}
    assert bound(world.plan()) == {"a-0": "a", "b-1": "b"}


def test_pods_without_npus_are_placed_beside() -> None:
    world = World().add(npu_node("a", cpu="2"), npu_node("b", cpu="2"), npu_pod("cpu", 0, at="b"))
    world.add(npu_gang("g", 2, 8, minimum=3), npu_pod("master-9", 0, gang="g"))
    done = world.plan()
    assert bound(done) == {"p-0": "b", "p-1": "a", "master-9": "a"}
    assert keys.RANK_INDEX not in notes(done)["master-9"]
    assert {name: own.get(keys.RANK_INDEX) for name, own in notes(done).items()} == {
        "p-0": "0",
        "p-1": "1",
        "master-9": None,
    }


def test_ranks_count_npu_pods_alone() -> None:
    world = World().add(npu_node("a"), npu_node("b"), npu_node("c"))
    world.add(npu_gang("g", 0, minimum=3), npu_pod("w-0", 0, gang="g"), npu_pod("w-1", 8, gang="g"))
    world.add(npu_pod("w-2", 8, gang="g"))
    said = notes(world.plan())
    assert (said["w-1"][keys.RANK_INDEX], said["w-2"][keys.RANK_INDEX]) == ("0", "1")
    assert said["w-1"][keys.DISTRIBUTED_JOB] == "true"


def test_a_single_pod_is_not_distributed() -> None:
    own = notes(World().add(npu_node("a"), npu_pod("p", 2)).plan())["p"]
    assert own[N910] == "Ascend910-0,Ascend910-1"
    assert own[keys.DISTRIBUTED_JOB] == "false"
    assert keys.RANK_INDEX not in own


def test_an_elastic_gang_gets_as_many_as_fit() -> None:
    world = World().add(npu_node("a"), npu_node("b"), npu_gang("g", 4, 8, minimum=2))
    assert bound(settle(world)) == {"p-0": "a", "p-1": "b"}
    world.add(npu_node("c"))
    assert bound(settle(world)) == {"p-2": "c"}


def test_a_gather_goal_comes_before_the_affinity() -> None:
    nodes = [
        npu_node(f"{spine}{block}n{i}", labels={"spine": spine, "block": block})
        for spine, block, count in (("s0", "b0", 1), ("s0", "b1", 2))
        for i in range(count)
    ]
    world = World().add(TWO_LAYERS, *nodes, npu_pod("x", 4, at="s0b0n0", holds=range(4)))
    world.add(npu_gang("g", 3, 4, annotations=wish({"blockLayer": "Must"})))
    assert bound(world.plan()) == {"p-0": "s0b1n0", "p-1": "s0b1n0", "p-2": "s0b1n1"}


def test_the_affinity_decides_inside_the_network_goals() -> None:
    """Both blocks and both nodes of each would do; the fit of chips says which."""
    nodes = [
        npu_node(f"{block}n{i}", labels={"spine": "s", "block": block}) for block in ("b0", "b1") for i in range(2)
    ]
    world = World().add(TWO_LAYERS, *nodes)
    world.add(*[npu_pod(f"x{i}", 2, at=f"b0n{i}", holds=(0, 1)) for i in range(2)])
    world.add(*[npu_pod(f"y{i}", 4, at=f"b1n{i}", holds=range(4 - i, 8 - i), created=1) for i in range(2)])
    world.add(npu_gang("g", 2, 4, annotations=wish({"blockLayer": "Prefer"})))
    assert set(bound(world.plan()).values()) == {"b1n0", "b1n1"}
    world = World().add(TWO_LAYERS, *nodes, npu_pod("x", 6, at="b0n1", holds=range(6)))
    world.add(npu_gang("g", 1, 2, annotations=wish({"blockLayer": "Must"})))
    assert bound(world.plan()) == {"p-0": "b0n1"}


def test_a_gathered_gang_of_two_requests_gets_chips_that_serve() -> None:
    nodes = [npu_node(f"n{i}", product="module", labels={"spine": "s", "block": "b"}) for i in range(2)]
    world = World().add(TWO_LAYERS, *nodes)
    world.add(npu_pod("x", 2, at="n0", holds=(0, 4)), npu_pod("y", 3, at="n1", holds=(0, 1, 4)))
    world.add(npu_gang("g", 2, 2, prefix="a", annotations=wish({"blockLayer": "Must"}), minimum=3))
    world.add(npu_pod("b-2", 1, gang="g"))
    done = world.plan()
    assert len(bound(done)) == 3
    assert all(len(own) == (1 if name == "b-2" else 2) for name, own in chips(done).items())


def test_evicted_pods_give_their_chips_back() -> None:
    world = World().add(npu_node("a"), npu_pod("x", 4, at="a", holds=(0, 1, 2, 3)))
    world.add(npu_pod("y", 4, at="a", holds=(4, 5, 6, 7)), npu_pod("p", 8, priority=10))
    done = world.plan()
    assert {e.pod_key for e in done.evictions} == {"default/x", "default/y"}
    assert chips(done) == {"p": list(range(8))}


def test_victims_are_those_whose_chips_serve() -> None:
    world = World().add(npu_node("a", 8, "module"))
    world.add(npu_pod("x", 2, at="a", holds=(0, 1)), npu_pod("y", 2, at="a", holds=(4, 5), created=1))
    world.add(npu_pod("z", 2, at="a", holds=(6, 7), created=2), npu_pod("p", 4, priority=10))
    done = world.plan()
    assert {e.pod_key for e in done.evictions} == {"default/x"}
    assert chips(done) == {"p": [0, 1, 2, 3]}
