# SPDX-License-Identifier: Apache-2.0
"""Passes pods that kubelets rejected to the memory of rejections (`koordpy.rejections`), with facts about their nodes.

The memory compares these facts (free capacity, running pods, devices) to decide when a closed node opens again. Facts
are computed only for nodes with rejections, so that there is no cost without them. Source: numa.md 8.
"""

from collections.abc import Callable, Collection
from typing import Any

from koordpy.api.custom_objects import Device, NodeResourceTopology
from koordpy.api.field_faults import UnreadableError
from koordpy.api.keys import BOUND_EPOCH
from koordpy.api.objects import Pod, condition_of
from koordpy.api.times import seconds
from koordpy.cache.node_book import NodeBook
from koordpy.cache.node_usage import Usage
from koordpy.cache.snapshot import PODS
from koordpy.config.node_failures import Rejections
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.rejections.closed_nodes import ClosedNodes
from koordpy.rejections.rejection_memory import RejectedPod, RejectingNodeFacts, RejectionMemory, RunningPod
from koordpy.rejections.rejection_reading import bind_time, rejection_reason, rejection_time
from koordpy.rejections.request_shapes import request_shape
from koordpy.rejections.strikes import Rejection


class RejectionBook:
    """Records rejections of pods of this scheduler, and computes the facts of their nodes."""

    def __init__(
        self,
        settings: Rejections,
        nodes: NodeBook,
        usage: Usage,
        *,
        pod_of: Callable[[str], PodInfo | None],
        get: Callable[[type[Any], str], Any],
        scheduler_names: Collection[str],
        live: bool,
    ) -> None:
        """pod_of: returns a stored pod by key. get: returns an object of a kind by key; None if it does not exist.
        live: True on a real cluster; then only pods that koordpy itself has bound count.
        """
        self.memory = RejectionMemory(settings)
        self._nodes, self._usage, self._pod_of, self._get = nodes, usage, pod_of, get
        self._scheduler_names, self._live = scheduler_names, live

    def saw(self, pod: Pod) -> bool:
        """Records a pod of koordpy if its kubelet has rejected it. Returns True if it was recorded.

        On a real cluster only pods with the epoch annotation of koordpy's Bindings count, because tenants cannot write
        it. A pod that cannot be read is ignored. If `repair.rejections.backoff` is 0, every pod is ignored.
        """
        reason = rejection_reason(pod)
        if not reason or not self.memory.settings.backoff:
            return False
        ours = pod.spec.scheduler_name in self._scheduler_names
        if not ours or (self._live and BOUND_EPOCH not in pod.metadata.annotations):
            return False
        try:
            shape = request_shape(pod)
        except UnreadableError:
            return False
        # without a time limit here: `update` cuts a time that is in the future
        rejection = Rejection(rejection_time(pod, float("inf")), pod.metadata.uid, reason)
        self.memory.saw(RejectedPod(pod.spec.node_name, shape, rejection))
        return True

    def update(self, now: float) -> ClosedNodes:
        """Returns which nodes are closed at a time, in seconds since the epoch."""
        if self.memory.is_idle:
            return self.memory.closed
        return self.memory.update(now, self.facts_of, len(self._nodes))

    def takes_no(self, pod: PodInfo, node: str, now: float) -> bool:
        """Returns True if a node is closed to a pod, also by a rejection since the last `update`.

        The end of a closure shows only after the next `update`, because reading the nodes' facts takes time.
        """
        closed = self.update(now) if self.memory.is_behind else self.memory.closed
        return bool(closed) and closed.takes_no(pod.pod, pod.requests, node)

    def facts_of(self, name: str) -> RejectingNodeFacts | None:
        """Returns the facts about a node from which the memory decides when it opens; None for an unknown node."""
        info = self._nodes.get(name)
        if info is None:
            return None
        count, used = self._usage.usage_of(name)
        free = dict(info.allocatable)
        add_amounts(free, {PODS: count, **used}, -1)
        unstarted: Amounts = {}
        running: list[RunningPod] = []
        for key in self._usage.pods_on(name):
            pod = self._pod_of(key)
            if pod is None:
                continue
            if pod.pod.status.phase == "Running":
                if bound := bind_time(pod.pod):
                    running.append(RunningPod(pod.uid, bound, pod.requests))
            elif self._live:
                add_amounts(unstarted, pod.requests)
        ready = condition_of(info.node.status.conditions, "Ready")
        since = seconds(ready.last_transition_time) if ready is not None and ready.status == "True" else 0.0
        return RejectingNodeFacts(
            free=free,
            unstarted=unstarted,
            fresh=max(seconds(info.node.metadata.creation_timestamp), since),
            running=running,
            state=(info.allocatable, self._device_facts(name)) if self._live else None,
        )

    def _device_facts(self, node: str) -> object:
        """Returns a value that changes if the devices, the NUMA zones or the kubelet's policy of a node change."""
        device, report = self._get(Device, node), self._get(NodeResourceTopology, node)
        spec = device.spec if device is not None else None
        if report is None:
            return spec
        zones = [(zone.name, [(one.name, one.allocatable) for one in zone.resources]) for zone in report.zones]
        return spec, zones, report.topology_policies, report.attributes
