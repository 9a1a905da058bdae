# SPDX-License-Identifier: Apache-2.0
"""Fair shares of one resource for queues in a tree: exact weighted max-min fairness, and KAI-Scheduler's formula.

Each queue first gets its guaranteed quota, as far as it requests that much. The rest is shared out by weight among the
queues that request more, and no queue gets more than it requests (water filling). In both steps, queues of higher
priority come first (docs/rules/quota-fairness.md 3). Numbers are exact: integers over a common denominator inside this
module, int or Fraction outside; no float is used. Callers list queues by age, the oldest first, and shares are returned
in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

Rational = int | Fraction
"""An exact number."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Demand and settings of one queue for one resource. All amounts have the same unit."""

    request: Rational = 0
    """Allocated plus pending amount. Ignored for a queue with children, which requests what its children can use."""
    quota: Rational | None = 0
    """Guaranteed amount. None: the whole amount that the queue and its siblings share."""
    limit: Rational | None = None
    """Maximum share; None for no limit."""
    weight: Rational = 1
    """Weight for the amount beyond the guarantees."""
    priority: int = 100
    """Queues of higher priority are served first. In a cluster all queues have 100, because no setting changes it."""
    usage: Rational = 0
    """Past usage as a part of the cluster, 0 to 1. In a cluster it is always 0, because past usage is not recorded."""
    parent: int = -1
    """Position of the parent in the list of claims; -1 at the top."""


class _QueueTree:
    """The tree of queues, and the maximum amount that each queue can use (`caps`).

    The maximum is its request, at most `limit`. For a queue with children, the sum of the children's maxima replaces
    the request.
    """

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.claims = claims
        self.children: dict[int, list[int]] = {}
        for i, claim in enumerate(claims):
            self.children.setdefault(claim.parent, []).append(i)
        children, caps = self.children, [claim.request for claim in claims]
        for i in children:
            if i >= 0:
                caps[i] = 0
        downwards = list(children.get(-1, ()))
        for i in downwards:
            if i in children:
                downwards += children[i]
        for i in reversed(downwards):
            claim, cap = claims[i], caps[i]
            if claim.limit is not None and claim.limit < cap:
                cap = caps[i] = claim.limit
            if claim.parent >= 0:
                caps[claim.parent] += cap
        self.downwards, self.caps = downwards, caps

    def groups(self) -> list[tuple[int, list[int]]]:
        """Returns (position of a parent or -1, positions of its children) from the top down."""
        return [(i, self.children[i]) for i in (-1, *self.downwards) if i in self.children]

    def share_out(
        self, total: Rational, siblings: Callable[[Rational, list[int]], Sequence[Rational]]
    ) -> list[Rational]:
        """Returns the share of each queue.

        siblings: function from (amount, positions of siblings) to their shares. It is called from the top down. The
        amount is the total for the top queues, and the parent's share for others.
        """
        shares: list[Rational] = [0] * len(self.claims)
        for parent, group in self.groups():
            for i, share in zip(group, siblings(total if parent < 0 else shares[parent], group), strict=True):
                shares[i] = share
        return shares

    def buckets(self, group: list[int]) -> list[list[int]]:
        """Returns the siblings of a group by priority, from high to low: lists of positions within `group`."""
        out: dict[int, list[int]] = {}
        for at, i in enumerate(group):
            out.setdefault(self.claims[i].priority, []).append(at)
        return [out[priority] for priority in sorted(out, reverse=True)]


def exact_and_whole_shares(
    total: Rational, claims: Sequence[Claim], *, k: Rational = 0, unit: Rational = 1
) -> tuple[list[Rational], list[Rational]]:
    """Returns (unrounded shares, shares in multiples of `unit`) by exact weighted max-min fairness.

    Children share out their parent's share. Rounding goes from the top down: each queue gets its share rounded down,
    then the queues with the largest remainders get one unit more. Ties go to the smaller past usage, then to the older
    queue. A queue with children gets the sum of its children. k: factor by which past usage changes weights; 0 for no
    effect.
    """
    tree = _QueueTree(claims)
    shares = tree.share_out(total, lambda amount, group: _exact_siblings(amount, tree, group, k))
    return shares, _whole_shares(tree, shares, unit)


def _exact_siblings(total: Rational, tree: _QueueTree, group: list[int], k: Rational) -> list[Rational]:
    """Returns unrounded shares of siblings: first guarantees, then the rest by weight; in both steps by descending
    priority."""
    # all amounts as integers: multiplied by the common denominator (`scale`)
    claims = [tree.claims[i] for i in group]
    quotas = [total if claim.quota is None else claim.quota for claim in claims]
    caps = [tree.caps[i] for i in group]
    scale = _scale((total,), quotas, caps)
    rest = int(total * scale)
    wanted, most = [int(x * scale) for x in quotas], [int(x * scale) for x in caps]
    base = [min(quota, cap) for quota, cap in zip(wanted, most, strict=True)]
    shares: list[Rational] = [0] * len(group)
    buckets = tree.buckets(group)
    # guarantees; if too little is left for all quotas of one priority, it is shared in proportion to them, and nothing
    # is left for lower priorities
    for bucket in buckets:
        need = sum(base[at] for at in bucket)
        if need <= rest:
            for at in bucket:
                shares[at] = base[at]
            rest -= need
            continue
        gains, rest = _fill(rest, [base[at] for at in bucket], [wanted[at] for at in bucket])
        for at, gain in zip(bucket, gains, strict=True):
            shares[at] = gain
        return [share if scale == 1 else share * Fraction(1, scale) for share in shares]
    # the rest by weight, among queues that can use more than their guarantee; queues with weight 0 (due to past usage)
    # share what is left after that
    for bucket in buckets:
        open_ = [at for at in bucket if base[at] < most[at]]
        while rest and open_:
            weights, plain = _weights([claims[at] for at in open_], k)
            gains, rest = _fill(rest, [most[at] - base[at] for at in open_], weights)
            for at, gain in zip(open_, gains, strict=True):
                shares[at] = base[at] + gain
            if plain:
                break
            open_ = [at for at, weight in zip(open_, weights, strict=True) if not weight]
    return [share if scale == 1 else share * Fraction(1, scale) for share in shares]


def _weights(claims: Sequence[Claim], k: Rational) -> tuple[list[int], bool]:
    """Returns (weights as whole numbers, True if they are the configured weights).

    With k, a weight is max(0, w + k (w - usage)), where w is the configured weight divided by the sum of all weights.
    If all of these are 0, the configured weights apply.
    """
    plain = _whole_numbers([claim.weight for claim in claims])
    bent = _with_past_usage(claims, plain, k) if k else []
    return (_whole_numbers(bent), False) if any(bent) else (plain, True)


def _fill(rest: int, needs: list[int], weights: list[int]) -> tuple[list[Rational], int]:
    """Water filling: returns (gains, amount left), where each gain is min(need, level * weight).

    The level is equal for all queues and as high as `rest` allows. An amount is left only if all needs with a positive
    weight are met.
    """
    gains: list[Rational] = [0] * len(needs)
    able = [i for i, weight in enumerate(weights) if weight > 0 and needs[i] > 0]
    asked = sum(needs[i] for i in able)
    if asked <= rest:
        for i in able:
            gains[i] = needs[i]
        return gains, rest - asked
    total = sum(weights[i] for i in able)
    # Each pass gives the whole need to the queues for which the current level is enough, and removes them. The level
    # only rises by that, so their gain is final. Any order is correct; this one needs few passes.
    able.sort(key=lambda i: (needs[i] << 16) // weights[i])
    moved = True
    while moved:
        moved, left = False, []
        for i in able:
            if needs[i] * total <= rest * weights[i]:
                gains[i] = needs[i]
                rest -= needs[i]
                total -= weights[i]
                moved = True
            else:
                left.append(i)
        able = left
    for i in able:
        gains[i] = Fraction(rest * weights[i], total)
    return gains, 0


def _whole_shares(tree: _QueueTree, shares: Sequence[Rational], unit: Rational) -> list[Rational]:
    """Returns shares in multiples of `unit`, from the top down: rounded down, then one unit more by largest remainder.

    Siblings together get what their parent has, but at most the sum of their unrounded shares, rounded up. At the top
    they get that sum, rounded down.
    """
    claims = tree.claims
    units: list[int] = [0] * len(claims)
    for parent, group in tree.groups():
        scaled = [shares[i] / Fraction(unit) if unit != 1 else shares[i] for i in group]
        scale = _scale(scaled)
        parts = [x.numerator * (scale // x.denominator) for x in scaled]
        exact = sum(parts)
        amount = exact // scale if parent < 0 else min(units[parent], -(-exact // scale))
        floors = [part // scale for part in parts]
        rests = [part % scale for part in parts]
        missing = amount - sum(floors)
        if missing:
            order = sorted(range(len(group)), key=lambda at: (-rests[at], claims[group[at]].usage, at))
            for at in order[:missing]:
                floors[at] += 1
        for i, number in zip(group, floors, strict=True):
            units[i] = number
    for i in reversed(tree.downwards):
        if i in tree.children:
            units[i] = sum(units[j] for j in tree.children[i])
    return [number * unit for number in units]


def kai_shares(total: Rational, claims: Sequence[Claim], *, k: Rational = 0, unit: Rational = 1) -> list[Rational]:
    """Returns shares by the formula of KAI-Scheduler, for mode kai.

    Guarantees are not rounded, and neither are parts by weight that reach a queue's maximum. All other parts by weight
    are rounded down to multiples of `unit`. The amount left over is given out in units by largest remainder; the last
    unit may be smaller. So a share is a multiple of `unit` only if quotas and requests are. Unlike exact shares,
    guarantees that exceed the total are granted in full.
    """
    tree = _QueueTree(claims)
    return tree.share_out(total, lambda amount, group: _kai_siblings(amount, tree, group, k, unit))


def _kai_siblings(total: Rational, tree: _QueueTree, group: list[int], k: Rational, unit: Rational) -> list[Rational]:
    """Returns the shares of siblings by KAI-Scheduler's formula, rounded as `kai_shares` describes.

    First come the guarantees. Then, by descending priority, shares by weight, rounded down to units, are given out
    repeatedly until no queue leaves a part of its share unused. Last, units are given out by largest remainder, also by
    descending priority.
    """
    claims = [tree.claims[i] for i in group]
    quotas = [total if claim.quota is None else claim.quota for claim in claims]
    scale = _scale((total, unit), quotas, [tree.caps[i] for i in group])
    step, caps = int(unit * scale), [int(tree.caps[i] * scale) for i in group]
    shares = [min(int(quota * scale), cap) for quota, cap in zip(quotas, caps, strict=True)]
    rest = max(0, int(total * scale) - sum(shares))
    remainders: list[dict[int, int]] = []
    for bucket in tree.buckets(group):
        left: dict[int, int] = {}
        again = True
        while again and rest > 0:
            again = False
            open_ = [at for at in bucket if shares[at] < caps[at]]
            weights = _kai_weights([claims[at] for at in open_], k)
            start, whole = rest, sum(weights)
            if not whole:
                break
            left.clear()
            for at, weight in zip(open_, weights, strict=True):
                fair, need = start * weight, caps[at] - shares[at]
                if need * whole <= fair:
                    gain = need
                    again |= need * whole < fair
                else:
                    gain = fair // (whole * step) * step
                    if fair > gain * whole:
                        left[at] = fair - gain * whole
                shares[at] += gain
                rest -= gain
        remainders.append(left)
    for left in remainders:
        for at in sorted(left, key=lambda at: (-left[at], at)):
            gain = min(step, rest)
            shares[at] += gain
            rest -= gain
    return [share if scale == 1 else share * Fraction(1, scale) for share in shares]


def _kai_weights(claims: Sequence[Claim], k: Rational) -> list[int]:
    """Returns max(0, w + k (w - usage)) as whole numbers up to a common factor, where w is weight / sum of weights.

    If none is positive, all are 0: unlike in `_weights`, the configured weights do not apply then.
    """
    plain = _whole_numbers([claim.weight for claim in claims])
    return _whole_numbers(_with_past_usage(claims, plain, k)) if k else plain


def _with_past_usage(claims: Sequence[Claim], plain: list[int], k: Rational) -> list[Rational]:
    """Returns max(0, w + k (w - usage)), multiplied by the sum of the weights. plain: the configured weights."""
    total = sum(plain)
    return [max(0, w * (1 + k) - total * k * claim.usage) for w, claim in zip(plain, claims, strict=True)]


def _whole_numbers(values: Sequence[Rational]) -> list[int]:
    """Returns the values multiplied by their common denominator."""
    scale = _scale(values)
    return [int(value * scale) for value in values]


def _scale(*values: Sequence[Rational]) -> int:
    """Returns the common denominator of all values."""
    return lcm(*{value.denominator for part in values for value in part})
