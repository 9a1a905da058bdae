"""One change of a cluster, its configuration or a pending unit, as a what-if applies it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import Edit
from koordpy.config.configuration import KoordpyConfiguration


class Effort(IntEnum):
    """Effort of a change, the least first."""

    NOTHING = 0
    """The unit only has to wait."""
    MISTAKE = 1
    """A misspelt name is corrected."""
    OWN_WISH = 2
    """The unit gives up one of its own rules."""
    OPEN_NODE = 3
    """A closed node becomes available."""
    OTHERS_END = 4
    """Running or pending pods of other units are removed."""
    LIMIT = 5
    """A quota or a setting of the cluster is changed."""
    SMALLER = 6
    """The unit requests less."""
    NEW_NODE = 7
    """The cluster gets more nodes."""
    NO_GANG = 8
    """The pods of the unit no longer have to start together."""


@dataclass(frozen=True)
class World:
    """Input of the planner."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    only: frozenset[str] | None = None
    """Ids of the units to plan; None for all pending units."""


@dataclass(frozen=True)
class ClusterChange:
    """A change that may let the unit start."""

    text: str
    """An end of `Would fit if`, in the subjunctive."""
    effort: Effort
    make: Callable[[World], World]
    """Returns the world after the change. Raises VariantError if that world is not known exactly."""
    size: int = 0
    """Order among changes of one effort: the smaller needs less."""
    family: str = ""
    """Equal for changes of which only the first that helps is shown; empty for an independent change."""
    also: tuple[Callable[[World], World], ...] = ()
    """Other ways to apply the same change that the text does not distinguish from the first; all of them must help."""
    spares: str = ""
    """Another family of which no change is shown once this change helps; empty for none."""
    of_all: bool = False
    """True if the change helps only if the round binds every pod of the unit, evicts none for them, and still binds all
    other pods that it binds without the change."""

    reduce: Callable[[Callable[["ClusterChange"], bool]], "ClusterChange"] | None = None
    """Returns the smallest change of the same form that helps, given a function that tests a change. None for a fixed
    change."""

    @property
    def asks(self) -> tuple[int, int]:
        return int(self.effort), self.size

    def beside(self, other: "ClusterChange") -> "ClusterChange":
        """Returns both changes as one."""
        return ClusterChange(
            f"{self.text}, and {other.text}",
            max(self.effort, other.effort),
            _then(self.make, other.make),
            self.size + other.size,
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
