"""What a plan with victims asks of the API server: patches of pods' status, deletes, evictions; each may be repeated.

Sources: kube-parity.md 4.5 and 4.7, preemption.md 8. Gone is done. A refusal, the end of leadership or an API server
that cannot be had drops the plan that asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordpy.api.pod_endings import DISRUPTED
from koordpy.api.times import rfc3339
from koordpy.engine.client.api_client import MAX_RETRY_AFTER_SECONDS
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import PODS
from koordpy.engine.client.backoff import Backoff
from koordpy.engine.engine_context import Context
from koordpy.engine.status.status_patches import patch_status
from koordpy.pods.pod_info import PodInfo

WORKERS = 32
"""Writes at a time: sixteen take longer, sixty-four do not take less, and each is a connection."""
TRIES = 4
Thing = TypeVar("Thing")
Reply = TypeVar("Reply")
TOO_MANY, NOT_FOUND, CONFLICT = 429, 404, 409


Wanted = Callable[[], None]
"""Asked before each call that ends a pod, for the one before may have taken long; raises Dropped."""


class Dropped(Exception):
    """The plan is not carried out further; the text says why."""


class EvictionCalls:
    """The calls of all plans, so many at a time."""

    def __init__(self, context: Context, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client, self._may_write, self._now = context.client, context.may_write, context.now
        self._sleep = sleep
        self._slots = asyncio.Semaphore(WORKERS)

    async def each(self, things: Sequence[Thing], call: Callable[[Thing], Awaitable[None]]) -> None:
        """All of them; the first failure is raised when all have ended."""

        async def one(thing: Thing) -> None:
            async with self._slots:
                await call(thing)

        for result in await asyncio.gather(*(one(thing) for thing in things), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def patch(self, info: PodInfo, status: Mapping[str, Any]) -> bool:
        """Patches a pod's status; False where it is gone or another one. Raises Dropped."""
        meta = info.pod.metadata
        sent = await self._send(lambda: patch_status(self._client, PODS, meta, status, kind="strategic"), info.key)
        return bool(sent)

    async def preempt(self, info: PodInfo, *, scheduler: str, wanted: Wanted) -> bool:
        """Marks a pod as preempted by a scheduler, and deletes it; whether the reply shows it gone. Raises Dropped."""
        condition = {
            "type": DISRUPTED,
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{scheduler}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": rfc3339(self._now()),
        }
        await self.patch(info, {"conditions": [condition]})
        path = PODS.path(info.namespace, info.name)
        reply = await self._send(lambda: self._client.delete(path, uid=info.uid), info.key, victim=info, wanted=wanted)
        return reply is not None and is_gone(reply, info.uid)

    async def evict(self, info: PodInfo, *, wanted: Wanted) -> None:
        """Asks the eviction API, which asks the PodDisruptionBudgets. Raises Dropped."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": info.name, "namespace": info.namespace},
            "deleteOptions": {"preconditions": {"uid": info.uid}},
        }
        path = PODS.path(info.namespace, info.name, "eviction")
        await self._send(lambda: self._client.post(path, body), info.key, victim=info, wanted=wanted)

    async def _send(
        self,
        call: Callable[[], Awaitable[Reply]],
        key: str,
        *,
        victim: PodInfo | None = None,
        wanted: Wanted = lambda: None,
    ) -> Reply | None:
        """The reply to a call that may be repeated. None: gone, and so is another pod under the name of a victim."""
        backoff = Backoff(first_seconds=0.05, most_seconds=2.0)
        while True:
            asked_to_wait = 0.0
            if not self._may_write():
                raise Dropped("leadership ended")
            wanted()
            try:
                return await call()
            except ApiError as error:
                if error.status == NOT_FOUND:
                    return None
                if error.status == CONFLICT and (victim is None or await self._has_gone(victim)):
                    return None
                if error.status == TOO_MANY and "disruption" in str(error).lower():
                    raise Dropped(f"pod {key}: {error}") from None
                asked_to_wait = min(error.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS)
                if (error.status < 500 and error.status not in (TOO_MANY, CONFLICT)) or backoff.tries == TRIES - 1:
                    raise Dropped(f"pod {key}: {error}") from None
            except Unreachable as error:
                if backoff.tries == TRIES - 1:
                    raise Dropped(f"pod {key}: {error}") from None
            await self._sleep(max(backoff.next(), asked_to_wait))

    async def _has_gone(self, victim: PodInfo) -> bool:
        """Whether a victim is ending or gone at the API server. False where that cannot be told."""
        try:
            pod = await self._client.read_pod(victim.namespace, victim.name)
        except (ApiError, Unreachable):
            return False
        return pod is None or pod.metadata.uid != victim.uid or bool(pod.metadata.deletion_timestamp)


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class _Deleted(msgspec.Struct, frozen=True):
    """The reply to a DELETE: the pod as it was left. A Status has no uid there."""

    metadata: _Meta = _Meta()


_deleted = msgspec.json.Decoder(_Deleted)


def is_gone(reply: bytes, uid: str) -> bool:
    """Whether the reply to a pod's deletion tells for certain that it is not there any more.

    A pod that is to end without delay is marked with a grace period of 0 and taken away in the same call, unless
    finalizers hold it (apiserver, registry/generic/registry/store.go, Delete). All others are told by the watch.
    """
    try:
        meta = _deleted.decode(reply).metadata
    except msgspec.DecodeError:
        return False
    return meta.uid == uid and meta.deletion_grace_period_seconds == 0 and not meta.finalizers
