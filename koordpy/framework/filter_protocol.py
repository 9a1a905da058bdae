# SPDX-License-Identifier: Apache-2.0
"""The result of a filter: a verdict on every node. Each refused node has the reason and code of one filter.

Source: kube-parity.md section 1 (verdicts and messages). The code `Unschedulable` means that evicting pods from the
node could help; `UnschedulableAndUnresolvable` means that it could not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class Code(StrEnum):
    """Code of a refusal, as in kube-scheduler: whether evicting pods from the node could help."""

    UNSCHEDULABLE = "Unschedulable"
    """Evicting pods from the node could help."""
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    """Evicting pods from the node could not help."""


@dataclass(frozen=True)
class Refusal:
    """The refusal of one node, or of the pod on every node, by one filter."""

    plugin: str
    """Name of the filter plugin, as in kube-scheduler."""
    code: Code
    reasons: tuple[str, ...]
    """Sentences for the message of the pod, in kube-scheduler's words where it has the same filter."""
    not_ready: bool = False
    """True if the pod waits for an object that another controller creates or deletes, or if a setting of the pod cannot
    be read (repair.md 1.2)."""
    no_node_helps: str = ""
    """Why no new node would help the pod, as one of the causes in repair.md 1.3; empty if a new node may help."""

    @property
    def is_unsupported(self) -> bool:
        """True if the pod requests something that koordpy does not implement."""
        return any(text.startswith("unsupported: ") for text in self.reasons)

    @cached_property
    def is_final(self) -> bool:
        """True if no new node helps the pod, or if koordpy does not implement its request."""
        return bool(self.no_node_helps) or self.is_unsupported


@dataclass(frozen=True, eq=False)
class Verdict:
    """The results of one or more filters for one pod, on every node."""

    which: NDArray[np.int32]
    """[nodes] 0 if the pod fits the node, i > 0 if refusals[i - 1] refuses it."""
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
        """Returns the combined verdict: a node has this verdict's refusal if there is one, else that of `later`."""
        if not later.refusals:
            return self
        shift = len(self.refusals)
        moved = np.where(later.which > 0, later.which + shift, 0)
        which = np.where(self.which > 0, self.which, moved).astype(np.int32)
        return Verdict(which, self.refusals + later.refusals)


def wrong_ask(plugin: str, text: str) -> Refusal:
    """Returns the refusal of a pod with a request that cannot be read (NotReadyForScheduling), or that koordpy does not
    implement (`unsupported: ...`)."""
    refusal = Refusal(plugin, Code.UNRESOLVABLE, (text,))
    return refusal if refusal.is_unsupported else replace(refusal, not_ready=True)


def all_fit(nodes: int) -> Verdict:
    """Returns a verdict that accepts every node."""
    return Verdict(np.zeros(nodes, dtype=np.int32))


def refused_where(mask: NDArray[np.bool_], refusal: Refusal) -> Verdict:
    """Returns a verdict with the same refusal for all nodes where `mask` ([nodes]) is True, and no other refusals."""
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
