# SPDX-License-Identifier: Apache-2.0
"""Selects the pending units to wake after a change of a NodeResourceTopology, a node's report of its NUMA zones.

`engine/wakeups.py` has the same kind of rule for other objects.
"""

from koordpy.api import keys
from koordpy.api.custom_objects import NodeResourceTopology
from koordpy.engine.wakeups import Wake


def of_node_topology(before: NodeResourceTopology | None, after: NodeResourceTopology | None) -> Wake:
    """Returns the wake-ups after a change of a report.

    NUMA_REPORT: the free amounts changed. DEVICE and NUMA_REPORT: the zones, their sizes or the kubelet's policies
    changed, or the report was created or deleted (before or after is None). NOTHING: no such field changed.
    """
    if before is None or after is None or _zones_of(before) != _zones_of(after):
        return Wake.DEVICE | Wake.NUMA_REPORT
    return Wake.NUMA_REPORT if _free_in(before) != _free_in(after) else Wake.NOTHING


def _free_in(report: NodeResourceTopology) -> list[object]:
    """Returns the free amounts in a report, and its annotation with the CPUs that the kubelet has assigned to pods."""
    amounts = [(zone.name, one.name, one.available) for zone in report.zones for one in zone.resources]
    return [amounts, report.metadata.annotations.get(keys.POD_CPU_ALLOCS)]


def _zones_of(report: NodeResourceTopology) -> list[object]:
    """Returns the zones of a report, their sizes, and the policies of the kubelet."""
    sizes = [(z.name, z.type, one.name, one.capacity, one.allocatable) for z in report.zones for one in z.resources]
    texts = [report.metadata.annotations.get(key) for key in (keys.CPU_MANAGER_POLICY, keys.CPU_TOPOLOGY)]
    return [sizes, report.attributes, report.topology_policies, texts]
