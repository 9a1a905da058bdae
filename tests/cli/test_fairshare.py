# SPDX-License-Identifier: Apache-2.0
"""`koordpy fairshare`: the share calculator on files (simulate.md 6, quota-fairness.md 3)."""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.cli.main import main

GPU = "nvidia.com/gpu"


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], document: Any, *options: str) -> tuple[int, str, str]:
    path = tmp_path / "queues.yaml"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    status = main(["fairshare", "-f", str(path), *options])
    out, err = capsys.readouterr()
    return status, out, err.replace(str(path), "FILE")


def shares(tmp_path: Path, capsys: pytest.CaptureFixture[str], **document: Any) -> dict[str, Any]:
    status, out, err = run(tmp_path, capsys, document, "-o", "json")
    assert (status, err) == (0, "")
    return dict(json.loads(out)["shares"])


def queue(name: str, request: Any = 9, **fields: Any) -> dict[str, Any]:
    return {"name": name, "request": request, **fields}


def test_every_queue_is_listed_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shares(
        tmp_path, capsys, total={GPU: 10}, mode="exact", queues=[queue("z"), queue("b", 2), queue("c", weight=2)]
    )
    assert list(found.items()) == [("z", {GPU: 3}), ("b", {GPU: 2}), ("c", {GPU: 5})]


def test_resources_are_shared_each_on_its_own_in_cores_and_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = {GPU: 2, "cpu": 10, "memory": "1Ki"}
    asks = {GPU: 1, "cpu": 10, "memory": 1024}
    found = shares(tmp_path, capsys, total=total, mode="exact", queues=[queue(n, asks) for n in "abc"])
    assert found["a"] == {GPU: 1, "cpu": 3.334, "memory": 342}
    assert found["c"] == {GPU: 0, "cpu": 3.333, "memory": 341}


def test_parts_of_gpus_are_shared_in_thousandths_where_something_is_no_whole_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shares(tmp_path, capsys, total={GPU: 1}, mode="exact", queues=[queue("a", 0.5), queue("b"), queue("c")])
    assert found == {"a": {GPU: 0.334}, "b": {GPU: 0.333}, "c": {GPU: 0.333}}


def test_inner_queues_are_the_sum_of_their_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queues = [queue("org", 1), queue("a", 4, parent="org"), queue("b", 4, parent="org"), queue("c", 9)]
    for mode, want in (("exact", [6, 3, 3, 6]), ("kai", [6, 3, 3, 6]), ("gpu-count", [8, 4, 4, 4])):
        found = shares(tmp_path, capsys, total={GPU: 12}, mode=mode, queues=queues)
        assert [found[name][GPU] for name in ("org", "a", "b", "c")] == want, mode


def test_what_an_inner_queue_asks_counts_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queues = [queue("org", 0.5), queue("a", parent="org"), queue("b", parent="org")]
    for mode in ("exact", "kai", "gpu-count"):  # a part of a GPU there does not make the others share thousandths
        found = shares(tmp_path, capsys, total={GPU: 3}, mode=mode, queues=queues)
        assert (found["a"], found["b"]) == ({GPU: 2}, {GPU: 1}), mode


def test_gpu_count_looks_at_past_usage_where_k_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queues = [queue("a", 16, usage=0.5), queue("b", 16)]
    for k, want in ((0, [8, 8]), (1, [5, 11])):
        found = shares(tmp_path, capsys, total={GPU: 16}, mode="gpu-count", k=k, queues=queues)
        assert [found[name][GPU] for name in "ab"] == want


def test_gpu_count_knows_no_quota_limit_or_priority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queues = [queue("a", quota=7, priority=900), queue("b", limit=1), queue("c", weight=2)]
    found = shares(tmp_path, capsys, total={GPU: 9, "cpu": 5}, mode="gpu-count", queues=queues)
    assert found == {"a": {GPU: 2}, "b": {GPU: 2}, "c": {GPU: 5}}


def test_minus_one_is_all_as_a_quota_and_none_as_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shares(tmp_path, capsys, total={GPU: 8}, mode="exact", queues=[queue("a", quota=-1, limit=-1), queue("b")])
    assert found == {"a": {GPU: 8}, "b": {GPU: 0}}


def test_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "total: {nvidia.com/gpu: 8}\nqueues: [{name: a, request: 6, weight: 1}, {name: b, request: 6, weight: 3}]\n"
    status, out, _ = run(tmp_path, capsys, text)
    assert (status, out.splitlines()) == (0, ["QUEUE  nvidia.com/gpu", "a      2", "b      6"])


FAULTS: list[tuple[str, Any, list[str]]] = [
    ("no mapping", [1], ["must be a mapping, not a list"]),
    ("nothing in it", {}, ["total: is missing", "queues: is missing"]),
    ("a mode", {"total": 1, "mode": "fast", "queues": []}, ["mode: must be one of exact, gpu-count, kai, not 'fast'"]),
    (
        "a typo",
        {"total": 1, "queues": [queue("a", wieght=1)]},
        ["queues[0].wieght: unknown field, did you mean weight?"],
    ),
    ("no name", {"total": 1, "queues": [{"request": 1}]}, ["queues[0].name: is missing"]),
    (
        "a name twice",
        {"total": 1, "queues": [queue("a"), queue("a")]},
        ["queues[1].name: duplicate queue a, already defined in queues[0]"],
    ),
    (
        "no such parent",
        {"total": 1, "queues": [queue("a", parent="x")]},
        ["queues[0].parent: queue a: its parent x is not defined"],
    ),
    (
        "a cycle",
        {"total": 1, "queues": [queue("c", parent="a"), queue("a", parent="b"), queue("b", parent="a")]},
        ["queues[0].parent: parents form a cycle: a -> b -> a"],
    ),
    ("a negative request", {"total": 1, "queues": [queue("a", -1)]}, ["queues[0].request: -1 is negative"]),
    (
        "another negative quota",
        {"total": 1, "queues": [queue("a", quota={"cpu": -2})]},
        ["queues[0].quota.cpu: -2 is negative (only -1 has a meaning)"],
    ),
    (
        "a negative weight",
        {"total": 1, "queues": [queue("a", weight={GPU: "-0.5"})]},
        [f"queues[0].weight[{GPU}]: -0.5 is negative"],
    ),
    ("a negative total", {"total": {GPU: -8}, "queues": []}, [f"total[{GPU}]: -8 is negative"]),
    ("a negative k", {"total": 1, "k": -1, "queues": []}, ["k: -1 is negative"]),
    (
        "no number",
        {"total": 1, "queues": [queue("a", usage="much")]},
        ["queues[0].usage: 'much' is no quantity (as in 2, 500m, 16Gi)"],
    ),
    ("a truth value", {"total": True, "queues": []}, ["total: must be a number, not a boolean"]),
    (
        "a broken priority",
        {"total": 1, "queues": [queue("a", priority=1.5)]},
        ["queues[0].priority: must be a whole number, not the number 1.5"],
    ),
]


@pytest.mark.parametrize(("document", "lines"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_bad_input_is_told_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: Any, lines: list[str]
) -> None:
    status, out, err = run(tmp_path, capsys, document)
    assert (status, out) == (2, "")
    assert err.splitlines() == [f"FILE: document 1: {line}" for line in lines]


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fairshare", "-f", "/nowhere/queues.yaml"]) == 2
    assert capsys.readouterr().err == "/nowhere/queues.yaml: cannot be read: No such file or directory\n"
