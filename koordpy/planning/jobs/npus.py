"""Jobs on Ascend NPUs: by the product's table of chips, by switches or by SuperPoDs (ascend.md 2 to 5)."""

from collections.abc import Mapping, Sequence

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.npus import NpuFamily
from koordpy.planning.ascend.filter import AFFINITY
from koordpy.planning.figures import Figures
from koordpy.planning.gates import Gate
from koordpy.planning.jobs.ascend.moves import keep_room
from koordpy.planning.jobs.ascend.place import affinity_scores, has_own_order, npu_gate, place_npus
from koordpy.planning.jobs.ascend.ranked import best_node
from koordpy.planning.jobs.base import JobRules, Placed
from koordpy.planning.units import Unit


class NpuJobs(JobRules):
    """Gangs and plain pods that ask for NPUs."""

    family = NpuFamily()

    def gate(self, unit: Unit, figures: Figures) -> Gate | None:
        return npu_gate(unit, figures)

    def place(self, unit: Unit, figures: Figures) -> Placed | None:
        return place_npus(unit, figures)

    def knows_network(self, unit: Unit, figures: Figures) -> bool:
        return has_own_order(unit, figures)

    def keep_room(self, returns: Mapping[str, int], figures: Figures) -> None:
        keep_room(returns, figures)

    def best(self, pod: PodInfo, figures: Figures) -> int | None:
        return best_node(pod, figures)

    def scores(self, pod: PodInfo, unit: Unit, figures: Figures) -> tuple[str, Sequence[float]] | None:
        if figures.of(pod).chips is None:
            return None
        return AFFINITY, affinity_scores(pod, unit, figures)
