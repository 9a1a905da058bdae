# SPDX-License-Identifier: Apache-2.0
"""The nodes as they would be after every pod that can end has ended: the empty cluster of `never_fits.py`.

The capacity of a node is its allocatable less the requests of pods that never end (DaemonSets, mirror pods). Its
conditions, such as a cordon, are ignored, because they are temporary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import is_

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import PODS, Ints, NodeInfo
from koordpy.devices.family_registry import requested_devices_of, usable_columns
from koordpy.feasibility.round_state import RoundState, read_of
from koordpy.framework.filter_protocol import chain
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Allowance, Member, Problem, Shape
from koordpy.plan.limits import (
    EMPTIED_TIME,
)
from koordpy.plugins.node_filters import first_words
from koordpy.plugins.node_repair import check_spare
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import bounded_multiples, hard_level, unit_multiples

Mask = NDArray[np.bool_]

NODE_CONDITIONS = "node.kubernetes.io/"
"""Prefix of taints that represent a condition of the node, which is temporary."""


class EmptyNodes:
    """The nodes of a snapshot without the pods that can end, and placement problems on them."""

    def __init__(self, round_state: RoundState) -> None:
        self._round_state, self._snapshot = round_state, round_state.snapshot
        self._room: Ints = np.maximum(self._snapshot.allocatable - self._snapshot.unevictable_used, 0)
        """[nodes, resources] allocatable less requests of pods that never end, at least 0."""
        self._open = _without_cordons(self._snapshot.nodes)
        """The nodes without cordons and condition taints; the snapshot's own tuple if no node has any."""
        self._matching: dict[bytes, Mask] = {}
        """Cache of `_matches`, by `read_of`."""
        self._able: dict[bytes, Mask] = {}
        """Cache of `_nodes_for`, by shape; without `_copies_of`."""

    def _lacking(self, pod: PodInfo) -> list[tuple[str, int, int]]:
        """Returns the resources that no matching node has enough of.

        Each as (resource, largest amount on any matching node, request).
        """
        rows = self._room[self._matches(pod)]
        out = []
        for name, amount in self._request_of(pod).items():
            most = int(rows[:, self._snapshot.columns[name]].max(initial=0))
            if most < amount:
                out.append((name, most, amount))
        return out

    def _request_of(self, pod: PodInfo) -> dict[str, int]:
        """Returns resource -> amount that a node must have free for a pod, including 1 for the number of pods."""
        return {PODS: 1, **{name: n for name, n in pod.requests.items() if n and not self._round_state.ignored(name)}}

    def _matches(self, pod: PodInfo) -> Mask:
        """Returns [nodes] True if labels, affinity and taints admit a pod, and the node is not a spare that is closed
        to it.

        Conditions of the node are ignored.
        """
        found = self._admits(pod)
        closed = check_spare(pod, self._round_state.inputs) if self._snapshot.keeps_spares else None
        return found if closed is None else found & closed.fits

    def _admits(self, pod: PodInfo) -> Mask:
        """Returns [nodes] True if labels, affinity and taints admit a pod. Conditions of the node are ignored."""
        if self._open is self._snapshot.nodes:
            return self._round_state.lets_in(pod) & (not self._conflicts(pod))
        read = read_of(pod)
        if read not in self._matching:
            added = self._round_state.config.filters.node_affinity.added_affinity
            parts, refusal = first_words(self._open, pod.pod, added)
            self._matching[read] = chain(parts).fits & (refusal is None)
        return self._matching[read]

    def _conflicts(self, pod: PodInfo) -> bool:
        """Returns True if the pod's node affinity lists node names that contradict each other, so that no node
        matches."""
        return self._round_state.of(pod).static.refusal is not None

    def _nodes_for(self, pod: PodInfo, unit: Unit) -> Mask:
        """Returns [nodes] True if the empty node could take one pod of a unit: it matches, is large enough, and has the
        devices."""
        known = self._able.get(pod.shape)
        if known is None:
            known = self._matches(pod) & ~self._never_served(pod)
            for name, amount in self._request_of(pod).items():
                known = known & (self._room[:, self._snapshot.columns[name]] >= amount)
            self._able[pod.shape] = known
        for most in self._copies_of(pod, unit):
            known = known & (most > 0)
        return known

    def _never_served(self, pod: PodInfo) -> Mask:
        """Returns [nodes] True if a rule refuses the node for a reason that remains even if all pods there end.

        The reason is that the node's devices can never serve the pod, or that the node lacks a label of the pod's
        spread constraints.
        """
        out = np.zeros(len(self._snapshot.nodes), dtype=bool)
        for rule in self._round_state.of(pod).rules:
            if rule.outlasts_pods:
                word = rule.verdict()
                out |= np.array([False, *map(rule.is_lasting, word.refusals)], dtype=bool)[word.which]
        return out

    def _problem(self, unit: Unit) -> Problem:
        """Returns the placement problem of a unit on the empty cluster, with numbers of pods, resources and devices.

        A rule that limits the copies of a pod on an empty node is a further column of its shape. Other filters are left
        out. So if this problem is infeasible, the unit certainly does not fit; if it is feasible, the unit may still
        not fit.
        """
        snapshot, round_state = self._snapshot, self._round_state
        kinds = {pod.shape: pod for pod in reversed(unit.pending)}
        number = {shape: i for i, shape in enumerate(kinds)}
        gangs = {gang.ref: i for i, gang in enumerate(unit.gangs)}
        # members: bound members of the unit continue to use their capacity and devices
        free = snapshot.allocatable - snapshot.unevictable_used
        usable = usable_columns(tuple(kinds.values()), round_state.inputs)
        held = {family: np.zeros(len(snapshot.nodes), dtype=np.int64) for family in usable}
        members = []
        for pod in unit.members:
            gang = gangs[pod.gang] if pod.gang is not None else 0
            if pod.pending:
                members.append(Member(gang, number[pod.shape]))
                continue
            node = snapshot.index.get(pod.node, -1)
            members.append(Member(gang, -1, node))
            if node >= 0 and pod.bound:
                free[node] -= snapshot.requests_of([pod])
                for family in usable if pod.asks else ():
                    held[family][node] += requested_devices_of(pod, family)
        # shapes: devices of a family are a further column of each shape
        columns, shapes = [free], []
        for pod in kinds.values():
            request = tuple((snapshot.columns[name], amount) for name, amount in self._request_of(pod).items())
            for family, could in usable.items():
                if devices := requested_devices_of(pod, family):
                    request = (*request, (free.shape[1] + len(columns) - 1, devices))
                    columns.append((could - held[family])[:, None])
            for most in self._copies_of(pod, unit):
                request = (*request, (free.shape[1] + len(columns) - 1, 1))
                columns.append(np.minimum(most, len(unit.members))[:, None])
            allowed = self._nodes_for(pod, unit).astype(np.int64)
            shapes.append(Shape(request, allowed, np.zeros(len(free), dtype=np.int64)))
        bound, room = len(unit.members) - len(unit.pending), np.concatenate(columns, axis=1)
        return Problem(
            tree=snapshot.tree,
            free=room,
            shapes=tuple(shapes),
            members=tuple(members),
            needs=tuple(unit.need(gang) for gang in unit.gangs) or (1,),
            attract=np.zeros(len(free), dtype=np.int64),
            name_rank=snapshot.name_rank,
            gather=unit.has_goal,
            hard=hard_level(unit, round_state),
            multiples=bounded_multiples(unit_multiples(unit, round_state), shapes, room, bound=bound),
            deterministic_time=EMPTIED_TIME,
            watchdog_seconds=round_state.config.solver.wall_time_watchdog,
            allowances=tuple(self._allowances(unit, kinds)),
        )

    def _copies_of(self, pod: PodInfo, unit: Unit) -> Iterator[Ints]:
        """Yields [nodes] how many copies of a pod of a unit a rule admits on the empty node, for each rule that limits
        them."""
        own = [one.key for one in unit.members if one.bound]
        for rule in self._round_state.of(pod).rules:
            most = rule.empty_copies(own)
            if most is not None:
                yield most

    def _allowances(self, unit: Unit, kinds: Mapping[bytes, PodInfo]) -> Iterator[Allowance]:
        """Yields for each quota and resource its max less the requests of the unit's bound members."""
        quotas = self._snapshot.quotas
        if not quotas.tree.quotas:
            return
        paths = {pod.owner: quotas.tree.path(quotas.quota_of(pod)) for pod in unit.members}
        for name in dict.fromkeys(name for path in paths.values() for name in path):
            for resource, most in quotas.tree.quotas[name].max.items():
                asked = [p.charged_alone.get(resource, 0) * (name in paths[p.owner]) for p in kinds.values()]
                held = sum(p.charged.get(resource, 0) for p in unit.members if p.bound and name in paths[p.owner])
                if any(asked):
                    yield Allowance(max(0, most - held), tuple(asked))


def _without_cordons(nodes: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
    """Returns the nodes without cordons and condition taints; the same tuple if no node has any."""
    opened = tuple(map(_uncordoned, nodes))
    return nodes if all(map(is_, opened, nodes)) else opened


def _uncordoned(node: NodeInfo) -> NodeInfo:
    """Returns a node without cordon and condition taints; the same object if it has none."""
    lasting = tuple(taint for taint in node.taints if not taint.key.startswith(NODE_CONDITIONS))
    if not node.unschedulable and len(lasting) == len(node.taints):
        return node
    return replace(node, taints=lasting, unschedulable=False)
