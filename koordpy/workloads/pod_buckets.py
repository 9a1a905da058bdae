# SPDX-License-Identifier: Apache-2.0
"""Buckets: sets of pods from which gangs are derived together, so that a changed pod affects few gangs.

A bucket has the pods of one PodGroup of Volcano, of one run of a workload, with the same labels, or of one owner that
the watch has not delivered yet. A pod may be in several buckets; the first phase of `PHASES` with a gang for the pod
decides.
"""

from dataclasses import dataclass, field

from koordpy.workloads.workload_gangs import Derivation, WorkloadGang, renamed
from koordpy.workloads.workload_runs import WorkloadPod

BucketKey = tuple[str, ...]
"""The phase, then the parts that identify the bucket in its phase: (VOLCANO, `namespace/name`), (RUN, uid, group, run),
(LABELS, namespace, source, name, uid) or (AWAITED, namespace, kind, name, uid)."""

VOLCANO, RUN, LABELS, AWAITED = "volcano", "run", "labels", "awaited"
PHASES = (VOLCANO, RUN, LABELS, AWAITED)
"""Phases in order of precedence: the first with a gang for a pod decides."""


@dataclass(frozen=True, slots=True)
class BucketGangs:
    """The gangs derived from one bucket, before names are made unique."""

    gangs: tuple[WorkloadGang, ...] = ()
    order: tuple[str, float] = ("", 0.0)
    """(creation of the workload as text, creation of its oldest pod in seconds since the epoch). Of several runs with
    one name, the oldest keeps the name; of several gangs by labels, the one with the newest pod (`gang_names.py`)."""
    is_present: bool = True
    """True if the run is the current run of its workload."""
    kind: str = ""
    """Kind of the workload, in lower case; empty if its pods are no gang."""

    @property
    def naming(self) -> tuple[object, ...]:
        """All values that the names of the gangs depend on."""
        return self.order, self.is_present, self.kind, tuple((one.key, one.is_planned_jointly) for one in self.gangs)


NO_GANGS = BucketGangs()
"""Result of a bucket with plain pods, or without pods."""


@dataclass(eq=False, slots=True)
class PodBucket:
    """Pods that belong together, and the gangs derived from them."""

    key: BucketKey
    members: "dict[str, FiledPod]" = field(default_factory=dict)
    """`namespace/name` of a pod -> the pod."""
    found: BucketGangs = NO_GANGS
    """The gangs under names that may repeat those of other buckets."""
    shown: tuple[WorkloadGang, ...] = ()
    """The gangs of the bucket under their unique names."""
    suffix: str = ""
    """Suffix that makes the names unique."""
    derivation: Derivation | None = None
    """Derivation of a run, kept while valid; None for other phases."""
    moved: bool = False
    """True if a pod was added or removed since the bucket was last derived."""

    def names(self, suffix: str) -> set[str]:
        """Returns `namespace/name` of the gangs with a suffix on their names, with and without roles."""
        keys = {(renamed(one, suffix) if suffix else one).key for one in self.found.gangs}
        return keys | {key.partition(":")[0] for key in keys}

    def show(self) -> None:
        """Updates `shown` from `found` and `suffix`."""
        gangs, suffix = self.found.gangs, self.suffix
        self.shown = tuple(renamed(one, suffix) for one in gangs) if suffix else gangs


@dataclass(eq=False, slots=True)
class FiledPod(WorkloadPod):
    """A pod that is filed in buckets, with its gang."""

    free: bool = True
    """True if the pod names no gang itself."""
    named: bool = False
    """True if the pod is in a gang that it names, such as a PodGroup of Volcano."""
    buckets: tuple[PodBucket, ...] = ()
    """All buckets that the pod belongs to. A pod that names a gang is also in the bucket of its run, because the run
    leaves out a role if all pods of that role name a gang."""
    gang: str = ""
    """`namespace/name` of the pod's gang; empty for none."""
    upstream: str = ""
    """`namespace/name` of the PodGroup of scheduling.k8s.io that the pod names; empty for none."""
    names_gang_too: bool = False
    """True if the pod also names a gang by labels or annotations."""
    passes: bool = False
    """True if a controller created the PodGroup in `upstream` by default: the gang is then derived as if the pod named
    no PodGroup."""

    @property
    def is_of_run(self) -> bool:
        """True if the pod is in a gang of a run."""
        return any(self.key in gang.pods for one in self.buckets if one.key[0] == RUN for gang in one.found.gangs)
