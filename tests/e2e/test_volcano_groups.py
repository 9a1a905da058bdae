# SPDX-License-Identifier: Apache-2.0
"""PodGroups of Volcano on the real API server, with a definition of their kind that comes while koordpy runs: gangs by
an annotation of their pods, and a status that is written as the configuration says (workloads.md 9)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.client import DEFINITIONS, Client, Json, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import kubelets
from tests.e2e.process import eventually
from tests.e2e.test_scheduler import start

NAME = "podgroups.scheduling.volcano.sh"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
CONDITION = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
STATUS = {
    "phase": {"type": "string"},
    "conditions": {"type": "array", "items": CONDITION},
    **{name: {"type": "integer", "format": "int32"} for name in ("running", "succeeded", "failed")},
}
SPEC = {"minMember": {"type": "integer", "format": "int32"}, "queue": {"type": "string"}}


def definition() -> Json:
    """With the fields that are read and written here, and no others."""
    fields = {name: {"type": "object", "properties": of} for name, of in (("spec", SPEC), ("status", STATUS))}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
    }
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    spec = {"group": "scheduling.volcano.sh", "names": names, "scope": "Namespaced", "versions": [version]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kind, "metadata": {"name": NAME}, "spec": spec}


async def group(api: Client, name: str, least: int) -> None:
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name}}
    await api.create(GROUPS, {**kind, "spec": {"minMember": least, "queue": "default"}})


async def member(api: Client, name: str, of: str) -> None:
    notes = {"scheduling.k8s.io/group-name": of}
    made = pod_manifest(name, scheduler="koord-scheduler", requests={"nvidia.com/gpu": "1"}, annotations=notes)
    await api.create(pods_path(), made)


@pytest.mark.parametrize("volcano", ["read", "take"])
async def test_gangs_by_groups_of_volcano_and_what_their_status_says(
    api: Client, controlplane: ControlPlane, crds: list[str], tmp_path: Path, volcano: str
) -> None:
    (tmp_path / "config.yaml").write_text(f"gangs: {{volcano: {volcano}}}")
    flags = ("--leader-elect=false", "--config", str(tmp_path / "config.yaml"))
    await api.make_nodes(2, allocatable={"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "1"})
    try:
        with start(controlplane, tmp_path, "koordpy", *flags) as process:

            async def until(name: str, **wanted: object) -> Json:
                """Status: fields, conditions that are True by type with what their message ends with."""

                async def so() -> Json | None:
                    status: Json = (await api.get(f"{GROUPS}/{name}")).get("status", {})
                    true = {one["type"]: one for one in status.get("conditions", ()) if one["status"] == "True"}
                    said = {
                        key: true[key]["message"] if key[0].isupper() and key in true else status.get(key)
                        for key in wanted
                    }
                    same = all(str(said[key]).endswith(str(text)) for key, text in wanted.items())
                    return status if same and len(true) <= 1 else None

                found = await eventually(so, what=f"{name}: {wanted}", processes=[process])
                assert found is not None
                return found

            await api.create(DEFINITIONS, definition())

            async def served() -> bool:
                return "podgroups of scheduling.volcano.sh/v1beta1 are served" in process.log.read_text()

            await eventually(served, what="the definition is noticed", processes=[process])
            async with kubelets(api) as nodes:
                await group(api, "train", 3)
                if volcano == "take":
                    await until("train", phase="Inqueue")
                for i in range(2):
                    await member(api, f"train-{i}", "train")
                few = "gang default/train: waiting for members, 2 of minMember 3 exist"
                await until("train", phase="Inqueue", Unschedulable=few)
                await member(api, "train-2", "train")
                await until("train", Unschedulable="gang default/train: needed 3, available in the cluster: 2.")
                room = {"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "1"}
                await api.make_nodes(1, allocatable=room, name=lambda i: f"more{i}")
                text = "3 pods bound, minMember is 3"
                await until("train", phase="Running", running=3, Scheduled=text)
                await group(api, "later", 1)
                for i in range(3):
                    await nodes.end(f"train-{i}", "Succeeded")
                await until("train", phase="Completed", running=0, succeeded=3)
                if volcano == "take":
                    await until("later", phase="Inqueue")
                assert (await api.get(f"{GROUPS}/later")).get("status", {}) == (
                    {"phase": "Inqueue"} if volcano == "take" else {}
                )
            assert await asyncio.to_thread(process.stop) == 0
    finally:
        await api.remove_definition(NAME)
