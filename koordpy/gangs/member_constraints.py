# SPDX-License-Identifier: Apache-2.0
"""Constraints between the pending members of one unit, such as two members with the same host port.

kube-scheduler places pods one by one, so its filters see earlier pods. koordpy places all members of a gang at once:
it chooses the number of pods on each node. So a constraint between two members (host ports, volumes, devices, affinity,
anti-affinity, topology spread) is expressed in one of three forms (gang-network.md 5):

- A column: an extra resource with a capacity on each node. Pods of certain shapes request an amount of it. For example,
  a host port is a resource with capacity 1 on each node. For required anti-affinity on single nodes, a pod with the
  term requests the whole resource, and each pod that the term matches requests 1.
- An interaction (`placement/member_interactions.py`), a rule between shapes that all placement methods support:
  affinity, anti-affinity on larger domains, topology spread.
- A refusal of the shape, if neither a column nor an interaction is exact.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from koordpy.api.label_selectors import selector_matches
from koordpy.api.objects import PodAffinityTerm
from koordpy.api.reading_limits import GANG_PORTS
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.framework.device_limits import FitsAcross, FreedAmounts, MemberLimits
from koordpy.framework.filter_protocol import Code, Refusal
from koordpy.framework.pod_rule_filter import DomainTable
from koordpy.gangs.claim_constraints import volumes_among
from koordpy.gangs.unit_constraints import ColumnRequest, MemberConstraints
from koordpy.placement.member_interactions import (
    AntiAffinity,
    LinkedAffinity,
    RequiredAffinity,
    Tie,
    linked_sets,
)
from koordpy.plan.limits import NODE_PODS
from koordpy.plugins.disk_limits import ONE_POD, pod_disks
from koordpy.plugins.interpod_affinity import OwnTerms, term_matches
from koordpy.plugins.topology_spread import FILTERS, SpreadDefaults, Spreading, constraints_of
from koordpy.plugins.volume_claims import claims_of
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import ANY_ADDRESS, Terms
from koordpy.pods.volume_book import CsiVolume, Disk, VolumeObjects


class MemberConstraintReader:
    """Reads the constraints between the pending members of a unit, on the current draft."""

    def __init__(
        self,
        pending: Sequence[PodInfo],
        draft: Draft,
        table: DomainTable,
        *,
        limits: Callable[[Mapping[bytes, PodInfo], Mapping[bytes, int]], Iterable[MemberLimits]],
        spread_defaults: SpreadDefaults | None,
        spare: int,
    ) -> None:
        """pending: members without a node. table: domains by node label. spare: number of members that a plan may leave
        out. limits: returns the limits by devices. Its arguments: shape -> a pod, shape -> number of pods."""
        self.draft, self.spare, self._device_limits = draft, spare, limits
        self.spread_defaults = spread_defaults
        self.snapshot = draft.snapshot
        self.table = table
        self.number = Counter(pod.shape for pod in pending)
        self.most = self.number.total() + min(int(self.snapshot.allocatable[:, 0].max(initial=0)), NODE_PODS)
        """Capacity for nodes on which a column must not limit the number of pods: above the pods on any node."""
        self.kinds = {pod.shape: pod for pod in reversed(pending)}  # shape -> its first pod
        self.columns: list[Ints] = []  # each [nodes], capacity
        self.asks: dict[bytes, list[ColumnRequest]] = {}
        self.refusals: dict[bytes, Refusal] = {}
        self.position = {shape: i for i, shape in enumerate(self.kinds)}
        self.ties: list[Tie] = []
        self.one_of: list[frozenset[bytes]] = []
        self.stocks: list[tuple[int, Mapping[bytes, int]]] = []
        self.one_domain: list[tuple[tuple[bytes, ...], Ints]] = []
        self.freed: dict[int, FreedAmounts] = {}
        self.fits_across: list[FitsAcross] = []
        self.among_members: frozenset[bytes] = frozenset()
        self._anti_affinity_columns: dict[tuple[bytes, frozenset[bytes]], int] = {}
        """Anti-affinity term, as (nodes with its label, matched shapes) -> its column."""

    def read(self) -> MemberConstraints:
        """Returns the constraints of all kinds; without any constraint for a single pending pod."""
        if self.number.total() > 1:
            self._ports()
            if any(pod.ties.volumes for pod in self.kinds.values()):
                self._disks()
                self._claims()
                self._limits()
            self._affinity()
            for shape, pod in self.kinds.items():
                self._anti_affinity(shape, pod, pod.ties.terms)
                self._spread(shape, pod)
            self._devices()
        nodes = len(self.snapshot.nodes)
        room = np.stack(self.columns, axis=1) if self.columns else np.zeros((nodes, 0), dtype=np.int64)
        asks = {shape: tuple(own) for shape, own in self.asks.items()}
        return MemberConstraints(
            room,
            asks,
            self.refusals,
            tuple(self.kinds),
            tuple(self.ties),
            tuple(self.one_of),
            self.among_members,
            tuple(self.stocks),
            tuple(self.one_domain),
            self.freed,
            tuple(self.fits_across),
        )

    def _refuse(self, shape: bytes, plugin: str, feature: str) -> None:
        """Refuses a shape, unless it is refused already. feature: the unsupported combination, for the message."""
        reason = f"unsupported: {feature} among the members of a gang"
        self.refusals.setdefault(shape, Refusal(plugin, Code.UNRESOLVABLE, (reason,)))

    def _column(self, room: Ints, asks: Mapping[bytes, int], freed: FreedAmounts | None = None) -> None:
        """Adds a column. room: [nodes] capacity. asks: shape -> amount that one pod requests. freed: amounts that
        evictions add to it; None if it does not depend on running pods."""
        if freed is not None:
            self.freed[len(self.columns)] = freed
        for shape, amount in asks.items():
            self.asks.setdefault(shape, []).append((len(self.columns), amount))
        self.columns.append(room)

    def _ports(self) -> None:
        """Adds one column per host port and address. A pod with the wildcard address uses all columns of the port."""
        wanted: dict[tuple[str, int], dict[str, set[bytes]]] = {}
        for shape, pod in self.kinds.items():
            for port in pod.ties.ports:
                wanted.setdefault((port.protocol, port.port), {}).setdefault(port.address, set()).add(shape)
        if sum(map(len, wanted.values())) > GANG_PORTS:
            for shape in {shape for addresses in wanted.values() for some in addresses.values() for shape in some}:
                self._refuse(shape, "NodePorts", f"more than {GANG_PORTS} host ports")
            return
        for addresses in wanted.values():
            everywhere = addresses.get(ANY_ADDRESS, set())
            for shapes in addresses.values():
                holders = {shape for shape in self.kinds if shape in shapes or shape in everywhere}
                if sum(self.number[shape] for shape in holders) > 1:
                    one = np.ones(len(self.snapshot.nodes), dtype=np.int64)
                    self._column(one, {shape: 1 for shape in self.kinds if shape in holders})

    def _matched_shapes(self, term: PodAffinityTerm, owner: PodInfo) -> list[bytes]:
        """Returns the shapes that a term of `owner` matches."""
        namespaces = self.snapshot.namespaces
        return [
            shape
            for shape, pod in self.kinds.items()
            if term_matches(term, owner.namespace, pod.namespace, pod.pod.metadata.labels, namespaces)
        ]

    def _positions(self, shapes: Sequence[bytes]) -> tuple[int, ...]:
        """Returns the positions of shapes in `MemberConstraints.shapes`, in ascending order."""
        return tuple(sorted(self.position[shape] for shape in shapes))

    def _other_members(self, shape: bytes, meant: Sequence[bytes]) -> int:
        """Returns the number of members with a shape in `meant`, without the pod of `shape` itself."""
        return sum(self.number[one] for one in meant) - (shape in meant)

    def _affinity(self) -> None:
        """Adds the required affinity between members, one set of linked shapes at a time.

        No interaction is needed if members do not change the filters' verdict: for a pod without affinity to other
        members; and for a set if existing pods match all its terms, and no member outside the set does.
        """
        meant: dict[bytes, list[bytes]] = {}  # shape with required affinity -> shapes that match all its terms
        for shape, pod in self.kinds.items():
            if wanted := pod.ties.terms.affinity.required:
                each = [set(self._matched_shapes(term, pod)) for term in wanted]
                meant[shape] = [one for one in self.kinds if all(one in some for some in each)]
        matched = {one for shape, ones in meant.items() for one in ones if one != shape}
        self.among_members = frozenset(shape for shape, ones in meant.items() if self._other_members(shape, ones))
        owners = [self._near(shape, ones) for shape, ones in meant.items() if shape in self.among_members | matched]
        for linked in linked_sets(owners):
            tie = LinkedAffinity(tuple(linked))
            if not all(one.has_existing and not tie.unlinked(one) for one in linked):
                self.ties.append(tie)

    def _near(self, shape: bytes, meant: Sequence[bytes]) -> RequiredAffinity:
        """Returns the required affinity of a shape. meant: shapes that match all its terms."""
        own = OwnTerms(self.kinds[shape], self.snapshot, self.table)
        for change in self.draft.changes:
            own.change(*change)
        near = own.tie(self.position[shape], self._positions(meant))
        assert near is not None
        return near

    def _anti_affinity(self, shape: bytes, pod: PodInfo, terms: Terms) -> None:
        """Adds required anti-affinity: a column if the shape matches its own term and each domain is a single node;
        otherwise an interaction."""
        for term in terms.anti_affinity.required:
            meant = self._matched_shapes(term, pod)
            if not self._other_members(shape, meant):
                continue
            domains = self.table.of(term.topology_key)
            whole = self.most  # capacity of a column on a node with the label; request of a pod with the term
            if shape not in meant or not domains.one_node_each:
                self.ties.append(AntiAffinity(self.position[shape], self._positions(meant), domains.of))
                if shape in meant:  # also a column, as a tighter bound: at most one such pod on a node with the label
                    self._column(np.where(domains.labelled, 1, whole).astype(np.int64), {shape: 1})
                continue
            key = domains.labelled.tobytes(), frozenset(meant)
            if key not in self._anti_affinity_columns:
                self._anti_affinity_columns[key] = len(self.columns)
                room = np.where(domains.labelled, whole, whole * whole).astype(np.int64)
                self._column(room, dict.fromkeys(meant, 1))
            column = self._anti_affinity_columns[key]
            self.asks[shape] = [(at, whole if at == column else amount) for at, amount in self.asks[shape]]

    def _disks(self) -> None:
        """Adds a column for each inline disk that pods on a node cannot share: a pod that writes requests all of it, a
        pod that only reads requests 1."""
        holders: dict[Disk, dict[bytes, bool]] = {}
        for shape, pod in self.kinds.items():
            for disk, read_only in pod_disks(pod):
                others = holders.setdefault(disk, {})
                others[shape] = others.get(shape, True) and read_only
        whole = self.most  # capacity of a column; request of a pod that writes
        for shapes in holders.values():
            if all(shapes.values()) or sum(self.number[shape] for shape in shapes) < 2:
                continue
            room = np.full(len(self.snapshot.nodes), whole, dtype=np.int64)
            self._column(room, {shape: 1 if read_only else whole for shape, read_only in shapes.items()})

    def _claims(self) -> None:
        """Handles claims that only one pod may use, and refuses shapes with unbound claims that conflict in a plan.

        Unbound claims conflict if several members use one claim, or if several claims compete for the same volumes in a
        way that columns cannot express.
        """
        objects = self.snapshot.storage
        users: Counter[str] = Counter()  # claim -> number of members that use it
        for shape, pod in self.kinds.items():
            users.update(dict.fromkeys(claims_of(pod), self.number[shape]))
        self._one_user(users, objects)
        # unbound claim with WaitForFirstConsumer -> its storage class
        waiting = {
            key: objects.class_of(objects.claims[key])
            for key in users
            if key in objects.claims and objects.is_delayed(objects.claims[key])
        }
        of_class = Counter(waiting.values())
        # storage classes with several claims that compete for existing volumes
        contested = {name for name, count in of_class.items() if count > 1 and name in objects.contested}
        if contested and all(users[key] == 1 for key in waiting):
            found = volumes_among(self.kinds, self.draft, self.table, sorted(contested))
            for room, asks in found.columns:
                self._column(room, asks)
            contested = set(found.unknown)
        for shape, pod in self.kinds.items():
            for key in claims_of(pod):
                claim = objects.claims.get(key)
                if claim is None:
                    continue
                name = waiting.get(key)
                if name is not None and (users[key] > 1 or name in contested):
                    self._refuse(shape, "VolumeBinding", "unbound persistent volume claims")

    def _one_user(self, users: Counter[str], objects: VolumeObjects) -> None:
        """Lets a plan place at most one of the members that share a ReadWriteOncePod claim. Refuses these shapes if the
        plan would leave out more than `spare` members."""
        for key in [key for key, number in users.items() if number > 1]:
            claim = objects.claims.get(key)
            if claim is None or "ReadWriteOncePod" not in claim.spec.access_modes:
                continue
            shapes = frozenset(shape for shape, pod in self.kinds.items() if key in claims_of(pod))
            self.one_of.append(shapes)
            if users[key] - 1 > self.spare:
                self.refusals.update(dict.fromkeys(shapes, ONE_POD))
            users[key] = 1

    def _limits(self) -> None:
        """Adds a column for each CSI driver with a volume limit. No column is needed if all shapes have the same
        volumes, because the filter counts them. Otherwise shapes are refused if two pods share a volume, or if a node
        has it already: the volume counts once on a node, but a column would count it twice."""
        objects = self.snapshot.storage
        if not objects.limits:
            return
        sets: dict[str, dict[bytes, frozenset[CsiVolume]]] = {}  # driver -> shape -> volumes of one pod
        for shape, pod in self.kinds.items():
            found = {objects.csi_volume(key) for key in claims_of(pod)}
            for volume in found:
                if volume is not None and volume.driver in objects.limits:
                    own = sets.setdefault(volume.driver, {})
                    own[shape] = own.get(shape, frozenset()) | {volume}
        for driver, kinds in sets.items():
            if len(set(kinds.values())) == 1:
                continue
            uses = Counter(
                volume for shape, found in kinds.items() for volume in found for _ in range(self.number[shape])
            )
            held = self._volumes_on_nodes(driver)  # node -> volumes that are on it already
            if max(uses.values()) > 1 or any(volume in there for there in held.values() for volume in uses):
                for shape in kinds:
                    self._refuse(shape, "NodeVolumeLimits", "volumes of drivers with a limit")
                continue
            room = np.full(len(self.snapshot.nodes), len(uses), dtype=np.int64)
            for name, limit in objects.limits[driver].items():
                at = self.snapshot.index.get(name)
                if at is not None:
                    room[at] = limit - len(held.get(name, ()))
            self._column(
                room, {shape: len(found) for shape, found in kinds.items()}, partial(self._freed_volumes, driver)
            )

    def _freed_volumes(self, driver: str, pod: PodInfo) -> dict[int, int]:
        """Returns node position -> volumes of a driver that evicting a bound pod frees at most. Volumes that other pods
        of the node use count, too; volumes that stay attached do not."""
        objects, index = self.snapshot.storage, self.snapshot.index
        used = {objects.csi_volume(key) for key in claims_of(pod)}.difference(objects.attached.get(pod.node, ()))
        number = sum(volume is not None and volume.driver == driver for volume in used)
        return {index[pod.node]: number} if number and pod.node in index else {}

    def _volumes_on_nodes(self, driver: str) -> dict[str, set[CsiVolume]]:
        """Returns node name -> volumes of a driver on it, including the draft's placements."""
        objects, draft = self.snapshot.storage, self.draft
        out: dict[str, set[CsiVolume]] = {}
        gone: dict[str, Counter[CsiVolume | None]] = {}
        for pod in map(self.snapshot.pods.__getitem__, draft.evicted):
            gone.setdefault(pod.node, Counter()).update(objects.csi_volume(claim) for claim in claims_of(pod))
        for name, uses in self.snapshot.csi_uses.items():
            less = gone.get(name, Counter())
            out.setdefault(name, set()).update(v for v, n in uses.items() if v.driver == driver and n > less[v])
        for name, attached in objects.attached.items():
            out.setdefault(name, set()).update(v for v in attached if v.driver == driver)
        for key, node in draft.placed.items():
            for claim in claims_of(self.snapshot.pods[key]):
                promise = draft.claim_volumes.get(claim)
                volume = objects.csi_volume(claim, promise.volume if promise is not None else "")
                if volume is not None and volume.driver == driver:
                    out.setdefault(self.snapshot.nodes[node].name, set()).add(volume)
        return out

    def _devices(self) -> None:
        """Adds the limits of device families between members, for example by resource claims that they share."""
        for found in self._device_limits(self.kinds, self.number):
            for column in found.columns:
                self._column(column.capacity, column.asks, column.freed)
            self.stocks += found.stocks
            self.fits_across += [found.fits_across] if found.fits_across is not None else []
            self.one_domain += found.one_domain
            for shape, text in found.refusals.items():
                self.refusals.setdefault(shape, Refusal(found.plugin, Code.UNRESOLVABLE, (text,)))

    def _spread(self, shape: bytes, pod: PodInfo) -> None:
        """Adds the required topology spread of a shape as interactions, if a constraint counts other members."""
        given = constraints_of(pod, FILTERS, self.spread_defaults)
        if not given:
            return
        spreading = Spreading(pod, given, self.snapshot, self.table)
        meant = [
            [
                one
                for one, other in self.kinds.items()
                if other.namespace == pod.namespace and selector_matches(constraint.selector, other.pod.metadata.labels)
            ]
            for constraint in spreading.constraints
        ]
        if not any(self._other_members(shape, ones) for ones in meant):
            return
        for change in self.draft.changes:
            spreading.change(*change)
        for constraint, ones in zip(spreading.constraints, meant, strict=True):
            self.ties.append(constraint.tie(self.position[shape], self._positions(ones)))
