# SPDX-License-Identifier: Apache-2.0
"""The rendered chart is valid by the schemas of the API server itself, and declines versions that it does not support.

kubectl applies every object with `--dry-run=server --validate=strict`: unknown and duplicate fields, wrong types and
values that the validation of the API server rejects are errors. `make e2e` with another KUBERNETES repeats it.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from koordpy.api.kubernetes_versions import NEWEST, OLDEST
from tests.e2e.assets import REPOSITORY
from tests.e2e.chart import CHART, NEEDED, Denied, Helm
from tests.e2e.client import Client
from tests.e2e.controlplane import ControlPlane
from tests.e2e.test_chart import EVERYTHING

Values = dict[str, Any]
SETS: dict[str, Values] = {
    "default": {},
    "high availability": {
        "replicaCount": 3,
        "podDisruptionBudget": {"maxUnavailable": "34%"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "koordpy"}}},
        ],
        "flowControl": {"enabled": True},
        "nodePolicies": {"labels": ["example.com/rack"]},
    },
    "agent": {"agent": {"enabled": True}},
    "device plugin": {"agent": {"enabled": True, "delivery": "device-plugin", "cdi": True, "gsocAnnotations": True}},
    "webhook": {"webhook": {"enabled": True}, "agent": {"enabled": True, "delivery": "env"}},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
        "networkPolicy": {"enabled": True},
    },
    "page": {"view": {"enabled": True}, "tenants": {"enabled": True}},
    "everything": {**EVERYTHING, "affinity": {}},
}  # fmt: skip
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of other products, which the API server of the tests does not serve."""


def validated(plane: ControlPlane, objects: list[Any]) -> list[str]:
    """The objects that the API server would accept, as kubectl prints them; raises if it rejects one."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    words = ("apply", "--dry-run=server", "--validate=strict", "--filename", "-")
    return plane.kubectl(*words, stdin=text).splitlines()


@pytest.mark.parametrize("name", SETS)
async def test_the_api_server_accepts_every_object(
    name: str, helm: Helm, plane: ControlPlane, crds: list[str], namespace: str
) -> None:
    flags = ("--include-crds", "--api-versions", "monitoring.coreos.com/v1")
    rendered = helm.render(SETS[name], *flags, namespace=namespace).objects
    foreign = {one["kind"] for one in rendered if one["apiVersion"].startswith("monitoring.coreos.com/")}
    assert foreign <= FOREIGN and bool(foreign) == (name in ("metrics", "everything"))
    own = [one for one in rendered if one["kind"] not in FOREIGN]
    accepted = validated(plane, own)
    assert len(accepted) == len(own) >= 10
    assert all(line.endswith("(server dry run)") for line in accepted)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("replica", 2, 'unknown field "replica"'),
        ("replicas", "two", "spec.replicas"),
        ("strategy", {"type": "Sideways"}, "Sideways"),
    ],
)
async def test_a_fault_is_found(
    field: str, value: Any, said: str, helm: Helm, plane: ControlPlane, api: Client, namespace: str
) -> None:
    deployment = copy.deepcopy(helm.render(namespace=namespace).of("Deployment"))
    deployment["spec"][field] = value
    with pytest.raises(subprocess.CalledProcessError) as caught:
        validated(plane, [deployment])
    assert said in caught.value.stderr


def number(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"


@pytest.mark.parametrize("version", [f"{number(OLDEST)}.0", f"v{number(NEWEST)}.2", f"v{number(OLDEST)}.4-gke.100"])
def test_supported_versions_of_kubernetes_are_accepted(version: str, helm: Helm) -> None:
    assert helm.render({}, "--skip-tests", "--kube-version", version).of("Deployment")


def test_an_older_kubernetes_is_declined_with_the_version_that_is_needed(helm: Helm) -> None:
    older = f"v{OLDEST[0]}.{OLDEST[1] - 1}.9"
    with pytest.raises(Denied) as caught:
        helm.render({}, "--skip-tests", "--kube-version", older)
    assert str(caught.value).splitlines()[0] == (
        f"Error: chart requires kubeVersion: >={number(OLDEST)}.0-0 which is incompatible with Kubernetes {older}"
    )


@pytest.mark.parametrize(
    ("version", "is_supported"),
    [
        ("v3.13.3", False),
        ("v2.17.0", False),
        ("v3.14.0", True),
        ("v3.14.0-rc.1", True),
        ("v3.22.0", True),
        ("v4.0.1", True),
    ],
)
def test_an_older_helm_is_declined_with_the_version_that_is_needed(
    version: str, is_supported: bool, helm: Helm, tmp_path: Path
) -> None:
    """helm cannot be told another version of its own, so the template reads it from a constant here."""
    chart = tmp_path / "koordpy"
    shutil.copytree(CHART, chart)
    file = chart / "templates" / "requirements.yaml"
    text = file.read_text(encoding="utf-8")
    assert text.count(".Capabilities.HelmVersion.Version") == 1
    file.write_text(text.replace(".Capabilities.HelmVersion.Version", json.dumps(version)), encoding="utf-8")
    if is_supported:
        assert "kind: Deployment" in helm.call("template", "koordpy", chart, values=NEEDED)
        return
    with pytest.raises(Denied) as caught:
        helm.call("template", "koordpy", chart, values=NEEDED)
    said = f"helm {version} is not supported: the chart of koordpy needs helm 3.14 or newer (docs/compatibility.md)"
    assert said in str(caught.value)


def test_the_page_and_the_chart_name_the_same_versions() -> None:
    page = (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| 0.1 |"))
    assert f"{number(OLDEST)}" in row and f"{number(NEWEST)}" in row and "3.14 or newer" in row
