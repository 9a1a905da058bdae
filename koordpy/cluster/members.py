"""The pods of a gang, told apart: who waits, who stands, who has Succeeded.

Source: gang-network.md sections 1 and 2.4.
"""

from dataclasses import dataclass
from functools import cached_property

from koordpy.cluster.ganghistory import NO_PAST, Ended, Past, ended
from koordpy.cluster.pods import SUCCEEDED, PodInfo


@dataclass(frozen=True, kw_only=True)
class Members:
    """Every known pod that names a gang, and what is remembered of others."""

    pods: tuple[PodInfo, ...]
    past: Past = NO_PAST

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """Bound pods and pending ones that are ours and ungated (section 1)."""
        return tuple(pod for pod in self.pods if pod.bound or pod.pending)

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.members if pod.pending)

    @cached_property
    def bound(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.members if pod.bound)

    @cached_property
    def standing(self) -> tuple[PodInfo, ...]:
        """The bound members that are not being deleted."""
        return tuple(pod for pod in self.bound if not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def ended(self) -> tuple[Ended, ...]:
        """The members that have Succeeded, those included whose pods are gone."""
        return (*(ended(pod) for pod in self.pods if pod.pod.status.phase == SUCCEEDED), *self.past.gone)

    @cached_property
    def succeeded(self) -> int:
        """Members of the present run that have Succeeded: none of another owner that ended before the run began."""
        run = self.members
        if not run and self.ended:
            last = max(self.ended, key=lambda one: one.at).owner
            run = tuple(pod for pod in self.pods if pod.controller == last)
            owners = {last}
        else:
            owners = {pod.controller for pod in run}
        began = min((pod.created for pod in run), default=0.0)
        return sum(one.owner in owners or not one.at or one.at > began for one in self.ended)

    @cached_property
    def done(self) -> int:
        """Succeeded members that stand for members that wait, in need and gate (2.4): of the same controlling owner.

        Pods without an owner say by themselves alone what became of them: one that is gone counts for nothing.
        """
        if not self.pending:
            return sum(not one.gone for one in self.ended)
        owners = {pod.controller for pod in self.pending}
        return sum(one.owner in owners and bool(one.owner or not one.gone) for one in self.ended)

    @property
    def present(self) -> int:
        """Members bound or Succeeded."""
        return len(self.bound) + self.succeeded

    def runs(self, min_member: int) -> bool:
        """Whether members are bound and, with those that have Succeeded, as many as the minimum."""
        return bool(self.bound) and self.present >= min_member
