# SPDX-License-Identifier: Apache-2.0
"""Compares verdicts of device selectors with those of Kubernetes' own package: `make cel-differential`.

The Go program in `kubernetes_cel` runs k8s.io/dynamic-resource-allocation/cel. The expressions are those of
`cel_corpus.yaml` and COUNT random ones. Each difference must have a reason of `reason`. `--record` writes Kubernetes'
verdicts of the corpus into `cel_verdicts.json`, which test_cel_verdicts.py reads.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from koordpy.api.claim_objects import DeviceAttribute, DeviceCapacity
from koordpy.devices.dra.cel import (
    DeviceFacts,
    SelectorError,
    SelectorRuntimeError,
    UnsupportedSelector,
    compile_selector,
)
from tests.devices.dra.random_selectors import DEVICES, SelectorMaker

HERE = Path(__file__).parent
CORPUS, VERDICTS, PROGRAM = HERE / "cel_corpus.yaml", HERE / "cel_verdicts.json", HERE / "kubernetes_cel"
BATCH = 5000
"""Expressions that one run of the Go program takes."""

Json = dict[str, Any]
Verdicts = list[Any]
"""("compile", text) or ("unsupported", text), else for each device a bool or the text of an error."""


def corpus() -> tuple[list[Json], dict[str, list[str]], dict[str, str]]:
    """Returns (devices, subject -> expressions, expression -> why it has another verdict here)."""
    read = yaml.safe_load(CORPUS.read_text(encoding="utf-8"))
    return read["devices"], read["expressions"], read["differs"]


def facts_of(device: Json) -> DeviceFacts:
    """Returns a device of the API as facts."""
    attributes = {name: msgspec.convert(one, DeviceAttribute) for name, one in device.get("attributes", {}).items()}
    capacity = {name: msgspec.convert(one, DeviceCapacity) for name, one in device.get("capacity", {}).items()}
    return DeviceFacts(device["driver"], attributes, capacity, device.get("allowMultipleAllocations", False))


def our_verdicts(expression: str, devices: Sequence[DeviceFacts]) -> Verdicts:
    """Returns the verdicts of koordpy."""
    try:
        selector = compile_selector(expression)
    except SelectorError as fault:
        return ["compile", str(fault)]
    except UnsupportedSelector as fault:
        return ["unsupported", str(fault)]
    found: Verdicts = []
    for device in devices:
        try:
            found.append(selector.matches(device))
        except SelectorRuntimeError as fault:
            found.append(str(fault))
    return found


def kubernetes_verdicts(expressions: Sequence[str], devices: Sequence[Json]) -> Iterator[Verdicts]:
    """Yields the verdicts of Kubernetes. Needs Go, which downloads its modules the first time."""
    for at in range(0, len(expressions), BATCH):
        question = json.dumps({"devices": devices, "expressions": expressions[at : at + BATCH]})
        done = subprocess.run(["go", "run", "."], cwd=PROGRAM, input=question, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        yield from (json.loads(line) for line in done.stdout.splitlines())


def short(verdicts: Verdicts) -> str:
    """Returns verdicts as a word: `C` for a compile error, `U` for a refusal, else T, F or E for each device."""
    if verdicts[0] in ("compile", "unsupported"):
        return "C" if verdicts[0] == "compile" else "U"
    return "".join({True: "T", False: "F"}.get(one, "E") if isinstance(one, bool) else "E" for one in verdicts)


_STATIC = ("found no matching overload", "must evaluate to bool", "expected type", "undefined field")

_COMPARED_VERSION = ("no such overload", "internal error: runtime error: hash of unhashable type cel.Semver")
_COSTS = (
    "internal error: interface conversion: *types.Err is not traits.Lister",
    "internal error: interface conversion: ref.Val is *types.Err, not types.Int",
)


def reason(expression: str, kubernetes: Verdicts, ours: Verdicts) -> str | None:
    """Returns why two verdicts may differ (section 3 of the rules of claims); None if they may not."""
    if ours[0] == "unsupported":
        return f"refused: {ours[1]}"
    if kubernetes[0] == "compile":
        return "a static type error" if any(one in kubernetes[1] for one in _STATIC) else None
    if ours[0] == "compile":
        constant = "device" not in expression and "must evaluate to bool" in ours[1]
        return "a constant of another type" if constant else None
    differing = [(a, b) for a, b in zip(kubernetes, ours, strict=True) if short([a]) != short([b])]
    if all("cost limit exceeded" in str(a) for a, _ in differing):
        return "the cost limit"
    # Kubernetes cannot compare the result of add and sub: == is an error, != true and `in` false
    computed = ".add(" in expression or ".sub(" in expression
    if computed and any(one in expression for one in (" == ", " != ", " in ", "includes")):
        return "a computed quantity is compared by value"
    versions = "firmware" in expression or "semver(" in expression
    if versions and all(a in _COMPARED_VERSION and isinstance(b, bool) for a, b in differing):
        return "a version compared with a string"
    if all(a == "NaN values cannot be ordered" and b is False for a, b in differing):
        return "a dynamic value that is NaN"
    if all(str(a).startswith(_COSTS) and isinstance(b, bool) for a, b in differing):
        return "an error that Kubernetes cannot hide, because it fails to compute costs"
    return None


def differences(expressions: Sequence[str], devices: Sequence[Json]) -> Iterator[tuple[str, Verdicts, Verdicts]]:
    """Yields (expression, Kubernetes' verdicts, ours) of each expression."""
    facts = [facts_of(device) for device in devices]
    for expression, theirs in zip(expressions, kubernetes_verdicts(expressions, devices), strict=True):
        yield expression, theirs, our_verdicts(expression, facts)


def main() -> int:
    """Returns the exit status: 1 if a difference has no reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="number of random expressions (20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first random expression (0)")
    parser.add_argument("--record", action="store_true", help="write cel_verdicts.json")
    args = parser.parse_args()
    devices, subjects, differs = corpus()
    fixed = [*(one for group in subjects.values() for one in group), *differs]
    random_ones = [SelectorMaker(args.seed + at).selector() for at in range(args.count)]
    counts: Counter[str] = Counter()
    faults = 0
    for expressions, over in ((fixed, devices), (random_ones, DEVICES)):
        recorded: dict[str, str] = {}
        for expression, theirs, ours in differences(expressions, over):
            recorded[expression] = short(theirs)
            if short(theirs) == short(ours):
                counts["equal"] += 1
                continue
            why = reason(expression, theirs, ours)
            counts[why or "NO REASON"] += 1
            if why is None:
                faults += 1
                print(f"{expression}\n  Kubernetes: {theirs}\n  koordpy: {ours}")
        if args.record and over is devices:
            VERDICTS.write_text(json.dumps(recorded, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(fixed)} expressions on {len(devices)} devices, {args.count} random ones on {len(DEVICES)}:")
    for why, number in counts.most_common():
        print(f"{number:7} {why}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
