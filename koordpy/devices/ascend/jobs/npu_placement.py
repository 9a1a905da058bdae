"""The placement rules of Ascend NPUs behind the interface of the planner (docs/rules/ascend.md 3 to 6).

Each method calls another module of this package: `npu_unit_planner` (gate and placement), `rank_sequence` (order of
nodes), `block_moves` (moves of blocks), `npu_victims` (preemption). Must not decide anything itself.
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

    def gate(self, unit: Unit, figures: RoundState) -> Gate | None:
        return npu_unit_planner.npu_gate(unit, figures)

    def choose_node(self, pod: PodInfo, figures: RoundState) -> int | None:
        return rank_sequence.best_node(pod, figures)

    def decides(self, unit: Unit, figures: RoundState) -> bool:
        return npu_unit_planner.has_placement_rules(unit, figures)

    def place(self, unit: Unit, figures: RoundState, wanted: Collection[str] | None = None) -> JobPlan | None:
        return npu_unit_planner.place_npus(unit, figures, wanted)

    def place_members(self, unit: Unit, wanted: Collection[str], figures: RoundState) -> JobPlan | None:
        return npu_victims.place_exactly(unit, wanted, figures)

    def hold_returns(self, returns: Mapping[str, int], figures: RoundState) -> None:
        block_moves.hold_returns(returns, figures)

    def add_demands(self, unit: Unit, problem: Problem, figures: RoundState) -> Problem:
        return npu_victims.add_server_demands(unit, problem, figures)

    def place_conditions(self, unit: Unit, figures: RoundState) -> PlaceConditions:
        return npu_victims.conditions(unit, figures)

    def grow_set(
        self, unit: Unit, ranks: Sequence[int], candidates: Collection[int], figures: RoundState
    ) -> tuple[int, ...] | None:
        return npu_victims.complete_blocks(unit, ranks, candidates, figures)

    def is_monotone(self, unit: Unit, figures: RoundState) -> bool:
        return npu_victims.is_monotone(unit, figures)

    def seat_returning(
        self, returning: Iterable[PodInfo], figures: RoundState
    ) -> Iterator[tuple[list[PodInfo], Mapping[str, int]]]:
        return npu_victims.seat_returning(returning, figures)

    def deal_returning(
        self, places: Sequence[tuple[PodInfo, int]], figures: RoundState
    ) -> Mapping[str, tuple[int, ...]] | None:
        dealt = deal(places, figures)
        return None if isinstance(dealt, str) else dealt

    def shown_scores(self, pod: PodInfo, unit: Unit, figures: RoundState) -> ShownScores | None:
        if chips_rule(figures.rules(pod)) is None:
            return None
        return ShownScores(AFFINITY, npu_unit_planner.affinity_scores(pod, unit, figures))
