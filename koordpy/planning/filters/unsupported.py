"""Features that no filter covers yet: a pod that uses one is refused with a reason, never placed past it.

Each entry goes when its filter comes (kube-parity.md sections 2.4 to 2.8).
"""

from koordpy.api.objects import Pod
from koordpy.planning.filters.base import Code, Refusal


def unsupported(pod: Pod) -> Refusal | None:
    """The refusal of a pod that uses a feature without a filter; None where everything it asks is looked at."""
    spec = pod.spec
    volumes = spec.volumes
    if any(v.gce_persistent_disk or v.aws_elastic_block_store or v.iscsi or v.rbd for v in volumes):
        return _refusal("VolumeRestrictions", "volumes of a disk kind")
    if any(v.persistent_volume_claim or v.ephemeral is not None for v in volumes):
        return _refusal("VolumeBinding", "persistent volume claims")
    if any(v.csi for v in volumes):
        return _refusal("NodeVolumeLimits", "inline CSI volumes")
    if spec.resource_claims:
        return _refusal("DynamicResources", "resource claims")
    return None


def _refusal(plugin: str, feature: str) -> Refusal:
    return Refusal(plugin, Code.UNRESOLVABLE, (f"unsupported: {feature}",))
