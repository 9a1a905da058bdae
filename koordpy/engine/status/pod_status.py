# SPDX-License-Identifier: Apache-2.0
"""Writes the condition PodScheduled=False of pending pods, as seldom as possible (kube-parity.md 4.5).

A round's verdict on a pod (reason and message) is patched only if it differs from the pod's condition. If the messages
differ only in numbers, the patch is delayed by 30 s. The reason NotReadyForScheduling is written only after 5 s,
because by then most gangs have all their members. A FailedScheduling event follows each patch. As a result, each
unschedulable pod in an idle cluster is patched once.

A pod has at most one patch in flight, because otherwise an older patch could arrive last. Changes of the condition by
other writers remain until the pod gets a new verdict.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from koordpy.api.objects import Pod, condition_of
from koordpy.engine.client.api_resources import PODS, Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.status.reconciler import RETRY_SECONDS, StatusWriter
from koordpy.engine.status.scheduler_events import FAILED
from koordpy.engine.status.status_patches import POD_SCHEDULED, differs_in_numbers, patch_status, pod_unschedulable
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import PendingPod
from koordpy.pods.pod_info import PodInfo

LOOK_SECONDS = 0.1
"""Seconds between checks of delayed verdicts."""

Said = tuple[str, str] | None
"""Reason and message of the condition; None if it is absent or True."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A verdict that is not written yet."""

    uid: str
    """uid of the pod."""
    said: Said
    since: float
    """Clock time at which the verdict first differed from the pod's condition."""


class PodStatusWriter(StatusWriter[Pod, Said]):
    """Accepts verdicts at any time, and writes the latest one of each pod."""

    most_at_a_time = 16
    """Maximum number of parallel writes; more are not faster for a gang with hundreds of members."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._verdicts: dict[str, _Verdict] = {}
        """Pod key -> its latest verdict, until that is written."""
        self.news = asyncio.Event()
        """Set while a verdict is due and not written yet."""

    def tell(self, pending: PendingPod, info: PodInfo) -> None:
        """Accepts a verdict on a pending pod. Drops the pod's earlier verdict if that is not written yet.

        Marks the pod for a write now. The write is delayed if the reason is NotReadyForScheduling, or if only numbers
        have changed.
        """
        # known: the condition as last written or seen
        key, said = pending.pod_key, (pending.written_reason.value, pending.message)
        known = self._current(key, info.pod)
        # a write under way may be of another verdict, which would stay
        if said == known and key not in self._unsure and key not in self.under_way:
            self._verdicts.pop(key, None)
            self._marked.pop(key, None)
            return
        now = since = self._context.clock()
        due, hold = now, self._context.settings.not_ready_hold_seconds
        if known is not None and known[0] == said[0] and differs_in_numbers(known[1], said[1]):
            due = now + self._context.settings.wobble_hold_seconds
        elif pending.reason is Reason.NOT_READY:
            due = now + hold
        waiting = self._verdicts.get(key)
        if waiting is not None and waiting.uid == info.uid:
            since = waiting.since  # the delay is counted from the first difference on
            due = min(due, self._marked.get(key, due))
        self._verdicts[key] = _Verdict(info.uid, said, since)
        self.mark(key, due)
        if due <= now:
            self.news.set()

    def gone(self, key: str) -> None:
        """Drops the verdict on a pod that is deleted or finished."""
        self._forget(key)
        self._marked.pop(key, None)

    def forget(self, there: object) -> None:
        """Forgets old writes, so that pods that were deleted before the reply arrived leave no record. there: not used,
        because old writes of all pods are dropped."""
        self._writes.forget_old()

    async def _pause(self) -> None:
        """Waits for a verdict that is due at once, at most `LOOK_SECONDS`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self.news.wait()
        self.news.clear()

    async def _look(self, key: str) -> bool:
        """Does the same as `StatusWriter._look`. A verdict that arrived during the write is written without a pause."""
        looked = await super()._look(key)
        if key in self._marked:
            self.news.set()
        return looked

    def _find(self, key: str) -> tuple[Pod, Resource] | None:
        verdict, info = self._verdicts.get(key), self._context.state.pod(key)
        there = verdict is not None and info is not None and info.uid == verdict.uid and info.pending
        return (info.pod, PODS) if there and info is not None else None

    def _read(self, obj: Pod) -> Said:
        there = condition_of(obj.status.conditions, POD_SCHEDULED)
        return (there.reason, there.message) if there is not None and there.status == "False" else None

    def _render(self, key: str, obj: Pod, there: Said) -> Said:
        return self._verdicts[key].said

    async def _send(self, obj: Pod, resource: Resource, wanted: Said, there: Said | None) -> bool:
        """Patches the condition, even if the pod in the cache has it already. Returns False if the pod is deleted, or
        if other writers keep changing it."""
        assert wanted is not None
        now, (reason, message) = self._context.now(), wanted
        status = pod_unschedulable(obj, reason=reason, message=message, now=now, force=True)
        if await patch_status(self._context.client, resource, obj.metadata, status, kind="strategic"):
            return True
        # the pod is deleted, which the watch will show, or other writers keep changing it
        self._marked.setdefault(obj.key, self._context.clock() + RETRY_SECONDS)
        return False

    def _written(self, key: str, said: Said, wanted: Said) -> None:
        """Drops the written verdict, and emits its FailedScheduling event."""
        if (verdict := self._verdicts.get(key)) is not None and verdict.said == wanted:
            del self._verdicts[key]
        info = self._context.state.pod(key)
        if info is not None and wanted is not None:
            self._context.announcer.tell(FAILED, info, wanted[1])

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._verdicts.pop(key, None)
