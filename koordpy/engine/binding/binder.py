"""Bindings: one POST a pod, and certainty about its outcome (kube-parity.md 4.4).

A Binding sets nodeName, PodScheduled=True and the annotations in one write, with the uid as its precondition. A reply
that is lost or unclear is never answered by another POST: the pod is read until it tells.
"""

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from koordpy.api.keys import BOUND_EPOCH, BOUND_LEASE
from koordpy.api.objects import Pod
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import PODS
from koordpy.engine.client.backoff import Backoff

logger = logging.getLogger(__name__)


class BindResult(enum.StrEnum):
    """What became of a Binding; the values are the labels of koordpy_binds_total."""

    BOUND = "bound"
    """On our node, by our own Binding."""
    ALREADY = "already"
    """On our node, by the Binding of another process: the leader before us, or one of another Lease."""
    GONE = "gone"
    """No such pod, or another uid under its name."""
    CONFLICT = "conflict"
    """On another node."""
    TERMINATING = "terminating"
    """Being deleted."""
    GATED = "gated"
    """Has scheduling gates again."""
    REFUSED = "refused"
    """Not bound; may be planned again, after `retry_after` seconds where the server said so."""
    UNKNOWN = "unknown"
    """Leadership ended before the outcome was known. Keep the assumption."""
    NOT_SENT = "not_sent"
    """`may_send` said no."""


class Binding(msgspec.Struct, frozen=True):
    """A pod (with its uid) to a node, with the annotations to write."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = {}


class BindOutcome(msgspec.Struct, frozen=True):
    """What became of one Binding."""

    result: BindResult
    message: str = ""
    retry_after: float | None = None
    passing: bool = False
    """Refused for what mostly passes by itself: too many requests, a conflict, a failure of the server or the network.
    """
    seconds: float = 0.0
    pod: Pod | None = None
    """As it was read, where it is not what was planned on: bound by another (another scheduler, or on our node the
    leader before us), being deleted, or gated."""


class Binder:
    """Sends Bindings; how many at a time is its caller's choice."""

    def __init__(
        self,
        client: ApiClient,
        *,
        clock: Callable[[], float] = time.monotonic,
        settle_seconds: float = 2.0,
    ) -> None:
        """`settle_seconds`: how long a Binding may still be carried out whose reply was lost."""
        self._client, self._clock, self._settle_seconds = client, clock, settle_seconds

    async def bind(self, binding: Binding, *, may_send: Callable[[], bool] = lambda: True) -> BindOutcome:
        """Binds one pod; raises nothing that the API server does.

        `may_send` (leadership) is asked before the POST and while an unknown outcome is looked into.
        """
        began = self._clock()
        if not may_send():
            return BindOutcome(BindResult.NOT_SENT, "leadership ended before it was sent")
        outcome = await self._post(binding, may_send)
        return replace(outcome, seconds=self._clock() - began)

    async def _post(self, binding: Binding, may_send: Callable[[], bool]) -> BindOutcome:
        metadata: dict[str, Any] = {"name": binding.name, "namespace": binding.namespace, "uid": binding.uid}
        if binding.annotations:
            metadata["annotations"] = binding.annotations
        target = {"apiVersion": "v1", "kind": "Node", "name": binding.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            await self._client.post(PODS.path(binding.namespace, binding.name, "binding"), body)
        except ApiError as error:
            return await self._after_error(binding, error, may_send)
        except Unreachable as error:
            if not error.sent:
                return BindOutcome(BindResult.REFUSED, str(error), passing=True)
            return await self._resolve(binding, str(error), may_send, settle=self._settle_seconds)
        return BindOutcome(BindResult.BOUND)

    async def _after_error(self, binding: Binding, error: ApiError, may_send: Callable[[], bool]) -> BindOutcome:
        if error.status in (404, 409):
            # a pod that is gone is forgotten for good, so it must be the API server's word and nobody's in between
            return await self._resolve(binding, str(error), may_send, settle=0.0)
        if error.status >= 500:
            settle = self._settle_seconds if _may_be_written_yet(error) else 0.0
            return await self._resolve(binding, str(error), may_send, settle=settle)
        busy = error.status == 429
        return BindOutcome(BindResult.REFUSED, str(error), retry_after=error.retry_after, passing=busy)

    async def _resolve(
        self, binding: Binding, message: str, may_send: Callable[[], bool], *, settle: float
    ) -> BindOutcome:
        """Reads the pod until it tells what became of the Binding, as long as leadership lasts."""
        began, backoff = self._clock(), Backoff(0.05, 2.0)
        while True:
            asked = self._clock()
            try:
                pod = await self._client.read_pod(binding.namespace, binding.name)
            except (ApiError, Unreachable) as error:
                message = f"{message}; then {error}" if backoff.tries == 0 else message
            else:
                outcome = _outcome_of(binding, pod, message)
                if outcome.result is not BindResult.REFUSED or asked - began >= settle:
                    return outcome
            if not may_send():
                return BindOutcome(BindResult.UNKNOWN, message)
            if backoff.tries == 4:
                logger.warning("pod %s/%s: is it bound? still unknown: %s", binding.namespace, binding.name, message)
            await asyncio.sleep(backoff.next())


def _may_be_written_yet(error: ApiError) -> bool:
    """Whether a write that failed may still be on its way to the store: the server gave up waiting (504), or the store
    lost sight of it (etcd's timeouts and changes of leader, which come as 500)."""
    return error.status == 504 or "etcdserver:" in error.message


def _outcome_of(binding: Binding, pod: Pod | None, message: str) -> BindOutcome:
    """What a read of the pod after the fact says; REFUSED when it is simply not bound."""
    if pod is None:
        return BindOutcome(BindResult.GONE, "the pod is gone")
    if pod.metadata.uid != binding.uid:
        return BindOutcome(BindResult.GONE, f"the pod is another one now (uid {pod.metadata.uid})")
    if pod.spec.node_name == binding.node:
        said, sent = pod.metadata.annotations, binding.annotations
        if all((said.get(key) or "") == (sent.get(key) or "") for key in (BOUND_EPOCH, BOUND_LEASE)):
            return BindOutcome(BindResult.BOUND, message)
        return BindOutcome(BindResult.ALREADY, message, pod=pod)
    if pod.spec.node_name:
        return BindOutcome(BindResult.CONFLICT, f"the pod is on {pod.spec.node_name}", pod=pod)
    if pod.metadata.deletion_timestamp:
        return BindOutcome(BindResult.TERMINATING, "the pod is being deleted", pod=pod)
    if pod.spec.scheduling_gates:
        return BindOutcome(BindResult.GATED, "the pod has scheduling gates", pod=pod)
    return BindOutcome(BindResult.REFUSED, message, passing=True)
