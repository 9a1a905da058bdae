# SPDX-License-Identifier: Apache-2.0
"""Defines the record of a gang's lost members, and of the seats that are reserved for them (repair.md 4.5 and 7).

It is shown as `gangs[].repair` of a simulation and in the condition Degraded of a PodGroup.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from koordpy.api.counted_nouns import count_noun
from koordpy.api.times import rfc3339
from koordpy.config.node_failures import RepairPolicy


class KeptSeats(NamedTuple):
    """The seats of one gang: capacity that is reserved for its missing members."""

    until: float
    """End of the reservation, in seconds since 1970."""
    nodes: Mapping[str, int]
    """Node name -> number of missing members with a seat on this node."""


def bound_text(number: int) -> str:
    """Returns `1 member is bound or has Succeeded` or `3 members are bound or have Succeeded`."""
    verbs = ("is", "has") if number == 1 else ("are", "have")
    return f"{count_noun(number, 'member')} {verbs[0]} bound or {verbs[1]} Succeeded"


@dataclass(frozen=True, slots=True)
class LostMember:
    """A bound pod on a lost node."""

    pod_key: str
    """`namespace/name`."""
    node: str
    cause: str
    """Why the node counts as lost: `NodeGone`, `NodeTaint` or `NodeCondition`."""
    text: str
    """The cause in words, such as `taint node.kubernetes.io/unreachable`."""


@dataclass(frozen=True, slots=True)
class GangRepair:
    """The losses of one gang."""

    policy: RepairPolicy
    have: int
    """Number of members that are live or have Succeeded."""
    min_member: int
    missing: int
    """Number of missing members; 0 if the gang is not broken."""
    ranks: tuple[int, ...]
    """Ranks of the missing members; empty if no live member has a rank or an index."""
    lost: tuple[LostMember, ...] = ()
    """The members on lost nodes, in natural order."""
    hurt: tuple[str, ...] = ()
    """Keys of live members with an unhealthy device, in natural order."""
    seats: Mapping[str, int] = field(default_factory=dict)
    """Node name -> number of missing members with a seat on this node; empty without seats."""
    seats_until: float | None = None
    """End of the seats' reservation, in seconds since 1970; None without seats."""

    def warning(self, key: str) -> str:
        """Returns the message of the event GangDegraded. key: name of the gang."""
        return f"gang {key} has {self.text}"

    @property
    def text(self) -> str:
        """The message of the condition Degraded: the missing members, the cause, and the nodes with their seats."""
        ranks = f", missing ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        text = f"{self.have} of {self.min_member} members{ranks}"
        if self.lost:
            nodes = dict.fromkeys(f"{one.node} ({one.text})" for one in self.lost)
            text += f"; lost on {'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes)}"
        if self.seats and self.seats_until is not None:
            text += f"; seats kept on {', '.join(self.seats)} until {rfc3339(self.seats_until)}"
        return text
