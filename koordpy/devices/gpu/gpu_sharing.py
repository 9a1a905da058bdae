# SPDX-License-Identifier: Apache-2.0
"""Detects nodes on which `nvidia.com/gpu` counts MIG instances or shares of GPUs, by labels of NVIDIA's GPU discovery.

On such a node NVIDIA's device plugin chooses the device, so the scheduler knows no GPU by name and schedules by number
(docs/rules/gpu-topology.md 2).
"""

from collections.abc import Mapping

STRATEGY, PRODUCT = "nvidia.com/mig.strategy", "nvidia.com/gpu.product"
"""Labels about MIG: the strategy, and the product, which names a MIG profile."""
SHARING, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"
"""Labels about time slicing and MPS: the strategy, and the number of shares of a GPU."""
SHARING_LABELS = (STRATEGY, PRODUCT, SHARING, REPLICAS)


def shares_by(labels: Mapping[str, str]) -> str:
    """Returns the label (key) that shows that GPUs of a node are shared by time slicing or MPS; empty if they are
    not."""
    if labels.get(SHARING) in ("time-slicing", "mps"):
        return SHARING
    replicas = labels.get(REPLICAS, "")
    return REPLICAS if replicas.isascii() and replicas.isdecimal() and len(replicas) < 10 and int(replicas) > 1 else ""


def counts_by(labels: Mapping[str, str]) -> str:
    """Returns the label (key) that shows that `nvidia.com/gpu` does not count whole GPUs on a node; empty if it
    does."""
    if labels.get(STRATEGY) == "single" and "-MIG-" in labels.get(PRODUCT, ""):
        return STRATEGY
    return shares_by(labels)
