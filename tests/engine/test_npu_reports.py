# SPDX-License-Identifier: Apache-2.0
"""What is said of NPUs, live: which ConfigMaps are kept, what wakes a waiting job, what an assumed pod holds."""

import json

import pytest

from koordpy.api import keys
from koordpy.api.objects import ConfigMap, ObjectMeta
from koordpy.cache.snapshot import NodeInfo
from koordpy.devices.ascend.tables.npu_book import reports_npus
from koordpy.devices.family_registry import make_state
from koordpy.engine.client.api_resources import CONFIG_MAPS
from koordpy.engine.wakeups import Wake, helpful, of_config_map, of_node
from tests.scenarios.cluster import World, bound
from tests.scenarios.npus import N910, device_info, ids, npu_node, npu_pod, switch_table


def test_one_namespace_is_watched() -> None:
    assert CONFIG_MAPS.path() == "/api/v1/namespaces/kube-system/configmaps"


@pytest.mark.parametrize(
    ("namespace", "name", "kept"),
    [
        ("kube-system", keys.SWITCH_TABLE, True),
        ("kube-system", "mindx-dl-deviceinfo-n1", True),
        ("kube-system", "coredns", False),
        ("default", keys.SWITCH_TABLE, False),
    ],
)
def test_other_config_maps_are_let_go(namespace: str, name: str, kept: bool) -> None:
    one = ConfigMap(metadata=ObjectMeta(namespace=namespace, name=name), data={"a": "b"})
    assert reports_npus(one) is kept


def test_a_report_that_says_the_same_again_wakes_nobody() -> None:
    before, after = device_info("n1", chips=ids(range(8))), device_info("n1", chips=ids(range(8)))
    raw = json.loads(after.data[keys.DEVICE_INFO_KEY])
    after.data[keys.DEVICE_INFO_KEY] = json.dumps({**raw, "UpdateTime": 5})
    assert of_config_map(before, after) is Wake.NOTHING
    assert of_config_map(before, device_info("n1", chips=ids(range(7)))) is Wake.DEVICE_REPORT
    assert of_config_map(None, before) is Wake.DEVICE_REPORT
    assert of_config_map(switch_table({"a": (0,)}), switch_table({"a": (0, 1)})) is Wake.DEVICE_REPORT


def info(**annotations: str) -> NodeInfo:
    state = make_state()
    state.upsert(npu_node("n1", annotations={key.replace("_", "/", 1): text for key, text in annotations.items()}))
    found = state.nodes.get("n1")
    assert found is not None
    return found


def test_annotations_of_npus_wake_and_others_do_not() -> None:
    bare = info()
    assert of_node(bare, info(**{"huawei.com_Ascend910-Unhealthy": ids((1,))})) is Wake.DEVICE_REPORT
    assert of_node(bare, info(superPodID="3")) is Wake.DEVICE_REPORT
    assert of_node(bare, info(**{"example.com_note": "x"})) is Wake.NOTHING


def test_illegal_jobs_wait_for_nodes_and_reports() -> None:
    plan = World().add(npu_node("n1", product="module"), npu_pod("p", 3)).plan()
    assert not plan.pending[0].gated
    woken = helpful(plan.pending[0].plugins, gang=False)
    assert woken & Wake.DEVICE_REPORT
    assert woken & Wake.NODE_LABELS
    assert not woken & Wake.CAPACITY_FREED


def test_an_assumed_pod_holds_its_chips_until_it_is_forgotten() -> None:
    world = World().add(npu_node("n1"), npu_pod("p", 5))
    placement = world.plan().placements[0]
    world.state.assume(
        "default/p", "n1", devices=placement.devices, annotations={**placement.annotations, keys.SHARED_TOR: "2"}
    )
    held = world.snapshot().pods["default/p"]
    assert held.pod.metadata.annotations[keys.SHARED_TOR] == "2"
    world.add(npu_pod("q", 3, created=1), npu_pod("r", 1, created=2))
    done = world.plan()
    assert bound(done) == {"q": "n1"}
    assert done.placements[0].annotations[N910] == ids((5, 6, 7))
    world.add(npu_pod("p", 5, labels={"new": "label"}))
    assert bound(world.plan()) == {"q": "n1"}, "the pod was updated while its Binding is under way"
    world.state.forget("default/p")
    assert N910 not in world.snapshot().pods["default/p"].pod.metadata.annotations
    assert bound(world.plan()) == {"p": "n1", "q": "n1"}
