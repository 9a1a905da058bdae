"""Pods that a round left over: they are told why, counted, and wait in the queue for what could help them."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Snapshot
from koordpy.engine.evictions.evictor import Evictor
from koordpy.engine.evictions.unconfirmed import UnconfirmedHint
from koordpy.engine.queue import Entry
from koordpy.engine.settings import EngineSettings
from koordpy.engine.status.pods import PodStatusWriter
from koordpy.engine.wakeups import Wake, helpful
from koordpy.engine.watching.feeds import Feeds
from koordpy.observe.metrics import Metrics
from koordpy.planning.plan import PendingPod, Reason

logger = logging.getLogger(__name__)


class UnschedulableHandler:
    """What becomes of pods without a place."""

    def __init__(
        self,
        feeds: Feeds,
        *,
        pod_status: PodStatusWriter | None,
        evictor: Evictor | None,
        metrics: Metrics,
        settings: EngineSettings,
        stuck: Callable[[Sequence[PodInfo]], None],
    ) -> None:
        """Without a writer and an evictor (dry run) verdicts are only counted and logged. `stuck` hears of pods of one
        unit that fit nowhere for the sake of their resource claims."""
        self._state, self._queue = feeds.state, feeds.queue
        self._pod_status, self._evictor, self._metrics, self._stuck = pod_status, evictor, metrics, stuck
        self._any_profile = settings.scheduler_names[0]
        self._shields: UnconfirmedHint | None = None
        if evictor is not None:
            reclaim, quotas = settings.fairness.reclaim, feeds.state.quotas
            self._shields = UnconfirmedHint(
                feeds.state,
                feeds.queue,
                owners_matter=lambda: reclaim == "all" or (reclaim == "quotas" and bool(quotas.objects)),
            )
            feeds.listeners.confirmed.append(self._shields.confirmed)

    def round_begins(self) -> None:
        """A snapshot is taken: pods that are assumed now are no victims in it."""
        if self._shields is not None:
            self._shields.snapshot_taken()

    def round_ended(self, refused: Iterable[Entry]) -> None:
        """These units of the round have pods left over."""
        if self._shields is not None:
            self._shields.refused(refused)

    def tell(self, verdict: PendingPod) -> None:
        """A verdict on one pod."""
        if self._pod_status is None:
            logger.debug("pod %s: %s: %s", verdict.pod_key, verdict.reason.value, verdict.message)
            return
        info = self._state.pod(verdict.pod_key)
        if info is not None and info.pending:
            self._pod_status.tell(verdict, info)

    def count(self, entry: Entry, left: Iterable[PendingPod], *, gang: bool, placed: bool, seconds: float) -> None:
        """Counts the attempts of pods that failed, each with its share of the round, and those of gangs."""
        profile = ""
        counts: Counter[tuple[str, str]] = Counter()
        for verdict in left:
            info = self._state.pod(verdict.pod_key)
            if info is None:
                continue
            profile = info.pod.spec.scheduler_name
            counts["error" if verdict.reason is Reason.SCHEDULER_ERROR else "unschedulable", profile] += 1
        for labels, number in counts.items():
            self._metrics.attempts.labels(*labels).inc(number)
            taken = self._metrics.attempt_seconds.labels(*labels)
            for _ in range(number):
                taken.observe(seconds)
        if gang:
            result = "scheduled" if placed else "unschedulable"
            profile = profile or next((pod.profile for pod in entry.pods.values()), self._any_profile)
            self._metrics.podgroup_attempts.labels(result, profile).inc()

    def void_rooms(self, unit: str, left: Iterable[PendingPod], snapshot: Snapshot) -> None:
        """Nominations of pods that found no place even so: their room is given up, unless pods were still leaving it
        when the plan was made."""
        if self._evictor is None:
            return
        nominated = {info.key: info for info in self._state.nominated()}
        kept = [info for verdict in left if (info := nominated.get(verdict.pod_key)) is not None]
        if not _leaving_from({info.nominated_node for info in kept}, snapshot):
            self._evictor.nominations.refused(unit, kept)

    def settle(
        self, entry: Entry, left: Sequence[PendingPod], *, gang: bool, seconds: float, short: int, also: Wake
    ) -> None:
        """The unit's way back into the queue; `seconds` is what the attempt took, `short` the members that it lacks,
        `also` what may help it besides what the verdicts name."""
        if not left:
            self._queue.settle_placed(entry)
        elif any(verdict.reason is Reason.SCHEDULER_ERROR and not verdict.gated for verdict in left):
            self._queue.settle_error(entry)
        else:
            plugins = dict.fromkeys(plugin for verdict in left for plugin in verdict.plugins)
            if "DynamicResources" in plugins:
                infos = (self._state.pod(verdict.pod_key) for verdict in left)
                self._stuck([info for info in infos if info is not None and info.pending])
            gated = all(verdict.gated for verdict in left)
            self._queue.settle_unschedulable(
                entry,
                wakes=helpful(plugins, gang=gang) | also,
                plugins=plugins,
                gated=gated,
                seconds=seconds,
                short=short,
            )

    def not_bound(self, info: PodInfo, unit: str, text: str) -> None:
        """A pod that had a place, or its claims, were not bound."""
        self.tell(PendingPod(info.key, unit, None, Reason.SCHEDULER_ERROR, f"binding {text}"))

    def planner_failed(self, entry: Entry, error: Exception) -> None:
        """The planner failed on a unit alone."""
        text = f"planning failed: {type(error).__name__}: {error}"
        for key in list(entry.pods):
            self.tell(PendingPod(key, entry.unit, None, Reason.SCHEDULER_ERROR, text))
        self._queue.settle_error(entry)


def _leaving_from(nodes: set[str], snapshot: Snapshot) -> bool:
    """Whether the plan was made while pods were still leaving these nodes: their room may have come meanwhile."""
    return bool(nodes) and any(
        info.node in nodes and info.pod.metadata.deletion_timestamp for info in snapshot.pods.values()
    )
