# SPDX-License-Identifier: Apache-2.0
"""Warnings about the API server: a version outside the range, and definitions that are older or newer than koordpy."""

import asyncio
import copy
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from koordpy import __version__
from koordpy.api import kubernetes_versions
from koordpy.api.objects import ObjectMeta
from koordpy.api.pod_groups import PodGroup, PodGroupStatus
from koordpy.decoding.shipped_files import definitions_by_file
from koordpy.engine.client.api_resources import ELASTIC_QUOTAS, INSTALLED, POD_GROUPS, POD_GROUPS_X, Resource
from koordpy.engine.status.reconciler import TRUSTED_SECONDS, WholeStatusWriter
from koordpy.engine.watching.server_check import ServerCheck, lacking_fields, shipped_schemas
from tests.engine.parts import a_context
from tests.engine.scripted import ScriptedServer, client_of, reply, scripted_server, until

Json = dict[str, Any]
SIGS = "/openapi/v3/apis/scheduling.sigs.k8s.io/v1alpha1"


@pytest.fixture
async def server():  # type: ignore[no-untyped-def]
    async with scripted_server() as server:
        yield server


def schema_of(file: str) -> Json:
    """A copy of the schema in a shipped definition."""
    schema: Json = definitions_by_file()[file]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return copy.deepcopy(schema)


def document(**schemas: Json) -> Json:
    """An OpenAPI document as an API server makes it for custom resources."""
    found: Json = {}
    for kind, schema in schemas.items():
        schema["properties"]["metadata"] = {"allOf": [{"$ref": "#/components/schemas/ObjectMeta"}]}
        for name, body in ((kind, schema), (f"{kind}List", {"properties": {"items": {}}})):
            gvk = [{"group": "scheduling.sigs.k8s.io", "version": "v1alpha1", "kind": name}]
            found[f"io.k8s.sigs.scheduling.v1alpha1.{name}"] = {**body, "x-kubernetes-group-version-kind": gvk}
    shared = [{"group": group, "version": "v1", "kind": "DeleteOptions"} for group in ("apps", "batch")]
    found["DeleteOptions"] = {"properties": {}, "x-kubernetes-group-version-kind": shared}
    return {"openapi": "3.0.0", "components": {"schemas": found}}


async def entitlements_of(server: ScriptedServer, caplog: pytest.LogCaptureFixture, *, checks: int = 1) -> list[str]:
    """What the check logs."""
    caplog.set_level(logging.INFO, logger="koordpy.engine.watching.server_check")
    async with client_of(server) as client:
        check = ServerCheck(client, asyncio.Event(), period_seconds=600)
        for _ in range(checks):
            await check.check_version()
            await check.check_definitions()
    return caplog.messages


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("v1.34.0", ""),
        ("v1.37.2", ""),
        ("v1.36.0-gke.100", ""),
        ("1.35.4+k3s1", ""),
        ("", ""),
        ("unknown", ""),
        (
            "v1.33.9",
            "Kubernetes 1.33.9 is older than koordpy supports (1.34 to 1.37): upgrade the API server to 1.34 or newer",
        ),
        (
            "v1.38.0-alpha.1",
            "Kubernetes 1.38.0-alpha.1 is newer than koordpy supports (1.34 to 1.37): "
            "upgrade koordpy to a release that supports this version",
        ),
        (
            "v2.0.0",
            "Kubernetes 2.0.0 is newer than koordpy supports (1.34 to 1.37): "
            "upgrade koordpy to a release that supports this version",
        ),
    ],
)
async def test_a_version_outside_the_range_gets_one_line(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, version: str, said: str
) -> None:
    assert kubernetes_versions.version_warning(version) == said
    server.on("GET", "/version", reply({"gitVersion": version}))
    assert await entitlements_of(server, caplog, checks=3) == ([said] if said else [])


async def test_a_server_without_version_and_schemas_gets_no_line(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert await entitlements_of(server, caplog) == []


async def test_shipped_definitions_compare_equal_and_are_named_by_their_files(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("GET", SIGS, reply(document(PodGroup=schema_of("podgroups.yaml"))))
    assert await entitlements_of(server, caplog) == []
    shipped = {(one.group, one.plural): one.file for one in shipped_schemas()}
    assert shipped.keys() == {(one.group, one.plural) for one in (*INSTALLED, POD_GROUPS_X)}
    assert shipped[ELASTIC_QUOTAS.group, ELASTIC_QUOTAS.plural] == "elasticquotas.yaml"


async def test_an_older_definition_is_told_with_the_file_to_apply_until_it_is_applied(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    old = schema_of("podgroups.yaml")
    for name in ("departed", "occupiedByUID"):
        del old["properties"]["status"]["properties"][name]
    older = reply(document(PodGroup=old, ElasticQuota=schema_of("elasticquotas.yaml")))
    server.on("GET", SIGS, older, older, reply(document(PodGroup=schema_of("podgroups.yaml"))))
    line = (
        "the installed definition of PodGroup (scheduling.sigs.k8s.io/v1alpha1) lacks fields of "
        f"koordpy {__version__}: status.occupiedByUID, status.departed: kubectl apply --server-side --force-conflicts "
        "-f crds/podgroups.yaml"
    )
    caplog.set_level(logging.INFO, logger="koordpy.engine.watching.server_check")
    async with client_of(server) as client:
        check = ServerCheck(client, asyncio.Event(), period_seconds=600)
        for _ in range(2):
            await check.check_definitions()
        assert caplog.messages == [line]
        assert check.absent(POD_GROUPS) == {"departed", "occupiedByUID"}
        assert check.absent(ELASTIC_QUOTAS) == check.absent(POD_GROUPS_X) == frozenset()
        await check.check_definitions()
        assert caplog.messages[1:] == [f"resolved: {line}"]
        assert check.absent(POD_GROUPS) == frozenset()


async def test_a_newer_definition_is_told(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    new = schema_of("podgroups.yaml")
    new["properties"]["spec"]["properties"]["maxMember"] = {"type": "integer"}
    server.on("GET", SIGS, reply(document(PodGroup=new)))
    assert await entitlements_of(server, caplog) == [
        "the installed definition of PodGroup (scheduling.sigs.k8s.io/v1alpha1) has fields that "
        f"koordpy {__version__} does not know: spec.maxMember: upgrade koordpy if the definition is newer, else "
        "kubectl apply --server-side --force-conflicts -f crds/podgroups.yaml"
    ]


@pytest.mark.parametrize(
    ("wanted", "have", "lacking"),
    [
        ({"properties": {"a": {}}}, {"properties": {"a": {}, "b": {}}}, []),
        ({"properties": {"a": {}, "metadata": {}}}, {}, ["a"]),
        ({"properties": {"a": {"properties": {"b": {}, "c": {}}}}}, {"properties": {"a": {}}}, ["a.b", "a.c"]),
        (
            {"properties": {"a": {"items": {"properties": {"b": {}}}}}},
            {"properties": {"a": {"items": {"properties": {}}}}},
            ["a.b"],
        ),
        ({"properties": {"a": {"properties": {"b": {}}}}}, {"x-kubernetes-preserve-unknown-fields": True}, []),
        (
            {"properties": {"a": {"properties": {"b": {}}}}},
            {"properties": {"a": {"additionalProperties": {"type": "string"}}}},
            [],
        ),
    ],
)
def test_fields_are_compared_as_the_api_server_prunes_them(wanted: Json, have: Json, lacking: list[str]) -> None:
    assert list(lacking_fields(wanted, have)) == lacking


async def test_a_document_that_is_no_openapi_does_not_end_the_scheduler(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="koordpy.engine.watching.server_check")
    server.on("GET", "/version", reply({"gitVersion": "v1.38.0"}))
    server.on("GET", SIGS, reply({"components": {"schemas": ["no object"]}}))
    synced = asyncio.Event()
    synced.set()
    async with client_of(server) as client:
        check = ServerCheck(client, synced, period_seconds=600)
        task = asyncio.create_task(check.run())
        await until(lambda: len(caplog.messages) == 2)
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert "is newer than koordpy supports" in caplog.messages[0]
    assert caplog.messages[1].startswith("the version or the schemas of the API server cannot be checked: ")


@dataclass
class Pruning:
    """An API server whose definition of PodGroup lacks a field: it drops the field of every write."""

    group: PodGroup
    patches: list[Json]

    async def patch(self, path: str, body: Json, **_: object) -> None:
        self.patches.append(json.loads(msgspec.json.encode(body)))
        kept = {**msgspec.to_builtins(self.group.status), **body["status"]}
        kept.pop("occupiedByUID", None)
        self.group = msgspec.structs.replace(self.group, status=msgspec.convert(kept, PodGroupStatus))

    def complained(self, *_: object) -> bool:
        return False


class Groups(WholeStatusWriter[PodGroup, PodGroupStatus]):
    """Wants one status."""

    def __init__(self, context: Any, server: Pruning) -> None:
        super().__init__(context)
        self._server = server

    def _find(self, key: str) -> tuple[PodGroup, Resource] | None:
        return self._server.group, POD_GROUPS

    def _render(self, key: str, obj: PodGroup, there: PodGroupStatus) -> PodGroupStatus:
        return PodGroupStatus(phase="Running", running=2, occupied_by="d/job", occupied_by_uid="u-1")


@pytest.mark.parametrize(("absent", "writes"), [(frozenset({"occupiedByUID"}), 1), (frozenset(), 4)])
async def test_a_field_that_the_server_drops_is_not_written_again_and_again(
    absent: frozenset[str], writes: int
) -> None:
    """Without the knowledge about the field the writer tries it again with each change (the second case)."""
    server = Pruning(PodGroup(metadata=ObjectMeta(name="g", namespace="d", uid="u")), [])
    now = 100.0
    context = a_context(client=server, clock=lambda: now, absent=lambda resource: absent)
    writer = Groups(context, server)
    for _ in range(4):
        writer.mark("d/g")
        await writer.flush()
        now += TRUSTED_SECONDS + 1
    assert len(server.patches) == writes
    assert server.group.status.running == 2 and server.group.status.occupied_by == "d/job"
