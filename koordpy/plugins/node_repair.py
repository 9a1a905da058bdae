# SPDX-License-Identifier: Apache-2.0
"""NodeRepair: refuses nodes that take no pods for now, although labels, taints and free capacity would admit them.

The filter is applied after NodeName and before TaintToleration. Each function in `REASONS` answers for one reason; the
first that refuses a node gives the reason of the node. To add a reason, write a function and one line in `REASONS`; if
its answer differs between pods of one shape, also one line in `DISTINCTIONS`. `Snapshot.closes_nodes` must be True in
rounds in which a reason may apply. Unlike the other filters of a node alone,
the answers change with time and with each round, so they are not cached between rounds.
Source: repair.md 4.1 and 5.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from koordpy.framework.filter_protocol import Code, Refusal, Verdict, chain, refused_where
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo

PLUGIN = "NodeRepair"
REPORTED_BROKEN = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) were reported broken",))


def check_reported(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Refuses nodes that a condition marks as lost."""
    snapshot = inputs.snapshot
    broken = [snapshot.index[name] for name, lost in snapshot.lost_nodes.items() if lost.condition]
    if not broken:
        return None
    mask = np.zeros(len(snapshot.nodes), dtype=bool)
    mask[broken] = True
    return refused_where(mask, REPORTED_BROKEN)


REASONS: tuple[Callable[[PodInfo, FilterInputs], Verdict | None], ...] = (check_reported,)
"""Functions that return the nodes that one reason refuses, in order of precedence; None if it refuses no node."""


class Distinction(NamedTuple):
    """What distinguishes pods of one shape for a reason."""

    applies: Callable[[FilterInputs], bool]
    """Returns False for a round in which the reason refuses no node."""
    signature: Callable[[PodInfo, FilterInputs], str]
    """Returns a text that is equal for pods with the same verdict."""


DISTINCTIONS: tuple[Distinction, ...] = ()
"""One entry for each reason with different verdicts for pods of one shape."""


def check_repair(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Returns the verdict of the filter on every node; None if it refuses no node."""
    found = [verdict for check in REASONS if (verdict := check(pod, inputs)) is not None]
    return chain(found) if found else None


def distinctions_of(inputs: FilterInputs) -> list[Distinction]:
    """Returns the distinctions that apply in a round; empty if pods of one shape always get the same verdict."""
    return [one for one in DISTINCTIONS if one.applies(inputs)]
