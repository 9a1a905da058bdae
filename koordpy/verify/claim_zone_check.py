# SPDX-License-Identifier: Apache-2.0
"""Checks that the devices of a pod's claims are in the NUMA zones that the pod demands (numa.md 7).

It reads the attribute `resource.kubernetes.io/numaNode` of devices in ResourceSlices and the zones of the plan, which
`numa_check.py` checks. It shares no code with the rule of the search. Devices without the attribute are not compared.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from koordpy.api.claim_objects import BasicDevice
from koordpy.pods.claim_refs import DeviceId
from koordpy.pods.pod_info import PodInfo

NUMA_FAMILY = "numa"
_ATTRIBUTE = "resource.kubernetes.io/numaNode"
_STRICT = ("single-numa-node", "restricted")


def misaligned_devices(pod: PodInfo, devices: Mapping[DeviceId, BasicDevice], take: Any) -> list[str]:
    """Returns the faults of the zones of a pod's devices; empty for a pod that does not demand alignment.

    devices: of all claims of the pod, without those for admin access. take: zones that the plan expects the kubelet to
    use (`ZoneTake`); None on a node without NUMA data.
    """
    ask = pod.ask(NUMA_FAMILY)
    if ask is None or ask.demand.value not in _STRICT:
        return []
    stated = ((one.device, facts.attributes.get(_ATTRIBUTE)) for one, facts in sorted(devices.items()))
    zones = {
        name: {value.number} if value.number is not None else set(value.numbers or ())
        for name, value in stated
        if value is not None
    }
    known = {name: own for name, own in zones.items() if own}
    used: set[int] = set()
    for mask in take.admission.sets if take is not None else ():
        used |= {number for i, number in enumerate(take.numbers) if mask >> i & 1}
    if used:
        return [
            f"device {name} is outside the zones {sorted(used)} of the pod"
            for name, own in known.items()
            if not own & used
        ]
    pairs = combinations(known.items(), 2)
    return [f"devices {one} and {other} have no zone in common" for (one, a), (other, b) in pairs if not a & b]
