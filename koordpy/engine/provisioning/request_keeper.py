# SPDX-License-Identifier: Apache-2.0
"""Creates and deletes ProvisioningRequests, so that exactly the units that need nodes have a request (repair.md 3.3).

`planned` records which units a round has decided, and which of them need nodes. Every second, `look` compares these
units with the existing requests, and creates or deletes requests. If no round of this process has decided a unit yet,
its request is left alone, so that a new leader deletes no request too early.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_replies import is_older
from koordpy.engine.client.api_resources import PROVISIONING_REQUESTS, Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.provisioning.request_news import RequestNews
from koordpy.engine.provisioning.request_writes import NotOursError, RequestWrites
from koordpy.engine.status.event_recorder import ObjectReference, of_pod
from koordpy.engine.wakeups import Wake
from koordpy.gangs.gang_settings import oldest_pod
from koordpy.plan.round_plan import RoundPlan
from koordpy.plan.wanted_nodes import WantedNodes
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.provisioning.provisioning_report import UNDECIDED, states_of
from koordpy.provisioning.request_states import RequestPhase, RequestState, unit_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval of the comparison, in seconds."""
LONGEST_PAUSE = 60.0
"""Longest pause between writes for a unit that fail again and again, in seconds."""


@dataclass(slots=True)
class _Want:
    """A unit that needs nodes."""

    wanted: WantedNodes
    since: float
    """Clock time since which every round has found that the unit needs nodes."""


class RequestKeeper:
    """Creates and deletes requests. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._settings = context.settings.config.autoscaling.provisioning
        self._context, self._state, self._queue = context, context.state, context.queue
        self._clock, self._now = context.clock, context.now
        self._writes = RequestWrites(context.client, context.may_write)
        self._news = RequestNews(context)
        self._wants: dict[str, _Want] = {}
        """Title of a unit, the names of its gangs (`WantedNodes.title`) -> the unit."""
        self._not_asking: set[str] = set()
        """Gangs that need no nodes, as decided by a round of this process."""
        self._undecided: set[str] = set()
        """Gangs for which the last round could not decide whether they need nodes."""
        self._failures = Counter[str]()
        """Title -> consecutive failures of its writes."""
        self._not_before: dict[str, float] = {}
        """Title -> clock time before which nothing is written for the unit, because writes have failed."""
        self._warned = False

    # -- rounds -------------------------------------------------------------------------------------------------------

    def planned(self, plan: RoundPlan) -> None:
        """Records which units a round has decided, and which of them need nodes."""
        if self._settings.mode == "off":
            return
        asked = {one.unit: one for one in plan.wanted_nodes}
        unsure = {one.unit for one in plan.pending if one.reason in UNDECIDED}
        for unit in plan.units:
            pods = (self._state.pod(key) for key in unit.pod_keys)
            gangs = {pod.gang.key for pod in pods if pod is not None and pod.gang is not None}
            if unit.unit in asked:
                wanted = asked[unit.unit]
                known = self._wants.get(wanted.title)
                self._wants[wanted.title] = _Want(wanted, known.since if known is not None else self._clock())
                self._not_asking -= gangs
                self._undecided -= gangs
            elif unit.unit in unsure:
                self._undecided |= gangs
            else:
                self._wants = {title: one for title, one in self._wants.items() if one.wanted.unit != unit.unit}
                self._not_asking |= gangs
                self._undecided -= gangs

    # -- the comparison -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Compares periodically until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Compares wanted and existing requests once, and writes the difference."""
        resource = self._context.feeds.served.get(PROVISIONING_REQUESTS)
        if resource is None:
            if not self._warned:
                self._warned = True
                logger.warning("ProvisioningRequests are not served: autoscaling.provisioning.mode counts as off")
            return
        requests = [one for one in self._state.provisioning_requests() if unit_of(one)]
        self._forget_gone(requests)
        order = self._queue.entries
        wants = sorted(
            (one.wanted for one in self._wants.values() if one.wanted.unit in order),
            key=lambda one: (-order[one.unit].priority, order[one.unit].created),
        )
        found = states_of(wants, requests, self._undecided, self._settings, self._now())
        phases = Counter(str(state.phase) for _, state in found)
        metrics = self._context.metrics
        metrics.set_gauge(metrics.provisioning_requests, {(str(one),): phases[one] for one in RequestPhase})
        asked = {(wanted.namespace, wanted.title) for wanted, _ in found}
        for request in requests:
            if (request.metadata.namespace, unit_of(request)) not in asked and (outcome := self._end_of(request)):
                await self._try(unit_of(request), self._delete(request, outcome, resource))
        for wanted, state in found:
            self._news.saw(wanted, state, self._owner(wanted))
            if self._clock() >= self._not_before.get(wanted.title, 0.0):
                await self._try(wanted.title, self._settle(wanted, state, resource))
        self._news.is_first = False

    def _forget_gone(self, requests: Iterable[ProvisioningRequest]) -> None:
        """Drops records of units and gangs that do not exist any more."""
        there = {gang for title in (*self._wants, *map(unit_of, requests)) for gang in title.split(",")}
        self._wants = {title: one for title, one in self._wants.items() if one.wanted.unit in self._queue.entries}
        self._not_asking &= there
        self._undecided &= there
        titles = {*self._wants, *map(unit_of, requests)}
        self._not_before = {title: at for title, at in self._not_before.items() if title in titles}
        self._failures = Counter({title: n for title, n in self._failures.items() if title in titles})
        self._news.forget({one.metadata.uid for one in requests})

    def _end_of(self, request: ProvisioningRequest) -> str:
        """Returns why a request is deleted if its unit is not known to need nodes; empty if the request is kept.

        `used`: no member is pending any more. `dropped`: all pods have ended, or a round decided that no nodes are
        needed.
        """
        gangs = unit_of(request).split(",")
        members = [pod for gang in gangs for pod in self._members(gang)]
        pending = [pod for pod in members if not pod.pod.spec.node_name and not pod.finished]
        if not any(not pod.finished for pod in members):
            return "dropped"
        if not pending:
            return "used"
        return (
            "dropped" if any(gang in self._not_asking for gang in gangs) and all(pod.pending for pod in pending) else ""
        )

    def _members(self, gang: str) -> Iterable[PodInfo]:
        return (pod for source in GangSource for pod in self._state.gangs.members(GangRef.from_key(gang, source)))

    def _owner(self, wanted: WantedNodes) -> ObjectReference | None:
        """Returns the object that owns a unit's requests: the PodGroup of its first gang, else the oldest pod."""
        references, members = self._context.references, list(self._members(wanted.gang))
        group = references.pod_group(wanted.gang) or references.upstream_group(wanted.gang)
        return group or (of_pod(oldest_pod(members)) if members else None)

    async def _settle(self, wanted: WantedNodes, state: RequestState, resource: Resource) -> None:
        """Creates the next request of a unit if it is due, and deletes the requests that it replaces.

        A failed request is deleted after the next attempt was created, because its name stores the number of attempts.
        A first attempt has the same name as the requests that it replaces, so these are deleted before it is created.
        """
        if state.phase is not RequestPhase.WANTED:
            gone = () if state.phase is RequestPhase.QUEUED and state.attempt > 1 else state.delete
            await self._delete_all(gone, resource)
            return
        if state.attempt == 1:
            await self._delete_all(state.delete, resource)
        want, owner = self._wants.get(wanted.title), self._owner(wanted)
        if want is None or owner is None or self._clock() < want.since + self._settings.after:
            return
        made = await self._writes.create(wanted, state.attempt, owner, resource)
        if made is None:
            return
        known = self._state.get(ProvisioningRequest, f"{made.metadata.namespace}/{made.metadata.name}")
        # the watch may have delivered a newer state before the reply
        if known is None or is_older(known.metadata.resource_version, made.metadata.resource_version):
            self._state.upsert(made)
        self._news.created(owner, made)
        if state.attempt > 1:
            await self._delete_all(state.delete, resource)

    async def _delete_all(self, requests: Iterable[ProvisioningRequest], resource: Resource) -> None:
        for request in requests:
            await self._delete(request, "dropped" if self._news.is_alive(request) else "", resource)

    async def _delete(self, request: ProvisioningRequest, outcome: str, resource: Resource) -> None:
        """Deletes a request. outcome: label of the metric; empty if the request was counted when it failed."""
        if await self._writes.delete(request, resource):
            self._state.delete(ProvisioningRequest, f"{request.metadata.namespace}/{request.metadata.name}")
            self._queue.broadcast(Wake.NODE_OPENED, "ProvisioningRequest")
            if outcome:
                self._news.count(outcome)

    async def _try(self, title: str, writes: Coroutine[Any, Any, None]) -> None:
        """Runs the writes of one unit. After an error nothing is written for the unit for a while; the pause doubles
        with each error."""
        try:
            await writes
            self._failures.pop(title, None)
        except (ApiError, Unreachable, NotOursError) as error:
            self._failures[title] += 1
            self._not_before[title] = self._clock() + min(LONGEST_PAUSE, 2.0 ** min(self._failures[title], 10))
            logger.warning("ProvisioningRequest of %s: %s", title, error)
