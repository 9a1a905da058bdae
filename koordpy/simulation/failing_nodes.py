# SPDX-License-Identifier: Apache-2.0
"""Nodes that fail during a simulation: `koordpy simulate --fail NODE@ROUND` (repair.md 7).

Before the round, the Node, its pods, its Device, its CSINode and its ResourceSlices are deleted. The caller then drops
or recreates the pods (`--evicted`); pods of DaemonSets and mirror pods are never recreated.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from koordpy.api.claim_objects import ResourceSlice
from koordpy.api.custom_objects import Device
from koordpy.api.field_faults import InputFaultsError, literal
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Node, Pod
from koordpy.api.storage_objects import CSINode
from koordpy.cache.cluster_state import ClusterState
from koordpy.decoding.annotation_settings import whole_number
from koordpy.pods.pod_info import SUCCEEDED, PodInfo, stays
from koordpy.simulation.claim_controllers import ClaimControllers
from koordpy.simulation.result_fields import object_order


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node that fails before a round. Rounds are counted from 1."""

    node: str
    round: int

    @property
    def text(self) -> str:
        """The option on the command line."""
        return f"--fail {self.node}@{self.round}"


@dataclass(frozen=True, slots=True)
class FailedNode:
    """A node that has failed."""

    failure: NodeFailure
    pods: tuple[str, ...]
    """Keys of its pods, in natural order, without pods of DaemonSets and mirror pods."""


def read_failures(options: Sequence[str], nodes: Collection[str]) -> list[NodeFailure]:
    """Reads the values of `--fail`. nodes: names of the nodes of the input.

    Raises InputFaultsError with one line for each fault.
    """
    found: list[NodeFailure] = []
    faults: list[str] = []
    for text in options:
        name, mark, number = text.rpartition("@")
        at = whole_number(number)
        if not mark or not name or not number:
            faults.append(f"--fail: {literal(text)}: must be NODE@ROUND")
        elif at is None or at < 1:
            faults.append(f"--fail: {literal(text)}: ROUND must be a whole number of 1 or more")
        else:
            found.append(NodeFailure(name, at))
    named = Counter(one.node for one in found)
    faults += [f"--fail: node {name} is not in the input" for name in named if name not in nodes]
    faults += [f"--fail: node {name} is given twice" for name, times in named.items() if times > 1]
    if nodes and not faults and named.keys() >= set(nodes):
        faults.append("--fail: no node would be left")
    if faults:
        raise InputFaultsError(faults)
    return found


def unreached(failures: Sequence[NodeFailure], rounds: int) -> list[str]:
    """Returns the warnings about failures after the last round of a run."""
    return [f"{one.text}: the run ended after round {rounds}" for one in failures if one.round > rounds]


def remove_nodes(names: Collection[str], state: ClusterState, controllers: ClaimControllers) -> list[PodInfo]:
    """Removes nodes that fail at the same time, with their pods. Returns the pods that may be recreated, in natural
    order.

    Succeeded pods stay: a member that has Succeeded counts in its gang also when its pod is deleted (preemption.md 7).
    controllers: releases the claims of the pods.
    """
    there = [info for info in state.pods() if info.node in names and info.pod.status.phase != SUCCEEDED]
    for info in there:
        state.delete(Pod, info.key)
        controllers.release(info.pod)
    slices = state.objects_of(ResourceSlice)
    for key in [key for key, one in slices.items() if one.spec.node_name in names]:
        state.delete(ResourceSlice, key)
    for name in sorted(names, key=natural_key):
        for kind in (Device, CSINode, Node):
            state.delete(kind, name)
    lasting = (info for info in there if not stays(info) and not info.finished)
    return sorted(lasting, key=lambda info: object_order(info.key))
