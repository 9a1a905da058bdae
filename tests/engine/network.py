# SPDX-License-Identifier: Apache-2.0
"""What becomes of the network and of processes in a storm; and those who wait for a request, to do what hurts most."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tests.engine.machines import Machines
from tests.engine.manifests import GROUPS, QUOTAS, nominated_node
from tests.engine.replica import Replica
from tests.engine.stage import Stage
from tests.engine.users import Users
from tests.engine.virtual import Wire

ROUTES = {
    "binding": ("POST", "*/binding"),
    "eviction": ("POST", "*/eviction"),
    "delete": ("DELETE", "*/pods/*"),
    "status": ("PATCH", "*/pods/*/status"),
    "volume": ("PATCH", "*/persistentvolume*"),
    "claim": ("PATCH", "*/resourceclaims/*"),
    "lease": ("PUT", "*/leases/*"),
    "group": ("PATCH", "*/podgroups/*"),
    "read": ("GET", "/api/v1/namespaces/*/pods/*"),
}
"""Requests at which others lie in wait."""
MOMENTS = ("before", "after")
"""Before the API server looks at a request, and when it has been carried out and nobody knows yet."""


@dataclass
class Ambush:
    """Something that happens at the moment of a request."""

    route: str
    moment: str
    count: int
    """How many such requests pass before it."""
    action: Callable[[Replica, str], None]


@dataclass
class Network:
    """Each method without an argument is something that happens."""

    stage: Stage
    users: Users
    machines: Machines
    replicas: list[Replica]
    _ambushes: list[Ambush] = field(default_factory=list)

    def watch(self) -> None:
        if self.stage.dice.random() < 0.5:
            self.stage.cluster.server.faults.expire_versions()
            self.stage.tally["versions expired"] += 1
        which = self.stage.dice.choice([None, "pods", "pods", "nodes", GROUPS, QUOTAS])
        abort = self.stage.dice.random() < 0.5
        self.stage.cluster.server.faults.drop_watches(which, abort=abort)
        self.stage.tally["watches cut" if abort else "watches ended"] += 1

    def kill(self) -> None:
        self.stage.dice.choice(self.replicas).kill()

    def retire(self) -> None:
        self.stage.dice.choice(self.replicas).retire()

    def unrenewed(self) -> None:
        """For a while nobody can write the lease, though everything else goes on."""
        times = self.stage.dice.choice([3, 6, 9])
        self.stage.cluster.server.faults.fail(500, method="PUT", path="*/leases/*", times=times)

    def cut(self) -> None:
        self._cut_off(self.stage.dice.choice(self.replicas), self.stage.dice.choice([0.1, 0.6, 3.0]))

    def _cut_off(self, replica: Replica, seconds: float) -> None:
        """The network between a replica and the API server is gone for a while."""
        client = replica.client
        if isinstance(client, Wire):
            client.cut = True
            asyncio.get_running_loop().call_later(seconds, setattr, client, "cut", False)

    def veto(self) -> None:
        """Somebody keeps a pod from being evicted or deleted until the weather clears."""
        if names := sorted(self.stage.cluster.places()):
            name = self.stage.dice.choice(names)
            faults = self.stage.cluster.server.faults
            faults.fail(429, method="POST", path=f"*/pods/{name}/eviction", retry_after=0)
            faults.fail(429, method="DELETE", path=f"*/pods/{name}", retry_after=0)

    def ambush(self) -> None:
        """Somebody waits for a request, to do at that moment what hurts most."""
        actions: dict[str, Callable[[Replica, str], None]] = {
            "kill": lambda replica, pod: replica.kill(),
            "cut": lambda replica, pod: self._cut_off(replica, 0.3),
            "delete": self._delete_at,
            "anew": self._make_anew_at,
            "cordon": self._close_at,
            "forget": lambda replica, pod: self.watch(),
        }
        action = self.stage.dice.choice(["kill", "kill", "cut", "delete", "anew", "cordon", "forget"])
        route, moment = self.stage.dice.choice(["binding", "binding", *ROUTES]), self.stage.dice.choice(MOMENTS)
        self.lie_in_wait(route, moment, self.stage.dice.choice([0, 0, 1, 2]), actions[action])

    def lie_in_wait(self, route: str, moment: str, count: int, action: Callable[[Replica, str], None]) -> None:
        """`action(replica, pod)` happens at a request, when so many of its route have passed."""
        self._ambushes.append(Ambush(route, moment, count, action))

    def requested(self, wire: Wire, method: str, path: str, moment: str) -> None:
        """A request is at the API server."""
        for ambush in self._ambushes:
            if ambush.moment == moment and method == ROUTES[ambush.route][0]:
                if not fnmatchcase(path, ROUTES[ambush.route][1]):
                    continue
                ambush.count -= 1
                if ambush.count < 0:
                    self._ambushes.remove(ambush)
                    self.stage.tally[f"ambush {moment} a {ambush.route}"] += 1
                    replica = next(one for one in self.replicas if one.client is wire)
                    ambush.action(replica, path.partition("/pods/")[2].partition("/")[0])
                return

    def stand_down(self) -> None:
        """Nobody waits for anything any more."""
        self._ambushes.clear()

    def _delete_at(self, replica: Replica, pod: str) -> None:
        if pod in self.stage.cluster.pods():
            self.stage.cluster.delete(pod)

    def _make_anew_at(self, replica: Replica, pod: str) -> None:
        if (old := self.stage.cluster.pods().get(pod)) is not None:
            self.users.make_anew(old)

    def _close_at(self, replica: Replica, pod: str) -> None:
        """Whatever node the pod is to go to, or one of them."""
        name = nominated_node(self.stage.cluster.pods().get(pod, {"spec": {}})) or self.machines.node()
        if any(obj["metadata"]["name"] == name for obj in self.stage.cluster.server.store.list("nodes")):
            self.machines.close(name, closed=True)
