# SPDX-License-Identifier: Apache-2.0
"""Handles pods that a round left pending, like kube-scheduler's failure handler.

`UnschedulableHandler` writes their conditions (PodScheduled=False), counts them in metrics, and returns their units to
the queue, with the kinds of change that may help. `UnconfirmedHint` wakes refused units when the Binding of a pod is
confirmed, because only then the pod can be a victim.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.family_registry import families_of
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.evictor import Evictor
from koordpy.engine.queue_entry import Entry
from koordpy.engine.quota_watch import QuotaWatch
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.status.pod_status import PodStatusWriter
from koordpy.engine.wakeups import EMPTY_CLUSTER, Wake, helpful
from koordpy.plan.pending_reason import Reason
from koordpy.plan.quota_needs import QuotaNeed
from koordpy.plan.round_plan import PendingPod
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.quota.quota_book import card_hundredths

logger = logging.getLogger(__name__)


_BY_NODES = frozenset(
    (
        Reason.UNSCHEDULABLE,
        Reason.NODES_CANNOT_HELP,
        Reason.WAITING_FOR_PROVISIONING,
        Reason.PROVISIONING_FAILED,
    )
)
"""Reasons of units that lack nodes. If such a unit never fits, only other nodes or quotas can change its reason."""


class UnschedulableHandler:
    """Reports and queues pods without a placement."""

    def __init__(
        self,
        context: Context,
        *,
        pod_status: PodStatusWriter | None,
        evictor: Evictor | None,
        stuck: Callable[[Sequence[PodInfo]], None],
    ) -> None:
        """pod_status, evictor: None with `--dry-run`; then verdicts are only counted and logged. stuck: called with the
        pending pods of a unit with a verdict if DynamicResources refused any of them, so that their resource claims may
        be deallocated."""
        self._state, self._queue, settings = context.state, context.queue, context.settings
        self._pod_status, self._evictor, self._metrics, self._stuck = pod_status, evictor, context.metrics, stuck
        self._any_profile = settings.config.scheduler_names[0]
        self._guarantees = settings.config.quota.guarantee_usage
        self.quota_watch = QuotaWatch(self._state, self._queue)
        """Wakes units that wait for nodes once their quota is used up."""
        self._unconfirmed_hint: UnconfirmedHint | None = None
        if evictor is not None:
            reclaim, quotas = settings.config.fairness.reclaim, self._state.quotas
            self._unconfirmed_hint = UnconfirmedHint(
                self._state,
                self._queue,
                owners_matter=lambda: reclaim == "all" or (reclaim == "quotas" and bool(quotas.objects)),
            )
            context.feeds.listeners.confirmed.append(self._unconfirmed_hint.confirmed)

    def round_begins(self) -> list[PodInfo]:
        """Returns the pods that are assumed when the snapshot is taken. They cannot be victims of the round."""
        return self._unconfirmed_hint.snapshot_taken() if self._unconfirmed_hint is not None else []

    def forget(self) -> None:
        """Forgets units that are not in the queue any more."""
        self.quota_watch.forget()
        if self._unconfirmed_hint is not None:
            self._unconfirmed_hint.forget()

    def round_ended(self, refused: Iterable[Entry], assumed: Iterable[PodInfo]) -> None:
        """Records the units that a round refused. assumed: pods that could not be victims of the round."""
        if self._unconfirmed_hint is not None:
            self._unconfirmed_hint.refused(refused, assumed)

    def tell(self, verdict: PendingPod) -> None:
        """Writes the verdict on one pod to its condition; with `--dry-run` only logs it."""
        if self._pod_status is None:
            logger.debug("pod %s: %s: %s", verdict.pod_key, verdict.reason.value, verdict.message)
            return
        info = self._state.pod(verdict.pod_key)
        if info is not None and info.pending:
            self._pod_status.tell(verdict, info)

    def count(self, entry: Entry, left: Iterable[PendingPod], *, gang: bool, placed: bool, seconds: float) -> None:
        """Counts the attempt of a unit in metrics: failed attempts of its pods, and for a gang the attempt as a whole.

        placed: True if at least one pod was placed. seconds: the round's time divided by its number of pods.
        """
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
            histogram = self._metrics.attempt_seconds.labels(*labels)
            for _ in range(number):
                histogram.observe(seconds)
        if gang:
            result = "scheduled" if placed else "unschedulable"
            profile = profile or next((pod.profile for pod in entry.pods.values()), self._any_profile)
            self._metrics.podgroup_attempts.labels(result, profile).inc()

    def clear_failed_nominations(
        self, unit: str, left: Iterable[PendingPod], snapshot: Snapshot, waits: Collection[tuple[str, str]]
    ) -> None:
        """Clears nominations of pods that were tried again and still do not fit.

        The nominations stay while pods on the nominated nodes are terminating, because their capacity is not free yet.
        They also stay if the plan reserves one of the nominated nodes for its pod again. waits: (pod key, node) of all
        such reservations.
        """
        if self._evictor is None:
            return
        nominated = {info.key: info for info in self._state.nominated()}
        kept = [info for verdict in left if (info := nominated.get(verdict.pod_key)) is not None]
        if any((info.key, info.nominated_node) in waits for info in kept):
            return
        if not _leaving_from({info.nominated_node for info in kept}, snapshot):
            self._evictor.nominations.refused(unit, kept)

    def settle(
        self,
        entry: Entry,
        left: Sequence[PendingPod],
        *,
        gang: bool,
        seconds: float,
        short: int,
        also: Wake,
        needs: Sequence[QuotaNeed],
    ) -> None:
        """Ends a unit's attempt in the queue.

        left: verdicts on the unit's pending pods; empty if all were placed. In that case pods that were added to the
        unit since the attempt began are tried at once.

        seconds: time of the attempt. short: number of missing members. also: kinds of change that may help, in addition
        to those that follow from the verdicts. needs: what the unit would add to its quotas, if it waits for nodes.
        """
        if needs or self.quota_watch.needs or self.quota_watch.woken:
            self.quota_watch.settled(entry.unit, needs)
        if not left:
            self._queue.settle_again(entry)
        elif any(verdict.reason is Reason.SCHEDULER_ERROR and not verdict.gated for verdict in left):
            # no cluster event removes the cause of an error, so the unit is tried again after its back-off
            self._queue.settle_error(entry)
        else:
            plugins = dict.fromkeys(plugin for verdict in left for plugin in verdict.plugins)
            known = (self._state.pod(verdict.pod_key) for verdict in left)
            infos = [info for info in known if info is not None and info.pending]
            if "DynamicResources" in plugins:
                self._stuck(infos)
            if any(family.may_fit_after_load(info) for info in infos for family in families_of(info)):
                also |= Wake.POD_BOUND | Wake.DEVICE | Wake.NUMA_REPORT
            gated, never = all(verdict.gated for verdict in left), any(verdict.never for verdict in left)
            # a unit that never fits has another reason than nodes as long as, for example, a claim is missing
            by_nodes = never and all(verdict.reason in _BY_NODES for verdict in left)
            wakes = EMPTY_CLUSTER if by_nodes else helpful(plugins, gang=gang, guarantees=self._guarantees) | also
            self._queue.settle_unschedulable(
                entry,
                wakes=wakes,
                plugins=plugins,
                gated=gated,
                never=never,
                seconds=seconds,
                short=short,
            )

    def not_bound(self, info: PodInfo, unit: str, text: str) -> None:
        """Reports a placed pod if it, or one of its claims, could not be bound."""
        self.tell(PendingPod(info.key, unit, None, Reason.SCHEDULER_ERROR, f"binding {text}"))

    def planner_failed(self, entry: Entry, error: Exception) -> None:
        """Reports an error of the planner in a round with one unit. The unit waits for its back-off."""
        text = f"planning failed: {type(error).__name__}: {error}"
        for key in list(entry.pods):
            self.tell(PendingPod(key, entry.unit, None, Reason.SCHEDULER_ERROR, text))
        self._queue.settle_error(entry)


def _leaving_from(nodes: set[str], snapshot: Snapshot) -> bool:
    """Returns True if the snapshot has terminating pods on these nodes, even if these have ended since."""
    return bool(nodes) and any(
        info.node in nodes and info.pod.metadata.deletion_timestamp for info in snapshot.pods.values()
    )


_Kind = tuple[int, Owner, bool]
"""Properties that decide whether one pod may preempt another: priority, owner, and whether it uses accelerators."""


class UnconfirmedHint:
    """Queueing hint: wakes units that found no victims because pods were still assumed.

    A pod can be a victim only after the watch has confirmed its Binding, and `wakeups.py` has no wake-up for the
    confirmation. So units that were refused while pods were assumed are tried again on the confirmation, if they may
    preempt the pod by its kind (`_Kind`). They are also tried again if they may preempt the least important member of
    the pod's gang: with one more bound member, the gang may have a surplus member, which may be a victim.
    """

    def __init__(self, state: ClusterState, queue: UnitQueue, *, owners_matter: Callable[[], bool]) -> None:
        """owners_matter: returns True if quotas or users may reclaim capacity from one another."""
        self._state, self._queue, self._owners_matter = state, queue, owners_matter
        self._refused_units: dict[str, frozenset[_Kind]] = {}
        """Id of a refused unit -> the kinds of its pods."""
        self._woken_kinds: set[_Kind] = set()
        """Kinds of confirmed pods for which all units that may preempt them were woken already. Cleared when a refused
        unit is added."""
        self._least_important: dict[GangRef, _Kind] = {}
        """Gang -> the kind of its least important member, cached for this round."""

    def snapshot_taken(self) -> list[PodInfo]:
        """Returns the pods that are assumed when a round begins. They cannot be victims of the round."""
        self._least_important.clear()
        return self._state.assumed_pods()

    def refused(self, entries: Iterable[Entry], assumed: Iterable[PodInfo]) -> None:
        """Records units that found no capacity in a round in which the assumed pods could not be victims."""
        if len(self._refused_units) > 2 * len(self._queue.entries) + 100:
            self.forget()
        # kind -> True if a pod of the kind is still assumed, so that its confirmation will wake the unit
        kinds: dict[_Kind, bool] = {}
        for info in assumed:
            still = self._state.assumed_node(info.key) is not None
            for kind in self._kinds(info):
                kinds[kind] = kinds.get(kind, False) or still
        for entry in entries:
            pods = (self._state.pod(key) for key in entry.pods)
            mine = frozenset(_kind(pod) for pod in pods if pod is not None)
            waits = [still for kind, still in kinds.items() if self._may_take(mine, kind)]
            if waits and not any(waits):
                # all these pods were confirmed during planning: they can be victims in the next round
                self._queue.touch(entry.unit, "LesserBound")
            else:
                self._refused_units[entry.unit] = mine
                self._woken_kinds.clear()

    def forget(self) -> None:
        """Forgets units that are not in the queue any more."""
        self._refused_units = {unit: mine for unit, mine in self._refused_units.items() if unit in self._queue.entries}

    def confirmed(self, info: PodInfo) -> None:
        """Wakes units that may preempt a pod, once the watch has confirmed its Binding."""
        for kind in self._kinds(info):
            if kind in self._woken_kinds:
                continue
            self._woken_kinds.add(kind)
            for unit, mine in list(self._refused_units.items()):
                if self._may_take(mine, kind):
                    del self._refused_units[unit]
                    self._queue.touch(unit, "LesserBound")

    def _kinds(self, info: PodInfo) -> tuple[_Kind, ...]:
        """Returns the kinds of possible victims once a pod is bound: of the pod, and of its gang's least important
        member."""
        own = _kind(info)
        if info.gang is None:
            return (own,)
        least = self._least_important.get(info.gang)
        if least is None:
            one = min(self._state.gangs.members(info.gang), key=lambda member: member.priority, default=info)
            least = self._least_important[info.gang] = _kind(one)
        return (own,) if least == own else (own, least)

    def _may_take(self, mine: Iterable[_Kind], theirs: _Kind) -> bool:
        """Returns True if a unit may preempt a pod: by a higher priority, or by reclaiming accelerators of another
        quota or user.

        mine: kinds of the unit's pods. theirs: kind of the possible victim.
        """
        owners_matter = theirs[2] and self._owners_matter()
        return any(
            priority > theirs[0] or (owners_matter and devices and owner != theirs[1])
            for priority, owner, devices in mine
        )


def _kind(info: PodInfo) -> _Kind:
    """Returns the kind of a pod."""
    return info.priority, info.owner, card_hundredths(info.requests) > 0
