# SPDX-License-Identifier: Apache-2.0
"""`koordpy topology`: shows the topology tree of a cluster or of manifests, and free capacity (docs/topology.md)."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.field_faults import InputFaultsError
from koordpy.api.objects import Pod, PodStatus
from koordpy.api.spelling import hint
from koordpy.cli import offline_inputs, output
from koordpy.offline import offline_options

if TYPE_CHECKING:
    from koordpy.cache.cluster_state import ClusterState
    from koordpy.config.configuration import KoordpyConfiguration
    from koordpy.infeasibility.domain_inventory import Inventory
    from koordpy.pods.pod_info import PodInfo

Document = dict[str, Any]
FAILED = 1
BAD_HIERARCHY = 2
NODES_NAMED = 3
"""Number of unlabelled nodes that a line names before `and N more`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    offline_options.add_paths(source)
    source.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="the cluster to read, if no -f is given; default: $KUBECONFIG, the service account, ~/.kube/config",
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    offline_options.add_started(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--pod", metavar="NAMESPACE/NAME", help="count free slots for copies of this pod")
    shape.add_argument(
        "--request",
        metavar="RESOURCE=AMOUNT",
        action="append",
        help="count free slots for a pod with this request, such as nvidia.com/gpu=8; repeatable",
    )
    parser.add_argument("--nodes", action="store_true", help="also list the nodes (json always lists them)")
    parser.add_argument(
        "--config", metavar="FILE", help="a KoordpyConfiguration (default for a cluster: the chart's ConfigMap)"
    )
    parser.add_argument("-o", "--output", choices=("table", "tree", "json"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. The status is 2 also if the topology has faults; they are
    printed."""
    ready = _source(args)
    if isinstance(ready, int):
        return ready
    state, config, now, warnings, configuration = ready
    pod = _shape(args, state, config)
    from koordpy.infeasibility.domain_inventory import take_inventory

    snapshot = state.snapshot(now)
    inventory = take_inventory(snapshot, config, pod=pod)
    faults = [f"ClusterNetworkTopology/default: {fault}" for fault in state.nodes.topology_faults]
    faults += [f"{subject}: {text}" for subject, text in snapshot.topology_warnings]
    lost = (
        [name for name, amount in pod.requests.items() if amount and name not in snapshot.offered_resources]
        if pod
        else []
    )
    for line in (*warnings, *(f"no node has {name}{hint(name, snapshot.offered_resources)}" for name in lost)):
        print(f"warning: {line}", file=sys.stderr)
    for line in faults:
        print(line, file=sys.stderr)
    if args.output != "json":
        offline_inputs.tell_configuration(configuration, config)
    told = document(inventory, state, faults)
    output.say(written(told, args.output, nodes=args.nodes))
    return BAD_HIERARCHY if faults else 0


_Ready = tuple["ClusterState", "KoordpyConfiguration", float, list[str], str]


def _source(args: argparse.Namespace) -> _Ready | int:
    """Returns (state, configuration, time, warnings, source of the configuration).

    Returns an exit status instead if the cluster cannot be read.
    """
    from koordpy.quota.quota_owners import uncounted

    args.scheduler_names = None
    if args.paths:
        args.now = offline_options.DEFAULT_NOW
        ready = offline_options.prepare(args)
        told = uncounted(ready.state.quotas.objects.values(), ready.config.quota)
        warnings = [*ready.warnings, *([told] if told else [])]
        return ready.state, ready.config, ready.now.timestamp(), warnings, ready.configuration
    try:
        cluster = offline_inputs.read(args)
    except offline_inputs.ClusterUnreadableError as fault:
        print(fault, file=sys.stderr)
        return FAILED
    return cluster.state, cluster.config, cluster.now, cluster.notes, cluster.configuration


# -- the shape --------------------------------------------------------------------------------------------------------


def _shape(args: argparse.Namespace, state: "ClusterState", config: "KoordpyConfiguration") -> "PodInfo | None":
    """Adds a pending pod with the requested shape to the state, and returns it; None if no shape is requested."""
    if args.pod is None and not args.request:
        return None
    if args.pod is not None:
        key = args.pod if "/" in args.pod else f"default/{args.pod}"
        known = state.pod(key)
        if known is None:
            raise InputFaultsError([f"--pod {args.pod}: no such pod"])
        made = _copy(known.pod, config.scheduler_names[0])
    else:
        from koordpy.infeasibility.domain_inventory import asking

        made = asking(_requests(args.request), config.scheduler_names[0])
    return shape(state, made)


def shape(state: "ClusterState", made: Pod) -> "PodInfo":
    """Adds a pending pod to the state. Returns it without its gang, because slots are counted for single pods."""
    from koordpy.simulation.claim_controllers import ClaimControllers

    state.upsert(ClaimControllers(state).served(made))
    info = state.pod(made.key)
    assert info is not None
    # without its gang, because slots are counted for single pods
    return replace(info, gang=None, index=None)


def _copy(pod: Pod, scheduler: str) -> Pod:
    """Returns a pending copy of a pod under another name."""
    meta = replace(pod.metadata, name=f"{pod.metadata.name}.copy", uid="copy", deletion_timestamp=None)
    spec = replace(pod.spec, node_name="", scheduler_name=scheduler, scheduling_gates=[])
    return replace(pod, metadata=meta, spec=spec, status=PodStatus())


def _requests(given: list[str]) -> dict[str, str]:
    """Parses the --request options into resource -> amount. Raises InputFaultsError."""
    from koordpy.pods.resource_amounts import amounts

    out: dict[str, str] = {}
    faults = []
    for text in given:
        for part in text.split(","):
            name, equals, amount = part.partition("=")
            if not (name and equals and amount):
                faults.append(f"--request {text}: {part!r} is not RESOURCE=AMOUNT, such as nvidia.com/gpu=8")
                continue
            try:
                amounts({name: amount})
            except ValueError as fault:
                faults.append(f"--request {text}: {fault}")
            out[name] = amount
    if faults:
        raise InputFaultsError(faults)
    return out


# -- output -----------------------------------------------------------------------------------------------------------


def document(inventory: "Inventory", state: "ClusterState", faults: list[str]) -> Document:
    """Returns the JSON document of `koordpy topology`."""
    source = "none"
    if state.nodes.topology is not None:
        source = "ClusterNetworkTopology/default"
    elif state.nodes.hypernodes:
        source = "HyperNodes"
    tree = state.nodes.tree
    bare = {tree.layers.chain[level - 1].name: near for level, near in state.nodes.label_gaps.bare.items()}
    counts = {one.layer.name: len(one.nodes) for one in state.nodes.gaps.unlabelled}
    return {
        "source": source,
        "layers": list(inventory.layers),
        "domains": [
            {
                "layer": domain.layer,
                "name": domain.path,
                "private": domain.private,
                "nodes": domain.nodes,
                "unschedulableNodes": domain.unschedulable,
                "accelerators": {"free": _devices(domain.free), "total": _devices(domain.total)},
                "slots": domain.slots,
            }
            for domain in inventory.domains
        ],
        "unlabelled": [
            {
                "layer": one.layer,
                "labelKeys": list(one.keys),
                "count": len(one.nodes),
                "nodes": list(one.nodes),
                "meant": bare.get(one.layer) or None,
                "counts": counts.get(one.layer, 0),
            }
            for one in inventory.unlabelled
        ],
        "inSeveralPlaces": [
            {"layer": layer, "name": name, "domains": list(paths)} for layer, name, paths in inventory.split
        ],
        "faults": faults,
    }


def _devices(hundredths: int) -> int | float:
    whole, part = divmod(hundredths, 100)
    return hundredths / 100 if part else whole


def written(document: Document, form: str, *, nodes: bool) -> str:
    """Formats the document as `table`, `tree` or `json`. nodes: True to show nodes in the table and the tree."""
    if form == "json":
        return output.text(document, "json")
    shown = document["domains"]
    depth = len(document["layers"])
    if not nodes and depth > 1:
        shown = [one for one in shown if one["layer"] != document["layers"][-1]]
    lines = _tree(shown) if form == "tree" else _table(shown)
    return output.lined(lines + _notes(document))


def _table(domains: list[Document]) -> list[str]:
    slots = any(one["slots"] is not None for one in domains)
    rows = [
        (
            one["layer"],
            one["name"] or "-",
            one["nodes"],
            one["accelerators"]["free"],
            one["accelerators"]["total"],
            *([one["slots"]] if slots else []),
            _marks(one),
        )
        for one in domains
    ]
    header = ("LAYER", "NAME", "NODES", "FREE", "TOTAL", *(["SLOTS"] if slots else []), "")
    return output.table(header, rows)


def _marks(one: Document) -> str:
    marks = ["private"] if one["private"] else []
    if one["unschedulableNodes"]:
        marks.append(f"{one['unschedulableNodes']} cordoned")
    return ", ".join(marks)


def _tree(domains: list[Document]) -> list[str]:
    """Draws the domains as a tree, one line each. Domains must be in depth-first order."""
    depths = [one["name"].count("/") + 1 if one["name"] else 0 for one in domains]
    open_below = [False] * (max(depths, default=0) + 2)
    drawn: list[str] = []
    for one, depth in zip(reversed(domains), reversed(depths), strict=True):
        stem = "".join("\u2502  " if open_below[level] else "   " for level in range(1, depth))
        branch = "" if not depth else "\u251c\u2500 " if open_below[depth] else "\u2514\u2500 "
        open_below[depth] = True
        open_below[depth + 1 :] = [False] * (len(open_below) - depth - 1)
        drawn.append(f"{stem}{branch}{_line(one, depth)}")
    return drawn[::-1]


def _line(one: Document, depth: int) -> str:
    name = one["name"].rpartition("/")[2] or "cluster"
    nodes = count_noun(one["nodes"], "node")
    have = one["accelerators"]
    parts = [nodes, f"{have['free']} of {have['total']} accelerators free"] if have["total"] else [nodes]
    if one["slots"] is not None:
        parts.append(count_noun(one["slots"], "slot"))
    marks = _marks(one)
    return f"{name}  {', '.join(parts)}{f' ({marks})' if marks else ''}"


def _notes(document: Document) -> list[str]:
    lines = []
    everywhere = document["domains"][0]["nodes"]
    for one in document["unlabelled"]:
        some = name_first(one["nodes"], NODES_NAMED)
        what = f"label {' or '.join(one['labelKeys'])}" if one["labelKeys"] else "HyperNode"
        each = "it is" if one["count"] == 1 else "each is"
        if one["labelKeys"] and one["count"] == everywhere:
            near = f", did you mean {one['meant']}? Each" if one["meant"] else ": each"
            lines.append(f"{one['layer']}: no node has {what}{near} node is a separate domain there")
            continue
        nodes = count_noun(one["count"], "node")
        lines.append(f"{one['layer']}: {nodes} without {what}, {each} a separate domain there: {some}")
    for one in document["inSeveralPlaces"]:
        places = ", ".join(one["domains"])
        lines.append(
            f"{one['layer']}: name {one['name']} appears below {len(one['domains'])} parents, "
            f"as separate domains; is a label wrong? {places}"
        )
    if document["source"] == "none":
        lines.append("no ClusterNetworkTopology named default and no HyperNodes: each node is a separate domain")
    return ["", *lines] if lines else []
