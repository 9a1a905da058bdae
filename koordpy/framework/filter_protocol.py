# SPDX-License-Identifier: Apache-2.0
"""The result of a filter: a verdict on every node, with the reason and code of one filter per refused node.

Source: kube-parity.md section 1. `Unschedulable` means that evicting pods from the node could help,
`UnschedulableAndUnresolvable` that it could not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Code(StrEnum):
    """Code of a refusal, as in kube-scheduler: whether evicting pods from the node could help."""

    UNSCHEDULABLE = "Unschedulable"
    """Evicting pods from the node could help."""
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    """Evicting pods from the node could not help."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a node, or of the pod as a whole, by one filter."""

    plugin: str
    """Name of the filter plugin, as in kube-scheduler."""
    code: Code
    reasons: tuple[str, ...]
    """Sentences for the message of the pod, as in kube-scheduler."""
    not_ready: bool = False
    """True if the pod waits for an object that another controller creates or deletes (repair.md 1.2)."""
    no_node_helps: str = ""
    """Why no new node would help, a cause of repair.md 1.3; empty if one may."""

    @property
    def is_unsupported(self) -> bool:
        """True if koordpy does not serve what the pod requests."""
        return any(text.startswith("unsupported: ") for text in self.reasons)


@dataclass(frozen=True, eq=False)
class Verdict:
    """Verdict of one or more filters on every node."""

    which: NDArray[np.int32]
    """[nodes] 0 if the pod fits, i > 0 for refusals[i - 1]."""
    refusals: tuple[Refusal, ...] = ()

    @property
    def fits(self) -> NDArray[np.bool_]:
        """[nodes] True if the pod fits."""
        return np.asarray(self.which == 0)

    def of(self, node: int) -> Refusal | None:
        """Returns the refusal of one node; None if the pod fits."""
        i = int(self.which[node])
        return self.refusals[i - 1] if i else None

    def then(self, later: "Verdict") -> "Verdict":
        """Returns the combined verdict: this one on nodes that it refuses, that of the later filter elsewhere."""
        if not later.refusals:
            return self
        shift = len(self.refusals)
        moved = np.where(later.which > 0, later.which + shift, 0)
        which = np.where(self.which > 0, self.which, moved).astype(np.int32)
        return Verdict(which, self.refusals + later.refusals)


def all_fit(nodes: int) -> Verdict:
    """Returns a verdict that passes every node."""
    return Verdict(np.zeros(nodes, dtype=np.int32))


def refused_where(mask: NDArray[np.bool_], refusal: Refusal) -> Verdict:
    """Returns a verdict with one refusal for the nodes of a mask."""
    if not mask.any():
        return all_fit(len(mask))
    return Verdict(mask.astype(np.int32), (refusal,))


def chain(verdicts: Sequence[Verdict]) -> Verdict:
    """Combines verdicts in order: each node gets the refusal of the first filter that refuses it.

    There must be at least one verdict.
    """
    out = verdicts[0]
    for verdict in verdicts[1:]:
        out = out.then(verdict)
    return out
