"""Quotas that use more than their runtime for too long give back, before anybody is planned.

Source: quota-fairness.md 5. From the least important unit on until the use is within the
runtime; then, from the most important of these, each that fits again is kept. Budgets forbid, protected pods stay.
What pods hold that are ending counts as given back: else every round until they are gone would take more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from koordpy.api.quantity import quantity_text
from koordpy.cluster.resources import Amounts
from koordpy.planning.figures import Figures
from koordpy.planning.plan import RejectedPlan
from koordpy.planning.quota.runtime import overdue
from koordpy.planning.units import Groups, Unit
from koordpy.planning.vain_demand import Reaches, startless, without
from koordpy.planning.verify.leaving import QUOTA, Round, Taken, check_given_back, rejection
from koordpy.planning.victim_selection.budgets import violations
from koordpy.planning.victim_selection.choice import Multiple
from koordpy.planning.victim_selection.units import UnitKind, VictimUnit
from koordpy.planning.victims.candidates import multiples_of
from koordpy.planning.victims.pool import Pool

Ending = tuple[Sequence[str], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A unit that goes for its quota's runtime."""

    unit: VictimUnit
    text: str


def give_back(pool: Pool, groups: Groups, figures: Figures) -> tuple[list[GivenBack], list[RejectedPlan]]:
    """What overdue quotas give back, which leaves the draft, and what the independent check refuses of it.

    Nothing for units that do not start in any case. What is on some nodes goes only as far as the quota is above the
    runtime that it has beside those that could use these nodes: else it would be lent there again (`queue/lending.py`).
    """
    draft, admission = figures.draft, figures.admission
    quotas, now = figures.snapshot.quotas, figures.snapshot.now
    ending = [(quotas.tree.path(quotas.quota_of(pod)), pod.requests) for pod in figures.promises.ending]
    out: list[GivenBack] = []
    rejected: list[RejectedPlan] = []
    due = overdue(quotas, admission.figures, figures.config.quota, now=now)
    waiting = groups.units() if due else []
    refused = {unit.id for unit in startless(waiting, groups, figures)}
    reaches = Reaches(figures)
    for name in due:
        held = _inside(pool, figures, name)
        at_nodes = {i: [node for node, _ in pool.free_of(i)] for i in held}
        own = [node for nodes in at_nodes.values() for node in nodes]
        able = [unit for unit in waiting if unit.id not in refused and reaches.of(unit)[own].any()]
        runtime = _Runtime(name, waiting, figures, ending)
        limit = runtime.beside({unit.id for unit in able})
        over = runtime.exceeded(limit)
        spans = [(unit.id, reaches.of(unit)) for unit in able]
        overs: dict[frozenset[str], Amounts] = {}
        over_of: dict[int, Amounts] = {}
        for i in held if over else ():
            # what stands where few of them could go is given back for these few alone
            asking = frozenset(one for one, nodes in spans if nodes[at_nodes[i]].any())
            if asking not in overs:
                overs[asking] = runtime.exceeded(runtime.beside(asking))
            over_of[i] = overs[asking]
        taken = _least(pool, figures, held, over_of)
        at = Round(groups, figures, None, [(one.budget, one.allowed) for one in pool.budgets])
        going = [Taken(pool.units[i].pods, QUOTA) for i in taken]
        if faults := check_given_back(name, limit, going, at):
            rejected.append(rejection(f"quota {name}", faults, going))
            continue
        resource = min(over, default="")
        for i in taken:
            uses = quantity_text(resource, draft.quotas.used(name, resource))
            text = (
                f"Reclaimed: quota {name} uses {uses} of runtime {quantity_text(resource, limit[resource])} {resource}"
            )
            out.append(GivenBack(pool.units[i], text))
        for one in taken:
            for pod in pool.units[one].pods:
                draft.evict(pod)
        if taken:
            pool.evicted([pool.units[i] for i in taken])
    return out, rejected


class _Runtime:
    """What a quota's use is held against."""

    def __init__(self, name: str, waiting: Sequence[Unit], figures: Figures, ending: Sequence[Ending]) -> None:
        """ending: quotas from the top down to a pod's, and its requests, of pods that are ending."""
        self._name, self._waiting, self._figures, self._ending = name, waiting, figures, ending

    def beside(self, asking: Collection[str]) -> Amounts:
        """The runtime where of all units that wait only these ask."""
        admission, quotas = self._figures.admission, self._figures.snapshot.quotas
        others = [unit for unit in self._waiting if unit.id not in asking]
        with admission.among(without(others, quotas, {self._name})):
            return dict(admission.limits[self._name])

    def exceeded(self, limit: Amounts) -> Amounts:
        """By how much the use is above a limit, where it is."""
        use, name = self._figures.draft.quotas, self._name
        leaving = {r: sum(asked.get(r, 0) for path, asked in self._ending if name in path) for r in limit}
        return {r: amount for r, most in limit.items() if (amount := use.used(name, r) - leaving[r] - most) > 0}


def _least(pool: Pool, figures: Figures, inside: Mapping[int, Amounts], over_of: Mapping[int, Amounts]) -> list[int]:
    """Positions of the units to take. inside: unit -> what it holds; over_of: unit -> what must go before it stays."""
    held = {i: inside[i] for i, over in over_of.items() if any(inside[i].get(r) for r in over)}
    order = sorted(held, key=lambda i: pool.ranks[i])
    budgets = pool.budgets
    own = {i: [i] for i in held}
    groups = {unit.group: pool.groups.unit(unit.gang) for i in held if (unit := pool.units[i]).gang is not None}
    multiples = [one for group in groups.values() for one in multiples_of(group, pool, figures, own)]

    def stays(i: int, some: list[int]) -> bool:
        return all(sum(held[k].get(r, 0) for k in some) >= amount for r, amount in over_of[i].items())

    taken: list[int] = []
    for i in order:
        if stays(i, taken) and not any(i in dict(one.terms) for one in _uneven(multiples, taken)):
            continue
        trial = _with(pool, taken, i)
        if trial and not violations(budgets, [pod for k in trial for pod in pool.units[k].pods]):
            taken = trial
    while uneven := _uneven(multiples, taken):
        taken = [k for k in taken if k not in dict(uneven[0].terms)]
    left = [i for i in order if i not in taken and stays(i, taken)]
    for i in sorted(taken, key=lambda i: -pool.ranks[i]):
        rest = [k for k in taken if k != i]
        if all(stays(k, rest) for k in (*left, i)) and not _uneven(multiples, rest):
            taken = rest
            left.append(i)
    return taken


def _uneven(multiples: Sequence[Multiple], taken: Collection[int]) -> list[Multiple]:
    """Those that some units break."""
    out = []
    for one in multiples:
        gone = [pods for i, pods in one.terms if i in taken]
        if gone and (one.have - sum(gone)) % one.k:
            out.append(one)
    return out


def _with(pool: Pool, taken: list[int], i: int) -> list[int]:
    """What is taken with one unit more; empty where its gang goes whole already, or may not lose as much."""
    unit = pool.units[i]
    if unit.kind is UnitKind.CORE:
        return [*(k for k in taken if pool.units[k].group != unit.group), i]
    if unit.kind is UnitKind.PLAIN:
        return [*taken, i]
    if any(pool.units[k].group == unit.group and pool.units[k].kind is UnitKind.CORE for k in taken):
        return []
    if unit.kind is UnitKind.BROKEN:
        return [*taken, i]
    for lending in pool.lendings.get(unit.group, ()):
        own = [pool.at(one) for one in lending.surplus]
        if i in own and sum(k in own for k in taken) >= lending.most:
            return []
    return [*taken, i]


def _inside(pool: Pool, figures: Figures, name: str) -> dict[int, Amounts]:
    """Unit -> what it holds in a quota and below it; units of our own schedulers, wholly inside."""
    tree = figures.snapshot.quotas.tree
    out: dict[int, Amounts] = {}
    for i, alive in enumerate(pool.alive):
        if not alive or pool.foreign(i):
            continue
        leaves = pool.leaves(i)
        if all(name in tree.path(leaf) for leaf in leaves):
            held: Amounts = {}
            for amounts in leaves.values():
                for resource, amount in amounts.items():
                    held[resource] = held.get(resource, 0) + amount
            out[i] = held
    return out
