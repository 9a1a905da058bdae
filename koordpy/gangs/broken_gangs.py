# SPDX-License-Identifier: Apache-2.0
"""Finds broken gangs, which run with fewer members than their minimum, and their missing members (repair.md 4.1, 4.3).

A gang is broken if it has live members, but fewer live and Succeeded members than minMember. Pods on failed nodes are
not counted as members (`Members.lost`). The missing members are placed next to the live ones; the repair policy of the
gang decides what happens while they do not fit. To include the placements of a round, callers pass a gang of
`Unit.with_bound`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from typing import get_args

from msgspec.structs import replace as changed

from koordpy.api import keys
from koordpy.api.field_faults import literal
from koordpy.cache.snapshot import Snapshot
from koordpy.config.node_failures import Repair, RepairPolicy
from koordpy.decoding.annotation_settings import index_of
from koordpy.gangs.gang_reading import settings_of
from koordpy.gangs.gang_settings import Gang
from koordpy.pods.gang_refs import rank_index
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.rank_indexes import open_ranks

_RANDOM_NAMES = frozenset(("Job", "ReplicaSet", "ReplicationController"))
"""Kinds of controllers that put random characters at the end of their pods' names."""
_REPAIRS = b"\nof a broken gang"
"""End of the shapes of members of broken gangs; encoded JSON contains no newline, so the shapes stay unambiguous."""
POLICIES: tuple[RepairPolicy, ...] = get_args(RepairPolicy)


def missing_members(gang: Gang) -> int:
    """Returns the number of missing members of a broken gang; 0 for a gang that is not broken.

    A gang is not broken if it has no live member, or as many members as when it last had its minimum; a gang of a
    workload also if it has lost no members.
    """
    if not (gang.exists and gang.bound) or gang.unsupported_field:
        return 0
    if gang.by_workload:
        lost = gang.workload_gang is not None and gang.workload_gang.has_lost_members
        return max(0, gang.min_member - len(gang.bound)) if lost else 0
    have = len(gang.bound) + gang.succeeded
    return 0 if 0 < gang.past.whole <= have else max(0, gang.min_member - have)


def is_broken(gangs: Iterable[Gang]) -> bool:
    """Returns True if any of the gangs of a unit is broken."""
    return any(map(missing_members, gangs))


def sick_holders(snapshot: Snapshot) -> frozenset[str]:
    """Returns the keys of the pods that use a device that is reported as unhealthy."""
    return frozenset[str]().union(*(view.sick_holders for view in snapshot.families.values()))


def repair_policy(gang: Gang, snapshot: Snapshot, settings: Repair) -> RepairPolicy:
    """Returns the repair policy of a gang: from its annotation, else from the configuration. An invalid annotation is
    ignored."""
    text = _annotation(gang, snapshot, keys.GANG_REPAIR)
    return text if text in POLICIES else settings.policy


def only_waits(gangs: Iterable[Gang], snapshot: Snapshot, settings: Repair) -> bool:
    """Returns True if one of a unit's gangs is broken and has the repair policy `wait`. Such a unit uses free capacity
    only."""
    return any(missing_members(gang) and repair_policy(gang, snapshot, settings) == "wait" for gang in gangs)


def policy_warning(gang: Gang, snapshot: Snapshot, settings: Repair) -> str:
    """Returns the warning about an invalid repair policy in the gang's annotation; empty if it is valid or absent."""
    text = _annotation(gang, snapshot, keys.GANG_REPAIR)
    if text is None or text in POLICIES:
        return ""
    return (
        f"annotation {keys.GANG_REPAIR} cannot be read: "
        f"{literal(text)} is none of {', '.join(POLICIES)}: {settings.policy} holds"
    )


def _annotation(gang: Gang, snapshot: Snapshot, key: str) -> str | None:
    """Returns an annotation of the object with the settings of a gang; None if absent."""
    meta = settings_of(snapshot, gang.ref)
    return meta.annotations.get(key) if meta is not None else None


def with_whole_needs(gangs: Sequence[Gang]) -> tuple[Gang, ...] | None:
    """Returns the gangs of a unit with minimums such that a plan with victims places all missing members of broken
    gangs.

    None if too few members of a broken gang are pending: no pod is evicted for a gang that stays broken.
    """
    missing = [missing_members(gang) for gang in gangs]
    if any(number > len(gang.pending) for gang, number in zip(gangs, missing, strict=True)):
        return None
    return tuple(
        replace(gang, stale_minimum=max(number, gang.stale_minimum)) if number else gang
        for gang, number in zip(gangs, missing, strict=True)
    )


def with_distinct_shapes(gangs: tuple[Gang, ...]) -> tuple[Gang, ...]:
    """Returns the gangs of a unit with different shapes for members that may use spare nodes and for other members.

    Only members of broken gangs may use spare nodes, and pods of one shape and unit are placed by the same rules.
    """
    broken = [missing_members(gang) > 0 for gang in gangs]
    if all(broken) or not any(broken):
        return gangs

    def repairing(pod: PodInfo) -> PodInfo:
        return changed(pod, shape=pod.shape + _REPAIRS) if pod.pending else pod

    return tuple(
        replace(gang, pods=tuple(map(repairing, gang.pods))) if repairs else gang
        for gang, repairs in zip(gangs, broken, strict=True)
    )


# --- ranks ------------------------------------------------------------------------------------------------------------


def explicit_index(pod: PodInfo) -> int | None:
    """Returns the index of a pod from a label, an annotation or its workload; None if at most its name has one."""
    if pod.index is None or rank_index(pod.pod, by_name=False) is not None:
        return pod.index
    owner = pod.pod.metadata.controller
    named = owner is None or owner.kind in _RANDOM_NAMES
    return None if named and pod.index == rank_index(pod.pod) else pod.index


def written_rank(pod: PodInfo) -> int | None:
    """Returns the rank in the annotation that a bound or ended pod got with its Binding; None without one."""
    return index_of(pod.pod.metadata.annotations.get(keys.BOUND_RANK, ""))


def kept_ranks(gangs: Sequence[Gang], members: Sequence[PodInfo]) -> dict[str, int] | None:
    """Returns pod key -> rank of the members of a unit with a broken gang (repair.md 4.2).

    None if no gang is broken, or if no live member has a rank; then the order of gang-network.md 2.5 applies.
    Otherwise:
    - Live members keep their ranks.
    - If the rank of each such member equals its index, a pending member with an explicit index gets this index, if
      free.
    - All other members get the lowest free ranks. A member without an explicit index gets the number at the end of its
      name, if it is one of these ranks; the remaining members get the remaining ranks in order.

    members: all members of the unit in the order of gang-network.md 2.5.
    """
    if not is_broken(gangs):
        return None
    live, pending = [pod for pod in members if not pod.pending], [pod for pod in members if pod.pending]
    ranks = {pod.key: rank for pod in live if (rank := written_rank(pod)) is not None}
    if not ranks:
        return None
    ended = [pod for gang in gangs for pod in gang.pods if gang.is_success(pod)]
    told = {pod.key: rank for pod in ended if (rank := written_rank(pod)) is not None}
    used = {*ranks.values(), *told.values()}
    carriers = [pod for pod in (*live, *ended) if pod.key in ranks or pod.key in told]
    by_index = all(explicit_index(pod) == {**told, **ranks}[pod.key] for pod in carriers)
    rest: list[PodInfo] = []
    for pod in pending:
        index = explicit_index(pod)
        if by_index and index is not None and index not in used:
            ranks[pod.key] = index
            used.add(index)
        else:
            rest.append(pod)
    rest += (pod for pod in live if pod.key not in ranks)  # live members without a rank: bound by another scheduler
    _deal(rest, _lowest_free(used, len(rest)), ranks)
    return ranks


def in_kept_order(gangs: Sequence[Gang], members: tuple[PodInfo, ...]) -> tuple[PodInfo, ...]:
    """Returns the members of a unit in rank order. members: in the order of gang-network.md 2.5."""
    kept = kept_ranks(gangs, members)
    return members if kept is None else tuple(sorted(members, key=lambda pod: kept[pod.key]))


def _lowest_free(used: set[int], number: int) -> list[int]:
    """Returns the lowest ranks from 0 that are not used."""
    out: list[int] = []
    rank = 0
    while len(out) < number:
        if rank not in used:
            out.append(rank)
        rank += 1
    return out


def _deal(pods: Iterable[PodInfo], free: list[int], ranks: dict[str, int]) -> None:
    """Gives each pod one of the free ranks: the number at the end of its name if it is free, else the lowest one
    left."""
    left = dict.fromkeys(free)
    later: list[PodInfo] = []
    for pod in pods:
        number = pod.index if explicit_index(pod) is None else None
        if number is not None and number in left:
            ranks[pod.key] = number
            del left[number]
        else:
            later.append(pod)
    ranks.update(zip((pod.key for pod in later), left, strict=True))


def missing_ranks(gang: Gang, missing: int) -> tuple[int, ...]:
    """Returns the `missing` lowest ranks that no live or Succeeded member has; empty if no live member has a rank or an
    index. The ranks of a derived gang are those of its role that have not ended."""
    derived = gang.workload_gang
    ended = [pod for pod in gang.pods if gang.is_success(pod)]
    rank_of = _rank_reader(gang)
    if not missing or all(rank_of(pod) is None for pod in gang.bound):
        return ()
    taken = {rank_of(pod) for pod in (*gang.bound, *ended)}
    own = open_ranks(derived.ranks) if derived is not None else []
    every = chain(own, count(own[-1] + 1 if own else 0))
    return tuple(islice((rank for rank in every if rank not in taken), missing))


def _rank_reader(gang: Gang) -> Callable[[PodInfo], int | None]:
    """Returns the function from a member to its rank annotation, else to its index; None if it has neither.

    The annotation counts the members of all gangs that are planned together. So in a gang that may not be planned alone
    the index is preferred, unless members share one.
    """
    indexes = [pod.index for pod in gang.bound]
    is_joint = gang.workload_gang is not None or bool(gang.links)
    prefers_index = is_joint and len(set(indexes)) == len(indexes)

    def rank_of(pod: PodInfo) -> int | None:
        first, second = written_rank(pod), pod.index
        if prefers_index:
            first, second = second, first
        return second if first is None else first

    return rank_of
