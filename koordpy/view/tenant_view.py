# SPDX-License-Identifier: Apache-2.0
"""Documents for the tenant of one namespace: why its units are pending, its rows of the queue, free slots per domain.

A `SharedView` is one view of the cluster for all tenants: it orders the queue once, so that each answer costs only as
much as it lists. Documents contain the tenant's objects field by field, and only counts of other tenants' objects. All
sentences pass through the `Redactor`. Must not do I/O or wait.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import condition_of
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.status.status_patches import POD_SCHEDULED
from koordpy.explain.explanation import Explanation, explain, left_alone
from koordpy.fairness.order_keys import Job
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.gangs.unit_gates import gate
from koordpy.infeasibility.domain_inventory import asking, take_inventory
from koordpy.plan.limits import ANSWER_ROWS
from koordpy.plan.round_plan import GangStatus
from koordpy.planner.queue.queue_rank import QueueRank, waiting
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo, pod_info
from koordpy.view.document_rows import Remarks
from koordpy.view.redaction import ClusterNames, Redactor, names_of
from koordpy.view.subjects import Makers, Subject, find, makers_of, parse
from koordpy.view.tenant_page import page_for
from koordpy.view.view_document import LiveDocument

Document = dict[str, Any]
SIZES = (1, 8, 64)
"""Gang sizes, in pods, for which `slots` counts how many gangs fit."""
UNDECIDED = "no round has decided about it yet"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One unit of the queue."""

    unit: Unit
    place: int | None
    """Place in the queue, from 1; None for a unit that a gate blocks before planning."""
    blocked_by: str = ""
    """Reason why a gate blocks the unit; empty if no gate blocks it."""


@dataclass(frozen=True)
class SharedView:
    """The cluster at one moment, prepared for answers to all tenants."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    messages: Mapping[str, str]
    """Unit -> its last message; empty on a standby."""
    groups: Groups
    rows: tuple[QueueRow, ...]
    by_namespace: Mapping[str, tuple[QueueRow, ...]]
    """Namespace -> rows of the units with a pending pod in it."""
    names: ClusterNames
    pods: Mapping[str, tuple[PodInfo, ...]]
    """Namespace -> its pods."""

    makers: dict[str, Makers] = field(default_factory=dict)
    """Namespace -> its workloads; only namespaces of earlier questions."""

    def makers_in(self, namespace: str) -> Makers:
        """Returns the workloads of a namespace."""
        found = self.makers.get(namespace)
        if found is None:
            found = self.makers[namespace] = makers_of(self.pods.get(namespace, ()), self.snapshot)
        return found

    @cached_property
    def number_of_pods(self) -> int:
        """Number of pending pods of all tenants."""
        return sum(len(row.unit.pending) for row in self.rows)

    @cached_property
    def places(self) -> Mapping[str, QueueRow]:
        """Unit -> its row."""
        return {row.unit.id: row for row in self.rows}

    @cached_property
    def number_waiting(self) -> int:
        return sum(row.place is not None for row in self.rows)

    def redactor(self, namespace: str) -> Redactor:
        return Redactor(self.names, namespace, self.pods.get(namespace, ()), self.snapshot)


def board_of(snapshot: Snapshot, config: KoordpyConfiguration, messages: Mapping[str, str]) -> SharedView:
    """Builds the shared view: orders the queue, and indexes rows and pods by namespace."""
    groups = Groups(snapshot, config.gangs, config.stale_gangs, repair=config.repair)
    ready, blocked = waiting(groups, snapshot, config)
    rows = [QueueRow(unit, place) for place, unit in enumerate(ready, 1)]
    for unit in blocked:
        stops = gate(unit, groups)
        rows.append(QueueRow(unit, None, stops.text if stops is not None else ""))
    spaces: dict[str, list[QueueRow]] = {}
    for row in rows:
        for namespace in dict.fromkeys(pod.namespace for pod in row.unit.pending):
            spaces.setdefault(namespace, []).append(row)
    pods: dict[str, list[PodInfo]] = {}
    for pod in snapshot.pods.values():
        pods.setdefault(pod.namespace, []).append(pod)
    return SharedView(
        snapshot=snapshot,
        config=config,
        messages=messages,
        groups=groups,
        rows=tuple(rows),
        by_namespace={name: tuple(own) for name, own in spaces.items()},
        names=names_of(snapshot),
        pods={name: tuple(own) for name, own in pods.items()},
    )


def condition_message(pod: PodInfo) -> str | None:
    """Returns the message of a pending pod's PodScheduled condition, which may be older than the last decision.

    None if the pod has no such condition.
    """
    there = condition_of(pod.pod.status.conditions, POD_SCHEDULED)
    return there.message if there is not None and there.status == "False" else None


# -- why --------------------------------------------------------------------------------------------------------------


def subject_of(board: SharedView, namespace: str, name: str) -> Subject:
    """Returns the subject of a tenant's question. Raises UnknownSubjectError, also for names of other namespaces."""
    kind, key = parse(name, namespace)
    if key.partition("/")[0] != namespace:
        key = f"{namespace}/{name}"  # a slash in the name of a gang; never another namespace
    return find(board.snapshot, board.groups, kind, key, board.makers_in(namespace))


def first_waiting(board: SharedView, subject: Subject) -> PodInfo | None:
    """Returns the first pending pod of the subject, which is the pod to explain; None if no pod is pending."""
    pods = (board.snapshot.pods[key] for key in subject.pods if key in board.snapshot.pods)
    return next((pod for pod in pods if pod.pending), None)


def why_document(board: SharedView, namespace: str, subject: Subject, explanation: Document | None) -> Document:
    """Returns why the subject's pods in the namespace are pending. explanation: from `explanation_document`;
    optional."""
    masked = board.redactor(namespace)
    known = [board.snapshot.pods[key] for key in subject.pods if masked.is_own(key) and key in board.snapshot.pods]
    pods = sorted(known, key=lambda pod: (not pod.pending,))
    first = next((pod for pod in pods if pod.pending), None)
    unit = board.groups.unit_of(first) if first is not None else None
    ref = subject.gang or (pods[0].gang if pods else None)
    return {
        "kind": subject.kind,
        "name": subject.key,
        "namespace": namespace,
        "pods": [_pod_document(board, masked, pod) for pod in pods[:ANSWER_ROWS]],
        "podsNotListed": max(0, len(pods) - ANSWER_ROWS),
        "gang": _gang_document(board, masked, ref) if ref is not None and ref.namespace == namespace else None,
        "queue": _place(board, unit),
        "explanation": explanation,
    }


def _pod_document(board: SharedView, masked: Redactor, pod: PodInfo) -> Document:
    gang = pod.gang
    out: Document = {"namespace": pod.namespace, "pod": pod.name, "gang": gang.key if gang is not None else None}
    out |= {"reason": "", "message": "", "node": pod.node or None, "lastTold": None}
    if not pod.pending:
        return out | {"message": masked.text(left_alone(pod, board.config.scheduler_names).why)}
    unit = board.groups.unit_of(pod)
    there = condition_of(pod.pod.status.conditions, POD_SCHEDULED)
    row = board.places.get(unit.id)
    last = condition_message(pod)
    message = (row.blocked_by if row is not None else "") or last or board.messages.get(unit.id, "") or UNDECIDED
    reason = there.reason if there is not None and last is not None else "Waiting"
    if pod.nominated_node:
        said = f"{message} " if message != UNDECIDED else ""
        reason, message = "Preempting", f"{said}Capacity on {pod.nominated_node} is reserved for it."
        out["node"] = pod.nominated_node
    return out | {"reason": reason, "message": masked.text(message), "lastTold": masked.text(last) if last else None}


def _gang_document(board: SharedView, masked: Redactor, ref: GangRef) -> Document:
    gang = board.groups.gang(ref)
    unit = board.groups.unit(ref)
    row = board.places.get(unit.id)
    blocked = row.blocked_by if row is not None else ""
    first = next((pod for pod in gang.pending if pod.pending), None)
    said = blocked or (first is not None and condition_message(first)) or board.messages.get(unit.id, "")
    where = _domain_of(board, gang)
    return {
        "name": gang.key,
        "status": str(_status(gang, unit, blocked)),
        "members": len(gang.members),
        "minMember": gang.min_member,
        "bound": len(gang.bound),
        "domain": where,
        "message": masked.text(said or ""),
        "origin": masked.text(gang.origin) if gang.pods or gang.has_object else "",
    }


def _status(gang: Gang, unit: Unit, blocked: str) -> GangStatus:
    if gang.whole:
        return GangStatus.SCHEDULED
    if blocked or not gang.pending or unit.present(gang) < gang.min_member:
        return GangStatus.INCOMPLETE
    return GangStatus.UNSCHEDULABLE


def _domain_of(board: SharedView, gang: Gang) -> Document | None:
    tree, index = board.snapshot.tree, board.snapshot.index
    nodes = [index[pod.node] for pod in gang.bound if pod.node in index]
    if not nodes:
        return None
    level, domain = tree.lowest_common(nodes)
    return {"layer": tree.layer_name(level), "name": tree.path(level, domain)}


def _place(board: SharedView, unit: Unit | None) -> Document | None:
    row = board.places.get(unit.id) if unit is not None else None
    if row is None:
        return None
    return {"place": row.place, "waiting": board.number_waiting}


def explanation_document(board: SharedView, namespace: str, pod: PodInfo) -> Document:
    """Returns the planner's explanation of a pending pod, without names of nodes. This is the costly part of an
    answer."""
    found: Explanation = explain(board.snapshot, board.config, pod.key)
    masked = board.redactor(namespace)
    reasons: Counter[str] = Counter()
    for node in found.nodes:
        for _, _, message in node.reasons:
            reasons[masked.text(message)] += 1
    domains = [
        {
            "layer": one.layer,
            "name": one.name,
            "slots": one.slots,
            "needed": one.needed,
            "chosen": one.chosen,
            "reason": masked.text(one.reason),
        }
        for one in found.domains
        if one.chosen or one.name.rpartition("/")[2] not in board.snapshot.index  # else a node without a label
    ]
    return {
        "pod": found.pod,
        "gang": found.gang,
        "origin": masked.text(found.origin) if found.origin else None,
        "feasibleNodes": found.feasible_nodes,
        "allNodes": len(found.nodes),
        "reasons": dict(reasons.most_common(ANSWER_ROWS)),
        "domains": domains[:ANSWER_ROWS],
        "domainsNotListed": len(found.domains) - len(domains[:ANSWER_ROWS]),
        "message": masked.text(found.message),
        "wouldFitIf": masked.texts(map(str, found.would_fit_if)),
        "method": found.method or None,
        "queue": _standing(found.queue_rank, masked),
    }


def _standing(found: QueueRank | None, masked: Redactor) -> Document | None:
    if found is None:
        return None
    owner = found.owner if found.owner in masked.own else ""
    return {
        "place": found.place,
        "waiting": found.waiting,
        "mode": found.mode,
        "owner": owner,
        "held": dict(found.used) if owner else {},
        "share": dict(found.share) if owner else {},
    }


# -- queue ------------------------------------------------------------------------------------------------------------


def queue_document(board: SharedView, namespace: str) -> Document:
    """Returns the rows of the namespace's units with their places in the whole queue; other units are only counted."""
    masked = board.redactor(namespace)
    rows = board.by_namespace.get(namespace, ())
    waits = sum(row.place is not None for row in rows)
    blocked = len(board.rows) - board.number_waiting
    return {
        "namespace": namespace,
        "units": [_row_document(board, masked, row) for row in rows[:ANSWER_ROWS]],
        "unitsNotListed": max(0, len(rows) - ANSWER_ROWS),
        "waiting": board.number_waiting,
        "held": blocked,
        "others": {
            "waiting": board.number_waiting - waits,
            "held": blocked - (len(rows) - waits),
            "pods": board.number_of_pods - sum(len(row.unit.pending) for row in rows),
        },
    }


def _row_document(board: SharedView, masked: Redactor, row: QueueRow) -> Document:
    unit, snapshot = row.unit, board.snapshot
    own = [pod for pod in unit.pending if pod.namespace == masked.namespace]
    first, job = own[0], Job(unit)
    said = _pod_document(board, masked, first)
    quota, user = snapshot.quotas.quota_of(first), snapshot.quotas.user_of(first)
    return {
        "place": row.place,
        "unit": masked.unit([gang.key for gang in unit.gangs], unit.title),
        "pods": len(own),
        "podsOfOthers": len(unit.pending) - len(own),
        "priority": job.priority,
        "quota": quota if quota in snapshot.quotas.tree.quotas else "",
        "user": user,
        "asks": {name: quantity_text(name, amount) for name, amount in sorted(_asks(own).items()) if amount},
        "waitingSeconds": round(max(0.0, snapshot.now - job.since)),
        "reason": said["reason"],
        "message": said["message"],
        "node": said["node"],
    }


def _asks(pods: Iterable[PodInfo]) -> Counter[str]:
    out: Counter[str] = Counter()
    for pod in pods:
        out.update(pod.requests)
    return out


# -- the page ---------------------------------------------------------------------------------------------------------


def page_document(board: SharedView, namespace: str, told: Remarks) -> Document:
    """Returns the web UI's document for a namespace. Costly, because the whole document is computed before the
    filter."""
    whole = LiveDocument(board.config)
    whole.update(board.snapshot, told)
    return page_for(whole.whole(), board.redactor(namespace))


# -- slots ------------------------------------------------------------------------------------------------------------


def default_resource(snapshot: Snapshot, config: KoordpyConfiguration) -> str:
    """Returns the first accelerator resource that some node has, or the first configured one if no node has any."""
    families = (*config.gpu.resources, *keys.NPU_RESOURCES)
    offered = snapshot.offered_resources
    return next((one for one in families if one in offered and one not in keys.HUNDREDTHS), families[0])


def slots_document(board: SharedView, resource: str, each: int) -> Document:
    """Returns how many gangs of pods with `each` devices fit, and the free slots of each domain above the nodes."""
    snapshot, config = board.snapshot, board.config
    made = asking({resource: str(each)}, config.scheduler_names[0])
    pod = pod_info(made, scheduler_names=frozenset(config.scheduler_names), readers=snapshot.readers)
    inventory = take_inventory(snapshot, config, pod=pod)
    layers, domains = [], []
    for level in sorted({one.level for one in inventory.domains}):
        found = [one for one in inventory.domains if one.level == level]
        slots = [one.slots or 0 for one in found]
        best = max(range(len(found)), key=slots.__getitem__)
        is_node = level == snapshot.tree.depth or found[best].private
        layers.append(
            {
                "layer": found[0].layer,
                "domains": len(found),
                "slots": sum(slots),
                "gangs": {str(each * pods): sum(have // pods for have in slots) for pods in SIZES},
                "largest": {"pods": slots[best], "domain": "" if is_node else found[best].path},
            }
        )
        if level < snapshot.tree.depth:
            listed = (one for one in found if not one.private)  # a private domain has the name of a node
            domains += [
                {"layer": one.layer, "name": one.path, "nodes": one.nodes, "slots": one.slots} for one in listed
            ]
    return {
        "resource": resource,
        "each": each,
        "gangs": layers,
        "domains": domains[:ANSWER_ROWS],
        "domainsNotListed": max(0, len(domains) - ANSWER_ROWS),
    }
