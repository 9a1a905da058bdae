# SPDX-License-Identifier: Apache-2.0
"""Annotations that koordpy writes say what koordpy decided, whatever was on the pod before."""

import pytest

from koordpy.api import keys
from tests.scenarios.cluster import TWO_LAYERS, World, gang_pods, group, node, nodes_of, pod, wish

PRESET = dict.fromkeys((*keys.WRITTEN, f"{keys.GPU_CUDA_VISIBLE_PREFIX}0"), "mine")
OTHERS = {"team": "a", keys.GANG_WAITING_TIME: "10m"}


def test_nothing_is_left_of_what_a_plain_pod_says_of_its_place() -> None:
    world = World().add(node("n1:4"), pod("p", annotations={**PRESET, **OTHERS}))
    placement = world.run().placements[0]
    assert placement.annotations == dict.fromkeys(PRESET, "")
    info = world.state.pod("default/p")
    assert info is not None and info.pod.metadata.annotations == {**dict.fromkeys(PRESET, ""), **OTHERS}


def test_a_gang_says_its_own_and_nothing_beyond() -> None:
    world = World().add(nodes_of("s1{b1: n-1:2; b2: n-2:1}"), TWO_LAYERS, group("g", 2, wish({"blockLayer": "Must"})))
    world.add(gang_pods("g", 2, annotations=PRESET))
    world.run()
    said = {
        pod.key: {k: text for k, text in pod.pod.metadata.annotations.items() if text} for pod in world.state.pods()
    }
    own = {keys.BOUND_DOMAIN: "s1/b1/n-1", keys.BIND_GROUP_ID: "default/g", keys.BIND_MEMBER_COUNT: "2"}
    assert said == {f"default/p-{i}": {keys.BOUND_RANK: str(i), **own} for i in range(2)}


@pytest.mark.parametrize("annotations", [{}, OTHERS])
def test_a_pod_that_says_nothing_of_it_gets_nothing(annotations: dict[str, str]) -> None:
    world = World().add(node("n1:4"), pod("p", annotations=annotations))
    assert world.plan().placements[0].annotations == {}
