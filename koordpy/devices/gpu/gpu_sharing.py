"""Nodes on which `nvidia.com/gpu` counts MIG instances or shares of GPUs, detected by labels of NVIDIA's feature
discovery.

Their device plugin picks the device, so GPUs have no names there: such a node is scheduled by number (gpu-topology.md
2). Source of the labels: NVIDIA's gpu-feature-discovery.
"""

from collections.abc import Mapping

STRATEGY, PRODUCT = "nvidia.com/mig.strategy", "nvidia.com/gpu.product"
SHARING, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"
SHARING_LABELS = (STRATEGY, PRODUCT, SHARING, REPLICAS)


def shares_by(labels: Mapping[str, str]) -> str:
    """Returns the label that shows that GPUs of a node are shared (time slicing, MPS); empty if they are not."""
    if labels.get(SHARING) in ("time-slicing", "mps"):
        return SHARING
    replicas = labels.get(REPLICAS, "")
    return REPLICAS if replicas.isascii() and replicas.isdecimal() and len(replicas) < 10 and int(replicas) > 1 else ""


def counts_by(labels: Mapping[str, str]) -> str:
    """Returns the label that shows that `nvidia.com/gpu` does not count whole GPUs; empty if it does."""
    if labels.get(STRATEGY) == "single" and "-MIG-" in labels.get(PRODUCT, ""):
        return STRATEGY
    return shares_by(labels)
