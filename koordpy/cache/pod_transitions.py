# SPDX-License-Identifier: Apache-2.0
"""The states of a pod in the cache, and the steps by which the books (indexes by node, gang, quota) follow a change.

Unlike in kube-scheduler's cache, pods without a node are stored too. The events are methods of `PodBook`;
of several rows that match an event, the last one applies:

    from                    event                                               to
    absent                  put_pod without a node                              without a node
    without a node          assume                                              assumed
    assumed                 forget                                              without a node
    any                     put_pod with a node                                 bound
    any                     put_pod with a node and a deletion timestamp        ending
    bound                   foresee_end: an eviction was requested              ending
    any                     put_pod of a Succeeded or Failed pod with a gang    finished
    any                     put_pod of a Succeeded or Failed pod without one    absent
    any                     drop_pod                                            absent

Assumed, bound and ending pods are counted at their node. An assumed pod remains assumed if the watch shows it without a
node, because that state may be older than the Binding. A Succeeded pod may have a gang derived from its Volcano
PodGroup.
"""

from dataclasses import dataclass
from enum import Enum, auto

from koordpy.pods.pod_info import PodInfo, stays


class PodChange(Enum):
    """How a pod's new state differs from the stored pod of the same name."""

    NEW = auto()
    """No pod of the name is known."""
    RECREATED = auto()
    """The known pod has another uid."""
    REGROUPED = auto()
    """The same pod has another gang, or none any more."""
    CHANGED = auto()
    """The same pod has the same gang. Something that books count has changed; or the pod is not bound before and after,
    then nothing is compared."""
    CONFIRMED = auto()
    """The pod stays on its node, and nothing that books count has changed, except perhaps its devices, as when the
    watch confirms an assumption."""


@dataclass(frozen=True, slots=True)
class BookSteps:
    """What `PodBook` does, in this order, before it adds the new state of a pod."""

    removes: bool = False
    """True if the stored pod is removed from every book."""
    leaves: bool = False
    """True if the stored pod's gang records that a member left, unless the new state has the same gang."""
    joins: bool = False
    """True if the gang of the new state records that a member is new."""


STEPS = {
    PodChange.NEW: BookSteps(joins=True),
    PodChange.RECREATED: BookSteps(removes=True, leaves=True, joins=True),
    PodChange.REGROUPED: BookSteps(removes=True, leaves=True, joins=True),
    PodChange.CHANGED: BookSteps(removes=True),
}
"""Change -> steps. A CONFIRMED pod is replaced in place: only its devices are accounted again."""


def change_of(old: PodInfo | None, info: PodInfo) -> PodChange:
    """Returns how `info` differs from the stored pod of its name. old: None if no pod of the name is stored."""
    if old is None:
        return PodChange.NEW
    if old.uid != info.uid:
        return PodChange.RECREATED
    if _holds_the_same(old, info):
        return PodChange.CONFIRMED
    return PodChange.CHANGED if old.gang == info.gang else PodChange.REGROUPED


def _holds_the_same(old: PodInfo, info: PodInfo) -> bool:
    """Returns True if both states have the same node and are equal in all that books count, apart from devices."""
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
