# SPDX-License-Identifier: Apache-2.0
"""Computes strikes from the history of one request shape on one node: how often it was rejected, and until when it is
closed.

A pure function of the set of events: the order in which pods were read does not matter. Source: numa.md 8.3 to 8.5.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.config.node_failures import Rejections

BURST_SECONDS = 10.0
"""A running pod disproves a rejection only if it was bound at least this much later: members of one burst are bound
together."""


class Rejection(NamedTuple):
    """One pod that a kubelet rejected."""

    time: float
    """Seconds since the epoch."""
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Strikes:
    """The strikes of a shape on a node that are not forgotten."""

    count: int
    last: float
    """Time of the last strike, in seconds since the epoch."""
    until: float
    """Time at which the closure ends, or has ended."""
    latest: Rejection
    """The last rejection, which need not be a strike."""

    def is_closed(self, now: float) -> bool:
        """Returns True if the node takes no pods of the shape at a time."""
        return now < self.until


def count_strikes(
    rejections: Iterable[Rejection],
    *,
    successes: Iterable[float],
    openings: Sequence[float],
    settings: Rejections,
    now: float,
) -> Strikes | None:
    """Returns the strikes that count at time `now`; None if there are none, or if they are forgotten.

    rejections: in any order. successes: bind times of pods that ran on the node and requested at least as much as the
    shape. openings: times at which a closure ended early, because capacity was freed.
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
    """Returns how long the k-th strike closes a shape: the back-off, doubled with each strike."""
    doublings = min(count - 1, 64)  # further ones exceed every maximum
    return min(settings.backoff * 2.0**doublings, settings.max_backoff)


def _disproves(bound: float, strikes: Strikes) -> bool:
    """Returns True if a pod that was bound at a time is a success after the last rejection."""
    return bound >= strikes.latest.time + BURST_SECONDS
