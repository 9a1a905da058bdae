# SPDX-License-Identifier: Apache-2.0
"""Allocatable devices that pods get beside devices of claims, as the costs of nodes count them (dra.md 6 (d), (e)).

A device plugin offers allocatable devices as an amount of the node. This module only declares the interface; the family
of the devices implements it.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.links.link_board import NO_LIMIT
from koordpy.pods.pod_info import PodInfo


class DevicesOfNode(NamedTuple):
    """The allocatable devices that pods get on one node."""

    number: int = 0
    """Number of devices that the pods get."""
    slowest: int = NO_LIMIT
    """kB/s of the slowest link between them, by classes of all nodes; `NO_LIMIT` for fewer than two devices."""
    left: int = 0
    """Devices of this kind that stay free on the node; 0 if the pods get none."""
    chosen: tuple[int, ...] | None = ()
    """Positions of the devices in the node's Device; None if they are not known."""


class AllocatableDevices(Protocol):
    """The allocatable devices that pods of a unit may get. node: position of a node on the draft."""

    @property
    def bandwidths(self) -> Sequence[int]:
        """Returns all values, in kB/s, that `DevicesOfNode.slowest` may have besides `NO_LIMIT`."""

    def key(self, node: int) -> Hashable:
        """Returns a key that is equal for nodes on which `on_node` has equal results."""

    def is_exact(self, node: int) -> bool:
        """Returns whether the choice of devices on a node is proven the best."""

    def on_node(self, node: int, pods: Sequence[PodInfo]) -> DevicesOfNode | None:
        """Returns the devices that pods get together on a node; None if the node cannot serve them."""

    def of_pod(self, pod: PodInfo, nodes: Ints) -> "DevicesOfNodes":
        """Returns what a plain pod gets on each of the nodes, which accept it."""


class DevicesOfNodes(NamedTuple):
    """The allocatable devices that one pod gets on each of some nodes. Each array is like the nodes."""

    slowest: Ints
    """As `DevicesOfNode.slowest`."""
    left: Ints
    """As `DevicesOfNode.left`."""


def no_devices(nodes: Ints) -> DevicesOfNodes:
    """Returns the result of `AllocatableDevices.of_pod` for a pod that gets no such devices."""
    return DevicesOfNodes(np.full(len(nodes), NO_LIMIT, dtype=np.int64), np.zeros(len(nodes), dtype=np.int64))
