# SPDX-License-Identifier: Apache-2.0
"""Random claims, volumes, disks and devices for the differential test: what VolumeBinding and its kin look at."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from tests.e2e.client import Client, Refused
from tests.e2e.process import eventually

Json = dict[str, Any]

STORAGE = "/apis/storage.k8s.io/v1"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
DEVICE_CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
LIMITED, MEASURED = "limited.example.com", "measured.example.com"
GPU_DRIVER = "gpu.example.com"
ZONE = "topology.kubernetes.io/zone"
WAIT = {"volumeBindingMode": "WaitForFirstConsumer"}
NO_PROVISIONER = "kubernetes.io/no-provisioner"
CLASSES: dict[str, Json] = {
    "local": {"provisioner": NO_PROVISIONER, **WAIT},
    "immediate": {"provisioner": NO_PROVISIONER, "volumeBindingMode": "Immediate"},
    "limited": {"provisioner": LIMITED, **WAIT},
    "zonal": {
        "provisioner": "zonal.example.com",
        **WAIT,
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
    },
    "measured": {"provisioner": MEASURED, **WAIT},
}
PROVISIONED = ("zonal", "measured")
"""Classes, and claims of them by the same name, whose volumes are to be made; nobody does."""
DEVICE_CLASSES = {"gpu": f"device.driver == '{GPU_DRIVER}'", "any": None}
SELECTORS = [
    f"device.attributes['{GPU_DRIVER}'].model == 'big'",
    f"device.attributes['{GPU_DRIVER}'].model in ['big', 'small'] && device.attributes['{GPU_DRIVER}'].index < 2",
    f"device.attributes['{GPU_DRIVER}'].healthy",
    f"!device.attributes['{GPU_DRIVER}'].healthy || device.attributes['{GPU_DRIVER}'].index > 0",
    f"device.capacity['{GPU_DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0",
    f"device.attributes['{GPU_DRIVER}'].absent == 1",
    f"'healthy' in device.attributes['{GPU_DRIVER}'] && device.attributes['{GPU_DRIVER}'].healthy",
    "device.attributes['other.example.com'].model != 'big'",
    "device.driver != 'x' && true",
]


async def make_fixed(api: Client) -> None:
    """What is the same in every cluster: classes of storage and of devices, drivers."""

    async def make(path: str, kind: str, name: str, body: Json) -> None:
        with contextlib.suppress(Refused):  # there already
            await api.create(path, {"kind": kind, "metadata": {"name": name}, **body})

    for name, body in CLASSES.items():
        await make(f"{STORAGE}/storageclasses", "StorageClass", name, body)
    driver = {"attachRequired": False, "storageCapacity": True}
    await make(f"{STORAGE}/csidrivers", "CSIDriver", MEASURED, {"spec": driver})
    await make(f"{STORAGE}/csidrivers", "CSIDriver", LIMITED, {"spec": {"attachRequired": True}})
    for name, expression in DEVICE_CLASSES.items():
        spec = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
        await make(f"{RESOURCE}/deviceclasses", "DeviceClass", name, {"spec": spec})


async def clear(api: Client) -> None:
    """Takes away what `make` and the pods left behind; pods must be gone."""
    for path in (CLAIMS, VOLUMES):
        for item in await api.items(path):
            await _remove(api, f"{path}/{item['metadata']['name']}")
    for path in (DEVICE_CLAIMS, f"{RESOURCE}/resourceslices", f"{STORAGE}/csinodes", f"{STORAGE}/volumeattachments"):
        for item in await api.items(path):
            await _remove(api, f"{path}/{item['metadata']['name']}")
    await api.delete(f"{STORAGE}/namespaces/default/csistoragecapacities")


async def _remove(api: Client, path: str) -> None:
    """Deletes an object, and lets it go: a controller would put a finalizer back that is taken away before."""
    await api.delete(path)
    with contextlib.suppress(Refused):
        await api.patch(path, {"metadata": {"finalizers": None}})


class VolumeMaker:
    """Claims and devices of one cluster of nodes n0 ... n(count-1), the same for the same `rng`."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng, self.count = rng, count

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    async def make(self, api: Client) -> None:
        """Objects of storage and devices, with every claim that has its volume bound to it."""
        for i in range(self.count):
            if self.chance(0.6):
                drivers = [{"name": LIMITED, "nodeID": f"n{i}", "allocatable": {"count": self.rng.choice([0, 1, 2])}}]
                if self.chance(0.5):
                    drivers.append({"name": MEASURED, "nodeID": f"n{i}"})
                body = {"kind": "CSINode", "metadata": {"name": f"n{i}"}, "spec": {"drivers": drivers}}
                await api.create(f"{STORAGE}/csinodes", body)
        for i, size in enumerate(self.rng.sample(["1Gi", "2Gi", "5Gi", "10Gi"], 3)):
            where = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [self._node()]}]
            await self._volume(api, f"local-{i}", size, "local", {"local": {"path": "/x"}}, where)
        bound = []
        for i in range(4):
            source = {"csi": {"driver": LIMITED, "volumeHandle": f"h{i // 2}"}}
            where = [{"key": "zone", "operator": "In", "values": ["a", "b"]}] if self.chance(0.3) else None
            labels = {ZONE: self.rng.choice(["a", "b", "a__c"])} if self.chance(0.5) else {}
            name = f"bound-{i}"
            modes = ["ReadWriteOncePod"] if i == 0 else ["ReadWriteOnce"]
            await self._volume(api, name, "1Gi", "limited", source, where, labels=labels, claim=name, modes=modes)
            await self._claim(api, name, "1Gi", "limited", volume=name, modes=modes)
            bound.append(name)
        for i in range(3):
            await self._claim(api, f"wait-{i}", self.rng.choice(["1Gi", "4Gi", "8Gi"]), "local")
        for name in PROVISIONED:
            await self._claim(api, name, self.rng.choice(["1Gi", "20Gi"]), name)
        await self._claim(api, "immediate", "1Gi", "immediate")
        await self._claim(api, "lost", "1Gi", "limited", volume="gone")
        capacity = {
            "storageClassName": "measured",
            "nodeTopology": {"matchLabels": {"zone": self.rng.choice(["a", "b"])}},
            "capacity": "10Gi",
            **({"maximumVolumeSize": self.rng.choice(["512Mi", "30Gi"])} if self.chance(0.3) else {}),
        }
        body = {"kind": "CSIStorageCapacity", "metadata": {"name": "room"}, **capacity}
        await api.create(f"{STORAGE}/namespaces/default/csistoragecapacities", body)
        await self._devices(api)

        async def settled() -> bool:
            phases = {c["metadata"]["name"]: c["status"].get("phase") for c in await api.items(CLAIMS)}
            return all(phases[name] == "Bound" for name in bound)

        await eventually(settled, what="claims are bound to their volumes", every_s=0.05)

    async def renew(self, api: Client, claims: set[str]) -> None:
        """Makes claims of PROVISIONED anew: one that a node was chosen for would stay tied to it."""
        for name in sorted(claims):
            await _remove(api, f"{CLAIMS}/{name}")
            await self._claim(api, name, self.rng.choice(["1Gi", "20Gi"]), name)

    def _node(self) -> str:
        return f"n{self.rng.randrange(self.count)}"

    async def _volume(
        self,
        api: Client,
        name: str,
        size: str,
        storage_class: str,
        source: Json,
        where: list[Json] | None,
        *,
        labels: Json | None = None,
        claim: str = "",
        modes: list[str] | None = None,
    ) -> None:
        spec: Json = {
            "capacity": {"storage": size},
            "accessModes": modes or ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
            **source,
        }
        if where:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": where}]}}
        if claim:
            spec["claimRef"] = {"namespace": "default", "name": claim}
        meta = {"name": name, "labels": labels or {}}
        await api.create(VOLUMES, {"kind": "PersistentVolume", "metadata": meta, "spec": spec})

    async def _claim(
        self,
        api: Client,
        name: str,
        size: str,
        storage_class: str,
        *,
        volume: str = "",
        modes: list[str] | None = None,
    ) -> None:
        spec: Json = {
            "accessModes": modes or ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
            **({"volumeName": volume} if volume else {}),
        }
        await api.create(CLAIMS, {"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})

    async def _devices(self, api: Client) -> None:
        for i in range(self.count):
            if not self.chance(0.7):
                continue
            devices = [self._device(number) for number in range(self.rng.randint(1, 3))]
            pool = {"name": f"n{i}", "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": GPU_DRIVER, "nodeName": f"n{i}", "pool": pool, "devices": devices}
            body = {"kind": "ResourceSlice", "metadata": {"name": f"n{i}-gpus"}, "spec": spec}
            await api.create(f"{RESOURCE}/resourceslices", body)
        for i in range(8):
            requests = [self._request(number) for number in range(self.rng.choice([1, 1, 2]))]
            body = {"kind": "ResourceClaim", "metadata": {"name": f"devices-{i}"}}
            await api.create(DEVICE_CLAIMS, {**body, "spec": {"devices": {"requests": requests}}})

    def _device(self, number: int) -> Json:
        attributes: Json = {"model": {"string": self.rng.choice(["big", "small"])}, "index": {"int": number}}
        if self.chance(0.7):
            attributes["healthy"] = {"bool": self.chance(0.7)}
        capacity = {"memory": {"value": self.rng.choice(["16Gi", "40Gi", "80Gi"])}}
        return {"name": f"gpu-{number}", "attributes": attributes, "capacity": capacity}

    def _request(self, number: int) -> Json:
        exact: Json = {"deviceClassName": self.rng.choice(["gpu", "gpu", "any", "nowhere"])}
        if self.chance(0.4):
            exact["count"] = self.rng.choice([1, 2, 3])
        if self.chance(0.6):
            exact["selectors"] = [{"cel": {"expression": self.rng.choice(SELECTORS)}}]
        return {"name": f"r{number}", "exactly": exact}

    def give(self, pod: Json) -> None:
        """Puts claims, disks or devices on some pods; claims are of namespace default."""
        spec = pod["spec"]
        volumes: list[Json] = []
        if pod["metadata"]["namespace"] == "default" and self.chance(0.4):
            names = [*(f"bound-{i}" for i in range(4)), *(f"wait-{i}" for i in range(3))]
            names += ["zonal", "measured", "immediate", "lost", "nowhere"]
            for claim in self.rng.sample(names, self.rng.choice([1, 1, 2])):
                volumes.append({"name": f"v{len(volumes)}", "persistentVolumeClaim": {"claimName": claim}})
        if self.chance(0.15):
            volumes.append({"name": f"v{len(volumes)}", **self._disk()})
        if self.chance(0.03):
            template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
            volumes.append({"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}})
        if volumes:
            spec["volumes"] = volumes
        if pod["metadata"]["namespace"] == "default" and self.chance(0.3):
            names = self.rng.sample([f"devices-{i}" for i in range(8)], self.rng.choice([1, 1, 2]))
            spec["resourceClaims"] = [{"name": f"c{i}", "resourceClaimName": name} for i, name in enumerate(names)]

    def _disk(self) -> Json:
        number = self.rng.randint(0, 1)
        read_only = self.chance(0.5)
        return self.rng.choice(
            [
                {"gcePersistentDisk": {"pdName": f"pd{number}", "readOnly": read_only}},
                {"awsElasticBlockStore": {"volumeID": f"vol{number}", "readOnly": read_only}},
                {"iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": f"iqn.2001-04.com.example:{number}", "lun": 0,
                           "readOnly": read_only}},
                {"rbd": {"monitors": ["10.0.0.1", f"10.0.0.{number + 2}"], "image": "i", "pool": "p",
                         "readOnly": read_only}},
            ]
        )  # fmt: skip
