# SPDX-License-Identifier: Apache-2.0
"""Limits which due units a round takes from the queue, so that one tenant does not delay the others.

The planner sorts the taken units by its own queue order; these functions only leave units out.
"""

from math import inf

from koordpy.engine.queue_entry import Entry


def select_light_units(light: list[Entry], most: int) -> list[Entry]:
    """Returns the light units that a round takes: at least one, and otherwise at most `most` in total cost.

    light: all due light units. The order is: highest priority first; within a priority, tenants alternate by cost, and
    each tenant's oldest unit is first.
    """
    order = sorted((-entry.priority, entry.created, entry.unit, entry) for entry in light)
    # With several tenants, a unit's turn is the cost of its tenant's units up to this one. Sorted by these sums,
    # tenants alternate. `below` is the negative priority.
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
    """Returns `due` without units that were tried while another unit of their tenant was passed over.

    A unit is passed over if its tenant had used its share of an earlier round. Until that unit is tried, units of the
    same tenant and priority that got an answer since then are left out. Otherwise a unit that is woken often would use
    all the tenant's time.
    """
    # (tenant, priority) -> clock time since which one of its units is passed over: the earliest of these times
    since: dict[tuple[str, int], float] = {}
    for entry in due:
        if entry.passed_over is not None:
            group = entry.tenant, entry.priority
            since[group] = min(since.get(group, inf), entry.passed_over)
    return [
        entry
        for entry in due
        if entry.passed_over is not None or entry.answered_at < since.get((entry.tenant, entry.priority), inf)
    ]
