# SPDX-License-Identifier: Apache-2.0
"""Sends one Binding by POST, and finds out its outcome with certainty (kube-parity.md 4.4).

A Binding sets nodeName, PodScheduled=True and the annotations in one write, with the uid as its precondition. If the
reply is lost or ambiguous, no second POST is sent, because the first one may still take effect. Instead the pod is read
until the outcome is known.
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
from koordpy.engine.client.token_bucket import UNLIMITED

logger = logging.getLogger(__name__)


class BindResult(enum.StrEnum):
    """The result of a Binding; the values are the labels of koordpy_binds_total."""

    BOUND = "bound"
    """The pod is on the planned node, bound by this process."""
    ALREADY = "already"
    """The pod is on the planned node, bound by another process: an earlier leader, or another scheduler."""
    GONE = "gone"
    """The pod does not exist, or has another uid."""
    CONFLICT = "conflict"
    """The pod is on another node."""
    TERMINATING = "terminating"
    """The pod is being deleted."""
    GATED = "gated"
    """The pod has scheduling gates again."""
    REFUSED = "refused"
    """The pod is not bound; it may be planned again, after `retry_after` seconds if the server asks for a pause."""
    UNKNOWN = "unknown"
    """Leadership ended before the outcome was known. The pod stays assumed."""
    NOT_SENT = "not_sent"
    """Nothing was sent, because `may_send` returned False."""


class Binding(msgspec.Struct, frozen=True):
    """A pod (with its uid), its node, and the annotations to write."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = {}


class BindOutcome(msgspec.Struct, frozen=True):
    """The outcome of one Binding."""

    result: BindResult
    message: str = ""
    """Error of the API server, for logs and conditions; empty if the POST succeeded."""
    retry_after: float | None = None
    """Seconds of the pause that the server asks for; None if it does not ask for one."""
    passing: bool = False
    """True if the cause of a refusal is usually temporary: too many requests, a conflict, a server or network error."""
    seconds: float = 0.0
    """Duration of the call, in seconds."""
    pod: Pod | None = None
    """The pod as read after the POST, if it is bound by another process, being deleted, or gated; else None."""


class Binder:
    """Sends Bindings. The caller limits their number in flight."""

    def __init__(
        self,
        client: ApiClient,
        *,
        clock: Callable[[], float] = time.monotonic,
        settle_seconds: float = 2.0,
    ) -> None:
        """settle_seconds: how long a Binding may still take effect after its reply was lost."""
        self._client, self._clock, self._settle_seconds = client, clock, settle_seconds

    async def take_turn(self) -> bool:
        """Waits until the client's rate limit allows one more call, for `bind`, which does not wait for it. So the
        caller can check the Binding again after the wait. Returns True if it had to wait."""
        return await self._client.bucket.take()

    async def bind(self, binding: Binding, *, may_send: Callable[[], bool] = lambda: True) -> BindOutcome:
        """Binds one pod. Does not raise for errors of the API server.

        may_send: returns True while this process leads; called before the POST and while the outcome is unknown.
        """
        began = self._clock()
        if not may_send():
            return BindOutcome(BindResult.NOT_SENT, "leadership ended before it was sent")
        outcome = await self._post(binding, may_send)
        return replace(outcome, seconds=self._clock() - began)

    async def _post(self, binding: Binding, may_send: Callable[[], bool]) -> BindOutcome:
        """Sends the POST. Returns the outcome of the Binding; reads the pod if the reply does not prove an outcome."""
        metadata: dict[str, Any] = {"name": binding.name, "namespace": binding.namespace, "uid": binding.uid}
        if binding.annotations:
            metadata["annotations"] = binding.annotations
        target = {"apiVersion": "v1", "kind": "Node", "name": binding.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            await self._client.post(PODS.path(binding.namespace, binding.name, "binding"), body, bucket=UNLIMITED)
        except ApiError as error:
            return await self._after_error(binding, error, may_send)
        except Unreachable as error:
            if not error.sent:
                return BindOutcome(BindResult.REFUSED, str(error), passing=True)
            return await self._resolve(binding, str(error), may_send, settle=self._settle_seconds)
        return BindOutcome(BindResult.BOUND)

    async def _after_error(self, binding: Binding, error: ApiError, may_send: Callable[[], bool]) -> BindOutcome:
        """Returns the outcome after an error of the API server, by its HTTP status."""
        if error.status in (404, 409):
            # a proxy may have sent the 404: GONE discards the pod, so a read must confirm it
            return await self._resolve(binding, str(error), may_send, settle=0.0)
        if error.status >= 500:
            settle = self._settle_seconds if _may_be_written_yet(error) else 0.0
            return await self._resolve(binding, str(error), may_send, settle=settle)
        busy = error.status == 429
        return BindOutcome(BindResult.REFUSED, str(error), retry_after=error.retry_after, passing=busy)

    async def _resolve(
        self, binding: Binding, message: str, may_send: Callable[[], bool], *, settle: float
    ) -> BindOutcome:
        """Reads the pod until the outcome of the Binding is known, or until leadership ends.

        message: error of the POST. settle: seconds in which the write may still take effect. A read in this time that
        shows an unbound pod proves nothing.
        """
        began, backoff = self._clock(), Backoff(0.05, 2.0)
        while True:
            asked = self._clock()
            try:
                pod = await self._client.read_pod(binding.namespace, binding.name)
            except (ApiError, Unreachable) as error:
                message = f"{message}; then {error}" if backoff.tries == 0 else message
            else:
                # an unbound pod proves nothing while the write may still take effect
                outcome = _outcome_of(binding, pod, message)
                if outcome.result is not BindResult.REFUSED or asked - began >= settle:
                    return outcome
            if not may_send():
                return BindOutcome(BindResult.UNKNOWN, message)
            if backoff.tries == 4:
                logger.warning(
                    "pod %s/%s: outcome of its Binding still unknown: %s", binding.namespace, binding.name, message
                )
            await asyncio.sleep(backoff.next())


def _may_be_written_yet(error: ApiError) -> bool:
    """Returns True if a failed write may still take effect: the server timed out (504), or the store did (a 500 with an
    etcd timeout or leader change)."""
    return error.status == 504 or "etcdserver:" in error.message


def _outcome_of(binding: Binding, pod: Pod | None, message: str) -> BindOutcome:
    """Returns the outcome that a later read of the pod shows; REFUSED if the pod is not bound."""
    if pod is None:
        return BindOutcome(BindResult.GONE, "the pod does not exist any more")
    if pod.metadata.uid != binding.uid:
        return BindOutcome(BindResult.GONE, f"the pod was replaced by another one (uid {pod.metadata.uid})")
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
