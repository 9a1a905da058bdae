"""What is said of settings that do nothing: InvalidAnnotation events live, lines on stderr offline."""

from collections.abc import Sequence

from koordpy.api.settings import odd_of_pod
from koordpy.planning.accelerators.registry import ACCELERATORS
from koordpy.planning.gates import wish_warnings
from koordpy.planning.quota.admission import quota_warnings
from koordpy.planning.units import Groups, Unit


def warnings_of(units: Sequence[Unit], groups: Groups) -> list[tuple[str, str]]:
    """(object such as PodGroup/default/g, text): settings that ask for what is not done, labels that name nothing."""
    snapshot = groups.snapshot
    out = wish_warnings(units, groups) + quota_warnings(units, snapshot)
    out += snapshot.topology_warnings
    out += snapshot.gpus.warnings
    for pod in (pod for unit in units for pod in unit.pending):
        out += [(f"Pod/{pod.key}", text) for text in odd_of_pod(pod.pod.metadata)]
        out += [(f"Pod/{pod.key}", text) for family in ACCELERATORS for text in family.warnings(pod)]
    return out
