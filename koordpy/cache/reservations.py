# SPDX-License-Identifier: Apache-2.0
"""Reservations: capacity that is counted as used for a holder, although no pod uses it on a node yet.

They cover kube-scheduler's assumed and nominated pods, and capacity that is withheld for a unit without nodes. Certain
pods may not use reserved capacity. The states of a pending pod's reservation:

    pending pod --- fits now ----------------------------------> ASSUMED --- Binding confirmed ---> pod on its node
      |   ^                                                       ^   |
      |   |                             terminating pods are gone |   | Binding refused or given up
      |   |                                                       |   v
      |   '--- cleared, expired or not feasible any more --- NOMINATED (or pending)
      |                                                       ^  ^
      |--- fits once terminating pods or victims are gone ----'  |
      |                                                          | a later round finds its nodes
      '--- no node yet, but starving, promised a start, broken,  |
           or with a request for new nodes ----------------- WITHHELD

Pods and units that may not use the capacity, and the end of the reservation:

    stage      holder                            closed to                       until
    ASSUMED    a pod that is being bound         ALL: every other pod            its Binding is confirmed, refused or
                                                                                 given up
    NOMINATED  a pod with a node that is         RANK: pods of its priority or   it is bound, or its nomination is
               written or known from an          below; pods of the quotas and   cleared; at most `until`
               earlier round                     users in `losers`
    NOMINATED  a pod with a node found in        ALL: every later unit, except   the end of the round; the same pod has
               this round (awaited)              the pods in `waits_for`         RANK in the next ones
    WITHHELD   a starving unit                   ALL: every later unit           the end of the round
    WITHHELD   the unit with a promised start    LONGER: units that will not     `until`, the promised start
                                                 have ended by `until`
    WITHHELD   the unit of a request for new     BEHIND: units behind it         the end of the round
               nodes, on these nodes
    WITHHELD   units of other quotas, while      BEHIND: the jobs of the loan    the end of the attempt
               idle runtime is lent
    WITHHELD   a gang that lost members: its     RANK: units of the priority     `until`, the end of the seats
               seats                             of its lowest live member or
                                                 below
    WITHHELD   the successor of a moved pod, on  RANK: units of the moved pod's  `until`, or its successor is bound
               its planned node                  priority or below

The cache stores assumed pods (`expected_pods.py`) and nominated pods (`pod_book.py`). A Snapshot has the nominations of
earlier rounds. A Draft adds the reservations of its round, and undo removes them (`plan_draft.py`). The planner's
ledger decides which capacity is available to a unit (`reservations/reservation_ledger.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

import numpy as np
from numpy.typing import NDArray

from koordpy.pods.claim_refs import CLAIMS, DeviceId
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import ClaimVolume
from koordpy.quota.quota_book import ShareQueue


class ReservationStage(StrEnum):
    """The state of a reservation, by the event for which its holder waits."""

    ASSUMED = "assumed"
    """The holder is a pod that waits for the confirmation of its Binding."""
    NOMINATED = "nominated"
    """The holder is a pod that waits for capacity on its node."""
    WITHHELD = "withheld"
    """The holder is a unit that waits for nodes to be found."""


class ClosedTo(StrEnum):
    """Which pods and units may not use reserved capacity."""

    ALL = "all"
    """All except the pods in `waits_for`."""
    RANK = "rank"
    """Pods of the holder's priority or below, and pods of the quotas and users in `losers`."""
    LONGER = "longer"
    """Units that will still run at `until`, the promised start of the holder."""
    BEHIND = "behind"
    """Units that are behind the holder in the queue."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity that is reserved for one holder."""

    holder: str
    """Key (`namespace/name`) of a pod; title of the unit if the capacity is withheld for a unit without nodes."""
    stage: ReservationStage
    closed_to: ClosedTo
    uid: str = ""
    """uid of the pod. Only the evictor sets it, to distinguish a pod from its successor of the same name."""
    node: str = ""
    """Name of the pod's node; empty if `amounts` states the reserved nodes and capacity."""
    amounts: NDArray[np.int64] | None = field(default=None, compare=False)
    """[nodes, resources] reserved amounts. None: the holder's own requests are reserved on `node`."""
    volumes: Mapping[str, ClaimVolume] = field(default_factory=dict)
    """Volume claim -> the volume and node that the claim is to be bound to."""
    devices: AllocatedDevices = field(default_factory=lambda: NO_DEVICES)
    """Devices of each family that are assigned to the pod."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the pod's Binding that later plans read."""
    losers: frozenset[ShareQueue] = frozenset()
    """Quotas and users from which the capacity was reclaimed."""
    victims: Mapping[str, str] = field(default_factory=dict)
    """Key -> uid of pods that were evicted for the holder's unit."""
    waits_for: frozenset[str] = frozenset()
    """Keys of pods that start before the holder; they may use its capacity until then."""
    until: float = inf
    """End of the reservation in seconds: since the epoch for a promised start, on the process clock for a nomination.
    Infinite if there is no time limit."""


@dataclass(frozen=True, slots=True)
class ReturningPod:
    """A pod that consolidation moves and that is to run again on its planned node, or a pod that starts together with
    it.

    While the moved pod ends and its successor is created, its planned node stays reserved. Live only: offline the
    successor is nominated at once.
    """

    uid: str
    """uid of the pod."""
    pod: PodInfo
    """The pod. Its successor is expected to have the same requests and constraints."""
    node: str
    """Name of the planned node."""
    since: float
    """Time of the pod's eviction, in seconds since the epoch."""
    until: float
    """End of the reservation, in seconds since the epoch."""
    devices: AllocatedDevices = field(default_factory=lambda: NO_DEVICES)
    """Devices of each family that the plan has chosen for the pod on the node."""

    @property
    def holder(self) -> str:
        """Text that the pod and its successor share (`returning_holder`)."""
        return returning_holder(self.pod)


def returning_holder(pod: PodInfo) -> str:
    """Returns a text that a moved pod and its successor share: its gang, else its controller, else its own name."""
    if pod.gang is not None:
        return f"gang {pod.gang.id}"
    owner = pod.pod.metadata.controller
    return f"owner {owner.uid}" if owner is not None else f"pod {pod.key}"


def nomination(pod: str, node: str, losers: Iterable[ShareQueue] = ()) -> Reservation:
    """Returns the reservation of a nominated pod as later rounds see it. losers: as in `Reservation`."""
    return Reservation(pod, ReservationStage.NOMINATED, ClosedTo.RANK, node=node, losers=frozenset(losers))


def place(pod: str, node: str, waits_for: Iterable[str] = ()) -> Reservation:
    """Returns the reservation of a pod for which this round found a node and which starts in a later round."""
    return Reservation(pod, ReservationStage.NOMINATED, ClosedTo.ALL, node=node, waits_for=frozenset(waits_for))


def withheld(
    unit: str,
    closed_to: ClosedTo,
    amounts: NDArray[np.int64],
    until: float = inf,
    devices: AllocatedDevices = NO_DEVICES,
) -> Reservation:
    """Returns the reservation of a unit without nodes. amounts: [nodes, resources]. until, devices: as in
    `Reservation`."""
    return Reservation(unit, ReservationStage.WITHHELD, closed_to, amounts=amounts, until=until, devices=devices)


def reserved_volumes(reservations: Iterable[Reservation]) -> dict[str, str]:
    """Returns volume -> the volume claim for which the volume is reserved."""
    return {taken.volume: claim for one in reservations for claim, taken in one.volumes.items() if taken.volume}


def reserved_devices(reservations: Iterable[Reservation]) -> dict[DeviceId, str]:
    """Returns device -> the resource claim for which the device is reserved."""
    return {
        granted.device: claim
        for one in reservations
        for claim, taken in one.devices.get(CLAIMS, {}).items()
        for granted in taken
        if not granted.admin
    }
