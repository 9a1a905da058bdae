"""Equal nodes of one parent, taken together by the models that count pods."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from koordpy.planning.placement.problem import Problem
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.staged import Term


@dataclass(slots=True)
class Cell:
    """Equal nodes of one parent, in natural order."""

    nodes: tuple[int, ...]
    bound: bool
    pods: dict[int, cp_model.IntVar]
    """Shape position -> pods on all of the nodes."""
    fillings: list[tuple[cp_model.IntVar, tuple[int, ...]]] = field(default_factory=list)
    used: list[Term] = field(default_factory=list)

    @property
    def total(self) -> list[Term]:
        return [(v, 1) for v in self.pods.values()]


def lost_score(problem: Problem, shapes: Sequence[int], cells: Sequence[Cell]) -> list[Term]:
    """The negated total score. shapes: shape per position in Room."""
    scores = [problem.shapes[shape].score for shape in shapes]
    terms = [(var, -int(scores[i][cell.nodes[0]])) for cell in cells for i, var in cell.pods.items()]
    return [term for term in terms if term[1]]
