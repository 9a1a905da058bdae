# SPDX-License-Identifier: Apache-2.0
"""ProvisioningRequests of gangs on a real API server: created, followed, given up, deleted. koordpy is killed, or its
leader changes, while one gang is in each state; nothing is created twice (repair.md 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.acts import KILLED, LEADER_CHANGED, ONE_GPU, Koordpy
from tests.e2e.client import Client, Json, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import on_node
from tests.e2e.process import always, eventually
from tests.e2e.provisioning import LONG_AGO, REQUESTS, TEMPLATES, Autoscaler
from tests.e2e.test_preemption import EVENTS
from tests.e2e.test_scheduler import GROUPS

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
FOR = "tests/for"
CONFIG = """
autoscaling:
  provisioning:
    {mode: all, after: 1s, maxOpen: 1, retries: 1, backoff: 1h, maxBackoff: 1h, bookingTime: 1h,
     parameters: {ValidUntilSeconds: "60"}}
"""
MEMBERS = 2


class Cloud:
    """Gangs of two members, each with nodes that no other gang can use."""

    def __init__(self, api: Client, koordpy: Koordpy, autoscaler: Autoscaler) -> None:
        self.api, self.koordpy, self.autoscaler = api, koordpy, autoscaler

    async def gang(self, name: str) -> None:
        kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
        await self.api.create(GROUPS, {**kind, "metadata": {"name": name}, "spec": {"minMember": MEMBERS}})
        for index in range(MEMBERS):
            member = pod_manifest(
                f"{name}-{index}",
                scheduler=keys.DEFAULT_SCHEDULER_NAME,
                requests={"nvidia.com/gpu": "1"},
                labels={keys.LABEL_POD_GROUP: name},
                spec={"nodeSelector": {FOR: name}},
            )
            await self.api.create(pods_path(), member)

    async def nodes(self, name: str) -> None:
        """The nodes of a gang are there."""
        await self.api.make_nodes(
            MEMBERS, name=lambda i: f"{name}-{i}", labels=lambda _: {FOR: name}, allocatable=ONE_GPU
        )

    async def pods(self, name: str) -> list[Json]:
        return [pod for pod in await self.api.items(pods_path()) if pod["spec"]["nodeSelector"][FOR] == name]

    async def until(self, what: str, true: object) -> None:
        await eventually(true, what=what, within_s=60, processes=[self.koordpy.leader])  # type: ignore[call-overload]
        self.autoscaler.must_watch()

    async def requested(self, name: str) -> None:
        async def there() -> bool:
            return name in await self.autoscaler.uids()

        await self.until(f"ProvisioningRequest {name}", there)

    async def gone(self, name: str) -> None:
        async def not_there() -> bool:
            templates = {one for one in await self.autoscaler.templates() if one.startswith(f"{name}-")}
            return name not in await self.autoscaler.uids() and not templates

        await self.until(f"ProvisioningRequest {name} and its templates are gone", not_there)

    async def reason(self, name: str, reason: str) -> None:
        """Waits until all pods of a gang have the reason."""

        async def told() -> bool:
            said = [(condition(pod, "PodScheduled") or {}).get("reason") for pod in await self.pods(name)]
            return said == [reason] * MEMBERS

        await self.until(f"{name} is {reason}", told)

    async def event(self, name: str, reason: str, note: str) -> None:
        async def told() -> bool:
            return any(
                (one["regarding"]["name"], one["reason"]) == (name, reason) and note in one["note"]
                for one in await self.api.items(EVENTS)
            )

        await self.until(f"event {reason} on {name}: {note}", told)

    async def bound(self, name: str) -> None:
        async def so() -> bool:
            return all(map(on_node, await self.pods(name)))

        await self.until(f"{name} is bound", so)


@pytest.fixture
async def cloud(
    request: pytest.FixtureRequest, api: Client, plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[Cloud]:
    """Parameter: what becomes of koordpy in the middle."""
    await api.apply_crds(CRDS)
    async with Autoscaler(api) as autoscaler:
        koordpy = Koordpy(plane, tmp_path, request.param, CONFIG)
        try:
            yield Cloud(api, koordpy, autoscaler)
        finally:
            await koordpy.stop()
            for path in (pods_path(), GROUPS, EVENTS):
                await api.delete(path)


@pytest.mark.parametrize("cloud", [KILLED, LEADER_CHANGED], indirect=True)
async def test_each_gang_follows_its_request_through_a_change_of_the_leader(cloud: Cloud) -> None:
    autoscaler = cloud.autoscaler
    foreign = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": {"name": "foreign"}}
    sets = [{"count": 1, "podTemplateRef": {"name": "another"}}]
    await cloud.api.create(REQUESTS, {**foreign, "spec": {"provisioningClassName": CLASS, "podSets": sets}})
    # one gang in each state
    await cloud.gang("provisioned")
    await cloud.requested("koordpy-provisioned-1")
    await autoscaler.answer("koordpy-provisioned-1", "Provisioned", "CapacityIsProvisioned")
    await cloud.event("provisioned", "Provisioned", "the nodes of koordpy-provisioned-1 are there")
    await cloud.gang("backoff")
    await cloud.requested("koordpy-backoff-1")
    await autoscaler.answer("koordpy-backoff-1", "Failed", "CapacityIsNotFound")
    await cloud.event("backoff", "ProvisioningFailed", "koordpy-backoff-1: CapacityIsNotFound: told by the test")
    await cloud.gang("givenup")
    await cloud.requested("koordpy-givenup-1")
    await autoscaler.answer("koordpy-givenup-1", "Failed", "CapacityIsNotFound", ago=LONG_AGO)
    await cloud.requested("koordpy-givenup-2")
    await cloud.gone("koordpy-givenup-1")
    await autoscaler.answer("koordpy-givenup-2", "Failed", "CapacityIsNotFound")
    await cloud.reason("givenup", "ProvisioningFailed")
    await cloud.gang("open")
    await cloud.requested("koordpy-open-1")
    await cloud.gang("queued")
    for name in ("provisioned", "backoff", "open", "queued"):
        await cloud.reason(name, "WaitingForProvisioning")
    made = await cloud.api.get(f"{REQUESTS}/koordpy-open-1")
    assert [one["kind"] for one in made["metadata"]["ownerReferences"]] == ["PodGroup"]
    assert made["spec"] == {
        "provisioningClassName": CLASS,
        "parameters": {"ValidUntilSeconds": "60"},
        "podSets": [{"count": MEMBERS, "podTemplateRef": {"name": "koordpy-open-1-0"}}],
    }
    template = (await cloud.api.get(f"{TEMPLATES}/koordpy-open-1-0"))["template"]
    assert template["spec"]["nodeSelector"] == {FOR: "open"} and "nodeName" not in template["spec"]
    before = await autoscaler.uids()
    await cloud.koordpy.ready()
    await cloud.koordpy.strike()

    async def unchanged() -> bool:
        return await autoscaler.uids() == before

    await always(unchanged, what="the new leader keeps every request", for_s=4, processes=[cloud.koordpy.leader])
    # and each gang goes on from its state
    await cloud.nodes("provisioned")
    await cloud.bound("provisioned")
    for pod in await cloud.pods("provisioned"):
        notes = pod["metadata"]["annotations"]
        assert (notes[keys.CONSUMES_REQUEST], notes[keys.CONSUMES_CLASS]) == ("koordpy-provisioned-1", CLASS)
    await cloud.gone("koordpy-provisioned-1")
    await cloud.reason("givenup", "ProvisioningFailed")
    for index in range(MEMBERS):
        await cloud.api.delete(f"{pods_path()}/givenup-{index}")
    await cloud.gone("koordpy-givenup-2")
    await autoscaler.answer("koordpy-open-1", "Failed", "CapacityIsNotFound")
    await cloud.event("open", "ProvisioningFailed", "koordpy-open-1: CapacityIsNotFound: told by the test")
    await cloud.requested("koordpy-queued-1")
    await cloud.nodes("queued")
    await cloud.bound("queued")
    await cloud.gone("koordpy-queued-1")
    await autoscaler.answer("koordpy-backoff-1", "Failed", "CapacityIsNotFound", ago=LONG_AGO)
    await cloud.requested("koordpy-backoff-2")
    await cloud.gone("koordpy-backoff-1")
    await autoscaler.answer("koordpy-backoff-2", "Provisioned", "CapacityIsProvisioned")
    await cloud.event("backoff", "Provisioned", "the nodes of koordpy-backoff-2 are there")
    await autoscaler.answer("koordpy-backoff-2", "CapacityRevoked", "CapacityRevoked")
    await cloud.reason("backoff", "ProvisioningFailed")
    assert set(await autoscaler.uids()) == {"foreign", "koordpy-open-1", "koordpy-backoff-2"}
    twice = {name: number for name, number in autoscaler.created.items() if number > 1}
    assert not twice
    assert len(autoscaler.created) == 1 + 2 * 7, "the foreign one, and seven with one template each"
