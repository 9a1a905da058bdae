# SPDX-License-Identifier: Apache-2.0
"""Devices of resource claims as a device family (dynamic resource allocation of Kubernetes, DRA).

A pod refers to ResourceClaims, a claim requests devices, and drivers publish devices in ResourceSlices. A claim is
allocated with the first pod of a plan that uses it; later pods share the allocation. The objects, the ledger and
allocations in progress are in `koordpy.devices.dra.ledger.claim_book`, the filter in
`koordpy.devices.dra.filters.claim_filter`. Evicting a pod frees no device, because the claim outlives the pod.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordpy.api.objects import Pod
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.device_family import Family, FamilyRound
from koordpy.devices.dra.filters.claim_filter import DynamicResources, Taken, resource_claims_refusal
from koordpy.devices.dra.ledger.claim_book import CLAIMS, ClaimBook, claim_view
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import AskReader
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts


class ClaimReader(AskReader):
    """Reads whether a pod has resource claims. The claims themselves are read in each round, because they change."""

    family = CLAIMS

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Implements `AskReader.read`: returns True for a pod with resource claims, else None."""
        return True if pod.spec.resource_claims else None


def claimed_of(pod: PodInfo, node: int, now: FamilyRound) -> dict[str, Taken]:
    """Returns claim (`namespace/name`) -> devices that are allocated if a pod is placed on a node; empty for most pods.

    Claims that are allocated before are left out.
    """
    if pod.ask(CLAIMS) is None:
        return {}
    inputs = now.inputs
    return DynamicResources(pod, inputs.draft, claim_view(inputs.snapshot.families).objects).choice(node)


class ClaimedDevices(Family):
    """All devices that drivers publish in ResourceSlices."""

    name, title = CLAIMS, "devices of resource claims"

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Implements `Family.reader`."""
        return ClaimReader()

    def book(self, config: KoordpyConfiguration) -> ClaimBook:
        """Implements `Family.book`."""
        return ClaimBook()

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Implements `Family.refusal`: a claim is missing, in use, or beyond the supported features."""
        snapshot = inputs.snapshot
        return resource_claims_refusal(pod, claim_view(snapshot.families).objects, snapshot.upstream_groups)

    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
        """Implements `Family.rules`."""
        yield DynamicResources(pod, inputs.draft, claim_view(inputs.snapshot.families).objects)

    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Implements `Family.allocate`: pod by pod, because a pod may share a claim that an earlier pod of the plan has
        allocated."""
        draft, given = now.inputs.draft, dict[str, dict[str, Taken]]()
        with draft.trial():
            for key, node in nodes.items():
                pod = draft.snapshot.pods[key]
                if found := claimed_of(pod, node, now):
                    given[key] = found
                    draft.assign(pod, node, given={CLAIMS: found})
        return FamilyAllocation(given)
