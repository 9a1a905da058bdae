"""The multilevel policy: `level1=2,level2=4` are multiples of pods on the layers above the node (ascend.md 6).

It is a wish of the generic planner in other words: PreferGather with podCountMultiple on the first layers above.
"""

import re
from dataclasses import replace

from koordpy.api import keys
from koordpy.api.gangspec import GatherRule, TopologyWish
from koordpy.cluster.topology import Layers
from koordpy.planning.ascend.presets import MULTILEVEL

_ENTRY = re.compile(r"level([1-9][0-9]?)=([0-9]{1,9})", re.ASCII)


class LevelsFaultError(ValueError):
    """A configuration that cannot be used; the text names it."""


def read_levels(text: str) -> tuple[int, ...]:
    """Multiples of level 1, 2, ... Raises LevelsFaultError."""

    def fault(what: str) -> LevelsFaultError:
        return LevelsFaultError(f"{keys.AFFINITY_CONFIG} {text!r}: {what}")

    found: dict[int, int] = {}
    for part in text.split(","):
        entry = _ENTRY.fullmatch(part.strip())
        if entry is None or int(entry[2]) < 1:
            raise fault(f"{part.strip()!r} is not levelK=N with whole numbers above 0")
        if int(entry[1]) in found:
            raise fault(f"level{entry[1]} is given twice")
        found[int(entry[1])] = int(entry[2])
    for level in range(1, max(found) + 1):
        if level not in found:
            raise fault(f"level{level} is missing")
        if level > 1 and found[level] % found[level - 1]:
            raise fault(f"level{level} is not a multiple of level{level - 1}")
    return tuple(found[level] for level in sorted(found))


def check_levels(text: str, layers: Layers, pods: int) -> None:
    """Whether a job of so many pods can have the levels on this tree. Raises LevelsFaultError."""
    levels = read_levels(text)
    if len(levels) > len(layers.chain) - 1:
        raise LevelsFaultError(f"{keys.AFFINITY_CONFIG} {text!r}: the topology has no layer for level{len(levels)}")
    if pods % levels[-1]:
        raise LevelsFaultError(f"{keys.AFFINITY_CONFIG} {text!r}: {pods} pods are no multiple of {levels[-1]}")


def with_levels(wish: TopologyWish, policy: str | None, text: str | None, layers: Layers) -> TopologyWish:
    """A gang's wish with what the policy adds; unchanged where the configuration cannot be used."""
    if policy != MULTILEVEL or text is None:
        return wish
    try:
        levels = read_levels(text)
    except LevelsFaultError:
        return wish
    above = layers.names[::-1][1:]
    rules = tuple(GatherRule(layer, must=False, multiple=k) for layer, k in zip(above, levels, strict=False))
    return replace(wish, gather=(*wish.gather, *rules))
