# SPDX-License-Identifier: Apache-2.0
"""The independent checks refuse what the rules of Ascend NPUs forbid, however it came about."""

from collections.abc import Mapping
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.ascend.family.npu_chips_check import check_npus
from koordpy.devices.ascend.family.npu_places_check import check_places
from koordpy.feasibility.round_state import RoundState
from tests.scenarios.cluster import World
from tests.scenarios.npus import (
    N310,
    N310P,
    N910,
    NPU,
    SECOND,
    npu_gang,
    npu_node,
    npu_pod,
    super_pods,
    switched,
)

LARGE = {keys.TOR_AFFINITY: "large-model-schema"}
COMMON = {keys.TOR_AFFINITY: "normal-schema"}


def figures_of(objects: list[Any], config: KoordpyConfiguration | None = None) -> RoundState:
    return RoundState(Draft(World().add(*objects).snapshot()), config or KoordpyConfiguration())


CHIPS: list[tuple[str, list[Any], Mapping[str, tuple[int, ...]], str]] = [
    ("two chips for three", [npu_node("n"), npu_pod("p", 3)], {"p": (0, 1)}, "gets 2 of 3 chips"),
    ("a chip twice", [npu_node("n"), npu_pod("p", 2)], {"p": (1, 1)}, "gets 1 of 2 chips"),
    ("descending", [npu_node("n"), npu_pod("p", 2)], {"p": (1, 0)}, "not in ascending order"),
    (
        "another pod's",
        [npu_node("n"), npu_pod("x", 2, at="n", holds=(0, 1)), npu_pod("p", 2)],
        {"p": (1, 2)},
        "chip 1 of node n is already in use",
    ),
    (
        "two of one gang",
        [npu_node("n"), npu_gang("g", 2, 1)],
        {"p-0": (0,), "p-1": (0,)},
        "chip 0 of node n is already in use",
    ),
    (
        "a broken one",
        [npu_node("n", annotations={f"{N910}-Unhealthy": "Ascend910-2"}), npu_pod("p", 2)],
        {"p": (2, 3)},
        "chip 2 of node n is missing or unhealthy",
    ),
    ("beyond the node", [npu_node("n"), npu_pod("p", 1)], {"p": (8,)}, "chip 8 of node n is missing"),
    (
        "no network, for several pods",
        [npu_node("n", annotations={f"{N910}-NetworkUnhealthy": "Ascend910-0"}), npu_gang("g", 2, 1)],
        {"p-0": (0,), "p-1": (1,)},
        "chip 0 of node n is missing or unhealthy",
    ),
    ("two rings", [npu_node("n", product="module"), npu_pod("p", 2)], {"p": (3, 4)}, "more than one ring"),
    ("two halves", [npu_node("n", 16, "module-910b-16"), npu_pod("p", 2)], {"p": (7, 8)}, "more than one ring"),
    (
        "not face to face",
        [npu_node("n", 16, "module-910b-16"), npu_pod("p", 10)],
        {"p": (0, 1, 2, 3, 4, 8, 9, 10, 11, 13)},
        "do not face each other",
    ),
    ("two dies", [npu_node("n", 16, "module-a3-16"), npu_pod("p", 2)], {"p": (1, 2)}, "not whole cards"),
    (
        "two cards",
        [npu_node("n", 8, "", resource=N310), npu_pod("p", 2, resource=N310, labels={keys.NPU_310_STRATEGY: "card"})],
        {"p": (3, 4)},
        "more than one card",
    ),
    (
        "two duo cards",
        [
            npu_node("n", 8, "", resource=N310P),
            npu_pod("p", 2, resource=N310P, labels={keys.NPU_DUO: "true", keys.NPU_310_STRATEGY: "card"}),
        ],
        {"p": (1, 2)},
        "more than one card",
    ),
    (
        "single dies",
        [npu_node("n", 8, "", resource=N310P), npu_pod("p", 3, resource=N310P, labels={keys.NPU_DUO: "true"})],
        {"p": (1, 3, 5)},
        "single dies of several cards",
    ),
    (
        "half a mesh",
        [
            npu_node("n", 8, "", resource=NPU),
            npu_pod("p", 4, resource=NPU, annotations={keys.SCHEDULE_POLICY: "chip4-node8"}),
        ],
        {"p": (2, 3, 4, 5)},
        "not whole meshes",
    ),
]


@pytest.mark.parametrize(("objects", "chips", "fault"), [case[1:] for case in CHIPS], ids=[case[0] for case in CHIPS])
def test_chips_that_may_not_be_given(objects: list[Any], chips: Mapping[str, tuple[int, ...]], fault: str) -> None:
    round_state = figures_of(objects)
    pods = [(round_state.snapshot.pods[f"default/{name}"], "n") for name in chips]
    found = check_npus(pods, {f"default/{name}": own for name, own in chips.items()}, round_state)
    assert any(fault in text for text in found), found


def blocks(count: int, chips: int, **settings: Any) -> list[Any]:
    return npu_gang("g", count, 16, annotations={keys.SP_BLOCK: str(chips)}, **settings)


def bound_block(count: int, at: Mapping[int, str], block: int = 32) -> list[Any]:
    """A job of blocks some of whose ranks stand."""
    group, *_ = npu_gang("g", count, annotations={keys.SP_BLOCK: str(block)})
    return [
        group,
        *(
            npu_pod(f"p-{i}", 16, gang="g", at=at.get(i, ""), holds=range(16) if i in at else None)
            for i in range(count)
        ),
    ]


SPREAD = dict.fromkeys("abc", (0, 1, 2))
RIVAL = [npu_pod(f"o-{i}", gang="o", at=at, holds=range(8)) for i, at in enumerate(("as2", "bs2"))]
OWNER = [
    npu_pod(f"o-{i}", gang="o", at=at, holds=range(8), labels=LARGE, annotations={keys.SHARED_TOR: mark})
    for i, (at, mark) in enumerate([("as0", "2"), ("as1", "2"), ("bs0", "1"), ("bs1", "1")])
]
MIXED = [npu_pod(f"o-{i}", gang="o", at=at, holds=range(8), labels=COMMON) for i, at in enumerate(("as2", "bs2"))]
LATE = [
    npu_gang("g", 2)[0],
    npu_pod("p-0", gang="g", at="cs0", holds=range(8), labels=COMMON),
    npu_pod("p-1", gang="g", labels=COMMON),
]
STANDS = [
    npu_gang("g", 5)[0],
    *(npu_pod(f"p-{i}", gang="g", at=at, holds=range(8), labels=LARGE) for i, at in enumerate(("as0", "as1", "bs1"))),
    *(npu_pod(f"p-{i}", gang="g", labels=LARGE) for i in (3, 4)),
]

PLACES: list[tuple[str, list[Any], KoordpyConfiguration | None, dict[str, str], dict[str, tuple[str, str]], str]] = [
    # name, objects, configuration, pod -> node, pod -> (block, SuperPoD), fault ("" for none)
    (
        "one block in one SuperPoD",
        [*super_pods(2, 2), *blocks(2, 32)],
        None,
        {"p-0": "s1-0", "p-1": "s1-1"},
        {"p-0": ("0", "1"), "p-1": ("0", "1")},
        "",
    ),
    (
        "one block in two SuperPoDs",
        [*super_pods(2, 2), *blocks(2, 32)],
        None,
        {"p-0": "s0-0", "p-1": "s1-1"},
        {"p-0": ("0", "0"), "p-1": ("0", "1")},
        "block 0 is in SuperPoDs 0, 1",
    ),
    (
        "a wrong SuperPoD is told",
        [*super_pods(2, 2), *blocks(2, 32)],
        None,
        {"p-0": "s0-0", "p-1": "s0-1"},
        {"p-0": ("0", "0"), "p-1": ("0", "1")},
        "not in the one of its annotation",
    ),
    (
        "ranks in the wrong block",
        [*super_pods(4), *blocks(4, 32)],
        None,
        {f"p-{i}": f"s0-{i}" for i in range(4)},
        {f"p-{i}": (str(i % 2), "0") for i in range(4)},
        "rank 1 is in block 1",
    ),
    (
        "short blocks of a hard job",
        [*super_pods(1, 1), *blocks(2, 32)],
        None,
        {"p-0": "s0-0", "p-1": "s1-0"},
        {"p-0": ("0", "0"), "p-1": ("1", "1")},
        "block 0 has 1 of 2 nodes",
    ),
    (
        "short blocks of a soft job",
        [*super_pods(1, 1), *blocks(2, 32, labels={keys.SUPER_POD_AFFINITY: "soft"})],
        None,
        {"p-0": "s0-0", "p-1": "s1-0"},
        {"p-0": ("0", "0"), "p-1": ("1", "1")},
        "",
    ),
    (
        "a lost rank elsewhere",
        [*super_pods(2, 2), *bound_block(2, {0: "s0-0"})],
        None,
        {"p-1": "s1-0"},
        {"p-1": ("0", "1")},
        "block 0 is in SuperPoDs 0, 1",
    ),
    (
        "one server for two",
        [*switched(SPREAD, 3), *npu_gang("g", 2, 4, labels=LARGE)],
        None,
        {"p-0": "as0", "p-1": "as0"},
        {},
        "2 pods are on server as0, at most 1 is possible",
    ),
    (
        "padding under two leaves",
        [*switched(SPREAD, 3), *npu_gang("g", 2, labels=LARGE)],
        None,
        {"p-0": "as0", "p-1": "bs0"},
        {},
        "at most one leaf is allowed, the plan uses 2",
    ),
    (
        "a single layer crossed",
        [*switched(SPREAD, 3, tor_level="single_layer"), *npu_gang("g", 2, labels=COMMON)],
        None,
        {"p-0": "as0", "p-1": "bs0"},
        {},
        "at most one leaf is allowed, the plan uses 2",
    ),
    (
        "positions mixed up",
        [*switched(SPREAD, 3), *npu_gang("g", 4, labels=LARGE)],
        None,
        {"p-0": "as0", "p-1": "as1", "p-2": "as2", "p-3": "bs1"},
        {},
        "ranks 0, 3, ... are at slice positions [0, 1]",
    ),
    (
        "positions of a common job",
        [*switched(SPREAD, 3), *npu_gang("g", 4, labels=COMMON)],
        None,
        {"p-0": "as0", "p-1": "as1", "p-2": "as2", "p-3": "bs1"},
        {},
        "",
    ),
    (
        "another job's uplinks",
        [*switched(SPREAD, 3), npu_gang("o", 2)[0], *RIVAL, *npu_gang("g", 4, labels=LARGE)],
        None,
        {"p-0": "cs0", "p-1": "cs1", "p-2": "cs2", "p-3": "as0"},
        {},
        "leaf 0 carries another spanning job",
    ),
    (
        "columns mixed up",
        [*switched(SPREAD, 3), *npu_gang("g", 4, labels=LARGE)],
        None,
        {"p-0": "as0", "p-1": "as1", "p-2": "bs1", "p-3": "bs0"},
        {},
        "columns [1, 2] share slice position 1",
    ),
    (
        "columns of a job that stands so",
        [*switched(SPREAD, 3), *STANDS],
        None,
        {"p-3": "cs0", "p-4": "cs1"},
        {},
        "",
    ),
    (
        "a common job's leaf for a foundation model",
        [*switched(SPREAD, 3), npu_gang("o", 2)[0], *MIXED, *npu_gang("g", 4, labels=LARGE)],
        SECOND,
        {"p-0": "cs0", "p-1": "cs1", "p-2": "cs2", "p-3": "as0"},
        {},
        "leaf 0 is shared with a job that is not a foundation model",
    ),
    (
        "a common job's leaf for a common job",
        [*switched(SPREAD, 3), npu_gang("o", 2)[0], *MIXED, *npu_gang("g", 4, labels=COMMON)],
        SECOND,
        {"p-0": "cs0", "p-1": "cs1", "p-2": "cs2", "p-3": "as0"},
        {},
        "",
    ),
    (
        "a common job's leaf for members of a common job that come late",
        [*switched(SPREAD, 3), npu_gang("o", 2)[0], *MIXED, *LATE],
        SECOND,
        {"p-1": "as0"},
        {},
        "leaf 0 is shared with a job that is not a foundation model",
    ),
    (
        "another job's own leaf",
        [*switched(SPREAD, 3), npu_gang("o", 4)[0], *OWNER, *npu_gang("g", 4, labels=LARGE)],
        SECOND,
        {"p-0": "cs0", "p-1": "cs1", "p-2": "cs2", "p-3": "as2"},
        {},
        "leaf 0 is used exclusively by another job",
    ),
    (
        "a leaf that another job shares",
        [*switched(SPREAD, 3), npu_gang("o", 4)[0], *OWNER, *npu_gang("g", 4, labels=LARGE)],
        SECOND,
        {"p-0": "cs0", "p-1": "cs1", "p-2": "cs2", "p-3": "bs2"},
        {},
        "",
    ),
]


@pytest.mark.parametrize(
    ("objects", "config", "nodes", "told", "fault"), [case[1:] for case in PLACES], ids=[case[0] for case in PLACES]
)
def test_places_that_keep_or_break_the_rules(
    objects: list[Any],
    config: KoordpyConfiguration | None,
    nodes: dict[str, str],
    told: dict[str, tuple[str, str]],
    fault: str,
) -> None:
    round_state = figures_of(objects, config)
    placed = [(round_state.snapshot.pods[f"default/{name}"], node) for name, node in nodes.items()]
    notes = {
        f"default/{name}": {keys.SUPER_POD_RANK: block, keys.BOUND_SUPER_POD: home}
        for name, (block, home) in told.items()
    }
    found = check_places(placed, notes, round_state)
    assert any(fault in text for text in found) if fault else not found, found
