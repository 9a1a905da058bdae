# SPDX-License-Identifier: Apache-2.0
"""Switch affinity on a cluster (ascend.md 4): the table, other jobs' uplinks, annotations, re-placement, explain."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.objects import NodeAddress, Pod
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.explanation import explain
from koordpy.plan.pending_reason import Reason
from tests.scenarios.cluster import TWO_LAYERS, World, bound, messages, wish
from tests.scenarios.npus import (
    N910,
    SECOND,
    ascend,
    notes,
    npu_gang,
    npu_node,
    npu_pod,
    settle,
    switch_table,
    switched,
)

LARGE = {keys.TOR_AFFINITY: "large-model-schema"}
COMMON = {keys.TOR_AFFINITY: "normal-schema"}
WIDE: dict[str, tuple[int, ...]] = {"a": (0, 1, 2, 3), "b": (0, 1, 2), "c": (0, 1), "d": (0,)}
FULL: dict[str, tuple[int, ...]] = dict.fromkeys("abcd", (0, 1, 2, 3))


def running(name: str, nodes: str, labels: Mapping[str, str] | None = None, mark: str = "") -> list[Any]:
    """A gang that runs on nodes, whole servers."""
    own = npu_gang(name, 0, minimum=1)
    said = {keys.SHARED_TOR: mark} if mark else {}
    for i, node in enumerate(nodes.split()):
        own.append(npu_pod(f"{name}-{i}", 8, gang=name, at=node, holds=range(8), labels=labels or {}, annotations=said))
    return own


def seats(world: World, config: KoordpyConfiguration | None = None) -> list[str]:
    """Nodes of p-0, p-1, ..."""
    found = bound(world.plan(config=config))
    return [found[f"p-{i}"] for i in range(len(found))]


# --- the table ------------------------------------------------------------------------------------------------------


def faulty(**changes: Any) -> Any:
    table = switch_table({"a": (0, 1), "b": (0, 1)}, 2)
    raw = json.loads(table.data[keys.SWITCH_TABLE_KEY])
    for path, value in changes.items():
        target = raw
        *way, last = path.split("__")
        for part in way:
            target = target[int(part) if part.isdigit() else part]
        target[int(last) if last.isdigit() else last] = value
    table.data[keys.SWITCH_TABLE_KEY] = json.dumps(raw)
    return table


MALFORMED = {
    "no positions": faulty(tor_count=0),
    "positions as text": faulty(tor_count="2"),
    "positions true": faulty(tor_count=True),
    "a slice beyond": faulty(server_list__0__server__1__slice_id=2),
    "a negative slice": faulty(server_list__0__server__1__slice_id=-1),
    "a slice as text": faulty(server_list__0__server__1__slice_id="1"),
    "a slice twice": faulty(server_list__0__server__1__slice_id=0),
    "a server under two leaves": faulty(server_list__1__server__1__server_ip="as0"),
    "no list": faulty(server_list={}),
}


@pytest.mark.parametrize("table", list(MALFORMED.values()), ids=list(MALFORMED))
def test_a_malformed_table_makes_switch_jobs_illegal_and_no_others(table: Any) -> None:
    world = World().add(npu_node("as0"), npu_node("as1"), npu_node("n2"), table)
    world.add(npu_gang("g", 2, labels=LARGE), npu_pod("q", 8, created=1))
    done = world.plan()
    assert bound(done) == {"q": "as0"}
    start = "JobValidateFailed: ConfigMap kube-system/basic-tor-node-cm is malformed: "
    assert all(text.startswith(start) for text in messages(done).values())
    assert {p.reason for p in done.pending} == {Reason.JOB_VALIDATE_FAILED}


def test_text_that_is_no_json_is_malformed_and_absence_is_named() -> None:
    table = switch_table({"a": (0,)})
    table.data[keys.SWITCH_TABLE_KEY] = "{"
    world = World().add(npu_node("as0"), table, npu_gang("g", 1, labels=LARGE))
    assert "is malformed: " in messages(world.plan())["p-0"]
    del table.data[keys.SWITCH_TABLE_KEY]
    world.add(table)
    needed = "JobValidateFailed: tor-affinity needs ConfigMap kube-system/basic-tor-node-cm"
    assert messages(world.plan())["p-0"].startswith(needed)
    world = World().add(npu_node("as0"), npu_gang("g", 1, labels=LARGE))
    assert messages(world.plan())["p-0"].startswith(needed)


@pytest.mark.parametrize("value", ["null", ""], ids=["the word", "YAML's own"])
def test_null_asks_nothing_of_the_switches(value: str) -> None:
    world = World().add(npu_node("n"), npu_pod("p", labels={keys.TOR_AFFINITY: value}))
    assert bound(world.plan()) == {"p": "n"}


def test_a_new_table_makes_the_job_legal() -> None:
    world = World().add(*[npu_node(f"as{i}") for i in range(2)], npu_gang("g", 2, labels=LARGE))
    assert bound(world.plan()) == {}
    world.add(switch_table({"a": (0, 1)}))
    assert seats(world) == ["as0", "as1"]


def test_servers_are_found_by_address_then_by_name() -> None:
    import msgspec

    first = npu_node("n1")
    status = msgspec.structs.replace(first.status, addresses=[NodeAddress(type="InternalIP", address="as0")])
    world = World().add(msgspec.structs.replace(first, status=status), npu_node("as1"), npu_node("n3"))
    world.add(switch_table({"a": (0, 1, 2)}), npu_gang("g", 2, labels=LARGE))
    assert seats(world) == ["n1", "as1"]
    found = explain(world.snapshot(), None, "default/p-0")
    refused = {n.node: n.reasons[0] for n in found.nodes if not n.feasible}
    assert refused == {"n3": ("AscendChips", "UnschedulableAndUnresolvable", "node(s) weren't in the switch table")}


@pytest.mark.parametrize(
    ("labels", "annotations", "start"),
    [
        (LARGE, {keys.SP_BLOCK: "16"}, "tor-affinity cannot be combined with sp-block"),
        (COMMON, {keys.SCHEDULE_POLICY: "chip8-node8-sp"}, "tor-affinity cannot be combined with sp-block"),
    ],
)
def test_switches_and_superpods_are_illegal_together(
    labels: dict[str, str], annotations: dict[str, str], start: str
) -> None:
    world = World().add(*switched(FULL), npu_gang("g", 2, labels=labels, annotations=annotations))
    assert messages(world.plan())["p-0"].startswith(f"JobValidateFailed: {start}")


def test_different_requests_are_illegal() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 1, 8, labels=LARGE, prefix="a"))
    world.add(npu_pod("b-0", 4, gang="g", labels=LARGE))
    assert "JobValidateFailed: tor-affinity needs equal requests" in messages(world.plan())["b-0"]


# --- placement ------------------------------------------------------------------------------------------------------


def test_each_pod_gets_a_server_of_its_own() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 3, 2, labels=LARGE))
    assert seats(world) == ["as0", "as1", "as2"]


def test_a_partly_used_leaf_gives_the_servers_that_fit_best() -> None:
    world = World().add(*switched({"a": (0, 1, 2, 3)}), npu_pod("x", 4, at="as2", holds=range(4)))
    world.add(npu_pod("y", 4, at="as3", holds=range(4)), npu_gang("g", 2, 4, labels=LARGE))
    assert seats(world) == ["as2", "as3"]


def test_waiting_pods_are_told_the_servers_of_each_slice_position() -> None:
    world = World().add(*switched(WIDE), npu_gang("g", 8, labels=LARGE))
    text = messages(world.plan())["p-0"]
    assert "switch affinity" in text
    assert "needed 8" in text
    assert "0: 4, 1: 3, 2: 2, 3: 1" in text


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_single_layer_network_holds_a_job_under_one_leaf(version: str) -> None:
    config = ascend(nslb_version=version)
    world = World().add(*switched(WIDE, tor_level="single_layer"), npu_gang("g", 3, labels=COMMON))
    assert seats(world, config) == ["bs0", "bs1", "bs2"]
    world = World().add(
        *switched({"a": (0, 1), "b": (0, 1)}, tor_level="single_layer"), npu_gang("g", 3, labels=COMMON)
    )
    assert messages(world.plan(config=config)).keys() == {"p-0", "p-1", "p-2"}
    world = World().add(*switched(FULL, tor_level="single_layer"), npu_gang("g", 5, labels=COMMON))
    text = messages(world.plan(config=config))["p-0"]
    assert text == "JobValidateFailed: single-layer network holds at most 4 pods of a job, got 5"


def test_a_common_job_minds_foundation_models_only() -> None:
    world = World().add(*switched(FULL), running("x", "as0 bs0 bs1 bs2", COMMON))
    world.add(npu_gang("g", 5, labels=COMMON))
    assert set(seats(world)) == {"cs0", "cs1", "cs2", "cs3", "ds0"}
    world = World().add(*switched({"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}), running("x", "as0 bs0", COMMON))
    world.add(npu_gang("g", 5, labels=COMMON))
    assert len(seats(world)) == 5
    world = World().add(*switched({"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}), running("x", "as0 bs0 bs1 bs2", LARGE))
    world.add(npu_gang("g", 5, labels=COMMON))
    assert bound(world.plan()) == {}


def test_a_job_keeps_none_back_whose_podgroup_alone_asks_less_of_the_switches() -> None:
    jobs = [*npu_gang("g", 8, group_labels=LARGE), *npu_gang("h", 8, prefix="q", group_labels=COMMON)]
    plan = World().add(*switched(WIDE), *jobs).plan()
    assert set(bound(plan)) == {f"q-{i}" for i in range(8)}


def test_jobs_of_one_round_see_each_others_uplinks() -> None:
    world = World().add(*switched(FULL), npu_gang("f", 6, labels=LARGE, prefix="f"))
    world.add(npu_gang("g", 6, labels=LARGE, created=9))
    done = bound(world.plan())
    first = {node[0] for name, node in done.items() if name.startswith("f")}
    second = {node[0] for name, node in done.items() if name.startswith("p")}
    assert first == {"a", "b"}
    assert second == {"c", "d"}


def test_jobs_without_switches_leave_no_mark() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 2))
    assert keys.SHARED_TOR not in notes(world.plan(config=SECOND))["p-0"]
    world = World().add(*switched(FULL), npu_gang("g", 2, labels=LARGE))
    assert keys.SHARED_TOR not in notes(world.plan())["p-0"], "version 1.0 says nothing of leaves"


def test_leaves_are_judged_by_what_runs_under_them() -> None:
    """Exclusive by its mark, shared healthy, shared unhealthy by a common and by an unlabelled job, idle."""
    leaves = dict.fromkeys("abcdef", (0, 1, 2, 3))
    world = World().add(*switched(leaves))
    world.add(running("e", "as0 as1 as2 fs0", LARGE, "2"), running("s", "bs0 bs1 bs2 fs1", LARGE, "1"))
    world.add(running("c", "cs0 fs2", COMMON), running("u", "ds0 fs3"))
    world.add(npu_gang("g", 1, labels=LARGE))
    assert seats(world, SECOND) == ["as3"]
    world.add(npu_pod("block", 8, at="as3", holds=range(8)))
    assert seats(world, SECOND) == ["cs1"]
    for node in ("cs1", "cs2", "cs3", "ds1", "ds2", "ds3"):
        world.add(npu_pod(f"block-{node}", 8, at=node, holds=range(8)))
    assert seats(world, SECOND) == ["bs3"]
    world.add(npu_pod("block-b", 8, at="bs3", holds=range(8)))
    assert seats(world, SECOND) == ["es0"]


def test_marks_of_a_job_over_leaves() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 9, labels=LARGE))
    said = notes(world.plan(config=SECOND))
    assert {said[f"p-{i}"][keys.SHARED_TOR] for i in range(8)} == {"2"}
    assert said["p-8"][keys.SHARED_TOR] == "1"
    assert said["p-8"][keys.SHARED_TOR_IP] == "10.9.0.3"
    assert keys.SHARED_TOR_IP not in said["p-0"]
    assert {own[keys.TOR_HEALTHY] for own in said.values()} == {"0"}
    world = World().add(*switched(FULL), npu_gang("g", 4, labels=LARGE))
    assert {own[keys.SHARED_TOR] for own in notes(world.plan(config=SECOND)).values()} == {"0"}


def test_a_restart_finds_the_same_leaves() -> None:
    """What is derived from annotations of bound pods is what the round had planned."""
    world = World().add(*switched(FULL), npu_gang("f", 9, labels=LARGE, prefix="f"))
    settle(world, SECOND)
    world.add(npu_gang("g", 6, labels=LARGE, created=9))
    assert seats(world, SECOND) == ["ds0", "ds1", "ds2", "ds3", "cs1", "cs2"]


# --- re-placement, elastic gangs, mandatory layers ------------------------------------------------------------------


def lose(world: World, *ranks: int, prefix: str = "p", gang: str = "g", **settings: Any) -> None:
    """Pods vanish and come back pending."""
    for rank in ranks:
        world.state.delete(Pod, f"default/{prefix}-{rank}")
        world.add(npu_pod(f"{prefix}-{rank}", 8, gang=gang, created=50, **settings))


def test_a_lost_rank_keeps_its_slice_position() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 8, labels=LARGE))
    settle(world)
    lose(world, 5, labels=LARGE)
    world.add(npu_pod("other", 8, at="bs1", holds=range(8)))
    assert bound(settle(world)) == {"p-5": "cs1"}


def test_a_lost_padding_rank_stays_under_its_leaf() -> None:
    world = World().add(*switched(WIDE), npu_gang("g", 3, labels=LARGE))
    settle(world)
    lose(world, 2, labels=LARGE)
    world.add(npu_pod("other", 8, at="bs2", holds=range(8)))
    text = messages(world.plan())["p-2"]
    assert "switch affinity" in text
    world.state.delete(Pod, "default/other")
    assert bound(settle(world)) == {"p-2": "bs2"}


@pytest.mark.parametrize(("count", "labels"), [(2, {keys.TOR_AFFINITY: "normal-schema"}), (4, LARGE)])
def test_a_job_under_one_leaf_is_not_kept_from_it_by_the_uplinks_of_others(count: int, labels: dict[str, str]) -> None:
    """It uses none of its own: it would be the return elsewhere that makes it span."""
    world = World().add(*switched(dict.fromkeys("abc", tuple(range(6))), 6))
    group, *_ = npu_gang("g", count)
    world.add(group, [npu_pod(f"p-{i}", gang="g", at=f"as{i}", holds=range(8), labels=labels) for i in range(count)])
    spanning = [npu_pod(f"o-{i}", gang="o", at=at, holds=range(8)) for i, at in enumerate(("as5", "bs5"))]
    world.add(npu_gang("o", 2, prefix="o")[0], spanning)
    lose(world, 1, labels=labels)
    assert bound(world.plan()) == {"p-1": "as1"}


def test_a_lost_rank_comes_back_under_the_own_leaf_in_version_2() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 9, labels=LARGE))
    settle(world, SECOND)
    lose(world, 1, 8, labels=LARGE)
    done = settle(world, SECOND)
    assert bound(done) == {"p-1": "as1", "p-8": "cs0"}
    assert notes(done)["p-1"][keys.SHARED_TOR] == "2"
    assert notes(done)["p-8"][keys.SHARED_TOR] == "1"


def test_an_elastic_job_takes_the_largest_size_that_has_a_plan() -> None:
    world = World().add(*switched(WIDE), npu_gang("g", 8, labels=LARGE, minimum=4))
    assert seats(world) == ["as0", "as1", "as2", "as3", "bs0", "bs1", "bs2"]
    assert "switch affinity" in messages(world.plan())["p-7"]


def test_a_mandatory_layer_confines_the_job() -> None:
    leaves = dict.fromkeys("ab", (0, 1, 2, 3))
    nodes = [
        npu_node(f"{leaf}s{at}", labels={"spine": "s", "block": "b0" if at < 2 else "b1"})
        for leaf, slices in leaves.items()
        for at in slices
    ]
    world = World().add(TWO_LAYERS, *nodes, switch_table(leaves))
    world.add(npu_gang("g", 4, labels=LARGE, annotations=wish({"blockLayer": "Must"})))
    assert bound(world.plan()) == {}
    world = World().add(TWO_LAYERS, *nodes, switch_table(leaves))
    world.add(npu_gang("g", 4, labels=COMMON, annotations=wish({"blockLayer": "Must"})))
    assert seats(world) == ["as0", "as1", "bs0", "bs1"]


def test_pods_without_npus_stand_beside() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 4, labels=LARGE, minimum=5), npu_pod("master-9", 0, gang="g"))
    done = bound(world.plan())
    assert [done[f"p-{i}"] for i in range(4)] == ["as0", "as1", "as2", "as3"]
    assert "master-9" in done


def test_explain_shows_the_plan() -> None:
    world = World().add(*switched(FULL), npu_gang("g", 9, labels=LARGE))
    found = explain(world.snapshot(), SECOND, "default/p-0")
    shown = {n.node: n.scores["AscendAffinity"] for n in found.nodes}
    assert shown["as0"] == 200
    assert shown["as1"] == shown["bs3"] == 100
    assert shown["cs0"] == 99
    assert shown["cs1"] == shown["ds0"] == 0
    assert explain(world.snapshot(), SECOND, "default/p-8").nodes[8].scores["AscendAffinity"] == 200


def test_explain_totals_are_those_of_the_scores_shown() -> None:
    """AscendAffinity, which is found by placing the gang on trial, is not part of them."""
    world = World().add(*switched(FULL), npu_gang("g", 9, labels=LARGE))
    for node in explain(world.snapshot(), SECOND, "default/p-0").nodes:
        counted = {name: score for name, score in node.scores.items() if name != "AscendAffinity"}
        assert node.total == sum(SECOND.scores.weight(name) * score for name, score in counted.items())


def test_a_plain_pod_with_the_label_is_a_job_of_one() -> None:
    world = World().add(*switched(WIDE), npu_pod("p", 8, labels=LARGE))
    done = world.plan(config=SECOND)
    assert bound(done) == {"p": "ds0"}
    assert notes(done)["p"][keys.SHARED_TOR] == "0"
    assert N910 in notes(done)["p"]
