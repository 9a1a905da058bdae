# SPDX-License-Identifier: Apache-2.0
"""The table of Ascend products as data: sizes, groups of chips, labels, policies, legal requests, cost tables.

A preset is one row of docs/rules/ascend.md 2: a product, and how requests get chips of it. A new product with a known
`PickRule` is one more row here; no other module names products. The arithmetic of each rule is in `chip_costs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

NPU_910, NPU_310, NPU_310P, NPU = (
    "huawei.com/Ascend910",
    "huawei.com/Ascend310",
    "huawei.com/Ascend310P",
    "huawei.com/npu",
)
"""Extended resources of Ascend NPUs."""

MULTILEVEL = "multilevel"
"""Value of annotation `huawei.com/schedule_policy` that selects no preset but network levels (`multilevel_policy`)."""


class PickRule(Enum):
    """How a preset chooses chips for a request; `chip_costs` implements it."""

    RINGS = "rings"
    """Rings of four chips, with the ring table."""
    FIT = "fit"
    """Any chips. T(N), the cost of ascend.md 3, is the number of free chips that are left over."""
    CARDS_TIGHT = "cards-tight"
    """Any chips, from the cards with the fewest free chips first. The cost is T(N), as for FIT."""
    HALVES = "halves"
    """Two rings of eight chips; requests above eight use pairs across the rings."""
    DIES = "dies"
    """Whole cards of two dies."""
    CARD = "card"
    """All chips on one card, by the card table."""
    DUO = "duo"
    """Whole cards of two dies, and at most one single die."""
    MESH = "mesh"
    """Meshes of four chips."""


@dataclass(frozen=True, slots=True, eq=False)
class Preset:
    """One row of the table of products."""

    name: str
    """Name of the row, used in messages."""
    resource: str
    """Extended resource by which pods request the chips."""
    size: int
    """N: chips of a node."""
    rule: PickRule
    """How chips are chosen."""
    legal: frozenset[int]
    """Legal requests."""
    group: int = 0
    """Chips of a ring, card or mesh; 0 for products without groups."""
    labels: tuple[str, ...] = ()
    """Values of the node label `accelerator-type`; empty for every node with the resource."""
    policies: tuple[str, ...] = ()
    """Values of annotation `huawei.com/schedule_policy` that select the preset."""
    single_pod_requests: frozenset[int] = frozenset()
    """Requests that are legal only in a job of one NPU pod."""
    table: Mapping[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Request -> cost for 1, 2, ... free chips of a group; None for infeasible."""

    def is_legal(self, request: int, *, multi_pod: bool) -> bool:
        """Returns whether a request is legal in a job of one NPU pod or, with `multi_pod`, of more."""
        return request in self.legal or (not multi_pod and request in self.single_pod_requests)


def _upto(most: int, step: int = 1) -> frozenset[int]:
    """Returns step, 2 step, ... up to `most`."""
    return frozenset(range(step, most + 1, step))


RING_TABLE: Mapping[int, tuple[int | None, ...]] = {
    1: (0, 2, 1, 3),
    2: (None, 0, 2, 1),
    4: (None, None, None, 0),
}
"""Request -> cost by free chips 1 to 4 of a ring (ascend.md 3). None: the ring cannot serve the request."""
CARD_310_TABLE: Mapping[int, tuple[int | None, ...]] = {
    1: (0, 2, 1, 3),
    2: (None, 0, 1, 2),
    3: (None, None, 0, 1),
    4: (None, None, None, 0),
}
"""Request -> cost by free chips 1 to 4 of an Ascend310 card."""
DUO_CARD_TABLE: Mapping[int, tuple[int | None, ...]] = {1: (0, 1), 2: (None, 0)}
"""Request -> cost by free dies 1 and 2 of a card with two dies."""

MODULE = Preset(
    "910-module",
    NPU_910,
    8,
    PickRule.RINGS,
    frozenset({1, 2, 4, 8}),
    4,
    ("module",),
    ("chip4-node8",),
    table=RING_TABLE,
)
"""The product of nodes with the label `module`, and of nodes without the label."""

A3_X16 = Preset(
    "a3-x16",
    NPU_910,
    16,
    PickRule.DIES,
    _upto(16, 2),
    2,
    ("module-a3-16", "module-a3-16-super-pod"),
    ("chip2-node16", "chip2-node16-sp"),
    single_pod_requests=frozenset({1}),
)
A3_X8 = Preset(
    "a3-x8",
    NPU_910,
    8,
    PickRule.DIES,
    _upto(8, 2),
    2,
    ("module-a3-8-super-pod",),
    ("chip2-node8", "chip2-node8-sp"),
    single_pod_requests=frozenset({1}),
)
CARD_310 = Preset("310-card", NPU_310, 64, PickRule.CARD, _upto(4), 4, table=CARD_310_TABLE)
CHIP_310 = Preset("310-chip", NPU_310, 64, PickRule.CARDS_TIGHT, _upto(64), 4)
CARDS_310P = Preset("310p", NPU_310P, 8, PickRule.FIT, _upto(8))
DUO_CARD = Preset("310p-duo-card", NPU_310P, 8, PickRule.CARD, _upto(2), 2, table=DUO_CARD_TABLE)
DUO_CHIP = Preset("310p-duo-chip", NPU_310P, 8, PickRule.DUO, _upto(8), 2)
MESH_X8 = Preset("mesh-x8", NPU, 8, PickRule.MESH, _upto(8), 4, policies=("chip4-node8",))
MESH_X16 = Preset("mesh-x16", NPU, 16, PickRule.MESH, _upto(16), 4, policies=("chip4-node16",))

PRESETS: tuple[Preset, ...] = (
    MODULE,
    Preset(
        "910-half",
        NPU_910,
        4,
        PickRule.RINGS,
        frozenset({1, 2, 4}),
        4,
        ("half",),
        ("chip4-node4",),
        table=RING_TABLE,
    ),
    Preset("910-card", NPU_910, 2, PickRule.FIT, _upto(2), 0, ("card",), ("chip1-node2",)),
    Preset("910b-x8", NPU_910, 8, PickRule.FIT, _upto(8), 0, ("module-910b-8",), ("chip8-node8", "chip8-node8-sp")),
    Preset(
        "910b-x16",
        NPU_910,
        16,
        PickRule.HALVES,
        _upto(8) | {10, 12, 14, 16},
        8,
        ("module-910b-16",),
        ("chip8-node16",),
    ),
    A3_X16,
    A3_X8,
    CARD_310,
    CHIP_310,
    CARDS_310P,
    DUO_CARD,
    DUO_CHIP,
    MESH_X8,
    MESH_X16,
)
"""All rows of the table."""

BY_LABEL: Mapping[str, Preset] = {label: preset for preset in PRESETS for label in preset.labels}
"""Value of the node label `accelerator-type` -> product."""
POLICIES: frozenset[str] = frozenset(policy for preset in PRESETS for policy in preset.policies) | {MULTILEVEL}
"""Legal values of annotation `huawei.com/schedule_policy`."""
MESH_WEIGHT: Mapping[int, int] = {8: 16, 16: 64}
"""N -> W, the weight of the score of mesh presets in ascend.md 3."""


def of_policy(policy: str, resource: str) -> Preset | None:
    """Returns the preset that a schedule policy names; None if it names none.

    Two presets have the same policy for different resources; the preset of `resource` is taken.
    """
    named = [preset for preset in PRESETS if policy in preset.policies]
    return next((preset for preset in named if preset.resource == resource), named[0] if named else None)
