# SPDX-License-Identifier: Apache-2.0
"""Random devices and claims with the rarer fields of the API, on top of those of `random_claims`.

A cluster also has one pool of a second driver. Its slices may have several generations, devices with nodes of their
own, devices that bind to a node, a missing slice, a device name twice, an unknown counter set, or binding conditions of
a device that nothing gets, because kube-scheduler would wait for them. Claims also have
parameters of drivers, constraints over named requests, versions, fractions of capacities, and pods of different ages
share them. Pods request several extended resources, in containers, init containers and sidecars; some nodes serve them
by a device plugin.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from tests.e2e.client import Client
from tests.e2e.random_claims import CLASSES, DRIVER, EXTENDED, OWN, RESOURCE, ClaimMaker

OTHER = "card.example.com"
BY_CLASS = "deviceclass.resource.kubernetes.io/claims-gpu"
NAMED = f'device.attributes["{OTHER}"]'
SELECTORS = [
    f'device.driver == "{OTHER}"',
    f'device.driver != "{OTHER}" || {NAMED}.release.isGreaterThan(semver("1.2.0"))',
    f"{NAMED}.?ecc.orValue(false) || device.allowMultipleAllocations",
    f'{OWN}.?model.orValue("small") != "big"',
    f'device.capacity["{OTHER}"].?cores.hasValue()',
    '!("rack.example.com" in device.attributes) || device.attributes["rack.example.com"].row == 1',
    f'device.capacity["{OTHER}"].cores.compareTo(quantity("2")) >= 0',
]
ATTRIBUTES = [f"{OTHER}/release", f"{OTHER}/ecc", "rack.example.com/row", f"{DRIVER}/numa", f"{OTHER}/release"]
Json = dict[str, Any]


def _opaque(driver: str, text: str) -> Json:
    return {"opaque": {"driver": driver, "parameters": {"apiVersion": "v1", "kind": "Any", "text": text}}}


class VariedMaker(ClaimMaker):
    """Draws what it adds from a generator of its own, so that the rest is that of `ClaimMaker`."""

    def __init__(self, seed: int, count: int) -> None:
        super().__init__(seed, count)
        self.more = random.Random(f"varied {seed}")
        self.binding = random.Random(f"binding {seed}").random() < 0.2
        """True for a device with binding conditions, and a taint that no claim tolerates."""

    def also(self, part: float) -> bool:
        return self.more.random() < part

    def nodes(self) -> list[tuple[Json, Json]]:
        return [
            ({"zone": self.more.choice("ab")}, {EXTENDED: "2"} if self.also(0.2) else {}) for _ in range(self.count)
        ]

    def classes(self) -> Json:
        found = copy.deepcopy(CLASSES)
        if self.also(0.5):
            found["claims-gpu"]["config"] = [_opaque(DRIVER, "class")]
        if self.also(0.3):
            found["claims-any"]["config"] = [_opaque(DRIVER, "any"), _opaque(OTHER, "any")]
        if self.also(0.2):
            found["claims-also"] = {"extendedResourceName": EXTENDED, "selectors": found["claims-gpu"]["selectors"]}
        found["claims-card"] = {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]}
        if self.also(0.5):
            found["claims-card"]["extendedResourceName"] = "example.com/card"
        return found

    async def make(self, api: Client, claims: int) -> None:
        await super().make(api, claims)
        await self._cards(api)
        if self.also(0.2):
            taint = {"key": "worn", "value": "yes", "effect": self.more.choice(["NoSchedule", "None"])}
            selector = self.more.choice([{"driver": OTHER}, {"pool": "cards", "device": "c1"}, {"driver": "none"}])
            rule = self._object("DeviceTaintRule", "rule2", {"deviceSelector": selector, "taint": taint})
            await api.create(f"{RESOURCE}/devicetaintrules", rule)

    async def _cards(self, api: Client) -> None:
        """Creates the pool of the second driver."""
        where = self._where()
        number = self.more.randint(1, 3)
        counted = self.also(0.3)
        stated = number + counted + (1 if self.also(0.12) else 0)
        pool = {"name": "cards", "generation": 2, "resourceSliceCount": stated}
        spec: Json = {"driver": OTHER, "pool": pool, **where}
        at = 0
        order = [*range(number)]
        self.more.shuffle(order)
        for piece in order:
            devices = []
            for _ in range(self.more.randint(1, 3)):
                devices.append(self._card(at, counted, bool(where.get("perDeviceNodeSelection"))))
                at += 1
            if self.also(0.08):
                devices[0]["name"] = "c0"
            names = [one["name"] for one in devices]
            devices = [one for i, one in enumerate(devices) if one["name"] not in names[:i]]
            if self.binding and piece == 0:
                devices.append(self._conditional(bool(where.get("perDeviceNodeSelection"))))
            await self._slice(api, f"cards-{piece}", {**spec, "devices": devices})
        if counted:
            counters = {"power": {"value": "3"}, "heat": {"value": "1500m"}}
            await self._slice(api, "cards-z", {**spec, "sharedCounters": [{"name": "tray", "counters": counters}]})
        if self.also(0.3):
            old = {**pool, "generation": 1, "resourceSliceCount": 1}
            card = self._card(9, False, bool(where.get("perDeviceNodeSelection")))
            await self._slice(api, "cards-old", {**spec, "pool": old, "devices": [card]})

    def _conditional(self, placed: bool) -> Json:
        card: Json = {"name": "waits", "taints": [{"key": "never", "effect": "NoSchedule"}]}
        conditions = {"bindingConditions": ["example.com/ready"], "bindingFailureConditions": ["example.com/failed"]}
        return {**card, **conditions, **({"nodeName": "n1"} if placed else {})}

    async def _slice(self, api: Client, name: str, spec: Json) -> None:
        await api.create(f"{RESOURCE}/resourceslices", self._object("ResourceSlice", name, spec))

    def _where(self) -> Json:
        zone = self._zone()
        return self.more.choice(
            [{"allNodes": True}, {"nodeSelector": zone}, {"nodeName": "n0"}, {"perDeviceNodeSelection": True}]
        )

    def _zone(self) -> Json:
        one = {"key": "zone", "operator": "In", "values": [self.more.choice("ab")]}
        return {"nodeSelectorTerms": [{"matchExpressions": [one]}]}

    def _card(self, number: int, counted: bool, placed: bool) -> Json:
        attributes: Json = {"release": {"version": self.more.choice(["1.2.0", "1.10.0", "2.0.0-rc.1"])}}
        if self.also(0.7):
            attributes["ecc"] = {"bool": self.also(0.5)}
        if self.also(0.5):
            attributes["rack.example.com/row"] = {"int": self.more.randint(1, 2)}
        card: Json = {"name": f"c{number}", "attributes": attributes}
        if self.also(0.7):
            card["capacity"] = {"cores": {"value": self.more.choice(["2", "4", "1500m"])}}
            if self.also(0.5):
                card["capacity"][f"{OTHER}/bandwidth"] = {"value": self.more.choice(["10G", "100G"])}
        if self.also(0.5):
            card["allowMultipleAllocations"] = True
            for name, one in card.get("capacity", {}).items():
                if name == "cores" and self.also(0.8):
                    allowed = {"min": "500m", "step": "500m"} if self.also(0.6) else {"min": "100m", "step": "300m"}
                    one["requestPolicy"] = {"default": "500m" if "500m" in allowed["min"] else "400m"}
                    one["requestPolicy"]["validRange"] = allowed
                elif name != "cores" and self.also(0.8):
                    values = ["1G", "2G", "5G"]
                    one["requestPolicy"] = {"default": "1G", "validValues": values}
        if counted and self.also(0.8):
            use: Json = {"power": {"value": self.more.choice(["1", "2"])}}
            if self.also(0.5):
                use["heat"] = {"value": self.more.choice(["500m", "750m"])}
            name = "gone" if self.also(0.03) else "tray"
            card["consumesCounters"] = [{"counterSet": name, "counters": use}]
        if self.also(0.15):
            card["taints"] = [{"key": "worn", "effect": self.more.choice(["NoSchedule", "NoExecute"])}]
        if placed:
            card |= self.more.choice([{"allNodes": True}, {"nodeName": "n1"}, {"nodeSelector": self._zone()}])
        if self.also(0.1):
            card["bindsToNode"] = True
        return card

    def _exact(self) -> Json:
        exact = super()._exact()
        if self.also(0.3):
            exact["deviceClassName"] = self.more.choice(["claims-card", "claims-card", "claims-any"])
        if self.also(0.2):
            exact["selectors"] = [{"cel": {"expression": self.more.choice(SELECTORS)}}]
        if self.also(0.15):
            worn: Json = {"key": "worn", "operator": "Equal", "effect": self.more.choice(["NoSchedule", "NoExecute"])}
            every = worn if self.binding else {"operator": "Exists"}
            exact["tolerations"] = [self.more.choice([worn, {**worn, "value": "yes"}, every])]
        if self.also(0.15):
            asked: Json = {"cores": self.more.choice(["250m", "600m", "2", "0"])}
            if self.also(0.3):
                asked = {f"{OTHER}/bandwidth": self.more.choice(["500M", "3G", "20G"])}
            exact["capacity"] = {"requests": asked}
        return exact

    def _devices(self, *, last: bool) -> Json:
        devices = super()._devices(last=last)
        names = [one["name"] for one in devices["requests"]]
        subs = [f"{one['name']}/{sub['name']}" for one in devices["requests"] for sub in one.get("firstAvailable", [])]
        if self.also(0.15):
            kind = self.more.choice(["matchAttribute", "distinctAttribute"])
            named = [self.more.choice([*names, *subs])] if self.also(0.6) else []
            one = {kind: self.more.choice(ATTRIBUTES), **({"requests": named} if named else {})}
            devices["constraints"] = [*devices.get("constraints", []), one]
        if self.also(0.3):
            devices["config"] = [_opaque(DRIVER, "claim")]
            if self.also(0.6):
                named = self.more.sample([*names, *subs], self.more.randint(1, len(names)))
                devices["config"].append({"requests": named, **_opaque(OTHER, "named")})
        return devices

    def pod(self, name: str, number: int) -> Json:
        pod = super().pod(name, number)
        spec = pod["spec"]
        if "resourceClaims" in spec and number and self.also(0.2):
            old = f"c{2 * self.more.randrange(number)}"  # of an earlier pod, without admin access
            spec["resourceClaims"].insert(0, {"name": "shared", "resourceClaimName": old})
        if "resourceClaims" not in spec or self.also(0.15):
            self._extend(spec)
        return pod

    def _extend(self, spec: Json) -> None:
        """Adds containers with extended resources."""
        kinds = [EXTENDED, BY_CLASS, "example.com/card"]
        more: list[Json] = []
        for i in range(self.more.choice([0, 1, 1, 2])):
            amounts = {
                kind: str(self.more.choice([1, 1, 2])) for kind in self.more.sample(kinds, self.more.choice([1, 1, 2]))
            }
            resources = {"requests": {"cpu": "50m", **amounts}, "limits": amounts}
            more.append({"name": f"more{i}", "image": "img", "resources": resources})
        for one in more:
            place = self.more.random()
            if place < 0.4:
                spec["containers"].append(one)
            else:
                if place < 0.7:
                    one["restartPolicy"] = "Always"
                inits = spec.setdefault("initContainers", [])
                inits.insert(self.more.randint(0, len(inits)), one)
