# SPDX-License-Identifier: Apache-2.0
"""Views of `kubectl koordpy` on a cluster that was read: for each subcommand a JSON document, and its text form.

`cluster_reading.py` reads the cluster; the subcommands why, queue, slots, tree and top are functions here.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from koordpy.api import keys
from koordpy.api.counted_nouns import name_first
from koordpy.api.durations import duration_text
from koordpy.api.field_faults import InputFaultsError
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Snapshot
from koordpy.cli import output
from koordpy.cli import topology_command as topology
from koordpy.cli.cluster_reading import ReadCluster
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.explanation import Explanation, explained_round, left_alone
from koordpy.fairness.order_keys import Job
from koordpy.gangs.queue_units import Groups
from koordpy.infeasibility.domain_inventory import asking, take_inventory
from koordpy.observe.gauges import accelerator_gauges, quota_gauges, share_gauges
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.planner.queue.queue_rank import waiting
from koordpy.view.subjects import Subject, UnknownSubjectError, find, parse
from koordpy.view.tenant_view import condition_message

Document = dict[str, Any]
SIZES = (1, 8, 64)
"""Gang sizes, in pods, for which `slots` counts how many gangs fit."""


# -- why --------------------------------------------------------------------------------------------------------------


def why(args: argparse.Namespace, cluster: ReadCluster) -> Document:
    snapshot = cluster.state.snapshot(cluster.now)
    groups = Groups(snapshot, cluster.config.gangs, cluster.config.stale_gangs, repair=cluster.config.repair)
    subject = _named(args, cluster, snapshot, groups)
    known = [snapshot.pods[key] for key in subject.pods]
    first = next((info for info in known if info.pending), known[0] if known else None)
    found: Explanation | None = None
    if first is not None:
        plan, found = explained_round(snapshot, cluster.config, first.key)
    else:
        plan = plan_round(snapshot, cluster.config)
    outcomes = _Outcomes(plan, snapshot, cluster.config)
    gang = subject.gang
    name = gang.key if gang is not None else found.gang if found is not None else None
    report = next((one for one in outcomes.plan.gangs if one.name == name), None)
    return {
        "kind": subject.kind,
        "name": subject.key,
        "pods": [{**outcomes.of(key), "lastTold": condition_message(snapshot.pods[key])} for key in subject.pods],
        "gang": report
        and {
            "name": report.name,
            "status": str(report.status),
            "members": report.members,
            "minMember": report.min_member,
            "bound": report.bound,
            "domain": report.domain and {"layer": report.domain[0], "name": report.domain[1]},
            "message": report.message,
            "origin": report.origin,
        },
        "explanation": found and output.explanation_document(found),
    }


def _named(args: argparse.Namespace, cluster: ReadCluster, snapshot: Snapshot, groups: Groups) -> Subject:
    """Returns the pod, gang or workload that the argument names. Raises InputFaultsError if there is none."""
    kind, key = parse(args.name, args.namespace or cluster.namespace)
    try:
        return find(snapshot, groups, kind, key)
    except UnknownSubjectError as fault:
        raise InputFaultsError([str(fault)]) from None


class _Outcomes:
    """Outcome of a planning round for each pod."""

    def __init__(self, plan: RoundPlan, snapshot: Snapshot, config: KoordpyConfiguration) -> None:
        self.plan = plan
        self._snapshot, self._served = snapshot, config.scheduler_names
        self._pending = {one.pod_key: one for one in self.plan.pending}
        self._rooms = {one.pod_key: one for one in self.plan.nominations}
        self._places = {one.pod_key: one for one in self.plan.placements}

    def of(self, key: str) -> Document:
        """Returns the outcome for a pod.

        `reason` is the reason of the pod's condition, or Preempting, or Fits; empty for a pod that is not waiting.
        """
        namespace, _, name = key.partition("/")
        info = self._snapshot.pods[key]
        out: Document = {"namespace": namespace, "pod": name, "gang": info.gang.key if info.gang else None}
        out |= {"reason": "", "message": "", "node": info.node or None, "victims": []}
        if (waits := self._pending.get(key)) is not None:
            return {**out, "reason": str(waits.written_reason), "message": waits.message}
        if (room := self._rooms.get(key)) is not None:
            gone = [one for one in self.plan.evictions if one.unit == room.unit]
            names = [one.pod_key for one in gone]
            text = f"will be bound to {room.node}" + (f" once {_listed(names)} terminated" if gone else "")
            victims = [{"pod": one.pod_key, "rule": one.rule} for one in gone]
            return {**out, "reason": "Preempting", "message": text, "node": room.node, "victims": victims}
        if (place := self._places.get(key)) is not None:
            return {**out, "reason": "Fits", "message": f"fits now on {place.node}", "node": place.node}
        return out if info.pending else {**out, "message": left_alone(info, self._served).why}


def _listed(pods: list[str]) -> str:
    return f"{name_first(pods)} {'has' if len(pods) == 1 else 'have'}"


def why_text(document: Document, wide: bool) -> str:
    found = document["explanation"]
    lines = output.gang_lines(document)
    lines += _pod_lines(document["pods"])
    old = {one["lastTold"] for one in document["pods"] if one["lastTold"] and one["lastTold"] != one["message"]}
    lines += [f"  last message in the condition: {text}" for text in sorted(old)]
    if found is not None and wide:
        lines += ["", *output.explanation_table(found).rstrip("\n").split("\n")]
    elif found is not None:
        lines += output.remedies(found)
    return output.lined(lines)


def _pod_lines(pods: list[Document]) -> list[str]:
    """Formats the pods in natural order: the waiting pods first, then one line for each further pod."""
    ordered = sorted(pods, key=lambda one: natural_key(f"{one['namespace']}/{one['pod']}"))
    told = output.pending_lines([one for one in ordered if one["reason"]])
    return told + [f"{one['namespace']}/{one['pod']}: {one['message']}" for one in ordered if not one["reason"]]


# -- queue ------------------------------------------------------------------------------------------------------------


def queue(args: argparse.Namespace, cluster: ReadCluster) -> Document:
    snapshot = cluster.state.snapshot(cluster.now)
    groups = Groups(snapshot, cluster.config.gangs, cluster.config.stale_gangs, repair=cluster.config.repair)
    ready, blocked = waiting(groups, snapshot, cluster.config)
    outcomes = _Outcomes(plan_round(snapshot, cluster.config), snapshot, cluster.config)
    quotas = snapshot.quotas
    rows = []
    for place, unit in [*enumerate(ready, 1), *((None, unit) for unit in blocked)]:
        first, job = unit.pending[0], Job(unit)
        if args.namespace and all(pod.owner.namespace != args.namespace for pod in unit.pending):
            continue
        said = outcomes.of(first.key)
        rows.append(
            {
                "place": place,
                "unit": unit.title,
                "pods": len(unit.pending),
                "priority": job.priority,
                "quota": quotas.quota_of(first) if quotas.tree.quotas else "",
                "user": quotas.user_of(first),
                "asks": {
                    name: quantity_text(name, amount) for name, amount in sorted(job.requests().items()) if amount
                },
                "waitingSeconds": round(max(0.0, cluster.now - job.since)),
                **{name: said[name] for name in ("reason", "message", "node", "victims")},
            }
        )
    return {"units": rows}


def queue_text(document: Document, wide: bool) -> str:
    rows = [
        (
            one["place"] or "-",
            one["unit"],
            one["pods"],
            one["priority"],
            one["quota"] or "-",
            one["user"] or "-",
            ",".join(f"{name}={amount}" for name, amount in one["asks"].items()),
            duration_text(one["waitingSeconds"]),
            one["reason"],
            *([one["message"]] if wide else []),
        )
        for one in document["units"]
    ]
    header = (
        "PLACE",
        "UNIT",
        "PODS",
        "PRIORITY",
        "QUOTA",
        "USER",
        "REQUESTS",
        "WAITING",
        "STATE",
        *(["MESSAGE"] if wide else []),
    )
    return output.lined(output.table(header, rows) or ["no pending gangs or pods"])


# -- slots and tree ---------------------------------------------------------------------------------------------------


def slots(args: argparse.Namespace, cluster: ReadCluster) -> Document:
    offered = cluster.state.snapshot(cluster.now).offered_resources
    families = (*cluster.config.gpu.resources, *keys.NPU_RESOURCES)
    resource = args.resource or next(
        (one for one in families if one in offered and one not in keys.HUNDREDTHS), families[0]
    )
    made = asking({resource: str(args.gpus)}, cluster.config.scheduler_names[0])
    pod = topology.shape(cluster.state, made)
    inventory = take_inventory(cluster.state.snapshot(cluster.now), cluster.config, pod=pod)
    layers = []
    for level in sorted({one.level for one in inventory.domains}):
        own = [one for one in inventory.domains if one.level == level]
        slots = [one.slots or 0 for one in own]
        best = max(range(len(own)), key=slots.__getitem__)
        layers.append(
            {
                "layer": own[0].layer,
                "domains": len(own),
                "slots": sum(slots),
                "gangs": {str(args.gpus * pods): sum(have // pods for have in slots) for pods in SIZES},
                "largest": {"pods": slots[best], "domain": own[best].path},
            }
        )
    tree = topology.document(inventory, cluster.state, [])
    return {"resource": resource, "each": args.gpus, "gangs": layers, **tree}


def slots_text(document: Document, wide: bool) -> str:
    each = document["each"]
    sizes = [str(each * pods) for pods in SIZES]
    rows = [
        (one["layer"], one["domains"], *(one["gangs"][size] for size in sizes), _largest(one["largest"], each))
        for one in document["gangs"]
    ]
    lines = [f"number of gangs that fit, each within one domain of the layer; {each} {document['resource']} per pod:"]
    lines += output.table(("LAYER", "DOMAINS", *(f"OF {size}" for size in sizes), "LARGEST"), rows)
    return output.lined(lines) + (f"\n{topology.written(document, 'table', nodes=True)}" if wide else "")


def _largest(found: Document, each: int) -> str:
    """Formats the largest gang that fits in one domain: `12 x 8 in rack-3` means 12 pods with 8 devices each."""
    where = f" in {found['domain']}" if found["domain"] else ""
    return f"{found['pods']} x {each}{where}" if found["pods"] else "-"


def tree(args: argparse.Namespace, cluster: ReadCluster) -> Document:
    snapshot = cluster.state.snapshot(cluster.now)
    faults = [f"ClusterNetworkTopology/default: {fault}" for fault in cluster.state.nodes.topology_faults]
    cluster.notes.extend((*faults, *(f"{subject}: {text}" for subject, text in snapshot.topology_warnings)))
    return topology.document(take_inventory(snapshot, cluster.config), cluster.state, faults)


def tree_text(document: Document, wide: bool) -> str:
    return topology.written(document, "tree", nodes=wide)


# -- top --------------------------------------------------------------------------------------------------------------


def top(args: argparse.Namespace, cluster: ReadCluster) -> Document:
    state, quotas = cluster.state, cluster.state.quota_view()
    devices = accelerator_gauges((node.allocatable, state.usage.usage_of(node.name)[1]) for node in state.nodes)
    return {
        "accelerators": _by_kind(devices, "resource"),
        "quotas": _by_kind(quota_gauges(quotas, cluster.config.quota), "quota", "resource"),
        "shares": _by_kind(share_gauges(quotas, cluster.config.fairness), "owner"),
    }


def _by_kind(gauges: dict[tuple[str, ...], float], *names: str) -> list[Document]:
    """Groups gauges that differ only in their last label into one entry. names: keys of the other labels."""
    out: dict[tuple[str, ...], Document] = {}
    for (*whose, kind), value in gauges.items():
        entry = out.setdefault(tuple(whose), dict(zip(names, whose, strict=True)))
        entry[kind] = int(value) if value == int(value) else value
    return list(out.values())


def top_text(document: Document, wide: bool) -> str:
    tables = (
        (document["accelerators"], ("resource", "used", "free")),
        (document["quotas"], ("quota", "resource", "min", "runtime", "used", "request", "max")),
        (document["shares"], ("owner", "fair", "used")),
    )
    parts = [list(_table(rows, names, wide)) for rows, names in tables if rows]
    return "\n".join(map(output.lined, parts or [["no accelerators and no quotas"]]))


def _table(found: list[Document], names: Sequence[str], wide: bool) -> Iterator[str]:
    """Formats gauges as a table. wide: True to include rows without usage, requests, free capacity and share."""
    shown = [one for one in found if wide or any(one.get(name) for name in ("used", "free", "request", "fair"))]
    rows = ([_figure(one, name) for name in names] for one in shown)
    yield from output.table([name.upper() for name in names], rows)


def _figure(one: Document, name: str) -> str:
    """Formats a gauge; memory as a quantity such as 16Gi, `-` if absent."""
    value = one.get(name, "-")
    in_bytes = one.get("resource") == "memory" and isinstance(value, int)
    return quantity_text("memory", value) if in_bytes else str(value)


VIEWS = {
    "why": (why, why_text),
    "queue": (queue, queue_text),
    "slots": (slots, slots_text),
    "tree": (tree, tree_text),
    "top": (top, top_text),
}
"""Subcommand -> (function that returns its document, function that formats the document; `wide` adds details)."""
