# SPDX-License-Identifier: Apache-2.0
"""Whom the webhook of ElasticQuotas counts as pods of a quota (quota-fairness.md 1)."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta, Pod
from koordpy.devices.family_registry import make_state
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_replies import Page
from koordpy.engine.watching.feeds import Feeds
from koordpy.operator.quota_hook import QuotaHook
from koordpy.workloads.volcano_gangs import VolcanoGroup
from koordpy.workloads.workload_manifest import Head
from tests.scenarios.quotas import quota

TEAM = quota("team", 1, 9)


@pytest.mark.parametrize(
    ("labels", "notes"),
    [
        ({keys.QUOTA_NAME: "team"}, {}),
        ({}, {keys.VOLCANO_GROUPS[0]: "g"}),  # by the queue of its PodGroup of Volcano
    ],
)
async def test_a_quota_with_pods_is_not_deleted(labels: dict[str, str], notes: dict[str, str]) -> None:
    state = make_state()
    state.upsert(TEAM)
    state.put_volcano_group("default/g", VolcanoGroup(cast(Head, None), 1, {}, None, {}, queue="team"))
    pod = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="p", labels=labels, annotations=notes))

    async def list_page(path: str, **_: Any) -> Page[Any]:
        return Page(items=[TEAM])

    feeds = SimpleNamespace(state=state, objects=lambda resource: [pod])
    hook = QuotaHook(cast(ApiClient, SimpleNamespace(list_page=list_page)), cast(Feeds, feeds), asyncio.Event())
    request = {"uid": "u", "operation": "DELETE", "namespace": "default", "oldObject": msgspec.to_builtins(TEAM)}
    response = (await hook.answer(json.dumps({"request": request}).encode()))["response"]
    assert not response["allowed"] and response["status"]["message"] == "quota team has pods (1)"
