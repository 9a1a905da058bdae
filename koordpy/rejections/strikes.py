# SPDX-License-Identifier: Apache-2.0
"""Computes the strikes of one request shape on one node, and until when they close the node to this shape.

A rejection outside a closure is a strike: it closes the node to the shape for a back-off, which doubles with each
strike. Rejections during a closure are not strikes. A pod as large as the shape that runs on the node removes all
strikes. The result is a pure function of the set of events; the order in which pods were read does not matter.
Source: numa.md 8.3 to 8.5.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.config.node_failures import Rejections

BURST_SECONDS = 10.0
"""A running pod disproves a rejection only if it was bound at least this long after it: the members of a gang are bound
in one burst, and one may be rejected while another runs."""


class Rejection(NamedTuple):
    """One pod that a kubelet rejected."""

    time: float
    """Time of the rejection, in seconds since 1970."""
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Strikes:
    """The current strikes of a shape on a node."""

    count: int
    last: float
    """Time of the last strike, in seconds since 1970."""
    until: float
    """Time at which the closure ends, or has ended, in seconds since 1970."""
    latest: Rejection
    """The last rejection: the last strike, or a later rejection during its closure."""

    def is_closed(self, now: float) -> bool:
        """Returns True if the node is closed to the shape at time `now`."""
        return now < self.until


def count_strikes(
    rejections: Iterable[Rejection],
    *,
    successes: Iterable[float],
    openings: Sequence[float],
    settings: Rejections,
    now: float,
) -> Strikes | None:
    """Returns the strikes that count at time `now`; None if there are none, if a success has removed them, or if the
    last strike is older than twice the maximum back-off.

    rejections: in any order. successes: bind times of pods that ran on the node and requested at least as much as the
    shape. openings: times at which a closure ended early, because capacity was freed. All times are seconds since 1970.
    """
    found: Strikes | None = None
    bound = sorted(successes)
    at = 0
    for one in sorted(rejections):
        while at < len(bound) and bound[at] < one.time:
            found = None if found is not None and _disproves(bound[at], found) else found
            at += 1
        if found is not None and one.time >= found.last + 2 * settings.max_backoff:
            found = None
        if found is not None and found.is_closed(one.time):
            found = Strikes(found.count, found.last, found.until, one)
            continue
        count = found.count + 1 if found is not None else 1
        until = one.time + closure_seconds(count, settings)
        early = min((opened for opened in openings if opened >= one.time), default=until)
        found = Strikes(count, one.time, min(until, early), one)
    if found is None or any(_disproves(late, found) for late in bound[at:]):
        return None
    return None if now >= found.last + 2 * settings.max_backoff else found


def closure_seconds(count: int, settings: Rejections) -> float:
    """Returns how long the strike with number `count`, from 1, closes the node: the back-off doubles with each
    strike."""
    doublings = min(count - 1, 64)  # more doublings exceed every maximum
    return min(settings.backoff * 2.0**doublings, settings.max_backoff)


def _disproves(bound: float, strikes: Strikes) -> bool:
    """Returns True if a running pod with this bind time disproves the last rejection."""
    return bound >= strikes.latest.time + BURST_SECONDS
