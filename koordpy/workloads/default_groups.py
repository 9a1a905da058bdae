"""Recognizes PodGroups of scheduling.k8s.io that a controller created by default.

Source: groups.md 2.4.
"""

from collections.abc import Iterable

from koordpy.api.objects import OwnerReference
from koordpy.workloads.known_workloads import Known
from koordpy.workloads.workload_runs import WorkloadPod


def is_made_by_default(one: WorkloadPod, owners: Iterable[OwnerReference], known: Known) -> bool:
    """Returns whether an owner of the PodGroup that a pod names is above the pod, and its policy is not basic.

    owners: owners of the PodGroup.
    """
    meta, lineage = one.pod.metadata, one.lineage
    for owner in owners:
        found = known.find(owner, meta.namespace)
        if found is not None and any(above is found for above in lineage.chain):
            return found.policy != "basic"
        named = filter(None, (meta.controller, lineage.missing, *(above.head.reference for above in lineage.chain)))
        if any(_is_same(owner, above) for above in named):
            return True
    return False


def _is_same(one: OwnerReference, other: OwnerReference) -> bool:
    """Returns whether two references name one object: by uid, or by kind and name if either has no uid."""
    if one.uid and other.uid:
        return one.uid == other.uid
    return (one.kind, one.name) == (other.kind, other.name)
