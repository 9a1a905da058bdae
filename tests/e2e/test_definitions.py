# SPDX-License-Identifier: Apache-2.0
"""A half-upgraded cluster: definitions that are older or newer than koordpy are told, and pods are placed as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy import __version__
from tests.e2e.acts import said
from tests.e2e.client import Client, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually, koordpy_run
from tests.e2e.test_preemption import make_gang, make_nodes
from tests.e2e.test_scheduler import GROUPS, LEASE, places

Json = dict[str, Any]
FILE = "podgroups.yaml"
SUBJECT = "the installed definition of PodGroup (scheduling.sigs.k8s.io/v1alpha1)"
COMMAND = "kubectl apply --server-side --force-conflicts -f crds/podgroups.yaml"


def older(properties: Json) -> None:
    """As before two fields of the status existed."""
    for name in ("occupiedByUID", "departed"):
        del properties["status"]["properties"][name]


def newer(properties: Json) -> None:
    """As with a field of a later koordpy."""
    properties["spec"]["properties"]["maxMember"] = {"type": "integer"}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (older, f"{SUBJECT} lacks fields of koordpy {__version__}: status.occupiedByUID, status.departed: {COMMAND}"),
        (
            newer,
            f"{SUBJECT} has fields that koordpy {__version__} does not know: spec.maxMember: "
            f"upgrade koordpy if the definition is newer, else {COMMAND}",
        ),
    ],
)
async def test_a_definition_of_another_version_is_told_and_gangs_are_placed(
    api: Client,
    plane: ControlPlane,
    crds: list[str],
    tmp_path: Path,
    change: Callable[[Json], None],
    line: str,
) -> None:
    definition = yaml.safe_load((CRDS / FILE).read_text())
    change(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"])
    folder = tmp_path / "crds"
    folder.mkdir()
    (folder / FILE).write_text(yaml.safe_dump(definition))
    koordpy = koordpy_run("--bind-address", "127.0.0.1:0", kubeconfig=plane.kubeconfig(), folder=tmp_path)
    try:
        await api.apply_crds(folder)
        await make_nodes(api, 1)
        await make_gang(api, "train", 2)
        koordpy.start()

        async def reported() -> bool:
            status = (await api.get(f"{GROUPS}/train")).get("status", {})
            return len(await places(api)) == 2 and status.get("scheduled") == 2

        await eventually(reported, what="the gang is bound and counted", processes=[koordpy])
        await said(koordpy, line)
        assert koordpy.log.read_text().count(line) == 1
        await api.apply_crds(CRDS)
        await said(koordpy, f"resolved: {line}")
    finally:
        koordpy.stop()
        await api.apply_crds(CRDS)
        await api.delete(pods_path())
        await api.delete(GROUPS)
        await api.delete(LEASE)
