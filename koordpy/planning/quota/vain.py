"""Requests that stand for nobody who could start: those of units that a quota refuses.

A runtime leaves room for what waits in other quotas (quota-fairness.md 4), also for a job that asks for more
than its own runtime and so does not start.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace

from koordpy.cluster.belonging import Owner
from koordpy.cluster.quotas import Quotas
from koordpy.cluster.resources import Amounts
from koordpy.planning.figures import Figures
from koordpy.planning.quota.admission import Asking
from koordpy.planning.units import Unit


def refused_units(units: Iterable[Unit], figures: Figures) -> list[Unit]:
    """Units that a quota keeps from starting on the draft as it is."""
    admission, use = figures.admission, figures.draft.quotas
    known: dict[Hashable, bool] = {}
    out = []
    for unit in units:
        key: Hashable = unit.id
        if unit.plain is not None:
            key = unit.plain.owner, *sorted(unit.plain.requests.items())
        if key not in known:
            known[key] = admission.refusal(unit, use) is not None
        if known[key]:
            out.append(unit)
    return out


def without(refused: Iterable[Unit], quotas: Quotas, names: Collection[str]) -> Asking:
    """Requests among which refused units ask for nothing, but for those with pods in or below the quotas named."""
    waiting: dict[Owner, Amounts] = {owner: dict(amounts) for owner, amounts in quotas.waiting.items()}
    for unit in refused:
        for pod in unit.pending:
            asked = waiting.get(pod.owner)
            if asked is not None and not any(name in names for name in quotas.tree.path(quotas.quota_of(pod))):
                for resource, amount in pod.requests.items():
                    asked[resource] = asked.get(resource, 0) - amount
    return Asking(replace(quotas, waiting=waiting))
