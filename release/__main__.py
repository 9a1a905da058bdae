# SPDX-License-Identifier: Apache-2.0
"""`python -m release`: builds the parts of a release from the last commit, with checksums and a table of sizes."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release.build_state import IMAGE_PLATFORMS, PLUGIN_PLATFORMS, BuildOptions, BuildState
from release.checkout import ReleaseError, export, local_changes
from release.parts import PARTS, with_needs
from release.platforms import PLATFORM_HERE, PYTHON_HERE, PYTHONS

REPOSITORY = Path(__file__).parents[1]
CHECKSUMS = "checksums.txt"


def main(argv: Sequence[str] | None = None) -> int:
    """Builds the parts and returns the exit status."""
    args = _parser().parse_args(argv)
    options = BuildOptions(
        _chosen(args.plugin_platforms, PLATFORM_HERE),
        _chosen(args.plugin_pythons, PYTHON_HERE),
        _chosen(args.image_platforms, PLATFORM_HERE),
    )
    wrong = [
        f"unknown {what}: {', '.join(unknown)}; choose from {', '.join(known)}"
        for what, names, known in (
            ("part", args.parts, PARTS),
            ("platform of the plugin", options.plugin_platforms, PLUGIN_PLATFORMS),
            ("Python version of the plugin", options.plugin_pythons, PYTHONS),
            ("platform of the image", options.image_platforms, IMAGE_PLATFORMS),
        )
        if (unknown := [name for name in names if name not in known])
    ]
    if wrong:
        print("\n".join(f"release: {line}" for line in wrong), file=sys.stderr)
        return 2
    try:
        build_release(args.output, args.parts, options)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _chosen(names: Sequence[str], here: str) -> tuple[str, ...]:
    return tuple(here if name == "here" else name for name in names)


def build_release(folder: Path, parts: Sequence[str], options: BuildOptions) -> None:
    """Empties the folder, and writes the files of the parts, their checksums, and a table to stdout.

    Raises ReleaseError. The folder is not changed if a program that a part needs is missing.
    """
    chosen = with_needs(parts)
    for name in chosen:
        if check := PARTS[name].check:
            check(options)
    for change in local_changes(REPOSITORY)[:5]:
        _warn(f"not in the commit, and not in the release: {change.strip()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="koordpy-release-") as scratch:
        tree = Path(scratch, "tree")
        tree.mkdir()
        state = BuildState(export(REPOSITORY, tree), folder.resolve(), Path(scratch), options)
        for name in chosen:
            print(f"release: building {name}", file=sys.stderr)
            state.made[name] = PARTS[name].build(state)
    files = [file for name in chosen for file in state.made[name]]
    (folder / CHECKSUMS).write_text(checksums(files), encoding="utf-8")
    print(f"koordpy {state.checkout.version}, commit {state.checkout.commit}")
    print(table(state.made, folder / CHECKSUMS))
    for text in _left_out(chosen, options):
        _warn(f"{text} is LEFT OUT of {folder}")


def _left_out(chosen: Sequence[str], options: BuildOptions) -> list[str]:
    """What a complete release has and this one has not."""
    found = [f"the part {name}" for name in PARTS if name not in chosen]
    whole = BuildOptions()
    if "plugin" in chosen:
        found += [f"the plugin for {name}" for name in whole.plugin_platforms if name not in options.plugin_platforms]
        found += [f"the plugin on Python {name}" for name in whole.plugin_pythons if name not in options.plugin_pythons]
    if "image" in chosen:
        found += [f"the image for {name}" for name in whole.image_platforms if name not in options.image_platforms]
    return found


def checksums(files: Sequence[Path]) -> str:
    """Lines of `sha256sum`, sorted by file name."""
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    return "".join(sorted(lines, key=lambda line: line.split()[1]))


def table(made: dict[str, list[Path]], sums: Path) -> str:
    """The files of each part with their sizes in MB (10^6 bytes), at least 0.1."""
    rows = [(name, file) for name, files in made.items() for file in files]
    rows.append(("checksums", sums))
    width = max(len(file.name) for _, file in rows)
    lines = [f"{'part':10} {'file':{width}} {'MB':>7}"]
    lines += [f"{name:10} {file.name:{width}} {max(file.stat().st_size / 1e6, 0.1):7.1f}" for name, file in rows]
    return "\n".join(lines)


def _warn(text: str) -> None:
    print(f"*** {text}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist", help="folder, emptied first")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--plugin-platforms", nargs="+", default=PLUGIN_PLATFORMS, metavar="OS/ARCH", help="or here")
    parser.add_argument("--plugin-pythons", nargs="+", default=PYTHONS, metavar="VERSION", help="or here")
    parser.add_argument("--image-platforms", nargs="+", default=IMAGE_PLATFORMS, metavar="OS/ARCH", help="or here")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
