# SPDX-License-Identifier: Apache-2.0
"""Defines the nodes that a unit asks an autoscaler for, and the names of the objects that request them (repair.md 3.2).

The nodes are described by the unit's pending members, one pod set per shape (`PodInfo.shape`). All pending members are
included, not only those that lack capacity, because the autoscaler uses free capacity of existing nodes first.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pending members of one shape."""

    pods: tuple[str, ...]
    """Names of the pods, in rank order."""

    @property
    def count(self) -> int:
        """Number of pods."""
        return len(self.pods)


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """The nodes that one unit asks for."""

    unit: str
    """Id of the unit in the queue."""
    title: str
    """Title of the unit: the names of its gangs, as in the annotation provisioning-for."""
    namespace: str
    gang: str
    """`namespace/name` of the first gang in natural order."""
    class_name: str
    """provisioningClassName."""
    parameters: Mapping[str, str]
    sets: tuple[PodSet, ...]
    """Pod sets in the order of their lowest ranks."""

    @property
    def stem(self) -> str:
        """The common beginning of the names of all requests of this unit, without the number of the attempt."""
        name = self.gang.partition("/")[2].translate({ord(":"): "-", ord("@"): "-"})
        return f"koordpy-{name}"

    def name(self, attempt: int) -> str:
        """Returns the name of the request. attempt: its number, from 1."""
        return f"{self.stem}-{attempt}"

    def template(self, attempt: int, number: int) -> str:
        """Returns the name of the PodTemplate of a pod set. number: of the pod set, from 0."""
        return f"{self.name(attempt)}-{number}"

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of pods in each set."""
        return tuple(one.count for one in self.sets)
