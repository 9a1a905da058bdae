"""Every kind of jobs with rules of its own: a `JobRules` in a module of its own, and one line here."""

from collections.abc import Iterator, Mapping

from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.gates import Gate
from koordpy.planning.jobs.base import JobRules, Placed
from koordpy.planning.jobs.gpus import GpuPods
from koordpy.planning.jobs.npus import NpuJobs
from koordpy.planning.units import Unit

JOB_RULES: tuple[JobRules, ...] = (
    NpuJobs(),
    GpuPods(),
)


def _concerned(unit: Unit) -> Iterator[JobRules]:
    """The rules of the devices that a unit waits for."""
    return (rules for rules in JOB_RULES if any(pod.extended and rules.family.asks(pod) for pod in unit.pending))


def job_gate(unit: Unit, figures: Figures) -> Gate | None:
    """What is wrong with a unit's job."""
    return next((held for rules in _concerned(unit) if (held := rules.gate(unit, figures)) is not None), None)


def place_by_rules(unit: Unit, figures: Figures) -> Placed | None:
    """Where a unit goes by rules of its own; None where the order of goals says it."""
    return next((placed for rules in _concerned(unit) if (placed := rules.place(unit, figures)) is not None), None)


def knows_network(unit: Unit, figures: Figures) -> bool:
    """Whether rules of a unit's own go by how nodes are connected."""
    return any(rules.knows_network(unit, figures) for rules in _concerned(unit))


def rules_of(pod: PodInfo) -> JobRules | None:
    """Who says where a plain pod with extended resources goes; None where the scores do."""
    return next((rules for rules in JOB_RULES if rules.family.asks(pod)), None)


def keep_room(returns: Mapping[str, int], figures: Figures) -> None:
    """Holds nodes on the draft for members that come back in a later round."""
    for rules in JOB_RULES:
        rules.keep_room(returns, figures)
