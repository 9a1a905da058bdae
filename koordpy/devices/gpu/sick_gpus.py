"""Sick GPUs that pods still hold, on nodes whose kubelet admits a pod beside them.

Source: gpu-topology.md 2. A kubelet takes a sick GPU out of the node's allocatable and still counts the pod that holds
it, so that `allocatable - requested` subtracts the GPU twice. Its admission does not: it first books healthy devices
for the pod, and then takes allocatable to be no less than the booked devices.
"""

from collections.abc import Collection
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.pods.family_books import Amendment
from koordpy.pods.resource_amounts import Amounts


@dataclass(frozen=True)
class SickGpus(Amendment):
    """Sick GPUs of a node, of which pods hold some."""

    held: int
    """Number of sick GPUs that pods on the node hold."""
    usable: int
    """GPUs of the Device without the sick ones that no pod holds: more are never requested of the node."""
    resources: Collection[str]
    """Names of GPUs."""

    def amended(self, stated: Amounts) -> Amounts:
        """Returns the amounts with the sick GPUs that pods hold counted, as far as the node does not count them.

        Only GPUs that the node's figure lacks are added: those that no pod holds are missing first, so that a kubelet
        which does not know of a sick GPU yet changes nothing. Unchanged if the node has several resources of GPUs, or
        one in hundredths, because no device plugin of ours offers these.
        """
        names = [name for name in self.resources if stated.get(name, 0) > 0]
        if len(names) != 1 or names[0] in keys.HUNDREDTHS:
            return stated
        own = stated[names[0]]
        return {**stated, names[0]: max(own, min(own + self.held, self.usable))}
