# SPDX-License-Identifier: Apache-2.0
"""Inputs that pages show are read, and do what is said of them: a machine of GPUs, resource claims."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordpy.agent.backends.file_backend import FakeFault, FakeGpu, FakeMachine
from koordpy.api import keys
from koordpy.cli.main import main
from tests.docs.worked import ROOT, blocks_of

DOCS = ROOT / "docs"
BLOCKS = {block.path: block.text for page in ("gpu.md", "claims.md") for block in blocks_of(DOCS / page)}


def test_the_machine_is_one_that_an_agent_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "machine.yaml").write_text(BLOCKS["machine.yaml"])
    assert main(["agent", "--node", "n1", "--print", "--backend", f"fake:{tmp_path}/machine.yaml"]) == 0
    device = yaml.safe_load(capsys.readouterr().out)
    links = next(one for one in device["spec"]["topologies"]["gpu"] if one["name"] == "links")
    assert json.loads(links["topology"]) == yaml.safe_load(BLOCKS["machine.yaml"])["links"]
    assert [one["topology"]["nodeID"] for one in device["spec"]["devices"]] == [0, 0, 1, 1]


def test_every_field_of_a_machine_is_told() -> None:
    told = (DOCS / "gpu.md").read_text(encoding="utf-8").partition("```yaml machine.yaml")[2].partition("\n## ")[0]
    for kind in (FakeMachine, FakeGpu, FakeFault):
        for field in msgspec.structs.fields(kind):
            assert f"`{field.encode_name}" in told or f"{field.encode_name}:" in told, (kind, field.encode_name)


def devices(model: str) -> list[dict[str, Any]]:
    """A node with two devices of a model, and a pod that claims by the page's template."""
    template = yaml.safe_load(BLOCKS["claim.yaml"])
    driver = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"]
    attributes = {"model": {"string": model}}
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}
    pod = {
        "metadata": {"name": "p", "uid": "p"},
        "spec": {
            "schedulerName": keys.DEFAULT_SCHEDULER_NAME,
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template["metadata"]["name"]}],
            "containers": [container],
        },
        "status": {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "p-gpus"}]},
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": True}
    claim = {"metadata": {"name": "p-gpus", "ownerReferences": [owner]}, "spec": template["spec"]["spec"]}
    offered = [{"name": f"gpu-{i}", "attributes": attributes} for i in range(2)]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"pods": "9"}}},
        template,
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {"driver": driver, "nodeName": "n1", "pool": pool, "devices": offered},
        },
        {"apiVersion": "v1", "kind": "Pod", **pod},
    ]


@pytest.mark.parametrize(("model", "bound"), [("a100", 1), ("h100", 0)])
def test_the_claim_takes_devices_of_its_model(
    model: str, bound: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(devices(model)))
    assert main(["simulate", "-f", str(tmp_path / "objects.yaml"), "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["bindings"]) == bound
    assert bound or "cannot allocate all claims" in said["pending"][0]["message"]
