# SPDX-License-Identifier: Apache-2.0
"""Devices of resource claims as a device family (dynamic resource allocation of Kubernetes, DRA).

A pod names ResourceClaims, or extended resources that a DeviceClass maps to devices; drivers publish devices in
ResourceSlices. A claim is allocated with the first pod of a plan that uses it; later pods share the allocation. Objects
and ledger are in `koordpy.devices.dra.ledger.claim_book`, the filter in `koordpy.devices.dra.filters.claim_filter`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod, Wire
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.device_family import Family
from koordpy.devices.dra.family.claim_costs import ClaimCosts
from koordpy.devices.dra.family.claim_explanation import claim_facts, missing_devices, shown_scores
from koordpy.devices.dra.family.claim_notes import claim_notes
from koordpy.devices.dra.family.member_limits import MemberLimitReader
from koordpy.devices.dra.family.moved_amounts import count_moved_devices
from koordpy.devices.dra.family.moved_links import slower_nodes
from koordpy.devices.dra.family.plain_costs import plain_costs
from koordpy.devices.dra.filters.claim_filter import DynamicResources
from koordpy.devices.dra.filters.claim_refusal import PLUGIN, claims_refusal
from koordpy.devices.dra.filters.claim_zones import demands_zones, planned_zones
from koordpy.devices.dra.filters.counted_devices import DeviceCount
from koordpy.devices.dra.filters.cross_node_search import SharedDevices, common_devices
from koordpy.devices.dra.filters.extended_amounts import device_amounts, served_by_devices
from koordpy.devices.dra.filters.idle_claims import tied_claims
from koordpy.devices.dra.filters.joint_choice import JointChoice
from koordpy.devices.dra.filters.pod_claims import Mask
from koordpy.devices.dra.ledger.claim_book import ClaimBook, claim_ledger, claim_view
from koordpy.devices.family_moves import MovedAmounts, ReturningDevices
from koordpy.devices.family_round import FamilyRound, NodeFacts, Placed, UnitCosts
from koordpy.devices.links.allocatable_devices import AllocatableDevices
from koordpy.framework.device_limits import MemberLimits
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.claim_refs import CLAIMS, Grant, claim_group, resource_claims
from koordpy.pods.device_asks import AskReader, LatentAsk
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts


class ExtendedAsk(LatentAsk):
    """A request for extended resources, which devices can serve only if a DeviceClass maps to one of them."""


_EXTENDED = ExtendedAsk()


class ClaimReader(AskReader):
    """Reads whether a pod may need devices of claims. The claims themselves are read in each round, because they
    change."""

    family = CLAIMS

    def __init__(self, *, extended: bool) -> None:
        """extended: True if devices may serve extended resources."""
        self._extended = extended

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Implements `AskReader.read`: returns True for a pod with resource claims, an `ExtendedAsk` for a pod with
        extended resources only, else None."""
        if pod.spec.resource_claims:
            return True
        return _EXTENDED if self._extended and any("/" in name for name in requests) else None

    def shape(self, pod: Pod, ask: Any) -> Any:
        """Implements `AskReader.shape`: depends on the containers, because each has separate requests of the claim."""
        containers = [*pod.spec.init_containers, *pod.spec.containers]
        asked = [sorted({**one.resources.limits, **one.resources.requests}) for one in containers]
        return (
            None if len(containers) == 1 else [(one.name, names) for one, names in zip(containers, asked, strict=True)]
        )


def claimed_of(pod: PodInfo, node: int, now: FamilyRound) -> dict[str, Grant]:
    """Returns claim (`namespace/name`) -> devices that are allocated if a pod is placed on a node; empty for most pods.

    Claims that are allocated before are left out.
    """
    if pod.ask(CLAIMS) is None:
        return {}
    return devices_of(pod, node, now.inputs.draft, now.inputs.config) or {}


def devices_of(pod: PodInfo, node: int, draft: Draft, config: KoordpyConfiguration) -> dict[str, Grant] | None:
    """Returns claim -> its devices for a pod on a node, on the draft; None if the node lacks devices."""
    rule = DynamicResources(pod, draft, config)
    claims = rule.wants_at(node).claims
    found = rule.choose(node) if claims else None
    if found is None or found.grants is None:
        return None if claims else {}
    return {one.key: grant for one, grant in zip(claims, found.grants, strict=True)}


class ClaimedDevices(Family):
    """All devices that drivers publish in ResourceSlices."""

    name, title = CLAIMS, "devices of resource claims"
    counts_decide = False
    costs_are_complete = True

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Implements `Family.reader`."""
        return ClaimReader(extended=config.dra.extended_resources)

    def book(self, config: KoordpyConfiguration) -> ClaimBook:
        """Implements `Family.book`."""
        amounts = device_amounts if config.dra.extended_resources else None
        return ClaimBook(amounts, frees=config.dra.preemption, count=DeviceCount(config.dra))

    def setting_notes(self, objects: Iterable[Wire], config: KoordpyConfiguration) -> Iterator[str]:
        """Implements `Family.setting_notes`."""
        yield from claim_notes(objects, config.dra)

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Implements `Family.refusal`: a claim is missing, in use, or beyond the supported features."""
        return claims_refusal(pod, claim_view(inputs.snapshot.families), claim_ledger(inputs.draft.ledgers))

    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
        """Implements `Family.rules`."""
        if pod.pod.spec.resource_claims or served_by_devices(
            pod, claim_view(inputs.snapshot.families), inputs.config.dra
        ):
            yield DynamicResources(pod, inputs.draft, inputs.config)

    def left_out_of_fit(self, pod: PodInfo, inputs: FilterInputs) -> Mapping[str, Mask]:
        """Implements `Family.left_out_of_fit`: resources on nodes that serve them by devices."""
        view = claim_view(inputs.snapshot.families)
        found: dict[str, Mask] = {}
        for name in served_by_devices(pod, view, inputs.config.dra):
            stated = ((n.node.status.allocatable or n.node.status.capacity).get(name, 0) for n in inputs.snapshot.nodes)
            found[name] = np.fromiter((str(one) == "0" for one in stated), dtype=bool)
        return found

    def limits_members(self, pod: PodInfo, inputs: FilterInputs) -> bool:
        """Implements `Family.limits_members`."""
        view = claim_view(inputs.snapshot.families)
        return bool(pod.pod.spec.resource_claims or served_by_devices(pod, view, inputs.config.dra))

    def member_limits(
        self,
        kinds: Mapping[bytes, PodInfo],
        numbers: Mapping[bytes, int],
        draft: Draft,
        config: KoordpyConfiguration,
        spare: int,
    ) -> MemberLimits:
        """Implements `Family.member_limits`."""
        return MemberLimitReader(kinds, numbers, draft, config).read(spare)

    def pod_costs(
        self, pod: PodInfo, nodes: Ints, inputs: FilterInputs, *, beside: Sequence[AllocatableDevices]
    ) -> Sequence[Ints]:
        """Implements `Family.pod_costs`: alternatives, slowest links, then free suitable devices that are left."""
        rule = DynamicResources(pod, inputs.draft, inputs.config)
        if inputs.config.dra.choice != "topology" or not any(wants.claims for wants in rule.wants()):
            return ()
        return plain_costs(rule, nodes, inputs, beside)

    def unit_costs(
        self,
        kinds: Sequence[PodInfo],
        members: Sequence[PodInfo],
        now: FamilyRound,
        *,
        gather: bool,
        beside: Sequence[AllocatableDevices],
    ) -> UnitCosts | None:
        """Implements `Family.unit_costs`: returns costs of the devices of each node; None if no claim is to be
        allocated, and for dra.choice firstFit."""
        if now.inputs.config.dra.choice != "topology" or not any(CLAIMS in pod.asks for pod in kinds):
            return None
        draft = now.inputs.draft
        view, ledger = claim_view(draft.snapshot.families), claim_ledger(draft.ledgers)
        rules = [
            DynamicResources(pod, draft, now.inputs.config)
            if CLAIMS in pod.asks and claims_refusal(pod, view, ledger) is None
            else None
            for pod in kinds
        ]
        rules = [rule if rule is not None and any(one.claims for one in rule.wants()) else None for rule in rules]
        if not any(rules):
            return None
        names = Counter(
            key for pod in members for key in resource_claims(pod, claim_group(pod.pod, view.objects.groups))
        )
        shared = {key for key, number in names.items() if number > 1}
        return ClaimCosts(rules, members, shared, now.inputs, beside).table(gather=gather)

    def shown_value(self, pod: PodInfo, inputs: FilterInputs) -> tuple[str, Callable[[int], float | None]] | None:
        """Implements `Family.shown_value`: the score of chosen alternatives, normalised to 100."""
        rule = self._rule_of(pod, inputs)
        return (PLUGIN, shown_scores(rule)) if rule is not None and any(one.claims for one in rule.wants()) else None

    def node_facts(self, pod: PodInfo, inputs: FilterInputs) -> NodeFacts | None:
        """Implements `Family.node_facts`: the devices that nodes would give, and selectors that match none."""
        rule = self._rule_of(pod, inputs)
        return claim_facts(rule) if rule is not None else None

    def missing_amounts(
        self, pod: PodInfo, inputs: FilterInputs
    ) -> Iterator[tuple[int, str, Callable[[Snapshot], Snapshot]]]:
        """Implements `Family.missing_amounts`: devices in use that the pod lacks on single nodes."""
        rule = self._rule_of(pod, inputs)
        yield from missing_devices(rule) if rule is not None else ()

    def _rule_of(self, pod: PodInfo, inputs: FilterInputs) -> DynamicResources | None:
        """Returns the filter of a pod; None for a pod without claims, or with claims that cannot be used."""
        if pod.ask(CLAIMS) is None or self.refusal(pod, inputs) is not None:
            return None
        return next((one for one in self.rules(pod, inputs) if isinstance(one, DynamicResources)), None)

    def may_fit_after_load(self, pod: PodInfo) -> bool:
        """Implements `Family.may_fit_after_load`: other pods may leave the zones of the devices to the pod."""
        return demands_zones(pod)

    def untie(self, pods: Sequence[PodInfo], draft: Draft) -> bool:
        """Implements `Family.untie` for allocated claims reserved only for unbound pods of the unit, or for none.

        A live cluster does it after the round (`DeviceReleaser.unstick`).
        """
        view, ledger = claim_view(draft.snapshot.families), claim_ledger(draft.ledgers)
        if view.live:
            return False
        found = tied_claims(pods, view, ledger, draft.snapshot)
        if found:
            draft.record(ledger.untie(found))
        return bool(found)

    def nominated_allocation(self, pod: PodInfo, node: int, draft: Draft, config: KoordpyConfiguration) -> Any | None:
        """Implements `Family.nominated_allocation`."""
        view, ledger = claim_view(draft.snapshot.families), claim_ledger(draft.ledgers)
        if claims_refusal(pod, view, ledger) is not None:
            return None
        found = devices_of(pod, node, draft, config)
        if found is None:
            with draft.trial():
                draft.record(ledger.untie(ledger.leaving_claims(draft.snapshot.pods)))
                found = devices_of(pod, node, draft, config)
        return found or None

    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Implements `Family.allocate`: the pods of each node together, node by node in natural order.

        Each node gets the best devices that leave the later nodes enough of the devices which they share with it. A
        claim of pods on several nodes gets its devices with the node of its first pod.
        """
        pods = now.inputs.snapshot.pods
        given, lacking = self._give([(pods[key], node) for key, node in nodes.items()], now)
        faults = [f"{', '.join(keys)} on {node}: no devices for the claims" for node, keys in lacking]
        return FamilyAllocation(given, faults=tuple(faults))

    def returning_devices(self, places: Placed, now: FamilyRound) -> ReturningDevices:
        """Implements `FamilyMoves.returning_devices`: the devices of an ordinary plan, if no pod has slower links."""
        draft, config = now.inputs.draft, now.inputs.config
        ledger = claim_ledger(draft.ledgers)
        given, lacking = self._give(places, now)
        nodes = {draft.snapshot.index[name] for name, _ in lacking}
        # a claim with a consumer that does not move keeps its devices
        nodes |= {node for pod, node in places if any(map(ledger.allocation, ledger.claims_of(pod)))}
        if not nodes:
            nodes = slower_nodes(places, given, draft, config)
        return ReturningDevices(given, frozenset(nodes))

    def moved_amounts(
        self, members: Iterable[PodInfo], moved: Iterable[PodInfo], inputs: FilterInputs
    ) -> MovedAmounts | None:
        """Implements `FamilyMoves.moved_amounts`."""
        return count_moved_devices(members, moved, inputs.draft)

    def _give(
        self, places: Placed, now: FamilyRound
    ) -> tuple[dict[str, dict[str, Grant]], list[tuple[str, list[str]]]]:
        """Returns (pod key -> claim -> its devices, nodes without enough devices).

        places: in rank order. Each node without enough devices is (its name, keys of its pods).
        """
        draft, config = now.inputs.draft, now.inputs.config
        given: dict[str, dict[str, Grant]] = {}
        lacking: list[tuple[str, list[str]]] = []
        by_node: dict[int, list[PodInfo]] = {}
        zones = planned_zones(draft.snapshot, now.inputs)
        rules: dict[int, list[DynamicResources]] = {}
        first: dict[str, int] = {}  # claim -> node of its first pod
        for pod, node in places:
            rule = DynamicResources(pod, draft, config, zones)
            by_node.setdefault(node, []).append(pod)
            rules.setdefault(node, []).append(rule)
            for claim in rule.keys:
                first.setdefault(claim, node)
        common = common_devices((rule, node) for node, some in rules.items() for rule in some)
        order = sorted(by_node, key=lambda one: natural_key(draft.snapshot.nodes[one].name))
        wide = {node for node in order if rules[node][0].reaches_network(node)}
        best = config.dra.choice == "topology"
        with draft.trial():
            for i, node in enumerate(order):
                later = [key for key in common if first[key] != node]
                pods, choice = by_node[node], JointChoice(rules[node], node, draft, without=later, common=common)
                rest = [(rule, at) for at in order[i + 1 :] if at in wide for rule in rules[at]] if node in wide else []
                others = SharedDevices(rest, without=[claim.key for claim in choice.claims], common=common)
                is_open = bool(choice.claims) or any(rule.demands_zones for rule in rules[node])
                found = choice.choose(every=best, others=others if others.claims else None) if is_open else None
                if found is None and is_open:
                    lacking.append((draft.snapshot.nodes[node].name, [pod.key for pod in pods]))
                own = choice.grants(found) if found is not None else [{}] * len(pods)
                for pod, grants in zip(pods, own, strict=True):
                    given[pod.key] = dict(grants)
                    draft.assign(pod, node, devices={CLAIMS: given[pod.key]})
        return {pod.key: given[pod.key] for pod, _ in places}, lacking
