# SPDX-License-Identifier: Apache-2.0
"""Checks the API server's version, and whether its CustomResourceDefinitions are those of this version of koordpy.

Both checks run at the start, after a CustomResourceDefinition has changed, and every ten minutes. They only log
warnings: one line about the version, and one line per definition that differs, which names the file to apply. Schemas
are read from the OpenAPI documents of the API server, because every service account may read these. If a document
cannot be read, the definition counts as equal.

An API server drops fields that an older schema lacks. `absent` returns these fields of a status, so that status writers
do not write them again and again.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import koordpy
from koordpy.api.kubernetes_versions import version_warning
from koordpy.decoding.shipped_files import definitions_by_file
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import Unreachable
from koordpy.engine.client.api_resources import Resource

logger = logging.getLogger(__name__)

Schema = Mapping[str, Any]
SOON_SECONDS = (1.0, 3.0, 10.0)
"""Seconds until further checks after a change: an API server serves the schema of a new definition a moment later."""
RETRY_SECONDS = 2.0
MOST_FIELDS = 5
"""Maximum number of fields that a line names."""
NOT_OURS = ("apiVersion", "kind", "metadata")
"""Fields of every object that are not compared, because the API server adds them to each schema."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """The schema of one kind in the definitions that are shipped with koordpy. file: in crds/."""

    group: str
    version: str
    kind: str
    plural: str
    file: str
    schema: Schema


class ServerCheck:
    """Warns if the API server or its definitions are too old or too new for this version of koordpy."""

    def __init__(self, client: ApiClient, synced: asyncio.Event, *, period_seconds: float) -> None:
        """synced: set once the caches are in sync. period_seconds: seconds between two checks."""
        self._client, self._synced, self._period = client, synced, period_seconds
        self._told: dict[str, str] = {}
        """Subject (the version, or a definition's file) -> its last warning; empty if there was nothing to warn of."""
        self._absent: dict[tuple[str, str], frozenset[str]] = {}
        """(group, plural) -> fields of the status that the installed schema lacks."""
        self._changed = asyncio.Event()

    def absent(self, resource: Resource) -> frozenset[str]:
        """Returns the top-level fields of the status that the API server drops; empty if none or not known."""
        return self._absent.get((resource.group, resource.plural), frozenset())

    def recheck(self) -> None:
        """Called when a CustomResourceDefinition changed: compares the schemas again."""
        self._changed.set()

    async def run(self) -> None:
        """Checks now and periodically, and several times within seconds after a `recheck`, until cancelled.

        The definitions are first compared when the caches are in sync: nothing may delay the start.
        """
        soon: list[float] = []
        while True:
            seconds = soon.pop(0) if soon else self._period
            try:
                await self.check_version()
                await self._synced.wait()
                await self.check_definitions()
            except Unreachable:
                seconds = RETRY_SECONDS
            except Exception as error:
                # any error is only logged, for example an invalid OpenAPI document: scheduling must not depend on it
                logger.info("the version or the schemas of the API server cannot be checked: %s", error)
            try:
                await asyncio.wait_for(self._changed.wait(), seconds)
            except TimeoutError:
                continue
            self._changed.clear()
            soon = [*SOON_SECONDS]

    async def check_version(self) -> None:
        """Warns if the version of the API server is outside the supported range. Raises as the client does."""
        found = await self._client.get_or_none("/version", type=dict[str, Any]) or {}
        self._tell("version", version_warning(str(found.get("gitVersion", ""))))

    async def check_definitions(self) -> None:
        """Compares the schemas of all shipped kinds with those of the API server. Raises as the client does."""
        documents: dict[str, Mapping[str, Schema]] = {}
        for one in shipped_schemas():
            path = f"/openapi/v3/apis/{one.group}/{one.version}"
            if path not in documents:
                documents[path] = _schemas(await self._client.get_or_none(path, type=dict[str, Any]) or {})
            installed = documents[path].get(one.kind)
            if installed is None:
                # the definition is not installed, which `feeds.py` reports, or its document cannot be read
                continue
            lacking = list(lacking_fields(one.schema, installed))
            unknown = [*lacking_fields(installed, one.schema)]
            inside = (path.split(".") for path in lacking)
            self._absent[one.group, one.plural] = frozenset(
                names[1] for names in inside if len(names) == 2 and names[0] == "status"
            )
            self._tell(one.file, definition_warning(one, lacking, unknown))

    def _tell(self, subject: str, text: str) -> None:
        """Logs a warning, unless it is equal to the last one about the subject."""
        before = self._told.get(subject, "")
        self._told[subject] = text
        if text and text != before:
            logger.warning("%s", text)
        elif before and not text:
            logger.info("resolved: %s", before)


def shipped_schemas() -> list[Shipped]:
    """Returns the schemas of the shipped definitions, one per kind and version that is served."""
    found = []
    for file, definition in definitions_by_file().items():
        spec = definition["spec"]
        names, group = spec["names"], spec["group"]
        for version in spec["versions"]:
            if version["served"]:
                schema = version["schema"]["openAPIV3Schema"]
                found.append(Shipped(group, version["name"], names["kind"], names["plural"], file, schema))
    return found


def lacking_fields(wanted: Schema, have: Schema, path: str = "") -> Iterator[str]:
    """Yields the fields of the schema `wanted` that the schema `have` lacks, such as `status.departed`.

    If a whole object is missing, only its own path is yielded. Fields of list items have the path of the list.
    """
    if "items" in wanted:
        yield from lacking_fields(wanted["items"], have.get("items") or {}, path)
        return
    if have.get("x-kubernetes-preserve-unknown-fields") or have.get("additionalProperties"):
        return
    there = have.get("properties") or {}
    for name, schema in (wanted.get("properties") or {}).items():
        if not path and name in NOT_OURS:
            continue
        inner = f"{path}.{name}" if path else name
        if name in there:
            yield from lacking_fields(schema, there[name], inner)
        else:
            yield inner


def definition_warning(shipped: Shipped, lacking: list[str], unknown: list[str]) -> str:
    """Returns the warning about one installed definition; empty if it equals the shipped definition.

    lacking: fields that the installed definition lacks. unknown: fields that only the installed definition has.
    """
    command = f"kubectl apply --server-side --force-conflicts -f crds/{shipped.file}"
    subject = f"the installed definition of {shipped.kind} ({shipped.group}/{shipped.version})"
    if lacking:
        return f"{subject} lacks fields of koordpy {koordpy.__version__}: {_listed(lacking)}: {command}"
    if unknown:
        return (
            f"{subject} has fields that koordpy {koordpy.__version__} does not know: {_listed(unknown)}: "
            f"upgrade koordpy if the definition is newer, else {command}"
        )
    return ""


def _listed(fields: list[str]) -> str:
    more = len(fields) - MOST_FIELDS
    return ", ".join(fields[:MOST_FIELDS]) + (f" and {more} more" if more > 0 else "")


def _schemas(document: Mapping[str, Any]) -> dict[str, Schema]:
    """Returns the schemas of an OpenAPI v3 document by kind."""
    found: dict[str, Schema] = {}
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        for one in schema.get("x-kubernetes-group-version-kind") or ():
            if "properties" in schema and len(schema["x-kubernetes-group-version-kind"]) == 1:
                found[str(one.get("kind"))] = schema
    return found
