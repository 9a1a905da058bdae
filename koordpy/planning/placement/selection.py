"""Which members of a unit of equal pods a plan takes (gang-network.md 2.6): each core, then the lowest ranks."""

from koordpy.planning.placement.problem import Problem


def core_ranks(problem: Problem) -> tuple[int, ...] | None:
    """The lowest-ranked `need` pending members of each gang; None where a gang has fewer pending than its need."""
    core: list[int] = []
    ranks: dict[int, list[int]] = {}
    for rank in problem.pending:
        ranks.setdefault(problem.members[rank].gang, []).append(rank)
    for gang, need in enumerate(problem.needs):
        own = ranks.get(gang, [])
        if len(own) < need:
            return None
        core += own[:need]
    return tuple(sorted(core))


def choose_ranks(problem: Problem, size: int) -> tuple[int, ...]:
    """`size` members of one shape: the core, then the lowest other ranks; empty where they cannot hold the core."""
    core = core_ranks(problem)
    if core is None or size < max(len(core), 1):
        return ()
    chosen = set(core)
    others = [rank for rank in problem.pending if rank not in chosen]
    return tuple(sorted(chosen | set(others[: size - len(core)])))
