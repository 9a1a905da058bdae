"""A second turn for jobs that a runtime refuses, where it keeps room for jobs that cannot use it.

Two jobs that each ask for more than what is left beside the other would keep each other waiting in an empty cluster,
and one that no node could hold, or that waits for a full pool of nodes, would keep room for ever where it never can be.
So at the end of a round each job that a runtime refuses is asked again, in queue order: requests of jobs that do not
start however much room they are left count no longer, but for those of its own quotas. Where it is refused again, those
count no longer either that cannot use all nodes that it could, and what they can use is closed to it. It is placed in
free room; nobody is evicted for it. Own decision: Koordinator leaves it waiting.
"""

from collections.abc import Callable, Hashable

from koordpy.planning.attempt import Tried, unit_shape
from koordpy.planning.figures import Figures
from koordpy.planning.queue.kept import KeptRoom, closed
from koordpy.planning.quota.admission import Asking
from koordpy.planning.units import Unit
from koordpy.planning.vain_demand import Reaches, startless, without


def lend(tried: list[Tried], figures: Figures, attempt: Callable[[Unit], Tried]) -> None:
    """Gives the units that a runtime refused their second turn. tried: in the order of their turns, which it stays.

    attempt: places a unit in free room.
    """
    second = [one for one in tried if one.by_runtime]
    if not second:
        return
    got = {one.unit.id for one in tried if one.nodes or one.awaits}
    loans = _Loans([unit for unit in figures.groups.units() if unit.id not in got], figures, attempt)
    promised = _promised(tried, figures)
    failed: set[Hashable] = set()
    done: dict[str, Tried] = {}
    for one in second:
        unit, shape = one.unit, unit_shape(one.unit, figures)
        if shape is not None and shape in failed:
            continue
        refusals = figures.admission.core_refusals(unit, figures.draft.quotas)
        if not promised.isdisjoint(refusal.quota for refusal in refusals):
            continue  # what is promised there would be above the runtime, and somebody evicted for it anew
        outcome = loans.attempt(unit)
        if outcome.nodes or outcome.deferred:
            done[unit.id] = outcome
        else:
            failed.add(shape)
    if done:
        tried[:] = [*(one for one in tried if one.unit.id not in done), *done.values()]


def _promised(tried: list[Tried], figures: Figures) -> frozenset[str]:
    """Quotas that pods are in or below whose room is being made, or kept: they start in a later round."""
    pods, draft, quotas = figures.snapshot.pods, figures.draft, figures.snapshot.quotas
    keys = {key for one in tried if one.victims for key in one.nodes or ()}
    keys |= {key for key in figures.promises.kept if key not in draft.placed}
    return frozenset(name for key in keys for name in quotas.tree.path(quotas.quota_of(pods[key])))


class _Loans:
    """What the second turns of a round lend."""

    def __init__(self, waiting: list[Unit], figures: Figures, attempt: Callable[[Unit], Tried]) -> None:
        vain = startless(waiting, figures)
        self._figures, self._attempt, self._reaches = figures, attempt, Reaches(figures)
        self._vain = {unit.id: unit for unit in vain}
        quotas = figures.snapshot.quotas
        self._able = {
            unit.id: (unit, frozenset(name for pod in unit.pending for name in quotas.tree.path(quotas.quota_of(pod))))
            for unit in waiting
            if unit.id not in self._vain
        }
        """The others that wait, with the quotas that they are in or below."""
        self._views: dict[Hashable, Asking] = {}

    def attempt(self, unit: Unit) -> Tried:
        """Tries a unit without what is asked for in vain, then on the nodes alone that others could not use."""
        figures, quotas = self._figures, self._figures.snapshot.quotas
        own = frozenset(quotas.quota_of(pod) for pod in unit.pending)
        with figures.admission.among(self._view(own, [])):
            outcome = self._attempt(unit)
        if outcome.by_runtime and (apart := self._apart(unit, own)):
            kept = KeptRoom(figures)
            for one in apart:
                kept.keep(one)
            with figures.admission.among(self._view(own, apart)):
                if figures.admission.refusal(unit, figures.draft.quotas) is None:
                    with closed([kept]):
                        outcome = self._attempt(unit)
        if outcome.nodes:
            self._vain.pop(unit.id, None)
            self._able.pop(unit.id, None)
            self._views.clear()
        return outcome

    def _apart(self, unit: Unit, own: frozenset[str]) -> list[Unit]:
        """Units of other quotas that cannot use some node that this one could."""
        reach = self._reaches.of(unit)
        others = [other for other, paths in self._able.values() if not paths & own]
        return [other for other in others if (reach & ~self._reaches.of(other)).any()]

    def _view(self, own: frozenset[str], apart: list[Unit]) -> Asking:
        key = own, frozenset(unit.id for unit in apart)
        if key not in self._views:
            quotas = self._figures.snapshot.quotas
            self._views[key] = without([*self._vain.values(), *apart], quotas, own)
        return self._views[key]
