# SPDX-License-Identifier: Apache-2.0
"""Buckets: sets of pods from which gangs are derived together, so that a changed pod affects few gangs.

A bucket has the pods of one PodGroup of Volcano, of one run of a workload, with the same labels, or with one owner that
the watch has not delivered yet. These four kinds of buckets are called phases. A pod may be in several buckets; the
first phase in `PHASES` with a gang for the pod decides.
"""

from dataclasses import dataclass, field

from koordpy.workloads.workload_gangs import Derivation, WorkloadGang, renamed
from koordpy.workloads.workload_runs import WorkloadPod

BucketKey = tuple[str, ...]
"""The phase, then the parts that identify the bucket in its phase: (VOLCANO, `namespace/name`), (RUN, uid, group, run),
(LABELS, namespace, source, name, uid) or (AWAITED, namespace, kind, name, uid)."""

VOLCANO, RUN, LABELS, AWAITED = "volcano", "run", "labels", "awaited"
PHASES = (VOLCANO, RUN, LABELS, AWAITED)
"""Phases in order of precedence."""


@dataclass(frozen=True, slots=True)
class BucketGangs:
    """The gangs derived from one bucket, before names are made unique."""

    gangs: tuple[WorkloadGang, ...] = ()
    order: tuple[str, float] = ("", 0.0)
    """(creation of the workload as text, creation of its oldest pod in seconds since the epoch), for the order of
    naming. If several runs have one name, the oldest keeps it; of gangs by labels, the gang with the newest pod
    (`gang_names.py`)."""
    is_present: bool = True
    """True if the run is the current run of its workload."""
    kind: str = ""
    """Kind of the workload in lower case; empty if its pods are not a gang."""

    @property
    def naming(self) -> tuple[object, ...]:
        """All values on which the names of the gangs depend."""
        return self.order, self.is_present, self.kind, tuple((one.key, one.is_planned_jointly) for one in self.gangs)


NO_GANGS = BucketGangs()
"""Result for a bucket with plain pods only, or without pods."""


@dataclass(eq=False, slots=True)
class PodBucket:
    """Pods that belong together, and the gangs that are derived from them."""

    key: BucketKey
    members: "dict[str, FiledPod]" = field(default_factory=dict)
    """`namespace/name` of a pod -> the pod."""
    found: BucketGangs = NO_GANGS
    """The gangs before their names are made unique: other buckets may have gangs with the same names."""
    shown: tuple[WorkloadGang, ...] = ()
    """The gangs of the bucket under their unique names."""
    suffix: str = ""
    """Suffix that makes the names unique."""
    derivation: Derivation | None = None
    """Derivation of a run, stored while it is valid; None in other phases."""
    moved: bool = False
    """True if a pod was added or removed since the bucket was last derived."""

    def names(self, suffix: str) -> set[str]:
        """Returns `namespace/name` of the gangs if their names had a suffix, with and without roles."""
        keys = {(renamed(one, suffix) if suffix else one).key for one in self.found.gangs}
        return keys | {key.partition(":")[0] for key in keys}

    def show(self) -> None:
        """Updates `shown` from `found` and `suffix`."""
        gangs, suffix = self.found.gangs, self.suffix
        self.shown = tuple(renamed(one, suffix) for one in gangs) if suffix else gangs


@dataclass(eq=False, slots=True)
class FiledPod(WorkloadPod):
    """A pod in its buckets, with its gang."""

    free: bool = True
    """True if the pod names no gang itself."""
    named: bool = False
    """True if the pod is in a gang that it names, such as a PodGroup of Volcano."""
    buckets: tuple[PodBucket, ...] = ()
    """All buckets of the pod. A pod that names a gang is also in the bucket of its run, because the run leaves out a
    role if all pods of the role name a gang."""
    gang: str = ""
    """`namespace/name` of the pod's gang; empty for none."""
    upstream: str = ""
    """`namespace/name` of the PodGroup of scheduling.k8s.io that the pod names; empty for none."""
    names_gang_too: bool = False
    """True if the pod also names a gang by labels or annotations."""
    passes: bool = False
    """True if a controller created the PodGroup in `upstream` by default. Then the gang is derived as if the pod named
    no PodGroup."""

    @property
    def is_of_run(self) -> bool:
        """True if the pod is in a gang of a run."""
        return any(self.key in gang.pods for one in self.buckets if one.key[0] == RUN for gang in one.found.gangs)
