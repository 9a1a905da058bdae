"""Plain pods with GPUs: links and what is left of them come before the scores (gpu-topology.md 5)."""

import numpy as np

from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.scores.nodes import first_node


def best_with_gpus(pod: PodInfo, figures: Figures) -> int | None:
    """The node of a plain pod; None where none takes it. What nodes are worth to gangs is `Problem.by_count`."""
    own = figures.of(pod)
    able = np.nonzero(own.slots > 0)[0]
    if len(able) < 2:
        return int(able[0]) if len(able) else None
    slow, left = figures.plain_gpus(pod).at(able)
    beside = (-own.total[able], own.slots[able], figures.snapshot.name_rank[able])
    best = first_node(np.arange(len(able)), -slow, left, *beside)
    return int(able[best]) if best is not None else None
