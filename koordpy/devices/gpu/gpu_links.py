"""Links between the GPUs of a node: classes and what they are worth, matrices and how noise is taken out of them.

Source: gpu-topology.md 1 and 3. Bandwidths are whole kB/s, so that sums and thresholds are exact: a matrix
states GB/s with two decimals or so, which six decimals hold.
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
MAX_GBS = 10**9
"""Beyond it a figure is no bandwidth, and sums would leave 64 bits."""

_NVLINK = re.compile(r"NV([1-9][0-9]{0,2})", re.ASCII)
_END = re.compile(r"[A-Za-z0-9]{1,24}", re.ASCII)
"""Part of a GPU's id that may stand in the key of an annotation, which has 63 characters at most."""
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
"""Class -> (GB/s assumed, mark, pair score)."""
_ALIASES = {"SOC": "SYS"}
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
"""What a GSOC annotation may say besides a class: a text of the published table, or its mark."""


class MatrixFault(ValueError):
    """What is wrong with a matrix."""


@dataclass(frozen=True, slots=True)
class Link:
    """A class of links. bandwidth_kbs: what it is assumed to carry; mark: 1 to 10; score: a pair's in `partition`."""

    name: str
    bandwidth_kbs: int
    mark: int
    score: int


Figures = tuple[tuple[str, float], ...]
"""`gpu.linkBandwidth`: (class, GB/s), sorted."""


@lru_cache(maxsize=1024)
def link(text: str, figures: Figures = ()) -> Link | None:
    """A link class such as `NV4`, `PIX` or `NV2+PHB`; None for an unknown one."""
    given = {_ALIASES.get(name, name): gbs for name, gbs in figures}
    first, plus, second = text.strip().partition("+")
    nvlinks = _NVLINK.fullmatch(first)
    if nvlinks is None:
        name = _ALIASES.get(first, first)
        if plus or name not in _PCIE:
            return None
        assumed, mark, score = _PCIE[name]
        return Link(name, kbs(given.get(name, assumed)), mark, score)
    number = int(nvlinks[1])
    beside = _ALIASES.get(second, second)
    if plus and beside not in _PCIE:
        return None
    carried = given.get(first, number * given.get("NV", 20))
    score = 100 * number + (_PCIE[beside][2] if plus else 0)
    return Link(first + plus + beside, kbs(carried), min(10, 6 + number), score)


def described_link(text: str, figures: Figures = ()) -> Link | None:
    """A link as GSOC annotations name it: a class, a mark of the published table, or one of its texts."""
    plain = " ".join(text.split())
    return link(plain, figures) or link(_TEXTS.get(plain.lower(), ""), figures)


def kbs(gbs: float) -> int:
    """GB/s as whole kB/s."""
    return round(gbs * KBS_PER_GBS)


# -- matrices ---------------------------------------------------------------------------------------------------------


def read_matrix(text: str, size: int) -> list[list[Any]]:
    """The rows of a square JSON matrix. Raises MatrixFault."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as what:
        raise MatrixFault(f"is no JSON: {what}" if isinstance(what, ValueError) else "is nested too deeply") from None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise MatrixFault("is no list of lists")
    if len(rows) != size:
        raise MatrixFault(f"has {len(rows)} rows, the node has {size} GPUs")
    for i, row in enumerate(rows):
        if len(row) != size:
            raise MatrixFault(f"is not square: row {i} has {len(row)} cells of {size}")
    return rows


@dataclass(frozen=True, eq=False)
class Measured:
    """A bandwidth matrix: kB/s of each pair, symmetric. lowest: of both directions; value: what counts in choices."""

    lowest: tuple[tuple[int, ...], ...]
    value: tuple[tuple[int, ...], ...]
    lopsided: tuple[tuple[int, int], ...]
    """(from, to): cells below a third of the transposed one."""


def read_bandwidth(text: str, size: int, *, mean: bool = False) -> Measured:
    """A matrix of GB/s, rows sources and columns targets. Raises MatrixFault."""
    rows = read_matrix(text, size)
    cells = [[0] * size for _ in range(size)]
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if i == j:
                continue
            if isinstance(cell, bool) or not isinstance(cell, int | float):
                raise MatrixFault(f"cell [{i}][{j}] is no number")
            if not 0 <= cell <= MAX_GBS:  # also false of NaN
                raise MatrixFault(f"cell [{i}][{j}] is {cell}, no bandwidth")
            cells[i][j] = kbs(cell)
    lowest = [[min(cells[i][j], cells[j][i]) for j in range(size)] for i in range(size)]
    value = lowest
    if mean:
        value = [[(cells[i][j] + cells[j][i]) // 2 for j in range(size)] for i in range(size)]
    lopsided = [(i, j) for i in range(size) for j in range(size) if cells[i][j] * 3 < cells[j][i]]
    return Measured(tuple(map(tuple, lowest)), tuple(map(tuple, value)), tuple(lopsided))


Links = tuple[tuple[Link | None, ...], ...]
"""Class of each pair, symmetric; None on the diagonal and where it is not known."""


def read_links(text: str, size: int, figures: Figures = ()) -> Links:
    """A matrix of link classes; the weaker counts where both sides differ. Raises MatrixFault."""
    rows = read_matrix(text, size)
    cells: dict[tuple[int, int], Link] = {}
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if i != j:
                found = link(cell, figures) if isinstance(cell, str) else None
                if found is None:
                    raise MatrixFault(f"cell [{i}][{j}] is {literal(cell)}, no link class")
                cells[i, j] = found
    return tuple(tuple(_weaker(cells[i, j], cells[j, i]) if i != j else None for j in range(size)) for i in range(size))


def _weaker(one: Link, other: Link) -> Link:
    return min(one, other, key=lambda found: (found.bandwidth_kbs, found.score))


def read_described(
    annotations: Mapping[str, str], *, prefix: str, minors: Sequence[int], ids: Sequence[str], figures: Figures = ()
) -> tuple[Links | None, list[str]]:
    """Links from GSOC annotations of a node, `<prefix><a>_<b>`, and what of them is not understood: a and b are last
    parts of GPU ids at a dash, else minors.

    A pair given twice counts as the weaker; a missing pair is not known.
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
        found = described_link(annotations[key], figures)
        if len(at) != 2 or at[0] is None or at[1] is None or at[0] == at[1]:
            faults.append(f"metadata.annotations[{key}]: names no two GPUs of the Device")
        elif found is None:
            faults.append(f"metadata.annotations[{key}]: {annotations[key]!r} is no link")
        else:
            i, j = at[0], at[1]
            before = cells[i][j]
            cells[i][j] = cells[j][i] = found if before is None else _weaker(before, found)
            known = True
    return tuple(map(tuple, cells)) if known else None, faults


def describe_links(
    classes: Sequence[Sequence[str]], *, prefix: str, minors: Sequence[int], ids: Sequence[str]
) -> dict[str, str]:
    """Returns the GSOC annotations from which `read_described` reads the link classes of all pairs again.

    classes: class of each pair, rows and columns in the order of minors; the diagonal is not read. Each pair is stated
    once. A GPU is named by the last part of its id, or by its minor if that part is ambiguous or no part of a key.
    A GPU that has neither name is left out.
    """
    tails = _tails(ids)
    ends: list[str] = []
    for minor, name in zip(minors, ids, strict=True):
        tail, number = name.rpartition("-")[2], str(minor)
        told = sum(one.rpartition("-")[2] == tail for one in ids) == 1 and _END.fullmatch(tail) is not None
        ends.append(tail if told else number if number not in tails else "")
    size = len(ends)
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size) if ends[i] and ends[j]]
    return {f"{prefix}{ends[i]}_{ends[j]}": classes[i][j] for i, j in pairs}


def _tails(ids: Sequence[str]) -> dict[str, int]:
    """Last part of a GPU's id at a dash -> position of the GPU."""
    return {name.rpartition("-")[2]: i for i, name in enumerate(ids) if name}


# -- classes ----------------------------------------------------------------------------------------------------------


def class_floors(values: Iterable[int], *, gap: float, width: float) -> dict[int, int]:
    """Value -> lowest value of its class.

    Sorted, a new class starts where a value is more than `gap` (as a share) above the one before it, or more than
    `width` above the lowest of its class.
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
