# SPDX-License-Identifier: Apache-2.0
"""The golden run: `make golden`, or `python -m tests.golden [--quick] [--record] [-j JOBS] [PATH...]`.

Plans everything of `families.py`, compares hashes with the recorded ones (`recorded/*.json`, by group), and names each
scenario and each seed that differs; ends with 1 then. `--show FAMILY SEED` or `--show GROUP NAME` prints the plan, to
compare it with that of another commit. A commit that changes a plan on purpose records it anew with `--record`.

PATH: scenarios outside of the repository (`families.scenarios_of`), recorded in the file that `--file` names.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from tests.golden.documents import HASH_CHARACTERS, hash_of
from tests.golden.families import FAMILIES, scenarios, scenarios_of

RECORDED = Path(__file__).parent / "recorded"
BLOCK = 10
"""Seeds of a family whose hashes stand on one line of its file."""
FAULT = "fault"
"""In place of a hash: no plan was made. Equal to nothing that is recorded."""
QUICK_SCENARIOS = 4
"""The quick run takes every fourth scenario of a group."""

Hashes = dict[str, str]
"""Name of a scenario, or seed -> hash."""

Job = tuple[str, Callable[..., object], tuple[object, ...]]
"""Group or family, a function that gives hashes, its arguments."""


def family_hashes(name: str, seeds: range) -> list[tuple[str, str]]:
    """(seed, hash) of seeds of a family."""
    return [(str(seed), _hash(f"{name} {seed}", partial(FAMILIES[name].text, seed), HASH_CHARACTERS)) for seed in seeds]


def scenario_hash(group: str, name: str, path: str = "") -> tuple[str, str]:
    """(name, hash) of a scenario; path: where it stands, for those outside of the repository."""
    found = dict(scenarios_of(Path(path))) if path else scenarios()[group]
    return name, _hash(name, found[name], 2 * HASH_CHARACTERS)


def _hash(name: str, make: Callable[[], str], characters: int) -> str:
    """The hash of a text; FAULT where making it ends with an exception, which is printed."""
    try:
        return hash_of(make(), characters)
    except Exception:
        print(f"{name}: {traceback.format_exc(limit=-4)}", file=sys.stderr, flush=True)
        return FAULT


def _run(wanted: list[Job], jobs: int) -> Iterator[tuple[str, object]]:
    pool = ProcessPoolExecutor(jobs) if jobs > 1 else None
    with pool or nullcontext():
        if pool is None:
            yield from ((group, job(*given)) for group, job, given in wanted)
        else:
            futures = [(group, pool.submit(job, *given)) for group, job, given in wanted]
            yield from ((group, future.result()) for group, future in futures)


def hashes(*, quick: bool, jobs: int, only: str = "") -> dict[str, Hashes]:
    """Group or family -> its hashes now. only: names of groups and families hold it."""
    wanted: list[Job] = []
    for name, family in FAMILIES.items():
        seeds = family.seeds(quick=quick)
        wanted += [(name, family_hashes, (name, seeds[k : k + BLOCK])) for k in range(0, len(seeds), BLOCK)]
    for group, found in scenarios().items():
        names = list(found)[:: QUICK_SCENARIOS if quick else 1]
        wanted += [(group, scenario_hash, (group, name)) for name in names]
    return _gathered([one for one in wanted if only in one[0]], jobs)


def outside_hashes(paths: list[str], *, quick: bool, jobs: int) -> dict[str, Hashes]:
    """The same of scenarios outside of the repository, each path a group."""
    wanted: list[Job] = []
    for path in paths:
        names = [name for name, _ in scenarios_of(Path(path))][:: 2 * QUICK_SCENARIOS if quick else 1]
        wanted += [(Path(path).name, scenario_hash, ("", name, path)) for name in names]
    return _gathered(wanted, jobs)


def _gathered(wanted: list[Job], jobs: int) -> dict[str, Hashes]:
    out: dict[str, Hashes] = {}
    started = time.monotonic()
    for group, found in _run(wanted, jobs):
        own = out.setdefault(group, {})
        if not own:
            print(f"{time.monotonic() - started:6.0f} s  {group}", file=sys.stderr, flush=True)
        own.update(found if isinstance(found, list) else [found])  # type: ignore[list-item]
    return out


def write(file: Path, own: Hashes) -> None:
    """Records hashes: of a family the hashes of ten seeds on a line, of scenarios one on a line."""
    if all(name.isdigit() for name in own):
        listed = [own[str(seed)] for seed in range(len(own))]
        lines = {str(k): " ".join(listed[k : k + BLOCK]) for k in range(0, len(listed), BLOCK)}
    else:
        lines = own
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(lines, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def read(file: Path) -> Hashes:
    """What `write` has recorded; empty where there is no file."""
    if not file.exists():
        return {}
    lines: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    if not all(name.isdigit() for name in lines):
        return lines
    return {str(int(first) + k): one for first, text in lines.items() for k, one in enumerate(text.split())}


def differences(now: Hashes, before: Hashes) -> list[str]:
    """Names or seeds whose plan differs from the recorded one; one without a record is new."""
    return [
        name if name in before else f"{name} (new)"
        for name, own in now.items()
        if own == FAULT or before.get(name) != own
    ]


def _show(group: str, name: str, paths: list[str]) -> None:
    if group in FAMILIES:
        print(FAMILIES[group].text(int(name)))
    else:
        found = {path.name: path for path in map(Path, paths)}
        print((dict(scenarios_of(found[group])) if group in found else scenarios()[group])[name]())


def main(arguments: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("paths", nargs="*", metavar="PATH", help="scenarios outside of the repository, and only they")
    parser.add_argument("--quick", action="store_true", help="a sample, spread over everything")
    parser.add_argument("--record", action="store_true", help="write the hashes instead of comparing them")
    parser.add_argument("--file", type=Path, help="where the hashes of PATH are recorded")
    parser.add_argument("--only", default="", help="groups and families whose name holds this text")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    parser.add_argument("--show", nargs=2, metavar=("FAMILY", "SEED"), help="print the plan of one seed or scenario")
    given = parser.parse_args(arguments)
    if given.show:
        _show(*given.show, given.paths)
        return 0
    if given.record and given.quick:
        parser.error("--record needs the whole run")
    if bool(given.paths) != bool(given.file):
        parser.error("PATH and --file belong together")
    if given.paths:
        now = outside_hashes(given.paths, quick=given.quick, jobs=given.jobs)
        known: dict[str, Hashes] = json.loads(given.file.read_text()) if given.file.exists() else {}
    else:
        now = hashes(quick=given.quick, jobs=given.jobs, only=given.only)
        known = {group: read(RECORDED / f"{group}.json") for group in now}
    faults = [f"{group} {name}" for group, own in now.items() for name, one in own.items() if one == FAULT]
    if given.record and faults:
        print(f"not recorded, no plan was made of: {', '.join(faults)}", file=sys.stderr)
        return 1
    wrong = {group: differences(own, known.get(group, {})) for group, own in now.items()}
    for group, own in now.items():
        told = f"{len(wrong[group])} differ: {', '.join(wrong[group][:20])}" if wrong[group] else "equal"
        print(f"{group:<12}{len(own):>6}  {told}")
    if given.record and given.paths:
        given.file.write_text(json.dumps(now, indent=0) + "\n")
    elif given.record:
        for group, own in now.items():
            write(RECORDED / f"{group}.json", own)
    return int(any(wrong.values()) and not given.record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
