"""Reclaim by fair share, and the share line that priority keeps: preemption.md 3.3 and the last rule of 3.1.

Only with `fairness.reclaim: all`. Rounding never starts an eviction: what is compared in the end are the unrounded
shares (no flip).
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from koordpy.api.quantity import quantity_text
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import QuotaUse
from koordpy.planning.victim_selection.choice import Crossing, Limit
from koordpy.planning.victim_selection.lines import ACCELERATORS, Lines, Party, Path, above, spare
from koordpy.planning.victims.pool import Mask, Pool, below

Held = Mapping[Path, Mapping[str, int]]


class FairShare:
    """The share lines against one beneficiary."""

    def __init__(self, pods: Sequence[PodInfo], *, pool: Pool, use: QuotaUse, lines: Lines) -> None:
        self.pool, self.use, self.lines = pool, use, lines
        self.path = lines.path(pods[0])
        self.asked: dict[str, int] = {}
        for pod in pods:
            for resource, amount in lines.amounts(pod.requests).items():
                if amount > 0:
                    self.asked[resource] = self.asked.get(resource, 0) + amount
        self._memo: dict[int, dict[Path, dict[str, int]]] = {}

    def held(self, i: int) -> dict[Path, dict[str, int]]:
        """Path of a party -> what a unit's pods of it hold, counted resources."""
        found = self._memo.get(i)
        if found is None:
            found = self._memo[i] = {}
            for pod in self.pool.units[i].pods:
                here = found.setdefault(self.lines.path(pod), {})
                for resource, amount in self.lines.amounts(pod.requests).items():
                    here[resource] = here.get(resource, 0) + amount
        return found

    # --- the beneficiary --------------------------------------------------------------------------------------------

    def _after(self, party: Party, resource: str) -> int:
        return self.lines.use(self.use, party, resource) + self.asked[resource]

    def _counted(self, party: Party) -> list[str]:
        return [resource for resource in sorted(self.asked) if self.lines.counted(party, resource)]

    @cached_property
    def closed(self) -> str:
        """Why the beneficiary has no share left to claim, with its numbers; empty where its own gate is open."""
        if not self.path or not self._counted(self.path[-1]):
            return "nothing shared is asked"
        party = self.path[-1]
        for resource in self._counted(party):
            if self._after(party, resource) > self.lines.share(party, resource):
                return f"reclaim: {self._uses(party, resource, 'would use', self._after(party, resource))}"
        return ""

    # --- who may go -------------------------------------------------------------------------------------------------

    def eligible(self, free: Mask, *, strictly: bool) -> Mask:
        """Units of other users or queues above their share, whose loss would turn nothing round."""
        out = np.zeros(len(free), dtype=bool)
        if not self.path or not self._counted(self.path[-1]) or (strictly and self.closed):
            return out
        known: dict[Path, bool] = {}
        for i in np.nonzero(free)[0].tolist():
            if self.pool.foreign(i):
                continue
            held = self.held(i)
            for path in held:
                if path not in known:
                    known[path] = self._may_lose(path)
            out[i] = all(known[path] for path in held) and any(
                amounts.get(resource) for amounts in held.values() for resource in self.asked
            )
        return out

    def _may_lose(self, path: Path) -> bool:
        theirs = below(path, self.path)
        if not theirs or path[-1] == self.path[-1]:
            return False
        for party in theirs:
            if not any(self._over(party, r) > 0 for r in self._counted(party)):
                return False
        mine = below(self.path, path)
        pairs = {(mine[-1], theirs[-1]), (mine[0], theirs[0])} if mine else set()
        return all(self._no_flip(own, other) for own, other in pairs)

    def _no_flip(self, own: Party, other: Party) -> bool:
        """What the plan takes of the own party by another rule does not count: who stands at his line could otherwise
        give up one pod to be given another for ever (3.6), while priority takes it back."""
        for resource in self._counted(other):
            if self._over(other, resource) <= 0 or not self.lines.counted(own, resource):
                continue
            mine = self._after(own, resource) - self.lines.exact(own, resource)
            if mine < self.lines.use(self.use, other, resource) - self.lines.exact(other, resource):
                return True
        return False

    def _over(self, party: Party, resource: str) -> int:
        return above(self.lines.use(self.use, party, resource), self.lines.share(party, resource))

    # --- what must hold together ------------------------------------------------------------------------------------

    def _sums(self, pairs: Iterable[tuple[int, int]]) -> dict[Party, dict[int, dict[str, int]]]:
        """Party below the LCA -> option -> what its unit holds there, of (option, unit) pairs."""
        out: dict[Party, dict[int, dict[str, int]]] = {}
        for o, i in pairs:
            for path, amounts in self.held(i).items():
                for party in below(path, self.path):
                    here = out.setdefault(party, {}).setdefault(o, {})
                    for resource, amount in amounts.items():
                        here[resource] = here.get(resource, 0) + amount
        return out

    def gates(self, own: Mapping[int, int], every: Sequence[tuple[int, int]]) -> list[Limit]:
        """The beneficiary's parties below the LCA end within their share."""
        when: dict[Party, list[int]] = {}
        for i, o in own.items():
            for path in self.held(i):
                for party in below(self.path, path):
                    when.setdefault(party, []).append(o)
        out: list[Limit] = []
        for party, options in when.items():
            for resource in self._counted(party):
                least = above(self._after(party, resource), self.lines.share(party, resource))
                if least > 0:
                    terms = tuple(
                        (o, amounts[resource])
                        for o, i in every
                        for path, amounts in self.held(i).items()
                        if party in path and amounts.get(resource)
                    )
                    out.append(Limit(terms, least=least, when=tuple(options)))
        return out

    def crossings(self, own: Mapping[int, int]) -> list[Crossing]:
        """Above the share before each unit is taken."""
        out: list[Crossing] = []
        for party, held in self._sums((o, i) for i, o in own.items()).items():
            resources = []
            open_at_most = False
            for resource in self._counted(party):
                terms = tuple((o, amounts.get(resource, 0)) for o, amounts in held.items())
                room = self._over(party, resource)
                resources.append((terms, room))
                open_at_most |= sum(n for _, n in terms) - max((n for _, n in terms), default=0) < room
            if not open_at_most:
                out.append(Crossing(tuple(resources)))
        return out

    def floors(self, own: Mapping[int, int], every: Sequence[tuple[int, int]]) -> list[Limit]:
        """3.1: what priority takes leaves another user or queue min(used_before, share)."""
        out: list[Limit] = []
        everyone = self._sums(every)
        for party, held in self._sums((o, i) for i, o in own.items()).items():
            names = sorted({resource for amounts in held.values() for resource in amounts})
            for resource in names:
                if not self.lines.counted(party, resource):
                    continue
                most = spare(self.lines.use(self.use, party, resource), self.lines.share(party, resource))
                terms = tuple((o, a[resource]) for o, a in everyone[party].items() if a.get(resource))
                if sum(n for _, n in terms) > most:
                    only = len(held) == len(everyone[party])
                    out.append(Limit(terms, most=most, when=() if only else tuple(held)))
        return out

    # --- words ------------------------------------------------------------------------------------------------------

    def _uses(self, party: Party, resource: str, verb: str, amount: int) -> str:
        name = f"quota {party.quota}" if party.quota else f"user {party.user}"
        return f"{name} {verb} {_text(resource, amount)}, share {_text(resource, self.lines.share(party, resource))}"

    def why(self, i: int) -> str:
        """`user bob uses 4, share 2; user alice gets 2`."""
        path = next(iter(self.held(i)))
        party = below(path, self.path)[-1]
        over = [r for r in self._counted(party) if self._over(party, r) > 0]
        resource = (over or self._counted(party))[0]
        uses = self._uses(party, resource, "uses", self.lines.use(self.use, party, resource))
        own = self.path[-1]
        gets = f"quota {own.quota}" if own.quota else f"user {own.user}"
        return f"{uses}; {gets} gets {_text(resource, self.asked.get(resource, 0))}"


def _text(resource: str, amount: int | Fraction) -> str:
    value = Fraction(amount)
    if resource == ACCELERATORS:
        value /= 100
    if value.denominator != 1:
        return f"{float(value):g}"
    return str(int(value)) if resource == ACCELERATORS else quantity_text(resource, int(value))
