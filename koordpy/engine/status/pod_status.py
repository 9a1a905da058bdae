"""PodScheduled=False: what a pending pod is told, and how seldom (kube-parity.md 4.5).

A patch goes out only when reason or message differ from what the pod has. Counts that merely wobble are held back for
30 s, and a gang that waits for members is given a moment to be complete, a longer one while they come. A thousand
hopeless pods in an idle cluster cost one patch each. The FailedScheduling event goes with the patch.

A pod has one patch under way at a time, or an older one could arrive last and stay. What others write of the condition
stands until the pod is told something again.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from koordpy.api.objects import Pod, condition_of
from koordpy.engine.client.api_resources import PODS, Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.status.reconciler import RETRY_SECONDS, StatusWriter
from koordpy.engine.status.scheduler_events import FAILED
from koordpy.engine.status.status_patches import POD_SCHEDULED, patch_status, pod_unschedulable, wobbles
from koordpy.plan.round_plan import PendingPod
from koordpy.pods.pod_info import PodInfo

MOST_HOLDS = 5
"""A gang whose members go on coming is told so after that many times the moment at the latest."""
LOOK_SECONDS = 0.1
"""How often held verdicts are looked at."""

Said = tuple[str, str] | None
"""Reason and message of the condition; None where it is not there, or True."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    uid: str
    said: Said
    since: float
    """When the pod first was to be told something else than it has been."""


class PodStatusWriter(StatusWriter[Pod, Said]):
    """Takes verdicts at any time, each to be sent once."""

    most_at_a_time = 16
    """A hopeless gang of hundreds is told as soon as the API server can; more are no faster."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._verdicts: dict[str, _Verdict] = {}
        self.news = asyncio.Event()
        """Set while a verdict waits for nothing but its turn."""

    def tell(self, pending: PendingPod, info: PodInfo) -> None:
        """A verdict on a pending pod."""
        key, said = pending.pod_key, (pending.reason.value, pending.message)
        known = self._there(key, info.pod)
        if said == known and key not in self._unsure:
            self._verdicts.pop(key, None)
            self._marked.pop(key, None)
            return
        now = since = self._context.clock()
        due, hold = now, self._context.settings.gated_hold_seconds
        if known is not None and known[0] == said[0] and wobbles(known[1], said[1]):
            due = now + self._context.settings.wobble_hold_seconds
        elif pending.gated:
            due = now + hold
        waiting = self._verdicts.get(key)
        if waiting is not None and waiting.uid == info.uid:
            since = waiting.since
            grows = known is None and pending.gated and waiting.said != said
            # held since it first differed, not since it last did
            due = min(due, since + MOST_HOLDS * hold if grows else self._marked.get(key, due))
        self._verdicts[key] = _Verdict(info.uid, said, since)
        self.mark(key, due)
        if due <= now:
            self.news.set()

    def gone(self, key: str) -> None:
        """Nothing more is said to a pod: it is deleted, finished or bound."""
        self._forget(key)
        self._marked.pop(key, None)

    def forget(self, there: object) -> None:
        """Lets go of what was written long since: a write may be answered when its pod is gone."""
        self._writes.forget_old()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self.news.wait()
        self.news.clear()

    async def _look(self, key: str) -> bool:
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

    async def _send(self, obj: Pod, resource: Resource, wanted: Said, there: Said) -> bool:
        assert wanted is not None
        now, (reason, message) = self._context.now(), wanted
        status = pod_unschedulable(obj, reason=reason, message=message, now=now, anew=True)
        if await patch_status(self._context.client, resource, obj.metadata, status, kind="strategic"):
            return True
        # gone, which the watch will tell; or others wrote it again and again
        self._marked.setdefault(obj.key, self._context.clock() + RETRY_SECONDS)
        return False

    def _written(self, key: str, said: Said, wanted: Said) -> None:
        if (verdict := self._verdicts.get(key)) is not None and verdict.said == wanted:
            del self._verdicts[key]
        info = self._context.state.pod(key)
        if info is not None and wanted is not None:
            self._context.announcer.tell(FAILED, info, wanted[1])

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._verdicts.pop(key, None)
