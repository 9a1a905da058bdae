# SPDX-License-Identifier: Apache-2.0
"""The devices of all pods that a plan puts on one node, chosen together. Source: dra.md 6."""

from collections.abc import Collection, Mapping, Sequence

from koordpy.cache.plan_draft import Draft
from koordpy.devices.dra.filters.claim_requests import AttemptFault, UnallocatedClaim
from koordpy.devices.dra.filters.cross_node_search import SharedDevices
from koordpy.devices.dra.filters.device_choice import BestChoice, PodShare, best_choice
from koordpy.devices.dra.filters.pod_claims import DraftClaims
from koordpy.devices.dra.ledger.claim_book import claim_ledger, claim_view
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.pods.claim_refs import CLAIMS, Grant
from koordpy.pods.pod_info import PodInfo


class JointChoice:
    """The claims of the given pods on one node, and their devices."""

    def __init__(
        self,
        pods: Sequence[DraftClaims],
        node: int,
        draft: Draft,
        *,
        shared: Collection[str] | None = None,
        without: Collection[str] = (),
        common: Mapping[str, Collection[OfferedDevice]] | None = None,
    ) -> None:
        """pods: in rank order. node: position. shared: claims that several pods name. Another claim that two pods name
        means two claims, because the pods are copies of one pod. None if equal names always mean one claim. without:
        claims that another node gets. common: devices of each claim that pods on other nodes name, too."""
        self._pods, self._node, self._draft = pods, node, draft
        self.claims: list[UnallocatedClaim] = []
        """Claims without an allocation, each once."""
        self.owned: list[list[int]] = []
        """Per pod, the positions of its claims in `claims`."""
        self._after: dict[int, int] = {}
        self._common = common or {}
        known: dict[object, int] = {}
        first: dict[tuple[bytes, ...], int] = {}
        for i, pod in enumerate(pods):
            wants = pod.wants_at(node)
            own: list[int] = []
            begin = len(self.claims)
            for one in wants.claims:
                if one.key in without:
                    continue
                key = one.key if shared is None or one.key in shared else (one.key, i)
                if key not in known:
                    known[key] = len(self.claims)
                    self.claims.append(one)
                own.append(known[key])
            is_own = bool(own) and own == list(range(begin, len(self.claims)))
            # the order of equal pods does not matter if their claims take numbers of whole devices
            if (
                is_own
                and len(own) == len(wants.claims)
                and not pod.has_pair_rule
                and not any(one.key in self._common for one in wants.claims)
                and all(one.spec.is_simple for one in wants.claims)
                and not pod.fixed(node)
            ):
                if wants.content in first:
                    self._after[own[0]] = first[wants.content]
                first[wants.content] = own[0]
            self.owned.append(own)

    def choose(self, *, every: bool, others: SharedDevices | None = None) -> BestChoice | None:
        """Returns the best devices, or the first ones that kube-scheduler's order finds if `every` is False; None if
        the node lacks devices. others: pods of other nodes, which must find devices beside them."""
        lead = next((pod for pod, own in zip(self._pods, self.owned, strict=True) if own), self._pods[0])
        shares = [
            PodShare(tuple(own), sum(1 << at for at in pod.fixed(self._node)))
            for pod, own in zip(self._pods, self.owned, strict=True)
        ]
        search = lead.searching(
            self._node,
            self.claims,
            pods=list(zip(self._pods, self.owned, strict=True)),
            links=every,
            twins=others.twins(lead.offers.at(lead.node(self._node)).devices) if others is not None else (),
            after=self._after if every else None,
            permitted=[self._permitted(one) for one in self.claims],
        )
        best = BestChoice(
            claim_ledger(self._draft.ledgers).usage, lead.order(self._node), shares, self._held(), every=every
        )
        if others is not None:
            best.leaves = others.is_possible
        try:
            if not self.claims:
                best.grants = search.first()
                return best if best.grants is not None else None
            found = best_choice(search, best)
        except AttemptFault:
            return None
        return found if found.grants is not None else None

    def _permitted(self, claim: UnallocatedClaim) -> int | None:
        """Returns the mask of the devices that a claim of pods on several nodes may take; None for another claim."""
        wanted, lead = self._common.get(claim.key), self._pods[0]
        if wanted is None:
            return None
        return sum(1 << i for i, one in enumerate(lead.offers.at(lead.node(self._node)).devices) if one in wanted)

    def grants(self, found: BestChoice) -> list[Mapping[str, Grant]]:
        """Returns for each pod claim -> its devices. A claim of several pods is in the result of each of them."""
        assert found.grants is not None
        given: set[int] = set()
        out: list[Mapping[str, Grant]] = []
        for own in self.owned:
            out.append({self.claims[i].key: found.grants[i] for i in own if i not in given})
            given.update(own)
        return out

    def _held(self) -> int:
        """Returns the devices on the node of bound members of the pods' gangs."""
        snapshot, view = self._draft.snapshot, claim_view(self._draft.snapshot.families)
        name = snapshot.nodes[self._node].name
        gangs = dict.fromkeys(one.pod.gang for one in self._pods if one.pod.gang is not None)
        members: list[PodInfo] = [
            pod
            for gang in gangs
            for pod in snapshot.members.get(gang, ())
            if pod.bound and pod.node == name and CLAIMS in pod.asks and pod.key not in self._draft.evicted
        ]
        keys = {key for pod in members for key in view.objects.by_consumer.get(pod.uid, ())}
        allocations = (view.objects.claims[key].status.allocation for key in keys)
        taken = {
            granted.device
            for one in allocations
            if one is not None
            for granted in grant_of(one)
            if not granted.admin and granted.consumed is None
        }
        devices = view.objects.offers.at(snapshot.nodes[self._node]).devices if taken else ()
        return sum(1 << i for i, device in enumerate(devices) if device.id in taken)
