# SPDX-License-Identifier: Apache-2.0
"""Sentences about the effect of the settings for resource claims on the claims and classes of a cluster.

For the log at the start and for `config check`, because an upgrade from a version without these settings changes which
pods are evicted and which devices quotas count (docs/upgrading.md). A cluster without claims and classes gets no
sentence.
"""

from collections.abc import Iterable, Iterator

from koordpy.api.claim_objects import DeviceClass, ResourceClaim
from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Wire
from koordpy.config.dra_settings import Dra

RIGHTS = (
    "resource claims need rights (docs/install.md, section 6): create, delete and patch resourceclaims; patch "
    "resourceclaims/status; patch and update resourceclaims/binding; list and watch devicetaintrules"
)


def claim_notes(objects: Iterable[Wire], dra: Dra) -> Iterator[str]:
    """Yields sentences about evictions of pods with claims, classes that quotas count, and rights.

    objects: those of the cluster; only ResourceClaims and DeviceClasses matter.
    """
    mapped = {name for mapping in dra.device_class_mappings for name in mapping.device_class_names}
    counted: dict[str, list[str]] = {}
    held, found = 0, False
    for one in objects:
        if isinstance(one, ResourceClaim):
            found = True
            users = one.status.reserved_for if one.status.allocation is not None else ()
            held += any(user.resource == "pods" for user in users)
        elif isinstance(one, DeviceClass):
            found = True
            if one.spec.extended_resource_name and one.metadata.name not in mapped:
                counted.setdefault(one.spec.extended_resource_name, []).append(one.metadata.name)
    if held and dra.preemption:
        yield (
            f"dra.preemption is true: pods may be evicted for the devices of their ResourceClaims "
            f"({count_noun(held, 'claim')} in use)"
        )
    for resource in sorted(counted, key=natural_key):
        names = name_first(sorted(counted[resource], key=natural_key))
        yield f"quotas of {resource} count devices and claims of DeviceClass {names} (extendedResourceName)"
    if found:
        yield RIGHTS
