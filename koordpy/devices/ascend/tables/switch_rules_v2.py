# SPDX-License-Identifier: Apache-2.0
"""Rule set 2.0 of switch affinity: a job takes whole idle leaves and shares at most q leaves with other jobs.

A job that spans several leaves uses their uplinks. A leaf is idle if no spanning job is under it, exclusive if one
foundation model has marked it as fully used, else shared. A shared leaf is healthy unless a common or unlabelled job
uses its uplinks. A job takes idle leaves as a whole, in leaf order. Its remaining pods use the fewest shared leaves
that have enough servers. To find them, all groups of at most q leaves with different numbers of servers are tried:
O(numbers^q), where q is 1 or 2 (docs/rules/ascend.md 4.2, 4.3). The module also returns the annotations from which
later plans read how a leaf is used. It knows leaves and servers, not pods.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from koordpy.api import keys
from koordpy.devices.ascend.tables.ascend_job import Tor
from koordpy.devices.ascend.tables.leaf_switches import (
    LeafState,
    PlannedServer,
    leaf_order,
    servers_of,
    tightest,
    used_up,
)


def place(
    leaves: Sequence[LeafState], number: int, positions: int, *, kind: Tor, shared_most: int
) -> list[PlannedServer] | None:
    """Returns the servers of a new job of `number` pods in rank order; None if the job must wait.

    positions: c, slice positions of a leaf. kind: switch affinity of the job. shared_most: q, healthy shared leaves
    that one job may use.
    """
    # one leaf: the tightest of the first class of leaves that has one
    if number < positions or kind is Tor.PADDING:
        for group in (
            [leaf for leaf in leaves if leaf.exclusive],
            [leaf for leaf in leaves if leaf.shared and not leaf.healthy],
            [leaf for leaf in leaves if leaf.shared and leaf.healthy],
            [leaf for leaf in leaves if leaf.idle],
        ):
            one = tightest(group, number)
            if one is not None:
                return servers_of(one, number)
        if kind is Tor.PADDING:
            return None
    idle = [leaf for leaf in leaf_order(leaves) if leaf.idle and leaf.count]
    healthy = [leaf for leaf in leaf_order(leaves) if leaf.shared and leaf.healthy and leaf.count]
    most = sum(leaf.count for leaf in idle) + sum(leaf.count for leaf in healthy[:shared_most])
    if number > most:
        return _place_large_common(leaves, number, idle, healthy, shared_most) if kind is Tor.COMMON else None
    # whole idle leaves as long as the rest needs all servers of a leaf
    found: list[PlannedServer] = []
    rest = number
    for leaf in idle:
        if rest < leaf.count:
            break
        found += servers_of(leaf, leaf.count)
        rest -= leaf.count
    if not rest:
        return found
    # the rest: healthy shared leaves, else a part of the next idle leaf, which becomes shared
    few = fewest_leaves(healthy, rest, shared_most)
    if few is None:
        broken = idle[len({planned.leaf.number for planned in found})]
        return found + servers_of(broken, rest)
    return found + used_up(few, rest)


def fewest_leaves(leaves: Sequence[LeafState], number: int, most: int) -> list[LeafState] | None:
    """Returns the fewest leaves, at most `most`, with servers for `number` pods; None if no such group has enough.

    Of groups of equal size the one with the smallest total is taken. Inside a group the smaller leaf comes first.
    """
    alike: dict[int, list[LeafState]] = {}
    for leaf in sorted(leaves, key=lambda leaf: leaf.tor_id):
        alike.setdefault(leaf.count, []).append(leaf)
    # of leaves with equal counts only the first ones can be in the best group
    kept = [leaf for same in alike.values() for leaf in same[:most]]
    for size in range(1, most + 1):
        able = [group for group in combinations(kept, size) if sum(leaf.count for leaf in group) >= number]
        if able:
            best = min(able, key=lambda g: (sum(leaf.count for leaf in g), sorted(leaf.tor_id for leaf in g)))
            return sorted(best, key=lambda leaf: (leaf.count, leaf.tor_id))
    return None


def _place_large_common(
    leaves: Sequence[LeafState],
    number: int,
    idle: Sequence[LeafState],
    healthy: Sequence[LeafState],
    most: int,
) -> list[PlannedServer] | None:
    """Returns the servers of a common job that is too large for idle and healthy shared leaves; None if it must wait.

    Order: idle leaves, unhealthy shared leaves, healthy shared leaves. most: q.
    """
    sick = sorted(
        (leaf for leaf in leaves if leaf.shared and not leaf.healthy), key=lambda leaf: (leaf.count, leaf.tor_id)
    )
    found = used_up([*idle, *sick], number)
    rest = number - len(found)
    if not rest:
        return found
    few = fewest_leaves(healthy, rest, most)
    return found + used_up(few, rest) if few is not None else None


def place_again(
    leaves: Sequence[LeafState],
    own: Mapping[int, str],
    number: int,
    *,
    kind: Tor,
    shared_most: int,
) -> list[PlannedServer] | None:
    """Returns the servers of pending pods of a job with bound pods, in rank order; None if they must wait.

    Order: the job's exclusive leaves, its shared leaves, idle leaves, healthy shared leaves while at most q are used.
    own: leaf number -> isSharedTor of the job's bound pods there ("2" for an exclusive leaf).
    """
    first = [leaf for leaf in leaf_order(leaves) if own.get(leaf.number) == "2"]
    second = [leaf for leaf in leaf_order(leaves) if leaf.number in own and leaf not in first]
    if kind is Tor.PADDING:
        found = used_up([*first, *second], number)
        return found if len(found) == number else None
    idle = [leaf for leaf in leaf_order(leaves) if leaf.idle and leaf.number not in own]
    found = used_up([*first, *second, *idle], number)
    rest = number - len(found)
    if not rest:
        return found
    held = sum(leaf.shared and leaf.healthy for leaf in second)
    other = [leaf for leaf in leaf_order(leaves) if leaf.shared and leaf.healthy and leaf.number not in own]
    few = fewest_leaves([leaf for leaf in other if leaf.count], rest, max(0, shared_most - held))
    return found + used_up(few, rest) if few is not None else None


def leaf_notes(taken: Sequence[PlannedServer], kind: Tor, own: Mapping[int, str] | None = None) -> list[dict[str, str]]:
    """Returns the annotations of each pod of a plan, in the order of `taken`: isSharedTor, isHealthy, sharedTorIp.

    isSharedTor is "0" for a job under one leaf, "2" under an idle leaf that the job uses fully, else "1". isHealthy is
    "1" only under a leaf that a common job shares. own: leaf number -> isSharedTor of the job's bound pods there, which
    stays.
    """
    own = own or {}
    numbers = {planned.leaf.number for planned in taken} | set(own)
    used: dict[int, int] = {}
    for planned in taken:
        used[planned.leaf.number] = used.get(planned.leaf.number, 0) + 1
    out = []
    for planned in taken:
        leaf = planned.leaf
        if len(numbers) == 1:
            mark = "0"
        elif own.get(leaf.number) in ("1", "2"):
            mark = own[leaf.number]
        else:
            mark = "2" if leaf.idle and used[leaf.number] == leaf.count and leaf.number not in own else "1"
        notes = {keys.SHARED_TOR: mark, keys.TOR_HEALTHY: "1" if mark == "1" and kind is Tor.COMMON else "0"}
        if mark == "1":
            notes[keys.SHARED_TOR_IP] = leaf.tor_ip
        out.append(notes)
    return out
