# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation on a real API server with the real claim controller; drivers are the tests' own words.

Claims are allocated and reserved before the Binding, and taken back where the pod is not bound after all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.engine.binding.claim_calls import FINALIZER
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.gang_api import kubernetes_version, minor_of
from tests.e2e.process import Process, eventually, koordpy_run
from tests.e2e.recording import Instead, Recorder
from tests.e2e.test_scheduler import places
from tests.loudly import skip_loudly

Json = dict[str, Any]
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
DRIVER = "gpu.example.com"
pytestmark = pytest.mark.controllers


async def offer(api: Client, node: str, *devices: str) -> None:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    memory = {"memory": {"value": "80Gi"}}
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": pool,
        "devices": [{"name": one, "capacity": memory} for one in devices],
    }
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"of-{node}"}}
    await api.create(f"{API}/resourceslices", {**body, "spec": spec})


async def claim(api: Client, name: str, count: int = 1) -> None:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    exactly = {"deviceClassName": "gpu", "count": count}
    await api.create(CLAIMS, {**body, "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}})


def using(name: str, claim: str = "", *, template: str = "", cpu: str = "1") -> Json:
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    spec = {"resourceClaims": [{"name": "devices", **source}]}
    return pod_manifest(name, scheduler=keys.DEFAULT_SCHEDULER_NAME, requests={"cpu": cpu}, spec=spec)


async def status(api: Client, name: str) -> tuple[list[str], list[str]]:
    """(devices of the allocation, names of the pods it is reserved for)."""
    found = (await api.get(f"{CLAIMS}/{name}")).get("status") or {}
    results = ((found.get("allocation") or {}).get("devices") or {}).get("results") or []
    return sorted(one["device"] for one in results), sorted(one["name"] for one in found.get("reservedFor") or [])


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    """Two nodes; n1 has two devices, n2 one."""
    async with plane.client() as client:
        await client.apply_crds(CRDS)
        await client.make_nodes(2, name=lambda i: f"n{i + 1}")
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
        await client.create(f"{API}/deviceclasses", {**body, "spec": spec})
        await offer(client, "n1", "a", "b")
        await offer(client, "n2", "c")
        yield client
        await client.clear()
        for path in (CLAIMS, TEMPLATES, f"{API}/resourceslices", f"{API}/deviceclasses"):
            await client.delete(path)

        async def gone() -> bool:
            return not await client.items(CLAIMS)

        # the claim controller takes allocations and finalizers back once nobody uses them
        await eventually(gone, what="claims gone", processes=plane.processes)


@pytest.fixture
def optional_features(request: pytest.FixtureRequest, assets: Path) -> None:
    """Skips on versions where these gates are off by default: extended resources, shares, binding conditions."""
    version = kubernetes_version(assets)
    if minor_of(version) < (1, 36):
        skip_loudly(request, request.node.name, f"Kubernetes {version} has the feature off (docs/compatibility.md)")


@pytest.fixture
async def koordpy(plane: ControlPlane, recorder: Recorder, tmp_path: Path) -> AsyncIterator[Process]:
    kubeconfig = recorder.kubeconfig(tmp_path, plane.admin_token)
    flags = ("--no-leader-elect", "--bind-address", "127.0.0.1:0")
    with koordpy_run(*flags, kubeconfig=kubeconfig, folder=tmp_path) as process:
        yield process


async def bound(api: Client, *names: str, by: Process) -> dict[str, str]:
    async def all_of_them() -> bool:
        return set(names) <= set(await places(api))

    await eventually(all_of_them, what=f"{', '.join(names)} bound", processes=[by])
    return await places(api)


async def test_a_claim_is_allocated_and_reserved_before_the_binding(
    api: Client, recorder: Recorder, koordpy: Process
) -> None:
    await claim(api, "two", 2)
    await api.create(pods_path(), using("p", "two"))
    assert await bound(api, "p", by=koordpy) == {"p": "n1"}
    assert await status(api, "two") == (["a", "b"], ["p"])
    found = await api.get(f"{CLAIMS}/two")
    assert FINALIZER in found["metadata"]["finalizers"]
    written = [call.resource for call in recorder.calls if call.resource in ("resourceclaims/status", "pods/binding")]
    assert written == ["resourceclaims/status", "pods/binding"]
    await api.create(pods_path(), using("q", "two"))
    assert (await bound(api, "q", by=koordpy))["q"] == "n1"
    assert await status(api, "two") == (["a", "b"], ["p", "q"])


async def test_claims_that_their_controller_makes_from_a_template_are_allocated(api: Client, koordpy: Process) -> None:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one"}}
    exactly = {"deviceClassName": "gpu", "count": 1}
    await api.create(
        TEMPLATES, {**body, "spec": {"spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}}}
    )
    for i in range(4):
        await api.create(pods_path(), using(f"p-{i}", template="one"))

    async def three() -> bool:
        return len(await places(api)) == 3

    await eventually(three, what="three of four bound", processes=[koordpy])
    given = [device for one in await api.items(CLAIMS) for device in (await status(api, one["metadata"]["name"]))[0]]
    assert sorted(given) == ["a", "b", "c"]
    (left,) = {f"p-{i}" for i in range(4)} - set(await places(api))

    async def told() -> bool:
        found = condition(await api.get(f"{pods_path()}/{left}"), "PodScheduled")
        return found is not None and "2 cannot allocate all claims" in found["message"]

    await eventually(told, what="the fourth told", processes=[koordpy])
    # the pod goes, its claim with it, and the device is the fourth pod's
    await api.delete(f"{pods_path()}/{next(iter(await places(api)))}")
    await bound(api, left, by=koordpy)


async def test_the_claim_of_a_pod_that_goes_at_its_binding_is_free_for_the_next(
    api: Client, recorder: Recorder, koordpy: Process
) -> None:
    async def gone(method: str, path: str) -> None:
        if path.endswith("/pods/p/binding"):
            devices, users = await status(api, "data")
            assert len(devices) == 1 and users == ["p"]
            await api.delete(f"{pods_path()}/p")

    recorder.meddle = gone
    await claim(api, "data")
    await api.create(pods_path(), using("p", "data"))

    async def free() -> bool:
        if [call for call in recorder.calls if call.resource == "pods/binding"]:
            found = await api.get(f"{CLAIMS}/data")
            return await status(api, "data") == ([], []) and FINALIZER not in found["metadata"].get("finalizers", [])
        return False

    # by the scheduler or by the claim controller, whoever is first
    await eventually(free, what="the claim free", processes=[koordpy])
    await api.create(pods_path(), using("q", "data"))
    await bound(api, "q", by=koordpy)
    assert (await status(api, "data"))[1] == ["q"]


async def test_a_binding_that_is_refused_for_good_frees_the_claim_for_another_node(
    api: Client, recorder: Recorder, koordpy: Process
) -> None:
    """The node of the first try is closed with the refusal: the claim must not tie the pod to it."""
    refused: list[str] = []

    async def refuse(method: str, path: str) -> Instead | None:
        if path.endswith("/pods/p/binding") and not refused:
            refused.append(path)
            (device,), _ = await status(api, "data")
            node = {"a": "n1", "b": "n1", "c": "n2"}[device]
            await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
            refused.append(node)
            return Instead(403)
        return None

    recorder.meddle = refuse
    await claim(api, "data")
    await api.create(pods_path(), using("p", "data"))
    found = await bound(api, "p", by=koordpy)
    assert found["p"] != refused[1]
    assert (await status(api, "data"))[1] == ["p"]


@pytest.mark.parametrize("cut", ["before the claim", "after the claim"])
async def test_a_scheduler_killed_among_its_writes_leaves_nothing_that_the_next_cannot_finish(
    cut: str, api: Client, plane: ControlPlane, recorder: Recorder, tmp_path: Path
) -> None:
    """kill -9 at the write of a claim or at the Binding after it, and the node is closed before the next one starts."""
    await claim(api, "data")
    kubeconfig = recorder.kubeconfig(tmp_path, plane.admin_token)
    flags = ("--no-leader-elect", "--bind-address", "127.0.0.1:0")
    first = koordpy_run(*flags, kubeconfig=kubeconfig, folder=tmp_path, name="first").start()
    at = "/resourceclaims/data/status" if cut == "before the claim" else "/pods/p/binding"
    dead: list[str] = []

    async def kill(method: str, path: str) -> Instead | None:
        if path.endswith(at) and not dead:
            first.kill()
            dead.append(path)
            return Instead(500, carried_out=cut == "before the claim")
        return None

    recorder.meddle = kill
    await api.create(pods_path(), using("p", "data"))
    await eventually(lambda: bool(dead), what="the first scheduler killed")
    recorder.meddle = None

    async def allocated() -> bool:
        return bool((await status(api, "data"))[0])

    await eventually(allocated, what="the claim allocated by the dead one")
    assert await places(api) == {}
    (device,), _ = await status(api, "data")
    await api.patch(f"/api/v1/nodes/{'n2' if device == 'c' else 'n1'}", {"spec": {"unschedulable": True}})
    with koordpy_run(*flags, kubeconfig=kubeconfig, folder=tmp_path, name="second") as second:
        found = await bound(api, "p", by=second)
    assert found["p"] == ("n1" if device == "c" else "n2")
    devices, users = await status(api, "data")
    assert users == ["p"] and devices[0] in {"n1": "ab", "n2": "c"}[found["p"]]


# -- extended resources, conditions and shares -------------------------------------------------------------------------

CARD = "example.com/card"
TIME = "2026-01-01T00:00:00Z"


async def map_cards(api: Client) -> None:
    await api.patch(f"{API}/deviceclasses/gpu", {"spec": {"extendedResourceName": CARD}})


def carded(name: str, count: int) -> Json:
    return pod_manifest(name, scheduler=keys.DEFAULT_SCHEDULER_NAME, requests={"cpu": "1", CARD: str(count)})


@pytest.mark.usefixtures("optional_features")
async def test_extended_resources_are_served_by_devices_as_the_kubelet_expects(
    api: Client, recorder: Recorder, koordpy: Process
) -> None:
    await map_cards(api)
    for name, count in (("p", 2), ("q", 1)):
        await api.create(pods_path(), carded(name, count))
    assert await bound(api, "p", "q", by=koordpy) == {"p": "n1", "q": "n2"}
    claims = {one["metadata"]["ownerReferences"][0]["name"]: one for one in await api.items(CLAIMS)}
    assert sorted(claims) == ["p", "q"]
    for name, found in claims.items():
        pod = await api.get(f"{pods_path()}/{name}")
        meta = found["metadata"]
        assert meta["name"].startswith(f"{name}-extended-resources-") and meta["finalizers"] == [FINALIZER]
        assert meta["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
        assert pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == meta["name"]
        (mapping,) = pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
        assert mapping["resourceName"] == CARD
        assert mapping["requestName"] == found["spec"]["devices"]["requests"][0]["name"]
    assert await status(api, claims["p"]["metadata"]["name"]) == (["a", "b"], ["p"])
    paths = [call.path for call in recorder.calls if call.path.endswith(("/pods/p/status", "/pods/p/binding"))]
    assert [path.rpartition("/")[2] for path in paths] == ["status", "binding"]
    # the pods go, their claims with them, and the devices are free
    await api.delete(f"{pods_path()}/p")
    await api.create(pods_path(), carded("r", 2))
    assert (await bound(api, "r", by=koordpy))["r"] == "n1"


@pytest.mark.usefixtures("optional_features")
async def test_a_refused_binding_deletes_the_claim_for_extended_resources(
    api: Client, recorder: Recorder, koordpy: Process
) -> None:
    refused: list[str] = []

    async def refuse(method: str, path: str) -> Instead | None:
        if path.endswith("/pods/p/binding") and not refused:
            refused.extend(one["metadata"]["name"] for one in await api.items(CLAIMS))
            return Instead(403)
        return None

    recorder.meddle = refuse
    await map_cards(api)
    await api.create(pods_path(), carded("p", 1))
    await bound(api, "p", by=koordpy)
    (found,) = await api.items(CLAIMS)
    assert len(refused) == 1 and found["metadata"]["name"] != refused[0]
    pod = await api.get(f"{pods_path()}/p")
    assert pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == found["metadata"]["name"]


@pytest.mark.usefixtures("optional_features")
async def test_devices_with_conditions_are_waited_for_and_shares_have_ids(api: Client, koordpy: Process) -> None:
    for name in ("of-n1", "of-n2"):
        await api.delete(f"{API}/resourceslices/{name}")
    policy = {"default": "20Gi", "validRange": {"min": "10Gi"}}
    shared = {
        "name": "shared",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}},
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"],
    }
    spec = {
        "driver": DRIVER,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 2, "resourceSliceCount": 1},
        "devices": [shared],
    }
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "shared"}}
    await api.create(f"{API}/resourceslices", {**body, "spec": spec})
    await claim(api, "c")
    await api.create(pods_path(), using("p", "c"))

    async def reserved() -> bool:
        return (await status(api, "c"))[1] == ["p"]

    await eventually(reserved, what="the claim reserved", processes=[koordpy])
    assert await places(api) == {}
    found = (await api.get(f"{CLAIMS}/c"))["status"]["allocation"]
    (result,) = found["devices"]["results"]
    assert result["shareID"] and result["consumedCapacity"] == {"memory": "20Gi"}
    assert result["bindingConditions"] == ["ready"] and found["allocationTimestamp"]
    told = {"type": "ready", "status": "True", "reason": "Attached", "message": "", "lastTransitionTime": TIME}
    device = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    await api.patch(f"{CLAIMS}/c/status", {"status": {"devices": [{**device, "conditions": [told]}]}})
    await bound(api, "p", by=koordpy)
