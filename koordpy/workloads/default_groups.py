# SPDX-License-Identifier: Apache-2.0
"""Recognizes PodGroups of scheduling.k8s.io that a controller created by default, not at the request of the user.

Controllers such as the Job controller create a PodGroup for each workload. Such a PodGroup does not decide which pods
are a gang: the gang is derived from the workload instead. Source: workloads.md 2.
"""

from collections.abc import Iterable

from koordpy.api.objects import OwnerReference
from koordpy.workloads.known_workloads import Known
from koordpy.workloads.workload_runs import WorkloadPod


def is_made_by_default(one: WorkloadPod, owners: Iterable[OwnerReference], known: Known) -> bool:
    """Returns True if a controller created the PodGroup that a pod names by default.

    That is so if an owner of the PodGroup is also above the pod, and that owner does not request the policy `basic`
    itself. owners: ownerReferences of the PodGroup.
    """
    meta, lineage = one.pod.metadata, one.lineage
    for owner in owners:
        found = known.find(owner, meta.namespace)
        if found is not None and any(above is found for above in lineage.chain):
            return found.policy != "basic"
        # the owner's object is unknown, but ownerReferences above the pod may name it
        named = filter(None, (meta.controller, lineage.missing, *(above.head.reference for above in lineage.chain)))
        if any(_is_same(owner, above) for above in named):
            return True
    return False


def _is_same(one: OwnerReference, other: OwnerReference) -> bool:
    """Returns True if two references name one object: by uid, or by kind and name if one of them has no uid."""
    if one.uid and other.uid:
        return one.uid == other.uid
    return (one.kind, one.name) == (other.kind, other.name)
