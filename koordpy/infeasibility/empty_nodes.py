"""Which nodes could hold one pod of a unit, and the unit's problem, once every pod that ends has left.

A node counts with the capacity of pods that stay taken off, whatever state it is in. See `never_fits`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import is_

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import PODS, Ints, NodeInfo
from koordpy.devices.family_registry import asked_of, usable_columns
from koordpy.feasibility.round_state import RoundState, read_of
from koordpy.framework.filter_protocol import chain
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Allowance, Member, Problem, Shape
from koordpy.plan.limits import (
    EMPTIED_TIME,
)
from koordpy.plugins.node_filters import first_words
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import bounded_multiples, hard_level, unit_multiples

Mask = NDArray[np.bool_]

NODE_CONDITIONS = "node.kubernetes.io/"
"""Keys of taints that say what state a node is in: they come and go with it."""


class EmptyNodes:
    """The nodes of a snapshot as pods that end leave them."""

    def __init__(self, figures: RoundState) -> None:
        self._figures, self._snapshot = figures, figures.snapshot
        self._room: Ints = np.maximum(self._snapshot.allocatable - self._snapshot.staying, 0)
        """[nodes, resources] what pods that end leave free."""
        self._open = _opened(self._snapshot.nodes)
        self._matching: dict[bytes, Mask] = {}
        self._able: dict[bytes, Mask] = {}

    def _lacking(self, pod: PodInfo) -> list[tuple[str, int, int]]:
        """(resource, most that a matching node has, request) of those of which no matching node has enough."""
        rows = self._room[self._matches(pod)]
        out = []
        for name, amount in self._asked(pod).items():
            most = int(rows[:, self._snapshot.columns[name]].max(initial=0))
            if most < amount:
                out.append((name, most, amount))
        return out

    def _asked(self, pod: PodInfo) -> dict[str, int]:
        """What a node must have free for a pod, the pod itself included."""
        return {PODS: 1, **{name: n for name, n in pod.requests.items() if n and not self._figures.ignored(name)}}

    def _matches(self, pod: PodInfo) -> Mask:
        """[nodes] True where labels, affinity and taints let a pod in, whatever state the node is in."""
        if self._open is self._snapshot.nodes:
            return self._figures.lets_in(pod) & (not self._conflicts(pod))
        read = read_of(pod)
        if read not in self._matching:
            added = self._figures.config.filters.node_affinity.added_affinity
            parts, refusal = first_words(self._open, pod.pod, added)
            self._matching[read] = chain(parts).fits & (refusal is None)
        return self._matching[read]

    def _conflicts(self, pod: PodInfo) -> bool:
        """Whether its terms of node affinity name no node at all."""
        return self._figures.of(pod).static.refusal is not None

    def _nodes_for(self, pod: PodInfo) -> Mask:
        """[nodes] True where one pod could be: matched, large enough, and with devices that could serve it."""
        known = self._able.get(pod.shape)
        if known is None:
            known = self._matches(pod) & ~self._never_served(pod)
            for name, amount in self._asked(pod).items():
                known = known & (self._room[:, self._snapshot.columns[name]] >= amount)
            self._able[pod.shape] = known
        return known

    def _never_served(self, pod: PodInfo) -> Mask:
        """[nodes] True where the node's devices could never serve a pod, or it lacks a label that the pod is spread
        by."""
        out = np.zeros(len(self._snapshot.nodes), dtype=bool)
        for rule in self._figures.of(pod).rules:
            if rule.outlasts_pods:
                word = rule.verdict()
                out |= np.array([False, *map(rule.is_lasting, word.refusals)], dtype=bool)[word.which]
        return out

    def _problem(self, unit: Unit) -> Problem:
        """The unit on the emptied cluster, as far as numbers tell: whoever has no place here has none there."""
        snapshot, figures = self._snapshot, self._figures
        kinds = {pod.shape: pod for pod in reversed(unit.pending)}
        number = {shape: i for i, shape in enumerate(kinds)}
        gangs = {gang.ref: i for i, gang in enumerate(unit.gangs)}
        free = snapshot.allocatable - snapshot.staying
        usable = usable_columns(tuple(kinds.values()), figures.scene)
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
                free[node] -= snapshot.asked([pod])
                for family in usable if pod.asks else ():
                    held[family][node] += asked_of(pod, family)
        columns, shapes = [free], []
        for pod in kinds.values():
            request = tuple((snapshot.columns[name], amount) for name, amount in self._asked(pod).items())
            for family, could in usable.items():
                if devices := asked_of(pod, family):
                    request = (*request, (free.shape[1] + len(columns) - 1, devices))
                    columns.append((could - held[family])[:, None])
            allowed = self._nodes_for(pod).astype(np.int64)
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
            hard=hard_level(unit, figures),
            multiples=bounded_multiples(unit_multiples(unit, figures), shapes, room, bound=bound),
            deterministic_time=EMPTIED_TIME,
            watchdog_seconds=figures.config.solver.wall_time_watchdog,
            allowances=tuple(self._allowances(unit, kinds)),
        )

    def _allowances(self, unit: Unit, kinds: Mapping[bytes, PodInfo]) -> Iterator[Allowance]:
        """What the quotas' max leave the unit."""
        quotas = self._snapshot.quotas
        if not quotas.tree.quotas:
            return
        paths = {pod.owner: quotas.tree.path(quotas.quota_of(pod)) for pod in unit.members}
        for name in dict.fromkeys(name for path in paths.values() for name in path):
            for resource, most in quotas.tree.quotas[name].max.items():
                asked = [p.requests.get(resource, 0) * (name in paths[p.owner]) for p in kinds.values()]
                held = sum(p.requests.get(resource, 0) for p in unit.members if p.bound and name in paths[p.owner])
                if any(asked):
                    yield Allowance(max(0, most - held), tuple(asked))


def _opened(nodes: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
    """The nodes without cordons and without taints that say what state they are in; the same where none has any."""
    opened = tuple(map(_uncordoned, nodes))
    return nodes if all(map(is_, opened, nodes)) else opened


def _uncordoned(node: NodeInfo) -> NodeInfo:
    lasting = tuple(taint for taint in node.taints if not taint.key.startswith(NODE_CONDITIONS))
    if not node.unschedulable and len(lasting) == len(node.taints):
        return node
    return replace(node, taints=lasting, unschedulable=False)
