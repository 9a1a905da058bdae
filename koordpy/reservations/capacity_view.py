# SPDX-License-Identifier: Apache-2.0
"""Views: what counts as used when one question of the planner is answered.

Whether a unit can start now, once terminating pods are gone, or with victims are different questions. They differ in
what is counted as used on nodes and in quotas, and in the demand from which runtimes of quotas are computed. A view is
fixed when round state or limits are created (`RoundState.of_view`, `Admission.of_view`), and never switched.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import Quotas


@dataclass(frozen=True, slots=True, eq=False)
class QuotaDemand:
    """Demand from which the runtimes of quotas are computed, instead of the demand of the snapshot."""

    quotas: Quotas
    """The quotas of the snapshot, with other pending pods."""
    limits: dict[Hashable, Mapping[str, Amounts]] = field(default_factory=dict)
    """Reserved amounts by quota -> limits of all quotas with them; a cache of `Admission`."""


@dataclass(frozen=True, slots=True)
class View:
    """What counts as used when one question is answered. The fields are independent of each other."""

    net: bool = False
    """True: nominated pods count less the capacity that terminating pods free on their node or in their quota."""
    without_terminating: bool = False
    """True: for runtimes, terminating pods and pods that the draft has evicted count as gone (quota-fairness.md 4)."""
    placed: bool = False
    """True: for runtimes, placements of the round count. Without `quota.guaranteeUsage` only in the built-in quotas."""
    demand: QuotaDemand | None = None
    """Demand for the runtimes; None for the demand of the snapshot."""


PLAIN = View()
"""View for a unit that starts now."""
AFTER_TERMINATION = View(without_terminating=True)
"""View for a unit that starts once terminating pods, and pods that the draft has evicted, are gone."""
STARTED = View(without_terminating=True, placed=True)
"""View for a unit that starts once terminating and evicted pods are gone, and after the units that this round has
placed."""
PREEMPTOR = View(net=True, without_terminating=True, placed=True)
"""View for a preemptor, used to choose victims. A terminating pod and the pod nominated to its node count once. Quotas
have the limits that they will have after the evictions, so that no pod is evicted for a unit that admission would then
reject."""
