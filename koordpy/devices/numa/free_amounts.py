# SPDX-License-Identifier: Apache-2.0
"""Free amounts of the zones of one node: by its report if that is exact, else by zone records (numa.md 4).

A report is exact if the amounts that it shows as used add up to the amounts of the pods that were on the node when it
last changed. If it is not exact, a pod without a zone record is charged to each zone in which it may be, so that no
amount is used twice. A pure function; arrays are [zones].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.devices.numa.admission import Zoned

Row = tuple[int, ...]


class ReportedPod(NamedTuple):
    """A pod that was on the node when its report last changed."""

    held: Mapping[str, int]
    """Resource -> amount that the pod holds."""
    record: Zoned
    """Resource -> [zones] amount; resources with unknown zones are left out."""
    gone: bool
    """True if the pod has left since, or a plan evicts it."""


@dataclass(frozen=True, slots=True)
class FreeZones:
    """Free amounts of the zones of a node."""

    free: Zoned
    """Resource -> [zones] amount; may be negative."""
    exact: bool
    """True if the report shows exactly the pods that were on the node when it last changed."""


def free_amounts(allocatable: Zoned, available: Zoned, pods: Sequence[ReportedPod]) -> FreeZones:
    """Returns the free amounts of each resource. pods: pods that were on the node when its report last changed."""
    exact = all(
        sum(total) - sum(available[name]) == sum(pod.held.get(name, 0) for pod in pods)
        for name, total in allocatable.items()
    )
    free: dict[str, Row] = {}
    for name, total in allocatable.items():
        holders = [pod for pod in pods if pod.held.get(name)]
        unplaced = [pod for pod in holders if name not in pod.record]
        if exact and not (len(unplaced) > 1 and all(pod.gone for pod in unplaced)):
            free[name] = _by_report(name, total, available[name], holders, unplaced)
        else:
            free[name] = _by_records(name, total, available[name], holders, unplaced)
    return FreeZones(free, exact)


def _by_report(
    name: str, total: Row, available: Row, holders: Sequence[ReportedPod], unplaced: Sequence[ReportedPod]
) -> Row:
    """Returns the amounts that the report shows as free, plus the amounts of pods that have left.

    If only one pod has no zone record, its zones follow from the report and the records of the other pods.
    """
    row = available
    for pod in holders:
        if pod.gone:
            row = _plus(row, pod.record.get(name), 1)
    if len(unplaced) == 1 and unplaced[0].gone:
        rest = tuple(have - left for have, left in zip(total, available, strict=True))
        for pod in holders:
            rest = _plus(rest, pod.record.get(name), -1)
        row = _plus(row, tuple(max(0, one) for one in rest), 1)
    return row


def _by_records(
    name: str, total: Row, available: Row, holders: Sequence[ReportedPod], unplaced: Sequence[ReportedPod]
) -> Row:
    """Returns allocatable amounts less the amounts of zone records.

    A pod without a record is charged to each zone in which it may be.
    """
    used = tuple(have - left for have, left in zip(total, available, strict=True))
    placed: Row = (0,) * len(total)
    for pod in holders:
        if pod.gone:
            used = _plus(used, pod.record.get(name), -1)
        else:
            placed = _plus(placed, pod.record.get(name), 1)
    unknown = sum(pod.held[name] for pod in unplaced if not pod.gone)
    charged = [min(unknown, max(0, max(0, one) - own)) for one, own in zip(used, placed, strict=True)]
    rest = max(0, unknown - sum(charged))
    return tuple(have - own - one - rest for have, own, one in zip(total, placed, charged, strict=True))


def _plus(row: Row, more: Row | None, sign: int) -> Row:
    return row if more is None else tuple(one + sign * other for one, other in zip(row, more, strict=True))
