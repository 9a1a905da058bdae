# SPDX-License-Identifier: Apache-2.0
"""Runs CP-SAT on models, with one limit of deterministic time for all solves of a problem, and records each solve.

CP-SAT's deterministic time counts the solver's own operations. So a search ends at the same step on every machine, and
equal snapshots give equal plans. With a limit of wall time they would not (docs/rules/gang-network.md 7, Determinism).
"""

from koordpy.placement.problem import Problem
from koordpy.placement.solver.cpsat import cp_model
from koordpy.plan.limits import SETUP_TIME, UNPROVEN_SHARE
from koordpy.plan.round_plan import NAMES, RANKS_OPEN, Proof, SolverRun

_PROOFS = {
    cp_model.OPTIMAL: Proof.OPTIMAL,
    cp_model.FEASIBLE: Proof.FEASIBLE,
    cp_model.INFEASIBLE: Proof.INFEASIBLE,
}

_SEED = 0
"""Random seed of every solve: any fixed number makes plans reproducible."""


class TimeBudget:
    """Runs CP-SAT models one after the other until the shared limit of deterministic time is used up.

    left: remaining deterministic time. proven: True until a stage ends without a proof; the stage of names never
    changes it, because no proof covers names. runs: record of each solve.
    """

    def __init__(self, deterministic_time: float, *, watchdog_seconds: float = 10.0, probing: bool = True) -> None:
        """deterministic_time: limit of all solves together, in CP-SAT's units of deterministic time.

        watchdog_seconds: limit of wall time for one solve, for work that the deterministic clock does not count.

        probing: False to skip, before a solve, the search for symmetries and implications, and repeated simplification.
        In models of thousands of loosely connected 0/1 variables, such as the models of victims, these steps alone use
        all the time: no answer after 2.0, compared to the optimum after 0.5 without them.
        """
        self.left = deterministic_time
        self._watchdog, self._probing = watchdog_seconds, probing
        self.proven = True
        self.runs: list[SolverRun] = []

    @classmethod
    def for_problem(cls, problem: Problem) -> "TimeBudget":
        """Returns a new budget with the limits of a problem."""
        return cls(problem.deterministic_time, watchdog_seconds=problem.watchdog_seconds)

    def solve(
        self, stage: str, model: cp_model.CpModel, *, share: float = 1.0, linearization: int = 1
    ) -> tuple[Proof, list[int]]:
        """Solves one model with at most `share` of the remaining time.

        Returns (proof, value of each variable by index); the values are empty if no solution was found. stage: name of
        the goal, for the record. linearization: CP-SAT's linearization_level.
        """
        limit = self.left * (share if self.proven else share * UNPROVEN_SHARE)
        if limit <= 1e-6:
            self.leave_open(stage)
            return Proof.UNKNOWN, []
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = _SEED
        solver.parameters.max_deterministic_time = limit
        solver.parameters.max_time_in_seconds = self._watchdog
        solver.parameters.linearization_level = linearization
        if not self._probing:
            solver.parameters.symmetry_level = 0
            solver.parameters.cp_model_probing_level = 0
            solver.parameters.max_presolve_iterations = 1
        # otherwise a solve leaves the process with SIGINT's default action: Ctrl-C would kill it without any cleanup
        solver.parameters.catch_sigint_signal = False
        status = solver.solve(model)
        proof = _PROOFS.get(status, Proof.UNKNOWN)
        used = round(float(solver.response_proto.deterministic_time), 12)  # the last digit differs from run to run
        # the solver's deterministic time does not include reading a model and simplifying it
        self.left -= used + SETUP_TIME * (len(model.proto.variables) + len(model.proto.constraints))
        # a model is invalid if sums of amounts exceed 64 bits: report no answer instead of failing the round
        fault = _first_words(model.validate()) if status == cp_model.MODEL_INVALID else ""
        self.runs.append(SolverRun(stage=stage, status=proof, deterministic_time=used, fault=fault))
        if proof in (Proof.FEASIBLE, Proof.UNKNOWN):
            self.leave_open(stage, record=False)
        return proof, list(solver.response_proto.solution)

    def leave_open(self, stage: str, *, record: bool = True) -> None:
        """Sets `proven` to False, because a stage has no proof. The stage of names leaves it unchanged.

        record: True if there was no solve to record. Then the stage is recorded as a separate run, if it is the first
        one without a proof.
        """
        first, self.proven = self.proven, self.proven and stage == NAMES
        if record and first:
            self.runs.append(SolverRun(stage=stage, status=Proof.UNKNOWN, deterministic_time=0.0))

    def leave_ranks_open(self) -> None:
        """Records that the order of ranks has no proof."""
        self.runs.append(RANKS_OPEN)

    def broken(self, stage: str, fault: str) -> None:
        """Records that an answer of the solver contradicts an earlier answer, and sets `proven` to False."""
        self.runs.append(SolverRun(stage=stage, status=Proof.UNKNOWN, deterministic_time=0.0, fault=fault))
        self.proven = False


def _first_words(text: str) -> str:
    """Returns the error of an invalid model, without the model text."""
    return text.partition(":")[0].strip() or "the model is not valid"
