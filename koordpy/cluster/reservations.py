"""Capacity that is kept though no pod holds it yet: for one pod on a node, or as amounts that count as used.

Every way of keeping capacity is one of these two. The Snapshot carries what was kept before the round. A Draft adds
what the round keeps, and takes it back with everything else (`snapshot.py`).
"""

from dataclasses import dataclass
from enum import StrEnum

from koordpy.cluster.quotas import ShareQueue


@dataclass(frozen=True, slots=True)
class Reservation:
    """The place of a pod without a node: nominated to it, or seen to fit there once ending pods are gone.

    It ends with the nomination, or when the pod is planned again. Whoever may not have it counts the pod as if it were
    there: pods of the same or a lower priority.
    """

    node: str
    closed_to: frozenset[ShareQueue] = frozenset()
    """Quotas and users that it was reclaimed from: may not have it, whatever their pods' priority."""
    awaited: bool = False
    """Found in this round: nobody behind the pod may have it, and the pod fits once the ending pods are gone."""
    behind: frozenset[str] = frozenset()
    """Keys of pods that the pod waits for though its own room is there: to await it does not count against them."""


class Purpose(StrEnum):
    """What amounts on nodes are set aside for."""

    STARVING = "starving"
    """Nodes held for a job that has waited too long; for the rest of the round."""
    PROMISED = "promised"
    """The place of the unit that a start is promised to; for those that would not have ended by then."""
    SEARCHED = "searched"
    """What units could use that a search has not decided; for one attempt of a unit behind them."""
