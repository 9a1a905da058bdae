# SPDX-License-Identifier: Apache-2.0
"""Reads a pod if the API server has accepted its Binding, but the watch does not show the pod as bound in time.

There are two causes. The watch may be slow; or the pod may be deleted, replaced or, after a restore of etcd, unbound.
Until the read shows which, the pod stays assumed on its node. Source: kube-parity.md 4.2.
"""

import asyncio
import logging
from dataclasses import dataclass

from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.engine_context import Context
from koordpy.engine.wakeups import Wake

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unconfirmed:
    """One accepted Binding: uid and node name of the pod."""

    uid: str
    node: str
    since: float
    """Clock time at which the API server accepted the Binding, or of the last read that showed it."""


class Confirmations:
    """Bound pods that the watch does not show on their nodes yet. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._client, self._feeds, self._state = context.client, context.feeds, context.state
        self._queue, self._clock = context.queue, context.clock
        self._unconfirmed_seconds = context.settings.unconfirmed_seconds
        """A pod is read after it was unconfirmed for this long."""
        self._unconfirmed: dict[str, _Unconfirmed] = {}
        """Pod key -> its Binding."""

    def bound(self, key: str, uid: str, node: str) -> None:
        """Records a Binding that the API server has accepted. The watch may have shown it already."""
        if self._state.assumed_node(key) is not None:
            self._unconfirmed[key] = _Unconfirmed(uid, node, self._clock())

    async def run(self) -> None:
        """Checks unconfirmed Bindings until cancelled."""
        while True:
            await asyncio.sleep(min(5.0, self._unconfirmed_seconds / 4))
            await self.look()

    async def look(self) -> None:
        """Reads assumed pods that the watch did not confirm in time, and compares their uid and node with the plan."""
        limit = self._clock() - self._unconfirmed_seconds
        for key, waiting in list(self._unconfirmed.items()):
            if self._state.assumed_node(key) is None:
                del self._unconfirmed[key]
            elif waiting.since <= limit:
                await self._read(key, waiting)

    async def _read(self, key: str, waiting: _Unconfirmed) -> None:
        """Reads one pod. Keeps it assumed if it is bound as planned; otherwise stores the read state in the cache."""
        namespace, _, name = key.partition("/")
        try:
            pod = await self._client.read_pod(namespace, name)
        except (ApiError, Unreachable) as error:
            logger.warning("pod %s: could not read whether it is bound: %s", key, error)
            return
        now = self._state.pod(key)
        if now is None or now.uid != waiting.uid or self._state.assumed_node(key) is None:
            self._unconfirmed.pop(key, None)
            return
        if pod is not None and pod.metadata.uid == waiting.uid and pod.spec.node_name == waiting.node:
            # the watch is slow, but the Binding exists
            waiting.since = self._clock()
            return
        self._unconfirmed.pop(key, None)
        if pod is None or pod.metadata.uid != waiting.uid:
            logger.warning("pod %s: bound to %s, and deleted since", key, waiting.node)
            self._feeds.pods.ended(key, waiting.uid)
            return
        if pod.spec.node_name:
            self._feeds.pods.read(pod)
            return
        logger.warning("pod %s: its Binding to %s does not exist any more; the pod is planned again", key, waiting.node)
        self._state.forget(key)
        self._queue.broadcast(Wake.CAPACITY_FREED, "BindFailure")
        now = self._state.pod(key)
        if now is not None and now.pending:
            self._feeds.pods.enqueue(now, event="BindFailure")
