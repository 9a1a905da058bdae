# SPDX-License-Identifier: Apache-2.0
"""Fields that no definition of koordpy's custom resources has are refused offline: an API server drops them."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordpy.cli.main import main
from koordpy.decoding.field_hints import PRUNED
from tests.cli.test_manifests import NODE
from tests.cli.test_slips import GROUP, told
from tests.docs.worked import ROOT

Json = dict[str, Any]
QUOTA = "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata: {name: q}\n"
LAYERS = "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: ClusterNetworkTopology\nmetadata: {name: default}\n"
DEVICE = "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: Device\nmetadata: {name: n1}\n"
PRUNED_FIELDS = {
    GROUP + "{minMembers: 3}\n": "PodGroup default/g: spec.minMembers: unknown field, did you mean minMember?",
    GROUP + "{minMember: 1, size: 3}\n": "PodGroup default/g: spec.size: unknown field",
    GROUP.replace("sigs.k8s.io", "x-k8s.io")
    + "{minMember: 1, size: 3}\n": "PodGroup default/g: spec.size: unknown field",
    GROUP.replace("spec", "spek") + "{minMember: 1}\n": "PodGroup default/g: spek: unknown field, did you mean spec?",
    QUOTA + "spec: {maxx: {cpu: 3}}\n": "ElasticQuota default/q: spec.maxx: unknown field, did you mean max?",
    QUOTA + "spec: {}\nweight: 1\n": "ElasticQuota default/q: weight: unknown field",
    LAYERS + "spec: {hierachy: []}\n": (
        "ClusterNetworkTopology/default: spec.hierachy: unknown field, did you mean hierarchy?"
    ),
    LAYERS + "spec: {hierarchy: [{layerName: l, labelKeys: [a]}]}\n": (
        "ClusterNetworkTopology/default: spec.hierarchy[0].labelKeys: unknown field, did you mean labelKey?"
    ),
    DEVICE + "spec: {device: []}\n": "Device/n1: spec.device: unknown field, did you mean devices?",
    DEVICE + "spec: {devices: [{type: gpu, minor: 0, UUID: x}]}\n": "Device/n1: spec.devices[0].UUID: unknown field",
    DEVICE + "spec: {devices: [{type: gpu, minor: 0, topology: {numaID: 1}}]}\n": (
        "Device/n1: spec.devices[0].topology.numaID: unknown field"
    ),
    DEVICE + "spec: {topologies: {gpus: []}}\n": "Device/n1: spec.topologies.gpus: unknown field, did you mean gpu?",
}
"""Manifest of one of koordpy's custom resources -> the fault."""


@pytest.mark.parametrize("text", PRUNED_FIELDS)
def test_a_field_that_the_api_server_would_drop_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    lines = told(tmp_path, capsys, text, status=2)
    assert f"document 2: {PRUNED_FIELDS[text]}" in lines


@pytest.mark.parametrize("command", [["explain", "--pod", "p"], ["topology"], ["simulate"]])
def test_every_command_refuses_the_field(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(f"{NODE}---\n{GROUP}{{minMembers: 3}}\n")
    assert main([*command, "-f", str(path)]) == 2
    said = capsys.readouterr()
    assert "spec.minMembers: unknown field, did you mean minMember?" in said.err and said.out == ""


@pytest.mark.parametrize(
    "text",
    [
        DEVICE + "spec: {devices: [{type: gpu, minor: 0, moduleID: 1, labels: {}, vfGroups: [], conditions: []}]}\n",
        GROUP + "{minMember: 1}\nstatus: {phase: Running, scheduled: 1, anything: 1}\n",
    ],
)
def test_fields_of_a_dump_are_not_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert told(tmp_path, capsys, text, status=0) == []


def test_the_fields_are_those_of_the_definitions() -> None:
    """Every field of a definition is read or listed as valid, and koordpy reads no other one."""
    known, elsewhere = set[str](), {"HierarchyEntry": {"layerName", "topologyLayer"}}
    for name in ("podgroups", "podgroups-x", "elasticquotas", "clusternetworktopologies", "devices"):
        crd = yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text(encoding="utf-8"))
        root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        kind = {"podgroups-x": "podgroups"}.get(name, name)
        struct = next(one for one in PRUNED if f"{one.__name__.lower()}s".replace("ys", "ies") == kind)
        for cls, fields in _structs(struct, root, {}).items():
            known.add(cls.__name__)
            read = {part.encode_name for part in msgspec.structs.fields(cls)} | set(PRUNED[cls])
            extra = read - fields - {"vfGroups", "conditions"} - elsewhere.get(cls.__name__, set())
            assert (fields - read, extra) == (set(), set()), cls
    assert known == {cls.__name__ for cls in PRUNED}


def _structs(cls: type, schema: Json, found: dict[type, set[str]]) -> dict[type, set[str]]:
    """Struct of `PRUNED` -> the properties of its place in a schema, for a struct and the structs in its fields."""
    found[cls] = found.get(cls, set()) | set(schema["properties"]) - {"apiVersion", "kind"}
    for part in msgspec.structs.fields(cls):
        below = schema["properties"].get(part.encode_name, {})
        for inner in PRUNED:
            if inner.__name__ in re.findall(r"\w+", str(part.type)):
                _structs(inner, below.get("items", below), found)
    return found
