# SPDX-License-Identifier: Apache-2.0
"""Random nodes and pods for the differential test: everything a pod's spec can say to a filter or a score."""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]

ZONES = ("a", "b", "c")
APPS = ("web", "db", "job")
TIERS = ("1", "5", "10", "x")
NAMESPACES = {"default": {}, "team-a": {"team": "a"}, "team-b": {"team": "b"}}
"""Namespace -> labels."""
PLAIN, CONFIGURED, SHAPED = "default-scheduler", "configured-scheduler", "shaped-scheduler"
ADDED_AFFINITY = {"key": "tier", "operator": "NotIn", "values": ["x"]}
IGNORED_RESOURCE = "example.com/token"
"""What CONFIGURED is told beyond its defaults."""
PRIORITY_CLASS = "high"
NOMINEE_ASKS = {"cpu": "500m", "memory": "200Mi"}
"""Preempts nobody: the victims of one pod would be missing for the next."""
RUNTIME_CLASS = "heavy"
OVERHEAD = {"cpu": "250m", "memory": "64Mi"}
IMAGES = {"example/big:1": 900_000_000, "example/small:1": 60_000_000, "example/untagged:latest": 400_000_000}
FEATURE = "RestartAllContainersOnContainerExits"
"""A feature of Kubernetes that nodes declare."""
TAINTS = [
    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "cpu", "effect": "NoExecute"},
    {"key": "soft", "value": "yes", "effect": "PreferNoSchedule"},
    {"key": "sla", "value": "950", "effect": "NoSchedule"},
    {"key": "sla", "value": "12", "effect": "NoExecute"},
    {"key": "sla", "value": "x7", "effect": "NoSchedule"},
]


class Maker:
    """Random nodes and pods, the same for the same seed and the same capabilities of the API server."""

    def __init__(
        self, seed: int, *, compares_taints: bool = True, declares_features: bool = True, sums_resizes: bool = False
    ) -> None:
        """compares_taints: tolerations may have the operators Lt and Gt, which 1.34 refuses. declares_features: nodes
        declare features that some pods need, which versions before 1.36 refuse. sums_resizes: only pods with one
        container are resized, because since 1.37 kube-scheduler compares sums over all containers."""
        self.rng = random.Random(seed)
        self._compares_taints, self._declares_features = compares_taints, declares_features
        self._sums_resizes = sums_resizes

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def node_labels(self) -> dict[str, str]:
        labels = {"tier": self.rng.choice(TIERS)}
        if self.chance(0.85):
            labels["zone"] = self.rng.choice(ZONES)
        if self.chance(0.3):
            labels["disk"] = "ssd"
        return labels

    def allocatable(self) -> dict[str, str]:
        room = {"cpu": self.rng.choice(["1", "4", "8"]), "memory": self.rng.choice(["2Gi", "8Gi"])}
        room["pods"] = self.rng.choice(["3", "110", "110"])
        if self.chance(0.4):
            room["nvidia.com/gpu"] = self.rng.choice(["1", "4"])
        if self.chance(0.2):
            room[IGNORED_RESOURCE] = "1"
        if self.chance(0.2):
            room["hugepages-2Mi"] = self.rng.choice(["4Mi", "64Mi"])
        return room

    def images(self) -> list[Json]:
        """Of a node's status."""
        there = [name for name in IMAGES if self.chance(0.4)]
        return [{"names": [f"docker.io/{name}", name], "sizeBytes": IMAGES[name]} for name in there]

    def features(self) -> list[str]:
        """status.declaredFeatures of a node."""
        return [FEATURE] if self._declares_features and self.chance(0.5) else []

    def node_spec(self) -> Json:
        taints = [taint for taint in TAINTS[:3] if self.chance(0.12)]
        if self.chance(0.2):
            taints.append(self.rng.choice(TAINTS[3:]))
        return {"taints": taints or None, "unschedulable": self.chance(0.05)}

    def pod(self, name: str) -> Json:
        labels = {"app": self.rng.choice(APPS)}
        if self.chance(0.3):
            labels["version"] = self.rng.choice(["1", "2"])
        spec: Json = {
            "schedulerName": self.rng.choice([PLAIN, PLAIN, CONFIGURED, SHAPED]),
            "terminationGracePeriodSeconds": 0,
            "containers": [self._container("main")],
        }
        if self.chance(0.15):
            spec["containers"].append(self._container("second"))
        if self._declares_features and self.chance(0.1):
            rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}
            spec["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
        if self.chance(0.1):
            spec["runtimeClassName"] = RUNTIME_CLASS
        if self.chance(0.1):
            spec["priorityClassName"] = PRIORITY_CLASS
        if self.chance(0.1):
            spec["resources"] = {"requests": {"cpu": self.rng.choice(["2", "3500m"]), "memory": "2Gi"}}
            # what a pod asks for as a whole must cover its containers
            for container in spec["containers"]:
                container["resources"] = {"requests": {"cpu": "500m"}}
        if self.chance(0.05):
            spec["hostNetwork"] = True
            for container in spec["containers"]:
                for port in container.get("ports", []):
                    port["hostPort"] = port["containerPort"]
        if self.chance(0.2):
            spec["initContainers"] = [
                self._container(f"init-{i}", sidecar=self.chance(0.4)) for i in range(self.rng.randint(1, 3))
            ]
            if "resources" in spec:
                del spec["resources"]
        if self.chance(0.25):
            spec["tolerations"] = [self._toleration()]
        if self.chance(0.15):
            spec["nodeSelector"] = {"zone": self.rng.choice(ZONES)}
        affinity: Json = {}
        if self.chance(0.25):
            affinity["nodeAffinity"] = self._node_affinity()
        if self.chance(0.2):
            preferred = [
                {"weight": self.rng.choice([1, 30, 100]), "preference": {"matchExpressions": [self._expression()]}}
                for _ in range(self.rng.randint(1, 2))
            ]
            affinity.setdefault("nodeAffinity", {})["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
        if self.chance(0.2):
            affinity["podAffinity"] = self._pod_affinity()
        if self.chance(0.2):
            affinity["podAntiAffinity"] = self._pod_affinity()
        for kind in ("podAffinity", "podAntiAffinity"):
            if self.chance(0.1):
                (term,) = self._pod_affinity()["requiredDuringSchedulingIgnoredDuringExecution"][:1]
                weighted = {"weight": self.rng.choice([1, 50, 100]), "podAffinityTerm": term}
                affinity.setdefault(kind, {})["preferredDuringSchedulingIgnoredDuringExecution"] = [weighted]
        if affinity:
            spec["affinity"] = affinity
        if self.chance(0.25):
            made = [self._spread() for _ in range(self.rng.choice([1, 1, 2]))]
            # the API server takes each key and kind once
            spec["topologySpreadConstraints"] = list(
                {(one["topologyKey"], one["whenUnsatisfiable"]): one for one in made}.values()
            )
        namespace = self.rng.choice(["default", "default", *NAMESPACES])
        meta = {"name": name, "namespace": namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _container(self, name: str, *, sidecar: bool = False) -> Json:
        requests = {"cpu": self.rng.choice(["10m", "100m", "500m", "2"])}
        if self.chance(0.5):
            requests["memory"] = self.rng.choice(["64Mi", "200Mi", "1Gi", "3Gi"])
        limits = {"nvidia.com/gpu": self.rng.choice(["1", "2"])} if self.chance(0.1) else {}
        if self.chance(0.03):
            limits[IGNORED_RESOURCE] = "2"
        if self.chance(0.02):
            limits["hugepages-2Mi"] = "4Mi"
        made: Json = {
            "name": name,
            "image": self.rng.choice(["example/x:1", "example/untagged", *IMAGES]),
            "resources": {"requests": {**requests, **limits}, "limits": limits},
        }
        if sidecar:
            made["restartPolicy"] = "Always"
        if (sidecar or name == "main") and self.chance(0.2):
            port: Json = {"containerPort": 80, "hostPort": self.rng.choice([8080, 9090])}
            if self.chance(0.4):
                port["hostIP"] = self.rng.choice(["127.0.0.1", "10.0.0.1"])
            if self.chance(0.3):
                port["protocol"] = "UDP"
            made["ports"] = [port]
        return made

    def _toleration(self) -> Json:
        taint = self.rng.choice(TAINTS)
        kind = self.rng.random()
        if self._compares_taints and taint["key"] == "sla" and kind < 0.6:
            operator = self.rng.choice(["Lt", "Gt"])
            return {"key": "sla", "operator": operator, "value": self.rng.choice(["949", "950", "951", "12", "11"])}
        if kind < 0.3:
            return {"operator": "Exists"}
        if kind < 0.6:
            return {
                "key": taint["key"],
                "operator": "Exists",
                "effect": self.rng.choice([taint["effect"], "NoExecute"]),
            }
        return {"key": taint["key"], "value": self.rng.choice([taint["value"], "other"])}

    def _expression(self) -> Json:
        operator = self.rng.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        key = "tier" if operator in ("Gt", "Lt") else self.rng.choice(["zone", "disk", "tier"])
        values = {
            "In": self.rng.sample(["a", "b", "ssd", "5"], 2),
            "NotIn": self.rng.sample(["a", "b", "ssd", "5"], 2),
            "Gt": [self.rng.choice(["3", "7"])],
            "Lt": [self.rng.choice(["3", "7"])],
        }.get(operator, [])
        return {"key": key, "operator": operator, **({"values": values} if values else {})}

    def _node_affinity(self) -> Json:
        terms: list[Json] = []
        for _ in range(self.rng.randint(1, 2)):
            term: Json = {}
            if self.chance(0.8):
                term["matchExpressions"] = [self._expression() for _ in range(self.rng.randint(1, 2))]
            if self.chance(0.25):
                operator = self.rng.choice(["In", "In", "NotIn"])
                term["matchFields"] = [
                    {"key": "metadata.name", "operator": operator, "values": [f"n{self.rng.randint(0, 5)}"]}
                ]
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    def _pod_affinity(self) -> Json:
        terms: list[Json] = []
        for _ in range(self.rng.choice([1, 1, 2])):
            term: Json = {"topologyKey": self.rng.choice(["zone", "kubernetes.io/hostname"])}
            if self.chance(0.9):
                term["labelSelector"] = (
                    {"matchLabels": {"app": self.rng.choice(APPS)}}
                    if self.chance(0.7)
                    else {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [self.rng.choice(APPS)]}]}
                )
            if self.chance(0.2):
                term["namespaceSelector"] = {}
            elif self.chance(0.15):
                term["namespaceSelector"] = {"matchLabels": {"team": self.rng.choice(["a", "b"])}}
            if self.chance(0.15):
                term["namespaces"] = self.rng.sample(["kube-system", "team-a", "default"], self.rng.randint(1, 2))
            if "labelSelector" in term and self.chance(0.2):
                term[self.rng.choice(["matchLabelKeys", "mismatchLabelKeys"])] = ["version"]
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": terms}

    def _spread(self) -> Json:
        made: Json = {
            "maxSkew": self.rng.choice([1, 1, 2]),
            "topologyKey": self.rng.choice(["zone", "kubernetes.io/hostname"]),
            "whenUnsatisfiable": self.rng.choice(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
        }
        if self.chance(0.9):
            made["labelSelector"] = {"matchLabels": {"app": self.rng.choice(APPS)}}
        if self.chance(0.3):
            made["nodeTaintsPolicy"] = self.rng.choice(["Honor", "Ignore"])
        if self.chance(0.3):
            made["nodeAffinityPolicy"] = self.rng.choice(["Honor", "Ignore"])
        if made["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.3):
            made["minDomains"] = self.rng.choice([1, 3, 4])
        if "labelSelector" in made and self.chance(0.2):
            made["matchLabelKeys"] = ["app"] if "app" not in made["labelSelector"]["matchLabels"] else ["version"]
        return made

    def resized(self, pod: Json) -> Json:
        """A status of a bound pod whose containers run with other figures than their spec asks for."""
        if self._sums_resizes and len([*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]) > 1:
            return {"status": {"phase": "Running"}}
        statuses = []
        for container in pod["spec"]["containers"]:
            actual = {"cpu": self.rng.choice(["50m", "1", "1500m"])}
            one: Json = {"name": container["name"], "image": container["image"], "imageID": "", "ready": True}
            one |= {"restartCount": 0, "resources": {"requests": actual}}
            if self.chance(0.7):
                one["allocatedResources"] = {"cpu": self.rng.choice(["50m", "700m"])}
            statuses.append(one)
        status: Json = {"phase": "Running", "containerStatuses": statuses}
        if self.chance(0.5):
            reason = self.rng.choice(["Infeasible", "Deferred"])
            kept = [c for c in pod["status"].get("conditions", []) if c["type"] != "PodResizePending"]
            status["conditions"] = [*kept, {"type": "PodResizePending", "status": "True", "reason": reason}]
        return {"status": status}

    def nominee(self, name: str) -> Json:
        """A pod that waits for a claim that never comes, for a nomination; of high priority half the time.

        Everything else would let it in: a nomination that cannot come true keeps no room here (preemption.md 4), other
        than in kube-scheduler.
        """
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": self.rng.choice(APPS)}},
            "spec": {
                "schedulerName": PLAIN,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "never", "persistentVolumeClaim": {"claimName": "never"}}],
                **({"priorityClassName": PRIORITY_CLASS} if self.chance(0.5) else {}),
                "containers": [
                    {"name": "main", "image": "example/app:1", "resources": {"requests": dict(NOMINEE_ASKS)}}
                ],
            },
        }
