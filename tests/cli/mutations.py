# SPDX-License-Identifier: Apache-2.0
"""The examples with one thing wrong, and what the offline commands must still do with them.

`python -m tests.cli.mutations FIRST COUNT` tries many; test_mutations.py a few of every command. What is changed
is a value somewhere in a document (gone, of another type, absurd, put elsewhere) or the text of a file (cut, in another
encoding, with tabs). Whatever it is, the answer is a result, or exit status 2 with lines that say what is wrong and
where.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from koordpy.cli.main import main
from tests.said import warnings_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 20.0
"""Of processor time: the machine may be busy with something else."""
NODES_KEPT = 8
"""Of the examples' cluster: the other 56 nodes say nothing new."""
Documents = list[Any]


@dataclass(frozen=True, slots=True)
class Base:
    """A command that works: its words, and its files in order, which take the place of `FILES` or `FILE` among them."""

    words: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One try. `what` says what was changed, `field` the last named key on the way to a value of a wrong type."""

    words: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]
    what: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    out: str
    err: str
    raised: str


# -- what works -------------------------------------------------------------------------------------------------------


def _examples(folder: str, *, but: str = "config-|fairshare-") -> list[str]:
    found = sorted(str(path.relative_to(EXAMPLES)) for path in (EXAMPLES / folder).glob("*.yaml"))
    return [name for name in found if not re.match(but, Path(name).name)]


def bases() -> list[Base]:
    """Every example with the files it needs, in every command that reads manifests."""
    shared = ("cluster/nodes.yaml", "cluster/topology.yaml")
    of_ascend = ("ascend/cluster.yaml", "ascend/topology.yaml", "ascend/switches.yaml")
    inputs: list[tuple[str, ...]] = [(*shared, name) for name in _examples(".") if name != "gpu-pair.yaml"]
    inputs += [(*of_ascend, name) for name in _examples("ascend") if name not in of_ascend]
    inputs += [(name,) for folder in ("gpu", "preemption", "quotas") for name in _examples(folder)]
    inputs += [(name, f"topologies/nodes/{Path(name).name}") for name in _examples("topologies")]
    found = []
    for files in inputs:
        found.append(Base(("simulate", "-f", "FILES", "-o", "json"), files))
        found.append(Base(("simulate", "-f", "FILES"), files))
        found.append(Base(("topology", "-f", "FILES"), files))
        pod = _first_pod(files)
        if pod is not None:
            found.append(Base(("explain", "-f", "FILES", "--pod", pod, "-o", "json"), files))
            found.append(Base(("explain", "-f", "FILES", "--pod", pod), files))
            found.append(Base(("topology", "-f", "FILES", "--pod", pod, "-o", "json"), files))
    for config, name in (
        ("preemption/config-consolidation", "consolidation"),
        ("quotas/config-reclaim-all", "fair-share"),
    ):
        example = f"{Path(config).parent}/{name}.yaml"
        found.append(Base(("simulate", "-f", example, "--config", "FILE"), (f"{config}.yaml",)))
        found.append(Base(("config", "check", "FILE"), (f"{config}.yaml",)))
    found += [Base(("fairshare", "-f", "FILE", "-o", "json"), ("quotas/fairshare-queues.yaml",))] * 8
    return found


def _first_pod(files: tuple[str, ...]) -> str | None:
    for name in reversed(files):
        for document in documents(name):
            if document["kind"] == "Pod":
                return f"{document['metadata'].get('namespace', 'default')}/{document['metadata']['name']}"
    return None


_read: dict[str, Documents] = {}


def documents(name: str) -> Documents:
    """Of an example; the large cluster's first nodes only."""
    if name not in _read:
        found = [one for one in yaml.load_all((EXAMPLES / name).read_bytes(), yaml.CSafeLoader) if one is not None]
        _read[name] = found[:NODES_KEPT] if name == "cluster/nodes.yaml" else found
    return _read[name]


# -- values -----------------------------------------------------------------------------------------------------------

Path_ = tuple[str | int, ...]

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 10**12, 10**30, -(10**30), 2**31, 2**63, 1.5, -0.5, 1e308, "", " ", "-1", "0", "1",
    "1e400", "9" * 400, "1Ei", "9999999Ei", "-5", "5m", "0.0000000001", "1.5.2", "5 Gi", "0x10", "1_000", "\u0663", "x",
    "a/b", "a" * 300, "Pod", "default", "\u00e9\u4e16\u754c", "\U0001f600", "a\nb", "a\tb", "\x00", "\x1b[31m", "{}",
    "[]", '{"gatherStrategy": 5}', '{"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]}', "[[[[",
    "null", "true", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "10s", "-10s", "1h",
    "99999999h", [], {}, [None], [[]], [{}], {"": ""}, {"a": None}, ["x"], [1, "x"], {"x": {"y": {"z": []}}},
    "koord-scheduler",
)  # fmt: skip


def paths(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every place inside a document, its own first."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*at, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from paths(inner, (*at, i))


def _get(value: Any, at: Path_) -> Any:
    for step in at:
        value = value[step]
    return value


def _set(documents: Documents, at: Path_, value: Any) -> None:
    _get(documents, at[:-1])[at[-1]] = value


def _nested(rng: random.Random, value: Any) -> Any:
    for _ in range(rng.choice([3, 150, 199, 250, 400])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def mutate_value(rng: random.Random, found: Documents) -> str:
    """Changes one place of the documents; what was done."""
    at = rng.choice(list(paths(found))[1:] or [()])
    if not at:
        return "nothing"
    shown = ".".join(map(str, at))
    match rng.randrange(11):
        case 0:
            del _get(found, at[:-1])[at[-1]]
            return f"{shown} gone"
        case 1 | 2 | 3 | 4:
            odd = copy.deepcopy(rng.choice(ODD))
            _set(found, at, odd)
            return f"{shown} = {str(odd)[:40]!r}"
        case 5:
            other = rng.choice(list(paths(found))[1:])
            _set(found, at, copy.deepcopy(_get(found, other)))
            return f"{shown} = {'.'.join(map(str, other))}"
        case 6:
            _set(found, at, _nested(rng, _get(found, at)))
            return f"{shown} nested"
        case 7:
            holder = _get(found, at[:-1])
            if isinstance(holder, list):
                holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(_get(found, at)))
                return f"{shown} twice"
            renamed = rng.choice([str(at[-1]).upper(), f"{at[-1]} ", "", "\u00e9", "x", f"{at[-1]}s"])
            holder[renamed] = holder.pop(at[-1])
            return f"{shown} called {renamed!r}"
        case 8:
            value = _get(found, at)
            if isinstance(value, bool) or not isinstance(value, (int, str)):
                _set(found, at, {"value": value})
                return f"{shown} wrapped"
            _set(found, at, str(value) if isinstance(value, int) else int(value) if value.isdecimal() else [value])
            return f"{shown} of another type"
        case 9:
            texts = [path for path in paths(found) if isinstance(_get(found, path), str)] if found else []
            if not texts:
                return "nothing"
            place = rng.choice(texts)
            text = _get(found, place)
            cut = rng.randrange(len(text) + 1)
            _set(
                found,
                place,
                text[:cut]
                + rng.choice(["", "x", " ", "/", ",", '"', "\u00fc", "0", "-", "}"])
                + text[cut + rng.randrange(2) :],
            )
            return f"{'.'.join(map(str, place))}: a letter"
        case _:
            many = rng.choice([2, 40])
            value = _get(found, at)
            if isinstance(value, list):
                _set(found, at, value * many)
            elif isinstance(value, dict):
                value.update({f"more-{i}": copy.deepcopy(next(iter(value.values()), None)) for i in range(many)})
            elif isinstance(value, str):
                _set(found, at, value * many)
            else:
                _set(found, at, value * 10**many if isinstance(value, int) else -value if value else 1)
            return f"{shown} many"


# -- text -------------------------------------------------------------------------------------------------------------


BITS = (
    b"{", b"}", b"[", b"]", b":", b"- ", b"? ", b"! ", b"&a ", b"*a ", b"|", b">", b"%", b"@", b"`", b"'", b'"', b"#",
    b"--- ", b"...", b"<<: ", b"\x00", b"\x85",
)  # fmt: skip


def mutate_text(rng: random.Random, text: bytes) -> tuple[bytes, str]:
    """Changes a file's bytes; what was done."""
    lines = text.split(b"\n")
    line = rng.randrange(len(lines))
    at = rng.randrange(len(text) + 1)
    match rng.randrange(16):
        case 0:
            return text[:at], f"cut at {at}"
        case 1:
            return b"", "empty"
        case 2:
            return rng.randbytes(rng.randrange(1, 400)), "random bytes"
        case 3:
            return text.replace(b"\n", b"\r\n"), "CRLF"
        case 4:
            return b"\xef\xbb\xbf" + text, "byte-order mark"
        case 5:
            return text.decode().encode(rng.choice(["utf-16", "utf-32", "utf-16-le"])), "UTF-16 or 32"
        case 6:
            return text.replace(b"  ", b"\t"), "tabs"
        case 7:
            return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :], f"byte {at}"
        case 8:
            return b"\n".join(lines[:line] + [lines[line]] * 2 + lines[line + 1 :]), f"line {line} twice"
        case 9:
            return b"\n".join(lines[:line] + lines[line + 1 :]), f"line {line} gone"
        case 10:
            bit = rng.choice(BITS)
            return text[:at] + bit + text[at:], f"{bit!r} at {at}"
        case 11:
            other = rng.randrange(len(lines))
            lines[line], lines[other] = lines[other], lines[line]
            return b"\n".join(lines), f"lines {line} and {other} change places"
        case 12:
            return text.replace(b": ", b": &a ", 1).replace(b": ", b": *a ", 4), "anchors"
        case 13:
            lines[line] = b"    " + lines[line]
            return b"\n".join(lines), f"line {line} further in"
        case 14:
            return text + b"\n---\n" + text, "the file twice"
        case _:
            return text.replace(b"\n", rng.choice([b"\r", b"\xe2\x80\xa8", b"\xc2\x85", b"\n\n"])), "other line ends"


def mutant(seed: int, among: list[Base]) -> Mutant:
    """The mutant of a seed."""
    rng = random.Random(seed)
    base = rng.choice(among)
    chosen = rng.randrange(len(base.files))
    files, what = [], ""
    for i, name in enumerate(base.files):
        found = documents(name)
        if i != chosen:
            files.append((Path(name).name, written(found)))
            continue
        if rng.random() < 0.7:
            found = copy.deepcopy(found)
            told: list[str] = []
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                told.append(mutate_value(rng, found))
                if told[-1].endswith(" nested"):  # too deep to be copied again
                    break
            what = ", ".join(told)
            data = written(found)
        else:
            data, what = mutate_text(rng, (EXAMPLES / name).read_bytes())
        files.append((Path(name).name, data))
    return Mutant(base.words, tuple(files), f"{base.files[chosen]}: {what}")


def written(found: Documents) -> bytes:
    """YAML whose documents are written as JSON: what a number or a text is stays what it is."""
    return "".join(f"---\n{json.dumps(document, default=str)}\n" for document in found).encode()


# -- the answer -------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """The command took longer than any of these inputs needs."""


def _alarm(*_: object) -> None:
    raise TooLong


def answer(one: Mutant, folder: Path) -> Answer:
    """Runs the command in this process."""
    names = []
    for i, (name, data) in enumerate(one.files):
        path = folder / f"{i}-{name}"
        path.write_bytes(data)
        names.append(str(path))
    words: list[str] = []
    for word in one.words:
        if word == "FILES":
            words += [part for name in names for part in ("-f", name)][1:]
        else:
            words.append(names[0] if word == "FILE" else str(EXAMPLES / word) if word.endswith(".yaml") else word)
    out, err = io.StringIO(), io.StringIO()
    status, raised = -1, ""
    before = signal.signal(signal.SIGPROF, _alarm)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
    except SystemExit as left:
        status = int(left.code or 0)
    except (Exception, TooLong):
        raised = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    for name in names:
        Path(name).unlink()
    return Answer(status, out.getvalue(), warnings_of(err.getvalue()), raised)


def judged(one: Mutant, got: Answer, folder: Path) -> str:
    """What is wrong with an answer, or nothing."""
    if got.raised:
        return got.raised
    lines = got.err.splitlines()
    topology = one.words[0] == "topology"
    if got.status == 2:
        if got.out and not topology:
            return "exit status 2, and something on stdout"
        if not lines:
            return "exit status 2 without a word"
        odd = [line for line in lines if not _placed(line, folder, topology)]
        return f"a fault without its place: {odd[0]!r}" if odd else ""
    if got.status != 0:
        return f"exit status {got.status}: {got.err[:200]}"
    if [line for line in lines if not line.startswith("warning: ")]:
        return f"exit status 0, but: {lines[0]}"
    if "json" in one.words:
        try:
            document = json.loads(got.out)
        except ValueError as fault:
            return f"no JSON: {fault}"
        if one.words[0] == "simulate":
            return _unsound(document)
    return ""


def _placed(line: str, folder: Path, topology: bool) -> bool:
    if line.startswith("--pod ") or line.endswith("no Node in the input"):
        return True
    if topology and re.match(r"(warning: |ClusterNetworkTopology/|HyperNode/)", line):
        return True
    return line.startswith(str(folder)) and len(line) < 2100 and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line)


def _unsound(document: dict[str, Any]) -> str:
    if not document["stable"] and document["rounds"] < 20:
        return "not stable, and stopped"
    final = [(one["namespace"], one["pod"]) for one in document["final"]]
    if len(set(final)) != len(final):
        return "a pod stands in two places at the end"
    waits = {(one["namespace"], one["pod"]) for one in document["pending"]}
    if waits & set(final):
        return "a pod waits and is assigned"
    if [one for one in document["pending"] if not one["message"]]:
        return "a pod waits and is not told why"
    return ""


def run(first: int, count: int, among: list[Base], *, tell: bool = False) -> dict[int, str]:
    """Seed -> what is wrong, for mutants of the bases."""
    wrong: dict[int, str] = {}
    statuses: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(first, first + count):
            one = mutant(seed, among)
            started = time.process_time()
            got = answer(one, folder)
            took = time.process_time() - started
            statuses[got.status] = statuses.get(got.status, 0) + 1
            fault = judged(one, got, folder)
            if fault:
                wrong[seed] = f"{' '.join(one.words)}: {one.what}: {fault}"
            if tell and (fault or took > 3):
                print(f"-- {seed} {took:.1f} s {wrong.get(seed, one.what)}", flush=True)
    if tell:
        print(f"{count} mutants from {first}: exit statuses {statuses}, {len(wrong)} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(run(int(sys.argv[1]), int(sys.argv[2]), bases(), tell=True)))
