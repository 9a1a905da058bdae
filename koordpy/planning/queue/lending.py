"""A second turn for jobs that a runtime refuses, where it keeps room for jobs that are refused themselves.

Two jobs that each ask for more than what is left beside the other would keep each other waiting in an empty cluster,
and one that no node could hold would keep its room for ever. So at the end of a round each job that a runtime refuses
is asked again, in queue order: requests of jobs that do not start however much room they are left count no longer, but
for those of its own quotas. It is placed in free room; nobody is evicted for it. Own decision: Koordinator leaves it
waiting.
"""

from collections.abc import Callable, Hashable

from koordpy.planning.attempt import Tried, unit_shape
from koordpy.planning.figures import Figures
from koordpy.planning.quota.admission import Asking
from koordpy.planning.quota.vain import startless, without
from koordpy.planning.units import Groups, Unit


def lend(tried: list[Tried], groups: Groups, figures: Figures, attempt: Callable[[Unit], Tried]) -> None:
    """Gives the units that a runtime refused their second turn. tried: in the order of their turns, which it stays.

    attempt: places a unit in free room.
    """
    second = [one for one in tried if _by_runtime(one)]
    if not second:
        return
    got = {one.unit.id for one in tried if one.nodes or one.awaits}
    waiting = (unit for unit in groups.units() if unit.id not in got)
    vain = {unit.id: unit for unit in startless(waiting, groups, figures)}
    admission, quotas = figures.admission, figures.snapshot.quotas
    views: dict[frozenset[str], Asking] = {}
    failed: set[Hashable] = set()
    done: dict[str, Tried] = {}
    for one in second:
        unit, shape = one.unit, unit_shape(one.unit, figures)
        if shape is not None and shape in failed:
            continue
        own = frozenset(quotas.quota_of(pod) for pod in unit.pending)
        if own not in views:
            views[own] = without(vain.values(), quotas, own)
        with admission.among(views[own]):
            outcome = attempt(unit)
        if outcome.nodes:
            vain.pop(unit.id, None)
            views.clear()
        elif not outcome.deferred:
            failed.add(shape)
        if outcome.nodes or outcome.deferred:
            done[unit.id] = outcome
    if done:
        tried[:] = [*(one for one in tried if one.unit.id not in done), *done.values()]


def _by_runtime(one: Tried) -> bool:
    refusal = one.refusal
    return refusal is not None and refusal.limit_name == "runtime" and not one.nodes and not one.awaits
