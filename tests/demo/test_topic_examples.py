# SPDX-License-Identifier: Apache-2.0
"""The examples of quotas, evictions, GPUs and workloads: the command in each comment is run, and the comment read."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main
from koordpy.config.configuration_file import load_config
from koordpy.demo.acts import EXAMPLES
from tests.said import warnings_of

FOLDERS = ("gpu", "preemption", "quotas", "workloads")
EVERY = sorted(path for folder in FOLDERS for path in (EXAMPLES / folder).glob("*.yaml"))
CONFIGURATIONS = [path for path in EVERY if path.stem.startswith("config-")]
PATHS = [path for path in EVERY if path not in CONFIGURATIONS]

# example -> (pods bound where, pods evicted by which rule for whom, pods that wait at the end)
TABLE: dict[str, tuple[dict[str, str], dict[str, tuple[str, str]], set[str]]] = {
    "quotas/admission": ({"notebook": "n1"}, {}, {f"train-{i}" for i in range(4)}),
    "quotas/fair-share": (
        {"alice-0": "n1", "alice-1": "n1"},
        {"bob-2": ("fair-share", "alice-1"), "bob-3": ("fair-share", "alice-0")},
        {"bob-2", "bob-3"},
    ),
    "quotas/lend-and-reclaim": (
        {f"serving-{i}": "n1" for i in range(3)},
        {f"research-{7 - i}": ("quota", f"serving-{i}") for i in range(3)},
        {"research-5", "research-6", "research-7"},
    ),
    "quotas/tree": ({"speech-0": "n1", "speech-1": "n1"}, {}, {"speech-2"}),
    "quotas/users": (
        dict.fromkeys(("alice-0", "alice-1", "bob-0", "bob-1"), "n1"),
        {},
        {"alice-2", "bob-2", "bob-3", "bob-4", "bob-5"},
    ),
    "preemption/budget": ({"urgent": "n1"}, {"batch": ("priority", "urgent")}, {"batch"}),
    "preemption/consolidation": ({"two": "n2", "other": "n1"}, {"other": ("consolidation", "two")}, set()),
    "preemption/least-harm": (
        {"urgent-0": "n2", "urgent-1": "n3"},
        dict.fromkeys(("batch-0", "etl-0", "etl-1"), ("priority", "urgent")),
        {"batch-0", "etl-0", "etl-1"},
    ),
    "preemption/not-enough": ({}, {}, {"urgent-0", "urgent-1"}),
    "preemption/stale-gang": (
        {"waiting": "n1"},
        dict.fromkeys(("train-0", "train-1"), ("stale-gang", "train")),
        {"train-0", "train-1"},
    ),
    "preemption/whole-gang": ({"urgent": "n1"}, {"elastic-3": ("priority", "urgent")}, {"elastic-3"}),
    "gpu/min-bandwidth": ({}, {}, {"train"}),
    "gpu/pair": ({"train-0": "n1", "train-1": "n1"}, {}, set()),
    "gpu/sidecar": ({"train": "n1"}, {}, set()),
    "workloads/job": ({"train-0": "node-0", "train-1": "node-1", "train-2": "node-2", "train-3": "node-3"}, {}, set()),
    "workloads/jobset": (
        {
            "multislice-driver-0-0": "node-0",
            "multislice-workers-0-0": "node-0",
            "multislice-workers-0-1": "node-1",
            "multislice-workers-0-2": "node-2",
            "multislice-workers-0-3": "node-3",
            "multislice-workers-1-0": "node-4",
            "multislice-workers-1-1": "node-5",
            "multislice-workers-1-2": "node-6",
            "multislice-workers-1-3": "node-7",
        },
        {},
        set(),
    ),
    "workloads/leaderworkerset": (
        {
            "llm-0": "node-0",
            "llm-0-1": "node-1",
            "llm-0-2": "node-2",
            "llm-0-3": "node-3",
            "llm-1": "node-4",
            "llm-1-1": "node-5",
            "llm-1-2": "node-6",
            "llm-1-3": "node-7",
        },
        {},
        set(),
    ),
    "workloads/mpijob": (
        {"allreduce-worker-0": "node-0", "allreduce-worker-1": "node-1", "allreduce-launcher": "node-0"},
        {},
        set(),
    ),
    "workloads/pytorchjob": (
        {
            "bert-master-0": "node-0",
            "bert-worker-0": "node-1",
            "bert-worker-1": "node-2",
            "bert-worker-2": "node-3",
            "bert-worker-3": "node-4",
            "bert-worker-4": "node-5",
            "bert-worker-5": "node-6",
            "bert-worker-6": "node-7",
        },
        {},
        set(),
    ),
    "workloads/raycluster": (
        {
            "tune-cpu-worker-0": "node-0",
            "tune-cpu-worker-1": "node-0",
            "tune-gpu-worker-0": "node-0",
            "tune-gpu-worker-1": "node-1",
            "tune-gpu-worker-2": "node-2",
            "tune-head": "node-0",
        },
        {},
        set(),
    ),
    "workloads/spark": ({"pi-driver": "node-0", "pi-exec-1": "node-0", "pi-exec-2": "node-0"}, {}, set()),
    "workloads/statefulset": ({"shards-0": "node-0", "shards-1": "node-1", "shards-2": "node-2"}, {}, set()),
    "workloads/trainjob": (
        {"llama-node-0-0": "node-0", "llama-node-0-1": "node-1", "llama-node-0-2": "node-2"},
        {},
        set(),
    ),
}


def title(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def comment(path: Path) -> list[str]:
    return [
        line.removeprefix("#").removeprefix(" ")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    ]


def command(path: Path) -> list[str]:
    """The words after `See it:`, with the folder of the examples as it is here."""
    line = next(line for line in comment(path) if line.startswith("See it:"))
    program, *words = shlex.split(line.removeprefix("See it:"))
    assert program == "koordpy"
    root = f"{EXAMPLES}/"
    return [root + word.removeprefix("examples/") if word.startswith("examples/") else word for word in words]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    out, err = capsys.readouterr()
    assert warnings_of(err) == ""
    return out


def simulated(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(capsys, *command(path), "-o", "json"))
    return found


def test_every_example_has_an_outcome_here() -> None:
    assert sorted(TABLE) == sorted(title(path) for path in PATHS if command(path)[0] == "simulate")


@pytest.mark.parametrize("path", PATHS, ids=title)
def test_the_comment_is_the_whole_answer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = comment(path)
    expected = " ".join(lines[lines.index("It says:") + 1 :]).split()
    assert expected
    assert answer(capsys, *command(path)).split() == expected


@pytest.mark.parametrize("path", [path for path in PATHS if title(path) in TABLE], ids=title)
def test_an_example_ends_where_the_table_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(path, capsys)
    bound, evicted, waiting = TABLE[title(path)]
    assert {one["pod"]: one["node"] for one in result["bindings"]} == bound
    found = {one["pod"]: (one["rule"], one["beneficiary"].removeprefix("default/")) for one in result["evictions"]}
    assert found == evicted
    assert {one["pod"] for one in result["pending"]} == waiting
    assert result["stable"]


def test_pairs_of_gpus_go_by_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(EXAMPLES / "gpu" / "pair.yaml", capsys)
    key = "topology.scheduling.koordinator.sh/gpu"
    given = {one["pod"]: json.loads(one["annotations"][key])["allocatedGPUs"]["0"] for one in result["bindings"]}
    assert given == {"train-0": ["5", "6"], "train-1": ["2", "3"]}


def test_a_sidecar_has_a_gpu_of_its_own_and_an_init_container_the_container_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (binding,) = simulated(EXAMPLES / "gpu" / "sidecar.yaml", capsys)["bindings"]
    prefix = "topology.scheduling.koordinator.sh/cuda-visible-devices."
    given = {key.removeprefix(prefix): text for key, text in binding["annotations"].items() if key.startswith(prefix)}
    assert given == {"0": "GPU-5,GPU-6", "init-0": "GPU-5,GPU-6", "init-1": "GPU-0"}


@pytest.mark.parametrize(
    ("name", "waits"),
    [("preemption/consolidation", {"two"}), ("quotas/fair-share", {"alice-0", "alice-1"})],
)
def test_without_its_configuration_an_example_evicts_nobody(
    name: str, waits: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(EXAMPLES / f"{name}.yaml")
    at = words.index("--config")
    result = json.loads(answer(capsys, *words[:at], *words[at + 2 :], "-o", "json"))
    assert result["evictions"] == []
    assert {one["pod"] for one in result["pending"]} == waits


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=title)
def test_configurations_are_read_and_used_by_an_example(path: Path) -> None:
    load_config(str(path))
    assert any(str(path) in command(example) for example in PATHS)


@pytest.mark.parametrize("path", [path for path in PATHS if title(path) in TABLE], ids=title)
def test_new_pods_name_our_scheduler_and_ask_with_equal_limits(path: Path) -> None:
    for obj in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if obj["kind"] == "Pod":
            assert obj["spec"]["schedulerName"] == "koord-scheduler"
            for container in obj["spec"]["containers"]:
                assert container["resources"]["requests"] == container["resources"]["limits"]
