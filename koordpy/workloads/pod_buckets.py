"""Buckets of pods that belong together: of a PodGroup, a run of a workload, labels, or an owner not yet seen.

A pod may be in several buckets; the first phase of `PHASES` that takes the pod has it.
"""

from dataclasses import dataclass, field

from koordpy.workloads.workload_gangs import Derivation, Derived, renamed
from koordpy.workloads.workload_runs import WorkloadPod

BucketKey = tuple[str, ...]
"""A phase, and what tells the bucket apart in it."""

VOLCANO, RUN, LABELS, AWAITED = "volcano", "run", "labels", "awaited"
PHASES = (VOLCANO, RUN, LABELS, AWAITED)
"""The first that takes a pod has it."""


@dataclass(frozen=True, slots=True)
class BucketGangs:
    """What follows for a bucket, named without regard to others."""

    gangs: tuple[Derived, ...] = ()
    order: tuple[str, float] = ("", 0.0)
    """When the workload was made, and its oldest pod: of equal names the first keeps it."""
    is_present: bool = True
    """Whether it is the run that its workload runs now."""
    kind: str = ""
    """Of the workload; empty where its pods are no gang."""

    @property
    def naming(self) -> tuple[object, ...]:
        """All by which gangs get their names, and workloads mean them."""
        return self.order, self.is_present, self.kind, tuple((one.key, one.joined) for one in self.gangs)


NO_GANGS = BucketGangs()


@dataclass(eq=False, slots=True)
class PodBucket:
    """Pods that belong together, and what follows from them."""

    key: BucketKey
    members: "dict[str, FiledPod]" = field(default_factory=dict)
    found: BucketGangs = NO_GANGS
    shown: tuple[Derived, ...] = ()
    """Its gangs under the names that they have."""
    suffix: str = ""
    """What stands behind these names."""
    derivation: Derivation | None = None
    """Of a run."""
    moved: bool = False
    """Whether a pod came or went since it was looked at."""

    def names(self, suffix: str) -> set[str]:
        """`namespace/name` of its gangs with something behind their names, and the same without their roles."""
        keys = {(renamed(one, suffix) if suffix else one).key for one in self.found.gangs}
        return keys | {key.partition(":")[0] for key in keys}

    def show(self) -> None:
        """Shows the gangs that follow now under their names."""
        gangs, suffix = self.found.gangs, self.suffix
        self.shown = tuple(renamed(one, suffix) for one in gangs) if suffix else gangs


@dataclass(eq=False, slots=True)
class FiledPod(WorkloadPod):
    """A pod, and where it is in the book."""

    free: bool = True
    """Whether it names no gang itself ..."""
    named: bool = False
    """... or is in one that it names, be it a PodGroup of Volcano."""
    buckets: tuple[PodBucket, ...] = ()
    """Those that may take it; where it names a gang its run is told of that."""
    gang: str = ""
    """`namespace/name` of its gang."""
    upstream: str = ""
    """`namespace/name` of the PodGroup of scheduling.k8s.io that it names."""
    beside: bool = False
    """Whether it names a gang by labels or annotations beside that."""
    passes: bool = False
    """Whether its controller made that PodGroup by default, so that the search for its gang goes on."""

    @property
    def is_of_run(self) -> bool:
        """True if the pod is in a gang of a run."""
        return any(self.key in gang.pods for one in self.buckets if one.key[0] == RUN for gang in one.found.gangs)
