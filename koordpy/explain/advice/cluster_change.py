# SPDX-License-Identifier: Apache-2.0
"""Defines `ClusterChange`: one proposed change of the cluster, the configuration or a pending unit.

A trial (`trials.py`) applies it to a `World`, which is the input of a round, and plans the round.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import Edit
from koordpy.config.configuration import KoordpyConfiguration


class Effort(IntEnum):
    """Kind of effort that a change needs from users; changes with a smaller value are tried and shown first."""

    NOTHING = 0
    """The unit only has to wait."""
    MISTAKE = 1
    """A misspelt name is corrected."""
    OWN_WISH = 2
    """The unit gives up one of its own rules."""
    OPEN_NODE = 3
    """A closed node becomes available, or the unit tolerates its taint."""
    FEWER_MEMBERS = 4
    """The gang starts with fewer members."""
    OTHERS_END = 5
    """Running pods of other units complete, or pending ones are removed."""
    PRIORITY = 6
    """The unit gets a PriorityClass with a higher value."""
    LIMIT = 7
    """A quota, a PriorityClass or a setting of the cluster is changed."""
    SMALLER = 8
    """The unit requests less."""
    NEW_NODE = 9
    """The cluster gets more nodes."""
    NO_GANG = 10
    """The pods of the unit no longer have to start together."""


@dataclass(frozen=True)
class World:
    """The input of a round, which a change may alter."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    only: frozenset[str] | None = None
    """Ids of the units to plan; None for all pending units."""


@dataclass(frozen=True)
class ClusterChange:
    """A change that may let the unit start."""

    text: str
    """End of the line `Would fit if ...`, in the subjunctive."""
    effort: Effort
    make: Callable[[World], World]
    """Returns the world after the change. Raises VariantError if the change cannot be applied exactly."""
    size: int = 0
    """Order among changes with the same effort, such as a number of pods or nodes. Smaller numbers are tried first."""
    family: str = ""
    """Name of a group of similar changes, of which only the first that helps is shown; empty for no group."""
    also: tuple[Callable[[World], World], ...] = ()
    """Other changes that the same text describes, such as the new node in another domain. A user may make any of them,
    so the unit must start with each."""
    supersedes: str = ""
    """Name of another family. If this change helps, no change of that family is shown; empty for none."""
    parts: frozenset[str] = frozenset()
    """The parts of the change, such as the keys of pods that end. If a shown change has a subset of these parts, this
    change is not shown. Empty if the change is not compared with others."""
    amount: float = 0.0
    """Order among changes with the same effort and size, such as the share by which a limit is raised."""
    of_all: bool = False
    """True for a stricter test of whether the change helps: the round must bind every pod of the unit without
    evictions, and must still bind all pods that it binds without the change."""

    reduce: Callable[[Callable[["ClusterChange"], bool]], "ClusterChange"] | None = None
    """Returns the smallest change of the same form that helps. Its argument is a function that tries a change and
    returns True if it helps. None if the change cannot be made smaller."""

    @property
    def order(self) -> tuple[int, int, float]:
        """The order in which changes are tried: (effort, size, amount)."""
        return int(self.effort), self.size, self.amount

    def combined_with(self, other: "ClusterChange") -> "ClusterChange":
        """Returns a change that applies this change and then another one; its text joins both."""
        return ClusterChange(
            f"{self.text}, and {other.text}",
            max(self.effort, other.effort),
            _then(self.make, other.make),
            self.size + other.size,
            parts=self.parts | other.parts,
            amount=self.amount + other.amount,
            also=(
                *(_then(way, other.make) for way in self.also),
                *(_then(self.make, way) for way in other.also),
            ),
        )


def _then(first: Callable[[World], World], second: Callable[[World], World]) -> Callable[[World], World]:
    return lambda world: second(first(world))


def of_snapshot(edit: Edit) -> Callable[[World], World]:
    """Returns a change of the snapshot alone."""
    return lambda world: replace(world, snapshot=edit(world.snapshot))


def of_config(edit: Callable[[KoordpyConfiguration], KoordpyConfiguration]) -> Callable[[World], World]:
    """Returns a change of the configuration alone."""
    return lambda world: replace(world, config=edit(world.config))
