"""The JSON that the page draws (docs/view.md): a whole one of a snapshot, then changes from one snapshot to the next.

What did not change between two snapshots is the same object in both, so a change costs what it touches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.api.quantity import quantity_text
from koordpy.cluster.gpus import Matrix
from koordpy.cluster.npus import chip_numbers
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import card_hundredths
from koordpy.cluster.snapshot import NodeInfo, Snapshot
from koordpy.observe.decisions import Decision
from koordpy.observe.gauges import share_gauges
from koordpy.planning.explain import Explanation
from koordpy.planning.gates import gate
from koordpy.planning.inventory import free_for_gangs
from koordpy.planning.orders.keys import Job
from koordpy.planning.plan import PromisedStart
from koordpy.planning.queue.standing import waiting
from koordpy.planning.quota.runtime import quota_figures
from koordpy.planning.units import Groups, Unit

VERSION = 1
"""Of the JSON. It changes where a reader of the last one would read something wrong."""
UNITS_SHOWN = 2000
"""Units of the queue that are listed; the others are counted."""
PODS_SHOWN = 64
"""Pods that a unit of the queue names."""
SHAPES_SHOWN = 4
DECISION_SECONDS = 3600.0
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

Document = dict[str, Any]
Row = list[Any]


@dataclass(frozen=True, slots=True)
class Remarks:
    """What a scheduler knows beside its snapshot."""

    source: str = ""
    """Where it is from, for people."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """Unit -> what was last said to it."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Unit -> its state in the queue of a live scheduler."""
    decisions: tuple[Decision, ...] = ()
    """The latest last."""
    decided: int = 0
    """How many there were ever, those included that are forgotten."""
    plans: tuple[Decision, ...] = ()
    """What would be decided now, where nothing is carried out."""
    reservation: PromisedStart | None = None
    """Room that is promised to the first that waits."""
    warnings: tuple[str, ...] = ()


class LiveDocument:
    """The rows of a cluster, kept up from snapshot to snapshot. Not to be used by two threads at once."""

    def __init__(self, config: KoordpyConfiguration) -> None:
        self._config = config
        self._snapshot: Snapshot | None = None
        self._told = Remarks()
        self._parts: Document = {}
        """The parts that are replaced as a whole, as last written."""
        self._nodes: dict[str, Row] = {}
        self._pods: dict[str, Row] = {}
        self._links: dict[int, tuple[Matrix, int]] = {}
        self._decisions: list[Document] = []

    def whole(self) -> Document:
        """Everything, as of the last `update`."""
        return {
            "version": VERSION,
            **self._parts,
            "nodes": self._nodes,
            "pods": self._pods,
            "decisions": self._decisions,
        }

    def update(self, snapshot: Snapshot, told: Remarks) -> Document:
        """Takes a snapshot in; what changed since the last one: parts as in `whole`, rows that are gone are null, and
        the decisions that are new."""
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
        still = before is not None and not nodes and not pods and told == self._told and _alike(before, snapshot)
        self._told = told
        parts: Document = {"taken": snapshot.now, "source": told.source, "warnings": list(told.warnings)}
        if before is None or before.tree is not snapshot.tree:
            parts["tree"] = _tree(snapshot)
        if not still:
            parts |= {
                "queue": self._queue(snapshot, told),
                "quotas": _quotas(snapshot, self._config),
                "shares": _shares(snapshot, self._config),
                "slots": _slots(snapshot, self._config),
                "links": [_matrix(matrix) for matrix, _ in self._links.values()],
            }
        for name, part in parts.items():
            if self._parts.get(name) != part:
                change[name] = self._parts[name] = part
        return change

    # -- nodes and pods -----------------------------------------------------------------------------------------------

    def _changed_nodes(self, before: Snapshot | None, now: Snapshot) -> dict[str, Row | None]:
        old = {node.name: node for node in before.nodes} if before is not None else {}
        gpus = before.gpus.nodes if before is not None else {}
        npus = before.npus.reports if before is not None else {}
        fresh: dict[str, Row | None] = {}
        for node in now.nodes:
            name = node.name
            known, here = gpus.get(name), now.gpus.nodes.get(name)
            same = known is here or (known is not None and here is not None and known.machine is here.machine)
            if not (old.get(name) is node and same and npus.get(name) is now.npus.reports.get(name)):
                fresh[name] = self._node(node, now)
        if len(self._nodes.keys() | fresh.keys()) > len(now.nodes):
            fresh |= dict.fromkeys(self._nodes.keys() - now.index.keys())
        return _changed(self._nodes, fresh)

    def _node(self, node: NodeInfo, snapshot: Snapshot) -> Row:
        """[accelerators, marks, those that are sick, number of the matrix of links, what they are]."""
        marks = "c" * node.unschedulable + "d" * node.going
        marks += "n" * any(taint.key in NOT_READY for taint in node.taints)
        found = snapshot.gpus.nodes.get(node.name)
        if found is not None:
            machine = found.machine
            sick = [i for i in range(machine.size) if not machine.healthy >> i & 1]
            links = self._matrix_number(machine.matrix) if machine.has_matrix else None
            return [machine.size, marks, sick, links, self._product(node)]
        for resource, report in snapshot.npus.reports.get(node.name, {}).items():
            ill = (report.unhealthy | report.unlinked) & ((1 << report.capacity) - 1)
            return [report.capacity, marks, list(chip_numbers(ill)), None, resource]
        count = -(-card_hundredths(node.allocatable) // 100)
        return [count, marks, [], None, self._product(node) if count else ""]

    def _product(self, node: NodeInfo) -> str:
        return next((node.labels[key] for key in PRODUCTS if node.labels.get(key)), "") or next(
            (name for name in self._config.gpu.resources if node.allocatable.get(name)), ""
        )

    def _matrix_number(self, matrix: Matrix) -> int:
        found = self._links.get(id(matrix))
        if found is None:
            found = self._links[id(matrix)] = matrix, len(self._links)
        return found[1]

    def _changed_pods(self, before: Snapshot | None, now: Snapshot) -> dict[str, Row | None]:
        old = before.pods if before is not None else {}
        changed = {key: pod for key, pod in now.pods.items() if old.get(key) is not pod}
        new = sum(key not in old for key in changed)
        if before is not None and before.quotas.tree is not now.quotas.tree:
            changed = dict(now.pods)
        elif before is not None:
            gpus, npus = before.gpus.nodes, before.npus.holdings
            moved = [key for name, here in now.gpus.nodes.items() if gpus.get(name) is not here for key in here.holders]
            moved += [one.pod_key for name, here in now.npus.holdings.items() if npus.get(name) != here for one in here]
            changed |= {key: now.pods[key] for key in moved if key in now.pods}
        fresh = {key: self._pod(pod, now) for key, pod in changed.items()}
        if len(old) + new != len(now.pods):
            fresh |= dict.fromkeys(self._pods.keys() - now.pods.keys())
        return _changed(self._pods, fresh)

    def _pod(self, pod: PodInfo, now: Snapshot) -> Row | None:
        """[node, gang, rank, accelerators, which of the node's or null, state, priority, user, quota]."""
        if pod.finished or not (pod.node or pod.pending or pod.pod.spec.scheduling_gates):
            return None
        node = pod.node or pod.nominated_node
        held = now.gpus.nodes[node].holders.get(pod.key) if node in now.gpus.nodes else None
        chips = next((one.chips for one in now.npus.holdings.get(node, ()) if one.pod_key == pod.key), 0)
        cells: list[int] | None = list(chip_numbers(chips)) or None
        if held is not None and held.minors:
            minors = now.gpus.nodes[node].machine.minors
            cells = [minors.index(one) for one in held.minors if one in minors]
        devices = card_hundredths(pod.requests) / 100
        return [
            node,
            pod.gang.key if pod.gang is not None else "",
            pod.index,
            int(devices) if devices == int(devices) else devices,
            cells,
            _state(pod, now.scheduler_names),
            pod.priority,
            now.quotas.user_of(pod),
            now.quotas.quota_of(pod),
        ]

    # -- the queue ----------------------------------------------------------------------------------------------------

    def _queue(self, snapshot: Snapshot, told: Remarks) -> Document:
        """Units in the order of their turns, then those that are held."""
        groups = Groups(snapshot, self._config.gangs, self._config.stale_gangs)
        free, held = waiting(groups, snapshot, self._config)
        last = {one.unit: one for one in (*told.decisions, *told.plans)}
        listed = [_entry(unit, "", snapshot, told, last.get(unit.id)) for unit in free[:UNITS_SHOWN]]
        for unit in held[: UNITS_SHOWN - len(listed)]:
            stops = gate(unit, groups)
            listed.append(_entry(unit, stops.text if stops is not None else "", snapshot, told, None))
        return {"waiting": len(free), "held": len(held), "mode": self._config.fairness.mode, "units": listed}

    def _new_decisions(self, told: Remarks, now: float) -> list[Document]:
        count = min(told.decided - self._told.decided, len(told.decisions))
        found = [_decision(one) for one in told.decisions[len(told.decisions) - count :]]
        self._decisions += found
        kept = len(told.decisions)
        del self._decisions[: max(0, len(self._decisions) - kept)]
        while self._decisions and self._decisions[0]["at"] < now - DECISION_SECONDS:
            del self._decisions[0]
        return found


PRODUCTS = ("nvidia.com/gpu.product", keys.GPU_MODEL)
"""Labels that name the accelerators of a node."""


def _changed(rows: dict[str, Row], fresh: Mapping[str, Row | None]) -> dict[str, Row | None]:
    """Takes in rows that may be others, None for those that are gone; what of it is new."""
    out = {key: row for key, row in fresh.items() if rows.get(key) != row}
    for key, row in out.items():
        if row is None:
            del rows[key]
        else:
            rows[key] = row
    return out


def _alike(before: Snapshot, now: Snapshot) -> bool:
    """Whether the queue, the quotas and the room are the same, where nodes and pods are."""
    settings = (
        (one.pod_groups, one.upstream_groups, one.derived, one.static_version, one.capacity_version, one.gpus.nodes)
        for one in (before, now)
    )
    return before.tree is now.tree and before.quotas == now.quotas and next(settings) == next(settings)


def _state(pod: PodInfo, ours: frozenset[str]) -> str:
    """e: ending, o: of another scheduler, a: being bound, r: on its node, n: room is kept for it, g: has scheduling
    gates, w: waits."""
    if pod.node:
        if pod.pod.metadata.deletion_timestamp:
            return "e"
        if pod.pod.spec.scheduler_name not in ours:
            return "o"
        return "r" if pod.pod.spec.node_name else "a"
    if pod.nominated_node:
        return "n"
    return "g" if pod.pod.spec.scheduling_gates else "w"


def _tree(snapshot: Snapshot) -> Document:
    tree = snapshot.tree
    return {
        "layers": [level.layer for level in tree.levels],
        "domains": [
            {"names": list(level.names), "starts": level.start.tolist()} for level in tree.levels[: tree.depth]
        ],
        "nodes": list(tree.node_names),
    }


def _matrix(matrix: Matrix) -> Document:
    """GB/s of each pair."""
    return {"source": matrix.source, "gbps": [[round(cell / 1e6, 1) for cell in row] for row in matrix.lowest]}


def _entry(unit: Unit, held: str, snapshot: Snapshot, told: Remarks, last: Decision | None) -> Document:
    first, job = unit.members[0], Job(unit)
    shapes: dict[tuple[tuple[str, int], ...], int] = {}
    for pod in unit.pending:
        shape = tuple(pod.requests.items())
        shapes[shape] = shapes.get(shape, 0) + 1
    promise = told.reservation if told.reservation is not None and told.reservation.unit == unit.id else None
    room = {one.pod: one.node for one in last.nominated} if last is not None else {}
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


def _decision(one: Decision) -> Document:
    return {
        "round": one.round,
        "at": one.at,
        "unit": one.unit,
        "what": _what(one),
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


def _what(one: Decision) -> str:
    if one.victims:
        return "would evict" if one.dry_run else "evicted"
    if one.placed:
        return "bound in part" if one.placed < one.pods else "bound"
    return "refused"


# -- quotas, shares, slots --------------------------------------------------------------------------------------------


def _quotas(snapshot: Snapshot, config: KoordpyConfiguration) -> list[Document]:
    own = snapshot.quotas.tree.quotas
    out: list[Document] = []
    for name, figures in quota_figures(snapshot.quotas, config.quota).items():
        quota = own.get(name)
        amounts: dict[str, Row] = {}
        for resource in quota.max if quota is not None else figures.used:
            values = (
                quota.least(resource) if quota is not None else 0,
                figures.runtime.get(resource),
                figures.used.get(resource, 0),
                figures.request.get(resource, 0),
                quota.max[resource] if quota is not None else None,
            )
            amounts[resource] = [_number(resource, one) for one in values]
        out.append({"name": name, "parent": quota.parent if quota is not None else "", "amounts": amounts})
    return out


def _number(resource: str, amount: int | None) -> float | int | None:
    """Cores, bytes or devices."""
    return amount / 1000 if amount is not None and resource == "cpu" else amount


def _shares(snapshot: Snapshot, config: KoordpyConfiguration) -> list[Row]:
    """[user or queue, accelerators that it deserves, that it holds]."""
    rows: dict[str, Row] = {}
    for (name, kind), amount in share_gauges(snapshot.quotas, config.fairness).items():
        rows.setdefault(name, [name, 0.0, 0.0])[1 if kind == "fair" else 2] = amount
    return list(rows.values())


def _slots(snapshot: Snapshot, config: KoordpyConfiguration) -> Document | None:
    found = free_for_gangs(snapshot, config)
    if found is None:
        return None
    return {
        "resource": found.resource,
        "perPod": found.per_pod,
        "gangs": list(found.gangs),
        "layers": [list(row) for row in found.layers],
        "domains": [list(row) for row in found.slots],
    }


# -- one unit ---------------------------------------------------------------------------------------------------------


def help_document(found: Explanation) -> Document:
    """What an explanation adds to a unit of the queue."""
    standing = found.standing
    return {
        "message": found.message,
        "help": list(found.would_fit_if),
        "domains": [[one.layer, one.name, one.slots, one.needed, one.chosen] for one in found.domains],
        "place": standing.place if standing is not None else None,
        "held": dict(standing.held) if standing is not None else {},
        "share": dict(standing.share) if standing is not None else {},
    }
