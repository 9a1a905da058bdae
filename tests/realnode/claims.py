# SPDX-License-Identifier: Apache-2.0
"""A driver of resource claims on a real node: it registers with the kubelet, publishes devices, and prepares claims.

The driver runs in the process of the test, and its sockets are files of the node. CDI makes a device node in the
container for each device, so that the container itself shows its devices. The field numbers are those of
k8s.io/kubelet pkg/apis/pluginregistration/v1 and pkg/apis/dra/v1.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from koordpy.agent.plugin.kubelet_messages import Field, message_classes
from tests.e2e.client import Client, Json
from tests.e2e.process import eventually
from tests.realnode.node import RealNode
from tests.realnode.work import Work

DRIVER = "devices.test"
CLASS = "tested"
EXTENDED = "devices.test/card"
"""The extended resource that the DeviceClass serves."""
_API = "/apis/resource.k8s.io/v1"
_CDI_KIND = f"{DRIVER}/device"
_REGISTRY, _SOCKETS = Path("/var/lib/kubelet/plugins_registry"), Path("/var/lib/kubelet/plugins")
_DEVICE_NODE = "card"
"""Prefix of the device nodes in a container."""

_REGISTRATION: Mapping[str, tuple[Field, ...]] = {
    "InfoRequest": (),
    "PluginInfo": (
        ("type", 1, "string"),
        ("name", 2, "string"),
        ("endpoint", 3, "string"),
        ("supported_versions", 4, "*string"),
    ),
    "RegistrationStatus": (("plugin_registered", 1, "bool"), ("error", 2, "string")),
    "RegistrationStatusResponse": (),
}
# A map is, by the protocol, a repeated message with the fields key and value.
_PLUGIN: Mapping[str, tuple[Field, ...]] = {
    "Claim": (("namespace", 1, "string"), ("uid", 2, "string"), ("name", 3, "string")),
    "Device": (
        ("request_names", 1, "*string"),
        ("pool_name", 2, "string"),
        ("device_name", 3, "string"),
        ("cdi_device_ids", 4, "*string"),
    ),
    "Prepared": (("devices", 1, "*Device"), ("error", 2, "string")),
    "PreparedEntry": (("key", 1, "string"), ("value", 2, "Prepared")),
    "PrepareRequest": (("claims", 1, "*Claim"),),
    "PrepareResponse": (("claims", 1, "*PreparedEntry"),),
    "Unprepared": (("error", 1, "string"),),
    "UnpreparedEntry": (("key", 1, "string"), ("value", 2, "Unprepared")),
    "UnprepareRequest": (("claims", 1, "*Claim"),),
    "UnprepareResponse": (("claims", 1, "*UnpreparedEntry"),),
}
_MESSAGES = {**message_classes("pluginregistration", _REGISTRATION), **message_classes("dra", _PLUGIN)}


def device_class() -> Json:
    """The DeviceClass of all devices of the driver."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    spec = {"selectors": [selector], "extendedResourceName": EXTENDED}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": spec}


def claim_spec(count: int, selector: str = "") -> Json:
    """The spec of a claim for so many devices. selector: an expression over `device.attributes`."""
    exactly: Json = {"deviceClassName": CLASS, "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"devices": {"requests": [{"name": "cards", "exactly": exactly}]}}


def claim(name: str, count: int, selector: str = "") -> Json:
    """A ResourceClaim."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return {**kind, "metadata": {"name": name}, "spec": claim_spec(count, selector)}


def claim_template(name: str, count: int, selector: str = "") -> Json:
    """A ResourceClaimTemplate."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**kind, "metadata": {"name": name}, "spec": {"spec": claim_spec(count, selector)}}


def allocated(claim: Json) -> list[str]:
    """The devices that the status of a claim allocates, sorted."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return sorted(result["device"] for result in results)


def seen_devices(work: Work, pod: str) -> list[str]:
    """The devices that a container has, as its own /dev shows them, sorted."""
    return sorted(name for name in work.inside(pod, "ls", "/dev").split() if name.startswith(_DEVICE_NODE))


class ClaimDriver:
    """The driver on one node."""

    def __init__(self, api: Client, node: RealNode, devices: int) -> None:
        self._api, self._node = api, node
        self._names = [f"{_DEVICE_NODE}{number}" for number in range(devices)]
        self._servers: list[Any] = []
        self.registered: bool | None = None
        """None until the kubelet answers the registration; False if it was rejected."""
        self.prepared: dict[str, list[str]] = {}
        """Uid of a prepared claim -> its devices."""
        self.prepared_twice: list[str] = []
        """Devices that the kubelet asked for while another claim had them."""

    async def start(self) -> None:
        """Serves, and registers; the devices are published afterwards."""
        endpoint = _SOCKETS / DRIVER / "dra.sock"
        calls = {
            "NodePrepareResources": self._method("PrepareRequest", "PrepareResponse", self._prepare),
            "NodeUnprepareResources": self._method("UnprepareRequest", "UnprepareResponse", self._unprepare),
        }
        await self._serve(endpoint, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", calls)

        async def info(_: Any) -> Any:
            return _MESSAGES["PluginInfo"](
                type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=["v1.DRAPlugin"]
            )

        async def status(request: Any) -> Any:
            self.registered = request.plugin_registered
            return _MESSAGES["RegistrationStatusResponse"]()

        registration = {
            "GetInfo": self._method("InfoRequest", "PluginInfo", info),
            "NotifyRegistrationStatus": self._method("RegistrationStatus", "RegistrationStatusResponse", status),
        }
        await self._serve(_REGISTRY / f"{DRIVER}-reg.sock", "pluginregistration.Registration", registration)
        await eventually(lambda: self.registered, what=f"the kubelet of {self._node.name} registers the driver")
        await self._api.create(f"{_API}/resourceslices", self._slice())

    async def stop(self) -> None:
        """Ends the driver, and removes its devices."""
        for server in reversed(self._servers):
            await server.stop(grace=0)
        (self._root(_REGISTRY) / f"{DRIVER}-reg.sock").unlink(missing_ok=True)
        with contextlib.suppress(Exception):  # the kubelet may have removed it
            await self._api.delete(f"{_API}/resourceslices/{self._slice()['metadata']['name']}")

    def _root(self, path: Path) -> Path:
        return self._node.root / str(path).lstrip("/")

    def _slice(self) -> Json:
        """The ResourceSlice: devices with even numbers are of model a, the others of model b."""
        devices = [
            {"name": name, "attributes": {"model": {"string": "ab"[number % 2]}, "index": {"int": number}}}
            for number, name in enumerate(self._names)
        ]
        pool = {"name": self._node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self._node.name, "pool": pool, "devices": devices}
        meta = {"name": f"{self._node.name}-{DRIVER}"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}

    # -- gRPC ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _method(request: str, response: str, answer: Callable[[Any], Any]) -> Any:
        async def called(message: Any, _: Any) -> Any:
            return await answer(message)

        return grpc.unary_unary_rpc_method_handler(
            called,
            request_deserializer=_MESSAGES[request].FromString,
            response_serializer=_MESSAGES[response].SerializeToString,
        )

    async def _serve(self, socket: Path, service: str, methods: Mapping[str, Any]) -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
        file = self._root(socket)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{file}")
        await server.start()
        self._servers.append(server)

    async def _prepare(self, request: Any) -> Any:
        """Answers NodePrepareResources: writes the CDI devices of each claim."""
        return _MESSAGES["PrepareResponse"](claims=[await self._prepare_claim(claim) for claim in request.claims])

    async def _prepare_claim(self, claim: Any) -> Any:
        found = await self._api.get(f"{_API}/namespaces/{claim.namespace}/resourceclaims/{claim.name}")
        assert found["metadata"]["uid"] == claim.uid
        results = [one for one in found["status"]["allocation"]["devices"]["results"] if one["driver"] == DRIVER]
        names = [one["device"] for one in results]
        held = {name for uid, own in self.prepared.items() if uid != claim.uid for name in own}
        self.prepared_twice += sorted(held & set(names))
        self.prepared[claim.uid] = names
        edits = [
            {
                "name": f"{claim.uid}-{name}",
                "containerEdits": {"deviceNodes": [{"path": f"/dev/{name}", "hostPath": "/dev/null"}]},
            }
            for name in names
        ]
        self._cdi(claim.uid).write_text(json.dumps({"cdiVersion": "0.5.0", "kind": _CDI_KIND, "devices": edits}))
        devices = [
            _MESSAGES["Device"](
                request_names=[result["request"]],
                pool_name=result["pool"],
                device_name=result["device"],
                cdi_device_ids=[f"{_CDI_KIND}={claim.uid}-{result['device']}"],
            )
            for result in results
        ]
        return _MESSAGES["PreparedEntry"](key=claim.uid, value=_MESSAGES["Prepared"](devices=devices))

    async def _unprepare(self, request: Any) -> Any:
        """Answers NodeUnprepareResources."""
        for claim in request.claims:
            self.prepared.pop(claim.uid, None)
            self._cdi(claim.uid).unlink(missing_ok=True)
        entries = [
            _MESSAGES["UnpreparedEntry"](key=claim.uid, value=_MESSAGES["Unprepared"]()) for claim in request.claims
        ]
        return _MESSAGES["UnprepareResponse"](claims=entries)

    def _cdi(self, uid: str) -> Path:
        """The CDI file of a claim."""
        return self._node.root / f"etc/cdi/{DRIVER}-{uid}.json"


@contextlib.asynccontextmanager
async def driving(work: Work, node: str, *, devices: int) -> AsyncIterator[ClaimDriver]:
    """A driver with so many devices on a node, and the DeviceClass; both are gone afterwards."""
    driver = ClaimDriver(work.api, work.cluster.nodes[node], devices)
    await work.api.create(f"{_API}/deviceclasses", device_class())
    try:
        await driver.start()
        yield driver
        await work.clear()
        await eventually(lambda: not driver.prepared, what="all claims are unprepared", within_s=60)
    finally:
        await driver.stop()
        await work.api.delete(f"{_API}/deviceclasses/{CLASS}")
