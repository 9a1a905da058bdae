# SPDX-License-Identifier: Apache-2.0
"""The filter plugins that depend on other pods, volumes or devices; each pod gets only the filters that concern it.

The order of `FILTERS` decides which reason a node gets if several filters refuse it. To add a filter, write a `Rule` in
a separate module, and one line in `FILTERS` (docs/extending.md). Each function in `FILTERS` yields rules only for pods
that the rules concern, so a plain pod costs no time. Filters that read only the pod and a node object are applied
before these (`plugins/node_filters.py`). The resource fit is applied after the rules with `Rule.before_fit` and before
the others. Source: docs/rules/kube-parity.md 1.
"""

from collections.abc import Callable, Iterable, Iterator

from koordpy.devices.family_registry import families_of
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plugins.declared_features import DeclaredFeatures
from koordpy.plugins.disk_limits import NodeVolumeLimits, VolumeRestrictions
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.host_ports import NodePorts
from koordpy.plugins.interpod_affinity import ExistingTerms, OwnTerms
from koordpy.plugins.node_filters import required_features
from koordpy.plugins.topology_spread import FILTERS as HARD
from koordpy.plugins.topology_spread import Spreading, TopologySpread, constraints_of
from koordpy.plugins.volume_binding import VolumeBinding
from koordpy.plugins.volume_claims import claims_of, claims_refusal
from koordpy.plugins.volume_zones import VolumeZone
from koordpy.pods.pod_info import PodInfo


def _ports(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    if pod.ties.ports:
        yield NodePorts(pod, inputs.snapshot)


def _volumes(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    """Yields the filters of inline disks, and of claims if the pod has any: limits, binding and zones of volumes."""
    if not pod.ties.volumes:
        return
    restrictions = VolumeRestrictions(pod, inputs.draft)
    if not restrictions.silent:
        yield restrictions
    objects = inputs.snapshot.storage
    if not claims_of(pod):
        return
    limits = NodeVolumeLimits(pod, inputs.draft, objects, inputs.snapshot.csi_uses)
    if not limits.silent:
        yield limits
    yield VolumeBinding(pod, inputs.draft, objects, inputs.reach)
    zone = VolumeZone(pod, inputs.draft, objects)
    if not zone.silent:
        yield zone


def _spread(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    if not (inputs.spread_defaults or pod.pod.spec.topology_spread_constraints):
        return
    if constraints := constraints_of(pod, HARD, inputs.spread_defaults):
        yield TopologySpread(Spreading(pod, constraints, inputs.snapshot, inputs.domains))


def _pod_affinity(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    """Yields the filter for the pod's own terms, and the filter for anti-affinity terms of bound pods and pods to be
    placed."""
    if pod.ties.terms:
        yield OwnTerms(pod, inputs.snapshot, inputs.domains)
    there, coming = inputs.terms_towards(pod)
    if there or coming:
        existing = ExistingTerms(pod, there, inputs.snapshot, inputs.domains)
        if coming or not existing.silent:
            yield existing


def _devices(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    for family in families_of(pod, inputs.snapshot) if pod.asks else ():
        yield from family.rules(pod, inputs)


def _features(pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
    if required := required_features(pod.pod):
        yield DeclaredFeatures(inputs.snapshot.nodes, required)


FILTERS: tuple[Callable[[PodInfo, FilterInputs], Iterable[Rule]], ...] = (
    _ports,
    _volumes,
    _spread,
    _pod_affinity,
    _devices,
    _features,
)
"""Functions that yield the rules of a pod, in the order of the filters."""


def rules_of(pod: PodInfo, inputs: FilterInputs) -> list[Rule]:
    """Returns the rules that concern a pod, in the state of the snapshot, without changes of the draft.

    The caller must report every change of the draft to each rule with `Rule.change`.
    """
    return [rule for build in FILTERS for rule in build(pod, inputs)]


def refusal_of(pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
    """Returns a refusal of the pod on all nodes, by a fault of its claims or device requests; None if there is none.

    No node is tried for a pod with such a refusal.
    """
    found: Refusal | None = None
    if pod.ties.volumes and claims_of(pod):
        found = claims_refusal(pod, inputs.snapshot.storage)
    if found is not None or not pod.asks:
        return found
    families = families_of(pod, inputs.snapshot)
    return next((wrong for family in families if (wrong := family.refusal(pod, inputs)) is not None), None)
