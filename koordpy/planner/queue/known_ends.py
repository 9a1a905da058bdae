# SPDX-License-Identifier: Apache-2.0
"""The times at which running pods will end, for backfill: from the annotation scheduling.koordinator.sh/max-runtime.

The annotation of a gang is where its other settings are, such as on its PodGroup; a plain pod has it itself. A gang
starts with the earliest start of its pods. A pod without status.startTime counts as started at its creation
(docs/rules/simulate.md 1.3). A pod that exceeds its maximum runtime counts as ending now until it has run twice as
long; after that its end is unknown. The end of a terminating pod is unknown, too.
"""

from collections.abc import Iterable, Mapping
from math import inf

from koordpy.api import keys
from koordpy.api.durations import parse_duration
from koordpy.cache.snapshot import Snapshot
from koordpy.decoding.annotation_settings import OF_RUNS, odd_values
from koordpy.gangs.gang_reading import settings_of
from koordpy.gangs.queue_units import Unit
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.victim_units import start_time


class Runtimes:
    """Maximum runtimes of the gangs and plain pods of a snapshot, and the resulting ends of running pods.

    Runtimes are in seconds, ends in seconds since the epoch. Infinity means unknown.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._gangs: dict[GangRef, float] = {}
        self._starts: dict[GangRef, float] = {}
        self.unreadable: dict[str, str] = {}
        """Object (`PodGroup/ns/name`, `Pod/ns/name`) -> the error in its annotation."""

    def _read(self, annotations: Mapping[str, str], subject: str) -> float:
        """Returns the maximum runtime in seconds from annotations; infinity if they state none. An error is recorded in
        `unreadable` under `subject`."""
        if keys.MAX_RUNTIME not in annotations:
            return inf
        wrong = next(odd_values(OF_RUNS, {}, annotations), "")
        if wrong:
            self.unreadable[subject] = wrong
            return inf
        return parse_duration(annotations[keys.MAX_RUNTIME])

    def of_gang(self, ref: GangRef) -> float:
        """Returns the maximum runtime of a gang in seconds; infinite without the annotation."""
        found = self._gangs.get(ref)
        if found is None:
            meta = settings_of(self._snapshot, ref)
            objects = ref.source in (GangSource.GROUP, GangSource.UPSTREAM) or ref in self._snapshot.workload_gangs
            subject = f"PodGroup/{ref.key}" if objects or meta is None else f"Pod/{meta.namespace}/{meta.name}"
            found = self._gangs[ref] = self._read(meta.annotations, subject) if meta is not None else inf
        return found

    def _of(self, pod: PodInfo) -> float:
        """Returns the maximum runtime of a pod: that of its gang, else its own."""
        if pod.gang is not None:
            return self.of_gang(pod.gang)
        return self._read(pod.pod.metadata.annotations, f"Pod/{pod.key}")

    def _start(self, pod: PodInfo) -> float:
        """Returns the start of a bound pod in seconds since the epoch; for a gang member, the earliest start in its
        gang."""
        if pod.gang is None:
            return start_time(pod)
        found = self._starts.get(pod.gang)
        if found is None:
            members = self._snapshot.members.get(pod.gang, ())
            found = self._starts[pod.gang] = min(start_time(one) for one in members if one.bound)
        return found

    def end_of(self, pod: PodInfo) -> float:
        """Returns the time at which a bound pod ends, at the earliest now; infinite if the end is unknown."""
        length = inf if pod.pod.metadata.deletion_timestamp else self._of(pod)
        if length == inf:
            return inf
        now, start = self._snapshot.now, self._start(pod)
        return max(now, start + length) if now < start + 2 * length else inf

    def end_from_now(self, unit: Unit) -> float:
        """Returns the time at which a unit ends if it is placed now; infinite unless each of its gangs has a maximum
        runtime.

        The new pods do not extend the runtime of a gang that runs already.
        """
        now = self._snapshot.now
        if unit.plain is not None:
            return now + self._of(unit.plain)
        ends = []
        for gang in unit.gangs:
            if not gang.pending:
                continue
            length = self.of_gang(gang.ref)
            start = min((start_time(pod) for pod in gang.bound), default=now)
            ends.append(start + length if start + length > now else inf)
        return max(ends, default=inf)

    def known(self, pods: Iterable[PodInfo]) -> list[tuple[float, PodInfo]]:
        """Returns (end, pod) of the given bound pods with a known end, the earliest first."""
        ends = [(self.end_of(pod), pod) for pod in pods if pod.bound]
        return sorted(((end, pod) for end, pod in ends if end != inf), key=lambda one: (one[0], one[1].key))
