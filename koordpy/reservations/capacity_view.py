"""The view in which figures and admission limits answer: what counts as used, and which demand shares runtimes.

A view is fixed when figures or limits are made (`RoundState.of_view`, `Admission.of_view`), and never switched.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import Quotas


@dataclass(frozen=True, slots=True, eq=False)
class QuotaDemand:
    """Requests that the runtimes of quotas follow from, instead of those of the snapshot."""

    quotas: Quotas
    limits: dict[Hashable, Mapping[str, Amounts]] = field(default_factory=dict)
    """Reserved amounts by quota -> limits of all quotas beside them; a cache of `Admission`."""


@dataclass(frozen=True, slots=True)
class View:
    """What counts as used in the answer to one question. Each field is independent of the others."""

    net: bool = False
    """Nominated pods count less what is terminating on their node or in their quota, which they take first."""
    relief: bool = False
    """In runtimes, pods that the draft has evicted and terminating pods count as gone (quota-fairness.md 4)."""
    placed: bool = False
    """In runtimes, what the round has placed counts: in the built-in quotas, with guaranteeUsage in all quotas."""
    demand: QuotaDemand | None = None
    """None for that of the snapshot."""


PLAIN = View()
"""To start a unit now."""
RELIEVED = View(relief=True)
"""To start a unit once terminating pods, and pods that the draft has evicted, are gone."""
STARTED = View(relief=True, placed=True)
"""To start a unit after that, and after the units that this round has placed."""
PREEMPTOR = View(net=True, relief=True, placed=True)
"""To select victims. A terminating pod and the pod nominated to its place count once, and a unit that admission would
reject after the evictions gets no victims."""
