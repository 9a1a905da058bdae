"""How the offline commands print: the contract's document as JSON or YAML, or tables for people."""

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.json import format as json_format

from koordpy.api.counted import NAMED, counted, named
from koordpy.api.faults import one_line
from koordpy.api.natural import natural_key

if TYPE_CHECKING:
    from koordpy.planning.explain import Explanation
    from koordpy.planning.queue.standing import Standing

Document = dict[str, Any]
ROWS = 50
"""Rows of a table from which on those that say the same are one."""


def say(written: str) -> None:
    """To the standard output, as UTF-8 whatever the locale: the same input gives the same bytes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(written)


def text(document: Document, form: str) -> str:
    """The document as `json` or `yaml`, keys in its own order."""
    if form == "json":
        # indenting what is written already takes a quarter of the time of writing it indented
        written = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return json_format(written, indent=2).decode("utf-8", "surrogatepass") + "\n"
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1 << 20))


def warning_lines(warnings: Iterable[tuple[str, str]], said: Sequence[str] = ()) -> list[str]:
    """`warning: OBJECT: TEXT` for each (object, text); one line for all objects of which the same is said, where they
    are many. said: what was said of manifests, which is not said again of their objects."""
    by_text: dict[str, list[str]] = {}
    for subject, text in warnings:
        by_text.setdefault(text, []).append(subject)
    lines = []
    for text, subjects in by_text.items():
        told = subjects if len(subjects) <= NAMED else [named(subjects)]
        told_before = tuple(one for one in said if one.endswith(text))
        lines += [
            one_line(f"warning: {subject}: {text}")
            for subject in told
            if not any(
                one.endswith(f"{subject if ' ' in subject else subject.replace('/', ' ', 1)}: {text}")
                for one in told_before
            )
        ]
    return lines


def explanation_document(found: "Explanation") -> Document:
    """The JSON of `koordpy explain`, from the planner's explanation; nodes sorted by name."""
    return {
        "pod": found.pod,
        "gang": found.gang,
        "origin": found.origin,
        "feasibleNodes": found.feasible_nodes,
        "nodes": [
            {
                "node": node.node,
                "feasible": node.feasible,
                "reasons": [
                    {"plugin": plugin, "code": str(code), "message": message} for plugin, code, message in node.reasons
                ],
                "scores": dict(node.scores),
                "total": node.total,
            }
            for node in sorted(found.nodes, key=lambda node: natural_key(node.node))
        ],
        "domains": [
            {"layer": layer, "name": name, "slots": slots, "needed": needed, "chosen": chosen, "reason": reason}
            for layer, name, slots, needed, chosen, reason in found.domains
        ],
        "message": found.message,
        "wouldFitIf": list(found.would_fit_if),
        "method": found.method or None,
        "queue": _standing(found.standing),
    }


def _standing(found: "Standing | None") -> Document | None:
    if found is None:
        return None
    return {
        "place": found.place,
        "waiting": found.waiting,
        "mode": found.mode,
        "owner": found.owner,
        "held": dict(found.held),
        "share": dict(found.share),
    }


# -- tables -----------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Aligned columns, two blanks apart; no lines at all for no rows."""
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [list(header), *cells]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def lined(lines: Iterable[str]) -> str:
    """A text of these lines: what names and messages quote ends none, and steers no terminal."""
    return "".join(f"{one_line(line)}\n" for line in lines)


def _merged(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Rows by the name in their first column; where there are many, one row for all names with the same to say."""
    if len(rows) <= ROWS:
        return list(rows)
    names: dict[tuple[object, ...], list[str]] = {}
    for name, *rest in rows:
        names.setdefault(tuple(rest), []).append(str(name))
    return [(named(own), *rest) for rest, own in names.items()]


def _part(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _key(entry: Document) -> str:
    return f"{entry['namespace']}/{entry['pod']}"


def simulation_table(document: Document, left_alone: Mapping[str, str]) -> str:
    """A SimulationResult for people: gangs with their domains, bindings, pending pods with reasons.

    left_alone: pods that wait for somebody else -> why.
    """
    bindings, pending, gangs = document["bindings"], document["pending"], document["gangs"]
    end = "stable" if document["stable"] else "not at rest yet"
    lines = [
        f"{counted(document['rounds'], 'round')}, {end}: {len(bindings)} bound, {len(pending)} pending, "
        f"{len(document['evictions'])} evicted"
    ]
    rows = [
        (
            gang["name"],
            gang["status"],
            f"{gang['bound']}/{gang['members']}",
            gang["minMember"],
            _domain(gang["domain"]),
            _proof(gang),
        )
        for gang in gangs
    ]
    alone = [gang["message"] for gang in gangs if not gang["members"] and gang["message"]]
    lines += _part("Gangs", [*table(("NAME", "STATUS", "BOUND", "MIN", "DOMAIN", "PROOF"), rows), *alone])
    lines += _part("Why they are gangs", [f"{gang['name']}: {gang['origin']}" for gang in gangs if gang["workload"]])
    lines += _part("Workloads", _workload_lines(document["workloads"]))
    places = _merged([(_key(b), b["node"], b["round"]) for b in bindings])
    lines += _part("Bindings", table(("POD", "NODE", "ROUND"), places))
    evictions = [(_key(e), e["node"], e["round"], e["rule"], e["beneficiary"] or "-") for e in document["evictions"]]
    lines += _part("Evictions", table(("POD", "NODE", "ROUND", "RULE", "FOR"), _merged(evictions)))
    lines += _part("Pending", pending_lines(pending))
    lines += _part("Left alone", _left_alone_lines(left_alone))
    return lined(lines)


def _workload_lines(workloads: list[Document]) -> list[str]:
    rows = [
        (f"{one['namespace']}/{one['name']}", one["kind"], one["made"], one["present"], one["note"])
        for one in workloads
    ]
    waiting = [
        f"{one['namespace']}/{one['name']}: {counted(later['pods'], 'pod')} of role {later['role']} when {later['for']}"
        for one in workloads
        for later in one["waiting"]
    ]
    return [*table(("NAME", "KIND", "MADE", "PRESENT", ""), rows), *waiting]


def _proof(gang: Document) -> str:
    """A gang that ran before, and was not planned, has nothing to prove."""
    return "-" if gang["proof"] == "unknown" and gang["bound"] == gang["members"] else str(gang["proof"])


def _domain(domain: Document | None) -> str:
    if domain is None:
        return "-"
    return f"{domain['layer']} {domain['name']}".rstrip()


def pending_lines(pending: list[Document]) -> list[str]:
    """Who waits and why; those of a gang that are told the same on one line."""
    groups: dict[tuple[str | None, str, str], list[str]] = {}
    for entry in pending:
        groups.setdefault((entry["gang"], entry["reason"], entry["message"]), []).append(_key(entry))
    lines = []
    for (gang, reason, message), pods in groups.items():
        lines += [f"{named(pods)}{f' (gang {gang})' if gang else ''}: {reason}", f"    {message}"]
    return lines


def _left_alone_lines(left_alone: Mapping[str, str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for pod, why in left_alone.items():
        groups.setdefault(why, []).append(pod)
    return [f"{named(pods)}: {why}" for why, pods in groups.items()]


def explanation_table(document: Document) -> str:
    """An explanation for people: nodes with verdict or scores, domains, what would help."""
    gang = f" of gang {document['gang']}" if document["gang"] else ""
    nodes = document["nodes"]
    lines = [f"{document['pod']}{gang}: {document['feasibleNodes']} of {counted(len(nodes), 'node')} would take it"]
    if document["origin"]:
        lines.append(f"gang {document['gang']}: {document['origin']}")
    if document["message"]:
        lines.append(document["message"])
    rows = [(node["node"], "yes" if node["feasible"] else "no", _verdict(node)) for node in nodes]
    lines += _part("Nodes", table(("NODE", "FITS", "WHY"), _merged(rows)))
    domains = [
        (d["name"] or "the cluster", d["layer"], d["slots"], d["needed"], "chosen" if d["chosen"] else "", d["reason"])
        for d in document["domains"]
    ]
    ordered = [(layer, name, *rest) for name, layer, *rest in _merged(domains)]
    lines += _part("Domains", table(("LAYER", "NAME", "SLOTS", "NEEDED", "", "WHY"), ordered))
    return lined(lines + remedies(document))


def remedies(document: Document) -> list[str]:
    """What would help a pod, and its place in the queue."""
    return [*_part("Would fit if", document["wouldFitIf"]), *_part("Queue", _queue_lines(document["queue"]))]


def _queue_lines(queue: Document | None) -> list[str]:
    if queue is None:
        return []
    lines = [f"place {queue['place']} of {queue['waiting']} (fairness mode {queue['mode']})"]
    lines += [
        f"{queue['owner']} holds {held} {name}, its share is {queue['share'][name]}"
        for name, held in queue["held"].items()
    ]
    return lines


def _verdict(node: Document) -> str:
    if node["feasible"]:
        scores = ", ".join(f"{plugin} {_number(score)}" for plugin, score in node["scores"].items())
        return f"total {_number(node['total'])} ({scores})" if scores else f"total {_number(node['total'])}"
    return "; ".join(f"{reason['plugin']}: {reason['message']} ({reason['code']})" for reason in node["reasons"])


def _number(value: float) -> str:
    return f"{value:g}"
