# SPDX-License-Identifier: Apache-2.0
"""Output of the offline commands: documents as JSON or YAML, and tables.

docs/rules/simulate.md defines the documents. Must not plan anything.
"""

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.json import format as json_format

from koordpy.api.counted_nouns import NAMED, count_noun, name_first
from koordpy.api.field_faults import one_line
from koordpy.api.keys import CLUSTER_LAYER
from koordpy.api.natural_order import natural_key

if TYPE_CHECKING:
    from koordpy.explain.explanation import Explanation
    from koordpy.planner.queue.queue_rank import QueueRank

Document = dict[str, Any]
ROWS = 50
"""Number of rows above which a table joins rows that differ only in their first column."""


def say(written: str) -> None:
    """Writes to standard output, as UTF-8 in every locale, so that equal input gives equal bytes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(written)


def text(document: Document, form: str) -> str:
    """Returns the document as text. form: `json` or `yaml`. Keys keep the document's order."""
    if form == "json":
        # json.dumps without an indent, then msgspec's indentation, takes a quarter of the time of json.dumps(indent=2)
        written = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return json_format(written, indent=2).decode("utf-8", "surrogatepass") + "\n"
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1 << 20))


def manifests(documents: Iterable[Document]) -> str:
    """Returns YAML documents that `-f` can read. Numbers are written as in the original manifest."""
    import yaml

    from koordpy.api.scalars import Number

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            return True

    def number(dumper: Any, value: Number) -> Any:
        tag = resolver.resolve(yaml.ScalarNode, value.text, (True, False))
        return dumper.represent_scalar(tag, value.text)

    resolver: Any = yaml.SafeLoader("")
    Dumper.add_representer(Number, number)
    form: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 1 << 20, "explicit_start": True}
    return str(yaml.dump_all(list(documents), Dumper=Dumper, **form))


def warning_lines(warnings: Iterable[tuple[str, str]], said: Sequence[str] = ()) -> list[str]:
    """Returns a line `warning: OBJECT: TEXT` for each (object, text); one line for many objects with the same text.

    said: warnings on manifests that were printed before; they are not repeated for objects of these manifests.
    """
    by_text: dict[str, list[str]] = {}
    for subject, text in warnings:
        by_text.setdefault(text, []).append(subject)
    lines = []
    for text, subjects in by_text.items():
        told = subjects if len(subjects) <= NAMED else [name_first(subjects)]
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
    """Returns the JSON document of `koordpy explain`; nodes are sorted by name."""
    return {
        "pod": found.pod,
        "gang": found.gang,
        "origin": found.origin,
        "round": found.round,
        "node": found.node or None,
        "reason": found.reason,
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
                **({"devices": [dict(one) for one in node.devices]} if node.devices else {}),
                "numa": node.numa,
            }
            for node in sorted(found.nodes, key=lambda node: natural_key(node.node))
        ],
        "domains": [
            {"layer": layer, "name": name, "slots": slots, "needed": needed, "chosen": chosen, "reason": reason}
            for layer, name, slots, needed, chosen, reason in found.domains
        ],
        "numa": found.numa,
        "message": found.message,
        "wouldFitIf": list(found.would_fit_if),
        "evictions": list(found.evictions),
        "method": found.method or None,
        "queue": _standing(found.queue_rank),
    }


def _standing(found: "QueueRank | None") -> Document | None:
    if found is None:
        return None
    return {
        "place": found.place,
        "waiting": found.waiting,
        "mode": found.mode,
        "owner": found.owner,
        "held": dict(found.used),
        "share": dict(found.share),
        "usage": None,
    }


# -- tables -----------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a table with aligned columns, two blanks apart; an empty list if there are no rows."""
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [list(header), *cells]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def lined(lines: Iterable[str]) -> str:
    """Joins lines to a text. Line ends and terminal control characters in quoted names and messages are escaped."""
    return "".join(f"{one_line(line)}\n" for line in lines)


def _merged(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """If there are more than `ROWS` rows, joins rows that differ only in the name in their first column."""
    if len(rows) <= ROWS:
        return list(rows)
    names: dict[tuple[object, ...], list[str]] = {}
    for name, *rest in rows:
        names.setdefault(tuple(rest), []).append(str(name))
    return [(name_first(own), *rest) for rest, own in names.items()]


def part(title: str, lines: list[str]) -> list[str]:
    """Returns an empty line, the title, and the indented lines; an empty list if there are no lines."""
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _key(entry: Document) -> str:
    return f"{entry['namespace']}/{entry['pod']}"


def simulation_table(document: Document, left_alone: Mapping[str, str]) -> str:
    """Returns a SimulationResult as tables: gangs with their domains, bindings, evictions, pending pods with reasons.

    left_alone: pod that koordpy does not schedule -> reason.
    """
    bindings, pending, gangs = document["bindings"], document["pending"], document["gangs"]
    end = "stable" if document["stable"] else "not stable yet"
    lines = [
        f"{count_noun(document['rounds'], 'round')}, {end}: {len(bindings)} bound, {len(pending)} pending, "
        f"{len(document['evictions'])} evicted"
    ]
    never = {one["gang"] for one in pending if "never fits: " in one["message"]}
    rows = [
        (
            gang["name"],
            gang["status"],
            f"{gang['bound']}/{gang['members']}",
            gang["minMember"],
            _domain(gang["domain"]),
            _proof(gang, never=gang["name"] in never),
        )
        for gang in gangs
    ]
    alone = [gang["message"] for gang in gangs if not gang["members"] and gang["message"]]
    steps = document.get("steps") or []
    lines += part(
        "Steps", table(("STEP", "ROUNDS", "BOUND", "EVICTED", "LEFT THEIR NODE", "PENDING"), map(_step_row, steps))
    )
    lines += part("Gangs", [*table(("NAME", "STATUS", "BOUND", "MIN", "DOMAIN", "PROOF"), rows), *alone])
    lines += part("Why they are gangs", [f"{gang['name']}: {gang['origin']}" for gang in gangs if gang["workload"]])
    lines += part("Workloads", _workload_lines(document["workloads"]))
    places = _merged([(_key(b), b["node"], b["round"]) for b in bindings])
    lines += part("Bindings", table(("POD", "NODE", "ROUND"), places))
    evictions = [(_key(e), e["node"], e["round"], e["rule"], e["beneficiary"] or "-") for e in document["evictions"]]
    lines += part("Evictions", table(("POD", "NODE", "ROUND", "RULE", "FOR"), _merged(evictions)))
    lines += part("Pending", pending_lines(pending))
    lines += part("Ignored", _left_alone_lines(left_alone))
    return lined(lines)


def _step_row(step: Document) -> tuple[object, ...]:
    first, last = step["firstRound"], step["firstRound"] + step["rounds"] - 1
    rounds = f"{first}" if first == last else f"{first}-{last}"
    end = "" if step["stable"] else ", not stable"
    return (
        step["step"],
        f"{rounds}{end}",
        step["bound"],
        step["evicted"],
        name_first(step["gone"]) or "-",
        name_first(step["pending"]) or "-",
    )


def _workload_lines(workloads: list[Document]) -> list[str]:
    rows = [
        (f"{one['namespace']}/{one['name']}", one["kind"], one["made"], one["present"], one["note"])
        for one in workloads
    ]
    waiting = [
        f"{one['namespace']}/{one['name']}: {count_noun(later['pods'], 'pod')} of role {later['role']} "
        f"when {later['for']}"
        for one in workloads
        for later in one["waiting"]
    ]
    return [*table(("NAME", "KIND", "MADE", "PRESENT", ""), rows), *waiting]


def _proof(gang: Document, *, never: bool) -> str:
    """Returns the proof of a gang's plan; `-` if all members run and the gang was not planned.

    If the gang runs with its minimum, returns the number of pending surplus members instead, because the proof would be
    about these members only.
    """
    waiting = gang["members"] - gang["bound"]
    if gang["proof"] == "unknown" and not waiting:
        return "-"
    if gang["status"] == "Scheduled" and waiting and gang["proof"] in ("infeasible", "unknown"):
        return f"runs, {waiting} more waiting"
    return f"{gang['proof']} (never)" if never else str(gang["proof"])


def _domain(domain: Document | None) -> str:
    if domain is None:
        return "-"
    if domain["layer"] == CLUSTER_LAYER:
        return "the cluster"
    return f"{domain['layer']} {domain['name']}".rstrip()


def pending_lines(pending: list[Document]) -> list[str]:
    """Returns the pending pods with reason and message. Members of a gang with the same message share one line."""
    groups: dict[tuple[str | None, str, str], list[str]] = {}
    for entry in pending:
        groups.setdefault((entry["gang"], entry["reason"], entry["message"]), []).append(_key(entry))
    lines = []
    for (gang, reason, message), pods in groups.items():
        lines += [f"{name_first(pods)}{f' (gang {gang})' if gang else ''}: {reason}", f"    {message}"]
    return lines


def _left_alone_lines(left_alone: Mapping[str, str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for pod, why in left_alone.items():
        groups.setdefault(why, []).append(pod)
    return [f"{name_first(pods)}: {why}" for why, pods in groups.items()]


def explanation_table(document: Document) -> str:
    """Returns an explanation as tables: nodes with verdict or scores, domains, changes that would help."""
    gang = f" of gang {document['gang']}" if document["gang"] else ""
    nodes = document["nodes"]
    take = f": {fits_on(document, len(nodes))}" if nodes else ""
    lines = [f"{document['pod']}{gang}{take}"]
    if document["origin"]:
        lines.append(f"gang {document['gang']}: {document['origin']}")
    lines += _decided(document)
    held = not nodes or (document["reason"] and document["feasibleNodes"] == len(nodes))  # not because of nodes
    if document["message"].startswith("never fits: ") or (held and document["message"]):
        lines.insert(0, document["message"])
    elif document["message"]:
        lines.append(document["message"])
    if any(node.get("numa") for node in nodes):
        lines.append(document["numa"])
    lines += part("Evictions", document["evictions"])
    rows = [(node["node"], "yes" if node["feasible"] else "no", _verdict(node)) for node in nodes]
    lines += part("Nodes", table(("NODE", "FITS", "WHY"), _merged(rows)))
    domains = [
        (d["name"] or "the cluster", d["layer"], d["slots"], d["needed"], d["reason"]) for d in document["domains"]
    ]
    ordered = [(layer, name, *rest) for name, layer, *rest in _merged(domains)]
    lines += part("Domains", table(("LAYER", "NAME", "SLOTS", "NEEDED", "WHY"), ordered))
    return lined(lines + remedies(document))


def fits_on(document: Document, nodes: int) -> str:
    """Returns on how many of the nodes the pod fits. For a member of a gang, says that the other members are
    ignored."""
    take = f"fits on {document['feasibleNodes']} of {count_noun(nodes, 'node')}"
    return f"alone, it {take}" if document.get("gang") else take


def _decided(document: Document) -> list[str]:
    """Returns the pod's node, or the reason why it waits; with the number of the round, unless it is the first."""
    when = f" in round {document['round']}" if (document["round"] or 1) > 1 else ""
    if document["node"]:
        return [f"placed on {document['node']}{when}"]
    return [f"pending{when}: {document['reason']}"] if document["reason"] else []


def gang_lines(document: Document) -> list[str]:
    """Returns the state of the gang if the question of `why` names a gang, with its message if no pod is listed.

    Empty if the question names a pod.
    """
    gang = document["gang"]
    if gang is None or document["kind"] == "Pod":
        return []
    lines = [f"gang {gang['name']}: {gang['status']}, {gang['bound']} of {gang['minMember']} required members bound"]
    return [*lines, f"    {gang['message']}"] if gang["message"] and not document["pods"] else lines


def remedies(document: Document) -> list[str]:
    """Returns the changes that would help a pod, and its place in the queue."""
    return [*part("Would fit if", document["wouldFitIf"]), *part("Queue", _queue_lines(document["queue"]))]


def _queue_lines(queue: Document | None) -> list[str]:
    if queue is None:
        return []
    blocked = f"blocked before planning, not among the {queue['waiting']} in the queue"
    place = blocked if queue["place"] is None else f"place {queue['place']} of {queue['waiting']}"
    lines = [f"{place} (fairness mode {queue['mode']})"]
    lines += [
        f"{queue['owner']} uses {held} {name}, its fair share is {queue['share'][name]}"
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
