# SPDX-License-Identifier: Apache-2.0
"""The placement rules of Ascend NPUs behind the planner's interface `JobPlacement` (docs/rules/ascend.md 3 to 6).

Three kinds of jobs have rules: jobs in logical SuperPoDs (blocks of nodes in one fabric), jobs under leaf switches, and
gangs without a gather goal, which get their best nodes in rank order. Each method calls another module of this package:
`npu_unit_planner` (gate and placement), `rank_sequence` (order of nodes), `block_moves` (moves of blocks),
`npu_victims` (preemption). This class must not decide anything itself.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from koordpy.devices.ascend.family.chip_dealing import deal
from koordpy.devices.ascend.family.npu_filter import AFFINITY, chips_rule
from koordpy.devices.ascend.jobs import block_moves, npu_unit_planner, npu_victims, rank_sequence
from koordpy.devices.ascend.tables.npu_book import NPUS
from koordpy.devices.placement_rules import JobPlacement, JobPlan, PlaceConditions, ShownScores
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.placement.problem import Problem
from koordpy.pods.pod_info import PodInfo


class NpuPlacement(JobPlacement):
    """Placement rules for NPU jobs: by AscendAffinity, under leaf switches, or in logical SuperPoDs."""

    family = NPUS

    def gate(self, unit: Unit, round_state: RoundState) -> Gate | None:
        """Implements `JobPlacement.gate`: an illegal job, or parts that its rules do not support."""
        return npu_unit_planner.npu_gate(unit, round_state)

    def choose_node(self, pod: PodInfo, round_state: RoundState) -> int | None:
        """Implements `JobPlacement.choose_node`: AscendAffinity before the score."""
        return rank_sequence.best_node(pod, round_state)

    def decides(self, unit: Unit, round_state: RoundState) -> bool:
        """Implements `JobPlacement.decides`: True for jobs under switches or in SuperPoDs."""
        return npu_unit_planner.has_placement_rules(unit, round_state)

    def place(self, unit: Unit, round_state: RoundState, wanted: Collection[str] | None = None) -> JobPlan | None:
        """Implements `JobPlacement.place`."""
        return npu_unit_planner.place_npus(unit, round_state, wanted)

    def place_members(self, unit: Unit, wanted: Collection[str], round_state: RoundState) -> JobPlan | None:
        """Implements `JobPlacement.place_members`."""
        return npu_victims.place_exactly(unit, wanted, round_state)

    def hold_returns(self, returns: Mapping[str, int], round_state: RoundState) -> None:
        """Implements `JobPlacement.hold_returns`."""
        block_moves.hold_returns(returns, round_state)

    def add_demands(self, unit: Unit, problem: Problem, round_state: RoundState) -> Problem:
        """Implements `JobPlacement.add_demands`: each pod of a job with rules needs a whole server."""
        return npu_victims.add_server_demands(unit, problem, round_state)

    def place_conditions(self, unit: Unit, round_state: RoundState) -> PlaceConditions:
        """Implements `JobPlacement.place_conditions`."""
        return npu_victims.conditions(unit, round_state)

    def grow_set(
        self, unit: Unit, ranks: Sequence[int], candidates: Collection[int], round_state: RoundState
    ) -> tuple[int, ...] | None:
        """Implements `JobPlacement.grow_set`: adds members until their blocks are complete."""
        return npu_victims.complete_blocks(unit, ranks, candidates, round_state)

    def is_monotone(self, unit: Unit, round_state: RoundState) -> bool:
        """Implements `JobPlacement.is_monotone`."""
        return npu_victims.is_monotone(unit, round_state)

    def place_returning(
        self, returning: Iterable[PodInfo], round_state: RoundState
    ) -> Iterator[tuple[list[PodInfo], Mapping[str, int]]]:
        """Implements `JobPlacement.place_returning`."""
        return npu_victims.place_returning(returning, round_state)

    def deal_returning(
        self, places: Sequence[tuple[PodInfo, int]], round_state: RoundState
    ) -> Mapping[str, tuple[int, ...]] | None:
        """Implements `JobPlacement.deal_returning`."""
        dealt = deal(places, round_state)
        return None if isinstance(dealt, str) else dealt

    def shown_scores(self, pod: PodInfo, unit: Unit, round_state: RoundState) -> ShownScores | None:
        """Implements `JobPlacement.shown_scores`: AscendAffinity of the nodes."""
        if chips_rule(round_state.rules(pod)) is None:
            return None
        return ShownScores(AFFINITY, npu_unit_planner.affinity_scores(pod, unit, round_state))
