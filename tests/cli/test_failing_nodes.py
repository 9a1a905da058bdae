# SPDX-License-Identifier: Apache-2.0
"""Nodes that fail during `koordpy simulate`: how `--fail` is read, and what is wrong with it (repair.md 7)."""

import pytest

from koordpy.api.field_faults import InputFaultsError
from koordpy.simulation.failing_nodes import NodeFailure, read_failures, unreached

NODES = {"n1", "n2", "n@3"}


def test_a_node_fails_before_its_round() -> None:
    assert read_failures(["n1@2", "n@3@10"], NODES) == [NodeFailure("n1", 2), NodeFailure("n@3", 10)]
    assert read_failures([], set()) == []


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (["n1"], ["--fail: 'n1': must be NODE@ROUND"]),
        (["@2"], ["--fail: '@2': must be NODE@ROUND"]),
        (["n1@"], ["--fail: 'n1@': must be NODE@ROUND"]),
        (["n1@0"], ["--fail: 'n1@0': ROUND must be a whole number of 1 or more"]),
        (["n1@x"], ["--fail: 'n1@x': ROUND must be a whole number of 1 or more"]),
        (["nX@1"], ["--fail: node nX is not in the input"]),
        (["n1@1", "n1@2"], ["--fail: node n1 is given twice"]),
        (["n1@1", "n2@2", "n@3@3"], ["--fail: no node would be left"]),
        (["n1", "nX@1"], ["--fail: 'n1': must be NODE@ROUND", "--fail: node nX is not in the input"]),
    ],
)
def test_each_fault_is_one_line(options: list[str], faults: list[str]) -> None:
    with pytest.raises(InputFaultsError) as found:
        read_failures(options, NODES)
    assert found.value.lines == faults


def test_a_round_that_is_not_reached_is_a_warning() -> None:
    assert unreached([NodeFailure("n1", 30), NodeFailure("n2", 20)], 20) == [
        "--fail n1@30: the run ended after round 20"
    ]
