"""One change of a cluster, its configuration or a waiting unit, as a what-if carries it out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import Edit
from koordpy.config.configuration import KoordpyConfiguration


class Effort(IntEnum):
    """How much a change asks, the least first."""

    NOTHING = 0
    """The unit has only to wait."""
    MISTAKE = 1
    """A name is spelt otherwise."""
    OWN_WISH = 2
    """The unit gives up one of its own rules."""
    OPEN_NODE = 3
    """A node that is closed is opened."""
    OTHERS_END = 4
    """Running or waiting pods of other units are gone."""
    LIMIT = 5
    """A quota or a setting of the cluster is another one."""
    SMALLER = 6
    """The unit asks for less."""
    NEW_NODE = 7
    """The cluster grows."""
    NO_GANG = 8
    """The unit gives up that its pods start together."""


@dataclass(frozen=True)
class World:
    """What the planner is given. only: the units that are planned, all that wait where it is None."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    only: frozenset[str] | None = None


@dataclass(frozen=True)
class ClusterChange:
    """text: an end of `Would fit if`, in the subjunctive. size: of changes of one effort the smaller asks less."""

    text: str
    effort: Effort
    make: Callable[[World], World]
    """Returns the world after the change. Raises VariantError where that is not known exactly."""
    size: int = 0
    family: str = ""
    """Equal for changes of which the others are left out once one helps; empty for one that stands alone."""
    also: tuple[Callable[[World], World], ...] = ()
    """Other ways to make the same change, which the text does not tell from the first; all have to help."""
    spares: str = ""
    """The family that is left out once this change helps, where it is not its own."""
    of_all: bool = False
    """Whether it counts only where the round binds every pod of the unit, evicts none for them, and binds all other
    pods that it binds without the change."""

    reduce: Callable[[Callable[["ClusterChange"], bool]], "ClusterChange"] | None = None
    """Returns the smallest change of the same form that helps; it is given a test of that. None for a fixed change."""

    @property
    def asks(self) -> tuple[int, int]:
        return int(self.effort), self.size

    def beside(self, other: "ClusterChange") -> "ClusterChange":
        """Both changes as one."""
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
    """A change of the snapshot alone."""
    return lambda world: replace(world, snapshot=edit(world.snapshot))


def of_config(edit: Callable[[KoordpyConfiguration], KoordpyConfiguration]) -> Callable[[World], World]:
    """A change of the configuration alone."""
    return lambda world: replace(world, config=edit(world.config))
