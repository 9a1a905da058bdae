"""What every filter answers: per node a verdict, with one voice and one code for each node.

Source: kube-parity.md section 1. `Unschedulable` means that evicting pods from the node could help,
`UnschedulableAndUnresolvable` that it could not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Code(StrEnum):
    """Whether evicting pods from the node could help."""

    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One filter's no to a node, or to the pod as a whole."""

    plugin: str
    code: Code
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Verdict:
    """Verdict of one or more filters. which: [nodes] 0 = fits, i > 0 = refusals[i - 1]."""

    which: NDArray[np.int32]
    refusals: tuple[Refusal, ...] = ()

    @property
    def fits(self) -> NDArray[np.bool_]:
        return np.asarray(self.which == 0)

    def of(self, node: int) -> Refusal | None:
        """The refusal of one node, None where it fits."""
        i = int(self.which[node])
        return self.refusals[i - 1] if i else None

    def then(self, later: "Verdict") -> "Verdict":
        """This verdict where it refuses, the later filter's elsewhere."""
        if not later.refusals:
            return self
        shift = len(self.refusals)
        moved = np.where(later.which > 0, later.which + shift, 0)
        which = np.where(self.which > 0, self.which, moved).astype(np.int32)
        return Verdict(which, self.refusals + later.refusals)


def all_fit(nodes: int) -> Verdict:
    """Every node passes."""
    return Verdict(np.zeros(nodes, dtype=np.int32))


def refused_where(mask: NDArray[np.bool_], refusal: Refusal) -> Verdict:
    """One refusal for the nodes of a mask."""
    if not mask.any():
        return all_fit(len(mask))
    return Verdict(mask.astype(np.int32), (refusal,))


def chain(verdicts: Sequence[Verdict]) -> Verdict:
    """Filters in their order; the first that fails speaks for the node."""
    out = verdicts[0]
    for verdict in verdicts[1:]:
        out = out.then(verdict)
    return out
