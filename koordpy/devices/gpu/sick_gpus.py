# SPDX-License-Identifier: Apache-2.0
"""Correction of a node's allocatable for sick (unhealthy) GPUs that pods still use (gpu-topology.md 2).

A kubelet removes a sick GPU from the node's allocatable, and still counts the pod that uses the GPU. So `allocatable -
requested` subtracts the GPU twice. The kubelet itself would admit one more pod: it first assigns healthy devices to the
pod, and then counts allocatable as at least the number of assigned devices. With the correction the scheduler counts as
the kubelet does.
"""

from collections.abc import Collection
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.pods.family_books import Amendment
from koordpy.pods.resource_amounts import Amounts


@dataclass(frozen=True)
class SickGpus(Amendment):
    """Correction for the sick GPUs of a node that pods still use."""

    allocated: int
    """Number of sick GPUs that pods on the node use."""
    usable: int
    """Number of GPUs of the Device without the sick GPUs that no pod uses: upper bound of the corrected amount."""
    resources: Collection[str]
    """Names of GPU resources."""

    def amended(self, stated: Amounts) -> Amounts:
        """Returns the amounts with the sick GPUs that pods use, as far as the node's amount lacks them.

        A GPU that is missing in the amounts is first assumed to be a sick GPU that no pod uses. So nothing changes as
        long as the kubelet does not know of a sick GPU. The amounts are returned unchanged if the node has several GPU
        resources, or one in hundredths, because koordpy's device plugin offers neither.
        """
        names = [name for name in self.resources if stated.get(name, 0) > 0]
        if len(names) != 1 or names[0] in keys.HUNDREDTHS:
            return stated
        own = stated[names[0]]
        return {**stated, names[0]: max(own, min(own + self.allocated, self.usable))}
