# SPDX-License-Identifier: Apache-2.0
"""A simulated kubelet for all nodes of the embedded API server. It runs no containers, and only writes pod statuses.

A bound pod becomes Running. A deleted pod is removed, optionally after its containers ended with an exit code as real
containers would (`container_ends.py`). A pod has three steps: `start`, `stop` (containers end) and `end` (the pod is
removed). Each step is a timer.
"""

import asyncio
import logging
from functools import partial

from koordpy.apiserver.applied_patches import strategic
from koordpy.apiserver.container_ends import Stopping, stopped_status
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import Change
from koordpy.apiserver.served_resources import Object
from koordpy.apiserver.status_errors import StatusError

_LOG = logging.getLogger(__name__)
_STARTED = ("Running", "Succeeded", "Failed")
"""Phases of pods for which no step `start` is planned."""


class FakeKubelet:
    """Simulates the pods of every node as long as an event loop runs, including pods that were bound before."""

    def __init__(
        self, store: Store, *, start_seconds: float = 0.0, end_seconds: float = 0.0, stopping: Stopping | None = None
    ) -> None:
        """start_seconds: seconds from a pod's Binding until it runs. end_seconds: seconds from its deletion until it
        disappears. stopping: reaction of containers to SIGTERM; None: deleted pods disappear without a last status."""
        self._store, self._stopping = store, stopping
        self._start_seconds, self._end_seconds = start_seconds, end_seconds
        self._steps: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        """uid of a pod -> (its last planned step, the timer of this step)."""
        store.listeners.append(self._changed)
        for pod in store.list("pods"):
            self._see(pod)

    def close(self) -> None:
        """Stops the kubelet; pods remain as they are."""
        self._store.listeners.remove(self._changed)
        for _, timer in self._steps.values():
            timer.cancel()

    def _changed(self, shelf: str, change: Change) -> None:
        if shelf == "pods" and change.kind != "DELETED":
            self._see(change.entry.obj)
        elif shelf == "pods" and (known := self._steps.pop(change.entry.obj["metadata"]["uid"], None)) is not None:
            known[1].cancel()

    def _see(self, pod: Object) -> None:
        """Plans the next step of a pod."""
        meta, status = pod["metadata"], pod.get("status") or {}
        if not pod["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in meta and self._stopping is not None and status.get("phase") == "Running":
            # containers that ignore SIGTERM run until the end of the grace period
            grace = meta.get("deletionGracePeriodSeconds") or 0
            self._plan(pod, "stop", max(self._end_seconds, grace if self._stopping.of(pod).ignores else 0))
        elif "deletionTimestamp" in meta:
            self._plan(pod, "end", 0.0 if self._stopping is not None else self._end_seconds)
        elif status.get("phase") not in _STARTED:
            self._plan(pod, "start", self._start_seconds)

    def _plan(self, pod: Object, step: str, seconds: float) -> None:
        """Schedules a step of a pod, unless the same step is scheduled already."""
        meta = pod["metadata"]
        known = self._steps.get(meta["uid"])
        if known is not None and known[0] == step:
            return
        if known is not None:
            known[1].cancel()
        act = partial(self._act, step, meta["namespace"], meta["name"])
        self._steps[meta["uid"]] = step, asyncio.get_running_loop().call_later(max(0.0, seconds), act)

    def _act(self, step: str, namespace: str, name: str) -> None:
        """Carries out a step of a pod. If the pod was removed before, this is only logged."""
        try:
            if step == "end":
                self._store.delete("pods", name, namespace=namespace, options={"gracePeriodSeconds": 0})
                return
            at, stopping = self._store.now(), self._stopping
            told = running_status if stopping is None or step == "start" else partial(stopped_status, stopping)
            # a strategic merge patch preserves the conditions of other writers
            self._store.update(
                "pods",
                name,
                lambda pod: strategic(pod, {"status": told(pod, at)}),
                namespace=namespace,
                status=True,
            )
        except StatusError as error:
            _LOG.info("pod %s: %s failed: %s", name, step, error)


def running_status(pod: Object, at: str) -> Object:
    """Returns the status of a pod after its containers started. at: time of the start, RFC 3339."""
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "startTime": at,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in kinds],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "restartCount": 0,
                "ready": True,
                "started": True,
                "state": {"running": {"startedAt": at}},
            }
            for container in pod["spec"]["containers"]
        ],
    }
