# SPDX-License-Identifier: Apache-2.0
"""Creates the pods of workloads in an offline run, and decides which nodes get a pod of a DaemonSet."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import KubernetesObject, Node, Pod
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.api.times import exact_time
from koordpy.cache.cluster_state import ClusterState
from koordpy.simulation.claim_controllers import ClaimControllers
from koordpy.simulation.pod_making import (
    Expansion,
    RoleKey,
)
from koordpy.simulation.pod_specs import daemon_tolerations
from koordpy.simulation.server_defaults import Priorities, filled_pod, with_identity

if TYPE_CHECKING:
    pass
from koordpy.offline.workload_manifests import Read


class Growth(Expansion):
    """Creates the pods of workloads in a simulation, step by step, and the claims of all pods without a node.

    The first call of `begin` creates the pods of the first steps. Each later call creates the pods of steps that can
    begin then.
    """

    def __init__(
        self,
        read: Read,
        objects: Sequence[KubernetesObject],
        started: frozenset[RoleKey],
        priorities: Priorities,
        state: ClusterState,
        put: Callable[[KubernetesObject], None],
        now: datetime,
        *,
        done: frozenset[RoleKey] = frozenset(),
        later: int = -1,
    ) -> None:
        """objects: objects of the input. put: adds an object to the state. done: roles with pods that an earlier run
        created. later: number of objects that earlier runs created after `now`; -1 for the first run."""
        self._priorities, self._state, self._take, self._now = priorities, state, put, now
        self._controllers, self._served = ClaimControllers(state), False
        self._pods = [obj for obj in objects if isinstance(obj, Pod)]
        self._later = later
        """Number of objects created after `now`; -1 until the pods of the first steps are created."""
        nodes = [obj for obj in objects if isinstance(obj, Node)]
        claims = [obj.metadata for obj in objects if isinstance(obj, PersistentVolumeClaim)]
        super().__init__(
            read.known,
            read.tops,
            [obj for obj in objects if isinstance(obj, Pod)],
            self._node_in,
            self._label_in,
            claims=[f"{meta.namespace}/{meta.name}" for meta in claims],
            daemons=lambda pod: daemon_nodes(nodes, pod),
            started=started,
            done=done,
        )

    @property
    def later(self) -> int:
        """Number of objects created after `now`, including earlier runs."""
        return self._later

    def begin(self) -> list[str]:
        """Creates the pods of steps that can begin now, with the API server's defaults, and returns their keys."""
        pods, claims = self.make()
        for claim in claims:
            self._take(with_identity(claim, kind="PersistentVolumeClaim", created=self._now))
        if not self._served:
            self._controllers.settle(self._pods)
            self._controllers.serve_all()
            self._served = True
        for pod in pods:
            if self._later >= 0:
                self._later += 1
                created = exact_time(self._now + timedelta(milliseconds=self._later))
                pod = replace(pod, metadata=replace(pod.metadata, creation_timestamp=created))
            filled = filled_pod(pod, self._priorities)
            if filled is None:
                continue  # its PriorityClass is not known, which Read.check has reported
            self._take(self._controllers.served(filled))
        self._later = max(self._later, 0)
        return [pod.key for pod in pods]

    def _node_in(self, key: str) -> str:
        info = self._state.pod(key)
        return info.node if info is not None else ""

    def _label_in(self, key: str, label: str) -> str:
        node = self._state.nodes.get(self._node_in(key))
        return node.labels.get(label, "") if node is not None else ""


def daemon_nodes(nodes: Sequence[Node], pod: Pod) -> list[str]:
    """Returns the names of the nodes that get a DaemonSet's pod, by its node selector, required affinity and taints."""
    from koordpy.api.label_selectors import term_matches
    from koordpy.plugins.node_filters import repels

    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    out = []
    for node in nodes:
        name, labels = node.metadata.name, node.metadata.labels
        if not pod.spec.node_selector.items() <= labels.items():
            continue
        if required is not None and not any(term_matches(one, name, labels) for one in required.node_selector_terms):
            continue
        if not any(repels(taint, daemon_tolerations(pod.spec)) for taint in node.spec.taints):
            out.append(name)
    return sorted(out, key=natural_key)
