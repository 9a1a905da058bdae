# SPDX-License-Identifier: Apache-2.0
"""The steps of a search for one preemptor set: for each step, the rules and the units that they allow.

A step is a mapping from rules to masks over the pool. The first step with a plan ends the search, so a step is computed
only when the steps before it have found no plan. The order (docs/rules/preemption.md 1): consolidation, reclaim by
quota, priority, consolidation if shares of tenants limit priority (5b), reclaim by fair share, all open rules together.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from koordpy.feasibility.round_state import RoundState
from koordpy.preemption.rules.rule_protocol import RuleInputs
from koordpy.preemption.rules.victim_rules import BY_NAME, Preempt, split_steps, steps
from koordpy.preemption.search.candidates import Rules
from koordpy.preemption.search.preemption_plan import SearchEnd
from koordpy.preemption.search.preemptor_sets import PreemptorSet
from koordpy.preemption.search.relocation import movable
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.preemption_names import Guard, RuleName


def free_units(preemptors: PreemptorSet, pool: Pool, round_state: RoundState) -> Mask:
    """Returns [units]: the units of the pool that may be evicted before any rule is applied.

    Left out are units that are evicted already, units of the preemptor's own GangGroup, and units of gangs with a
    member that this round has placed.
    """
    out = np.array(pool.alive, dtype=bool)
    own = {preemptors.unit.group_id} if preemptors.unit.plain is None else set[str]()
    placed = {round_state.snapshot.pods[key].gang for key in round_state.draft.placed} - {None}
    own |= {round_state.groups.unit(ref).group_id for ref in placed if ref is not None}
    if own:
        for i, unit in enumerate(pool.units):
            if unit.group and unit.group in own:
                out[i] = False
    return out


def rule_steps(rule_inputs: RuleInputs, free: Mask, ends: Sequence[SearchEnd]) -> Iterator[Rules]:
    """Yields steps 3 to 7 of docs/rules/preemption.md 1; each is computed when the caller requests it.

    ends: the reasons why the searches of earlier steps ended; the caller appends one after each step. Step 5b is left
    out if step 3 has proven that moves free too little, because 5b may move only a subset of the units of step 3.
    """
    moves = consolidation_steps(rule_inputs, free)
    yield from moves
    ruled_out = bool(moves) and ends[0].is_proven
    first, later = split_steps(steps(rule_inputs, free))
    yield from first
    if not ruled_out:
        yield from limited_steps(rule_inputs, free)
    yield from later


def consolidation_steps(rule_inputs: RuleInputs, free: Mask) -> list[Rules]:
    """Returns step 3: the units that consolidation may move.

    Empty if it is off, or if a quota refuses the preemptor.
    """
    return _moves(rule_inputs, free) if rule_inputs.config.consolidation.enabled else []


def limited_steps(rule_inputs: RuleInputs, free: Mask) -> list[Rules]:
    """Returns step 5b: moves of units of lower priority.

    Empty unless other tenants' shares limit evictions by priority.
    """
    if rule_inputs.config.preemption.across_users != "overShare" or rule_inputs.users is None:
        return []
    if not rule_inputs.users.protects_any(_preemptable(rule_inputs, free)):
        return []
    return _moves(rule_inputs, free & (rule_inputs.pool.priority < rule_inputs.priority))


def closing_reasons(rule_inputs: RuleInputs, free: Mask) -> tuple[list[str], bool]:
    """Returns (sentences for the message of the pending pod, True if shares of other tenants prevent a plan).

    The sentences say why a rule evicts nothing: the preemptor's quota would exceed its min, a unit is protected for an
    hour because it gained by an eviction, or another tenant would fall below its share.
    """
    reasons = []
    if (
        BY_NAME[RuleName.QUOTA].is_open(rule_inputs.round_state.snapshot, rule_inputs.config)
        and rule_inputs.mins.closing_reason
    ):
        reasons.append(f"{rule_inputs.mins.closing_reason}.")
    if spared := rule_inputs.mins.protected_gainer or (
        rule_inputs.fair.protected_gainer if rule_inputs.fair is not None else ""
    ):
        kind, _, name = spared.rpartition(":")
        gainer = f"{kind or 'pod'} {name}"
        reasons.append(f"reclaim: {gainer} was placed by evicting this unit, which may not evict it for an hour.")
    share = rule_inputs.users.refusal(_preemptable(rule_inputs, free)) if rule_inputs.users is not None else ""
    return [*reasons, *([f"{share}."] if share else [])], bool(share)


def _preemptable(rule_inputs: RuleInputs, free: Mask) -> Mask:
    """Returns [units] that rule `priority` would allow without the protection of users and queues."""
    rule = BY_NAME[RuleName.PRIORITY]
    if not isinstance(rule, Preempt) or not rule.is_open(rule_inputs.round_state.snapshot, rule_inputs.config):
        return np.zeros(len(free), dtype=bool)
    return rule.units_of_any_tenant(rule_inputs, free)


def _moves(rule_inputs: RuleInputs, free: Mask) -> list[Rules]:
    """Returns one step with the units that may be moved; empty if a quota refuses the preemptor.

    Moves free nothing in a quota, so they cannot help against such a refusal.
    """
    if (
        rule_inputs.round_state.admission.core_refusal(rule_inputs.unit, rule_inputs.round_state.draft.quotas)
        is not None
    ):
        return []
    eligible = rule_inputs.protection.allowed(RuleName.CONSOLIDATION, rule_inputs.pool, free)
    if Guard.ENTITLEMENT not in rule_inputs.waived:
        eligible = rule_inputs.entitlement.undisturbed(eligible)
    return [
        {
            RuleName.CONSOLIDATION: movable(
                rule_inputs.pool, eligible, rule_inputs.round_state, priority=rule_inputs.priority
            )
        }
    ]
