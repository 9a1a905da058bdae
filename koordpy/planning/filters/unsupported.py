"""Features that no filter covers yet: a pod that uses one is refused with a reason, never placed past it.

Each entry goes when its filter comes (kube-parity.md sections 2.4 to 2.8).
"""

from koordpy.api.objects import Pod
from koordpy.planning.filters.base import Code, Refusal


def unsupported(pod: Pod) -> Refusal | None:
    """The refusal of a pod that uses a feature without a filter; None where everything it asks is looked at."""
    spec = pod.spec
    if spec.resource_claims:
        return _refusal("DynamicResources", "resource claims")
    return None


def _refusal(plugin: str, feature: str) -> Refusal:
    return Refusal(plugin, Code.UNRESOLVABLE, (f"unsupported: {feature}",))
