# SPDX-License-Identifier: Apache-2.0
"""The kinds of scheduling.x-k8s.io, served beside ours: koordpy reads both and brings the definition of one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.e2e.client import DEFINITIONS, Client, condition, manifests_of
from tests.e2e.conftest import CRDS
from tests.e2e.installed import SIGS, X
from tests.e2e.process import eventually

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def served(api: Client, *plurals: str) -> AsyncIterator[None]:
    """Within it, the definitions of these plurals, in the schema of ours."""
    ours = {manifest["metadata"]["name"]: manifest for manifest in manifests_of(CRDS)}
    paths = []
    try:
        for plural in plurals:
            name = f"{plural}.{X}"
            if name in ours:
                continue
            one = ours[f"{plural}.{SIGS}"]
            paths.append(f"{DEFINITIONS}/{name}")
            meta = {"name": name, **_kept(one)}
            await api.apply(paths[-1], {**one, "metadata": meta, "spec": {**one["spec"], "group": X}})

        async def established() -> bool:
            found = [condition(await api.get(path), "Established") for path in paths]
            return all(one is not None and one["status"] == "True" for one in found)

        await eventually(established, what=f"{', '.join(plurals)} of {X} served")
        yield
    finally:
        for path in paths:
            await api.remove_definition(path.rsplit("/", 1)[1])


def _kept(definition: Json) -> Json:
    """Metadata that groups of Kubernetes' own community must have: the approval of their API."""
    notes = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return {"annotations": {**(definition["metadata"].get("annotations") or {}), **notes}}
