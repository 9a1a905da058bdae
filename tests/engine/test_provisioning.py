# SPDX-License-Identifier: Apache-2.0
"""ProvisioningRequests against an API server: created, followed, given up, deleted; nothing twice (repair.md 3)."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from koordpy.api import keys
from koordpy.api.times import rfc3339
from koordpy.config.node_failures import Autoscaling, Provisioning
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from tests.engine.live import QUICK, Live, gang, in_virtual_time, live, small, until
from tests.engine.test_degraded_gangs import figures
from tests.engine.test_unreadable import DEFINITIONS, LOOSE
from tests.engine.virtual import Wire

REQUESTS, TEMPLATES = "provisioningrequests.autoscaling.x-k8s.io", "podtemplates"
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


def settings(**changes: Any) -> EngineSettings:
    own = Provisioning(**{"mode": "all", "after": 5.0, **changes})
    config = msgspec.structs.replace(QUICK.config, autoscaling=Autoscaling(provisioning=own))
    return replace(QUICK, config=config)


def serve(cluster: Live, own: EngineSettings) -> None:
    """Serves ProvisioningRequests, as with cluster-autoscaler's definition; the planner gets the settings."""
    versions = [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": LOOSE},
            "subresources": {"status": {}},
        }
    ]
    names = {"plural": "provisioningrequests", "kind": "ProvisioningRequest"}
    spec = {"group": keys.GROUP_AUTOSCALING, "names": names, "scope": "Namespaced", "versions": versions}
    cluster.server.store.create(DEFINITIONS, {"metadata": {"name": REQUESTS}, "spec": spec})
    cluster.planner.config = own.config


def requests(cluster: Live) -> dict[str, dict[str, Any]]:
    return {obj["metadata"]["name"]: obj for obj in cluster.server.store.list(REQUESTS)}


def templates(cluster: Live) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in cluster.server.store.list(TEMPLATES))


def answer(cluster: Live, scheduler: Scheduler, name: str, *conditions: tuple[str, str]) -> None:
    """What cluster-autoscaler writes: (type, reason) of True conditions."""
    at = rfc3339(scheduler.context.now())

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        made = [
            {"type": type, "status": "True", "reason": reason, "message": "no quota", "lastTransitionTime": at}
            for type, reason in conditions
        ]
        return {**obj, "status": {"conditions": made}}

    cluster.server.store.update(REQUESTS, name, change, namespace="default", status=True)


def told(cluster: Live, reason: str) -> list[str]:
    return [one["message"] for one in cluster.events() if one["reason"] == reason]


@in_virtual_time
async def test_a_gang_asks_once_follows_its_request_and_uses_the_nodes() -> None:
    own = settings()
    async with live([small("n1")]) as cluster:
        serve(cluster, own)
        async with cluster.running(own) as scheduler:
            cluster.create(*gang("g", 3, gpus=4))
            await until(lambda: cluster.condition("g-0").get("reason") == "WaitingForProvisioning")
            assert not requests(cluster)
            await until(lambda: list(requests(cluster)) == ["koordpy-g-1"])
            made = requests(cluster)["koordpy-g-1"]
            assert made["metadata"]["annotations"] == {
                keys.PROVISIONING_FOR: "default/g",
                keys.PROVISIONING_ATTEMPT: "1",
            }
            assert [one["kind"] for one in made["metadata"]["ownerReferences"]] == ["PodGroup"]
            assert made["spec"] == {
                "provisioningClassName": CLASS,
                "parameters": {},
                "podSets": [{"podTemplateRef": {"name": "koordpy-g-1-0"}, "count": 3}],
            }
            template = cluster.server.store.get(TEMPLATES, "koordpy-g-1-0", "default")["template"]
            assert template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
            assert "nodeName" not in template["spec"]
            await until(lambda: len(told(cluster, "ProvisioningRequested")) == 1)
            await until(lambda: figures(scheduler, "koordpy_provisioning_requests")['{state="Open"}'] == 1.0)
            await asyncio.sleep(30)
            assert len(requests(cluster)) == 1
            cluster.nodes(small("n2"), small("n3"))
            answer(cluster, scheduler, "koordpy-g-1", ("Provisioned", "CapacityIsProvisioned"))
            await until(lambda: cluster.bound("g-0", "g-1", "g-2"))
            await until(lambda: not requests(cluster) and not templates(cluster))
            await until(lambda: figures(scheduler, "koordpy_provisioning_total") == {'{outcome="used"}': 1.0})


@in_virtual_time
async def test_bindings_name_a_provisioned_request() -> None:
    own = settings()
    async with live([small("n1")]) as cluster:
        serve(cluster, own)
        async with cluster.running(own) as scheduler:
            cluster.create(*gang("g", 2, gpus=4))
            await until(lambda: bool(requests(cluster)))
            answer(cluster, scheduler, "koordpy-g-1", ("Provisioned", "CapacityIsProvisioned"))
            await until(lambda: bool(told(cluster, "Provisioned")))
            cluster.nodes(small("n2"))
            await until(lambda: cluster.bound("g-0", "g-1"))
            for pod in cluster.pods().values():
                notes = pod["metadata"]["annotations"]
                assert (notes[keys.CONSUMES_REQUEST], notes[keys.CONSUMES_CLASS]) == ("koordpy-g-1", CLASS)


@in_virtual_time
async def test_failed_requests_are_repeated_after_a_pause_and_given_up() -> None:
    own = settings(retries=1, backoff=20.0, max_backoff=60.0)
    async with live([small("n1")]) as cluster:
        serve(cluster, own)
        async with cluster.running(own) as scheduler:
            cluster.create(*gang("g", 2, gpus=4))
            await until(lambda: bool(requests(cluster)))
            answer(cluster, scheduler, "koordpy-g-1", ("Failed", "CapacityIsNotFound"))
            await until(lambda: told(cluster, "ProvisioningFailed") == ["koordpy-g-1: CapacityIsNotFound: no quota"])
            await asyncio.sleep(10)
            assert list(requests(cluster)) == ["koordpy-g-1"]
            await until(lambda: list(requests(cluster)) == ["koordpy-g-2"])
            assert templates(cluster) == ["koordpy-g-2-0"]
            answer(cluster, scheduler, "koordpy-g-2", ("Failed", "CapacityIsNotFound"))
            await until(lambda: cluster.condition("g-0").get("reason") == "ProvisioningFailed")
            await asyncio.sleep(120)
            assert list(requests(cluster)) == ["koordpy-g-2"]
            await until(lambda: figures(scheduler, "koordpy_provisioning_total") == {'{outcome="failed"}': 2.0})


@in_virtual_time
async def test_requests_end_with_their_gang_and_foreign_ones_are_left_alone() -> None:
    own = settings()
    async with live([small("n1")]) as cluster:
        serve(cluster, own)
        foreign = {"metadata": {"name": "koordpy-other-1", "namespace": "default"}, "spec": {"podSets": []}}
        cluster.server.store.create(REQUESTS, foreign)
        async with cluster.running(own) as scheduler:
            cluster.create(*gang("g", 2, gpus=4))
            await until(lambda: "koordpy-g-1" in requests(cluster))
            for name in ("g-0", "g-1"):
                cluster.delete(name)
            await until(lambda: list(requests(cluster)) == ["koordpy-other-1"])
            await until(lambda: figures(scheduler, "koordpy_provisioning_total") == {'{outcome="dropped"}': 1.0})
            cluster.create(*gang("other", 2, gpus=4))
            await until(lambda: cluster.condition("other-0").get("reason") == "WaitingForProvisioning")
            await asyncio.sleep(20)
            assert list(requests(cluster)) == ["koordpy-other-1"]


@in_virtual_time
async def test_at_most_max_open_requests_are_open() -> None:
    own = settings(max_open=1)
    async with live([small("n1")]) as cluster:
        serve(cluster, own)
        async with cluster.running(own) as scheduler:
            cluster.create(*gang("g", 2, gpus=4), *gang("h", 2, gpus=3))
            await until(lambda: bool(requests(cluster)))
            await asyncio.sleep(20)
            assert len(requests(cluster)) == 1
            assert figures(scheduler, "koordpy_provisioning_requests")['{state="Queued"}'] == 1.0
            assert cluster.condition("h-0")["reason"] == "WaitingForProvisioning"


@in_virtual_time
async def test_without_the_api_gangs_are_unschedulable() -> None:
    own = settings()
    async with live([small("n1")]) as cluster:
        cluster.planner.config = own.config
        async with cluster.running(own):
            cluster.create(*gang("g", 2, gpus=4))
            await until(lambda: cluster.condition("g-0").get("reason") == "Unschedulable")


class FailingWrites(Wire):
    """Lets every second write of requests and templates fail, before or after it took effect."""

    count = 0

    async def request(self, method: str, path: str, **options: Any) -> Any:
        concerned = method in ("POST", "DELETE") and ("podtemplates" in path or "provisioningrequests" in path)
        self.count += concerned
        if concerned and self.count % 4 == 1:
            raise ApiError(500, "InternalError", "on purpose")
        answer = await super().request(method, path, **options)
        if concerned and self.count % 4 == 3:
            raise Unreachable("the reply was lost")
        return answer


@in_virtual_time
async def test_failing_writes_create_nothing_twice() -> None:
    own = settings(retries=2, backoff=10.0)
    async with live([small("n1")]) as cluster:
        serve(cluster, own)
        client: ApiClient = FailingWrites(cluster.server)
        async with cluster.running(own, client=client) as scheduler:
            cluster.create(*gang("g", 2, gpus=4))
            await until(lambda: list(requests(cluster)) == ["koordpy-g-1"])
            await asyncio.sleep(20)
            answer(cluster, scheduler, "koordpy-g-1", ("Failed", "CapacityIsNotFound"))
            await until(lambda: list(requests(cluster)) == ["koordpy-g-2"])
            await asyncio.sleep(30)
            assert (list(requests(cluster)), templates(cluster)) == (["koordpy-g-2"], ["koordpy-g-2-0"])
            for name in ("g-0", "g-1"):
                cluster.delete(name)
            await until(lambda: not requests(cluster))


STATES = {
    "open": (),
    "provisioned": (("Provisioned", "CapacityIsProvisioned"),),
    "failed": (("Failed", "CapacityIsNotFound"),),
}


@pytest.mark.parametrize("state", STATES)
def test_a_new_leader_continues_in_every_state(state: str) -> None:
    @in_virtual_time
    async def go() -> None:
        own = settings(backoff=60.0)
        async with live([small("n1")]) as cluster:
            serve(cluster, own)
            async with cluster.running(own) as first:
                cluster.create(*gang("g", 2, gpus=4))
                await until(lambda: list(requests(cluster)) == ["koordpy-g-1"])
                answer(cluster, first, "koordpy-g-1", *STATES[state])
                await asyncio.sleep(2)
            uid = requests(cluster)["koordpy-g-1"]["metadata"]["uid"]
            async with cluster.running(own) as second:
                await until(lambda: bool(second._loop.rounds))
                await asyncio.sleep(20)
                assert {name: one["metadata"]["uid"] for name, one in requests(cluster).items()} == {"koordpy-g-1": uid}
                assert cluster.condition("g-0")["reason"] == "WaitingForProvisioning"
                if state == "failed":
                    await until(lambda: list(requests(cluster)) == ["koordpy-g-2"])
                cluster.nodes(small("n2"))
                await until(lambda: cluster.bound("g-0", "g-1"))
                await until(lambda: not requests(cluster))

    go()
