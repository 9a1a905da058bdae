"""Figures of every shape that a round meets, on one draft, with what the members of gangs are to each other.

What depends on labels, taints and images alone is computed once for all shapes that say the same of these, and shared
between rounds (PlannerCache).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from msgspec import json
from numpy.typing import NDArray

from koordpy.api import remembered
from koordpy.api.config import KoordpyConfiguration
from koordpy.api.quantity import is_extended
from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.cluster.snapshot import NOTHING_KEPT, Draft, KeptClaims, Snapshot
from koordpy.planning.among.members import Among, MemberReader
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.ascend.jobs import Jobs
from koordpy.planning.ascend.stock import Stock
from koordpy.planning.filtering import refusal_of
from koordpy.planning.filters import node as node_filters
from koordpy.planning.filters.base import Refusal, Verdict, chain
from koordpy.planning.filters.claims import claims_of
from koordpy.planning.filters.dra import DynamicResources, Taken
from koordpy.planning.filters.rules import DomainTable, Rule
from koordpy.planning.filters.spread import FILTERS, constraints_of
from koordpy.planning.filters.volumes import VolumeBinding
from koordpy.planning.gpu.nodes import GpuNodes
from koordpy.planning.gpu.plain import PlainGpus
from koordpy.planning.limits import DOMAIN_LABELS, SHAPES_KEPT, STATIC_KEPT
from koordpy.planning.nominated import NominatedClaims, Reserved, reserve
from koordpy.planning.nominated_capacity import NominatedCapacity, parties
from koordpy.planning.patience import NEVER
from koordpy.planning.placement.problem import Problem
from koordpy.planning.quota.admission import Admission
from koordpy.planning.scene import Scene
from koordpy.planning.scores.nodes import static_scores
from koordpy.planning.shape_figures import ShapeFigures, Static
from koordpy.planning.units import GangCache, Groups, Unit


def read_of(pod: PodInfo) -> bytes:
    """What static figures read of a pod."""
    spec = pod.pod.spec
    near = spec.affinity.node_affinity if spec.affinity else None
    images = [one.image for one in (*spec.init_containers, *spec.containers)]
    return json.encode((spec.node_selector, near, spec.tolerations, images))


@dataclass
class PlannerCache:
    """Static figures, kept between rounds for as long as the nodes' labels and taints stay; and gangs."""

    version: int = -1
    static: dict[bytes, Static] = field(default_factory=dict)
    """By what is read of pods for them, which many shapes share."""
    table: DomainTable | None = None
    gangs: GangCache = field(default_factory=GangCache)
    turn: int = 0
    """Of what is remembered elsewhere, too: when much is gone, all of it is forgotten."""
    most: int = SHAPES_KEPT
    """Static figures, above which those of pods that are gone are forgotten."""

    def at(self, snapshot: Snapshot) -> "PlannerCache":
        """The figures that hold for a snapshot's static_version."""
        full = self.table is not None and len(self.table.known) > DOMAIN_LABELS
        if self.version != snapshot.static_version or full or self.turn != remembered.turn:
            self.version, self.turn = snapshot.static_version, remembered.turn
            self.static = {}
            self.table = None
        if len(self.static) > self.most:
            live = {read_of(pod) for pod in snapshot.pending}
            self.static = {read: static for read, static in self.static.items() if read in live}
            self.most = max(SHAPES_KEPT, 2 * len(self.static))
        if len(self.static) * len(snapshot.nodes) > STATIC_KEPT:
            self.static = {}
        return self

    def domains(self, snapshot: Snapshot) -> DomainTable:
        """The domains of node labels, for the first filter or score that asks."""
        if self.version != snapshot.static_version:
            return DomainTable(snapshot.nodes)
        if self.table is None:
            self.table = DomainTable(snapshot.nodes)
        return self.table


class Figures:
    """Figures of every shape that a round meets."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, cache: PlannerCache | None = None) -> None:
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._added = config.filters.node_affinity.added_affinity
        self._cache = (cache or PlannerCache()).at(self.snapshot)
        self._static = self._cache.static
        self.scene = Scene(draft, config, self._cache.domains)
        draft.kept = self._kept_claims
        self.notes: dict[str, Mapping[str, str]] = {}
        """Pod key -> what the Binding of a pod says that this round has placed."""
        self._shapes: dict[bytes, ShapeFigures] = {}
        self._among: dict[GangRef, tuple[tuple[int, bool], Among]] = {}
        self._plain_gpus: dict[bytes, PlainGpus] = {}
        self._ordinary: set[bytes] = set()
        """Shapes whose key is the shape itself."""
        self.built: tuple[Unit, tuple[int, bool], Problem] | None = None
        """The unit that a Problem was built of last, the moment then, the Problem."""
        self.interrupts = NEVER
        """Of the search under way."""
        self._others: list[Figures] = []

    def of_draft(self, draft: Draft) -> "Figures":
        """Figures of another draft of the round."""
        made = Figures(draft, self.config, self._cache)
        made.groups = self.groups
        self._others.append(made)
        return made

    def take_apart(self) -> None:
        """Ends them, their draft and those of other drafts: they refer to each other in circles, and would stay, with
        pods that are gone since, until the collector takes its longest walk."""
        for one in self._others:
            one.take_apart()
        vars(self.draft).clear()
        vars(self).clear()

    @cached_property
    def promises(self) -> NominatedCapacity:
        """Room that is promised to pods. `Draft.keeps_room` says whether any is."""
        return NominatedCapacity(self.draft, self.config)

    @cached_property
    def admission(self) -> Admission:
        """What quotas let start."""
        return Admission(self.draft, self.config.quota, self.promises)

    @property
    def moment(self) -> tuple[int, bool]:
        """Equal for as long as what units may have is the same: the draft, and what is promised to whom."""
        return self.draft.version, self.promises.netted

    def ignored(self, resource: str) -> bool:
        """Whether the configuration takes a resource out of the fit check; extended ones only (kube-parity.md 2.5)."""
        fit = self.config.filters.node_resources_fit
        if not (fit.ignored_resources or fit.ignored_resource_groups) or not is_extended(resource):
            return False
        return resource in fit.ignored_resources or resource.partition("/")[0] in fit.ignored_resource_groups

    @property
    def jobs(self) -> Jobs:
        """The Ascend jobs of the snapshot."""
        return self.scene.jobs

    @property
    def stock(self) -> Stock:
        """The free NPU chips on the draft."""
        return self.scene.stock

    def npu_job(self, pod: PodInfo) -> AscendJob | str | None:
        """The Ascend job of a pending pod, or why it is illegal; None for a pod that asks for no NPUs."""
        return self.scene.npu_job(pod)

    @property
    def gpus(self) -> GpuNodes:
        """The GPUs of every node on the draft."""
        return self.scene.gpus

    def plain_gpus(self, pod: PodInfo) -> PlainGpus:
        """What nodes are worth to a plain pod with GPUs."""
        found = self._plain_gpus.get(pod.shape)
        if found is None:
            found = self._plain_gpus[pod.shape] = PlainGpus(pod, self.gpus)
        return found

    def claims_at(self, pod: PodInfo, node: int) -> dict[str, str]:
        """Claim -> volume that a pod takes on a node, empty for one to be made there; nothing for most pods."""
        if not pod.ties.volumes or not claims_of(pod):
            return {}
        # on the draft as it is, without the figures of all nodes
        return VolumeBinding(pod, self.draft, self.snapshot.storage, self.scene.reach).choice(node)

    def devices_at(self, pod: PodInfo, node: int) -> dict[str, Taken]:
        """Resource claim -> devices that are allocated for a pod on a node; nothing for most pods."""
        if not pod.pod.spec.resource_claims:
            return {}
        return DynamicResources(pod, self.draft, self.snapshot.devices).choice(node)

    @cached_property
    def groups(self) -> Groups:
        """The gangs of the snapshot, and what is planned together."""
        return Groups(self.snapshot, self.config.gangs, self.config.stale_gangs, self._cache.gangs)

    def unit_id(self, pod: PodInfo) -> str:
        """Id of the unit that a pod belongs to."""
        return self.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    def among(self, gang: GangRef) -> Among:
        """What the members of a gang's unit that the draft has not placed are to each other."""
        known = self._among.get(gang)
        if known is None or known[0] != self.moment:
            unit = self.groups.unit(gang)
            waiting = [pod for pod in unit.pending if pod.key not in self.draft.placed]
            defaults = self.scene.spread_defaults
            spare = len(unit.pending) - max(1, sum(unit.need(one) for one in unit.gangs))
            reader = MemberReader(waiting, self.draft, self.scene.domains, spread_defaults=defaults, spare=spare)
            known = self.moment, reader.read()
            self._among.update({one.ref: known for one in unit.gangs})
        return known[1]

    def concerned(self, pod: PodInfo) -> bool:
        """Whether a pod may be something to the other members of its gang."""
        defaults, spec = self.scene.spread_defaults, pod.pod.spec
        if defaults and constraints_of(pod, FILTERS, defaults):
            return True
        return bool(pod.ties or spec.topology_spread_constraints or spec.resource_claims)

    def reserved(self, pod: PodInfo) -> Reserved | None:
        """What nominated pods keep from a pod: those of its priority or above that the draft has not placed.

        The pod's own nomination and those of its gang's other members are no one else's.
        """
        if not self.draft.keeps_room:
            return None
        own = self._promised_to(pod)
        others = self.promises.coming(pod, but=own)
        if not others:
            return None
        if self.promises.netted:
            return reserve(others, self.snapshot, less=self.promises.leaves)
        # who has room promised takes what has come free of it, whoever of its rank is to have the rest
        at = {self.snapshot.pods[key].nominated_node for key in own}
        return reserve(others, self.snapshot, less=self.promises.leaves, at=at, up_to=pod.priority)

    def _kept_claims(self, pod: PodInfo) -> KeptClaims:
        """What the same pods keep from a pod's claims, volumes and devices."""
        if not self.draft.keeps_room:
            return NOTHING_KEPT
        coming = self.promises.coming(pod, but=self._promised_to(pod))
        return self._nominated_claims.of(coming, self.promises.kept)

    @cached_property
    def _nominated_claims(self) -> NominatedClaims:
        return NominatedClaims(self.snapshot, self.scene.reach)

    def _promised_to(self, pod: PodInfo) -> frozenset[str]:
        """Keys of the pods that are planned together with a pod, itself included, and have room promised."""
        if pod.gang is None:
            return frozenset([pod.key] if self.promises.to(pod) else ())
        return self.promises.own({gang.ref for gang in self.groups.unit(pod.gang).gangs})

    def _among_refusal(self, pod: PodInfo) -> Refusal | None:
        """Why a plan cannot hold a member together with the others of its gang."""
        if pod.gang is None or not self.concerned(pod):
            return None
        return self.among(pod.gang).refusals.get(pod.shape)

    def key(self, pod: PodInfo) -> bytes:
        """Equal for pending pods that share their figures in this round."""
        if pod.shape in self._ordinary and not self.draft.keeps_room:
            return pod.shape
        key, refusal = pod.shape, self._among_refusal(pod)
        if refusal is not None:
            key += refusal.reasons[0].encode()
        if self.draft.keeps_room:
            whose = parties(pod, self.snapshot.quotas)
            key += repr((sorted(self._promised_to(pod)), self.promises.netted, whose)).encode()
        job = self.npu_job(pod)
        if job is not None:
            key += (job if isinstance(job, str) else job.signature(pod)).encode()
        elif not (self.draft.keeps_room or self.scene.spread_defaults or self.concerned(pod)):
            self._ordinary.add(pod.shape)
        return key

    def of(self, pod: PodInfo) -> ShapeFigures:
        """The figures of a pending pod's shape, current."""
        key = self.key(pod)
        found = self._shapes.get(key)
        if found is None:
            refusal = refusal_of(pod, self.scene) or self._among_refusal(pod)
            found = self._shapes[key] = ShapeFigures(self, pod, self._first_figures(pod), refusal)
        else:
            found.refresh()
        return found

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """The filters of a pending pod that look at more than the pod and a node, current."""
        return self.of(pod).rules

    def could_hold(self, pod: PodInfo) -> NDArray[np.bool_]:
        """[nodes] True where labels and taints let a pod in and the node is large enough, were it empty."""
        able = self._first_figures(pod).before.fits
        asked = {name: amount for name, amount in pod.requests.items() if not self.ignored(name)}
        for column, amount in self.snapshot.vector(asked):
            able = able & (self.snapshot.allocatable[:, column] >= amount)
            if not able.any():
                break
        return able

    def _first_figures(self, pod: PodInfo) -> Static:
        read = read_of(pod)
        static = self._static.get(read)
        if static is None:
            parts, refusal = self._first_words(pod)
            scores = static_scores(self.snapshot.nodes, pod.pod, self._added)
            static = self._static[read] = Static(before=chain(parts), refusal=refusal, scores=scores)
        return static

    def _first_words(self, pod: PodInfo) -> tuple[list[Verdict], Refusal | None]:
        return node_filters.first_words(self.snapshot.nodes, pod.pod, self._added)

    def words(self, pod: PodInfo) -> list[Verdict]:
        """What each filter says of every node, also of those that another filter speaks for."""
        return [*self._first_words(pod)[0], *self.of(pod).later_words()]
