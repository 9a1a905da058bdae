# SPDX-License-Identifier: Apache-2.0
"""Evicts units of quotas that have used more than their runtime for too long, before any unit is planned.

Only with `quota.monitorAllQuotas`. Source: docs/rules/quota-fairness.md 5. Such a quota is called overdue.

1. `_due`: for each overdue quota, units are chosen, the least important first, until the quota is within its runtime.
   Units that turn out not to be needed for that are spared.
2. `_reprieve`: further units are spared, the most important first, if their eviction lets no pod of another quota
   start. A dry run of the queue finds this out.
3. The independent check, then the evictions.

PodDisruptionBudgets and protected pods are respected. Usage of pods in no quota that would yield to a unit is ignored
(docs/rules/quota-fairness.md 4). Otherwise the unit would be evicted, take the capacity of these pods, and be evicted
again. Capacity of terminating pods counts as given back; otherwise each round until they are gone would evict more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from koordpy.api.quantity import quantity_text
from koordpy.fairness.quota_runtime import overdue
from koordpy.fairness.tenant_entitlements import Mins, Tenant
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.infeasibility.unsatisfiable_demand import Reaches, demand_without, units_that_cannot_start
from koordpy.plan.limits import GIVE_BACK_TRIALS
from koordpy.planner.queue.starters import starters
from koordpy.planner.round_context import RoundContext
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.yielding_pods import Freed, YieldingPods
from koordpy.preemption.search.candidates import multiples_of
from koordpy.preemption.search.victim_pool import Pool
from koordpy.preemption.selection.disruption_budgets import forbid
from koordpy.preemption.selection.reprieve import still_needed
from koordpy.preemption.selection.victim_choice import Multiple, uneven
from koordpy.preemption.selection.victim_units import UnitKind
from koordpy.report.eviction_words import given_back_evictions
from koordpy.verify.eviction_check import QUOTA, EvictedUnit, Round, check_given_back, rejection

_Unit = tuple[int, int]
"""(position of an overdue quota in the list of `_Due`, position in the pool of a unit that it would give back)."""


@dataclass(frozen=True, slots=True)
class _Due:
    """The units that one overdue quota would give back. A unit is its position in the pool."""

    name: str
    limit: Amounts
    """Resource -> runtime of the quota."""
    over: Amounts
    """Resource -> usage of the quota above `limit`; empty if usage is within the limit."""
    floors: Mapping[int, Amounts]
    """Unit -> usage of the quota above the runtime that it has without demand of other units. At least this amount must
    be given back, whatever pods are pending."""
    victims: list[int]
    """Units that the quota gives back, before the reprieve."""
    usage: Mapping[int, Amounts]
    """Unit -> amounts that it uses in the quota."""
    multiples: Sequence[Multiple]
    """Conditions of podCountMultiple for the gangs in the quota."""


def give_back_overuse(context: RoundContext) -> None:
    """Evicts the units that overdue quotas give back, except units that the independent check rejects.

    Three rules limit the evictions. Demand of units that cannot start anyway is ignored. For each victim unit, the
    runtime is computed with the demand of only those pending units that could use its nodes; otherwise capacity would
    be freed that they cannot use, and `lend_runtimes` would lend it to the quota again. A victim unit is evicted only
    if this lets pods of other quotas start.
    """
    round_state, pool = context.round_state, context.preemptor.pool
    draft = round_state.draft
    with draft.trial():
        due = _due(pool, round_state)
    for one, taken in zip(due, _reprieve(pool, round_state, due), strict=True):
        at = Round(round_state, None, pool.budgets)
        going = [EvictedUnit(pool.units[i].pods, QUOTA) for i in taken]
        if faults := check_given_back(one.name, one.limit, going, at):
            context.rejected.append(rejection(f"quota {one.name}", faults, going))
            continue
        resource = min(one.over, default="")
        for i in taken:
            uses = quantity_text(resource, draft.quotas.used(one.name, resource))
            limit = quantity_text(resource, one.limit[resource])
            text = f"Reclaimed: quota {one.name} uses {uses} of runtime {limit} {resource}"
            context.evictions += given_back_evictions(pool.units[i].pods, text)
        draft.evict_all(pod for unit in going for pod in unit.pods)
        if taken:
            pool.evicted([pool.units[i] for i in taken])


def _due(pool: Pool, round_state: RoundState) -> list[_Due]:
    """Returns the units that each overdue quota would give back, and evicts them from the draft.

    Demand of units that cannot start anyway (`units_that_cannot_start`) does not count.
    """
    admission, quotas = round_state.admission, round_state.snapshot.quotas
    names = overdue(quotas, admission.quota_amounts, round_state.config.quota, now=round_state.snapshot.now)
    waiting = round_state.groups.units() if names else []
    refused = {unit.id for unit in units_that_cannot_start(waiting, round_state)}
    reaches = Reaches(round_state)
    outside = YieldingPods(pool, round_state)
    out: list[_Due] = []
    for name in names:
        gone = {i for one in out for i in one.victims}
        # if a gang gives back for one quota, its victim units are different afterwards, so it is left out for later
        # quotas
        gangs = {pool.units[i].group for i in gone if pool.units[i].kind is not UnitKind.PLAIN}
        usage = {
            i: amounts
            for i, amounts in _units_inside(pool, round_state, name).items()
            if i not in gone and (pool.units[i].kind is UnitKind.PLAIN or pool.units[i].group not in gangs)
        }
        at_nodes = {i: [node for node, _ in pool.free_of(i)] for i in usage}
        own = [node for nodes in at_nodes.values() for node in nodes]
        able = [unit for unit in waiting if unit.id not in refused and reaches.of(unit)[own].any()]
        runtime = partial(_runtime, name, waiting, round_state)
        limit = runtime({unit.id for unit in able})
        over = _excess(name, limit, round_state)
        spans = [(unit.id, reaches.of(unit)) for unit in able]
        overs: dict[tuple[frozenset[str], Freed], Amounts] = {}
        over_of: dict[int, Amounts] = {}
        floors: dict[int, Amounts] = {}
        for i in usage if over else ():
            # only the pending units that could use the nodes of unit i have demand (`asking`)
            asking = frozenset(one for one, nodes in spans if nodes[at_nodes[i]].any())
            freed = outside.to(i)
            for some in (asking, frozenset[str]()):
                if (some, freed) not in overs:
                    overs[some, freed] = _excess(name, runtime(some, dict(freed)), round_state)
            over_of[i], floors[i] = overs[asking, freed], overs[frozenset(), freed]
        multiples = _multiples(pool, round_state, usage)
        taken = _select_units(pool, usage, over_of, multiples)
        out.append(_Due(name, limit, over, floors, taken, usage, multiples))
        for i in taken:
            round_state.draft.evict_all(pool.units[i].pods)
    return out


def _reprieve(pool: Pool, round_state: RoundState, due: Sequence[_Due]) -> list[list[int]]:
    """Returns for each quota the units that are still evicted after a reprieve; the most important are spared first.

    A unit is spared if its eviction lets no pod of another quota start. The draft is the same afterwards. After
    `GIVE_BACK_TRIALS` dry runs of the queue, no further unit is spared.
    """
    draft, quotas, pods = round_state.draft, round_state.snapshot.quotas, round_state.snapshot.pods
    ending = round_state.reservations.terminating

    def started(gone: Collection[_Unit]) -> dict[str, Sequence[str]]:
        """Returns the pods in quotas that would start if the given units were evicted: pod key -> its quotas."""
        with draft.trial():
            draft.evict_all([*ending, *(pod for _, i in gone for pod in pool.units[i].pods)])
            paths = {key: quotas.tree.path(quotas.quota_of(pods[key])) for key in starters(round_state)}
        return {key: path for key, path in paths.items() if path}

    every = sorted(((k, i) for k, one in enumerate(due) for i in one.victims), key=lambda one: -pool.ranks[one[1]])
    full = started(every) if every else {}
    trials = 0

    def may_stay(part: Sequence[_Unit], rest: Sequence[_Unit]) -> bool:
        """Returns True if the units of `part` can be spared while the units of `rest` are given back."""
        nonlocal trials
        for k in {k for k, _ in part}:
            one, kept = due[k], [i for other, i in rest if other == k]
            floors = (one.floors[i] for other, i in part if other == k)
            if any(sum(one.usage[i].get(r, 0) for i in kept) < n for floor in floors for r, n in floor.items()):
                return False
            if uneven(one.multiples, kept):
                return False
        trials += 1
        if trials > GIVE_BACK_TRIALS:
            return False
        now = started(rest)
        return not any(due[k].name not in full[key] for key in full.keys() - now.keys() for k, _ in part)

    needed = still_needed(every, may_stay)
    return [[i for k, i in needed if k == number] for number in range(len(due))]


def _runtime(
    name: str,
    waiting: Sequence[Unit],
    round_state: RoundState,
    asking: Collection[str],
    freed: Mapping[str, int] = MappingProxyType({}),
) -> Amounts:
    """Returns the runtime of a quota, by resource, computed with demand of the units of `asking` only.

    waiting: all pending units. asking: ids of units with demand. freed: resource -> amount by which usage of pods in no
    quota is reduced.
    """
    admission, quotas = round_state.admission, round_state.snapshot.quotas
    others = [unit for unit in waiting if unit.id not in asking]
    view = replace(round_state.view, demand=demand_without(others, quotas, {name}))
    return dict(admission.of_view(view).limits_after(freed)[name])


def _excess(name: str, limit: Amounts, round_state: RoundState) -> Amounts:
    """Returns resource -> usage of a quota above a limit; empty if usage is within the limit.

    Terminating pods do not count.
    """
    quotas, use = round_state.snapshot.quotas, round_state.draft.quotas
    ending = [
        pod.charged for pod in round_state.reservations.terminating if name in quotas.tree.path(quotas.quota_of(pod))
    ]
    leaving = {r: sum(asked.get(r, 0) for asked in ending) for r in limit}
    return {r: amount for r, most in limit.items() if (amount := use.used(name, r) - leaving[r] - most) > 0}


def _multiples(pool: Pool, round_state: RoundState, usage: Collection[int]) -> list[Multiple]:
    """Returns the conditions of podCountMultiple for the gangs of the given units: which of the units may be evicted
    together."""
    own = {i: [i] for i in usage}
    groups = {unit.group: round_state.groups.unit(unit.gang) for i in usage if (unit := pool.units[i]).gang is not None}
    return [one for group in groups.values() for one in multiples_of(group, pool, round_state, own)]


def _select_units(
    pool: Pool, inside: Mapping[int, Amounts], over_of: Mapping[int, Amounts], multiples: Sequence[Multiple]
) -> list[int]:
    """Returns the pool positions of the units to evict.

    inside: unit -> amounts that it uses in the quota. over_of: unit -> amounts that must be evicted in total; if they
    are, the unit may stay.
    """
    usage = {i: inside[i] for i, over in over_of.items() if any(inside[i].get(r) for r in over)}
    order = sorted(usage, key=lambda i: pool.ranks[i])
    budgets = pool.budgets

    def stays(i: int, some: list[int]) -> bool:
        """Returns True if evicting the units `some` is enough for unit `i` to stay."""
        return all(sum(usage[k].get(r, 0) for k in some) >= amount for r, amount in over_of[i].items())

    # the least important first; a unit that may stay is skipped, unless its eviction may complete a multiple
    taken: list[int] = []
    for i in order:
        if stays(i, taken) and not any(i in dict(one.terms) for one in uneven(multiples, taken)):
            continue
        trial = _with_unit(pool, taken, i)
        if trial and not forbid(budgets, [pod for k in trial for pod in pool.units[k].pods]):
            taken = trial
    # units that are evicted without completing a multiple are spared again
    while broken := uneven(multiples, taken):
        taken = [k for k in taken if k not in dict(broken[0].terms)]
    # a reprieve, the most important first: units chosen later may have made units chosen earlier unnecessary
    left = [i for i in order if i not in taken and stays(i, taken)]
    for i in sorted(taken, key=lambda i: -pool.ranks[i]):
        rest = [k for k in taken if k != i]
        if all(stays(k, rest) for k in (*left, i)) and not uneven(multiples, rest):
            taken = rest
            left.append(i)
    return taken


def _with_unit(pool: Pool, taken: list[int], i: int) -> list[int]:
    """Returns `taken` with one more unit; an empty list if the unit may not be added.

    A unit may not be added if the core of its gang is in `taken`, or if the gang has no more surplus to give. A core
    replaces all other units of its GangGroup.
    """
    unit = pool.units[i]
    if unit.kind is UnitKind.CORE:
        return [*(k for k in taken if pool.units[k].group != unit.group), i]
    if unit.kind is UnitKind.PLAIN:
        return [*taken, i]
    if any(pool.units[k].group == unit.group and pool.units[k].kind is UnitKind.CORE for k in taken):
        return []
    if unit.kind is UnitKind.BROKEN:
        return [*taken, i]
    for lending in pool.gang_limits.get(unit.group, ()):
        own = [pool.position_of(one) for one in lending.surplus]
        if i in own and sum(k in own for k in taken) >= lending.most:
            return []
    return [*taken, i]


def _units_inside(pool: Pool, round_state: RoundState, name: str) -> dict[int, Amounts]:
    """Returns unit -> amounts that it uses in a quota and below it, for the units with all pods inside the quota.

    Units with pods of other schedulers are left out.
    """
    tenant_usage, tenant = pool.tenant_usage(Mins(round_state.snapshot.quotas)), Tenant(name)
    out: dict[int, Amounts] = {}
    for i, alive in enumerate(pool.alive):
        if not alive or pool.foreign(i):
            continue
        if all(tenant in path for path in tenant_usage.usage_of(i)):
            out[i] = {}
            for amounts in tenant_usage.usage_of(i).values():
                add_amounts(out[i], amounts)
    return out
