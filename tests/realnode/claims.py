# SPDX-License-Identifier: Apache-2.0
"""Drivers of resource claims on real nodes: they register with kubelets, publish devices, and prepare claims.

A driver runs in the process of the test, and its sockets are files of the node. CDI makes a device node in the
container for each device, so that the container itself shows its devices. The field numbers are those of
k8s.io/kubelet pkg/apis/pluginregistration/v1 and pkg/apis/dra/v1.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
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
CHANNEL_DRIVER = "compute-domain.nvidia.com"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
_API = "/apis/resource.k8s.io/v1"
_REGISTRY, _SOCKETS = Path("/var/lib/kubelet/plugins_registry"), Path("/var/lib/kubelet/plugins")


@dataclass(frozen=True)
class Offer:
    """What a driver offers on a node, and the DeviceClass for it."""

    driver: str
    devices: Mapping[str, Json]
    """Name of a device, which is also that of its file in /dev of a container -> attributes."""
    device_class: str
    selector: str
    """Expression of the class. All devices of the driver match it."""
    extended_resource: str | None = None
    """The extended resource that the class serves; None for none."""

    def class_manifest(self) -> Json:
        """The DeviceClass."""
        spec: Json = {"selectors": [{"cel": {"expression": self.selector}}]}
        if self.extended_resource is not None:
            spec["extendedResourceName"] = self.extended_resource
        meta = {"name": self.device_class}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta, "spec": spec}


def cards(number: int) -> Offer:
    """So many devices; those with even numbers are of model a, the others of model b."""
    devices = {f"card{i}": {"model": {"string": "ab"[i % 2]}, "index": {"int": i}} for i in range(number)}
    return Offer(DRIVER, devices, CLASS, f'device.driver == "{DRIVER}"', EXTENDED)


def channels() -> Offer:
    """The channel of a ComputeDomain as NVIDIA's driver offers it: one a node."""
    selector = f'device.driver == "{CHANNEL_DRIVER}" && device.attributes["{CHANNEL_DRIVER}"].type == "channel"'
    devices = {"channel-0": {"type": {"string": "channel"}, "id": {"int": 0}}}
    return Offer(CHANNEL_DRIVER, devices, CHANNEL_CLASS, selector)


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


def channel_template(name: str) -> Json:
    """The ResourceClaimTemplate that the controller of a ComputeDomain makes, with the configuration of its driver."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": "7c1c3f0e-6d2b-4a5e-9a53-0f0c4d6c2b11",
        "allocationMode": "Single",
    }
    devices = {
        "requests": [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}],
        "config": [{"requests": ["channel"], "opaque": {"driver": CHANNEL_DRIVER, "parameters": parameters}}],
    }
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**kind, "metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


def allocated(claim: Json) -> list[str]:
    """The devices that the status of a claim allocates, sorted."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return sorted(result["device"] for result in results)


def seen_devices(work: Work, pod: str, offer: Offer) -> list[str]:
    """The devices that a container has, as its own /dev shows them, sorted."""
    return sorted(offer.devices.keys() & set(work.inside(pod, "ls", "/dev").split()))


class ClaimDriver:
    """The driver on one node."""

    def __init__(self, api: Client, node: RealNode, offer: Offer) -> None:
        self._api, self._node, self._offer, self._cdi_kind = api, node, offer, f"{offer.driver}/device"
        self._servers: list[Any] = []
        self.registered: bool | None = None
        """None until the kubelet answers the registration; False if it was rejected."""
        self.prepared: dict[str, list[str]] = {}
        """Uid of a prepared claim -> its devices."""
        self.prepared_twice: list[str] = []
        """Devices that the kubelet asked for while another claim had them."""

    async def start(self) -> None:
        """Serves, and registers; the devices are published afterwards."""
        endpoint = _SOCKETS / self._offer.driver / "dra.sock"
        calls = {
            "NodePrepareResources": self._method("PrepareRequest", "PrepareResponse", self._prepare),
            "NodeUnprepareResources": self._method("UnprepareRequest", "UnprepareResponse", self._unprepare),
        }
        await self._serve(endpoint, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", calls)

        async def info(_: Any) -> Any:
            return _MESSAGES["PluginInfo"](
                type="DRAPlugin", name=self._offer.driver, endpoint=str(endpoint), supported_versions=["v1.DRAPlugin"]
            )

        async def status(request: Any) -> Any:
            self.registered = request.plugin_registered
            return _MESSAGES["RegistrationStatusResponse"]()

        registration = {
            "GetInfo": self._method("InfoRequest", "PluginInfo", info),
            "NotifyRegistrationStatus": self._method("RegistrationStatus", "RegistrationStatusResponse", status),
        }
        await self._serve(_REGISTRY / f"{self._offer.driver}-reg.sock", "pluginregistration.Registration", registration)
        await eventually(lambda: self.registered, what=f"the kubelet of {self._node.name} registers the driver")
        await self._api.create(f"{_API}/resourceslices", self._slice())

    async def stop(self) -> None:
        """Ends the driver, and removes its devices."""
        for server in reversed(self._servers):
            await server.stop(grace=0)
        (self._root(_REGISTRY) / f"{self._offer.driver}-reg.sock").unlink(missing_ok=True)
        with contextlib.suppress(Exception):  # the kubelet may have removed it
            await self._api.delete(f"{_API}/resourceslices/{self._slice()['metadata']['name']}")

    def _root(self, path: Path) -> Path:
        return self._node.root / str(path).lstrip("/")

    def _slice(self) -> Json:
        """The ResourceSlice."""
        devices = [{"name": name, "attributes": attributes} for name, attributes in self._offer.devices.items()]
        pool = {"name": self._node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": self._offer.driver, "nodeName": self._node.name, "pool": pool, "devices": devices}
        meta = {"name": f"{self._node.name}-{self._offer.driver}"}
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
        results = found["status"]["allocation"]["devices"]["results"]
        results = [one for one in results if one["driver"] == self._offer.driver]
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
        self._cdi(claim.uid).write_text(json.dumps({"cdiVersion": "0.5.0", "kind": self._cdi_kind, "devices": edits}))
        devices = [
            _MESSAGES["Device"](
                request_names=[result["request"]],
                pool_name=result["pool"],
                device_name=result["device"],
                cdi_device_ids=[f"{self._cdi_kind}={claim.uid}-{result['device']}"],
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
        return self._node.root / f"etc/cdi/{self._offer.driver}-{uid}.json"


@contextlib.asynccontextmanager
async def driving(work: Work, nodes: Sequence[str], offer: Offer) -> AsyncIterator[dict[str, ClaimDriver]]:
    """Drivers with the same offer on nodes, by node, and the DeviceClass; all are gone afterwards."""
    drivers = {name: ClaimDriver(work.api, work.cluster.nodes[name], offer) for name in nodes}
    await work.api.create(f"{_API}/deviceclasses", offer.class_manifest())
    try:
        for driver in drivers.values():
            await driver.start()
        yield drivers
        await work.clear()
        await eventually(
            lambda: not any(driver.prepared for driver in drivers.values()),
            what="all claims are unprepared",
            within_s=60,
        )
    finally:
        for driver in drivers.values():
            await driver.stop()
        await work.api.delete(f"{_API}/deviceclasses/{offer.device_class}")
