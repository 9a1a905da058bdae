# SPDX-License-Identifier: Apache-2.0
"""What a unit asks an autoscaler for: its pending members by kind, and the names of the objects (repair.md 3.2).

Members of one kind have equal requests and constraints (`PodInfo.shape`). The whole unit is asked for, not only the
members that lack capacity, because the autoscaler fills existing nodes first.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pending members of one kind."""

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
    """Names of the unit's gangs, the value of annotation provisioning-for."""
    namespace: str
    gang: str
    """`namespace/name` of the first gang in natural order."""
    class_name: str
    """provisioningClassName."""
    parameters: Mapping[str, str]
    sets: tuple[PodSet, ...]
    """Pod sets in the order of their first ranks."""

    @property
    def stem(self) -> str:
        """Name of the requests without the attempt."""
        name = self.gang.partition("/")[2].translate({ord(":"): "-", ord("@"): "-"})
        return f"koordpy-{name}"

    def name(self, attempt: int) -> str:
        """Returns the name of the request of an attempt, counted from 1."""
        return f"{self.stem}-{attempt}"

    def template(self, attempt: int, number: int) -> str:
        """Returns the name of the PodTemplate of a pod set, counted from 0."""
        return f"{self.name(attempt)}-{number}"

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of pods in each set."""
        return tuple(one.count for one in self.sets)
