# SPDX-License-Identifier: Apache-2.0
"""Storage objects, and what makes claims and volumes one: a volume controller and provisioner, as small as can be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.storage_objects import BIND_COMPLETED, SELECTED_NODE
from koordpy.apiserver.embedded_server import ApiServer
from tests.engine.live import pod

Manifest = dict[str, Any]
HOST = "kubernetes.io/hostname"
LOCAL = "local"
MADE = "made"


def near(*nodes: str) -> Manifest:
    """Node affinity of a volume that these nodes reach."""
    here = {"key": HOST, "operator": "In", "values": list(nodes)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}


def local_volume(name: str, *nodes: str, size: str = "10Gi", class_name: str = LOCAL) -> Manifest:
    """A volume that these nodes reach."""
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name,
        "nodeAffinity": near(*nodes),
        "local": {"path": f"/disks/{name}"},
    }
    return {"metadata": {"name": name}, "spec": spec}


@dataclass
class Storage:
    """Makes classes, claims and volumes, and looks at them."""

    server: ApiServer
    provisioning: bool = True
    binding: bool = True
    made: list[str] = field(default_factory=list)

    def classes(self) -> None:
        """`local`: volumes that are there; `made`: volumes that are made. Both wait for the first pod."""
        for name, provisioner in ((LOCAL, "kubernetes.io/no-provisioner"), (MADE, "disks.example.com")):
            self.server.store.create(
                "storageclasses.storage.k8s.io",
                {
                    "metadata": {"name": name},
                    "provisioner": provisioner,
                    "volumeBindingMode": "WaitForFirstConsumer",
                },
            )

    def volume(self, name: str, *nodes: str, size: str = "10Gi", class_name: str = LOCAL) -> None:
        self.server.store.create("persistentvolumes", local_volume(name, *nodes, size=size, class_name=class_name))
        self._status("persistentvolumes", name, "", "Available")

    def claim(self, name: str, class_name: str = LOCAL, size: str = "5Gi") -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            "resources": {"requests": {"storage": size}},
        }
        self.server.store.create(
            "persistentvolumeclaims", {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        )
        self._status("persistentvolumeclaims", name, "default", "Pending")

    def get_claim(self, name: str) -> Manifest:
        return self.server.store.get("persistentvolumeclaims", name, "default")

    def get_volume(self, name: str) -> Manifest:
        return self.server.store.get("persistentvolumes", name)

    def selected(self, name: str) -> str:
        """The node that a claim's volume is to be made for."""
        return str(self.get_claim(name)["metadata"].get("annotations", {}).get(SELECTED_NODE, ""))

    def holder(self, name: str) -> str:
        """Name of the claim that a volume is for."""
        return str((self.get_volume(name)["spec"].get("claimRef") or {}).get("name", ""))

    def take(self, volume: str, claim: str | None) -> None:
        """What another does: a volume for another claim, or for none."""
        reference = {"namespace": "default", "name": claim, "uid": "of-another"} if claim is not None else None
        self._spec("persistentvolumes", volume, "", claimRef=reference)

    def give(self, volume: str, claim: str) -> None:
        """What the volume controller does of its own: volume and claim are each other's."""
        meta = self.get_claim(claim)["metadata"]
        self._spec("persistentvolumes", volume, "", claimRef={k: meta[k] for k in ("namespace", "name", "uid")})
        self._bind(claim, volume)

    def unselect(self, name: str) -> None:
        """What a provisioner does that cannot serve the node."""

        def change(obj: Manifest) -> Manifest:
            notes = {k: v for k, v in obj["metadata"].get("annotations", {}).items() if k != SELECTED_NODE}
            return {**obj, "metadata": {**obj["metadata"], "annotations": notes}}

        self.server.store.update("persistentvolumeclaims", name, change, namespace="default")

    # -- the controller -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[None]:
        """Binds claims to the volumes whose claimRef names them, and makes volumes for nodes that were selected."""
        task = asyncio.create_task(self._control())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _control(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(0.02)

    def step(self) -> None:
        held = {
            (volume["spec"].get("claimRef") or {}).get("uid"): volume["metadata"]["name"]
            for volume in self.server.store.list("persistentvolumes")
        }
        for claim in self.server.store.list("persistentvolumeclaims"):
            meta = claim["metadata"]
            if claim["spec"].get("volumeName"):
                continue
            node = meta.get("annotations", {}).get(SELECTED_NODE)
            volume = held.get(meta["uid"])
            if volume is None and node and self.provisioning:
                volume = f"for-{meta['name']}"
                self.volume(volume, node, class_name=MADE)
                self._spec("persistentvolumes", volume, "", claimRef={k: meta[k] for k in ("namespace", "name", "uid")})
                self.made.append(volume)
            if volume is not None and self.binding:
                self._bind(meta["name"], volume)

    def _bind(self, claim: str, volume: str) -> None:
        def change(obj: Manifest) -> Manifest:
            notes = {**obj["metadata"].get("annotations", {}), BIND_COMPLETED: "yes"}
            spec = {**obj["spec"], "volumeName": volume}
            return {**obj, "metadata": {**obj["metadata"], "annotations": notes}, "spec": spec}

        self.server.store.update("persistentvolumeclaims", claim, change, namespace="default")
        self._status("persistentvolumeclaims", claim, "default", "Bound")
        self._status("persistentvolumes", volume, "", "Bound")

    def _spec(self, plural: str, name: str, namespace: str, **changes: Any) -> None:
        self.server.store.update(
            plural, name, lambda obj: {**obj, "spec": {**obj["spec"], **changes}}, namespace=namespace
        )

    def _status(self, plural: str, name: str, namespace: str, phase: str) -> None:
        self.server.store.update(
            plural, name, lambda obj: {**obj, "status": {"phase": phase}}, namespace=namespace, status=True
        )


def hold_writes(writer: Any) -> asyncio.Event:
    """Patches of a writer of claims wait for the event."""
    patch, event = writer._client.patch, asyncio.Event()

    async def held(path: str, body: Any, **options: Any) -> Any:
        if "claims" in path or "volumes" in path:
            await event.wait()
        return await patch(path, body, **options)

    writer._client.patch = held
    return event


def pod_with(name: str, *claims: str, **options: Any) -> Manifest:
    """A pod that mounts claims."""
    return mounting(pod(name, **{"gpus": 0, "cpu": "1", "memory": "1Gi", **options}), *claims)


def mounting(manifest: Manifest, *claims: str) -> Manifest:
    """The pod with claims to mount."""
    manifest["spec"]["volumes"] = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    return manifest
