# SPDX-License-Identifier: Apache-2.0
"""The parts of a release: a name, the function that writes the part's files, and what it needs.

A new artifact is a module with such a function, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from release.build_state import BuildOptions, BuildState
from release.chart_package import build_chart, build_crds
from release.image import build_image, check_programs
from release.plugin import build_krew, build_plugin
from release.python_packages import build_python_packages
from release.sbom import build_sbom


@dataclass(frozen=True)
class Part:
    """A part of a release."""

    build: Callable[[BuildState], list[Path]]
    needs: tuple[str, ...] = ()
    """Parts that are built before this one."""
    check: Callable[[BuildOptions], None] | None = None
    """Raises ReleaseError if the machine lacks a program that the part needs; called before any part is built."""


PARTS = {
    "python": Part(lambda state: build_python_packages(state.checkout, state.folder)),
    "chart": Part(lambda state: build_chart(state.checkout, state.folder)),
    "crds": Part(lambda state: build_crds(state.checkout, state.folder)),
    "plugin": Part(build_plugin, needs=("python",)),
    "krew": Part(build_krew, needs=("plugin",)),
    "sbom": Part(build_sbom),
    "image": Part(build_image, needs=("python",), check=check_programs),
}
"""All parts, in the order in which they are built."""


def with_needs(names: Iterable[str]) -> list[str]:
    """The named parts and the parts that they need, in the order of PARTS."""
    todo, found = list(names), set[str]()
    while todo:
        name = todo.pop()
        found.add(name)
        todo += PARTS[name].needs
    return [name for name in PARTS if name in found]
