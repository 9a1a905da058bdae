# SPDX-License-Identifier: Apache-2.0
"""When it excuses the wait of a member for which pods were evicted that another of its gang has its room."""

import pytest
from msgspec import convert

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.pods.pod_info import PodInfo, pod_info
from tests.engine.evictions import are_overtaken
from tests.engine.manifests import OURS


def member(name: str) -> PodInfo:
    """A pod: `g/g-1` is one of gang g, `p` one of none."""
    gang, _, own = name.rpartition("/")
    labels = {keys.LABEL_POD_GROUP: gang} if gang else {}
    manifest = {"metadata": {"name": own, "namespace": "default", "uid": own, "labels": labels}, "spec": {}}
    return pod_info(convert(manifest, Pod), scheduler_names=frozenset({OURS}))


@pytest.mark.parametrize(
    ("waiting", "late", "excused"),
    [
        pytest.param("g/g-x3", "g/g-2", True, id="a-lower-rank-starts-first"),
        pytest.param("g/g-1", "g/g-2", False, id="a-higher-rank-takes-no-room-that-was-made"),
        pytest.param("g/g-x3", "h/h-2", False, id="another-gang-has-it"),
        pytest.param("p", "o", False, id="pods-without-a-gang"),
        pytest.param("g/g-x3", "", False, id="nobody-has-it"),
        pytest.param("g/g-3 g/g-4", "g/g-2", False, id="one-has-not-the-room-of-two"),
        pytest.param("g/g-3 g/g-4", "g/g-2 g/g-1", True, id="two-have-the-room-of-two"),
        pytest.param("g/g-1 g/g-4", "g/g-0 g/g-3", True, id="each-of-another-rank"),
        pytest.param("g/g-1 g/g-4", "g/g-2 g/g-3", False, id="two-of-higher-ranks-than-one-of-them"),
    ],
)
def test_a_gangs_room_is_for_its_lowest_ranks(waiting: str, late: str, excused: bool) -> None:
    assert are_overtaken(map(member, waiting.split()), map(member, late.split())) is excused
