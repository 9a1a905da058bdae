# SPDX-License-Identifier: Apache-2.0
"""NodeRepair filter of koordpy: refuses nodes that take no pods for now, although all other filters would admit them.

There are several reasons: a condition marks the node as lost, its kubelet has rejected such pods, or it is a spare
node. Each function in `REASONS` checks one reason; the first one that refuses a node determines the node's refusal. The
filter runs after NodeName and before TaintToleration.

To add a reason, write a function and one line in `REASONS`. If its verdict differs between pods of one shape, also add
one line in `DISTINCTIONS`. `Snapshot.closes_nodes` must be True in rounds in which a reason may apply. The verdicts
change with time, so they are not cached between rounds. Sources: repair.md 4.1 and 5, numa.md 8.6 and 8.7.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from koordpy.framework.filter_protocol import Code, Refusal, Verdict, chain, refused_where
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.spare_nodes import is_closed_to, spares_of
from koordpy.pods.pod_info import PodInfo
from koordpy.rejections.request_shapes import RequestShape, request_shape

PLUGIN = "NodeRepair"
REPORTED_BROKEN = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) were reported broken",))
REJECTED_SHAPE = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) rejected pods of this shape lately",))
SPARE = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) are spares",))
REJECTED = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) rejected pods lately",))


def check_reported(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Refuses nodes that count as lost because of a node condition."""
    lost_nodes = inputs.snapshot.lost_nodes
    return _refused([name for name, lost in lost_nodes.items() if lost.condition], REPORTED_BROKEN, inputs)


def check_rejected_shape(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Refuses nodes that are closed to the pod's request shape, because their kubelets rejected such pods (numa.md
    8.6)."""
    closed = inputs.snapshot.closed_nodes.shapes
    if not closed:
        return None
    key = shape_of(pod, inputs).key
    return _refused([name for name, shapes in closed.items() if key in shapes], REJECTED_SHAPE, inputs)


def check_rejecting_node(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Refuses nodes that rejected pods of several shapes, if the pod requests a device resource that all of these
    shapes request (numa.md 8.7)."""
    found = [
        name
        for name, closed in inputs.snapshot.closed_nodes.nodes.items()
        if not closed.resources or any(pod.requests.get(resource, 0) for resource in closed.resources)
    ]
    return _refused(found, REJECTED, inputs)


def check_spare(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Refuses spare nodes to pods that are not members of a broken gang (repair.md 6)."""
    spares = () if inputs.opens_spares else spares_of(inputs.snapshot)
    if not spares or not is_closed_to(pod, inputs):
        return None
    mask = np.zeros(len(inputs.snapshot.nodes), dtype=bool)
    mask[list(spares)] = True
    return refused_where(mask, SPARE)


def _refused(names: Sequence[str], refusal: Refusal, inputs: FilterInputs) -> Verdict | None:
    """Returns the refusal of nodes by name; unknown names are ignored. None if no node is left."""
    snapshot = inputs.snapshot
    found = [snapshot.index[name] for name in names if name in snapshot.index]
    if not found:
        return None
    mask = np.zeros(len(snapshot.nodes), dtype=bool)
    mask[found] = True
    return refused_where(mask, refusal)


def shape_of(pod: PodInfo, inputs: FilterInputs) -> RequestShape:
    """Returns the request shape of a pending pod, cached for the round."""
    known = inputs.memo.setdefault(_Shapes, _Shapes())
    assert isinstance(known, _Shapes)
    found = known.get(pod.key)
    if found is None:
        found = known[pod.key] = request_shape(pod.pod)
    return found


class _Shapes(dict[str, RequestShape]):
    """Key of a pod -> its request shape."""


REASONS: tuple[Callable[[PodInfo, FilterInputs], Verdict | None], ...] = (
    check_reported,
    check_rejected_shape,
    check_rejecting_node,
    check_spare,
)
"""Functions that return the nodes that one reason refuses, in order of precedence; None if it refuses no node."""


class Distinction(NamedTuple):
    """A rule for a reason that gives pods of one shape different verdicts: how to tell these pods apart."""

    applies: Callable[[FilterInputs], bool]
    """Returns False for a round in which the reason refuses no node."""
    signature: Callable[[PodInfo, FilterInputs], str]
    """Returns a text. Pods of one shape with equal texts have the same verdict."""


DISTINCTIONS: tuple[Distinction, ...] = (
    Distinction(
        lambda inputs: bool(inputs.snapshot.closed_nodes.shapes),
        lambda pod, inputs: shape_of(pod, inputs).key.hex(),
    ),
    Distinction(
        lambda inputs: inputs.snapshot.keeps_spares,
        lambda pod, inputs: "" if is_closed_to(pod, inputs) else "repair",
    ),
)
"""One entry for each reason that may give pods of one shape different verdicts."""


def check_repair(pod: PodInfo, inputs: FilterInputs) -> Verdict | None:
    """Returns the verdict of the filter on every node; None if it refuses no node."""
    found = [verdict for check in REASONS if (verdict := check(pod, inputs)) is not None]
    return chain(found) if found else None


def distinctions_of(inputs: FilterInputs) -> list[Distinction]:
    """Returns the distinctions that apply in a round; empty if pods of one shape always get the same verdict."""
    return [one for one in DISTINCTIONS if one.applies(inputs)]
