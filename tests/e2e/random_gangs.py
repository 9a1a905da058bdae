# SPDX-License-Identifier: Apache-2.0
"""Random gangs whose members require each other, for the differential test: by labels of a zone, a rack, a host."""

from __future__ import annotations

import random
from typing import Any

from koordpy.api import keys

Json = dict[str, Any]

SCHEDULER = "default-scheduler"
HOST = "kubernetes.io/hostname"
KEYS = ("zone", "rack", HOST)
ROLES = ("driver", "worker", "server")
NAMESPACES = ("default", "team-a")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class GangMaker:
    """Small clusters, pods that stand there and one gang each, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.name = f"g{seed}"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def nodes(self) -> list[tuple[dict[str, str], int]]:
        """(labels, room in pods of the gang) of each node; some lack a label."""
        rooms = [self.rng.randint(1, 3) for _ in range(self.rng.randint(3, 6))]
        return [({key: f"{key[0]}{self.rng.randint(0, 2)}" for key in KEYS[:2] if self.chance(0.93)}, n) for n in rooms]

    def standing(self, nodes: int) -> list[tuple[Json, int]]:
        """(pod, number of its node): few pods without terms that members may match, in the gang's namespace or not."""
        count = self.rng.randint(1, 2) if self.chance(0.35) else 0
        return [
            (self._pod(f"{self.name}-run-{i}", self._labels(), {}, "0"), self.rng.randrange(nodes))
            for i in range(count)
        ]

    def members(self) -> list[Json]:
        """Two to five members of one to three roles. Roles with terms match their own, so that kube-scheduler can start
        one of them; a role without any may be what others require."""
        roles = []
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            labels = self._labels()
            roles.append((labels, {"affinity": self._affinity(labels)} if not roles or self.chance(0.75) else {}))
        members = [self._pod(f"{self.name}-{i}", *self.rng.choice(roles), "1") for i in range(self.rng.randint(2, 5))]
        for member in members:
            member["metadata"]["labels"][keys.LABEL_POD_GROUP] = self.name
            member["metadata"]["namespace"] = "default"
        return members

    def late(self, members: int) -> int:
        """Of so many members, how many are there before the others."""
        return self.rng.randint(1, members - 1) if self.chance(0.35) else 0

    def _labels(self) -> dict[str, str]:
        labels = {"job": self.rng.choice(["train", "train", "other"]), "role": self.rng.choice(ROLES)}
        return labels | ({"version": self.rng.choice("12")} if self.chance(0.3) else {})

    def _affinity(self, own: dict[str, str]) -> Json:
        found = []
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            key = self.rng.choice(["job", "job", "role"])
            selector = self.rng.choice(
                [
                    {"matchLabels": {key: own[key]}},
                    {"matchExpressions": [{"key": key, "operator": "In", "values": [own[key]]}]},
                    {"matchExpressions": [{"key": key, "operator": "Exists"}]},
                ]
            )
            term: Json = {"topologyKey": self.rng.choice(KEYS), "labelSelector": selector}
            if self.chance(0.15):
                term["namespaceSelector"] = {}
            elif self.chance(0.1):
                term["namespaces"] = list(NAMESPACES)
            if "version" in own and self.chance(0.4):
                term["matchLabelKeys"] = ["version"]
            found.append(term)
        return {"podAffinity": {REQUIRED: found}}

    def _pod(self, name: str, labels: dict[str, str], spec: Json, cpu: str) -> Json:
        meta = {"name": name, "namespace": self.rng.choice(NAMESPACES), "labels": dict(labels)}
        container = {"name": "main", "image": "example/x:1", "resources": {"requests": {"cpu": cpu}}}
        own = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": own}


def pinned(member: Json, node: str, name: str) -> Json:
    """The same pod by another name, that goes to one node or nowhere."""
    affinity = dict(member["spec"].get("affinity", {}))
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    meta = {**member["metadata"], "name": name}
    return {**member, "metadata": meta, "spec": {**member["spec"], "affinity": affinity}}
