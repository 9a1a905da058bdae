# SPDX-License-Identifier: Apache-2.0
"""Backend that reads the text of `nvidia-smi topo -m`, for example from a bug report.

The text is a matrix of link classes with columns separated by blanks or tabs. Rows and columns of network cards, the
legend and terminal colours are ignored; affinity columns are optional. The text has no UUIDs. For a pair with an NVLink
it shows no PCIe path. Rules: gpu-topology.md 9.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from koordpy.agent.gpu_facts import BackendError, GpuBackend, MachineGpu, Peer
from koordpy.agent.link_matrix import PCIE, SELF

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Escape sequences of a terminal."""
_GPU = re.compile(r"GPU(\d+)$")
_NVLINK = re.compile(r"NV([1-9]\d*)$")
_OLD_NAMES = {"SOC": "SYS"}
"""Old name of a link class -> its present name."""
_NUMA_TITLE = "NUMA Affinity"


@dataclass(frozen=True)
class TopoBackend(GpuBackend):
    """Backend on a text. The minor of a GPU is not in the text, so the driver's index is used as minor."""

    rows: tuple[int, ...]
    """The driver's indexes of the GPUs, ascending."""
    cells: dict[tuple[int, int], str]
    """(index, index) -> link class."""
    numa: dict[int, int] = field(default_factory=dict)
    """Index -> NUMA node; only GPUs with a known node."""

    def gpus(self) -> Sequence[MachineGpu]:
        """Implements `GpuBackend.gpus`."""
        return [MachineGpu(index=n, minor=n, numa=self.numa.get(n)) for n in self.rows]

    def pcie(self, a: MachineGpu, b: MachineGpu) -> str | None:
        """Implements `GpuBackend.pcie`; None for a pair with NVLinks, because the text does not show its PCIe path."""
        cell = self.cells[a.index, b.index]
        return None if _NVLINK.match(cell) else cell

    def nvlinks(self, a: MachineGpu) -> Sequence[Peer]:
        """Implements `GpuBackend.nvlinks`."""
        out: list[Peer] = []
        for n in self.rows:
            found = _NVLINK.match(self.cells[a.index, n])
            if found:
                out += [f"index-{n}"] * int(found[1])
        return out


def read_topo(text: str, *, name: str) -> TopoBackend:
    """Reads the matrix. name: for messages. Raises BackendError with file, line and column of the first unknown
    word."""
    lines = [_COLOURS.sub("", line).rstrip("\r") for line in text.splitlines()]
    at = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if at is None:
        raise BackendError(f"{name}: no line with the titles of the GPU columns (GPU0 GPU1 ...)")
    titles = _titles(lines[at])
    columns = [_GPU.match(title) for title in titles]
    gpus = [int(found[1]) for found in columns if found]
    if len(set(gpus)) < len(gpus):
        raise BackendError(f"{name}: line {at + 1}: duplicate GPU column")
    # read the rows of GPUs up to the legend; skip other rows
    cells: dict[tuple[int, int], str] = {}
    numa: dict[int, int] = {}
    for number, line in enumerate(lines[at + 1 :], start=at + 2):
        words = list(re.finditer(r"\S+", line))
        row = _GPU.match(words[0][0]) if words else None
        if row is None:
            if words and words[0][0].rstrip(":") == "Legend":
                break
            continue
        where = f"{name}: line {number}"
        a = int(row[1])
        if a not in gpus:
            raise BackendError(f"{where}: GPU{a} has no column")
        if (a, a) in cells:
            raise BackendError(f"{where}: duplicate row GPU{a}")
        if len(words) - 1 < len(gpus):
            raise BackendError(f"{where}: {len(words) - 1} words for {len(titles)} columns")
        for word, found in zip(words[1:], columns, strict=False):
            if found:
                cells[a, int(found[1])] = _cell(word, where, own=int(found[1]) == a)
        if (node := _numa(line, lines[at])) is not None:
            numa[a] = node
    missing = [n for n in gpus if (n, n) not in cells]
    if missing:
        raise BackendError(f"{name}: GPU{missing[0]} has a column and no row")
    return TopoBackend(tuple(sorted(gpus)), cells, numa)


def _is_header(line: str) -> bool:
    """Returns True if a line has the titles of the columns: it begins with a GPU, then follows no link class."""
    words = line.split()
    return (
        len(words) > 1
        and all(_GPU.match(word) for word in words[:1])
        and words[1] not in {SELF, *PCIE, "SOC"}
        and (_NVLINK.match(words[1]) is None)
    )


def _titles(line: str) -> list[str]:
    """Returns the titles of those columns that have one cell per row: GPUs and network cards."""
    out = []
    for word in line.split():
        if word in ("CPU", "NUMA", "GPU"):
            break
        out.append(word)
    return out


def _cell(word: re.Match[str], where: str, *, own: bool) -> str:
    """Returns the link class in a cell. Raises BackendError with `where` (file and line).

    own: True on the diagonal, where the cell must be X.
    """
    text = _OLD_NAMES.get(word[0], word[0])
    if own and text == SELF:
        return text
    if not own and (text in PCIE or _NVLINK.match(text)):
        return text
    what = "expected X" if own else "not a link class"
    raise BackendError(f"{where}, column {word.start() + 1}: {word[0]!r}: {what}")


def _numa(line: str, header: str) -> int | None:
    """Returns the NUMA node of a row; None if the column is missing or does not name exactly one node."""
    if "\t" in header:
        titles = [title.strip() for title in header.split("\t")]
        values = [value.strip() for value in line.split("\t")]
        if _NUMA_TITLE not in titles or titles.index(_NUMA_TITLE) >= len(values):
            return None
        text = values[titles.index(_NUMA_TITLE)]
    else:
        start = header.find(_NUMA_TITLE)
        if start < 0:
            return None
        text = line[start : start + len(_NUMA_TITLE)].strip()
    return int(text) if text.isascii() and text.isdigit() else None
