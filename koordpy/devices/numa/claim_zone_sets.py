# SPDX-License-Identifier: Apache-2.0
"""The zones of pods on a draft, as the choice of devices for claims reads them (numa.md 7)."""

from collections.abc import Sequence

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.gpu.gpu_nodes import GpuNodes
from koordpy.devices.numa.admission import ZoneAdmission
from koordpy.devices.numa.numa_nodes import NumaNodes
from koordpy.devices.numa.pod_amounts import NUMA
from koordpy.devices.numa.zone_sets import zones_in
from koordpy.pods.pod_info import PodInfo


class DraftZoneSets:
    """Implements `ZoneSets`."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration) -> None:
        self._numa = NumaNodes(draft, config, GpuNodes(draft, config.gpu))

    def states(self) -> Ints:
        """Implements `ZoneSets.states`."""
        return self._numa.numbers()

    def is_used(self, node: int) -> bool:
        """Implements `ZoneSets.is_used`."""
        state = self._numa.state(node)
        return state.rows != state.kind.total

    def zone_sets(self, node: int, pods: Sequence[PodInfo]) -> Sequence[frozenset[int] | None]:
        """Implements `ZoneSets.zone_sets`."""
        state = self._numa.state(node)
        out: list[frozenset[int] | None] = []
        for pod in pods:
            ask = pod.ask(NUMA)
            found = state.admit(ask) if ask is not None else None
            if not isinstance(found, ZoneAdmission) or not found.sets:
                out.append(None)
                continue
            out.append(frozenset(state.kind.numbers[i] for i in zones_in(found.union)))
            state = state.after(found.taken)
        return out
