"""Plain pods with GPUs: links and what is left of them come before the scores (gpu-topology.md 5)."""

import numpy as np

from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.gpu.plain import best_of


def best_with_gpus(pod: PodInfo, figures: Figures) -> int | None:
    """The node of a plain pod; None where none takes it. What nodes are worth to gangs is `Problem.by_count`."""
    own = figures.of(pod)
    able = np.nonzero(own.slots > 0)[0]
    if len(able) < 2:
        return int(able[0]) if len(able) else None
    names = figures.snapshot.name_rank
    return best_of(able, figures=figures.plain_gpus(pod), total=own.total, slots=own.slots, names=names)
