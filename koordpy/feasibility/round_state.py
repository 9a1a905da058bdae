# SPDX-License-Identifier: Apache-2.0
"""Round state: all results of one planning round about the pending pods, kept up to date with the draft.

The main part is the filter and score results of each shape of pods (`ShapeState`), on all nodes. Further parts are the
constraints among gang members, the reservations, and the admission by quotas. Results that depend only on labels,
taints and images (static results) are computed once for all shapes with equal fields, and used again in later rounds
(`PlannerCache`).
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
from koordpy.devices.family_registry import device_signature, limits_members, member_limits, nominated_allocation
from koordpy.fairness.quota_admission import Admission
from koordpy.feasibility.filtering import refusal_of
from koordpy.feasibility.shape_state import ShapeState, Static
from koordpy.framework.filter_protocol import Refusal, Verdict, chain
from koordpy.framework.pod_rule_filter import DomainTable, Rule
from koordpy.gangs.broken_gangs import missing_members
from koordpy.gangs.member_constraints import MemberConstraintReader
from koordpy.gangs.queue_units import GangCache, Groups, Unit
from koordpy.gangs.unit_constraints import MemberConstraints
from koordpy.placement.problem import Problem
from koordpy.plan.limits import DOMAIN_LABELS, SHAPES_KEPT, STATIC_KEPT
from koordpy.plugins import node_filters as node_filters
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.node_repair import check_repair, distinctions_of
from koordpy.plugins.node_scores import static_scores
from koordpy.plugins.topology_spread import FILTERS, constraints_of
from koordpy.plugins.volume_binding import VolumeBinding
from koordpy.plugins.volume_claims import claims_of
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.reservations.available_capacity import AvailableCapacity
from koordpy.reservations.capacity_view import PLAIN, View
from koordpy.reservations.reservation_ledger import ReservationLedger, tenants_of


def read_of(pod: PodInfo) -> bytes:
    """Returns the fields of a pod on which its static results depend, as a key.

    Pods with equal keys share the results.
    """
    spec = pod.pod.spec
    near = spec.affinity.node_affinity if spec.affinity else None
    images = [one.image for one in (*spec.init_containers, *spec.containers)]
    return json.encode((spec.node_selector, near, spec.tolerations, images))


@dataclass
class PlannerCache:
    """Results that later rounds use again: gangs, and static results as long as the nodes' labels and taints are the
    same."""

    version: int = -1
    """`Snapshot.static_version` for which `static` and `table` are valid."""
    static: dict[bytes, Static] = field(default_factory=dict)
    """`read_of` of a pod -> static results. Many shapes are equal in the fields that these depend on."""
    table: DomainTable | None = None
    """The domains of node labels; None until the first use."""
    gangs: GangCache = field(default_factory=GangCache)
    turn: int = 0
    """Generation of all bounded caches (`bounded_memory.turn`). After many deletions it changes, and all are
    emptied."""
    most: int = SHAPES_KEPT
    """If there are more static results than this, the results of deleted pods are removed."""
    memo: dict[type, object] = field(default_factory=dict)
    """Results that other packages cache between rounds, by their type."""

    def at(self, snapshot: Snapshot) -> "PlannerCache":
        """Returns this cache, after removing everything that is not valid for a snapshot.

        If there are too many static results, those of deleted pods are removed first; if that is not enough, all of
        them.
        """
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
        """Returns the domains of node labels.

        Not cached if nodes or labels of the snapshot are not those of the round.
        """
        if self.version != snapshot.static_version:
            return DomainTable(snapshot.nodes)
        if self.table is None:
            self.table = DomainTable(snapshot.nodes)
        return self.table


class RoundState:
    """All that a round knows about pending pods on one draft: shape states, gangs, reservations, quota admission.

    Values are computed on first use and follow the draft: after a placement, the next call returns current results.
    """

    def __init__(self, draft: Draft, config: KoordpyConfiguration, cache: PlannerCache | None = None) -> None:
        """cache: results of earlier rounds; None for an empty cache."""
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._added = config.filters.node_affinity.added_affinity
        self._cache = (cache or PlannerCache()).at(self.snapshot)
        self._static = self._cache.static
        self.inputs = FilterInputs(draft, config, self._cache.domains)
        """The inputs of all filters and scores."""
        if self.snapshot.keeps_spares:
            self.inputs.repairs = self._repairs
        draft.reserved_claims = self._claims_closed_to
        self.notes: dict[str, Mapping[str, str]] = {}
        """Pod key -> annotations for the Binding of a pod that this round has placed."""
        self._shapes: dict[bytes, ShapeState] = {}
        """Key of a pod (method `key`) -> its shape state."""
        self._among: dict[GangRef, tuple[tuple[int, View], MemberConstraints]] = {}
        """Gang -> (`moment`, constraints among the members of its unit at that moment)."""
        self._distinctions = distinctions_of(self.inputs) if self.snapshot.closes_nodes else []
        self._plain_keys: set[bytes] = set()
        """Cache: shapes for which the method `key` returns the shape itself."""
        self.built: tuple[Unit, tuple[int, View], Problem] | None = None
        """(unit, `moment`, Problem) of the Problem that was built last; None if none was built."""
        self.memo: dict[type, object] = {}
        """Results that other packages cache for this round, by their type."""
        self._others: list[RoundState] = []
        """The round states that `of_draft` has created."""
        self.view = PLAIN
        """The view: which pods count as used capacity, and the demand that decides runtimes of quotas."""
        self._views: dict[View, RoundState] = {}
        """The round states that `of_view` has created."""
        self._changed: Unit | None = None
        """A unit that has other members than in the snapshot, for a what-if (`of_changed`); None if there is none."""

    def of_draft(
        self, draft: Draft, config: KoordpyConfiguration | None = None, cache: PlannerCache | None = None
    ) -> "RoundState":
        """Returns a new round state for another draft of the round, such as one with fewer running pods.

        config, cache: given if the settings or the nodes differ; None for those of this round state.
        """
        made = RoundState(draft, config or self.config, cache or self._cache)
        made.groups = self.groups
        self._others.append(made)
        return made

    def of_view(self, view: View) -> "RoundState":
        """Returns the round state of the same draft in another view. All results that do not depend on the view are
        shared.

        If `view` has no demand, the demand of the current view is used.
        """
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
        """Returns a new round state of the same draft in which a unit has other members.

        Used for what-ifs, for example with members that lack one of their rules.
        """
        made = self.of_draft(self.draft)
        made._changed = unit
        return made

    def take_apart(self) -> None:
        """Clears this round state, its draft, and the round states derived from it.

        They refer to each other in cycles. Otherwise they would stay in memory, with deleted pods, until a full garbage
        collection.
        """
        for one in self._others:
            one.take_apart()
        for view in self._views.values():
            vars(view).clear()
        vars(self.draft).clear()
        vars(self).clear()

    @cached_property
    def reservations(self) -> ReservationLedger:
        """Capacity that is reserved for pods. `Draft.has_nominations` is True if there is any."""
        return ReservationLedger(self.draft, self.config, lambda: self.inputs.reach, nominated_allocation, self.groups)

    @cached_property
    def admission(self) -> Admission:
        """The check of units against their quotas."""
        return Admission(self.draft, self.config.quota, self.reservations)

    @property
    def moment(self) -> tuple[int, View]:
        """(version of the draft, view). Two equal moments have the same capacity available to units."""
        return self.draft.version, self.view

    def ignored(self, resource: str) -> bool:
        """Returns True if the configuration excludes a resource from the fit check (kube-parity.md 2.5). Only extended
        resources can be excluded."""
        fit = self.config.filters.node_resources_fit
        if not (fit.ignored_resources or fit.ignored_resource_groups) or not is_extended(resource):
            return False
        return resource in fit.ignored_resources or resource.partition("/")[0] in fit.ignored_resource_groups

    def claims_at(self, pod: PodInfo, node: int) -> dict[str, str]:
        """Returns claim key -> volume name for a pod's claims that are bound only at placement
        (WaitForFirstConsumer). node: position of the pod's node. An empty volume name means that a volume is
        provisioned there. Empty for pods without such claims."""
        if not pod.ties.volumes or not claims_of(pod):
            return {}
        # reads the current draft, because the results for all nodes may be older
        return VolumeBinding(pod, self.draft, self.snapshot.storage, self.inputs.reach).choice(node)

    @cached_property
    def groups(self) -> Groups:
        """The gangs of the snapshot, and the units that are planned together."""
        config = self.config
        return Groups(self.snapshot, config.gangs, config.stale_gangs, self._cache.gangs, config.repair)

    def _repairs(self, pod: PodInfo) -> bool:
        """Returns True if a pod is a member of a gang that was broken at the start of the round."""
        return pod.gang is not None and missing_members(self.groups.gang(pod.gang)) > 0

    def unit_id(self, pod: PodInfo) -> str:
        """Returns the id of the unit that a pod belongs to."""
        return self.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    def member_constraints(self, gang: GangRef) -> MemberConstraints:
        """Returns the constraints among the members of a gang's unit that the draft has not placed yet."""
        known = self._among.get(gang)
        if known is None or known[0] != self.moment:
            changed = self._changed
            is_changed = changed is not None and gang in (one.ref for one in changed.gangs)
            unit = changed if changed is not None and is_changed else self.groups.unit(gang)
            waiting = [pod for pod in unit.pending if pod.key not in self.draft.placed]
            defaults = self.inputs.spread_defaults
            spare = len(unit.pending) - max(1, sum(unit.need(one) for one in unit.gangs))
            reader = MemberConstraintReader(
                waiting,
                self.draft,
                self.inputs.domains,
                limits=lambda kinds, numbers: member_limits(kinds, numbers, self.draft, self.config, spare),
                spread_defaults=defaults,
                spare=spare,
            )
            known = self.moment, reader.read()
            self._among.update({one.ref: known for one in unit.gangs})
        return known[1]

    def depends_on_pods(self, pod: PodInfo) -> bool:
        """Returns True if other pods, ports or volumes may limit the nodes of a pod."""
        own, defaults = pod.ties or pod.pod.spec.topology_spread_constraints, self.inputs.spread_defaults
        return bool(own or (defaults and constraints_of(pod, FILTERS, defaults)))

    def concerned(self, pod: PodInfo) -> bool:
        """Returns True if a pod may have constraints that concern other members of its gang."""
        return self.depends_on_pods(pod) or (bool(pod.asks) and limits_members(pod, self.inputs))

    def available_to(self, pod: PodInfo) -> AvailableCapacity | None:
        """Returns the reserved capacity that a pod may not use, in this view; None if there is none. The pod may use
        reservations of its own and of the pods that are planned together with it."""
        if not self.draft.has_nominations:
            return None
        return self.reservations.available_to([pod], self._reserved_for(pod), net=self.view.net)

    def _claims_closed_to(self, pod: PodInfo) -> list[Reservation]:
        """Returns the reservations of volumes and of claims' devices that a pod may not use."""
        return [*self.draft.withheld_devices(), *self.reservations.claims_closed_to(pod, self._reserved_for(pod))]

    def _reserved_for(self, pod: PodInfo) -> frozenset[str]:
        """Returns the keys of the pods with reservations that a pod may use: its own, and those of its unit's
        members."""
        if pod.gang is None:
            return frozenset([pod.key] if self.reservations.has(pod) else ())
        return self.reservations.members({gang.ref for gang in self.groups.unit(pod.gang).gangs})

    def _among_refusal(self, pod: PodInfo) -> Refusal | None:
        """Returns why no plan can place a pod together with the other members of its gang; None if a plan may be
        possible."""
        if pod.gang is None or not self.concerned(pod):
            return None
        return self.member_constraints(pod.gang).refusals.get(pod.shape)

    def key(self, pod: PodInfo) -> bytes:
        """Returns a key that is equal for pending pods that may share a shape state in this round. It is the pod's
        shape, plus everything else on which the state of this pod depends: a refusal by rules of its gang, the
        reservations that it may use, and values that its device families distinguish."""
        if pod.shape in self._plain_keys and not self.draft.has_nominations:
            return pod.shape
        key, refusal = pod.shape, self._among_refusal(pod)
        if refusal is not None:
            key += refusal.reasons[0].encode()
        if self.draft.has_nominations:
            tenants = tenants_of(pod, self.snapshot.quotas)
            key += repr((sorted(self._reserved_for(pod)), self.view.net, tenants)).encode()
        signature = device_signature(pod, self.inputs) if pod.asks else ""
        for one in self._distinctions:
            signature += one.signature(pod, self.inputs)
        if signature:
            key += signature.encode()
        elif not (
            self._distinctions or self.draft.has_nominations or self.inputs.spread_defaults or self.concerned(pod)
        ):
            self._plain_keys.add(pod.shape)
        return key

    def of(self, pod: PodInfo) -> ShapeState:
        """Returns the shape state of a pending pod, current with the draft."""
        key = self.key(pod)
        found = self._shapes.get(key)
        if found is None:
            refusal = refusal_of(pod, self.inputs) or self._among_refusal(pod)
            found = self._shapes[key] = ShapeState(self, pod, self._static_now(pod), refusal)
        else:
            found.refresh()
        return found

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """Returns the filters of a pending pod that depend on other pods, volumes or devices, current with the
        draft."""
        return self.of(pod).rules

    def takes(self, pod: PodInfo, node: int) -> bool:
        """Returns True if every filter accepts a pending pod on a node (position), on the current draft."""
        return bool(self.of(pod).verdict().which[node] == 0)

    def lets_in(self, pod: PodInfo) -> NDArray[np.bool_]:
        """Returns [nodes] True if labels, taints and cordon of the node admit a pod, whatever NodeRepair refuses."""
        return self._static_of(pod).before.fits

    @property
    def cache(self) -> PlannerCache:
        """The results that are cached between rounds."""
        return self._cache

    def could_hold(self, pod: PodInfo) -> NDArray[np.bool_]:
        """Returns [nodes] True if labels and taints admit a pod, and its requests are at most the node's
        allocatable."""
        able = self._static_of(pod).before.fits
        asked = {name: amount for name, amount in pod.requests.items() if not self.ignored(name)}
        for column, amount in self.snapshot.vector(asked):
            able = able & (self.snapshot.allocatable[:, column] >= amount)
            if not able.any():
                break
        return able

    def _static_of(self, pod: PodInfo) -> Static:
        """Returns the static results of a pod, cached by `read_of`."""
        read = read_of(pod)
        static = self._static.get(read)
        if static is None:
            parts, refusal = self._first_verdicts(pod)
            scores = static_scores(self.snapshot.nodes, pod.pod, self._added)
            static = self._static[read] = Static(before=chain(parts), refusal=refusal, scores=scores)
        return static

    def _static_now(self, pod: PodInfo) -> Static:
        """Returns the static results of a pod, combined with the refusals of NodeRepair, which are valid in this round
        only."""
        static = self._static_of(pod)
        repair = check_repair(pod, self.inputs) if self.snapshot.closes_nodes else None
        if repair is None:
            return static
        nodes = self.snapshot.nodes
        early = [node_filters.check_named(nodes, pod.pod), node_filters.check_unschedulable(nodes, pod.pod)]
        return replace(static, before=chain([*early, repair, static.before]))

    def _first_verdicts(self, pod: PodInfo) -> tuple[list[Verdict], Refusal | None]:
        """Returns the verdicts of the filters that read only node objects (`node_filters.first_words`)."""
        return node_filters.first_words(self.snapshot.nodes, pod.pod, self._added)

    def words(self, pod: PodInfo) -> list[Verdict]:
        """Returns the verdict of each filter on every node, in the order of the filters. Unlike in
        `ShapeState.verdict`, each filter is also applied to nodes that an earlier filter refuses."""
        named, unschedulable, *others = self._first_verdicts(pod)[0]
        repair = check_repair(pod, self.inputs) if self.snapshot.closes_nodes else None
        return [named, unschedulable, *([repair] if repair else []), *others, *self.of(pod).later_words()]
