"""One share of deterministic time for all solves of a problem, and the record of each.

Source: gang-network.md section 7, Determinism: one worker, a fixed seed, deterministic time, never wall time.
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


class TimeBudget:
    """Runs CP-SAT models in order until the shared limit is spent.

    `proven` turns false with the first open answer.
    """

    def __init__(self, deterministic_time: float, *, watchdog_seconds: float = 10.0, probing: bool = True) -> None:
        """watchdog_seconds: of the wall, for one solve; only for what the solver's own clock does not see. probing:
        whether a model is looked through for symmetries and implications first, and simplified over and over. In one
        of thousands of 0/1 of which few are tied, as victims are, that alone takes all the time (2.0 and no answer,
        against 0.5 and the optimum)."""
        self.left = deterministic_time
        self._watchdog, self._probing = watchdog_seconds, probing
        self.proven = True
        self.runs: list[SolverRun] = []

    @classmethod
    def of(cls, problem: Problem) -> "TimeBudget":
        """What a problem allows."""
        return cls(problem.deterministic_time, watchdog_seconds=problem.watchdog_seconds)

    def solve(
        self, stage: str, model: cp_model.CpModel, *, share: float = 1.0, linearization: int = 1
    ) -> tuple[Proof, list[int]]:
        """Solves one model with at most `share` of what is left. Returns what is proven and the values (or none)."""
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
        # else a solve leaves the process with SIGINT's default action: Ctrl-C would kill it without any cleaning up
        solver.parameters.catch_sigint_signal = False
        status = solver.solve(model)
        proof = _PROOFS.get(status, Proof.UNKNOWN)
        used = round(float(solver.response_proto.deterministic_time), 12)  # its last digit differs from run to run
        # taking a model in and simplifying it is not in the solver's deterministic time
        self.left -= used + SETUP_TIME * (len(model.proto.variables) + len(model.proto.constraints))
        # amounts whose sums leave 64 bits end here: no answer, and no reason to lose a round
        fault = _first_words(model.validate()) if status == cp_model.MODEL_INVALID else ""
        self.runs.append(SolverRun(stage=stage, status=proof, deterministic_time=used, fault=fault))
        if proof in (Proof.FEASIBLE, Proof.UNKNOWN):
            self.leave_open(stage, told=False)
        return proof, list(solver.response_proto.solution)

    def leave_open(self, stage: str, *, told: bool = True) -> None:
        """Notes that a stage has no proof; told: the first such stage is a run of its own, without a solve."""
        first, self.proven = self.proven, self.proven and stage == NAMES
        if told and first:
            self.runs.append(SolverRun(stage=stage, status=Proof.UNKNOWN, deterministic_time=0.0))

    def leave_ranks_open(self) -> None:
        """Notes that the order of ranks has no proof."""
        self.runs.append(RANKS_OPEN)

    def broken(self, stage: str, fault: str) -> None:
        """Notes an answer that contradicts an earlier one: nothing that rests on it is proven."""
        self.runs.append(SolverRun(stage=stage, status=Proof.UNKNOWN, deterministic_time=0.0, fault=fault))
        self.proven = False


def _first_words(text: str) -> str:
    """What is wrong with a model, without the model."""
    return text.partition(":")[0].strip() or "the model is not valid"
