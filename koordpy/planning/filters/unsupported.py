"""Features that no filter covers yet: a pod that uses one is refused with a reason, never placed past it.

Each entry goes when its filter comes (kube-parity.md sections 2.4 to 2.8).
"""

from koordpy.api.objects import Pod
from koordpy.planning.filters.base import Code, Refusal


def unsupported(pod: Pod) -> Refusal | None:
    """The refusal of a pod that uses a feature without a filter; None where everything it asks is looked at."""
    spec = pod.spec
    affinity = spec.affinity
    if any(port.host_port > 0 for c in (*spec.containers, *spec.init_containers) for port in c.ports):
        return _refusal("NodePorts", "host ports")
    volumes = spec.volumes
    if any(v.gce_persistent_disk or v.aws_elastic_block_store or v.iscsi or v.rbd for v in volumes):
        return _refusal("VolumeRestrictions", "volumes of a disk kind")
    if any(v.persistent_volume_claim or v.ephemeral is not None for v in volumes):
        return _refusal("VolumeBinding", "persistent volume claims")
    if any(v.csi for v in volumes):
        return _refusal("NodeVolumeLimits", "inline CSI volumes")
    if any(c.when_unsatisfiable != "ScheduleAnyway" for c in spec.topology_spread_constraints):
        return _refusal("PodTopologySpread", "topology spread constraints")
    if affinity is not None and affinity.pod_affinity is not None and affinity.pod_affinity.required:
        return _refusal("InterPodAffinity", "required pod affinity")
    if affinity is not None and affinity.pod_anti_affinity is not None and affinity.pod_anti_affinity.required:
        return _refusal("InterPodAffinity", "required pod anti-affinity")
    if spec.resource_claims:
        return _refusal("DynamicResources", "resource claims")
    return None


def _refusal(plugin: str, feature: str) -> Refusal:
    return Refusal(plugin, Code.UNRESOLVABLE, (f"unsupported: {feature}",))
