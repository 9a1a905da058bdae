# SPDX-License-Identifier: Apache-2.0
"""Computes the JSON document that the page draws (docs/view.md), and its changes from one snapshot to the next.

Unchanged parts are the same objects in both snapshots, so the cost of a change depends only on the changed parts.
"""

from koordpy.api.times import seconds
from koordpy.cache.snapshot import NodeInfo, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.gangs.queue_units import Groups
from koordpy.gangs.unit_gates import gate
from koordpy.planner.queue.queue_rank import waiting
from koordpy.pods.family_books import ShownLinks
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import card_hundredths
from koordpy.view.document_rows import (
    PRODUCTS,
    UNITS_SHOWN,
    Document,
    Remarks,
    Row,
    changed_rows,
    decision_entry,
    is_alike,
    matrix_document,
    planned_row,
    pod_state,
    queue_entry,
    quota_rows,
    share_rows,
    slot_document,
    tree_document,
    workload_name,
)

VERSION = 1
"""Version of the document. It is raised when a reader of the previous version would misread the document."""
DECISION_SECONDS = 3600.0
"""Age in seconds after which a decision is dropped from the document."""
DECISIONS_KEPT = 100
"""Number of latest decisions that stay in the document at any age."""
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class LiveDocument:
    """The document of a cluster, updated from snapshot to snapshot. Only one thread at a time may use it."""

    def __init__(self, config: KoordpyConfiguration) -> None:
        self._config = config
        self._snapshot: Snapshot | None = None
        self._told = Remarks()
        self._parts: Document = {}
        """Parts of the document that are replaced as a whole, by name."""
        self._nodes: dict[str, Row] = {}
        self._pods: dict[str, Row] = {}
        self._links: dict[int, tuple[ShownLinks, int]] = {}
        self._decisions: list[Document] = []

    def whole(self) -> Document:
        """Returns the whole document, as of the last `update`."""
        return {
            "version": VERSION,
            **self._parts,
            "nodes": self._nodes,
            "pods": self._pods,
            "decisions": self._decisions,
        }

    def update(self, snapshot: Snapshot, told: Remarks) -> Document:
        """Updates the document from a snapshot, and returns the change since the last one.

        A change has the parts that changed, as in `whole`, the rows that changed (null: deleted), and the new
        decisions.
        """
        before, self._snapshot = self._snapshot, snapshot
        nodes = self._changed_nodes(before, snapshot)
        pods = self._changed_pods(before, snapshot)
        decisions = self._new_decisions(told, snapshot.now)
        change: Document = {"taken": snapshot.now}
        if nodes:
            change["nodes"] = nodes
        if pods:
            change["pods"] = pods
        if decisions:
            change["decisions"] = decisions
        still = before is not None and not nodes and not pods and told == self._told and is_alike(before, snapshot)
        self._told = told
        parts: Document = {"taken": snapshot.now, "source": told.source, "warnings": list(told.warnings)}
        if before is None or before.tree is not snapshot.tree:
            parts["tree"] = tree_document(snapshot)
        if not still:
            parts |= {
                "queue": self._queue(snapshot, told),
                "quotas": quota_rows(snapshot, self._config),
                "shares": share_rows(snapshot, self._config),
                "slots": slot_document(snapshot, self._config, told.planned),
                "links": [matrix_document(links) for links, _ in self._links.values()],
                "planned": {key: planned_row(place, snapshot) for key, place in told.planned.items()},
                "plans": [decision_entry(one, done=False) for one in told.plans if one.placed or one.victims][
                    :UNITS_SHOWN
                ],
            }
        for name, part in parts.items():
            if self._parts.get(name) != part:
                change[name] = self._parts[name] = part
        return change

    # -- nodes and pods -----------------------------------------------------------------------------------------------

    def _changed_nodes(self, before: Snapshot | None, now: Snapshot) -> dict[str, Row | None]:
        old = {node.name: node for node in before.nodes} if before is not None else {}
        fresh: dict[str, Row | None] = {}
        views = [(view, before.families.get(one)) for one, view in now.families.items()] if before is not None else []
        for node in now.nodes:
            name = node.name
            if old.get(name) is not node or any(
                view.state_of(name) is not (was.state_of(name) if was is not None else None) for view, was in views
            ):
                fresh[name] = self._node(node, now)
        if len(self._nodes.keys() | fresh.keys()) > len(now.nodes):
            fresh |= dict.fromkeys(self._nodes.keys() - now.index.keys())
        return changed_rows(self._nodes, fresh)

    def _node(self, node: NodeInfo, snapshot: Snapshot) -> Row:
        """Returns [number of accelerators, marks, unhealthy accelerators, number of the matrix of links, product].

        Marks are letters. c: cordoned, d: being deleted, n: not ready.
        """
        marks = "c" * node.unschedulable + "d" * node.going
        marks += "n" * any(taint.key in NOT_READY for taint in node.taints)
        for view in snapshot.families.values():
            found = view.shown(node.name)
            if found is not None:
                links = self._links_number(found.links) if found.links is not None else None
                return [found.size, marks, list(found.sick), links, found.product or self._product(node)]
        count = -(-card_hundredths(node.allocatable) // 100)
        return [count, marks, [], None, self._product(node) if count else ""]

    def _product(self, node: NodeInfo) -> str:
        return next((node.labels[key] for key in PRODUCTS if node.labels.get(key)), "") or next(
            (name for name in self._config.gpu.resources if node.allocatable.get(name)), ""
        )

    def _links_number(self, links: ShownLinks) -> int:
        found = self._links.get(id(links.key))
        if found is None:
            found = self._links[id(links.key)] = links, len(self._links)
        return found[1]

    def _changed_pods(self, before: Snapshot | None, now: Snapshot) -> dict[str, Row | None]:
        old = before.pods if before is not None else {}
        changed = {key: pod for key, pod in now.pods.items() if old.get(key) is not pod}
        new = sum(key not in old for key in changed)
        if before is not None and before.quotas.tree is not now.quotas.tree:
            changed = dict(now.pods)
        elif before is not None:
            views = [(view, before.families.get(one)) for one, view in now.families.items()]
            moved = [key for view, was in views if was is not None for key in view.moved_pods(was)]
            changed |= {key: now.pods[key] for key in moved if key in now.pods}
        fresh = {key: self._pod(pod, now) for key, pod in changed.items()}
        if len(old) + new != len(now.pods):
            fresh |= dict.fromkeys(self._pods.keys() - now.pods.keys())
        return changed_rows(self._pods, fresh)

    def _pod(self, pod: PodInfo, now: Snapshot) -> Row | None:
        """Returns [node, gang, rank, accelerators, their indexes or null, state, priority, user, quota, since,
        workload]. None if the pod has ended, or is neither bound, pending nor gated."""
        if pod.finished or not (pod.node or pod.pending or pod.pod.spec.scheduling_gates):
            return None
        node = pod.node or pod.nominated_node
        found = (view.cells_of(node, pod.key) for view in now.families.values())
        own: list[int] | None = list(next((some for some in found if some), ())) or None
        devices = card_hundredths(pod.requests) / 100
        return [
            node,
            pod.gang.key if pod.gang is not None else "",
            pod.index,
            int(devices) if devices == int(devices) else devices,
            own,
            pod_state(pod, now.scheduler_names),
            pod.priority,
            now.quotas.user_of(pod),
            now.quotas.quota_of(pod),
            seconds(pod.pod.status.start_time) if pod.pod.status.start_time else pod.created,
            workload_name(pod.pod.metadata),
        ]

    # -- the queue ----------------------------------------------------------------------------------------------------

    def _queue(self, snapshot: Snapshot, told: Remarks) -> Document:
        """Returns the units in queue order, then the units that gates block."""
        groups = Groups(snapshot, self._config.gangs, self._config.stale_gangs, repair=self._config.repair)
        free, held = waiting(groups, snapshot, self._config)
        last = {one.unit: one for one in (*told.decisions, *told.plans)}
        listed = [queue_entry(unit, "", snapshot, told, last.get(unit.id)) for unit in free[:UNITS_SHOWN]]
        for unit in held[: UNITS_SHOWN - len(listed)]:
            stops = gate(unit, groups)
            listed.append(queue_entry(unit, stops.text if stops is not None else "", snapshot, told, None))
        return {"waiting": len(free), "held": len(held), "mode": self._config.fairness.mode, "units": listed}

    def _new_decisions(self, told: Remarks, now: float) -> list[Document]:
        count = min(told.decided - self._told.decided, len(told.decisions))
        found = [decision_entry(one) for one in told.decisions[len(told.decisions) - count :]]
        self._decisions += found
        kept = len(told.decisions)
        del self._decisions[: max(0, len(self._decisions) - kept)]
        old = sum(1 for one in self._decisions if one["at"] < now - DECISION_SECONDS)
        del self._decisions[: max(0, min(old, len(self._decisions) - DECISIONS_KEPT))]
        return found
