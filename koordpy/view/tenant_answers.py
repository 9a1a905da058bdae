# SPDX-License-Identifier: Apache-2.0
"""Answers questions of tenants in a running scheduler, and limits the time that this takes.

All tenants share one view of the cluster. Snapshots are taken on the event loop. Two threads do all other work: one for
documents, and one for explanations, so that only one explanation is computed at a time. After an explanation there is a
pause in proportion to its duration: a long pause for its namespace, and a short pause for all. Namespaces take turns.
If an explanation is not ready in time, the answer is sent without it. The limits are in `plan/limits.py`.
"""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.planning_turns import Turnstile
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.limits import (
    ANSWER_SECONDS,
    ANSWERS_HELD_SECONDS,
    ANSWERS_KEPT,
    BOARD_PACE,
    BOARD_SECONDS,
    QUESTIONS_OPEN_EACH,
    TENANT_PACE,
    TENANT_PAUSE_SECONDS,
    TENANTS_METERED,
    WORK_PACE,
    WORK_PAUSE_SECONDS,
)
from koordpy.view.document_rows import Remarks
from koordpy.view.live_documents import taken_of, told_by
from koordpy.view.tenant_view import (
    Document,
    SharedView,
    board_of,
    default_resource,
    explanation_document,
    first_waiting,
    page_document,
    queue_document,
    slots_document,
    subject_of,
    why_document,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Take = Callable[[], tuple[Snapshot, Mapping[str, str]]]
"""Returns a current snapshot, and unit -> its last message. Raises NotReadyError."""


class UnknownResourceError(Exception):
    """No node has the resource; the message is one line."""


class Answers:
    """Computes documents for tenants. Used by one event loop. The caller must have checked the user's rights."""

    def __init__(
        self,
        take: Take,
        config: KoordpyConfiguration,
        *,
        tell: Callable[[], Remarks] = Remarks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """tell: returns the scheduler's remarks; called on the loop."""
        self._tell = tell
        self._take, self._config, self._clock = take, config, clock
        self._board: SharedView | None = None
        self._board_until = self._board_made = -math.inf
        self._boarding = asyncio.Lock()
        self._turns = Turnstile(1)
        self._due = -math.inf
        """Earliest time of the next explanation of any namespace, on `clock`."""
        self._tenants_due: OrderedDict[str, float] = OrderedDict()
        """Namespace -> earliest time of its next explanation, on `clock`."""
        self._known: OrderedDict[tuple[str, str], tuple[float, Document]] = OrderedDict()
        """(namespace, question) -> (time until which the answer is valid, the answer)."""
        self._running: dict[tuple[str, str], asyncio.Task[Document]] = {}
        self._quick = ThreadPoolExecutor(1, "tenants")
        self._slow = ThreadPoolExecutor(1, "tenants-explain")

    def close(self) -> None:
        """Cancels questions, and explanations that have not begun."""
        for task in self._running.values():
            task.cancel()
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)

    async def why(self, namespace: str, name: str) -> Document:
        """Returns why a pod, gang or workload is pending. Raises NotReadyError and UnknownSubjectError."""
        board = await self._seen()
        subject = await self._quickly(lambda: subject_of(board, namespace, name))
        first = first_waiting(board, subject)
        explained: Document | None = None
        wait = 0.0
        if first is not None and first.namespace == namespace:
            pod = first
            unit = board.groups.unit_of(pod).id
            explained, wait = await self._worked(
                namespace, f"why {unit} {pod.key}", lambda: explanation_document(board, namespace, pod)
            )
        document = await self._quickly(lambda: why_document(board, namespace, subject, explained))
        return {**document, **self._as_of(board), "explanationInSeconds": math.ceil(wait) if wait else None}

    async def queue(self, namespace: str) -> Document:
        """Returns the namespace's rows of the queue. Raises NotReadyError."""
        board = await self._seen()
        return {**await self._quickly(lambda: queue_document(board, namespace)), **self._as_of(board)}

    async def slots(self, namespace: str, resource: str, each: int) -> Document:
        """Returns free slots for pods with `each` devices. resource: empty for the first accelerator that a node has.

        Raises NotReadyError and UnknownResourceError.
        """
        board = await self._seen()
        name = resource or default_resource(board.snapshot, self._config)
        if name not in board.snapshot.offered_resources:
            raise UnknownResourceError(f"no node has {name}" if resource else "no node has accelerators")
        found, wait = await self._worked(namespace, f"slots {name} {each}", lambda: slots_document(board, name, each))
        if found is None:
            return {"resource": name, "each": each, "gangs": None, "retryInSeconds": math.ceil(wait)}
        return {**found, **self._as_of(board)}

    async def page(self, namespace: str) -> Document:
        """Returns the web UI's document for a namespace (docs/view.md), or the time after which the client may ask
        again.

        Raises NotReadyError.
        """
        board, told = await self._seen(), self._tell()
        found, wait = await self._worked(namespace, "page", lambda: page_document(board, namespace, told))
        return {"page": found, "retryInSeconds": math.ceil(wait) if wait else None, **self._as_of(board)}

    def _as_of(self, board: SharedView) -> Document:
        return {"taken": board.snapshot.now, "secondsAgo": round(self._clock() - self._board_made, 1)}

    async def _quickly(self, make: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._quick, make)

    async def _seen(self) -> SharedView:
        """Returns the view of the cluster; takes a new one if the last is too old. Raises NotReadyError."""
        async with self._boarding:
            if self._board is not None and self._clock() < self._board_until:
                return self._board
            snapshot, messages = self._take()
            began = self._clock()
            board = await self._quickly(lambda: board_of(snapshot, self._config, messages))
            now = self._clock()
            held = max(BOARD_SECONDS, BOARD_PACE * (now - began))
            self._board, self._board_until, self._board_made = board, now + held, began
            asyncio.get_running_loop().call_later(held + ANSWERS_HELD_SECONDS, self._forget, board)
            return board

    def _forget(self, board: SharedView) -> None:
        """Drops a view that has expired, so that its pods are not kept in memory."""
        if self._board is board:
            self._board, self._board_until = None, -math.inf

    async def _worked(self, namespace: str, what: str, make: Callable[[], Document]) -> tuple[Document | None, float]:
        """Returns (answer, 0), or (None, seconds after which the client may ask again)."""
        key, now = (namespace, what), self._clock()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1], 0.0
        task = self._running.get(key)
        if task is None:
            pause = self._tenants_due.get(namespace, -math.inf) - now
            if pause > ANSWER_SECONDS or sum(one[0] == namespace for one in self._running) >= QUESTIONS_OPEN_EACH:
                return None, max(pause, ANSWER_SECONDS)
            task = asyncio.create_task(self._work(key, make))
            self._running[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS)
        if done:
            return task.result(), 0.0
        return None, max(ANSWER_SECONDS, self._due - self._clock())

    def _end(self, key: tuple[str, str], task: asyncio.Task[Document]) -> None:
        self._running.pop(key, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("a question of namespace %s could not be answered: %s", key[0], fault)

    async def _work(self, key: tuple[str, str], make: Callable[[], Document]) -> Document:
        """Computes an answer when it is the namespace's turn, and sets the pauses after it."""
        namespace = key[0]
        await asyncio.sleep(max(0.0, self._tenants_due.get(namespace, -math.inf) - self._clock()))
        async with self._turns.turn(namespace):
            await asyncio.sleep(max(0.0, self._due - self._clock()))
            began = self._clock()
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._slow, make)
            finally:
                now = self._clock()
                took = now - began
                self._due = now + min(WORK_PAUSE_SECONDS, WORK_PACE * took)
                _put(self._tenants_due, namespace, now + min(TENANT_PAUSE_SECONDS, TENANT_PACE * took), TENANTS_METERED)
        _put(self._known, key, (self._clock() + ANSWERS_HELD_SECONDS, found), ANSWERS_KEPT)
        return found


def _put(known: OrderedDict[Any, Any], key: object, value: object, most: int) -> None:
    """Sets an entry, and deletes the oldest one if there are more than `most`."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def answers_of(scheduler: Scheduler, config: KoordpyConfiguration) -> Answers:
    """Returns the answers from the caches of a scheduler. A standby answers, too."""

    def take() -> tuple[Snapshot, Mapping[str, str]]:
        return taken_of(scheduler)[0], scheduler.decisions.messages.copy()

    def tell() -> Remarks:
        return told_by(scheduler.decisions, source="")

    return Answers(take, config, tell=tell)
