# SPDX-License-Identifier: Apache-2.0
"""VolumeBinding filter: refuses nodes where the volumes of a pod's claims are not available (kube-parity.md 2.8).

A claim with a bound volume needs a node that the volume's node affinity admits. A claim of a StorageClass with
WaitForFirstConsumer has no volume yet, and is called *delayed* here: its volume is chosen together with the node. It is
either an existing volume without a claim, or a new one that is provisioned for the node. A delayed claim is *open* if
no volume was chosen for it yet. `Draft.claim_volumes` and `Draft.volume_claims` have the volumes that were chosen for
pods placed earlier in the round.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koordpy.api.label_selectors import selector_matches, term_matches
from koordpy.api.objects import LabelSelector
from koordpy.api.storage_objects import SELECTED_NODE, PersistentVolume, PersistentVolumeClaim, StorageClass, claim_size
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import reserved_volumes
from koordpy.cache.snapshot import NodeInfo
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.framework.pod_rule_filter import DomainTable, Rule
from koordpy.plugins.volume_claims import BINDING, claims_of, delayed_claims
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import NO_PROVISIONER, OfferedVolumes, VolumeObjects, size_bytes

WRONG_NODE = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
VOLUME_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"

Mask = NDArray[np.bool_]
"""[nodes] True or False."""


class VolumeReach:
    """The nodes on which each volume can be used, cached for one state of nodes and volumes."""

    def __init__(self, nodes: Sequence[NodeInfo], table: DomainTable) -> None:
        self._nodes = nodes
        self._table = table
        self._known: dict[str, Mask] = {}
        """Volume name -> result of `of`."""
        self._places: dict[str, list[int] | None] = {}
        """Volume name -> result of `places`."""
        self._rows: dict[OfferedVolumes, tuple[list[int], dict[int, list[int]]]] = {}
        """Volumes that claims may use -> (positions of volumes that every node can use; node -> positions of further
        volumes that this node can use)."""
        self._everywhere: Mask = np.ones(len(nodes), dtype=bool)

    def of(self, volume: PersistentVolume) -> Mask:
        """Returns [nodes] True if the node affinity of a volume admits the node."""
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return self._everywhere
        name = volume.metadata.name
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = np.zeros(len(self._nodes), dtype=bool)
            for term in affinity.required.node_selector_terms:
                named = next((r for r in term.match_expressions if r.operator == "In"), None)
                near = range(len(self._nodes)) if named is None else self._table.holders(named.key, named.values)
                for i in near:
                    # kube-scheduler matches a volume's affinity with the node's labels only, not with its name.
                    found[i] |= term_matches(term, "", self._nodes[i].labels)
        return found

    def places(self, volume: PersistentVolume) -> list[int] | None:
        """Returns the positions of the nodes that can use a volume; None for all nodes."""
        name = volume.metadata.name
        if name not in self._places:
            reach = self.of(volume)
            self._places[name] = None if reach.all() else np.nonzero(reach)[0].tolist()
        return self._places[name]

    def row(self, shelf: OfferedVolumes, node: int) -> Iterator[int]:
        """Yields the positions in `shelf.volumes` of the volumes that a node can use, ascending, the smallest first."""
        if shelf not in self._rows:
            everywhere, here = self._rows[shelf] = [], {}
            for at, volume in enumerate(shelf.volumes):
                places = self.places(volume)
                if places is None:
                    everywhere.append(at)
                for i in places or ():
                    here.setdefault(i, []).append(at)
        everywhere, here = self._rows[shelf]
        return merge(everywhere, here[node]) if node in here else iter(everywhere)

    def labelled(self, selector: LabelSelector) -> list[int]:
        """Returns the positions of the nodes that a label selector matches."""
        named = next(iter(selector.match_labels.items()), None)
        near = range(len(self._nodes)) if named is None else self._table.holders(named[0], [named[1]])
        return [i for i in near if selector_matches(selector, self._nodes[i].labels)]


@dataclass(frozen=True, eq=False)
class _Delayed:
    """A claim without a bound volume, of a class with WaitForFirstConsumer."""

    key: str
    """`namespace/name` of the claim."""
    claim: PersistentVolumeClaim
    size: int
    """Requested bytes."""
    provision: Mask
    """[nodes] True if the StorageClass provisions volumes for the node; storage capacity is not considered."""
    has_storage: Mask
    """[nodes] True if the driver reports enough storage capacity for the node, or does not report capacity."""
    selected: str
    """Name of the node for which a volume is already being provisioned (selected-node annotation); empty for none."""


class _Offer(NamedTuple):
    """An open claim, and the volumes that could be bound to it.

    shelf: the volumes that the claim may use if they are large enough, smallest first. start: position in `shelf` of
    the first volume that is large enough; the candidates are this volume and all later ones.
    """

    delayed: _Delayed
    shelf: OfferedVolumes
    start: int


class _OpenClaims(NamedTuple):
    """The open claims of a pod on the current draft, and the volumes that are not available to them."""

    offers: list[_Offer]
    """The open claims, smallest first."""
    taken: Mapping[str, str]
    """Volume -> the claim for which the draft has chosen it."""
    kept: Mapping[str, str]
    """Volume -> the claim for which it is reserved, if the reservation is closed to the pod."""

    def is_free(self, name: str, keys: Container[str]) -> bool:
        """Returns True if a volume is not chosen for a claim, and not reserved for a claim that is not in `keys`."""
        return name not in self.taken and (name not in self.kept or self.kept[name] in keys)


@dataclass(frozen=True, eq=False)
class OpenClaim:
    """The public record of an open claim."""

    key: str
    """`namespace/name` of the claim."""
    class_name: str
    """Name of the storage class."""
    candidates: tuple[str, ...]
    """Names of the available volumes that can be bound to the claim, smallest first."""
    made: Mask
    """[nodes] True if a volume can be provisioned for the node."""
    reserved: bool
    """True if a volume is reserved for the claim; it is then the only candidate."""


class VolumeBinding(Rule):
    """Checks bound claims by the node affinity of their volumes, and delayed claims by the volumes that the node can
    use or get."""

    plugin = BINDING
    is_in_problem = True

    def __init__(self, pod: PodInfo, draft: Draft, objects: VolumeObjects, reach: VolumeReach) -> None:
        self._pod = pod
        self._draft = draft
        self._objects = objects
        self._reach = reach
        self._nodes = draft.snapshot.nodes
        keys = claims_of(pod)
        waiting = delayed_claims(pod, objects)
        self._bound = [objects.claims[key].spec.volume_name for key in keys if key not in waiting]
        """Names of the volumes of bound claims."""
        order = sorted(waiting, key=lambda key: size_bytes(claim_size(objects.claims[key])))
        self._waiting = [self._delayed(key) for key in order]
        """The delayed claims, smallest first."""

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: the chosen volumes are in the draft, so nothing is counted here."""
        # only a pod with volumes can use up a volume, or decide the node of a claim that it shares with this pod
        return bool(self._waiting) and bool(pod.ties.volumes)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`: refuses a node with up to three reasons together.

        They are, in the order of kube-scheduler: a bound volume that the node cannot use; a delayed claim for which the
        node has no volume and can get none; too little storage for a new volume.
        """
        count = len(self._nodes)
        right = np.ones(count, dtype=bool)
        gone = False
        for name in self._bound:
            volume = self._objects.volumes.get(name)
            if volume is None:
                gone = True
                break
            right &= self._reach.of(volume)
        found, room = self._find()
        # nodes with the same combination of faults share a refusal
        which = np.zeros(count, dtype=np.int32)
        refusals: list[Refusal] = []
        numbers: dict[tuple[bool, bool, bool], int] = {}
        bad = np.ones(count, dtype=bool) if gone else ~(right & found & room)
        for i in np.nonzero(bad)[0].tolist():
            key = (bool(right[i]), bool(found[i]), bool(room[i]))
            if key not in numbers:
                texts = [t for fine, t in zip(key, (WRONG_NODE, NO_VOLUME, NO_SPACE), strict=True) if not fine]
                if gone and right[i]:
                    texts.append(VOLUME_GONE)
                refusals.append(Refusal(BINDING, Code.UNRESOLVABLE, tuple(texts)))
                numbers[key] = len(refusals)
            which[i] = numbers[key]
        return Verdict(which, tuple(refusals))

    def choice(self, node: int) -> dict[str, str]:
        """Returns claim key -> name of the volume to bind, for the open claims of the pod if it is placed on `node`.

        An empty name means that a volume must be provisioned. node: position.
        """
        made = [one.key for one in self._waiting if one.selected and one.key not in self._draft.claim_volumes]
        return dict.fromkeys(made, "") | {one.key: name for one, name in self._choose(node, self._open())}

    def open_claims(self) -> list[OpenClaim]:
        """Returns the open claims on the current draft."""
        opened = self._open()
        return [
            OpenClaim(
                delayed.key,
                self._objects.class_of(delayed.claim),
                tuple(name for name in shelf.names[start:] if opened.is_free(name, (delayed.key,))),
                delayed.provision & delayed.has_storage,
                shelf.reserved,
            )
            for delayed, shelf, start in opened.offers
        ]

    # -- delayed claims ------------------------------------------------------------------------------------------------

    def _delayed(self, key: str) -> _Delayed:
        """Reads a claim without a bound volume."""
        claim = self._objects.claims[key]
        found = self._objects.classes[self._objects.class_of(claim)]
        size = size_bytes(claim_size(claim))
        provision, room = self._provision(found), self._room(found, claim, size)
        return _Delayed(key, claim, size, provision, room, claim.metadata.annotations.get(SELECTED_NODE, ""))

    def _provision(self, found: StorageClass) -> Mask:
        """Returns [nodes] True if a storage class provisions volumes for the node, by its allowedTopologies."""
        count = len(self._nodes)
        if not found.provisioner or found.provisioner == NO_PROVISIONER:
            return np.zeros(count, dtype=bool)
        if not found.allowed_topologies:
            return np.ones(count, dtype=bool)
        terms = [term.match_label_expressions for term in found.allowed_topologies if term.match_label_expressions]
        return np.fromiter(
            (any(all(n.labels.get(e.key) in e.values for e in term) for term in terms) for n in self._nodes),
            dtype=bool,
            count=count,
        )

    def _room(self, found: StorageClass, claim: PersistentVolumeClaim, size: int) -> Mask:
        """Returns [nodes] True if a CSIStorageCapacity of the class for the node is large enough for a claim.

        True for all nodes if the driver does not report capacity. size: requested bytes.
        """
        driver = self._objects.csi_drivers.get(found.provisioner)
        if driver is None or not driver.spec.storage_capacity or claim_size(claim) is None:
            return np.ones(len(self._nodes), dtype=bool)
        out = np.zeros(len(self._nodes), dtype=bool)
        for capacity in self._objects.capacities.values():
            limit = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
            if capacity.storage_class_name != found.metadata.name or limit is None or size_bytes(limit) < size:
                continue
            topology = capacity.node_topology
            if topology is not None:
                out[self._reach.labelled(topology)] = True
        return out

    def _open(self) -> _OpenClaims:
        """Returns the open claims. `_settled` checks the delayed claims with a chosen volume or node."""
        promised, offers = self._draft.claim_volumes, list[_Offer]()
        for delayed in self._waiting:
            if delayed.key not in promised and not delayed.selected:
                shelf = self._objects.shelf(delayed.key)
                offers.append(_Offer(delayed, shelf, shelf.first_of(delayed.size)))
        return _OpenClaims(offers, self._draft.volume_claims, reserved_volumes(self._draft.reserved_claims(self._pod)))

    def _settled(self) -> Mask:
        """Returns [nodes] True if the node fits the volumes and nodes that were already chosen for delayed claims.

        They were chosen in the draft for another pod with the same claim; or the claim's annotation names the node for
        which a volume is being provisioned.
        """
        out = np.ones(len(self._nodes), dtype=bool)
        index = self._draft.snapshot.index
        for delayed in self._waiting:
            promise = self._draft.claim_volumes.get(delayed.key)
            volume = self._objects.volumes.get(promise.volume) if promise is not None and promise.volume else None
            if volume is not None:
                out &= self._reach.of(volume)
                continue
            node = promise.node if promise is not None else delayed.selected
            if node:
                here = np.zeros(len(self._nodes), dtype=bool)
                if node in index:
                    here[index[node]] = True
                out &= here
        return out

    def _find(self) -> tuple[Mask, Mask]:
        """Returns ([nodes] True if each delayed claim has or can get a volume, [nodes] True if there is enough storage
        for the new volumes)."""
        count = len(self._nodes)
        found, room = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
        if not self._waiting:
            return found, room
        settled = self._settled()
        found &= settled
        # claims with a volume being provisioned for a node
        for delayed in self._waiting:
            if delayed.selected and delayed.key not in self._draft.claim_volumes:
                found &= delayed.provision
                room &= delayed.has_storage | ~delayed.provision | ~settled
        # nodes that can use no available volume: volumes for all open claims must be provisioned there
        opened = self._open()
        with_volumes = self._with_volumes(opened)
        alone = ~with_volumes & settled
        for delayed, _, _ in opened.offers:
            # the first claim, in order, without a possible new volume or without enough storage determines the reason
            still = alone & found & room
            found &= ~(still & ~delayed.provision)
            room &= ~(still & delayed.provision & ~delayed.has_storage)
        # with one open claim, one available volume is enough; with several, each claim needs a different volume
        if len(opened.offers) > 1:
            self._find_several(opened, with_volumes & settled, found, room)
        return found, room

    def _with_volumes(self, opened: _OpenClaims) -> Mask:
        """Returns [nodes] True if the node can use an available volume for at least one of the open claims."""
        # of several claims that may use the same volumes, the smallest claim has all candidates of the larger ones
        out = np.zeros(len(self._nodes), dtype=bool)
        keys = {delayed.key for delayed, _, _ in opened.offers}
        for shelf, start in {shelf: start for _, shelf, start in reversed(opened.offers)}.items():
            for name, volume in zip(shelf.names[start:], shelf.volumes[start:], strict=True):
                if opened.is_free(name, keys):
                    places = self._reach.places(volume)
                    out[slice(None) if places is None else places] = True
                    if places is None:
                        break
        return out

    def _find_several(self, opened: _OpenClaims, where: Mask, found: Mask, room: Mask) -> None:
        """Sets `found` or `room` to False on nodes of `where` that cannot serve all open claims.

        Per node, a volume is chosen for one claim after the other; a chosen volume is not available to the next claim.
        For a claim without an available volume, a new one must be provisioned. found, room: [nodes], changed in place.
        """
        for i in np.nonzero(where)[0].tolist():
            for delayed, name in self._choose(i, opened):
                if name:
                    continue
                if not delayed.provision[i]:
                    found[i] = False
                    break
                if not delayed.has_storage[i]:
                    room[i] = False
                    break

    def _choose(self, node: int, opened: _OpenClaims) -> Iterator[tuple[_Delayed, str]]:
        """Yields (claim, name of the smallest volume available to it on a node) for each open claim, smallest first.

        The name is empty if no volume is available: the node can use none, or all were chosen for earlier claims.
        """
        chosen: set[str] = set()
        rows: dict[OfferedVolumes, Iterator[int]] = {}
        for delayed, shelf, start in opened.offers:
            names, found = shelf.names, ""
            # skipped volumes need not be tried for later (larger) claims: they are too small or not available. Only a
            # volume that is reserved for a later claim must be tried again.
            passed = []
            row = rows[shelf] if shelf in rows else self._reach.row(shelf, node)
            for at in row:
                if at < start or names[at] in chosen:
                    continue
                if opened.is_free(names[at], (delayed.key,)):
                    found = names[at]
                    chosen.add(found)
                    break
                if names[at] in opened.kept:
                    passed.append(at)
            rows[shelf] = chain(passed, row) if passed else row
            yield delayed, found
