# SPDX-License-Identifier: Apache-2.0
"""The score of one node in plain integers is that of the arrays, whatever the strategy and however large the node."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.config.configuration import NodeResourcesFitScore, ResourceWeight, UtilizationPoint
from koordpy.plugins.node_scores import resources_fit, resources_fit_at

COLUMNS = {"pods": 0, "cpu": 1, "memory": 2, "nvidia.com/gpu": 3, "example.com/disk": 4}
AMOUNTS = st.one_of(st.integers(0, 16), st.integers(0, 1 << 40), st.integers(1 << 55, 1 << 58))
ROW = st.lists(AMOUNTS, min_size=5, max_size=5)
WEIGHTS = st.dictionaries(st.sampled_from([*COLUMNS, "example.com/unknown"]), st.integers(1, 9), min_size=1)
SHAPES = st.dictionaries(st.integers(0, 100), st.integers(0, 10), min_size=2).map(
    lambda points: tuple(UtilizationPoint(utilization=at, score=score) for at, score in sorted(points.items()))
)


@settings(max_examples=300, deadline=None)
@given(
    whole=ROW,
    used=ROW,
    score_used=st.tuples(AMOUNTS, AMOUNTS),
    requests=st.dictionaries(st.sampled_from([*COLUMNS][1:]), st.integers(0, 1 << 40)),
    strategy=st.sampled_from(["MostAllocated", "LeastAllocated", "RequestedToCapacityRatio"]),
    weights=WEIGHTS,
    shape=st.one_of(st.just(()), SHAPES),
)
def test_one_node_scores_like_a_column_of_nodes(
    whole: list[int],
    used: list[int],
    score_used: tuple[int, int],
    requests: dict[str, int],
    strategy: Any,
    weights: dict[str, int],
    shape: tuple[UtilizationPoint, ...],
) -> None:
    resources = tuple(ResourceWeight(name=name, weight=weight) for name, weight in weights.items())
    config = NodeResourcesFitScore(strategy=strategy, resources=resources, shape=shape)
    pod: Any = SimpleNamespace(
        requests=requests, score_requests=(requests.get("cpu", 100), requests.get("memory", 200))
    )
    snapshot: Any = SimpleNamespace(columns=COLUMNS, allocatable=np.array([whole], dtype=np.int64))
    many = resources_fit(
        snapshot, np.array([used]), np.array([score_used]), pod, rows=np.array([0], dtype=np.int64), config=config
    )
    one = resources_fit_at(COLUMNS, whole, used, score_used, pod, config=config)
    assert [one] == many.tolist()
