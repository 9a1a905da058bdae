"""Equal nodes of one parent, taken together by the models that count pods."""

from dataclasses import dataclass, field

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
