# SPDX-License-Identifier: Apache-2.0
"""The constraints between the pending members of one unit, as columns, interactions and refusals.

`member_constraints.py` reads them; the placement problem and the search for victims include them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koordpy.cache.snapshot import Ints
from koordpy.framework.device_limits import FitsAcross, FreedAmounts
from koordpy.framework.filter_protocol import Refusal
from koordpy.placement.member_interactions import AntiAffinity, LinkedAffinity, Tie, renumbered

ColumnRequest = tuple[int, int]
"""(column of `MemberConstraints.capacity`, amount that one pod of a shape requests)."""


@dataclass(frozen=True, eq=False)
class MemberConstraints:
    """Constraints between the pending members of a unit.

    capacity: [nodes, k] capacity of the k columns. asks: shape -> requests of one pod. refusals: shape -> why no plan
    can place it together with the other members. shapes: shapes of the pending members; `ties` refers to them by
    position. one_of: sets of shapes; a plan may place at most one pod of all shapes of a set. among_members: shapes
    with required affinity to other members. stocks: (capacity, shape -> amount) of devices that any node may use.
    one_domain: (shapes, [nodes] domain); a plan must place all pods of the shapes in one domain. freed: column ->
    amounts that evictions add to it; columns without an entry do not depend on running pods.
    fits_across: checks of a plan over all nodes.
    """

    capacity: Ints
    asks: Mapping[bytes, tuple[ColumnRequest, ...]] = field(default_factory=dict)
    refusals: Mapping[bytes, Refusal] = field(default_factory=dict)
    shapes: tuple[bytes, ...] = ()
    ties: tuple[Tie, ...] = ()
    one_of: tuple[frozenset[bytes], ...] = ()
    among_members: frozenset[bytes] = frozenset()
    stocks: tuple[tuple[int, Mapping[bytes, int]], ...] = ()
    one_domain: tuple[tuple[tuple[bytes, ...], Ints], ...] = ()
    freed: Mapping[int, FreedAmounts] = field(default_factory=dict)
    fits_across: tuple[FitsAcross, ...] = ()

    def interactions(self, numbers: Mapping[bytes, Sequence[int]]) -> tuple[Tie, ...]:
        """Returns the interactions between the shapes of a placement problem.

        numbers: pod shape -> its indices in the problem. Shapes without an index are left out.
        """
        new = {i: numbers.get(shape, ()) for i, shape in enumerate(self.shapes)} if self.ties else {}
        return tuple(tie for one in self.ties for tie in renumbered(one, new))

    def are_exclusive(self, shapes: Sequence[bytes]) -> bool:
        """Returns True if no plan places pods of all these shapes, because two share a ReadWriteOncePod claim."""
        return any(sum(shape in some for shape in shapes) > 1 for some in self.one_of)

    def replaced_plugins(self, shape: bytes) -> frozenset[str]:
        """Returns the plugins that interactions replace for the shape. The verdicts of these plugins on one pod must be
        ignored, because they do not consider the other members."""
        out = set()
        for one in self.ties:
            owners = one.shapes if isinstance(one, LinkedAffinity) else (one.shape,)
            if not isinstance(one, AntiAffinity) and any(self.shapes[at] == shape for at in owners):
                out.add(one.plugin)
        return frozenset(out)

    def replaced_plugins_with_victims(self, shape: bytes) -> frozenset[str]:
        """Returns the same as `replaced_plugins`, for a search with victims. Pod affinity is included only if other
        members match it."""
        affinity = frozenset([LinkedAffinity.plugin])
        return self.replaced_plugins(shape) - affinity | (affinity if shape in self.among_members else frozenset())
