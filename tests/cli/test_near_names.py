# SPDX-License-Identifier: Apache-2.0
"""Misspelt options, strategies and linked gangs are told with the name that was meant."""

import json
from pathlib import Path

import pytest

from koordpy.cli.main import main
from tests.cli.test_gather_goals import NODES, TREE, gang
from tests.cli.test_manifests import written

PREFIX = "gang.scheduling.koordinator.sh/"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "-f", "x", "--drian", "n1"], "unrecognized arguments: --drian n1, did you mean --drain?"),
        (["simulate", "-f", "x", "--ad-nodes=3"], "unrecognized arguments: --ad-nodes=3, did you mean --add-nodes?"),
        (["explain", "-f", "x", "--pod", "p", "--wholly-other"], "unrecognized arguments: --wholly-other\n"),
        (["version", "--drian"], "unrecognized arguments: --drian\n"),
    ],
)
def test_options(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("strategy", "near"),
    [
        ("mustgather", ", did you mean MustGather?"),
        ("MustGahter", ", did you mean MustGather?"),
        ("prefergather", ", did you mean PreferGather?"),
        ("Hard", ""),
    ],
)
def test_strategies(tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str, near: str) -> None:
    wish = json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": strategy}]})
    note = f"annotations: {{{PREFIX}networkTopologyAware: '{wish}'}}"
    text = gang("g").replace("metadata: {name: g}\n", f"metadata: {{name: g, {note}}}\n", 1)
    assert main(["simulate", "-f", written(tmp_path, NODES + TREE + text)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"is neither PreferGather nor MustGather{near}" in out
    assert ("did you mean" in out) is bool(near)


@pytest.mark.parametrize(("listed", "near"), [("decoed", "decode"), ("other", "")])
def test_linked_gangs(tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: str, near: str) -> None:
    note = f'annotations: {{{PREFIX}groups: \'["default/prefill", "default/{listed}"]\'}}'
    prefill = gang("prefill").replace("metadata: {name: prefill}\n", f"metadata: {{name: prefill, {note}}}\n", 1)
    assert main(["simulate", "-f", written(tmp_path, NODES + prefill + gang("decode"))]) == 0
    out, err = capsys.readouterr()
    assert f"gang default/{listed}: PodGroup not found" in out
    told = f"warning: PodGroup/default/prefill: groups: no PodGroup default/{listed}, did you mean default/{near}?"
    assert (told in err) is bool(near)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("example.com/rak", "example.com/rack"),
        ("example.com/rack", ""),
        ("pool", ""),
        ("exampel.com/rack", "example.com/rack"),
        ("example.com/rqcx", ""),
        ("exampel.com/rak", ""),
    ],
)
def test_labels_of_node_selectors(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, near: str) -> None:
    text = gang("g").replace("{schedulerName", f"{{nodeSelector: {{{key}: r1}}, schedulerName")
    assert main(["simulate", "-f", written(tmp_path, NODES.replace("block:", "example.com/rack:") + text)]) == 0
    told = f"warning: default/g-0, default/g-1: nodeSelector: no node has the label {key}, did you mean {near}?\n"
    err = capsys.readouterr().err
    assert (told in err) is bool(near)
    assert ("nodeSelector" in err) is bool(near)


MATCH = "requiredDuringSchedulingIgnoredDuringExecution"
APART = f"{{{MATCH}: [{{topologyKey: KEY, labelSelector: {{matchLabels: {{a: b}}}}}}]}}"


def by_expression(operator: str) -> str:
    values = ", values: [r1]" if operator.endswith("In") else ""
    terms = f"[{{matchExpressions: [{{key: KEY, operator: {operator}{values}}}]}}]"
    return f"affinity: {{nodeAffinity: {{{MATCH}: {{nodeSelectorTerms: {terms}}}}}}}"


@pytest.mark.parametrize("key", ["example.com/rak", "example.com/rack"])
@pytest.mark.parametrize(
    ("field", "text", "told"),
    [
        ("topologySpreadConstraints", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: KEY}]", True),
        ("podAffinity", f"affinity: {{podAffinity: {APART}}}", True),
        ("podAntiAffinity", f"affinity: {{podAntiAffinity: {APART}}}", True),
        ("nodeAffinity", by_expression("In"), True),
        ("nodeAffinity", by_expression("Exists"), True),
        ("nodeAffinity", by_expression("NotIn"), False),
        ("nodeAffinity", by_expression("DoesNotExist"), False),
    ],
)
def test_labels_of_other_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, text: str, told: bool, key: str
) -> None:
    """A label that no node has; NotIn and DoesNotExist match nodes without it."""
    pods = gang("g").replace("{schedulerName", f"{{{text.replace('KEY', key)}, schedulerName")
    assert main(["simulate", "-f", written(tmp_path, NODES.replace("block:", "example.com/rack:") + pods)]) == 0
    line = f"warning: default/g-0, default/g-1: {field}: no node has the label {key}, did you mean example.com/rack?\n"
    err = capsys.readouterr().err
    assert (line in err) is (told and key.endswith("rak"))
    assert (f"{field}: no node" in err) is (line in err)
