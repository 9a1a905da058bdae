# SPDX-License-Identifier: Apache-2.0
"""Reads a SimulationResult among the manifests: the pods start on the nodes on which they were at the end of that run.

A SimulationResult only names pods and nodes, so the input must contain these objects. It has no volumes and resource
claims that the earlier run bound; `simulate -o manifests` prints these.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from koordpy.api.field_faults import Fault, kind_name
from koordpy.api.objects import Pod
from koordpy.api.spelling import hint
from koordpy.cache.cluster_state import ClusterState
from koordpy.simulation.result_fields import object_order
from koordpy.simulation.simulated_rounds import made_again

GROUP, KIND = "koordpy.io", "SimulationResult"


@dataclass(frozen=True, slots=True)
class FinalPlaces:
    """Final state of the pods in a SimulationResult; all keys are `namespace/name` of pods."""

    nodes: Mapping[str, str]
    """Pod -> its final node."""
    annotations: Mapping[str, Mapping[str, str]]
    """Pod -> annotations that its Binding set."""
    waiting: frozenset[str]
    """Pods that are pending at the end."""
    gone: frozenset[str]
    """Pods that were evicted, or removed by a scenario step, and that were not recreated."""


def read_result(raw: Mapping[str, Any]) -> tuple[FinalPlaces, list[Fault]]:
    """Returns the final state of the pods in a document, and the faults of the document."""
    faults: list[Fault] = []

    def entries(name: str, *texts: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        found = raw.get(name)
        if found is not None and not isinstance(found, list):
            faults.append(Fault(name, f"must be a list, not {kind_name(found)}"))
        for i, one in enumerate(found if isinstance(found, list) else ()):
            wrong = [text for text in texts if not isinstance(one, Mapping) or not isinstance(one.get(text), str)]
            if wrong:
                faults.append(Fault(f"{name}[{i}].{wrong[0]}", "is no text"))
            else:
                yield f"{one['namespace']}/{one['pod']}", one

    named = ("namespace", "pod")
    nodes = {key: str(one["node"]) for key, one in entries("final", *named, "node")}
    annotations: dict[str, Mapping[str, str]] = {}
    for key, one in entries("bindings", *named, "node"):
        notes = one.get("annotations")
        annotations[key] = {str(k): str(v) for k, v in notes.items()} if isinstance(notes, Mapping) else {}
    waiting = frozenset(key for key, _ in entries("pending", *named))
    left = {key for key, _ in entries("evictions", *named)}
    steps = raw.get("steps")
    for step in steps if isinstance(steps, list) else ():
        pods = step.get("gone") if isinstance(step, Mapping) else None
        left.update(key for key in (pods if isinstance(pods, list) else ()) if isinstance(key, str))
    return FinalPlaces(nodes, annotations, waiting, frozenset(left - nodes.keys() - waiting)), faults


def bind_as(
    found: FinalPlaces, state: ClusterState, grow: Callable[[], Sequence[str]], now: datetime, later: int
) -> tuple[int, list[Fault]]:
    """Binds pods to the nodes on which they were at the end of an earlier run.

    Returns the number of objects created after `now`, and faults for pods and nodes that the input does not have. grow:
    creates the pods of workloads that can begin, and returns their keys. later: number of objects created after `now`
    by earlier runs.
    """
    for key in found.gone:
        state.delete(Pod, key)
    for info in sorted(state.pods(), key=lambda one: object_order(one.key)):
        if info.node and found.nodes.get(info.key) != info.node:
            state.delete(Pod, info.key)
            if info.key in found.nodes or info.key in found.waiting:
                later += 1
                state.upsert(made_again(info.pod, later, now))
    faults: list[Fault] = []
    open_ = dict(sorted(found.nodes.items(), key=lambda one: object_order(one[0])))
    for info in state.pods():
        if info.node:
            open_.pop(info.key, None)  # bound already, possibly to a node that the input lacks
    for key, name in list(open_.items()):
        if state.nodes.get(name) is None:
            names = [node.name for node in state.nodes]
            faults.append(Fault("final", f"pod {key}: no node {name} in the input{hint(name, names)}"))
            del open_[key]
    begun = True
    while begun:
        for key, name in list(open_.items()):
            there = state.pod(key)
            if there is not None:
                del open_[key]
                if not there.node:
                    state.bind(key, name, dict(found.annotations.get(key, {})))
        begun = bool(grow())
    known = [info.key for info in state.pods()]
    faults += [Fault("final", f"no pod {key} in the input{hint(key, known)}") for key in open_]
    return later, faults
