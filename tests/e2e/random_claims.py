# SPDX-License-Identifier: Apache-2.0
"""Random slices, classes, taint rules and claims for the differential test: what DynamicResources looks at.

Every cluster has pools of single nodes, and often a pool that several nodes reach, an incomplete one, counters that
devices share, devices with several allocations, and taints. Claims have counts, all devices, admin access,
alternatives, constraints, tolerations and capacities; some pods request devices by an extended resource.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

from tests.e2e.client import Client, Refused
from tests.e2e.random_pods import PLAIN

RESOURCE = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
EXTENDED = "example.com/gpu"
OWN = f'device.attributes["{DRIVER}"]'
CLASSES: dict[str, Any] = {
    "claims-gpu": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    "claims-big": {"selectors": [{"cel": {"expression": f'{OWN}.?model.orValue("") == "big"'}}]},
    "claims-any": {"extendedResourceName": EXTENDED},
}
SELECTORS = [
    f'{OWN}.model == "big"',
    f'{OWN}.model in ["big", "small"]',
    f"{OWN}.index < 2",
    f"{OWN}.?absent.orValue(1) == 1",
]
Json = dict[str, Any]


async def clear(api: Client) -> None:
    """Removes what a cluster leaves."""
    for item in await api.items(f"{RESOURCE}/resourceclaims"):
        path = f"{RESOURCE}/namespaces/{item['metadata']['namespace']}/resourceclaims/{item['metadata']['name']}"
        with contextlib.suppress(Refused):
            if item["metadata"].get("finalizers"):
                await api.patch(path, {"metadata": {"finalizers": None}})
            await api.delete(path)
    for kind in ("resourceslices", "devicetaintrules", "deviceclasses"):
        for item in await api.items(f"{RESOURCE}/{kind}"):
            with contextlib.suppress(Refused):
                await api.delete(f"{RESOURCE}/{kind}/{item['metadata']['name']}")


class ClaimMaker:
    """Devices and claims of one cluster of nodes n0 ... n(count-1), the same for the same seed."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng, self.count = random.Random(seed), count

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    def nodes(self) -> list[tuple[Json, Json]]:
        """Returns (labels, extended resources by device plugins) of each node."""
        return [({}, {})] * self.count

    def classes(self) -> Json:
        """Returns name -> spec of the DeviceClasses."""
        return CLASSES

    async def make(self, api: Client, claims: int) -> None:
        """Creates classes, slices, taint rules, and a number of claims c0, c1, ... of namespace default."""
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await api.patch("/api/v1/namespaces/default", {"metadata": {"labels": labels}})
        for name, spec in self.classes().items():
            await api.create(f"{RESOURCE}/deviceclasses", self._object("DeviceClass", name, spec))
        for i in range(self.count):
            await self._pool(api, f"n{i}", {"nodeName": f"n{i}"})
        if self.chance(0.4):
            where = self.rng.choice([{"allNodes": True}, {"nodeSelector": self._names()}])
            await self._pool(api, "network", where)
        if self.chance(0.3):
            selector = self.rng.choice([{"driver": DRIVER, "pool": "n0"}, {"device": "d0"}])
            taint = {"key": "sick", "value": "yes", "effect": self.rng.choice(["NoSchedule", "NoExecute", "None"])}
            rule = self._object("DeviceTaintRule", "rule", {"deviceSelector": selector, "taint": taint})
            await api.create(f"{RESOURCE}/devicetaintrules", rule)
        for i in range(claims):
            body = self._object("ResourceClaim", f"c{i}", {"devices": self._devices(last=i % 2 == 1)})
            await api.create(f"{RESOURCE}/namespaces/default/resourceclaims", body)

    def _object(self, kind: str, name: str, spec: Json) -> Json:
        return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}

    def _names(self) -> Json:
        values = [f"n{self.rng.randrange(self.count)}"]
        return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": values}]}]}

    async def _pool(self, api: Client, name: str, where: Json) -> None:
        devices = [self._device(i) for i in range(self.rng.randint(1, 4))]
        slices = 2 if self.chance(0.2) else 1
        pool = {"name": name, "generation": 1, "resourceSliceCount": slices}
        spec = {"driver": DRIVER, "pool": pool, **where}
        if slices == 2 and self.chance(0.7):
            counters = {"memory": {"value": "4"}}
            for device in devices:
                use = {"memory": {"value": str(self.rng.choice([1, 2, 4]))}}
                device["consumesCounters"] = [{"counterSet": "card", "counters": use}]
            shared = {**spec, "sharedCounters": [{"name": "card", "counters": counters}]}
            await api.create(f"{RESOURCE}/resourceslices", self._object("ResourceSlice", f"{name}-a", shared))
        await api.create(
            f"{RESOURCE}/resourceslices", self._object("ResourceSlice", f"{name}-b", {**spec, "devices": devices})
        )

    def _device(self, number: int) -> Json:
        attributes: Json = {"index": {"int": number}, "numa": {"int": number % 2}}
        if self.chance(0.9):
            attributes["model"] = {"string": self.rng.choice(["big", "small"])}
        device: Json = {"name": f"d{number}", "attributes": attributes}
        if self.chance(0.7):
            device["capacity"] = {"memory": {"value": self.rng.choice(["40Gi", "80Gi"])}}
            if self.chance(0.3):
                device["allowMultipleAllocations"] = True
                policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi", "max": "40Gi"}}
                device["capacity"]["memory"]["requestPolicy"] = policy
        if self.chance(0.15):
            device["taints"] = [{"key": "sick", "value": "yes", "effect": "NoSchedule"}]
        return device

    def _exact(self) -> Json:
        exact: Json = {
            "deviceClassName": self.rng.choice(
                ["claims-gpu", "claims-gpu", "claims-big", "claims-any", "gone"][: 5 if self.chance(0.1) else 4]
            )
        }
        if self.chance(0.4):
            exact["selectors"] = [{"cel": {"expression": self.rng.choice(SELECTORS)}}]
        if self.chance(0.15):
            exact["allocationMode"] = "All"
        elif self.chance(0.5):
            exact["count"] = self.rng.choice([1, 2, 2, 3])
        if self.chance(0.2):
            exact["tolerations"] = [{"key": "sick", "operator": "Exists"}]
        if self.chance(0.15):
            exact["capacity"] = {"requests": {"memory": self.rng.choice(["15Gi", "40Gi", "90Gi"])}}
        return exact

    def _devices(self, *, last: bool) -> Json:
        """last: no pod has a claim after this one. Admin access only comes last in a pod: for kube-scheduler it blocks
        later requests of the pod, for koordpy it blocks none (docs/rules/dra.md 2)."""
        requests: list[Json] = []
        number = self.rng.choice([1, 1, 2])
        for i in range(number):
            if self.chance(0.2):
                subs = [{"name": f"s{k}", **self._exact()} for k in range(2)]
                requests.append({"name": f"r{i}", "firstAvailable": subs})
            else:
                admin = {"adminAccess": True} if last and i == number - 1 and self.chance(0.4) else {}
                requests.append({"name": f"r{i}", "exactly": {**self._exact(), **admin}})
        devices: Json = {"requests": requests}
        if self.chance(0.25):
            kind = self.rng.choice(["matchAttribute", "distinctAttribute"])
            devices["constraints"] = [{kind: f"{DRIVER}/{self.rng.choice(['model', 'numa', 'index'])}"}]
        return devices

    def pod(self, name: str, number: int) -> Json:
        """Returns a pod with the claims c(2 * number) and the next one, or with an extended resource."""
        spec: Json = {"schedulerName": PLAIN, "terminationGracePeriodSeconds": 0}
        container: Json = {"name": "main", "image": "img", "resources": {"requests": {"cpu": "100m"}}}
        if self.chance(0.25):
            amount = {EXTENDED: str(self.rng.choice([1, 1, 2]))}
            container["resources"] = {"requests": {"cpu": "100m", **amount}, "limits": amount}
            if self.chance(0.4):
                more = {EXTENDED: str(self.rng.choice([1, 2, 3]))}
                spec["initContainers"] = [
                    {"name": "init", "image": "img", "resources": {"requests": more, "limits": more}}
                ]
        else:
            names = [f"c{2 * number}", f"c{2 * number + 1}"][: self.rng.choice([1, 1, 2])]
            spec["resourceClaims"] = [{"name": f"e{i}", "resourceClaimName": one} for i, one in enumerate(names)]
        spec["containers"] = [container]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


class GroupMaker(ClaimMaker):
    """PodGroups with resource claims, and their pods, on the devices of a `ClaimMaker`."""

    async def templates(self, api: Client, count: int) -> None:
        """Creates a number of ResourceClaimTemplates t0, t1, ..."""
        for i in range(count):
            body = self._object("ResourceClaimTemplate", f"t{i}", {"spec": {"devices": self._devices(last=False)}})
            await api.create(f"{RESOURCE}/namespaces/default/resourceclaimtemplates", body)

    def group(self, name: str, number: int) -> Json:
        """Returns the spec of a PodGroup: a gang, or pods that start alone, with one or two claims by name or template.

        The claims by name are c(2 * number) and the next one.
        """
        entries: list[Json] = [self._entry(f"e{i}", number, i) for i in range(self.rng.choice([1, 1, 2]))]
        size = self.rng.choice([1, 2, 2, 3])
        least = size if self.chance(0.7) else max(1, size - 1)
        policy: Json = {"gang": {"minCount": least}} if self.chance(0.6) else {"basic": {}}
        return {"name": name, "size": size, "spec": {"schedulingPolicy": policy, "resourceClaims": entries}}

    def _entry(self, name: str, number: int, i: int) -> Json:
        if self.chance(0.5):
            return {"name": name, "resourceClaimName": f"c{2 * number + i}"}
        return {"name": name, "resourceClaimTemplateName": f"t{2 * number + i}"}

    def members(self, group: Json) -> list[Json]:
        """Returns the pods of a group. Most have all of its entries; some lack one, or have another claim beside them.

        An entry of a pod that differs from the group's entry of that name means a claim of the pod alone. Admin access
        comes last in a pod (`_devices`).
        """
        out = []
        for i in range(group["size"]):
            entries: list[Json] = [dict(one) for one in group["spec"]["resourceClaims"] if self.chance(0.9)]
            if self.chance(0.15):
                entries.insert(0, {"name": "own", "resourceClaimTemplateName": "own"})
            if entries and self.chance(0.08):
                entries[0] = {"name": entries[0]["name"], "resourceClaimTemplateName": "own"}
            cpu = self.rng.choice(["100m", "100m", "3"])
            container = {"name": "main", "image": "img", "resources": {"requests": {"cpu": cpu}}}
            spec: Json = {
                "schedulerName": PLAIN,
                "terminationGracePeriodSeconds": 0,
                "schedulingGroup": {"podGroupName": group["name"]},
                "resourceClaims": entries,
                "containers": [container],
            }
            meta = {"name": f"{group['name']}-{i}", "namespace": "default"}
            out.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        return out


async def devices_of(api: Client, pod: Json) -> list[tuple[str, str, str, str]]:
    """Returns (request, driver, pool, device) of the claims of a bound pod, in order."""
    names = [one["resourceClaimName"] for one in pod["spec"].get("resourceClaims", [])]
    if implicit := pod["status"].get("extendedResourceClaimStatus"):
        names.append(implicit["resourceClaimName"])
    out: list[tuple[str, str, str, str]] = []
    for name in names:
        claim = await api.get(f"{RESOURCE}/namespaces/default/resourceclaims/{name}")
        results = claim["status"]["allocation"]["devices"]["results"]
        out += [(one["request"], one["driver"], one["pool"], one["device"]) for one in results]
    return out
