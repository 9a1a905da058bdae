# SPDX-License-Identifier: Apache-2.0
"""Whether `simulate` and `explain` say the same of every pod that the one binds or leaves pending.

By hand on manifests, with options of the two commands behind `--`: python -m tests.cli.agreement PATH... [-- OPTION...]
"""

import contextlib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from koordpy.cli.main import main as koordpy

Document = dict[str, Any]
WHOLE_GANG = "node(s) cannot hold the whole gang"
PROMISED = "node(s) are needed for a promised start"
ORDER_OPEN = "rank order: not proven best"
NEVER = re.compile(r"^never fits: .*?[.?](?= |$)")
"""What `explain` says first, and `simulate` behind the name of the gang or at the end."""
GROUP = "internal.scheduling.koordinator.sh/bind-gang-group-id"
COUNT = "internal.scheduling.koordinator.sh/bind-gang-member-count"


def answer(words: Sequence[str]) -> tuple[int, Document, str]:
    """Status, JSON and the lines on stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = koordpy([*words, "-o", "json"])
    return status, json.loads(out.getvalue() or "{}"), err.getvalue()


def compared(
    arguments: Sequence[str], most: int | None = None, *, one_a_gang: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """(pod, contradictions) of each pod that `simulate` binds or leaves pending, of `most` at most.

    arguments: the input and the options of both commands.
    one_a_gang: of the pending pods of one gang with one message, only the first.
    """
    status, said, err = answer(["simulate", *arguments])
    assert status == 0, err
    pending = first_of_gangs(said["pending"]) if one_a_gang else said["pending"]
    pods = dict.fromkeys(key(one) for one in (*pending, *said["bindings"]))
    for pod in list(pods)[:most]:
        status, told, err = answer(["explain", *arguments, "--pod", pod])
        if status == 2 and " waits for " in err and "--started" in err:
            continue  # of a later step: explain names the option that makes it
        yield pod, [f"explain fails: {err}"] if status else list(contradictions(said, told, pod))


def first_of_gangs(pending: Sequence[Document]) -> list[Document]:
    """The first of the pending pods of one gang with one message, and each pod without a gang."""
    return list({(one["gang"] or key(one), one["message"]): one for one in reversed(pending)}.values())[::-1]


def key(entry: Document) -> str:
    return f"{entry['namespace']}/{entry['pod']}"


def contradictions(said: Document, told: Document, pod: str) -> Iterator[str]:
    """What `explain` says of a pod that is not what `simulate` says."""
    waits = next((one for one in said["pending"] if key(one) == pod), None)
    node = next((one["node"] for one in said["final"] if key(one) == pod), None)
    if waits is None and node is None:  # bound in one round and evicted for good in another
        if not told["message"].startswith("evicted from ") or told["reason"]:
            yield f"evicted, told {told['message']!r}"
        return
    if waits is None:
        if (told["node"], told["reason"]) != (node, ""):
            yield f"bound to {node}, told {told['node']} {told['reason']}"
        if told["message"] not in ("", ORDER_OPEN):
            yield f"bound, told {told['message']}"
        yield from _domain(said, told, pod)
        return
    if told["node"] is not None or told["reason"] != waits["reason"]:
        yield f"waits ({waits['reason']}), told {told['node']} {told['reason']}"
    if any(one["chosen"] for one in told["domains"]):
        yield "waits, and a domain is chosen"
    if told["message"] == _never_first(told["message"], waits["message"]):
        return
    if "nodes are available" not in waits["message"] or "quotaName: " in waits["message"]:
        yield f"{waits['message']!r} is not {told['message']!r}"
    if not _counts(told, waits["message"]):
        yield f"{waits['message']!r} counts other nodes than {_sentence(told)!r}"
    if told["message"] not in waits["message"]:
        yield f"{told['message']!r} is no part of {waits['message']!r}"


def _domain(said: Document, told: Document, pod: str) -> Iterator[str]:
    """The domain of a pod's gang: that of the plan, where one plan has bound all members of one gang. Else one of the
    two holds the other, because of members of other rounds or gangs."""
    gang = next((one for one in said["gangs"] if one["name"] == told["gang"]), None)
    if gang is None or gang["domain"] is None:
        return
    chosen = next(((one["layer"], one["name"]) for one in told["domains"] if one["chosen"]), None)
    found = gang["domain"]["layer"], gang["domain"]["name"]
    notes = next(one["annotations"] for one in said["bindings"] if key(one) == pod)
    if chosen is None:
        yield f"bound in {found}, no domain is chosen"
    elif (notes.get(GROUP), notes.get(COUNT)) == (gang["name"], str(gang["members"])):
        if found != chosen:
            yield f"bound in {found}, chosen {chosen}"
    elif not (chosen[1].startswith(found[1]) or found[1].startswith(chosen[1])):
        yield f"bound in {found}, chosen {chosen}"


def _sentence(told: Document) -> str:
    """kube-scheduler's sentence, counted from the nodes of an explanation."""
    counts = Counter(reason["message"] for node in told["nodes"] for reason in node["reasons"])
    if told["feasibleNodes"]:
        counts[WHOLE_GANG if told["gang"] else PROMISED] += told["feasibleNodes"]
    entries = sorted(f"{number} {reason}" for reason, number in counts.items())
    return f"0/{len(told['nodes'])} nodes are available: {', '.join(entries)}."


def _never_first(told: str, waits: str) -> str:
    """The message of a waiting pod with the sentence on never in front, where an explanation begins with one."""
    found = NEVER.match(told)
    if found is None:
        return waits
    why = re.escape(found[0].removeprefix("never fits: "))
    of_gang = rf"gang \S+: (?:never fits: )?{why}"
    rest, number = re.subn(of_gang, "", waits, count=1)
    rest = re.sub(r"^gang \S+: never fits: .*?\.\.\. ", "", rest, count=1)  # the same, cut
    if not number:
        rest = rest.replace(found[0], "", 1)
    return " ".join([found[0], *rest.split()])


def _counts(told: Document, message: str) -> bool:
    """Whether a message has the sentence that the nodes of an explanation make."""
    if not told["nodes"]:
        return "no nodes available" in message
    sentence = _sentence(told)
    if sentence in message:
        return True
    # what concerns the pod and no single node is said without a number
    total = f"{len(told['nodes'])} "
    return re.sub(rf"(?<=[:,] ){total}", "", sentence) in message


if __name__ == "__main__":
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    paths = [word for path in sys.argv[1:split] for word in ("-f", path)]
    number = wrong = 0
    for name, faults in compared([*paths, *sys.argv[split + 1 :]]):
        number += 1
        wrong += bool(faults)
        for fault in faults:
            print(f"{name}: {fault}")
    print(f"{number} pods compared, {wrong} told otherwise")
    sys.exit(bool(wrong))
