"""Every filter that a pod may meet beyond its own labels and requests, in the order in which they speak.

A filter is a `Rule` in a module of its own, and one line in `FILTERS` (docs/extending.md). Each entry answers the rules
that concern a pod, none for most pods: a plain pod pays for no filter that has nothing to say of it. The four that look
at nothing but node and pod come before these (`filters/node.py`), the fit of resources among them (`Rule.before_fit`).
Source: kube-parity.md section 1.
"""

from collections.abc import Callable, Iterable, Iterator

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.registry import families_of
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.claims import claims_of, claims_refusal
from koordpy.planning.filters.disks import NodeVolumeLimits, VolumeRestrictions
from koordpy.planning.filters.dra import DynamicResources, resource_claims_refusal
from koordpy.planning.filters.interpod import ExistingTerms, OwnTerms
from koordpy.planning.filters.ports import NodePorts
from koordpy.planning.filters.rules import Rule
from koordpy.planning.filters.spread import FILTERS as HARD
from koordpy.planning.filters.spread import Spreading, TopologySpread, constraints_of
from koordpy.planning.filters.volumes import VolumeBinding
from koordpy.planning.filters.zones import VolumeZone
from koordpy.planning.scene import Scene


def _ports(pod: PodInfo, scene: Scene) -> Iterator[Rule]:
    if pod.ties.ports:
        yield NodePorts(pod, scene.snapshot)


def _volumes(pod: PodInfo, scene: Scene) -> Iterator[Rule]:
    if not pod.ties.volumes:
        return
    restrictions = VolumeRestrictions(pod, scene.draft)
    if not restrictions.silent:
        yield restrictions
    objects = scene.snapshot.storage
    if not claims_of(pod):
        return
    limits = NodeVolumeLimits(pod, scene.draft, objects, scene.snapshot.csi_uses)
    if not limits.silent:
        yield limits
    yield VolumeBinding(pod, scene.draft, objects, scene.reach)
    zone = VolumeZone(pod, scene.draft, objects)
    if not zone.silent:
        yield zone


def _spread(pod: PodInfo, scene: Scene) -> Iterator[Rule]:
    if not (scene.spread_defaults or pod.pod.spec.topology_spread_constraints):
        return
    if constraints := constraints_of(pod, HARD, scene.spread_defaults):
        yield TopologySpread(Spreading(pod, constraints, scene.snapshot, scene.domains))


def _pod_affinity(pod: PodInfo, scene: Scene) -> Iterator[Rule]:
    if pod.ties.terms:
        yield OwnTerms(pod, scene.snapshot, scene.domains)
    there, coming = scene.terms_towards(pod)
    if there or coming:
        existing = ExistingTerms(pod, there, scene.snapshot, scene.domains)
        if coming or not existing.silent:
            yield existing


def _resource_claims(pod: PodInfo, scene: Scene) -> Iterator[Rule]:
    if pod.pod.spec.resource_claims:
        yield DynamicResources(pod, scene.draft, scene.snapshot.devices)


def _accelerators(pod: PodInfo, scene: Scene) -> Iterator[Rule]:
    for family in families_of(pod) if pod.extended else ():
        yield from family.rules(pod, scene)


FILTERS: tuple[Callable[[PodInfo, Scene], Iterable[Rule]], ...] = (
    _ports,
    _volumes,
    _spread,
    _pod_affinity,
    _resource_claims,
    _accelerators,
)


def rules_of(pod: PodInfo, scene: Scene) -> list[Rule]:
    """The rules of a pod, on the snapshot: whoever keeps them tells them of the draft's changes."""
    return [rule for build in FILTERS for rule in build(pod, scene)]


def refusal_of(pod: PodInfo, scene: Scene) -> Refusal | None:
    """What is wrong with a pod as a whole: then no node is tried."""
    found: Refusal | None = None
    if pod.ties.volumes and claims_of(pod):
        found = claims_refusal(pod, scene.snapshot.storage)
    if found is None and pod.pod.spec.resource_claims:
        found = resource_claims_refusal(pod, scene.snapshot.devices)
    if found is not None or not pod.extended:
        return found
    return next((wrong for family in families_of(pod) if (wrong := family.refusal(pod, scene)) is not None), None)
