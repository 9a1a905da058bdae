"""PodScheduled=False: what a pending pod is told, and how seldom (kube-parity.md 4.5).

A patch goes out only when reason or message differ from what the pod has. Counts that merely wobble are held back for
30 s, and a gang that waits for members is given a moment to be complete, a longer one while they come. A thousand
hopeless pods in an idle cluster cost one patch each. The FailedScheduling event goes with the patch.

A pod has one patch under way at a time, or an older one could arrive last and stay. What was sent counts as what the
pod has until the watch must have shown it; then the watch counts, for others write the condition as well.
"""

import asyncio
import logging
import math
from dataclasses import dataclass, replace

from koordpy.cluster.pods import PodInfo
from koordpy.engine.apiserver.client import ApiError, Unreachable
from koordpy.engine.context import Context
from koordpy.engine.status.patches import POD_SCHEDULED, condition_of, patch_pod_status, pod_unschedulable, wobbles
from koordpy.engine.status.reconciler import RETRY_SECONDS, TRUSTED_SECONDS
from koordpy.planning.plan import PendingPod

logger = logging.getLogger(__name__)

WORKERS = 16
MOST_HOLDS = 5
"""A gang whose members go on coming is told so after that many times the moment at the latest."""


@dataclass(slots=True)
class _WantedStatus:
    uid: str
    reason: str
    message: str
    since: float
    """When the pod first was to be told something else than it has been."""
    due: float


@dataclass(frozen=True, slots=True)
class _Told:
    """reason and message: empty where it is not known what became of a patch. until: on the clock."""

    uid: str
    reason: str
    message: str
    until: float = math.inf


class PodStatusWriter:
    """Takes verdicts at any time; `run()` sends what has to be sent."""

    def __init__(self, context: Context) -> None:
        self.sent = 0
        self._context = context
        self._told: dict[str, _Told] = {}
        self._wanted: dict[str, _WantedStatus] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self.lined_up: set[str] = set()
        """Keys of pods whose verdicts wait for nothing but their turn."""
        self._sending: set[str] = set()

    def tell(self, pending: PendingPod, info: PodInfo) -> None:
        """A verdict on a pending pod."""
        key, reason, message = pending.pod_key, pending.reason.value, pending.message
        told = self._sent_of(info)
        if told is None:
            there = condition_of(info.pod.status.conditions, POD_SCHEDULED)
            told = _Told(info.uid, there.reason, there.message) if there and there.status == "False" else None
        if told is not None and (told.reason, told.message) == (reason, message):
            self._wanted.pop(key, None)
            return
        now = since = self._context.clock()
        due, hold = now, self._context.settings.gated_hold_seconds
        if told is not None and told.reason == reason and wobbles(told.message, message):
            due = now + self._context.settings.wobble_hold_seconds
        elif pending.gated:
            due = now + hold
        waiting = self._wanted.get(key)
        if waiting is not None and waiting.uid == info.uid:
            since = waiting.since
            grows = told is None and pending.gated and waiting.message != message
            # held since it first differed, not since it last did
            due = min(due, since + MOST_HOLDS * hold if grows else waiting.due)
        self._wanted[key] = _WantedStatus(info.uid, reason, message, since, due)
        if due <= now:
            self._line_up(key)

    def _sent_of(self, info: PodInfo) -> _Told | None:
        """What a pod was sent that its copy here need not show yet."""
        told = self._told.get(info.key)
        return told if told is not None and told.uid == info.uid and self._context.clock() <= told.until else None

    def gone(self, key: str) -> None:
        """The pod is deleted, finished or bound: nothing more is said to it."""
        self._told.pop(key, None)
        self._wanted.pop(key, None)

    def waiting(self) -> int:
        """Verdicts not sent yet, held ones included."""
        return len(self._wanted)

    async def run(self) -> None:
        """Sends verdicts until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())
            while True:
                await asyncio.sleep(0.1 if self._wanted else 0.25)
                self.release_due()

    def release_due(self) -> None:
        """Lines up the held verdicts whose time has come."""
        now = self._context.clock()
        for key, want in self._wanted.items():
            if want.due <= now:
                self._line_up(key)

    def _line_up(self, key: str) -> None:
        if key not in self.lined_up:
            self.lined_up.add(key)
            self._ready.put_nowait(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self.lined_up.discard(key)
            try:
                await self._send(key)
            except Exception:
                logger.exception("pod %s: its status was not written", key)

    async def _send(self, key: str) -> None:
        want = self._wanted.get(key)
        if want is None or want.due > self._context.clock() or key in self._sending or not self._context.may_write():
            return
        del self._wanted[key]
        info = self._context.state.pod(key)
        if info is None or info.uid != want.uid or not info.pending:
            return
        anew = self._sent_of(info) is not None
        body = pod_unschedulable(
            info.pod, reason=want.reason, message=want.message, now=self._context.moment(), anew=anew
        )
        if body is None:
            return
        self._sending.add(key)
        told = self._told[key] = _Told(want.uid, want.reason, want.message)
        became: _Told | None = _Told(want.uid, "", "")
        try:
            if await patch_pod_status(self._context.client, info.pod, body):
                self.sent += 1
                self._context.announcer.failed(info, want.message)
                became = replace(told, until=self._context.clock() + TRUSTED_SECONDS)
            else:
                # gone, which the watch will tell; or others wrote it again and again
                became = None
                self._wanted.setdefault(key, replace(want, due=self._context.clock() + RETRY_SECONDS))
        except (ApiError, Unreachable) as error:
            if not self._context.client.complained(error, "patch", "pods/status"):
                logger.warning("pod %s: its condition was not written: %s", key, error)
            self._wanted.setdefault(key, replace(want, due=self._context.clock() + RETRY_SECONDS))
        finally:
            self._sending.discard(key)
            if self._told.get(key) is told:
                if became is None:
                    del self._told[key]
                else:
                    self._told[key] = became
            if key in self._wanted:
                self._line_up(key)
