# SPDX-License-Identifier: Apache-2.0
"""API calls of a plan with victims: status patches, deletes and evictions, with retries.

Every call names the uid of the pod, so that it can be repeated safely. A call for a victim that is already deleted
counts as a success. The plan is dropped (`Dropped`) if the API server refuses a call or stays unreachable, or if
leadership ends. Sources: kube-parity.md 4.5 and 4.7, preemption.md 8.
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
"""Maximum number of parallel calls, by measurement: 16 are slower, and 64 are not faster."""
TRIES = 4
"""Maximum number of tries of one call."""
Thing = TypeVar("Thing")
Reply = TypeVar("Reply")
TOO_MANY, NOT_FOUND, CONFLICT = 429, 404, 409


Wanted = Callable[[], None]
"""Check before each call that deletes or evicts a pod: raises Dropped if the plan needs the victim no longer. Earlier
calls may have taken long."""


class Dropped(Exception):
    """The rest of the plan is not carried out; the text says why."""


class EvictionCalls:
    """Sends the calls of all plans, at most `WORKERS` at a time."""

    def __init__(self, context: Context, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client, self._may_write, self._now = context.client, context.may_write, context.now
        self._sleep = sleep
        self._slots = asyncio.Semaphore(WORKERS)

    async def each(self, things: Sequence[Thing], call: Callable[[Thing], Awaitable[None]]) -> None:
        """Runs a call for every item, in parallel. Raises the first error after all calls have ended."""

        async def one(thing: Thing) -> None:
            async with self._slots:
                await call(thing)

        for result in await asyncio.gather(*(one(thing) for thing in things), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def patch(self, info: PodInfo, status: Mapping[str, Any]) -> bool:
        """Patches a pod's status. Returns False if the pod was deleted or replaced. Raises Dropped."""
        meta = info.pod.metadata
        sent = await self._send(lambda: patch_status(self._client, PODS, meta, status, kind="strategic"), info.key)
        return bool(sent)

    async def preempt(self, info: PodInfo, *, scheduler: str, wanted: Wanted) -> bool:
        """Marks a pod as preempted, and deletes it. Returns True if it is removed already. Raises Dropped."""
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
        """Evicts a pod by the eviction API, which honours PodDisruptionBudgets. Raises Dropped."""
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
        """Sends a call up to `TRIES` times. Returns the reply; None if the pod is deleted or replaced already.

        key: of the pod, for messages. victim: the pod if the call deletes or evicts it. None for a status patch: a
        conflict (409) then means that the pod was replaced. wanted: called before each try. Raises Dropped.
        """
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
                    # a PodDisruptionBudget refuses the eviction; any other 429 is a rate limit
                    raise Dropped(f"pod {key}: {error}") from None
                asked_to_wait = min(error.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS)
                if (error.status < 500 and error.status not in (TOO_MANY, CONFLICT)) or backoff.tries == TRIES - 1:
                    raise Dropped(f"pod {key}: {error}") from None
            except Unreachable as error:
                if backoff.tries == TRIES - 1:
                    raise Dropped(f"pod {key}: {error}") from None
            await self._sleep(max(backoff.next(), asked_to_wait))

    async def _has_gone(self, victim: PodInfo) -> bool:
        """Returns True if a victim is terminating or deleted at the API server; False also if it cannot be read."""
        try:
            pod = await self._client.read_pod(victim.namespace, victim.name)
        except (ApiError, Unreachable):
            return False
        return pod is None or pod.metadata.uid != victim.uid or bool(pod.metadata.deletion_timestamp)


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that proves a deletion (`is_gone`)."""

    uid: str = ""
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class _Deleted(msgspec.Struct, frozen=True):
    """The reply to a DELETE: the pod in its last state. A Status has no uid in its metadata."""

    metadata: _Meta = _Meta()


_deleted = msgspec.json.Decoder(_Deleted)


def is_gone(reply: bytes, uid: str) -> bool:
    """Returns True if the reply to a pod's deletion proves that the pod does not exist any more.

    A pod that ends without delay is marked with a grace period of 0 and removed in the same call, unless it has
    finalizers (apiserver, registry/generic/registry/store.go, Delete). For all other pods the watch decides.
    """
    try:
        meta = _deleted.decode(reply).metadata
    except msgspec.DecodeError:
        return False
    return meta.uid == uid and meta.deletion_grace_period_seconds == 0 and not meta.finalizers
