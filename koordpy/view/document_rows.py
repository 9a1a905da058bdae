# SPDX-License-Identifier: Apache-2.0
"""Builds rows and entries of the web UI's document from a snapshot and the scheduler's remarks (view.md).

The functions are pure. Remarks are facts that only a scheduler knows, such as its last decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import cells
from koordpy.explain.explanation import Explanation
from koordpy.fairness.order_keys import Job
from koordpy.fairness.quota_runtime import all_quota_amounts
from koordpy.gangs.queue_units import Unit
from koordpy.infeasibility.domain_inventory import free_for_gangs
from koordpy.observe.decision_log import Decision
from koordpy.observe.gauges import share_gauges
from koordpy.plan.round_plan import PromisedStart
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices, ShownLinks
from koordpy.pods.pod_info import PodInfo

UNITS_SHOWN = 2000
"""Maximum number of queued units that are listed; further units are only counted."""


PODS_SHOWN = 64
"""Maximum number of pods that are named per unit of the queue."""


SHAPES_SHOWN = 4
"""Maximum number of different requests that are listed per unit of the queue."""


Document = dict[str, Any]


Row = list[Any]


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """Planned place of a pod that is not bound."""

    node: str
    devices: AllocatedDevices = field(default_factory=lambda: NO_DEVICES)
    """Devices of each family that the plan assigns to the pod by name."""
    evicts: bool = False
    """True if other pods are evicted from the node first."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """Facts about units that only a scheduler knows, because the snapshot does not have them."""

    source: str = ""
    """Where the data come from, as the page shows it."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """Unit -> its last message."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Unit -> its state in the queue of a live scheduler."""
    decisions: tuple[Decision, ...] = ()
    """The last decisions, the oldest first."""
    decided: int = 0
    """Number of decisions since the start, including those that are no longer in `decisions`."""
    plans: tuple[Decision, ...] = ()
    """Decisions that the next round would make, if rounds are not carried out; else empty."""
    planned: Mapping[str, PlannedPlace] = field(default_factory=dict)
    """Pod -> its place in a plan that is not carried out: in the next round's plan, or in a simulation."""
    reservation: PromisedStart | None = None
    """Start that is promised to the first pending unit; None if none is promised."""
    warnings: tuple[str, ...] = ()


PRODUCTS = ("nvidia.com/gpu.product", keys.GPU_MODEL)
"""Node labels with the product name of the accelerators."""


TEMPLATE_HASH = "pod-template-hash"


def changed_rows(rows: dict[str, Row], fresh: Mapping[str, Row | None]) -> dict[str, Row | None]:
    """Updates `rows` with fresh rows (None deletes a row). Returns the fresh rows that differ from the old rows."""
    out = {key: row for key, row in fresh.items() if rows.get(key) != row}
    for key, row in out.items():
        if row is None:
            del rows[key]
        else:
            rows[key] = row
    return out


def is_alike(before: Snapshot, now: Snapshot) -> bool:
    """Returns True if queue, quotas and free capacity are equal. Nodes and pods must be equal already."""
    settings = (
        (
            one.pod_groups,
            one.upstream_groups,
            one.workload_gangs,
            one.static_version,
            one.capacity_version,
        )
        for one in (before, now)
    )
    same = before.tree is now.tree and before.quotas == now.quotas and next(settings) == next(settings)
    if not same or before.families.keys() != now.families.keys():
        return False
    return all(view.is_room_of(before.families[one]) for one, view in now.families.items())


def planned_row(place: PlannedPlace, now: Snapshot) -> Row:
    """Returns [node, indexes of its accelerators or null, True if pods are evicted first]."""
    return [place.node, list(cells(place.node, place.devices, now)) or None, place.evicts]


def workload_name(meta: ObjectMeta) -> str:
    """Returns the controller of a pod, such as `Job/train`; empty if it has none. A Deployment replaces its
    ReplicaSet."""
    owner = meta.controller
    if owner is None:
        return ""
    suffix = f"-{meta.labels.get(TEMPLATE_HASH, '')}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return f"Deployment/{owner.name.removesuffix(suffix)}"
    return f"{owner.kind}/{owner.name}"


def pod_state(pod: PodInfo, ours: frozenset[str]) -> str:
    """Returns the state of a pod as a letter.

    e: terminating, o: of another scheduler, a: Binding in progress, r: bound, n: nominated, g: has scheduling gates, w:
    waiting.
    """
    if pod.node:
        if pod.pod.metadata.deletion_timestamp:
            return "e"
        if pod.pod.spec.scheduler_name not in ours:
            return "o"
        return "r" if pod.pod.spec.node_name else "a"
    if pod.nominated_node:
        return "n"
    return "g" if pod.pod.spec.scheduling_gates else "w"


def tree_document(snapshot: Snapshot) -> Document:
    tree = snapshot.tree
    return {
        "layers": [level.layer for level in tree.levels],
        "domains": [
            {"names": list(level.names), "starts": level.start.tolist()} for level in tree.levels[: tree.depth]
        ],
        "nodes": list(tree.node_names),
    }


def matrix_document(links: ShownLinks) -> Document:
    """Returns the bandwidth of each pair of devices in GB/s, with its source."""
    return {"source": links.source, "gbps": [[round(cell / 1e6, 1) for cell in row] for row in links.lowest]}


def queue_entry(unit: Unit, held: str, snapshot: Snapshot, told: Remarks, last: Decision | None) -> Document:
    first, job = unit.members[0], Job(unit)
    shapes: dict[tuple[tuple[str, int], ...], int] = {}
    for pod in unit.pending:
        shape = tuple(pod.requests.items())
        shapes[shape] = shapes.get(shape, 0) + 1
    promise = told.reservation if told.reservation is not None and told.reservation.unit == unit.id else None
    room = {one.pod: one.node for one in last.nominated} if last is not None else {}
    room |= {pod.key: told.planned[pod.key].node for pod in unit.pending if pod.key in told.planned}
    room |= {pod.key: pod.nominated_node for pod in unit.pending if pod.nominated_node}
    room |= promise.nodes if promise is not None else {}
    return {
        "unit": unit.id,
        "gangs": [gang.key for gang in unit.gangs],
        "pods": [pod.key for pod in unit.pending[:PODS_SHOWN]],
        "pending": len(unit.pending),
        "members": len(unit.members),
        "user": snapshot.quotas.user_of(first),
        "quota": snapshot.quotas.quota_of(first),
        "priority": job.priority,
        "asks": [
            [count, {name: quantity_text(name, amount) for name, amount in shape}]
            for shape, count in islice(shapes.items(), SHAPES_SHOWN)
        ],
        "since": job.since,
        "state": "held" if held else told.states.get(unit.id, "waiting"),
        "message": held or told.messages.get(unit.id, ""),
        "start": promise.start if promise is not None else None,
        "room": room,
        "victims": _victims(last) if last is not None else [],
    }


def decision_entry(one: Decision, *, done: bool = True) -> Document:
    """Returns the entry of a decision. done: False for a plan that is not carried out."""
    return {
        "round": one.round,
        "at": one.at,
        "unit": one.unit,
        "what": _what(one, done),
        "line": one.line(),
        "why": one.message,
        "placed": one.placed,
        "pods": one.pods,
        "layer": one.layer,
        "nodes": list(one.nodes),
        "for": one.beneficiary,
        "victims": _victims(one),
    }


def _victims(one: Decision) -> list[Row]:
    return [[victim.pod, victim.node, victim.rule] for victim in one.victims]


def _what(one: Decision, done: bool) -> str:
    if one.victims:
        return "would evict" if one.dry_run else "evicted"
    if one.placed:
        what = "bound in part" if one.placed < one.pods else "bound"
        return what if done else what.replace("bound", "would bind")
    return "refused"


def quota_rows(snapshot: Snapshot, config: KoordpyConfiguration) -> list[Document]:
    own = snapshot.quotas.tree.quotas
    out: list[Document] = []
    for name, of_quota in all_quota_amounts(snapshot.quotas, config.quota).items():
        quota = own.get(name)
        amounts: dict[str, Row] = {}
        for resource in quota.max if quota is not None else of_quota.used:
            values = (
                quota.least(resource) if quota is not None else 0,
                of_quota.runtime.get(resource),
                of_quota.used.get(resource, 0),
                of_quota.request.get(resource, 0),
                quota.max[resource] if quota is not None else None,
            )
            amounts[resource] = [_number(resource, one) for one in values]
        out.append({"name": name, "parent": quota.parent if quota is not None else "", "amounts": amounts})
    return out


def _number(resource: str, amount: int | None) -> float | int | None:
    """Returns an amount in cores, bytes or devices."""
    return amount / 1000 if amount is not None and resource == "cpu" else amount


def share_rows(snapshot: Snapshot, config: KoordpyConfiguration) -> list[Row]:
    """Returns rows [user or queue, its fair share in accelerators, accelerators that it uses]."""
    rows: dict[str, Row] = {}
    for (name, kind), amount in share_gauges(snapshot.quotas, config.fairness).items():
        rows.setdefault(name, [name, 0.0, 0.0])[1 if kind == "fair" else 2] = amount
    return list(rows.values())


def slot_document(
    snapshot: Snapshot, config: KoordpyConfiguration, planned: Mapping[str, PlannedPlace]
) -> Document | None:
    """Returns the free slots next to the planned pods; None if no node has accelerators.

    A node from which pods are to be evicted has no free slots, because its remaining capacity is not certain.
    """
    places = {
        key: (place.node, place.devices)
        for key, place in planned.items()
        if place.node in snapshot.index and key in snapshot.pods and not snapshot.pods[key].node
    }
    found = free_for_gangs(snapshot, config, placed=places)
    if found is None:
        return None
    return {
        "resource": found.resource,
        "perPod": found.per_pod,
        "gangs": list(found.gangs),
        "layers": [list(row) for row in found.layers],
        "domains": [list(row) for row in found.slots],
        "largest": [[one.layer, one.domain, one.pods] for one in found.largest],
    }


def help_document(found: Explanation) -> Document:
    """Returns the part of an explanation that the page shows for a queued unit."""
    standing = found.queue_rank
    return {
        "message": found.message,
        "help": list(found.would_fit_if),
        "domains": [[one.layer, one.name, one.slots, one.needed, one.chosen] for one in found.domains],
        "place": standing.place if standing is not None else None,
        "held": dict(standing.used) if standing is not None else {},
        "share": dict(standing.share) if standing is not None else {},
    }
