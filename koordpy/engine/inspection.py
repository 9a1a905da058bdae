# SPDX-License-Identifier: Apache-2.0
"""Read access to a running scheduler: /livez and /readyz, the pages below /debug, and gauges computed when scraped.

This module must not change anything, and no step from a watch event to a Binding may depend on it.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Wire
from koordpy.api.owner_objects import WorkloadObject
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.topology_gaps import by_layer
from koordpy.engine.binding.foreign_bindings import lease_name
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.client.leader_lease import LeaderElector
from koordpy.engine.engine_context import Context
from koordpy.engine.queue_entry import Entry, State
from koordpy.engine.scheduling_loop import SchedulingLoop
from koordpy.engine.status.gang_census import Census
from koordpy.engine.status.repair_outcomes import degraded_since
from koordpy.gangs.gang_settings import origin_of
from koordpy.observe.bounded_labels import FewNames, label
from koordpy.observe.gauges import accelerator_gauges, quota_gauges, reason_gauges, share_gauges
from koordpy.observe.health_endpoints import Check
from koordpy.observe.metrics import LONGEST_NAMED
from koordpy.observe.repair_metrics import DEGRADED_NAMED
from koordpy.plan.round_plan import GangStatus
from koordpy.pods.gang_refs import GangRef
from koordpy.quota.quota_book import card_hundredths
from koordpy.rejections.closed_nodes import NOTHING_CLOSED

STUCK_SECONDS = 120.0
"""/livez fails if the loop has not started a turn for this long. An idle loop starts one at least every 60 s."""


class Inspection:
    """Answers requests about the scheduler at any time, on its event loop."""

    def __init__(
        self,
        context: Context,
        loop: SchedulingLoop,
        elector: LeaderElector | None,
        *,
        census: Census,
        leading: Callable[[], bool],
        stopping: Callable[[], bool],
    ) -> None:
        """elector: None without leader election. leading: returns True while this process leads. stopping: returns True
        while it shuts down."""
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._loop, self._elector, self._census = loop, elector, census
        self._metrics, self._settings, self._references = context.metrics, context.settings, context.references
        self._degraded = FewNames[GangRef](DEGRADED_NAMED, lambda ref: ref.id)
        self._leading, self._stopping, self._clock, self._now = leading, stopping, context.clock, context.now
        self._metrics.refresh = self._set_gauges

    def live_checks(self) -> Mapping[str, Check]:
        """Returns the checks of /livez by name. A check returns the reason of a failure; empty if there is none."""
        return {"rounds": self._check_rounds, "lease": self._check_lease}

    def ready_checks(self) -> Mapping[str, Check]:
        """Returns the checks of /readyz by name, in the form of `live_checks`. A standby with filled caches is
        ready."""
        return {
            "caches": self._check_caches,
            "shutdown": lambda: "shutting down" if self._stopping() else "",
        }

    def _check_caches(self) -> str:
        late = self._feeds.out_of_sync()
        return f"not in sync: {late}" if late else ""

    def _check_rounds(self) -> str:
        if not self._leading():
            return ""
        age = self._clock() - self._loop.last_turn
        return "" if age < STUCK_SECONDS else f"no round has ended for {age:.0f} s"

    def _check_lease(self) -> str:
        if self._elector is None or not self._leading() or self._elector.time_left() > 0:
            return ""
        return "the lease has expired"

    def queue(self) -> list[dict[str, Any]]:
        """Returns every unit of the queue as JSON objects for /debug/queue, active units first."""
        now, order = self._clock(), list(State)
        return [
            {
                "unit": entry.unit,
                "state": entry.state.value,
                "pods": sorted(entry.pods),
                "priority": entry.priority,
                "attempts": entry.attempts,
                "errors": entry.errors,
                "inStateSeconds": round(now - entry.since, 3),
                "dueInSeconds": round(max(0.0, entry.due - now), 3),
                "wakes": str(entry.answer.wakes),
                "plugins": entry.answer.plugins,
                "gangs": self._gangs_of(entry),
            }
            for entry in sorted(self._queue.entries.values(), key=lambda one: (order.index(one.state), one.unit))
        ]

    def _gangs_of(self, entry: Entry) -> list[dict[str, Any]]:
        """Returns the gangs of a unit's pending pods as JSON objects.

        `origin` says what makes the pods a gang. `waiting` lists the roles of the workload that have no pods yet,
        because the controller creates them in a later step.
        """
        pods = (self._state.pod(key) for key in entry.pods)
        refs = sorted({pod.gang for pod in pods if pod is not None and pod.gang is not None}, key=lambda ref: ref.key)
        out = []
        for ref in refs:
            derived = self._state.gangs.derived.get(ref)
            steps = derived.steps if derived is not None else ()
            out.append(
                {
                    "name": ref.key,
                    "origin": origin_of(ref, derived, self._state.gangs.gang(ref).pods),
                    "waiting": [{"role": role, "pods": number, "for": what} for role, number, what in steps],
                }
            )
        return out

    def snapshot(self) -> Callable[[], bytes]:
        """Returns a function that encodes the current cluster as a List for `koordpy simulate -f`."""
        items = list(self._feeds.everything())
        return lambda: encode_list(items)

    def seen(self) -> tuple[Snapshot, dict[str, str]]:
        """Returns the current snapshot as the planner would get it, and the state of each queued unit by id."""
        now = self._now()
        if self._feeds.is_regroup_due(now):
            self._feeds.regroup(now)  # the snapshot derives gangs from workloads; the queue must have the same gangs
        return self._state.snapshot(now), {entry.unit: entry.state.value for entry in self._queue.entries.values()}

    def unreadable(self) -> list[dict[str, str]]:
        """Returns every object that cannot be read, with the reason and the consequence, as JSON objects."""
        return [
            {
                "apiVersion": one.resource.api_version,
                "kind": one.resource.kind,
                "object": f"{one.names.namespace}/{one.names.name}" if one.names.namespace else one.names.name,
                "wrong": one.why,
                "meaning": one.meaning,
            }
            for one in self._feeds.unreadable()
        ]

    def _set_gauges(self) -> None:
        """Computes all gauges. Called for each scrape of /metrics."""
        # in this order: the queue, gangs, quotas and accelerators, topology, objects that cannot be read, ages of units
        metrics = self._metrics
        counts = self._queue.counts()
        counts[State.GATED] += len(self._feeds.pods.gated)
        for state, count in counts.items():
            metrics.pending.labels(state.value).set(count)
        # (filter, scheduler name) -> number of pods; gangs that were refused as a whole count under the name Gang
        by_plugin: dict[tuple[str, ...], float] = {}
        for entry in self._queue.entries.values():
            if entry.state in (State.UNSCHEDULABLE, State.GATED):
                for plugin in entry.answer.plugins or ("Gang",):
                    for pod in entry.pods.values():
                        by_plugin[plugin, pod.profile] = by_plugin.get((plugin, pod.profile), 0) + 1
        metrics.set_gauge(metrics.unschedulable, by_plugin)
        waiting = (self._state.pod(key) for entry in self._queue.entries.values() for key in entry.pods)
        metrics.set_gauge(metrics.pending_by_reason, reason_gauges(info.pod for info in waiting if info is not None))
        metrics.pending_units_never_fit.set(sum(entry.answer.never for entry in self._queue.entries.values()))
        for kind, size in self._state.sizes.items():
            metrics.cache_size.labels(kind).set(size)
        if not self._feeds.out_of_sync():
            gangs = self._census.count()
            metrics.set_gauge(metrics.gangs, {(status,): gangs.by_status[status] for status in GangStatus})
            metrics.gangs_half_bound.set(len(gangs.degraded))
            self._set_degraded(gangs.degraded)
            metrics.set_gauge(metrics.gangs_by_origin, {(origin,): count for origin, count in gangs.by_origin.items()})
            metrics.set_gauge(metrics.gang_gated, {(why,): count for why, count in gangs.gated.items()})
        kinds = self._feeds.kinds.states if self._feeds.kinds is not None else {}
        metrics.set_gauge(metrics.workload_kinds, dict.fromkeys(kinds.items(), 1))
        metrics.set_gauge(metrics.quota, quota_gauges(self._state.quota_view(), self._settings.config.quota))
        metrics.set_gauge(metrics.share, share_gauges(self._state.quota_view(), self._settings.config.fairness))
        held = ((node.allocatable, self._state.usage.usage_of(node.name)[1]) for node in self._state.nodes)
        metrics.set_gauge(metrics.accelerators, accelerator_gauges(held))
        metrics.has_layers(self._state.nodes.layers.names)
        metrics.topology_faults.set(len(self._state.nodes.topology_faults))
        self._set_gaps()
        unreadable = Counter(one.resource.kind for one in self._feeds.unreadable())
        metrics.set_gauge(metrics.unreadable_objects, {(kind,): count for kind, count in unreadable.items()})
        metrics.quotas_invalid.set(len({fault.key for fault in self._state.quota_view().tree.faults}))
        closed = self._state.rejections.memory.closed if self._state.rejections is not None else NOTHING_CLOSED
        for name in ("numa_nodes", "numa_reports"):
            counts_of = (book.counts().get(name, {}) for book in self._state.families.values())
            by_label: dict[tuple[str, ...], float] = {(label,): n for found in counts_of for label, n in found.items()}
            metrics.set_gauge(getattr(metrics, name), by_label)
        metrics.nodes_backed_off.labels("shape").set(len(closed.shapes))
        metrics.nodes_backed_off.labels("node").set(len(closed.nodes))
        self._set_ages()
        metrics.leader.labels(lease_name(self._settings.election)).set(self._leading())

    def _set_degraded(self, lacking: Mapping[GangRef, int]) -> None:
        """Sets the metrics of half-bound gangs. Only some of them are named, to limit the number of time series.

        lacking: gang -> number of members that it lacks to its minimum.
        """
        missing: dict[tuple[str, ...], float] = {}
        devices: dict[tuple[str, ...], float] = {}
        ages: dict[tuple[str, ...], float] = {}
        named = self._degraded.choose(lacking)
        for ref in named:
            workload, gang = self._references.workload_of(ref), label(ref.key)
            missing[gang, f"{workload.kind}/{workload.name}" if workload is not None else ""] = lacking[ref]
            held = sum(card_hundredths(pod.charged) for pod in self._state.gangs.members(ref) if pod.bound)
            devices[gang,] = held / 100
            if (since := degraded_since(self._state, ref)) is not None:
                ages[gang,] = max(0.0, self._now() - since)
        metrics, repair = self._metrics, self._metrics.repair
        metrics.set_gauge(repair.degraded, missing)
        metrics.set_gauge(repair.degraded_accelerators, devices)
        metrics.set_gauge(repair.degraded_seconds, ages)
        repair.degraded_unnamed.set(len(lacking) - len(named))
        repair.seats.set(self._loop.seats)

    def _set_gaps(self) -> None:
        """Counts missing and contradictory topology labels of nodes; nothing without a topology."""
        nodes, metrics = self._state.nodes, self._metrics
        unlabelled: dict[str, int] = {}
        split: dict[str, int] = {}
        if nodes.topology is not None or nodes.hypernodes:
            unlabelled, split = by_layer(nodes.tree, nodes.gaps)
        metrics.set_gauge(metrics.topology_unlabelled, {(layer,): number for layer, number in unlabelled.items()})
        metrics.set_gauge(metrics.topology_split, {(layer,): number for layer, number in split.items()})

    def _set_ages(self) -> None:
        """Sets the metrics of the pending time of units that are not gated; only the oldest units are named."""
        now, metrics = self._now(), self._metrics
        waiting = [entry for entry in self._queue.entries.values() if entry.state is not State.GATED and entry.pods]
        oldest = heapq.nsmallest(LONGEST_NAMED, waiting, key=lambda entry: (entry.created, natural_key(entry.unit)))
        ages: dict[tuple[str, ...], float] = {
            (label(self._name_of(entry)),): max(0.0, now - entry.created) for entry in reversed(oldest)
        }
        metrics.set_gauge(metrics.unit_pending_seconds, ages)
        metrics.pending_oldest_seconds.set(max(ages.values(), default=0.0))

    def _name_of(self, entry: Entry) -> str:
        """Returns a unit's name for users: its first gang, or its first pod if it has no gang."""
        first = min(entry.pods, key=natural_key)
        pod = self._state.pod(first)
        return pod.gang.key if pod is not None and pod.gang is not None else first


def _fields(obj: Wire) -> dict[str, Any]:
    """Returns the fields of an object as in its manifest. A workload's spec and status need no conversion, because they
    are stored as JSON."""
    if isinstance(obj, WorkloadObject):
        return {"metadata": msgspec.to_builtins(obj.metadata), "spec": obj.spec, "status": obj.status}
    found: dict[str, Any] = msgspec.to_builtins(obj)
    return found


def encode_list(items: list[tuple[Resource, Wire]]) -> bytes:
    """Encodes objects of a cluster as a List that the offline commands read."""
    manifests = [{"apiVersion": resource.api_version, "kind": resource.kind, **_fields(obj)} for resource, obj in items]
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": manifests})
