"""Which of the units that are due a round takes: light pods in parts, tenants by turns."""

from math import inf

from koordpy.engine.queue_entry import Entry


def select_light_units(light: list[Entry], most: int) -> list[Entry]:
    """Returns the light units that a round takes of many, one at least, until they cost `most` together.

    Order: the highest priority first, of equal priority the oldest of each tenant by turns.
    """
    order = sorted((-entry.priority, entry.created, entry.unit, entry) for entry in light)
    if len({(below, entry.tenant) for below, _, _, entry in order}) > 1:
        had: dict[tuple[int, str], int] = {}
        turns = []
        for place, (below, _, _, entry) in enumerate(order):
            whose = below, entry.tenant
            had[whose] = had.get(whose, 0) + entry.load
            turns.append((below, had[whose], place))
        order = [order[place] for _, _, place in sorted(turns)]
    out: list[Entry] = []
    cost = 0
    for _, _, _, entry in order:
        cost += entry.load
        if out and cost > most:
            break
        out.append(entry)
    return out


def select_untried(due: list[Entry]) -> list[Entry]:
    """Returns the units that a round may take: fairness within one tenant and priority.

    At least one of `due` was passed over. Units of its tenant and priority that were answered after that wait for the
    next round. Else a unit that is woken often would use up what the passed-over unit waits for.
    """
    since: dict[tuple[str, int], float] = {}
    for entry in due:
        if entry.passed_over is not None:
            whose = entry.tenant, entry.priority
            since[whose] = min(since.get(whose, inf), entry.passed_over)
    return [
        entry
        for entry in due
        if entry.passed_over is not None or entry.answered < since.get((entry.tenant, entry.priority), inf)
    ]
