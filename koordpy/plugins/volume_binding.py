# SPDX-License-Identifier: Apache-2.0
"""VolumeBinding filter: on which nodes are the volumes of a pod's claims available, or can be made available?

A claim with a bound volume needs a node that the volume's node affinity admits. A claim of a class with
WaitForFirstConsumer has no volume yet, and is called delayed or waiting here: the volume is chosen together with the
node. It is either an existing volume without a claim, or it is provisioned there. The choices of pods placed earlier in
the round are in `Draft.claim_volumes` and `Draft.volume_claims` (kube-parity.md 2.8).
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
        """Volumes offered to claims -> (positions of volumes that every node can use, node -> positions of the volumes
        that this node and not every node can use)."""
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
    """A claim without a bound volume (WaitForFirstConsumer)."""

    key: str
    """`namespace/name` of the claim."""
    claim: PersistentVolumeClaim
    size: int
    """Requested bytes."""
    provision: Mask
    """[nodes] True where the storage class provisions a volume, ignoring storage capacity."""
    has_storage: Mask
    """[nodes] True where the driver reports enough storage capacity, or does not report any."""
    selected: str
    """Name of the node for which a volume is already being provisioned (annotation); empty for none."""


class _Offer(NamedTuple):
    """A claim without a chosen volume, and the volumes that could be bound to it.

    shelf: the volumes that the claim may use except for their size, smallest first. start: position in it of the first
    volume that is large enough; the candidates are that volume and all later ones.
    """

    delayed: _Delayed
    shelf: OfferedVolumes
    start: int


class _OpenClaims(NamedTuple):
    """The claims of a pod without a chosen volume on the current draft, and the volumes that they cannot have."""

    offers: list[_Offer]
    """The claims, smallest first."""
    taken: Mapping[str, str]
    """Volume -> the claim for which the draft has chosen it."""
    kept: Mapping[str, str]
    """Volume -> the claim for which it is reserved, by a reservation that is closed to the pod."""

    def is_free(self, name: str, keys: Container[str]) -> bool:
        """Returns True if a volume is not taken, and not reserved for a claim other than those in `keys`."""
        return name not in self.taken and (name not in self.kept or self.kept[name] in keys)


@dataclass(frozen=True, eq=False)
class OpenClaim:
    """A claim without a chosen volume, as other packages see it."""

    key: str
    """`namespace/name` of the claim."""
    class_name: str
    """Name of the storage class."""
    candidates: tuple[str, ...]
    """Names of the available volumes that can be bound to the claim, smallest first."""
    made: Mask
    """[nodes] True where a volume can be provisioned."""
    reserved: bool
    """True if the only candidate is already reserved for the claim."""


class VolumeBinding(Rule):
    """Checks bound claims by the node affinity of their volume, and waiting claims by volumes available to the node."""

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
        """The claims without a bound volume, smallest first."""

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: True for pods with volumes if a claim waits. The choices are in the draft."""
        # A pod that uses a volume, or fixes the node of a claim of this pod, has claims itself.
        return bool(self._waiting) and bool(pod.ties.volumes)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`: refuses a node with up to three reasons together.

        They are, in the order of kube-scheduler: a bound volume that the node cannot use, a waiting claim without a
        volume, too little storage for a new volume.
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
        """Returns claim key -> volume name for the waiting claims of the pod, if it is placed on a node (position).

        An empty name means that a volume is provisioned there.
        """
        made = [one.key for one in self._waiting if one.selected and one.key not in self._draft.claim_volumes]
        return dict.fromkeys(made, "") | {one.key: name for one, name in self._choose(node, self._open())}

    def open_claims(self) -> list[OpenClaim]:
        """Returns the claims without a chosen volume on the current draft."""
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

    # -- claims that wait ----------------------------------------------------------------------------------------------

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
        """Returns the waiting claims without a chosen volume. `_settled` treats the waiting claims that have one."""
        promised, offers = self._draft.claim_volumes, list[_Offer]()
        for delayed in self._waiting:
            if delayed.key not in promised and not delayed.selected:
                shelf = self._objects.shelf(delayed.key)
                offers.append(_Offer(delayed, shelf, shelf.first_of(delayed.size)))
        return _OpenClaims(offers, self._draft.volume_claims, reserved_volumes(self._draft.reserved_claims(self._pod)))

    def _settled(self) -> Mask:
        """Returns [nodes] True if earlier choices for the waiting claims admit the node.

        A choice is a volume or node that the draft has for another pod with the same claim, or the node in the claim's
        annotation for which a volume is being provisioned.
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
        """Returns ([nodes] every waiting claim has or can get a volume, [nodes] there is storage for new volumes)."""
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
        # open claims on nodes without any available volume: all of them must be provisioned there
        opened = self._open()
        with_volumes = self._with_volumes(opened)
        alone = ~with_volumes & settled
        for delayed, _, _ in opened.offers:
            # In the order of the claims: the first claim that cannot be provisioned, or has no storage, gives the
            # reason.
            still = alone & found & room
            found &= ~(still & ~delayed.provision)
            room &= ~(still & delayed.provision & ~delayed.has_storage)
        # with one open claim, an available volume is enough; with several, the volumes must suffice for all
        if len(opened.offers) > 1:
            self._find_several(opened, with_volumes & settled, found, room)
        return found, room

    def _with_volumes(self, opened: _OpenClaims) -> Mask:
        """Returns [nodes] True if the node can use an available volume for at least one of the open claims."""
        # the candidates of the smallest claim on a shelf include those of all other claims on it
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
        """Sets `found` or `room` to False on nodes of `where` that cannot serve all of several open claims.

        Per node, volumes are chosen claim by claim; a chosen volume is not available to the next claim. A claim without
        a volume must be provisioned there. found, room: [nodes], changed in place.
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

        The name is empty if no volume is available: the node can use none, or earlier claims have chosen them all.
        """
        chosen: set[str] = set()
        rows: dict[OfferedVolumes, Iterator[int]] = {}
        for delayed, shelf, start in opened.offers:
            names, found = shelf.names, ""
            # a skipped volume is too small for all later claims, or not available; except if it is reserved for one of
            # them
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
