"""The view that round state and admission limits are computed in: what counts as used, and which demand shares
runtimes.

A view is fixed when round state or limits are created (`RoundState.of_view`, `Admission.of_view`), and never switched.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import Quotas


@dataclass(frozen=True, slots=True, eq=False)
class QuotaDemand:
    """Demand from which the runtimes of quotas are computed, instead of the demand of the snapshot."""

    quotas: Quotas
    limits: dict[Hashable, Mapping[str, Amounts]] = field(default_factory=dict)
    """Reserved amounts by quota -> limits of all quotas with them; a cache of `Admission`."""


@dataclass(frozen=True, slots=True)
class View:
    """What counts as used when one question is answered. Each field is independent of the others."""

    net: bool = False
    """Nominated pods count less the capacity that terminating pods free on their node or in their quota."""
    relief: bool = False
    """In runtimes, pods that the draft has evicted and terminating pods count as gone (quota-fairness.md 4)."""
    placed: bool = False
    """In runtimes, placements of the round count: in the built-in quotas, with guaranteeUsage in all quotas."""
    demand: QuotaDemand | None = None
    """Demand for the runtimes; None for the demand of the snapshot."""


PLAIN = View()
"""View for a unit that starts now."""
RELIEVED = View(relief=True)
"""View for a unit that starts once terminating pods, and pods that the draft has evicted, are gone."""
STARTED = View(relief=True, placed=True)
"""View for a unit that starts after that, and after the units that this round has placed."""
PREEMPTOR = View(net=True, relief=True, placed=True)
"""View for the selection of victims. A terminating pod and the pod nominated to its node count once. A unit that
admission would reject after the evictions gets no victims."""
