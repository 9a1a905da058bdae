# SPDX-License-Identifier: Apache-2.0
"""Links between the GPUs of a node: their classes and bandwidths, matrices of links, and grouping of measured values.

A link class is the name of the path between two GPUs, as `nvidia-smi topo -m` prints it: `NV4` (four NVLinks), `PIX`
(one PCI switch), and so on. Bandwidths are whole kB/s, so that sums and thresholds are exact: a matrix states GB/s with
few decimals, and kB/s hold six. Source: gpu-topology.md 1 and 3.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from koordpy.api.field_faults import literal

KBS_PER_GBS = 10**6
"""kB/s in a GB/s."""
MAX_GBS = 10**9
"""Largest number that is read as a bandwidth in GB/s. Sums of larger numbers could exceed 64 bits."""

_NVLINK = re.compile(r"NV([1-9][0-9]{0,2})", re.ASCII)
"""Class of a number of NVLinks, such as `NV4`."""
_END = re.compile(r"[A-Za-z0-9]{1,24}", re.ASCII)
"""Last part of a GPU id that fits into the key of an annotation, which has at most 63 characters."""
_PCIE: Mapping[str, tuple[int, int, int]] = {
    "PSB": (13, 6, 60),
    "PIX": (12, 5, 50),
    "PXB": (11, 4, 40),
    "PHB": (10, 3, 30),
    "NODE": (9, 2, 20),
    "SYS": (8, 1, 10),
    "HOST": (6, 1, 10),
    "HOSTPIX": (5, 1, 10),
}
"""Class -> (assumed GB/s, mark in the published table, pair score)."""
_ALIASES = {"SOC": "SYS"}
"""Old names of classes."""
_NUMBERS = ("single", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEXTS: Mapping[str, str] = {
    "single nvlink": "NV1",
    **{f"{number} nvlinks": f"NV{i + 1}" for i, number in enumerate(_NUMBERS) if i},
    "same board": "PSB",
    "single pci switch": "PIX",
    "multiple pci switches": "PXB",
    "host pci bridge": "PHB",
    "same cpu socket": "NODE",
    "cross cpu socket": "SYS",
    "no peer access, through host memory": "HOST",
    "no peer access and one shared uplink": "HOSTPIX",
    **{str(mark): name for mark, name in enumerate(("SYS", "NODE", "PHB", "PXB", "PIX", "PSB"), start=1)},
}
"""Texts of the published table and their numeric marks, which GSOC annotations may contain instead of a class."""


class MatrixFault(ValueError):
    """The reason why a matrix is rejected."""


@dataclass(frozen=True, slots=True)
class Link:
    """A class of links."""

    name: str
    """Name of the class, such as `NV4` or `PIX`."""
    bandwidth_kbs: int
    """Bandwidth in kB/s that the class is assumed to have."""
    mark: int
    """Mark of the class in the published table, 1 to 10."""
    score: int
    """Score of a pair of GPUs with this class for objective `partition`."""


Bandwidths = tuple[tuple[str, float], ...]
"""Setting `gpu.linkBandwidth`: (link class, GB/s), sorted."""


@lru_cache(maxsize=1024)
def link(text: str, bandwidths: Bandwidths = ()) -> Link | None:
    """Returns a link class such as `NV4`, `PIX` or `NV2+PHB`; None for an unknown text.

    A class with `+` has both paths: bandwidth and mark of the NVLinks, the sum of both pair scores. bandwidths: as
    configured; they replace the assumed ones.
    """
    given = {_ALIASES.get(name, name): gbs for name, gbs in bandwidths}
    first, plus, second = text.strip().partition("+")
    nvlinks = _NVLINK.fullmatch(first)
    if nvlinks is None:
        name = _ALIASES.get(first, first)
        if plus or name not in _PCIE:
            return None
        assumed, mark, score = _PCIE[name]
        return Link(name, kbs(given.get(name, assumed)), mark, score)
    number = int(nvlinks[1])
    pcie = _ALIASES.get(second, second)
    if plus and pcie not in _PCIE:
        return None
    carried = given.get(first, number * given.get("NV", 20))
    score = 100 * number + (_PCIE[pcie][2] if plus else 0)
    return Link(first + plus + pcie, kbs(carried), min(10, 6 + number), score)


def described_link(text: str, bandwidths: Bandwidths = ()) -> Link | None:
    """Returns the link class that a text of a GSOC annotation names; None for an unknown text.

    The text is a class, a mark of the published table (`1` to `6`), or one of its English texts.
    """
    plain = " ".join(text.split())
    return link(plain, bandwidths) or link(_TEXTS.get(plain.lower(), ""), bandwidths)


def kbs(gbs: float) -> int:
    """Returns GB/s as whole kB/s."""
    return round(gbs * KBS_PER_GBS)


# -- matrices ---------------------------------------------------------------------------------------------------------


def read_matrix(text: str, size: int) -> list[list[Any]]:
    """Parses a square JSON matrix of `size` rows. Raises `MatrixFault`. Cells are not checked."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as what:
        fault = f"is not valid JSON: {what}" if isinstance(what, ValueError) else "is nested too deeply"
        raise MatrixFault(fault) from None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise MatrixFault("is not a list of lists")
    if len(rows) != size:
        raise MatrixFault(f"has {len(rows)} rows, the node has {size} GPUs")
    for i, row in enumerate(rows):
        if len(row) != size:
            raise MatrixFault(f"is not square: row {i} has {len(row)} of {size} cells")
    return rows


@dataclass(frozen=True, eq=False)
class Measured:
    """A matrix of bandwidths in kB/s of each pair, symmetric."""

    lowest: tuple[tuple[int, ...], ...]
    """[GPUs][GPUs] kB/s, the lower of both directions."""
    value: tuple[tuple[int, ...], ...]
    """[GPUs][GPUs] kB/s that choices compare: the lower direction, or the mean of both."""
    lopsided: tuple[tuple[int, int], ...]
    """(from, to) of cells below a third of the opposite direction."""


def read_bandwidth(text: str, size: int, *, mean: bool = False) -> Measured:
    """Parses a matrix of GB/s with sources as rows and targets as columns. Raises `MatrixFault`.

    mean: True if choices compare the mean of both directions instead of the lower one.
    """
    rows = read_matrix(text, size)
    cells = [[0] * size for _ in range(size)]
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if i == j:
                continue
            if isinstance(cell, bool) or not isinstance(cell, int | float):
                raise MatrixFault(f"cell [{i}][{j}] is not a number")
            if not 0 <= cell <= MAX_GBS:  # also false of NaN
                raise MatrixFault(f"cell [{i}][{j}] is {cell}, not a bandwidth in GB/s")
            cells[i][j] = kbs(cell)
    lowest = [[min(cells[i][j], cells[j][i]) for j in range(size)] for i in range(size)]
    value = lowest
    if mean:
        value = [[(cells[i][j] + cells[j][i]) // 2 for j in range(size)] for i in range(size)]
    lopsided = [(i, j) for i in range(size) for j in range(size) if cells[i][j] * 3 < cells[j][i]]
    return Measured(tuple(map(tuple, lowest)), tuple(map(tuple, value)), tuple(lopsided))


Links = tuple[tuple[Link | None, ...], ...]
"""[GPUs][GPUs] link class of each pair, symmetric; None on the diagonal and for unknown links."""


def read_links(text: str, size: int, bandwidths: Bandwidths = ()) -> Links:
    """Parses a matrix of link classes; if both directions differ, the weaker class counts. Raises `MatrixFault`."""
    rows = read_matrix(text, size)
    cells: dict[tuple[int, int], Link] = {}
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if i != j:
                found = link(cell, bandwidths) if isinstance(cell, str) else None
                if found is None:
                    raise MatrixFault(f"cell [{i}][{j}] is {literal(cell)}, not a link class")
                cells[i, j] = found
    return tuple(tuple(_weaker(cells[i, j], cells[j, i]) if i != j else None for j in range(size)) for i in range(size))


def _weaker(one: Link, other: Link) -> Link:
    """Returns the link class with the lower bandwidth, then the lower score."""
    return min(one, other, key=lambda found: (found.bandwidth_kbs, found.score))


def read_described(
    annotations: Mapping[str, str],
    *,
    prefix: str,
    minors: Sequence[int],
    ids: Sequence[str],
    bandwidths: Bandwidths = (),
) -> tuple[Links | None, list[str]]:
    """Reads links from GSOC annotations `<prefix><a>_<b>` of a node; returns them with the faults found.

    a and b are the part of a GPU id after its last dash, or minors. A pair that is given twice has the weaker class; a
    missing pair is unknown. The links are None if no pair is known.
    """
    size = len(minors)
    tails = _tails(ids)
    numbers = {str(minor): i for i, minor in enumerate(minors)}
    cells: list[list[Link | None]] = [[None] * size for _ in range(size)]
    faults: list[str] = []
    known = False
    for key in sorted(annotations):
        if not key.startswith(prefix):
            continue
        ends = key.removeprefix(prefix).split("_")
        at = [tails.get(end, numbers.get(end)) for end in ends]
        found = described_link(annotations[key], bandwidths)
        if len(at) != 2 or at[0] is None or at[1] is None or at[0] == at[1]:
            faults.append(f"metadata.annotations[{key}]: does not name two GPUs of the Device")
        elif found is None:
            faults.append(f"metadata.annotations[{key}]: {annotations[key]!r} is not a link class")
        else:
            i, j = at[0], at[1]
            before = cells[i][j]
            cells[i][j] = cells[j][i] = found if before is None else _weaker(before, found)
            known = True
    return tuple(map(tuple, cells)) if known else None, faults


def describe_links(
    classes: Sequence[Sequence[str]], *, prefix: str, minors: Sequence[int], ids: Sequence[str]
) -> dict[str, str]:
    """Returns the GSOC annotations from which `read_described` reads the link classes of all pairs.

    classes: class of each pair, rows and columns in the order of minors; the diagonal is ignored. Each pair is stated
    once. A GPU is named by the last part of its id, or by its minor if that part is ambiguous or invalid in a key. A
    GPU that has neither name is left out.
    """
    tails = _tails(ids)
    ends: list[str] = []
    for minor, name in zip(minors, ids, strict=True):
        tail, number = name.rpartition("-")[2], str(minor)
        is_unique = sum(one.rpartition("-")[2] == tail for one in ids) == 1 and _END.fullmatch(tail) is not None
        ends.append(tail if is_unique else number if number not in tails else "")
    size = len(ends)
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size) if ends[i] and ends[j]]
    return {f"{prefix}{ends[i]}_{ends[j]}": classes[i][j] for i, j in pairs}


def _tails(ids: Sequence[str]) -> dict[str, int]:
    """Returns last part of a GPU's id, after its last dash -> position of the GPU."""
    return {name.rpartition("-")[2]: i for i, name in enumerate(ids) if name}


# -- classes ----------------------------------------------------------------------------------------------------------


def class_floors(values: Iterable[int], *, gap: float, width: float) -> dict[int, int]:
    """Returns value -> lowest value of its class.

    Values are classified in ascending order. A value starts a new class if it exceeds the previous value by more than
    the share `gap`, or the lowest value of its class by more than the share `width`.
    """
    after, first = 1 + Fraction(str(gap)), 1 + Fraction(str(width))
    (after_up, after_down), (first_up, first_down) = after.as_integer_ratio(), first.as_integer_ratio()
    out: dict[int, int] = {}
    floor = last = -1
    for value in sorted(set(values)):
        if floor < 0 or value * after_down > last * after_up or value * first_down > floor * first_up:
            floor = value
        out[value] = floor
        last = value
    return out
