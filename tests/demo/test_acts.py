# SPDX-License-Identifier: Apache-2.0
"""What the examples' comments state of the acts one after the other, counted from node names, labels and annotations.

On the planner's forecast: the demo holds the live scheduler to that.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.demo.acts import Forecast, read_cluster
from koordpy.demo.demo_objects import gpus_of, rank_of
from koordpy.demo.programme import ASCEND
from tests.clusters import ACCELERATOR, BLOCK
from tests.demo.forecasts import as_forecast

NPU = keys.NPU_RESOURCES[0]


class End:
    """The cluster after the last act."""

    def __init__(self, forecasts: list[Forecast], nodes: list[dict[str, Any]]) -> None:
        self.pods = as_forecast(forecasts)
        self._labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in nodes if one["kind"] == "Node"}

    def of(self, *prefixes: str) -> list[dict[str, Any]]:
        """Pods whose names begin so, in rank order."""
        found = [pod for pod in self.pods.values() if pod["metadata"]["name"].startswith(prefixes)]
        return sorted(found, key=lambda pod: int(rank_of(pod) or 0))

    def domains(self, label: str, *prefixes: str) -> list[str]:
        """The domain of each pod; empty for one that has no node."""
        return [self._labels.get(node_of(pod), {}).get(label, "") for pod in self.of(*prefixes)]

    def without_node(self) -> set[str]:
        return {key.partition("/")[2] for key, pod in self.pods.items() if not node_of(pod)}


def node_of(pod: dict[str, Any]) -> str:
    return str(pod["spec"].get("nodeName", ""))


def notes(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("annotations") or {}
    return found


def chips(pod: dict[str, Any]) -> list[int]:
    return [int(chip.rpartition("-")[2]) for chip in notes(pod).get(NPU, "").split(",") if chip]


def in_one(domains: Iterable[str], members: int) -> bool:
    found = Counter(domains)
    return found.total() == members and len(found) == 1 and "" not in found


@pytest.fixture(scope="module")
def end(forecasts: list[Forecast]) -> End:
    return End(forecasts, read_cluster())


@pytest.fixture(scope="module")
def npu_end(npu_forecasts: list[Forecast]) -> End:
    return End(npu_forecasts, read_cluster(ASCEND.cluster))


def test_every_pod_has_a_node_but_those_that_cannot_fit(end: End) -> None:
    assert end.without_node() == {"elastic-8", "elastic-9", *(f"does-not-fit-{i}" for i in range(12))}


@pytest.mark.parametrize(
    "prefixes",
    [
        ("prefer-gather-",), ("must-gather-",), ("replica-",), ("prefill-", "decode-"), ("master-workers-",),
        ("multiples-",), ("train-",), ("multislice-",),
    ],
)  # fmt: skip
def test_ranks_of_every_whole_gang_run_from_0_without_a_gap(end: End, prefixes: tuple[str, ...]) -> None:
    ranks = [rank_of(pod) for pod in end.of(*prefixes)]
    assert ranks and ranks == [str(i) for i in range(len(ranks))]


@pytest.mark.parametrize(
    ("label", "prefixes", "members"),
    [
        (BLOCK, ("prefer-gather-",), 4),
        (ACCELERATOR, ("must-gather-",), 4),
        (BLOCK, ("replica-",), 4),
        (BLOCK, ("prefill-", "decode-"), 6),
        (BLOCK, ("master-workers-",), 4),
        (BLOCK, ("train-",), 4),
        (BLOCK, ("multislice-workers-0-",), 4),
        (BLOCK, ("multislice-workers-1-",), 4),
    ],
)
def test_a_gang_is_in_one_domain(end: End, label: str, prefixes: tuple[str, ...], members: int) -> None:
    assert in_one(end.domains(label, *prefixes), members)


def test_each_pipeline_is_in_one_accelerator(end: End) -> None:
    domains = end.domains(ACCELERATOR, "replica-")
    assert len(domains) == 4 and "" not in domains
    assert domains[0] == domains[1] and domains[2] == domains[3]


def test_what_is_shared_out_is_shared_out_as_asked(end: End) -> None:
    assert sorted(Counter(end.domains(BLOCK, "multiples-")).values()) == [6, 6]
    elastic = Counter(end.domains(BLOCK, "elastic-"))
    assert elastic.pop("") == 2 and list(elastic.values()) == [4]
    assert Counter(end.domains(BLOCK, "urgent-")) == Counter({"block-3": 4})


def test_gpu_pair_has_the_pair_of_gpus_with_256_gbps(end: End) -> None:
    (pod,) = end.of("gpu-pair")
    assert json.loads(notes(pod)[keys.GPU_ALLOCATION])["allocatedGPUs"] == {"0": ["5", "6"]}


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ("notebook", "the node with the highest total score"),
        ("gpu-pair", "the only feasible node; GPUs 5, 6"),
    ],
)
def test_a_node_that_alone_takes_a_pod_is_not_called_the_best(forecasts: list[Forecast], pod: str, why: str) -> None:
    assert [gang.why for one in forecasts for gang in one.gangs if gang.name == f"default/{pod}"] == [why]


def test_a_gang_that_does_not_fit_is_told_why(forecasts: list[Forecast]) -> None:
    (act,) = (one for one in forecasts if one.act.name == "does-not-fit")
    assert len(act.pending) == 12
    for text in (
        "node(s) cannot hold the whole gang",
        "gang default/does-not-fit: needed 12, available in blockLayer:",
    ):
        assert all(text in message for message in act.pending.values())


# Ascend NPUs


def test_every_pod_has_its_chips_and_no_chip_is_given_twice(npu_end: End) -> None:
    assert npu_end.without_node() == {"three-chips"}
    given: Counter[tuple[str, int]] = Counter()
    for pod in npu_end.pods.values():
        if node_of(pod):
            assert len(chips(pod)) == gpus_of(pod)
            given.update((node_of(pod), chip) for chip in chips(pod))
    assert max(given.values()) == 1


@pytest.mark.parametrize("prefix", ["module-job-", "switch-job-", "superpod-job-", "urgent-"])
def test_ranks_of_every_job_run_from_0_without_a_gap(npu_end: End, prefix: str) -> None:
    ranks = [notes(pod).get(keys.RANK_INDEX, "") for pod in npu_end.of(prefix)]
    assert ranks and ranks == [str(i) for i in range(len(ranks))]


def test_pods_of_module_job_have_their_chips_in_one_ring(npu_end: End) -> None:
    pods = npu_end.of("module-job-")
    assert len(pods) == 3 and all(len({chip // 4 for chip in chips(pod)}) == 1 for pod in pods)


def test_ranks_of_switch_job_that_are_four_apart_share_a_slice_position(npu_end: End) -> None:
    """The number in a server's name is its slice position; leaves have four."""
    positions = [node_of(pod).rpartition("-")[2] for pod in npu_end.of("switch-job-")]
    assert len(positions) == 6 and positions[4:] == positions[:2]
    assert sorted(Counter(npu_end.domains(BLOCK, "switch-job-")).values()) == [2, 4]


@pytest.mark.parametrize(("prefix", "number"), [("superpod-job-", 2), ("urgent-", 1)])
def test_whole_blocks_of_four_nodes_are_in_one_superpod(npu_end: End, prefix: str, number: int) -> None:
    pods, homes = npu_end.of(prefix), npu_end.domains(keys.SUPER_POD_ID, prefix)
    assert [notes(pod)[keys.SUPER_POD_RANK] for pod in pods] == [str(rank // 4) for rank in range(4 * number)]
    assert all(in_one(homes[start : start + 4], 4) for start in range(0, 4 * number, 4))


def test_two_pods_of_background_made_room_for_urgent_and_nobody_else(npu_end: End) -> None:
    assert [pod["metadata"]["name"] for pod in npu_end.of("background-")] == ["background-0"]
    assert set(npu_end.domains(keys.SUPER_POD_ID, "urgent-")) == {"1"}
    assert len(npu_end.of("superpod-job-")) == 8


def test_three_chips_is_told_that_its_request_is_illegal(npu_forecasts: list[Forecast]) -> None:
    pending = {key: text for one in npu_forecasts for key, text in one.pending.items()}
    assert f"{NPU} request 3 is illegal for 910-module" in pending["default/three-chips"]
