# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesFit filter: compares each requested resource with the free amount of a node (kube-parity.md 2.5)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.api.bounded_memory import cached
from koordpy.cache.snapshot import Ints
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, all_fit

PLUGIN = "NodeResourcesFit"
TOO_MANY_PODS = "Too many pods"


def check_fit(
    allocatable: Ints,
    used: Ints,
    request: Sequence[tuple[int, int]],
    names: Sequence[str],
    left_out: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Verdict:
    """Returns the verdict of NodeResourcesFit for each node.

    Each resource that a node has too little of is a separate reason. The code is UnschedulableAndUnresolvable if a
    request exceeds the node's whole allocatable amount. As in kube-scheduler, this does not apply to the number of
    pods: its code is Unschedulable even on a node that takes no pods at all.

    allocatable, used: [nodes, resources]. request: (column, amount) pairs; the first entry is one pod, in column 0.
    names: the resource of each entry of `request`. left_out: resource -> [nodes] True if another filter checks the
    resource on this node.
    """
    # nodes that lack the same resources, with the same code, share a refusal: one number encodes both, 0 for no refusal
    columns = [column for column, _ in request]
    amounts = np.array([amount for _, amount in request], dtype=np.int64)
    whole = allocatable[:, columns]
    lacking = amounts > whole - used[:, columns]
    for name, nodes in (left_out or {}).items():
        if name in names:
            lacking[nodes, names.index(name)] = False
    if not lacking.any():
        return all_fit(len(allocatable))
    never = (lacking & (amounts > whole))[:, 1:].any(axis=1)
    bits = lacking @ (1 << np.arange(len(columns), dtype=np.int64))
    keys = bits * 2 + never
    keys[bits == 0] = 0
    distinct, where = np.unique(keys, return_inverse=True)
    refusals: list[Refusal] = []
    table = np.zeros(len(distinct), dtype=np.int32)
    for i, key in enumerate(distinct.tolist()):
        if key == 0:
            continue
        lacks = tuple(name for bit, name in enumerate(["", *names[1:]]) if key >> 1 >> bit & 1)
        refusals.append(_refusal_of(lacks, bool(key & 1)))
        table[i] = len(refusals)
    return Verdict(table[where.reshape(-1)], tuple(refusals))


@cached(4096)
def _refusal_of(names: tuple[str, ...], is_unresolvable: bool) -> Refusal:
    """Returns the refusal of nodes that lack these resources; the name of the number of pods is empty."""
    reasons = tuple(f"Insufficient {name}" if name else TOO_MANY_PODS for name in names)
    return Refusal(PLUGIN, Code.UNRESOLVABLE if is_unresolvable else Code.UNSCHEDULABLE, reasons)
