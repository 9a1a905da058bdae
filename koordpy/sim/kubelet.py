"""A fake kubelet for all nodes at once, beside the store of the embedded API server.

What a node would do and a scheduler's user wants to see: a bound pod starts, runs, ends after an annotated time, and
vanishes when it is deleted.

Annotation `sim.koordpy.io/runtime` (a Go duration, `5s`): the pod goes to Succeeded so long after it started to run.
"""

import asyncio
import logging
from datetime import datetime
from functools import partial

from koordpy.api.durations import parse_duration
from koordpy.sim.errors import StatusError
from koordpy.sim.patches import strategic
from koordpy.sim.resources import Object
from koordpy.sim.shelf import Change
from koordpy.sim.store import Store

RUNTIME = "sim.koordpy.io/runtime"
_LOG = logging.getLogger(__name__)
_FINISHED = ("Succeeded", "Failed")


class FakeKubelet:
    """Runs the pods of every node while a loop runs, those that are bound already, too.

    `start_seconds` is how long a bound pod takes until it runs, `end_seconds` how long a deleted one takes to go.
    """

    def __init__(self, store: Store, *, start_seconds: float = 0.0, end_seconds: float = 0.0) -> None:
        self._store = store
        self._start_seconds, self._end_seconds = start_seconds, end_seconds
        self._steps: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        """uid -> the last step that was planned for a pod, and its timer."""
        store.listeners.append(self._changed)
        for pod in store.list("pods"):
            self._see(pod)

    def close(self) -> None:
        """Ends it; pods stay as they are."""
        self._store.listeners.remove(self._changed)
        for _, timer in self._steps.values():
            timer.cancel()

    def _changed(self, shelf: str, change: Change) -> None:
        if shelf == "pods" and change.kind != "DELETED":
            self._see(change.entry.obj)
        elif shelf == "pods" and (known := self._steps.pop(change.entry.obj["metadata"]["uid"], None)) is not None:
            known[1].cancel()

    def _see(self, pod: Object) -> None:
        """Plans what comes next for a pod."""
        meta, status = pod["metadata"], pod.get("status") or {}
        if not pod["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in meta:
            self._plan(pod, "end", self._end_seconds)
        elif status.get("phase") not in (*_FINISHED, "Running"):
            self._plan(pod, "start", self._start_seconds)
        elif status["phase"] == "Running" and (text := (meta.get("annotations") or {}).get(RUNTIME)):
            try:
                self._plan(pod, "finish", parse_duration(text) - self._ran(pod))
            except ValueError as error:
                _LOG.warning("pod %s: annotation %s: %s", meta["name"], RUNTIME, error)

    def _ran(self, pod: Object) -> float:
        """Seconds that a pod has run: of one that was not started just now as exact as its startTime."""
        known, started = self._steps.get(pod["metadata"]["uid"]), pod["status"].get("startTime")
        if started is None or (known is not None and known[0] == "start"):
            return 0.0
        return self._store.seconds() - datetime.fromisoformat(started).timestamp()

    def _plan(self, pod: Object, step: str, seconds: float) -> None:
        """Does a step of a pod later; one that is planned already is not planned twice."""
        meta = pod["metadata"]
        known = self._steps.get(meta["uid"])
        if known is not None and known[0] == step:
            return
        if known is not None:
            known[1].cancel()
        act = partial(self._act, step, meta["namespace"], meta["name"])
        self._steps[meta["uid"]] = step, asyncio.get_running_loop().call_later(max(0.0, seconds), act)

    def _act(self, step: str, namespace: str, name: str) -> None:
        try:
            if step == "end":
                self._store.delete("pods", name, namespace=namespace, options={"gracePeriodSeconds": 0})
                return
            make = running_status if step == "start" else succeeded_status
            at = self._store.now()
            # conditions of others stay
            self._store.update(
                "pods", name, lambda pod: strategic(pod, {"status": make(pod, at)}), namespace=namespace, status=True
            )
        except StatusError as error:
            _LOG.info("pod %s: %s failed: %s", name, step, error)


def _condition(kind: str, value: bool, at: str, reason: str | None = None) -> Object:
    found: Object = {"type": kind, "status": "True" if value else "False", "lastTransitionTime": at}
    return {**found, "reason": reason} if reason else found


def _container_statuses(pod: Object, state: Object, *, ready: bool) -> list[Object]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "started": ready,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]


def running_status(pod: Object, at: str) -> Object:
    """The status of a pod whose containers have just started."""
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "startTime": at,
        "conditions": [_condition(kind, True, at) for kind in kinds],
        "containerStatuses": _container_statuses(pod, {"running": {"startedAt": at}}, ready=True),
    }


def succeeded_status(pod: Object, at: str) -> Object:
    """The status of a pod whose containers have ended well."""
    started = (pod.get("status") or {}).get("startTime") or at
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": at}}
    completed = {"Initialized": True, "Ready": False, "ContainersReady": False}
    return {
        "phase": "Succeeded",
        "conditions": [
            _condition("PodReadyToStartContainers", False, at),
            *(_condition(kind, value, at, "PodCompleted") for kind, value in completed.items()),
            _condition("PodScheduled", True, at),
        ],
        "containerStatuses": _container_statuses(pod, ended, ready=False),
    }
