"""Looking into a running scheduler: health checks, what /debug shows, and the gauges that are read when they are asked.

Nothing here changes anything, and nothing of the way from an event to a Binding depends on it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordpy.api.objects import Wire
from koordpy.api.owners import WorkloadObject
from koordpy.cluster.snapshot import Snapshot
from koordpy.engine.apiserver.lease import LeaderElector
from koordpy.engine.apiserver.resources import Resource
from koordpy.engine.context import Context
from koordpy.engine.loop import SchedulingLoop
from koordpy.engine.queue import Entry, State
from koordpy.engine.status.census import Census
from koordpy.observe.gauges import accelerator_gauges, quota_gauges, share_gauges
from koordpy.observe.health import Check
from koordpy.planning.gangs import origin_of
from koordpy.planning.plan import GangStatus

STUCK_SECONDS = 120.0


class Inspection:
    """What may be asked of a scheduler at any time, on its event loop."""

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
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._loop, self._elector, self._census = loop, elector, census
        self._metrics, self._settings = context.metrics, context.settings
        self._leading, self._stopping, self._clock, self._now = leading, stopping, context.clock, context.now
        self._metrics.refresh = self._set_gauges

    def live_checks(self) -> Mapping[str, Check]:
        """For /livez."""
        return {"rounds": self._check_rounds, "lease": self._check_lease}

    def ready_checks(self) -> Mapping[str, Check]:
        """For /readyz: a warm standby is ready, too."""
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
        return "the lease has run out"

    def queue(self) -> list[dict[str, Any]]:
        """Every unit of the queue, the active ones first."""
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
                "wakes": str(entry.wakes),
                "plugins": entry.plugins,
                "gangs": self._gangs_of(entry),
            }
            for entry in sorted(self._queue.entries.values(), key=lambda one: (order.index(one.state), one.unit))
        ]

    def _gangs_of(self, entry: Entry) -> list[dict[str, Any]]:
        """The gangs of a unit that wait: why each is one, and which steps of its workload are not made yet."""
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
        """The cluster as it is known now, as a List that `koordpy simulate -f` reads. Encodes when called."""
        items = list(self._feeds.everything())
        return lambda: _encode_list(items)

    def seen(self) -> tuple[Snapshot, dict[str, str]]:
        """The cluster as the planner would see it now, and the state of each unit of the queue."""
        now = self._now()
        if self._feeds.is_regroup_due(now):
            self._feeds.regroup(now)  # a snapshot finds the gangs that follow, and the queue must hear of it
        return self._state.snapshot(now), {entry.unit: entry.state.value for entry in self._queue.entries.values()}

    def unreadable(self) -> list[dict[str, str]]:
        """Every object that cannot be read, and what that means."""
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
        metrics = self._metrics
        counts = self._queue.counts()
        counts[State.GATED] += len(self._feeds.pods.gated)
        for state, count in counts.items():
            metrics.pending.labels(state.value).set(count)
        by_plugin: dict[tuple[str, ...], float] = {}
        for entry in self._queue.entries.values():
            if entry.state in (State.UNSCHEDULABLE, State.GATED):
                for plugin in entry.plugins or ("Gang",):
                    for pod in entry.pods.values():
                        by_plugin[plugin, pod.profile] = by_plugin.get((plugin, pod.profile), 0) + 1
        metrics.set_gauge(metrics.unschedulable, by_plugin)
        for kind, size in self._state.sizes.items():
            metrics.cache_size.labels(kind).set(size)
        if not self._feeds.out_of_sync():
            gangs = self._census.count()
            metrics.set_gauge(metrics.gangs, {(status,): gangs.by_status[status] for status in GangStatus})
            metrics.gangs_half_bound.set(gangs.half_bound)
            metrics.set_gauge(metrics.gangs_by_origin, {(origin,): count for origin, count in gangs.by_origin.items()})
            metrics.set_gauge(metrics.gang_gated, {(why,): count for why, count in gangs.gated.items()})
        kinds = self._feeds.kinds.states if self._feeds.kinds is not None else {}
        metrics.set_gauge(metrics.workload_kinds, dict.fromkeys(kinds.items(), 1))
        metrics.set_gauge(metrics.quota, quota_gauges(self._state.quota_view(), self._settings.config.quota))
        metrics.set_gauge(metrics.share, share_gauges(self._state.quota_view(), self._settings.config.fairness))
        held = ((node.allocatable, self._state.usage.held(node.name)[1]) for node in self._state.nodes)
        metrics.set_gauge(metrics.accelerators, accelerator_gauges(held))
        metrics.has_layers(self._state.nodes.layers.names)
        metrics.topology_faults.set(len(self._state.nodes.topology_faults))
        unreadable = Counter(one.resource.kind for one in self._feeds.unreadable())
        metrics.set_gauge(metrics.unreadable_objects, {(kind,): count for kind, count in unreadable.items()})
        metrics.quotas_invalid.set(len({fault.key for fault in self._state.quota_view().tree.faults}))
        created = [entry.created for entry in self._queue.entries.values() if entry.state is not State.GATED]
        metrics.pending_oldest_seconds.set(max(0.0, self._now() - min(created, default=self._now())))
        election = self._settings.election
        lease = f"{election.resource_namespace}/{election.resource_name}" if election is not None else ""
        metrics.leader.labels(lease).set(self._leading())


def _fields(obj: Wire) -> dict[str, Any]:
    if isinstance(obj, WorkloadObject):
        return {"metadata": msgspec.to_builtins(obj.metadata), "spec": obj.spec, "status": obj.status}
    found: dict[str, Any] = msgspec.to_builtins(obj)
    return found


def _encode_list(items: list[tuple[Resource, Wire]]) -> bytes:
    manifests = [{"apiVersion": resource.api_version, "kind": resource.kind, **_fields(obj)} for resource, obj in items]
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": manifests})
