# SPDX-License-Identifier: Apache-2.0
"""The search for devices of all claims of a pod on one node: kube-scheduler's allocator, depth first with backtracking.

Claims, requests, alternatives and devices are tried in order, so the first solution is that of kube-scheduler. Within a
request, devices are taken in ascending order, because the order of its results does not matter. Two rules shorten the
search without changing its result: a request needs at least as many remaining devices as missing results, and a device
is skipped if an equal device failed for the same result. So on a node of equal devices, each device is tried once,
whatever number is requested. Two devices are equal if every request and constraint treats them alike and neither has
counters or shares. The cost is exponential only if devices differ; `limit` bounds it. Source: docs/rules/dra.md 2.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from koordpy.devices.dra.filters.all_devices import all_devices
from koordpy.devices.dra.filters.claim_requests import (
    MAX_RESULTS,
    Alternative,
    AttemptFault,
    UnallocatedClaim,
    UndecidedNode,
    too_many_devices,
)
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_shares import can_hold, consumed_amounts, consumed_text, provided
from koordpy.devices.dra.filters.searched_claim import PairRule, SearchedClaim
from koordpy.devices.dra.ledger.device_usage import NOTHING_SHARED, DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import NodeDevices, OfferedDevice
from koordpy.pods.claim_refs import DeviceId, Grant, Granted


class DeviceSearch:
    """One search: the claims of a pod on one node."""

    def __init__(
        self,
        offer: NodeDevices,
        claims: Sequence[UnallocatedClaim],
        usage: DeviceUsage,
        matching: DeviceMatching,
        *,
        limit: int,
        closed: Collection[DeviceId] = (),
        barred: Collection[DeviceId] = (),
        lazy: bool = False,
        twins: Callable[[], Sequence[Hashable]] = tuple,
        after: Mapping[int, int] | None = None,
        pairs: PairRule | None = None,
    ) -> None:
        """closed: devices that are reserved for other pods, or `barred`: not even for admin access. lazy: True to
        evaluate each selector only when kube-scheduler does, so that `AttemptFault` is raised for exactly the same
        errors. twins: a further key of each device that must be equal for equal devices; empty for none. after: claim
        -> earlier claim of an equal pod (positions): the first device of the earlier claim must not come later, as the
        order of equal pods does not matter. pairs: rule for devices that pods may get together; None for no rule."""
        self._twins, self._after, self._pairs = twins, after or {}, pairs
        self._offer, self.devices = offer, offer.listed if lazy else offer.devices
        self._here = set(map(id, offer.devices)) if lazy and offer.listed is not offer.devices else None
        self._usage, self._matching = usage, matching
        self._closed, self._barred, self._left, self._lazy = closed, barred, limit, lazy
        self._claims = [
            SearchedClaim(one.key, one.spec, i, values=[[] for _ in one.spec.constraints])
            for i, one in enumerate(claims)
        ]
        self._match: dict[int, list[Any]] = {}
        """`id()` of an alternative -> [devices] answer if the device suits it; None if it is not evaluated yet."""
        self._used: dict[int, int] = {}
        """Device -> number of results of the search that take it, whole or as a share."""
        self._shared: dict[int, dict[str, Fraction]] = {}
        self._drawn: dict[tuple[Any, ...], Fraction] = {}
        self._kinds: list[Hashable] | None = None
        self._accept: Callable[[], bool] | None = None  # called at each solution; None to stop at the first one
        self.met_errors = False
        """True if a selector failed on a device that the search has tried."""

    # -- results -------------------------------------------------------------------------------------------------------

    def first(self) -> list[Grant] | None:
        """Returns the allocation of each claim in kube-scheduler's first solution; None for no solution.

        Raises `UndecidedNode`, and `AttemptFault` for a claim that needs too many devices.
        """
        return self.grants() if self._run() else None

    def each(self, accept: Callable[["DeviceSearch"], bool]) -> None:
        """Calls `accept` with this search at each solution, until it returns True or all are known."""
        self._accept = lambda: accept(self)
        self._run()

    def grants(self) -> list[Grant]:
        """Returns the allocation of each claim at the current solution."""
        return [tuple(self._granted(*one) for one in claim.results) for claim in self._claims]

    def alternative_indexes(self) -> list[int]:
        """Returns the index of the chosen alternative of each request with `firstAvailable`, at this solution."""
        used = {id(alternative) for claim in self._claims for alternative, _, _ in claim.results}
        requests = [request for claim in self._claims for request in claim.spec.requests if request.has_choice]
        return [next((i for i, one in enumerate(r.alternatives) if id(one) in used), 0) for r in requests]

    def suitable_free(self) -> list[int]:
        """Returns the devices that suit a request, by their capacities too, and are free outside of the search."""
        asked = [(claim, one) for claim in self._claims for r in claim.spec.requests for one in r.alternatives]
        return [
            at
            for at, device in enumerate(self.devices)
            if not self._usage.is_used(device.id)
            and device.id not in self._closed
            and any(self._suits(claim, one, at) and provided(can_hold, one, device) for claim, one in asked)
        ]

    def chosen(self) -> list[list[tuple[Alternative, int]]]:
        """Returns per claim (alternative, position of the device) of each result at the current solution."""
        return [[(alternative, at) for alternative, at, _ in claim.results] for claim in self._claims]

    # -- sets of devices -----------------------------------------------------------------------------------------------

    def numbers(self) -> list[list[tuple[int, int]]] | None:
        """Returns per claim and request the number of devices, and a mask of the devices that it may take.

        None if a solution is more than sets of whole devices: alternatives, constraints, shares, counters.
        """
        if self._lazy or not all(claim.spec.is_simple for claim in self._claims):
            return None
        out = []
        for claim in self._claims:
            own = []
            for request in claim.spec.requests:
                [one] = request.alternatives
                mask = 0
                for at, device in enumerate(self.devices):
                    if self._suits(claim, one, at) and not self._is_taken(one, at):
                        if device.multi or device.consumes:
                            return None
                        mask |= bool(provided(can_hold, one, device)) << at
                own.append((one.count, mask))
            out.append(own)
        return out

    def apart(self, claim: int) -> tuple[int, ...] | None:
        """Returns per device the mask of the devices that a claim's pods may not have with it; None for no rule.

        A device in its own mask may not be taken at all.
        """
        return self._pairs.apart(claim) if self._pairs is not None else None

    def settle(self, sets: Sequence[Sequence[int]]) -> bool:
        """Takes devices as the solution, for each request in order; returns whether the rule about pairs permits it."""
        given = iter(sets)
        for claim in self._claims:
            claim.results = [(r.alternatives[0], at, None) for r in claim.spec.requests for at in next(given)]
        return self._pairs is None or self._pairs.is_met(self)

    def _granted(self, alternative: Alternative, at: int, consumed: dict[str, Fraction] | None) -> Granted:
        device = self.devices[at]
        text = consumed_text(consumed, device) if consumed is not None else None
        return Granted(alternative.name, device.id, alternative.admin, text)

    # -- the search ----------------------------------------------------------------------------------------------------

    def _run(self) -> bool:
        self.check_sizes()
        return self._request(0, 0)

    def check_sizes(self) -> None:
        """Raises the faults that kube-scheduler finds before it searches: too many devices, pools that are changing."""
        for claim in self._claims:
            number = 0
            for request in claim.spec.requests:
                sizes = [self._size(claim, one) for one in request.alternatives]
                number += min(sizes, default=0)
            if number > MAX_RESULTS:
                raise AttemptFault(too_many_devices(claim.key, number))

    def _size(self, claim: SearchedClaim, alternative: Alternative) -> int:
        """Returns the number of devices that an alternative takes."""
        if not alternative.all:
            return alternative.count
        return len(self._all_of(claim, alternative))

    def _all_of(self, claim: SearchedClaim, alternative: Alternative) -> list[int]:
        """Returns the devices that a request for all devices takes, including devices in use and tainted devices."""
        fail, named = partial(self._fail, claim), self._named(claim)
        return all_devices(self._offer, alternative, claim.key, named, self._matching, fail=fail, listed=self._lazy)

    def _fail(self, claim: SearchedClaim, answer: str) -> None:
        """Raises the error of a selector, if it counts; adds the origin to an error of the claim's own selector."""
        self.met_errors = True
        if self._lazy:
            raise AttemptFault(f"claim {claim.key}{answer}" if answer.startswith(":") else answer)

    def _request(self, number: int, at: int) -> bool:
        """Searches from a request (`at`) of a claim (`number`) on; returns whether a solution was accepted."""
        if number == len(self._claims):
            return (self._pairs is None or self._pairs.is_met(self)) and (self._accept is None or self._accept())
        claim = self._claims[number]
        if at == len(claim.spec.requests):
            return self._request(number + 1, 0)
        request = claim.spec.requests[at]
        before = len(claim.results)
        for alternative in request.alternatives:
            size = self._size(claim, alternative)
            if before + size > MAX_RESULTS:
                continue

            def proceed() -> bool:
                return self._request(number, at + 1)

            if alternative.all:
                found = self._whole_set(claim, alternative, proceed)
            else:
                start = 0
                if not at and number in self._after:
                    start = self._claims[self._after[number]].results[0][1]
                    start += not self.devices[start].multi
                found = self._place(claim, alternative, size, start, proceed)
            if found:
                return True
        return False

    def _whole_set(self, claim: SearchedClaim, alternative: Alternative, proceed: Callable[[], bool]) -> bool:
        """Takes all devices of a request, then calls `proceed`. If there is no solution, undoes it."""
        devices = self._all_of(claim, alternative)
        undo, fits = [], bool(devices)
        for at in devices:
            step = self._take(claim, alternative, at) if self._suits(claim, alternative, at) else None
            if step is None:
                fits = False
                break
            undo.append(step)
        if fits and proceed():
            return True
        for step in reversed(undo):
            step()
        return False

    def _place(
        self, claim: SearchedClaim, alternative: Alternative, left: int, start: int, proceed: Callable[[], bool]
    ) -> bool:
        """Takes `left` devices from position `start` on, then calls `proceed`. If there is no solution, undoes it."""
        if not left:
            return proceed()
        count = len(self.devices)
        if not self._lazy and self._able(claim, alternative, start, left):
            return False
        failed: set[Hashable] = set()
        for at in range(start, count):
            if not self._lazy and count - at < left:
                for rest in range(at, count):
                    if not self._is_taken(alternative, rest):
                        self._suits(claim, alternative, rest)  # an error counts, as kube-scheduler meets it
                break
            device = self.devices[at]
            if self._is_taken(alternative, at) or not self._suits(claim, alternative, at):
                continue
            kind = self._kind(at)
            if kind in failed:
                continue
            self._left -= 1
            if self._left < 0:
                raise UndecidedNode("timed out trying to allocate devices")
            step = self._take(claim, alternative, at)
            if step is None:
                continue
            if self._place(claim, alternative, left - 1, at + 1, proceed):
                return True
            step()
            if not self._lazy and not (device.consumes or device.multi or alternative.admin):
                failed.add(kind)
        return False

    def _able(self, claim: SearchedClaim, alternative: Alternative, start: int, left: int) -> bool:
        """Returns whether fewer than `left` devices from `start` on could be taken, so that no search is needed."""
        for at in range(start, len(self.devices)):
            if not self._is_taken(alternative, at) and self._suits(claim, alternative, at):
                left -= 1
                if not left:
                    return False
        return True

    def _kind(self, at: int) -> Hashable:
        """Returns a key that is equal for devices that every request and constraint treats alike."""
        if self._kinds is None:
            places = self._twins() or [None] * len(self.devices)
            self._kinds = [self._kind_of(*one) for one in enumerate(places)] if not self._lazy else []
        return self._kinds[at] if self._kinds else at

    def _kind_of(self, at: int, place: Hashable) -> Hashable:
        device = self.devices[at]
        if device.consumes or device.multi:
            return at
        answers = tuple(
            self._suits(claim, one, at) and provided(can_hold, one, device)
            for claim in self._claims
            for request in claim.spec.requests
            for one in request.alternatives
        )
        values = tuple(device.attribute(one.attribute) for claim in self._claims for one in claim.spec.constraints)
        binds = bool(device.facts.binding_conditions)
        return answers, values, binds, self._usage.is_used(device.id), device.id in self._closed, place

    def _suits(self, claim: SearchedClaim, alternative: Alternative, at: int) -> bool:
        known = self._match.get(id(alternative))
        if known is None:
            known = self._match[id(alternative)] = [None] * len(self.devices)
        answer = known[at]
        if answer is None:
            answer = known[at] = self._matching.suits(alternative, self.devices[at])
        if isinstance(answer, str):
            self._fail(claim, answer)
            return False
        return bool(answer) and (self._here is None or id(self.devices[at]) in self._here)

    def _is_taken(self, alternative: Alternative, at: int) -> bool:
        """Returns whether a device is taken whole, outside the search or in it; for admin access, if it is barred."""
        device = self.devices[at]
        if alternative.admin:
            return device.id in self._barred
        if device.id in self._usage.whole or device.id in self._closed:
            return True
        return not device.multi and (at in self._used or device.id in self._usage.shares)

    def _take(self, claim: SearchedClaim, alternative: Alternative, at: int) -> Callable[[], None] | None:
        """Takes a device for a request; returns the function that undoes it, None if the device does not fit."""
        device = self.devices[at]
        repeats = alternative.admin and any(i == at and (one.admin or s is None) for one, i, s in claim.results)
        if repeats or self._is_taken(alternative, at):
            return None
        consumed: dict[str, Fraction] | None = None
        if device.multi:
            consumed = self._share(claim, alternative, at)
            if consumed is None:
                return None
        elif not provided(can_hold, alternative, device, self._named(claim)):
            return None
        begins = not (at in self._used or self._usage.is_used(device.id))
        draws = begins or (alternative.admin and not device.multi)
        if device.consumes and draws and not self.has_counters(device):
            return None
        pairs = None if alternative.admin else self._pairs
        if pairs is not None and not pairs.is_linked(self, claim.number, at):
            return None
        added = claim.add_values(alternative, device)
        if added is None:
            return None
        if not alternative.admin:
            self._change(at, consumed, draws=begins, sign=1)
        claim.results.append((alternative, at, consumed))

        def undo() -> None:
            claim.results.pop()
            for values in added:
                values.pop()
            if not alternative.admin:
                self._change(at, consumed, draws=begins, sign=-1)

        return undo

    def _share(self, claim: SearchedClaim, alternative: Alternative, at: int) -> dict[str, Fraction] | None:
        """Returns what a share of a device consumes; None if too little is left, or the request already has one."""
        device = self.devices[at]
        if any(one is alternative and other == at for one, other, _ in claim.results):
            return None
        amounts = provided(consumed_amounts, alternative, device, self._named(claim))
        if amounts is None:
            return None
        taken, own = self._usage.shared(device.id), self._shared.get(at, NOTHING_SHARED)
        for name, amount in amounts.items():
            if taken.get(name, 0) + own.get(name, 0) + amount > device.capacity[name]:
                return None
        return dict(amounts)

    def _named(self, claim: SearchedClaim) -> str:
        """Returns the name of a claim for errors, as far as kube-scheduler meets them; else an empty string."""
        return claim.key if self._accept is None else ""

    def has_counters(self, device: OfferedDevice) -> bool:
        """Returns whether the counters that a device draws on remain at the current state of the search."""
        driver, pool = device.id.driver, device.id.pool
        return all(
            self._usage.counters.get((driver, pool, key), 0) + self._drawn.get((driver, pool, key), 0) + amount
            <= device.pool.counters.get(key, 0)
            for key, amount in device.consumes
        )

    def _change(self, at: int, consumed: dict[str, Fraction] | None, *, draws: bool, sign: int) -> None:
        """Adds a taken device to the state of the search (sign 1), or removes it (-1)."""
        self._used[at] = self._used.get(at, 0) + sign
        if not self._used[at]:
            del self._used[at]
        if consumed is not None:
            own = self._shared.setdefault(at, {})
            for name, amount in consumed.items():
                own[name] = own.get(name, Fraction(0)) + sign * amount
        if draws:
            device = self.devices[at]
            for key, amount in device.consumes:
                counter = device.id.driver, device.id.pool, key
                self._drawn[counter] = self._drawn.get(counter, Fraction(0)) + sign * amount
