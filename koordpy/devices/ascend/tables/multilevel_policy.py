# SPDX-License-Identifier: Apache-2.0
"""Reads the schedule policy `multilevel` of Ascend jobs: how many pods of a job share each network level.

In annotation `huawei.com/affinity-config`, `level1=2,level2=4` means: a multiple of 2 pods in each domain of the first
layer above the nodes, a multiple of 4 in each domain of the second. These become gather rules of the general planner:
PreferGather with podCountMultiple on the layers (docs/rules/ascend.md 6).
"""

import re

from koordpy.api import keys
from koordpy.config.gang_topology import GatherRule
from koordpy.devices.ascend.tables.npu_presets import MULTILEVEL
from koordpy.topology.topology_layers import Layers

_ENTRY = re.compile(r"level([1-9][0-9]?)=([0-9]{1,9})", re.ASCII)


class LevelsFaultError(ValueError):
    """The reason why a multilevel configuration is rejected."""


def read_levels(text: str) -> tuple[int, ...]:
    """Returns the multiples of level 1, 2, ... Raises `LevelsFaultError` if the text is malformed, levels are missing,
    or a level is not a multiple of the level below."""

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
    """Raises `LevelsFaultError` if a job of `pods` pods cannot have these levels on the topology with these layers."""
    levels = read_levels(text)
    if len(levels) > len(layers.chain) - 1:
        raise LevelsFaultError(f"{keys.AFFINITY_CONFIG} {text!r}: the topology has no layer for level{len(levels)}")
    if pods % levels[-1]:
        raise LevelsFaultError(f"{keys.AFFINITY_CONFIG} {text!r}: {pods} pods are not a multiple of {levels[-1]}")


def level_rules(policy: str | None, text: str | None, layers: Layers) -> tuple[GatherRule, ...]:
    """Returns the gather rules of a gang's multilevel policy; none for another policy or an invalid configuration.

    policy: annotation `huawei.com/schedule_policy`. text: the configuration. An invalid one is reported by the job's
    gate.
    """
    if policy != MULTILEVEL or text is None:
        return ()
    try:
        levels = read_levels(text)
    except LevelsFaultError:
        return ()
    above = layers.names[::-1][1:]
    return tuple(GatherRule(layer, must=False, multiple=k) for layer, k in zip(above, levels, strict=False))
