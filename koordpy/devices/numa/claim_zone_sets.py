# SPDX-License-Identifier: Apache-2.0
"""The zones of pods on a draft, as the choice of devices for claims reads them (numa.md 7)."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.gpu.gpu_nodes import GpuNodes
from koordpy.devices.numa.admission import ZoneAdmission
from koordpy.devices.numa.numa_goals import numa_limits
from koordpy.devices.numa.numa_nodes import NumaNodes
from koordpy.devices.numa.pod_amounts import NUMA
from koordpy.devices.numa.zone_sets import zones_in
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


class DraftZoneSets:
    """Implements `ZoneSets`."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration) -> None:
        self._numa = NumaNodes(draft, config, GpuNodes(draft, config.gpu))

    def states(self, numbers: dict[Hashable, int]) -> bytes:
        """Implements `ZoneSets.states`."""
        own = self._numa.numbers()
        table = np.array([numbers.setdefault(one, len(numbers)) for one in self._numa.states], dtype=np.int64)
        return table[own].tobytes()

    def state(self, node: int) -> Hashable:
        """Implements `ZoneSets.state`."""
        return self._numa.state(node)

    def may_change(self, node: int, pod: PodInfo) -> bool:
        """Implements `ZoneSets.may_change`."""
        state, ask = self._numa.state(node), pod.ask(NUMA)
        is_aligned = ask is not None and state.kind.has_data and bool(state.amounts_of(ask).requests)
        return is_aligned and state.rows != state.kind.total

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


def planned_zone_sets(inputs: FilterInputs) -> Mapping[str, frozenset[int] | None] | None:
    """Returns `ZoneSetSource.planned_zones`."""
    version, planned = numa_limits(inputs).planned
    if version != inputs.draft.version:
        return None
    return {
        key: frozenset(take.numbers[i] for i in zones_in(take.admission.union)) if take.admission.sets else None
        for key, take in planned.items()
    }
