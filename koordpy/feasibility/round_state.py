"""Figures of every shape that a round meets, on one draft, with what the members of gangs are to each other.

What depends on labels, taints and images alone is computed once for all shapes that say the same of these, and shared
between rounds (PlannerCache).
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from msgspec import json
from numpy.typing import NDArray

from koordpy.api import bounded_memory
from koordpy.api.quantity import is_extended
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import Reservation
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import device_signature
from koordpy.fairness.quota_admission import Admission
from koordpy.feasibility.filtering import refusal_of
from koordpy.feasibility.shape_state import ShapeState, Static
from koordpy.framework.filter_protocol import Refusal, Verdict, chain
from koordpy.framework.pod_rule_filter import DomainTable, Rule
from koordpy.gangs.member_constraints import MemberConstraintReader, MemberConstraints
from koordpy.gangs.queue_units import GangCache, Groups, Unit
from koordpy.placement.problem import Problem
from koordpy.plan.limits import DOMAIN_LABELS, SHAPES_KEPT, STATIC_KEPT
from koordpy.plugins import node_filters as node_filters
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.node_scores import static_scores
from koordpy.plugins.topology_spread import FILTERS, constraints_of
from koordpy.plugins.volume_binding import VolumeBinding
from koordpy.plugins.volume_claims import claims_of
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.reservations.available_capacity import AvailableCapacity
from koordpy.reservations.capacity_view import PLAIN, View
from koordpy.reservations.reservation_ledger import ReservationLedger, parties


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
    memo: dict[type, object] = field(default_factory=dict)
    """What the rooms above keep between rounds."""

    def at(self, snapshot: Snapshot) -> "PlannerCache":
        """The figures that hold for a snapshot's static_version."""
        full = self.table is not None and len(self.table.known) > DOMAIN_LABELS
        if self.version != snapshot.static_version or full or self.turn != bounded_memory.turn:
            self.version, self.turn = snapshot.static_version, bounded_memory.turn
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


class RoundState:
    """Figures of every shape that a round meets."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, cache: PlannerCache | None = None) -> None:
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._added = config.filters.node_affinity.added_affinity
        self._cache = (cache or PlannerCache()).at(self.snapshot)
        self._static = self._cache.static
        self.scene = FilterInputs(draft, config, self._cache.domains)
        draft.reserved_claims = self._claims_closed_to
        self.notes: dict[str, Mapping[str, str]] = {}
        """Pod key -> what the Binding of a pod says that this round has placed."""
        self._shapes: dict[bytes, ShapeState] = {}
        self._among: dict[GangRef, tuple[tuple[int, View], MemberConstraints]] = {}
        self._ordinary: set[bytes] = set()
        """Shapes whose key is the shape itself."""
        self.built: tuple[Unit, tuple[int, View], Problem] | None = None
        """The unit that a Problem was built of last, the moment then, the Problem."""
        self.memo: dict[type, object] = {}
        """What the rooms above have found out in this round."""
        self._others: list[RoundState] = []
        self.view = PLAIN
        """What counts as used."""
        self._views: dict[View, RoundState] = {}
        self._changed: Unit | None = None
        """A unit that has other members than in the snapshot; None for none."""

    def of_draft(
        self, draft: Draft, config: KoordpyConfiguration | None = None, cache: PlannerCache | None = None
    ) -> "RoundState":
        """Figures of another draft of the round. config, cache: other than the round's, for other nodes or limits."""
        made = RoundState(draft, config or self.config, cache or self._cache)
        made.groups = self.groups
        self._others.append(made)
        return made

    def of_view(self, view: View) -> "RoundState":
        """Figures of the same draft in another view, which share what does not depend on it. Its demand stays where the
        view has none."""
        view = self.reservations.allowed(replace(view, demand=view.demand or self.view.demand))
        if view == self.view:
            return self
        found = self._views.get(view)
        if found is None:
            found = self._views[view] = copy(self)
            found.view, found.built = view, None
            found.groups, found.admission = self.groups, self.admission.of_view(view)
        return found

    def of_changed(self, unit: Unit) -> "RoundState":
        """Figures of the same draft in which a unit has other members, as one without a rule of its own."""
        made = self.of_draft(self.draft)
        made._changed = unit
        return made

    def take_apart(self) -> None:
        """Ends them, their draft and those of other drafts: they refer to each other in circles, and would stay, with
        pods that are gone since, until the collector takes its longest walk."""
        for one in self._others:
            one.take_apart()
        for view in self._views.values():
            vars(view).clear()
        vars(self.draft).clear()
        vars(self).clear()

    @cached_property
    def reservations(self) -> ReservationLedger:
        """Capacity that is reserved for pods. `Draft.has_nominations` says whether any is."""
        return ReservationLedger(self.draft, self.config, lambda: self.scene.reach)

    @cached_property
    def admission(self) -> Admission:
        """What quotas let start."""
        return Admission(self.draft, self.config.quota, self.reservations)

    @property
    def moment(self) -> tuple[int, View]:
        """Equal for as long as what units may have is the same: the draft, and what is promised to whom."""
        return self.draft.version, self.view

    def ignored(self, resource: str) -> bool:
        """Whether the configuration takes a resource out of the fit check; extended ones only (kube-parity.md 2.5)."""
        fit = self.config.filters.node_resources_fit
        if not (fit.ignored_resources or fit.ignored_resource_groups) or not is_extended(resource):
            return False
        return resource in fit.ignored_resources or resource.partition("/")[0] in fit.ignored_resource_groups

    def claims_at(self, pod: PodInfo, node: int) -> dict[str, str]:
        """Claim -> volume that a pod takes on a node, empty for one to be made there; nothing for most pods."""
        if not pod.ties.volumes or not claims_of(pod):
            return {}
        # on the draft as it is, without the figures of all nodes
        return VolumeBinding(pod, self.draft, self.snapshot.storage, self.scene.reach).choice(node)

    @cached_property
    def groups(self) -> Groups:
        """The gangs of the snapshot, and what is planned together."""
        return Groups(self.snapshot, self.config.gangs, self.config.stale_gangs, self._cache.gangs)

    def unit_id(self, pod: PodInfo) -> str:
        """Id of the unit that a pod belongs to."""
        return self.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    def among(self, gang: GangRef) -> MemberConstraints:
        """What the members of a gang's unit that the draft has not placed are to each other."""
        known = self._among.get(gang)
        if known is None or known[0] != self.moment:
            changed = self._changed
            is_changed = changed is not None and gang in (one.ref for one in changed.gangs)
            unit = changed if changed is not None and is_changed else self.groups.unit(gang)
            waiting = [pod for pod in unit.pending if pod.key not in self.draft.placed]
            defaults = self.scene.spread_defaults
            spare = len(unit.pending) - max(1, sum(unit.need(one) for one in unit.gangs))
            reader = MemberConstraintReader(
                waiting, self.draft, self.scene.domains, spread_defaults=defaults, spare=spare
            )
            known = self.moment, reader.read()
            self._among.update({one.ref: known for one in unit.gangs})
        return known[1]

    def concerned(self, pod: PodInfo) -> bool:
        """Whether a pod may be something to the other members of its gang."""
        defaults, spec = self.scene.spread_defaults, pod.pod.spec
        if defaults and constraints_of(pod, FILTERS, defaults):
            return True
        return bool(pod.ties or spec.topology_spread_constraints or spec.resource_claims)

    def available_to(self, pod: PodInfo) -> AvailableCapacity | None:
        """What other holders have reserved from a pod, in this view; None where nothing is. Reservations of the pod and
        of the pods that are planned together with it are its own."""
        if not self.draft.has_nominations:
            return None
        return self.reservations.available_to([pod], self._reserved_for(pod), net=self.view.net)

    def _claims_closed_to(self, pod: PodInfo) -> list[Reservation]:
        """The same reservations with the volumes and devices of their claims."""
        return self.reservations.claims_closed_to(pod, self._reserved_for(pod)) if self.draft.has_nominations else []

    def _reserved_for(self, pod: PodInfo) -> frozenset[str]:
        """Keys of the pods that are planned together with a pod, itself included, and have a reservation."""
        if pod.gang is None:
            return frozenset([pod.key] if self.reservations.has(pod) else ())
        return self.reservations.members({gang.ref for gang in self.groups.unit(pod.gang).gangs})

    def _among_refusal(self, pod: PodInfo) -> Refusal | None:
        """Why a plan cannot hold a member together with the others of its gang."""
        if pod.gang is None or not self.concerned(pod):
            return None
        return self.among(pod.gang).refusals.get(pod.shape)

    def key(self, pod: PodInfo) -> bytes:
        """Equal for pending pods that share their figures in this round."""
        if pod.shape in self._ordinary and not self.draft.has_nominations:
            return pod.shape
        key, refusal = pod.shape, self._among_refusal(pod)
        if refusal is not None:
            key += refusal.reasons[0].encode()
        if self.draft.has_nominations:
            whose = parties(pod, self.snapshot.quotas)
            key += repr((sorted(self._reserved_for(pod)), self.view.net, whose)).encode()
        if signature := device_signature(pod, self.scene) if pod.asks else "":
            key += signature.encode()
        elif not (self.draft.has_nominations or self.scene.spread_defaults or self.concerned(pod)):
            self._ordinary.add(pod.shape)
        return key

    def of(self, pod: PodInfo) -> ShapeState:
        """The figures of a pending pod's shape, current."""
        key = self.key(pod)
        found = self._shapes.get(key)
        if found is None:
            refusal = refusal_of(pod, self.scene) or self._among_refusal(pod)
            found = self._shapes[key] = ShapeState(self, pod, self._first_figures(pod), refusal)
        else:
            found.refresh()
        return found

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """The filters of a pending pod that look at more than the pod and a node, current."""
        return self.of(pod).rules

    def takes(self, pod: PodInfo, node: int) -> bool:
        """True if every filter lets a pending pod on a node (position), on the draft as it is."""
        return bool(self.of(pod).verdict().which[node] == 0)

    def lets_in(self, pod: PodInfo) -> NDArray[np.bool_]:
        """[nodes] True where labels and taints let a pod in."""
        return self._first_figures(pod).before.fits

    @property
    def cache(self) -> PlannerCache:
        """What is kept between rounds."""
        return self._cache

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
