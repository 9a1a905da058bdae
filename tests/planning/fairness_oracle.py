# SPDX-License-Identifier: Apache-2.0
"""quota-fairness.md 2 to 4 read sentence by sentence, slowly and with fractions: what the planner is held to.

Shares (`shares`), runtimes of one resource (`runtimes`), the order of plain pods in the modes exact and kai (`order`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction as F
from functools import cmp_to_key
from typing import Any

from koordpy.api.natural_order import natural_key
from koordpy.fairness.fair_shares import Claim

INFINITE = F(10**12)


# -- section 3 --------------------------------------------------------------------------------------------------------


def shares(mode: str, total: Any, claims: Sequence[Claim], *, k: Any = 0, unit: Any = 1) -> list[F]:
    """Shares of claims in the order of age: mode exact unrounded, `whole` the same in whole units, kai as it gives."""
    below: dict[int, list[int]] = {}
    for i, claim in enumerate(claims):
        below.setdefault(claim.parent, []).append(i)
    cap: dict[int, F] = {}

    def ask(i: int) -> F:
        request = sum((ask(j) for j in below[i]), F(0)) if i in below else F(claims[i].request)
        limit = claims[i].limit
        cap[i] = request if limit is None else min(request, F(limit))
        return cap[i]

    for i in below.get(-1, ()):
        ask(i)
    out = [F(0)] * len(claims)

    def give(parent: int, amount: F) -> None:
        group = below.get(parent, [])
        for i, share in (_kai if mode == "kai" else _exact)(group, amount, claims, cap, F(k), F(unit)).items():
            out[i] = share
        for i in group:
            give(i, out[i])

    def whole(parent: int, units: int) -> int:
        group = below.get(parent, [])
        parts = {i: int(out[i] / unit) for i in group}
        rests = {i: out[i] / unit - parts[i] for i in group}
        left = units - sum(parts.values())
        for i in sorted(group, key=lambda i: (-rests[i], claims[i].usage, i)):
            if left > 0 and rests[i]:
                parts[i] += 1
                left -= 1
        for i in group:
            out[i] = F(whole(i, parts[i]) if i in below else parts[i]) * unit
        return sum(int(out[i] / unit) for i in group)

    give(-1, F(total))
    if mode == "whole":
        whole(-1, int(sum(out[i] for i in below.get(-1, ())) / unit))
    return out


def _buckets(group: Iterable[int], claims: Sequence[Claim]) -> list[list[int]]:
    priorities = sorted({claims[i].priority for i in group}, reverse=True)
    return [[i for i in group if claims[i].priority == p] for p in priorities]


def _water(base: Mapping[int, F], cap: Mapping[int, F], weight: Mapping[int, F], rest: F) -> tuple[dict[int, F], F]:
    """min(cap, base + level * weight) each with one level that uses the rest up, and what is left; by breakpoints."""
    able = [i for i in base if weight[i] > 0]

    def gain(level: F) -> F:
        return sum((min(cap[i] - base[i], level * weight[i]) for i in able), F(0))

    level = F(0)
    for point in sorted({(cap[i] - base[i]) / weight[i] for i in able}):
        if gain(point) >= rest:
            rising = sum(weight[i] for i in able if (cap[i] - base[i]) / weight[i] > level)
            level += (rest - gain(level)) / rising if rising else F(0)
            break
        level = point
    used = gain(level)
    return {i: min(cap[i], base[i] + level * weight[i]) if i in able else base[i] for i in base}, rest - used


def _bent(group: Sequence[int], claims: Sequence[Claim], k: F) -> dict[int, F]:
    every = sum((F(claims[i].weight) for i in group), F(0))
    norm = {i: F(claims[i].weight) / every if every else F(0) for i in group}
    return {i: max(F(0), norm[i] + k * (norm[i] - F(claims[i].usage))) for i in group}


def _exact(
    group: Sequence[int], total: F, claims: Sequence[Claim], cap: Mapping[int, F], k: F, unit: F
) -> dict[int, F]:
    quota = {i: total if (q := claims[i].quota) is None else F(q) for i in group}
    base = {i: min(quota[i], cap[i]) for i in group}
    out = dict.fromkeys(group, F(0))
    rest = total
    for bucket in _buckets(group, claims):
        if sum(base[i] for i in bucket) > rest:
            out |= _water(dict.fromkeys(bucket, F(0)), base, quota, rest)[0]
            return out
        for i in bucket:
            out[i] = base[i]
            rest -= base[i]
    for bucket in _buckets(group, claims):
        while rest > 0:
            open_ = [i for i in bucket if out[i] < cap[i]]
            weight = {i: F(claims[i].weight) for i in open_}
            if k and any(_bent(open_, claims, k).values()):
                weight = _bent(open_, claims, k)
            if not any(weight.values()):
                break
            filled, rest = _water({i: out[i] for i in open_}, cap, weight, rest)
            out |= filled
    return out


def _kai(group: Sequence[int], total: F, claims: Sequence[Claim], cap: Mapping[int, F], k: F, unit: F) -> dict[int, F]:
    quota = {i: total if (q := claims[i].quota) is None else F(q) for i in group}
    out = {i: min(quota[i], cap[i]) for i in group}
    rest = max(F(0), total - sum(out.values()))
    remainder: dict[int, F] = {}
    for bucket in _buckets(group, claims):
        again = True
        while again and rest > 0:
            again = False
            open_ = [i for i in bucket if out[i] < cap[i]]
            weight = _bent(open_, claims, k)
            start, every = rest, sum(weight.values())
            if not every:
                break
            for i in open_:
                fair, need = start * weight[i] / every, cap[i] - out[i]
                remainder.pop(i, None)
                gain = need if need <= fair else fair // unit * unit
                if need > fair and fair > gain:
                    remainder[i] = fair - gain
                again |= need < fair
                out[i] += gain
                rest -= gain
    for bucket in _buckets(group, claims):
        for i in sorted((i for i in bucket if i in remainder), key=lambda i: (-remainder[i], i)):
            gain = min(unit, rest)
            out[i] += gain
            rest -= gain
    return out


# -- section 4 --------------------------------------------------------------------------------------------------------


@dataclass
class Ask:
    """One quota in one resource, in whole units. used and waiting: of the pods that sit in it itself."""

    least: int
    most: int
    weight: int
    parent: str = ""
    lends: bool = True
    used: int = 0
    waiting: int = 0
    # what follows
    request: int = 0
    allocated: int = 0
    guaranteed: int = 0
    runtime: int = 0

    @property
    def limited(self) -> int:
        return min(self.request, self.most)


def runtimes(quotas: dict[str, Ask], total: int, *, scale: bool, guarantee: bool) -> None:
    """Fills in what follows."""

    def below(name: str) -> list[str]:
        return [other for other in quotas if quotas[other].parent == name]

    def up(name: str) -> None:
        one = quotas[name]
        for child in below(name):
            up(child)
        one.request = one.used + one.waiting + sum(quotas[child].limited for child in below(name))
        if guarantee or not one.lends:
            one.request = max(one.request, one.least)
        if guarantee:
            one.allocated = one.used + sum(quotas[child].guaranteed for child in below(name))
            one.guaranteed = max(one.least, one.allocated)

    def down(names: list[str], amount: int) -> None:
        least = {name: quotas[name].least for name in names}
        if scale and not guarantee and (every := sum(least.values())) > amount:
            least = {name: amount * m // every for name, m in least.items()}
        sharing = []
        for name in names:
            one, m = quotas[name], max(least[name], quotas[name].guaranteed)
            if one.limited > m:
                one.runtime = m
                sharing.append(name)
            else:
                one.runtime = one.limited if one.lends and not guarantee else m
        left = amount - sum(quotas[name].runtime for name in names)
        while left > 0 and (every := sum(quotas[name].weight for name in sharing)):
            part = {name: F(left * quotas[name].weight, every) for name in sharing}
            floor = {name: int(part[name]) for name in sharing}
            missing = left - sum(floor.values())
            for name in sorted(sharing, key=lambda n: (floor[n] - part[n], natural_key(n)))[:missing]:
                floor[name] += 1
            left = 0
            for name in list(sharing):
                one = quotas[name]
                one.runtime += floor[name]
                if one.runtime >= one.limited:
                    left += one.runtime - one.limited
                    one.runtime = one.limited
                    sharing.remove(name)
        for name in names:
            down(below(name), quotas[name].runtime)

    for name in below(""):
        up(name)
    down(below(""), total)


# -- section 2 --------------------------------------------------------------------------------------------------------


class UndecidedError(Exception):
    """Queues of mode kai go round in a circle: each is before the next, so that none is the first."""


@dataclass
class Waiting:
    """A pending plain pod."""

    name: str
    queue: str
    asks: dict[str, int]
    created: int
    priority: int


@dataclass
class Place:
    """A queue: a quota, or a user where `counted` is None. Amounts per resource."""

    name: str
    age: float
    parent: str = ""
    quota: dict[str, int] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)
    counted: tuple[str, ...] | None = None
    share: dict[str, F] = field(default_factory=dict)
    """Of what anybody asks: unrounded in mode exact."""
    held: dict[str, int] = field(default_factory=dict)

    def counts(self, resource: str) -> bool:
        return self.counted is None or resource in self.counted


def order(
    mode: str, places: Mapping[str, Place], jobs: Sequence[Waiting], fits: Callable[[str], bool], gpu: str
) -> list[str]:
    """Names of the jobs as their turn comes; those that fit are added to what their queues hold."""
    left = list(jobs)

    def inside(name: str) -> list[Waiting]:
        out = [job for job in left if job.queue == name]
        for place in places.values():
            if place.parent == name and place.name != name:
                out += inside(place.name)
        return out

    def turn(job: Waiting) -> Any:
        return -job.priority, job.created, natural_key(job.name)

    def best(parent: str) -> Place:
        found = [place for place in places.values() if place.parent == parent and inside(place.name)]
        if mode == "exact":
            return min(found, key=exact_key)
        first = min(found, key=cmp_to_key(before))
        if any(before(other, first) < 0 for other in found if other is not first):
            raise UndecidedError
        return first

    def offer(place: Place) -> Waiting:
        own = [job for job in left if job.queue == place.name]
        return min(own, key=turn) if own else offer(best(place.name))

    def exact_key(place: Place) -> Any:
        job = offer(place)
        asked = {r: amount for r, amount in job.asks.items() if amount and place.counts(r)}
        within = all(place.held.get(r, 0) + amount <= place.quota.get(r, 0) for r, amount in asked.items())
        ratio, after_all_shares = F(0), False
        for resource, share in place.share.items():
            held = place.held.get(resource, 0)
            if share:
                ratio = max(ratio, held / share)
            elif held:
                ratio = INFINITE
            elif resource in asked:
                after_all_shares = True
        rank = 2 if ratio == INFINITE else int(after_all_shares)
        oldest = min(job.created for job in inside(place.name))
        return not within, rank, ratio, place.held.get(gpu, 0), oldest, natural_key(place.name)

    def before(left_: Place, right: Place) -> int:
        a, b = kai_figures(left_), kai_figures(right)
        if a[0] != b[0]:
            return -1 if a[0] < b[0] else 1
        both = [(a[1][r], b[1][r]) for r in a[1] if r in b[1]]
        if any(x != y for x, y in both):
            if all(x <= y for x, y in both):
                return -1
            if all(x >= y for x, y in both):
                return 1
        return -1 if (left_.age, natural_key(left_.name)) < (right.age, natural_key(right.name)) else 1

    def kai_figures(place: Place) -> tuple[Any, dict[str, F]]:
        job = offer(place)
        kinds = [r for r in ("cpu", "memory", gpu) if place.counts(r)]
        held = {r: F(place.held.get(r, 0)) for r in kinds}
        after = {r: held[r] + job.asks.get(r, 0) for r in kinds}
        quota = {r: F(place.quota.get(r, 0)) for r in kinds}
        share = {r: place.share.get(r, F(0)) for r in kinds}
        most = {r: min(F(place.limit.get(r, INFINITE)), max(quota[r], share[r])) for r in kinds}

        def dominant(amounts: Mapping[str, F]) -> F:
            return max((x / most[r] if most[r] else INFINITE if x else F(0) for r, x in amounts.items()), default=F(0))

        above = bool(kinds) and all(held[r] > share[r] for r in kinds)
        beyond = any(after[r] > quota[r] for r in kinds)
        of_nothing = any(after[r] > 0 and not most[r] for r in kinds)
        return (above, beyond, of_nothing, dominant(after), dominant(held)), most

    out = []
    while left:
        name = ""
        while not any(job.queue == name for job in left):
            name = best(name).name
        for job in sorted((job for job in left if job.queue == name), key=turn):
            left.remove(job)
            out.append(job.name)
            if fits(job.name):
                at = name
                while at:
                    for resource, amount in job.asks.items():
                        places[at].held[resource] = places[at].held.get(resource, 0) + amount
                    at = places[at].parent
                break
    return out
