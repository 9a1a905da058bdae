# SPDX-License-Identifier: Apache-2.0
"""What the offline commands say and do about gangs that say nothing of the network."""

import json
from pathlib import Path

import pytest

from koordpy.cli.main import main
from tests.cli.test_manifests import TOPOLOGY, written
from tests.said import warnings_of

NODES = "".join(
    f"apiVersion: v1\nkind: Node\nmetadata: {{name: n{i}, labels: {{block: b{block}}}}}\n"
    "status: {allocatable: {cpu: '1', memory: 8Gi, pods: '110'}}\n---\n"
    for i, block in enumerate((1, 2, 3, 3))
)
TREE = TOPOLOGY + "spec: {hierarchy: [{layerName: blockLayer, labelKey: block}]}\n---\n"
NO_GOAL = "topology ignored: no gather goal set (set annotation gang.scheduling.koordinator.sh/networkTopologyAware, "
WHERE = "or gangs.defaults.gather in the configuration)"


def gang(name: str, cpu: str = "1") -> str:
    group = "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\n"
    spec = f"{{schedulerName: koord-scheduler, containers: [{{name: c, resources: {{requests: {{cpu: '{cpu}'}}}}}}]}}"
    label = f"pod-group.scheduling.sigs.k8s.io: {name}"
    pods = (
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-{i}, labels: {{{label}}}}}\nspec: {spec}\n"
        for i in range(2)
    )
    return f"{group}metadata: {{name: {name}}}\nspec: {{minMember: 2}}\n{''.join(pods)}---\n"


def test_simulate_tells_once_which_gangs_start_without_a_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, NODES + TREE + gang("a"))
    assert main(["simulate", "-f", path, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"warning: gang default/a: {NO_GOAL}{WHERE}\n"
    assert [one["message"] for one in json.loads(out)["gangs"]] == [""]


def test_simulate_names_four_such_gangs_and_counts_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, NODES + TREE + "".join(gang(f"g{i}", cpu="100m") for i in range(7)))
    assert main(["simulate", "-f", path]) == 0
    (line,) = warnings_of(capsys.readouterr().err).splitlines()
    gangs = ", ".join(f"gang default/g{i}" for i in range(4))
    assert line == f"warning: {gangs} and 3 more: {NO_GOAL}{WHERE}"


def test_explain_tells_of_the_gang_that_it_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, NODES + TREE + gang("a") + gang("b"))
    assert main(["explain", "-f", path, "--pod", "b-0"]) == 0
    assert warnings_of(capsys.readouterr().err) == f"warning: gang default/b: {NO_GOAL}{WHERE}\n"


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_a_default_of_the_configuration_is_a_goal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(
        tmp_path, "gangs: {defaults: {gather: [{layer: blockLayer, strategy: MustGather}]}}", "config.yaml"
    )
    path = written(tmp_path, NODES + TREE + gang("a"))
    pod = ["--pod", "a-0"] if command == "explain" else []
    assert main([command, "-f", path, "--config", config, "-o", "json", *pod]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    if command == "simulate":
        assert {one["node"] for one in found["bindings"]} == {"n2", "n3"}
        assert found["gangs"][0]["domain"] == {"layer": "blockLayer", "name": "b3"}
    else:
        assert {one["name"]: one["chosen"] for one in found["domains"]}["b3"]
