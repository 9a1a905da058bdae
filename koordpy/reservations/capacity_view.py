# SPDX-License-Identifier: Apache-2.0
"""Views: which pods count as used capacity when the planner answers one kind of question.

The questions are: can a unit start now, can it start once terminating pods are gone, and can it start with victims
evicted? They differ in what counts as used on nodes and in quotas, and in the demand from which runtimes of quotas are
computed. A view is given when a round state or limits are created (`RoundState.of_view`, `Admission.of_view`), and
never changes.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import Quotas


@dataclass(frozen=True, slots=True, eq=False)
class QuotaDemand:
    """Demand from which the runtimes of quotas are computed, in place of the demand of the snapshot."""

    quotas: Quotas
    """The quotas of the snapshot, with demand of other pending pods."""
    limits: dict[Hashable, Mapping[str, Amounts]] = field(default_factory=dict)
    """A cache of `Admission`: reserved amounts by quota -> limits of all quotas."""


@dataclass(frozen=True, slots=True)
class View:
    """Which pods count as used capacity for one kind of question. The fields are independent of each other."""

    net: bool = False
    """True: of a nominated pod, only the requests beyond the capacity of the terminating pods on its node, or in its
    quota, count."""
    without_terminating: bool = False
    """True: for runtimes, terminating pods and pods evicted on the draft count as gone (docs/rules/quota-fairness.md
    4)."""
    placed: bool = False
    """True: for runtimes, pods placed in the round count as used; without `quota.guaranteeUsage` only in built-in
    quotas."""
    demand: QuotaDemand | None = None
    """Demand for the runtimes; None for the demand of the snapshot."""


PLAIN = View()
"""View for a unit that starts now."""
AFTER_TERMINATION = View(without_terminating=True)
"""View for a unit that starts once terminating pods, and pods evicted on the draft, are gone."""
STARTED = View(without_terminating=True, placed=True)
"""View for a unit that starts once terminating and evicted pods are gone, and once the pods placed in this round
run."""
PREEMPTOR = View(net=True, without_terminating=True, placed=True)
"""View for a preemptor, in which victims are chosen. Of a nominated pod, only the requests beyond the capacity of the
terminating pods on its node, or in its quota, count. Quotas have the limits that they will have after the evictions, so
that no pod is evicted for a unit that admission would then reject."""
