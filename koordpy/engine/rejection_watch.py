# SPDX-License-Identifier: Apache-2.0
"""Reports pods that kubelets have rejected: metrics, events, and wake-ups when a node takes such pods again.

After rejections, a node is closed for some time to pods of the same request shape. The memory of rejections
(`koordpy/rejections`) has these closures. It gets rejected pods when the watch delivers them (`PodChanges.take_in`),
and each round's snapshot reads it. A closure may end while no round runs, so this module updates the memory every
second unless it is empty. Source: numa.md 8 and 9.
"""

import asyncio
import logging

from koordpy.api.times import rfc3339
from koordpy.engine.engine_context import Context
from koordpy.engine.status.scheduler_events import NODE_BACKED_OFF, NODE_GIVEN_BACK
from koordpy.engine.wakeups import Wake
from koordpy.rejections.closed_nodes import ClosedNode
from koordpy.rejections.rejection_memory import ClosureNews
from koordpy.rejections.rejection_reading import OUT_OF, TOPOLOGY

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval of updates in seconds. Units wake at most this long after the end of a closure."""


class RejectionWatch:
    """Reports changes of closures. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._state, self._queue, self._now = context.state, context.queue, context.now
        self._metrics, self._announcer, self._references = context.metrics, context.announcer, context.references

    async def run(self) -> None:
        """Updates the memory periodically until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Updates the memory, counts new rejections, and reports closures that began or ended."""
        if self._state.rejections is None:
            return
        memory = self._state.rejections.memory
        self._state.closed_nodes(self._now())
        for node, reason in memory.counted:
            logger.warning("a pod was rejected by the kubelet of node %s: %s", node, reason)
            self._metrics.rejections.labels(OUT_OF if reason.startswith(OUT_OF) else reason).inc()
            if reason == TOPOLOGY and any(book.predicts_admission(node) for book in self._state.families.values()):
                self._metrics.numa_mispredicted.inc()
        for reason in memory.explained:
            self._metrics.conflicts.labels(f"kubelet_{reason}").inc()
        memory.counted.clear()
        memory.explained.clear()
        news = [*memory.news]
        memory.news.clear()
        for one in news:
            self._tell(one)
        if any(one.ended is not None for one in news):
            self._queue.broadcast(Wake.NODE_OPENED, "NodeGivenBack")

    def _tell(self, news: ClosureNews) -> None:
        """Emits the event of a change on its node, if the node exists."""
        about = self._references.warned(f"Node/{news.node}")
        if about is None:
            return
        if news.ended is not None:
            if not isinstance(news.closed, ClosedNode):
                self._announcer.tell(NODE_GIVEN_BACK, about, f"open again to pods of shape {news.shape}: {news.ended}")
            return
        closed, until = news.closed, rfc3339(news.closed.until)
        if isinstance(closed, ClosedNode):
            pods = f"pods with {' or '.join(closed.resources)}" if closed.resources else "pods"
            note = f"{closed.shapes} shapes are rejected ({closed.reason}): no {pods} before {until}"
        else:
            note = f"pods of shape {closed.text} are rejected ({closed.reason}): none before {until}"
        self._announcer.tell(NODE_BACKED_OFF, about, note)
