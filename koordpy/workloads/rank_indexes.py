# SPDX-License-Identifier: Apache-2.0
"""Rank indexes of the pods of a workload: of a pod by its labels, and of all pods of a role (workloads.md 4).

The rank index of a pod is its index in its role, counted from the rank index of the role's first pod. Roles are counted
in the order of the spec.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from koordpy.api.objects import Pod
from koordpy.workloads.workload_manifest import index_in
from koordpy.workloads.workload_model import PodPosition, Role


def position_by_labels(
    starts: Mapping[str, int],
    role_of: Callable[[Pod], str],
    key: str,
    default: Mapping[str, int] = MappingProxyType({}),
) -> Callable[[Pod], PodPosition | None]:
    """Returns the function from a pod to its position, for kinds that label pods with role and index. starts: role ->
    rank index of its first pod. default: role -> index of pods that do not have the label `key`."""

    def position(pod: Pod) -> PodPosition | None:
        role, index = role_of(pod), index_in(pod.metadata, key)
        if role not in starts:
            return None
        index = default.get(role) if index is None else index
        return PodPosition(role, None if index is None else starts[role] + index)

    return position


def starts_of(roles: Sequence[Role]) -> dict[str, int]:
    """Returns role -> rank index of its first pod, which is the number of pods of all earlier roles."""
    before = accumulate((role.number for role in roles), initial=0)
    return dict(zip((role.name for role in roles), before, strict=False))


def with_first_ranks(roles: Iterable[Role], starts: Mapping[str, int]) -> tuple[Role, ...]:
    """Returns roles of one part each with the rank indexes of their first pods. starts: role -> rank index of its first
    pod."""
    return tuple(
        replace(role, parts=tuple(replace(part, first_rank=starts[role.name]) for part in role.parts)) for role in roles
    )


class RankSpan(NamedTuple):
    """The rank indexes of the pods that one controller creates."""

    first: int
    """Rank index of the pod with index 0."""
    indexes: range
    closed: Set[int]
    """Indexes that have ended."""


def rank_spans(role: Role) -> tuple[RankSpan, ...]:
    """Returns the rank indexes of a role, by controller."""
    return tuple(RankSpan(part.first_rank, part.indexes, part.closed) for part in role.parts)


def open_ranks(spans: Iterable[RankSpan]) -> list[int]:
    """Returns the rank indexes that have not ended, in ascending order."""
    return sorted(one.first + i for one in spans for i in one.indexes if i not in one.closed)
