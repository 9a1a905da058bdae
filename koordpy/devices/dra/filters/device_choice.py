# SPDX-License-Identifier: Apache-2.0
"""Chooses the devices of a node for the pods of a plan: the best allocation by alternatives, links and fit (dra.md 6).

If every claim takes numbers of whole devices, sets of devices are chosen (`set_choice.py`). Otherwise all solutions of
one search over the claims of all pods are compared. Solutions are left out that differ from another one only by equal
devices, or by the order of equal pods. `link_order.py` compares links.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any, NamedTuple

from koordpy.devices.dra.filters.claim_requests import UndecidedNode
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.link_order import LinkOrder
from koordpy.devices.dra.filters.set_choice import SetPart, SetProblem, best_sets, can_choose
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.devices.links.link_board import NO_LIMIT
from koordpy.pods.claim_refs import Grant


class PodShare(NamedTuple):
    """The claims of one pod in a search."""

    claims: tuple[int, ...]
    """Positions among the claims of the search; a claim may belong to several pods."""
    fixed: int = 0
    """Mask of the devices of claims that are allocated already."""


class BestChoice:
    """Keeps the best solution of a search. Pass `offer` to `DeviceSearch.each`."""

    def __init__(
        self, usage: DeviceUsage, order: LinkOrder, pods: Sequence[PodShare], held: int = 0, *, every: bool = True
    ) -> None:
        """held: mask of the devices of bound members of the pods' gang. every: False to keep the first solution."""
        self._usage, self._order, self._pods, self._held, self._every = usage, order, pods, held, every
        self.grants: list[Grant] | None = None
        """Devices of each claim; None without a solution."""
        self.rank: tuple[Any, ...] = ()
        """Rank of the best solution that `offer` has compared; smaller is better."""
        self.alternatives: tuple[int, ...] = ()
        """Index of the chosen alternative of each request with `firstAvailable`."""
        self.slowest: tuple[int, int] = (NO_LIMIT, NO_LIMIT)
        """kB/s of the slowest link between devices of one driver, and of different drivers, by classes of all nodes."""
        self.left = 0
        """Free suitable devices that the solution leaves."""
        self.devices = 0
        """Mask of the devices that the pods have whole, with those of bound members of their gang."""
        self.leaves: Callable[[], bool] | None = None
        """Returns whether a solution, which is in use during the call, may be chosen; None if every solution may."""
        self._suitable: list[int] | None = None

    def choose_sets(self, search: DeviceSearch) -> bool:
        """Sets the best solution if it can be chosen by sets of devices; returns False otherwise."""
        problem = self._set_problem(search) if self._every and self.leaves is None else None
        if problem is None or not can_choose(problem):
            return False
        search.check_sizes()
        found = best_sets(problem)
        if found is not None and search.settle([request for part in found for request in part]):
            chosen = sum(1 << at for part in found for request in part for at in request)
            self.grants = search.grants()
            self.alternatives = tuple(search.alternative_indexes())
            self.left = (problem.suitable & ~chosen).bit_count()
            every = self._held | chosen
            for pod in self._pods:
                every |= pod.fixed
            self.devices, self.slowest = every, self._order.compared(every)
        return True

    def _set_problem(self, search: DeviceSearch) -> SetProblem | None:
        """Returns the choice of sets that equals a search; None if there is none."""
        requests = search.numbers()
        if requests is None:
            return None
        suitable = search.suitable_free()
        pods: dict[tuple[int, ...], list[PodShare]] = {}
        for pod in self._pods:
            pods.setdefault(pod.claims, []).append(pod)
        held = self._held
        for pod in pods.pop((), ()):
            held |= pod.fixed
        if [i for claims in pods for i in claims] != list(range(len(requests))):
            return None  # pods share some claims, but not all of them
        parts = []
        for claims, some in pods.items():
            if len({pod.fixed for pod in some}) > 1:
                return None
            own = [one for i in claims for one in requests[i]]
            apart = search.apart(claims[0])
            if apart is not None:
                far = sum(1 << i for i, mask in enumerate(apart) if mask >> i & 1)
                own = [(count, able & ~far) for count, able in own]
            parts.append(SetPart(tuple(own), len(some), some[0].fixed, apart or ()))
        if not all(part.size for part in parts):
            return None
        binding = sum(1 << i for i in suitable if search.devices[i].facts.binding_conditions)
        return SetProblem(self._order.board, sum(1 << i for i in suitable), held, binding, tuple(parts))

    def offer(self, search: DeviceSearch) -> bool:
        """Compares the current solution of a search. Returns True if the search may end."""
        if self._suitable is None:
            self._suitable = search.suitable_free()
        chosen = search.chosen()
        results = [one for claim in chosen for one in claim]
        taken = {at for one, at in results if not one.admin}
        first = tuple(search.alternative_indexes())
        devices = [search.devices[at] for at in sorted(taken)]
        bind = {at for _, at in results if search.devices[at].facts.binding_conditions}
        begins = len(bind), self._begun(devices)
        rank: tuple[Any, ...] = (first, *begins)
        if self.grants is not None and rank > self.rank[:3]:
            return False
        linked = [_mask(search, [one for i in pod.claims for one in chosen[i]]) | pod.fixed for pod in self._pods]
        suitable = sum(1 << at for at in self._suitable)
        rest = sum(1 << at for at in self._suitable if at not in taken and search.has_counters(search.devices[at]))
        is_tied = self.grants is not None and rank == self.rank[:3]
        links = self._order.rank(linked, self._held, suitable, rest, self.rank[3:] if is_tied else None)
        if links is None:
            return False
        rank = (*rank, *links)
        grants = search.grants()
        self._apply(grants, 1)
        shared = [search.devices[at] for one, at in results if not one.admin and search.devices[at].multi]
        rank = (*rank, -sum(_is_takeable(one, self._usage) for one in search.devices), _emptiness(shared, self._usage))
        is_better = (self.grants is None or rank < self.rank) and (self.leaves is None or self.leaves())
        self._apply(grants, -1)
        if is_better:
            self.grants, self.rank, self.alternatives, self.left = grants, rank, first, rest.bit_count()
            every = self._held
            for one in linked:
                every |= one
            self.devices, self.slowest = every, self._order.compared(every)
        return is_better and not self._every

    def _apply(self, grants: Sequence[Grant], sign: int) -> None:
        """Adds a solution to the devices in use (sign 1), or removes it (-1)."""
        for grant in grants:
            for one in grant:
                self._usage.change(one, sign)

    def _begun(self, devices: Sequence[OfferedDevice]) -> int:
        """Returns the number of counter sets and shared devices that were untouched before."""
        sets = {(d.id.driver, d.id.pool, key[0]) for d in devices for key, _ in d.consumes}
        drawn = {(driver, pool, key[0]) for (driver, pool, key), amount in self._usage.counters.items() if amount}
        shared = {device.id for device in devices if device.multi and not self._usage.is_used(device.id)}
        return len(sets - drawn) + len(shared)


def _mask(search: DeviceSearch, results: Sequence[tuple[Any, int]]) -> int:
    """Returns the mask of the devices of the given results that are taken whole, because only these have links."""
    return sum(1 << at for at in {at for one, at in results if not one.admin and not search.devices[at].multi})


def _is_takeable(device: OfferedDevice, usage: DeviceUsage) -> bool:
    """Returns True if a device could still be taken alone: whole, or as a share if every capacity has an amount
    left."""
    if device.id in usage.whole or (device.id in usage.shares and not device.multi):
        return False
    if device.id in usage.shares:
        taken = usage.shared(device.id)
        return all(taken.get(name, 0) < value for name, value in device.capacity.items())
    return usage.has_counters(device)


def _emptiness(shared: Sequence[OfferedDevice], usage: DeviceUsage) -> Fraction:
    """Returns the sum of the free fractions of all capacities after the solution. shared: the device of each share."""
    total = Fraction(0)
    for device in shared:
        taken = usage.shared(device.id)
        for name, value in device.capacity.items():
            total += (value - taken.get(name, Fraction(0))) / value if value else 0
    return total


def best_choice(search: DeviceSearch, best: BestChoice, *, sets: bool = True) -> BestChoice:
    """Returns the best solution of a search; its `grants` are None without any.

    If the search ends at its limit, the best solution so far counts. sets: False to compare solutions one by one.
    """
    if not (sets and best.choose_sets(search)):
        with suppress(UndecidedNode):
            search.each(best.offer)
    return best


def alternatives_score(indexes: Sequence[int]) -> int:
    """Returns the score of alternatives that were chosen for requests with `firstAvailable`: 8 for each first one, 7
    for each second one, and so on."""
    return sum(8 - index for index in indexes)
