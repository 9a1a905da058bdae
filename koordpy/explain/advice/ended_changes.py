# SPDX-License-Identifier: Apache-2.0
"""Proposes that running pods of other units end: a few pods on one node or in one domain, or whole gangs.

Pods of DaemonSets and mirror pods are never proposed, because they do not end. A set of pods is proposed only if a
short text can name it (`completed_names.py`). Of equally large sets, a set that breaks no gang is proposed first.
`Case` defines *hard domain* (a domain that the whole unit must share) and *kind* (the pods of one shape).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from koordpy.api.counted_nouns import count_noun
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.cache.snapshot_variants import with_succeeded, without_pods
from koordpy.devices.family_registry import find_obstruction
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, of_snapshot
from koordpy.explain.advice.completed_names import breaks_gangs, completed, may_end, not_replaced, running
from koordpy.explain.advice.part_needs import part_needs
from koordpy.explain.advice.quota_refusals import limit_refusals, relieves_quotas
from koordpy.explain.advice.reductions import shortest_start, without_unneeded
from koordpy.framework.filter_protocol import Code
from koordpy.plan.limits import (
    ADVICE_DOMAINS,
    ADVICE_ENDING,
    ADVICE_ENDING_TRIED,
    ADVICE_NAMED,
    ADVICE_NODES_TRIED,
    ADVICE_POOL,
    ADVICE_SET,
    ADVICE_SETS_TRIED,
    ADVICE_UNITS_ENDED,
)
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.ending_pods import find_termination_wait

FEWEST = "fewest pods"
"""Family of changes that end the fewest pods of one node or domain. Only the first such change that helps is shown,
because the others are similar."""
WHOLE_GANGS = "whole gangs"
"""Family of changes that complete one gang. They are not shown if fewer pods can end without breaking a gang."""


def ended_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that remove running pods of other units, the most specific proposals first."""
    yield from _terminating(case)
    yield from _obstruction(case)
    yield from _on_one_node(case) if not case.unit.is_gang else _in_one_domain(case)
    yield from _whole_units(case)
    yield from _fewest(case)


def without(pods: Iterable[PodInfo]) -> Callable[[Snapshot], Snapshot]:
    """Returns a change of a snapshot that removes the given pods."""
    gone = tuple(pods)
    return lambda snapshot: without_pods(snapshot, gone)


def succeeded(pods: Iterable[PodInfo]) -> Callable[[Snapshot], Snapshot]:
    """Returns a change of a snapshot after which the given pods have Succeeded. Their gangs do not count them as
    missing."""
    ended = tuple(pods)
    return lambda snapshot: with_succeeded(snapshot, ended)


def completion(pods: Sequence[PodInfo], case: Case, text: str = "", family: str = FEWEST) -> ClusterChange:
    """Returns the change that ends the given running pods.

    text: of the change; by default the names of the pods, or an empty text if these are too many. family: as in
    `ClusterChange`.
    """
    broken = breaks_gangs(pods, case)
    text = text or completed(pods, case)
    return ClusterChange(
        text and f"{text}{not_replaced(pods)}",
        Effort.OTHERS_END,
        of_snapshot(succeeded(pods)),
        len(pods),
        family,
        supersedes="" if broken else WHOLE_GANGS,
        amount=float(broken),
        parts=frozenset(pod.key for pod in pods),
    )


def _terminating(case: Case) -> Iterator[ClusterChange]:
    """Yields the end of the terminating pods that the unit waits for, if there are any."""
    awaited = find_termination_wait(case.unit, case.round_state)
    if awaited is not None and awaited.pods:
        yield ClusterChange(f"{awaited.what} had ended", Effort.NOTHING, of_snapshot(without(awaited.pods)))


def _obstruction(case: Case) -> Iterator[ClusterChange]:
    """Yields the removal of a pod that blocks devices for the pod to explain, if a device family finds such a pod."""
    found = find_obstruction(case.pod, case.round_state)
    if found is not None:
        yield ClusterChange(found.miss, Effort.OTHERS_END, of_snapshot(without([case.snapshot.pods[found.pod]])), 0)


class _RemovalSearch:
    """Finds the pods that must be removed from a node so that it has one more slot for a pod of a kind."""

    def __init__(self, case: Case, pod: PodInfo) -> None:
        self._case, self._pod = case, pod
        self.slots = case.round_state.of(pod).slots.copy()
        """[nodes] slots for the pod without any removal."""

    def _slots(self, node: int, gone: Sequence[PodInfo]) -> int:
        """Returns the slots of a node without the pods in `gone`."""
        with self._case.round_state.draft.trial(gone):
            return int(self._case.round_state.of(self._pod).slots[node])

    def freed(self, node: int, gone: Sequence[PodInfo] = (), number: int = 1) -> list[PodInfo] | None:
        """Returns the fewest pods to remove from a node, in addition to `gone`, for `number` more slots.

        Returns None if the removal of `ADVICE_ENDING` pods is not enough. First all small sets with sufficient sums of
        requests are checked: fewest pods first, then sets that break no gang, then the smallest requests. If none is
        enough, pods are added, the largest first (`_share`), and then pods that are not needed are dropped.
        """
        case = self._case
        there = [pod for pod in case.snapshot.pods_on.get(case.snapshot.nodes[node].name, ()) if may_end(pod, case)]
        there = [pod for pod in there if pod not in gone]
        there.sort(key=lambda pod: (-self._share(pod), pod.key))
        del there[ADVICE_ENDING_TRIED:]
        before = self._slots(node, gone) + number - 1
        for few in self._small_sets(node, gone, there, before):
            if self._slots(node, [*gone, *few]) > before:
                return list(few)
        more = list[PodInfo]()
        for pod in there[:ADVICE_ENDING]:
            more.append(pod)
            if self._slots(node, [*gone, *more]) > before:
                break
        else:
            return None
        for pod in tuple(more):
            left = [one for one in more if one is not pod]
            if left and self._slots(node, [*gone, *left]) > before:
                more = left
        return more

    def fewest(self, nodes: Sequence[int], slots: int) -> list[PodInfo]:
        """Returns the fewest pods to remove from the given nodes for `slots` more slots; empty if too many would be
        needed.

        Dynamic programming over nodes and slots, O(nodes x slots^2), with the sets of pods that `_gains` yields.
        """
        best: dict[int, list[PodInfo]] = {0: []}
        for node in nodes:
            options = list(self._gains(node, slots))
            for have, pods in sorted(best.items(), reverse=True):
                for gained, gone in options:
                    total, both = min(slots, have + gained), [*pods, *gone]
                    if total not in best or len(both) < len(best[total]):
                        best[total] = both
        found = best.get(slots, [])
        return found if len(found) <= ADVICE_ENDING * ADVICE_NAMED else []

    def _gains(self, node: int, slots: int) -> Iterator[tuple[int, list[PodInfo]]]:
        """Yields (slots that a node gains, fewest pods to remove for them), for 1 up to `slots` slots.

        A set that is too large for an exhaustive search is built from the set for fewer slots.
        """
        before, gained, gone = self._slots(node, ()), 0, list[PodInfo]()
        while gained < slots:
            more = self.freed(node, number=gained + 1)
            if more is None or len(more) > ADVICE_SET:
                added = self.freed(node, gone)
                more = more if added is None else [*gone, *added]
            if more is None:
                return
            gone = more
            gained = self._slots(node, gone) - before
            yield min(slots, gained), gone

    def _share(self, pod: PodInfo) -> float:
        """Returns the size of a pod: the sum over resources of its request divided by the request of the kind."""
        return sum(pod.requests.get(name, 0) / amount for name, amount in self._pod.requests.items() if amount)

    def _small_sets(
        self, node: int, gone: Sequence[PodInfo], there: Sequence[PodInfo], slots: int
    ) -> list[tuple[PodInfo, ...]]:
        """Returns a few of the smallest sets of pods with requests that are enough for more than `slots` slots.

        Empty if no set of at most `ADVICE_SET` pods is enough. The node may still gain no slot, for example because of
        a host port, so the caller checks each set.
        """
        case, names = self._case, list(self._pod.requests)
        columns = [0, *(case.snapshot.columns[name] for name in names)]
        asked = np.array([1, *self._pod.requests.values()])

        def amounts(pods: Sequence[PodInfo]) -> Ints:  # [pods, resources]
            rows = [[1, *(pod.requests.get(name, 0) for name in names)] for pod in pods]
            return np.array(rows, dtype=np.int64).reshape(-1, len(columns))

        free = case.round_state.draft.free()[node][columns] + amounts(gone).sum(axis=0)
        lacks, given = (slots + 1) * asked - free, amounts(there)
        for size in range(1, min(ADVICE_SET, len(there)) + 1):
            sets = np.array(list(combinations(range(len(there)), size)))
            enough = sets[(given[sets].sum(axis=1) >= lacks).all(axis=1)].tolist()
            found = [tuple(there[i] for i in one) for one in enough]
            found.sort(key=lambda few: sum(map(self._share, few)))
            if found:
                return sorted(found[:ADVICE_POOL], key=lambda few: breaks_gangs(few, case))[:ADVICE_SETS_TRIED]
        return []


def _able(case: Case, pod: PodInfo) -> list[int]:
    """Returns the first `ADVICE_NODES_TRIED` of `_open_nodes`."""
    return _open_nodes(case, pod)[:ADVICE_NODES_TRIED]


def _open_nodes(case: Case, pod: PodInfo) -> list[int]:
    """Returns the positions of nodes that could take a pod of the kind of `pod` after other pods have ended.

    Nodes that lack the smallest part of the requested resources are first.
    """
    draft, snapshot, asked = case.round_state.draft, case.snapshot, pod.requests
    free = draft.free()
    grounds = case.grounds(pod)

    def lacks(node: int) -> float:
        return sum(max(0, n - int(free[node, snapshot.columns[r]])) / n for r, n in asked.items() if n)

    open_nodes = [i for i, found in enumerate(grounds) if all(one.code is Code.UNSCHEDULABLE for one in found)]
    return sorted(filter(case.may_hold, open_nodes), key=lambda i: (lacks(i), natural_key(snapshot.nodes[i].name)))


def _least_number(case: Case, pod: PodInfo, node: int) -> int:
    """Returns a lower bound on the number of pods that must end on a node for one more pod of a kind.

    If even the end of all pods is not enough, the number is larger than the number of pods on the node.
    """
    free, most = case.round_state.draft.free()[node], 0
    there = [one for one in case.snapshot.pods_on.get(_name(case, node), ()) if may_end(one, case)]
    for name, amount in pod.requests.items():
        lacks, number = amount - int(free[case.snapshot.columns[name]]), 0
        for given in sorted((one.requests.get(name, 0) for one in there), reverse=True):
            if lacks <= 0:
                break
            lacks, number = lacks - given, number + 1
        most = max(most, number if lacks <= 0 else len(there) + 1)
    return most


def _on_one_node(case: Case) -> Iterator[ClusterChange]:
    """Yields, for a plain pod, the nodes on which the fewest pods must end.

    The text names the resource that the node lacks, except if the end of the pods also makes a quota admit the pod.
    """
    pod, snapshot, refusals = case.pod, case.snapshot, limit_refusals(case, case.snapshot)
    room = _RemovalSearch(case, pod)
    nodes = sorted(_open_nodes(case, pod), key=lambda i: _least_number(case, pod, i))[:ADVICE_NODES_TRIED]
    found = [(gone, i) for i in nodes if not room.slots[i] and (gone := room.freed(i))]
    for gone, i in sorted(found, key=lambda one: (len(one[0]), breaks_gangs(one[0], case)))[:ADVICE_NAMED]:
        names = completed(gone, case)
        if not names:
            continue
        name, free = snapshot.nodes[i].name, case.round_state.draft.free()[i]
        parts = []
        for resource, amount in pod.requests.items():
            left = int(free[snapshot.columns[resource]])
            if left < amount and not relieves_quotas(gone, refusals, case):
                text = f"{quantity_text(resource, amount - left)} more {resource}"
                parts.append(f"{text} free (now {quantity_text(resource, max(0, left))})")
        text = (
            f"node {name} had {' and '.join(parts)}, for example after {names}" if parts else f"{names} on node {name}"
        )
        yield completion(gone, case, text)


def _in_one_domain(case: Case) -> Iterator[ClusterChange]:
    """Yields, for a gang and a few hard domains, a small set of pods that must end there so that the gang fits.

    The set is the smallest that frees the missing slots for the scarcest kind. The text has the number of members,
    except if the end of the pods also makes a quota admit the gang.
    """
    refusals = limit_refusals(case, case.snapshot)
    reference = case.scarcest
    tree, hard = case.snapshot.tree, case.hard
    able = _able(case, reference)
    room = _RemovalSearch(case, reference)
    domains = dict.fromkeys(case.domain_of[i] for i in able)
    found: list[tuple[int, ClusterChange]] = []
    for domain in sorted(domains, key=lambda d: -case.slots[d])[:ADVICE_DOMAINS]:
        nodes = [i for i in able if case.domain_of[i] == domain]
        slots = max(1, case.needed - int(case.slots[domain]))
        if slots > ADVICE_ENDING * ADVICE_NAMED:
            continue
        gone = room.fewest(nodes, slots)
        names = completed(gone, case) if gone else ""
        if gone and not names:
            gone = _with_whole_parts(gone, case, domain)
            names = completed(gone, case)
        if names:
            place = f"{tree.layer_name(hard)} {tree.path(hard, domain)}" if hard else "the cluster"
            like = f"{'s' if slots > 1 else ''} like {reference.key}" if len(case.kinds) > 1 else ""
            pods = f"{slots} more pod{like}" if like else count_noun(slots, "more member")
            text = f"{place} had room for {pods}, for example after {names}"
            text = names if relieves_quotas(gone, refusals, case) else text
            found.append((len(gone), completion(gone, case, text)))
    yield from [change for _, change in sorted(found, key=lambda one: one[0])[:ADVICE_NAMED]]


def _with_whole_parts(pods: Sequence[PodInfo], case: Case, domain: int) -> list[PodInfo]:
    """Returns the pods and all other pods of their gangs in a hard domain, so that a short text can name them."""
    index, found = case.snapshot.index, {pod.key: pod for pod in pods}
    for ref in dict.fromkeys(pod.gang for pod in pods if pod.gang is not None):
        there = [pod for pod in running(ref, case) if pod.node in index and may_end(pod, case)]
        found |= {pod.key: pod for pod in there if case.domain_of[index[pod.node]] == domain}
    return list(found.values())


def _name(case: Case, node: int) -> str:
    return case.snapshot.nodes[node].name


def _fewest(case: Case) -> Iterator[ClusterChange]:
    """Yields, for a few places, a small set of pods that must end there, found by trials instead of slots.

    A place is a list of nodes. The first trial removes up to `ADVICE_POOL` pods of the place. If that helps, further
    trials remove fewer pods.
    """
    for nodes in _places(case):
        pool: list[PodInfo] = []
        for i in nodes:
            there = [pod for pod in case.snapshot.pods_on.get(_name(case, i), ()) if may_end(pod, case)]
            asked = case.scarcest.requests
            there.sort(key=lambda pod: (-sum(pod.requests.get(r, 0) / n for r, n in asked.items() if n), pod.key))
            pool += there
        if pool := pool[:ADVICE_POOL]:
            change = partial(completion, case=case)
            yield replace(change(pool), parts=frozenset(), reduce=partial(_fewer, change, pool))


def _places(case: Case) -> Iterator[list[int]]:
    """Yields places for `_fewest`: lists of nodes on which pods may have to end, full nodes first.

    With MustGather for the whole unit, a place is a hard domain; those with the most slots are first. Otherwise the
    domains that lack slots for parts of the unit are yielded, if there are any, and then all nodes.
    """
    nodes = _open_nodes(case, case.scarcest)
    full = case.round_state.of(case.scarcest).slots == 0
    nodes.sort(key=lambda i: not full[i])
    if case.hard:
        domains = dict.fromkeys(case.domain_of[i] for i in nodes)
        for domain in sorted(domains, key=lambda d: -case.slots[d])[:ADVICE_NAMED]:
            yield [i for i in nodes if case.domain_of[i] == domain]
        return
    needs = part_needs(case)
    if needs is not None:
        domain_of = case.snapshot.tree.domain_of[needs.level].tolist()
        yield [i for domain in needs.lacks for i in nodes if domain_of[i] == domain]
    yield nodes


def _fewer(
    change: Callable[[Sequence[PodInfo]], ClusterChange],
    pool: Sequence[PodInfo],
    helps: Callable[[ClusterChange], bool],
) -> ClusterChange:
    """Returns a smaller change that still helps; its text is empty if too many pods would remain.

    Finds the shortest beginning of `pool` that helps. Then drops whole nodes and single pods that are not needed.
    change: pods -> change that ends them. helps: returns True if a change helps.
    """

    def enough(pods: Sequence[PodInfo]) -> bool:
        return helps(change(pods))

    chosen = shortest_start(pool, enough)
    if len(chosen) > ADVICE_ENDING * ADVICE_NAMED:
        return replace(change(chosen), text="")
    for node in dict.fromkeys(pod.node for pod in chosen[:-1]):
        left = [pod for pod in chosen if pod.node != node]
        if left and len(left) < len(chosen) - 1 and enough(left):
            chosen = left
    return change(without_unneeded(chosen, enough))


def _whole_units(case: Case) -> Iterator[ClusterChange]:
    """Yields the completion of one gang, for a few gangs on useful nodes, the smallest first."""
    snapshot = case.snapshot
    useful = {snapshot.nodes[i].name for pod in case.kinds for i in _able(case, pod)}
    found = []
    for ref, pods in snapshot.members.items():
        bound = [pod for pod in pods if pod.bound]
        may = all(may_end(pod, case) or pod.key in case.round_state.draft.evicted for pod in bound)
        if len(bound) > 1 and may and useful & {pod.node for pod in bound}:
            found.append((len(bound), natural_key(ref.key), ref.key, bound))
    for size, _, key, bound in sorted(found, key=lambda one: one[:2])[:ADVICE_UNITS_ENDED]:
        yield completion(bound, case, f"gang {key} ({size} pods) completed", WHOLE_GANGS)
