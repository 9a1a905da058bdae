"""The states of a pod in the cache, and what each change of a pod does to the books that account it.

As in the cache of kube-scheduler, the watch confirms what was assumed:

    absent --put--> pending --assume--> assumed --put with the node--> bound --put with a deletion--> ending
       ^               ^                   |                             |                              |
       |               '---- forget -------'                             |                              |
       '------------- drop, or put of a finished pod without a gang that it counts for -----------------'

Assumed, bound and ending pods are accounted to their node. An assumed pod that is shown without a node stays assumed.
"""

from dataclasses import dataclass
from enum import Enum, auto

from koordpy.pods.pod_info import PodInfo, stays


class PodChange(Enum):
    """What a put makes of the pod that was known by the name."""

    NEW = auto()
    """No pod of the name was known."""
    RECREATED = auto()
    """A pod of the same name and another uid was known."""
    REGROUPED = auto()
    """The same pod is in another gang, or in none any more."""
    CHANGED = auto()
    """The same pod is in the same gang and holds something else."""
    CONFIRMED = auto()
    """Nothing that counts for other pods changed but the devices: as where the watch confirms an assumption."""


@dataclass(frozen=True, slots=True)
class BookSteps:
    """What is done to the books, in this order, before the pod is added."""

    removes: bool = False
    """The known pod is taken off every book."""
    leaves: bool = False
    """Its gang, if it is another, is told that a member left."""
    joins: bool = False
    """The pod's gang is told of a new member."""


STEPS = {
    PodChange.NEW: BookSteps(joins=True),
    PodChange.RECREATED: BookSteps(removes=True, leaves=True, joins=True),
    PodChange.REGROUPED: BookSteps(removes=True, leaves=True, joins=True),
    PodChange.CHANGED: BookSteps(removes=True),
}
"""Change -> steps. A CONFIRMED pod is replaced in place: its devices alone are accounted anew."""


def change_of(old: PodInfo | None, info: PodInfo) -> PodChange:
    """Returns what a pod is to the one that is known by its name, None for none."""
    if old is None:
        return PodChange.NEW
    if old.uid != info.uid:
        return PodChange.RECREATED
    if _holds_the_same(old, info):
        return PodChange.CONFIRMED
    return PodChange.CHANGED if old.gang == info.gang else PodChange.REGROUPED


def _holds_the_same(old: PodInfo, info: PodInfo) -> bool:
    """Returns True if nothing changed of a pod on a node that counts for other pods, but its devices."""
    if not (old.bound and info.bound) or old.node != info.node:
        return False
    before, after = old.pod.metadata, info.pod.metadata
    return (
        (old.requests, old.score_requests, old.owner, old.gang)
        == (info.requests, info.score_requests, info.owner, info.gang)
        and old.ties == info.ties
        and before.labels == after.labels
        and old.selector == info.selector
        and stays(old) == stays(info)
        and (before.deletion_timestamp is None) == (after.deletion_timestamp is None)
    )
