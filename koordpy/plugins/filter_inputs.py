"""What filters and scores of a round are made from: the draft, the configuration, and what is worked out once for all.

A filter or a score that looks at more than the pod and a node finds it here, so that none of them knows the planner.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.cluster.ties import PodClass, TermClass, pod_class, spread_keys
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.ascend.jobs import Jobs
from koordpy.planning.ascend.stock import Stock
from koordpy.planning.filters.rules import DomainTable
from koordpy.planning.filters.spread import SpreadDefaults
from koordpy.planning.filters.volumes import VolumeReach
from koordpy.planning.gpu.nodes import GpuNodes

TermsTowards = tuple[Sequence[tuple[TermClass, Mapping[str, int]]], bool]
"""Those of bound pods, with how many are on which nodes; whether a plan may place a pod that has such terms."""


class Scene:
    """One round's draft and what hangs on it."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, domains: Callable[[Snapshot], DomainTable]) -> None:
        """domains: those of the labels of the snapshot's nodes, which are kept between rounds."""
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._domains = domains
        coming = (*self.snapshot.pending, *(self.snapshot.pods[key] for key in self.snapshot.reservations))
        self._coming = {(pod.namespace, pod.ties.terms.audience) for pod in coming if pod.ties.terms}
        self._terms: dict[PodClass, TermsTowards] = {}
        spread = config.filters.pod_topology_spread
        self.spread_defaults = SpreadDefaults(spread, self.snapshot.owners) if spread.constraints else None
        if not spread_keys(spread.constraints) <= self.snapshot.looked_for:
            raise ValueError("ClusterState.look_for was not told the configured constraints' labels")

    def terms_towards(self, pod: PodInfo) -> TermsTowards:
        """Terms of pod affinity that may say something of a pod; the same of pods that no selector tells apart."""
        alike = pod_class(pod.pod, self.snapshot.looked_for)
        found = self._terms.get(alike)
        if found is None:
            whom = alike.namespace, dict(alike.labels)
            classes = self.snapshot.terms.items()
            there = [(one, at) for one, at in classes if one.terms.audience.may_have(one.namespace, *whom)]
            coming = any(audience.may_have(namespace, *whom) for namespace, audience in self._coming)
            found = self._terms[alike] = there, coming
        return found

    @cached_property
    def domains(self) -> DomainTable:
        """The domains that node labels make."""
        return self._domains(self.snapshot)

    @cached_property
    def gpus(self) -> GpuNodes:
        """The GPUs of every node on the draft."""
        return GpuNodes(self.draft, self.config.gpu)

    @cached_property
    def jobs(self) -> Jobs:
        """The Ascend jobs of the snapshot."""
        return Jobs(self.snapshot, self.config.ascend)

    @cached_property
    def stock(self) -> Stock:
        """The free NPU chips on the draft."""
        return Stock(self.draft)

    def npu_job(self, pod: PodInfo) -> AscendJob | str | None:
        """The Ascend job of a pending pod, or why it is illegal; None for a pod that asks for no NPUs."""
        return self.jobs.of(pod) if pod.extended and npu_resource(pod.requests) is not None else None

    @cached_property
    def reach(self) -> VolumeReach:
        """Which nodes a volume can be used on."""
        return VolumeReach(self.snapshot.nodes, self.domains)
