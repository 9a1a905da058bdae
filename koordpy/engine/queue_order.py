"""Selects the due units of a round: a limited number of light pods, fair between tenants."""

from math import inf

from koordpy.engine.queue_entry import Entry


def select_light_units(light: list[Entry], most: int) -> list[Entry]:
    """Returns the light units of a round: at least one, and otherwise at most `most` in total cost.

    Order: highest priority first; within a priority, tenants alternate by cost, and each tenant's oldest unit is first.
    """
    order = sorted((-entry.priority, entry.created, entry.unit, entry) for entry in light)
    if len({(below, entry.tenant) for below, _, _, entry in order}) > 1:
        had: dict[tuple[int, str], int] = {}
        turns = []
        for place, (below, _, _, entry) in enumerate(order):
            group = below, entry.tenant
            had[group] = had.get(group, 0) + entry.load
            turns.append((below, had[group], place))
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
    """Returns the units that a round may try: fairness between units of one tenant and priority.

    Units that a round skipped because their tenant had used its share come first. Units of the same tenant and priority
    that got an answer after that wait for the next round. Otherwise a unit that is woken often would use all the time.
    """
    since: dict[tuple[str, int], float] = {}
    for entry in due:
        if entry.passed_over is not None:
            group = entry.tenant, entry.priority
            since[group] = min(since.get(group, inf), entry.passed_over)
    return [
        entry
        for entry in due
        if entry.passed_over is not None or entry.answered < since.get((entry.tenant, entry.priority), inf)
    ]
