# SPDX-License-Identifier: Apache-2.0
"""What `koordpy explain` says of each domain: no domain is large enough for a gang that none can hold."""

from typing import Any

from koordpy.api.objects import Node
from koordpy.explain.explanation import explain
from tests.planning.node_rules import near, term
from tests.scenarios.cluster import TWO_LAYERS, World, gang_pods, group, node, pod, wish

GPU = "nvidia.com/gpu"


def blocks(*sizes: int, **amounts: str) -> list[Node]:
    return [node(f"n{i}:{size}", {"block": f"b{i}", "spine": "s"}, **amounts) for i, size in enumerate(sizes)]


def reasons(*objects: Any, name: str = "p-0") -> dict[str, str]:
    found = explain(World().add(*objects).snapshot(), None, f"default/{name}")
    return {one.name: one.reason for one in found.domains}


def test_a_gang_of_one_kind_is_told_slots() -> None:
    gang = [group("g", 3, wish({"blockLayer": "Must"})), *gang_pods("g", 3)]
    assert reasons(TWO_LAYERS, *blocks(2, 2), *gang) == {
        "": "room for 4 members, but not in one blockLayer",
        "s": "room for 4 members, but not in one blockLayer",
        "s/b0": "room for 2 of 3 members",
        "s/b1": "room for 2 of 3 members",
    }
    assert reasons(TWO_LAYERS, *blocks(3, 2), *gang) == {
        "": "large enough", "s": "large enough", "s/b0": "large enough", "s/b1": "room for 2 of 3 members",
        "s/b0/n0": "chosen",
    }  # fmt: skip


def test_a_gang_of_several_kinds_is_told_the_resource_that_lacks() -> None:
    gang = [group("g", 2, wish({"blockLayer": "Must"}))]
    gang += [pod("w", gang="g", cpu="1", requests={GPU: "8"}), pod("d", gang="g", cpu="1")]
    told = reasons(TWO_LAYERS, *blocks(4, 4, **{GPU: "8"}), *gang, name="w")
    # one slot of the worker, and both members stand there
    assert told["s/b0/n0"] == "chosen"
    assert set(told.values()) == {"chosen", "large enough"}
    short = reasons(TWO_LAYERS, *blocks(4, 4, **{GPU: "4"}), *gang, name="w")
    assert short["s/b0"] == f"{GPU}: needed 8, available 4"
    # the cluster has eight GPUs in sum and no node with them
    assert short[""] == "enough of each resource, but not in one blockLayer"


def test_a_cluster_is_not_large_enough_where_no_zone_holds_a_gang_that_keeps_to_one() -> None:
    nodes = [node(f"{zone}:3", {"zone": zone}) for zone in "ab"]
    gang = [group("g", 4), *gang_pods("g", 4, labels={"app": "x"}, affinity=near(term("zone", {"app": "x"})))]
    told = reasons(*nodes, *gang)
    assert told[""] == "room for 6 members, but no placement satisfies affinity over zone"
