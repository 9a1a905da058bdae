# SPDX-License-Identifier: Apache-2.0
"""Programmes of the demo, selected by `koordpy demo --cluster NAME`: the manifests of the cluster and of the acts.

A programme is data only: paths below examples/ in the order of creation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Programme:
    """A cluster and the acts on it. Paths are relative to examples/."""

    name: str
    about: str
    """Description in the command's help."""
    cluster: tuple[str, ...]
    """Files and folders with the objects of the cluster: topology, nodes and ConfigMaps."""
    acts: tuple[str, ...]
    """Files of the acts, without `.yaml`."""
    devices: str
    """Name of the devices that the bars show."""


TRAINING = Programme(
    name="training",
    about="64 nodes of 8 GPUs below spines and blocks",
    cluster=("cluster",),
    acts=(
        "plain-pod",
        "prefer-gather",
        "must-gather",
        "pipeline-2x2",
        "does-not-fit",
        "gang-group",
        "master-workers",
        "multiples",
        "elastic",
        "gpu-pair",
        "workloads/job",
        "workloads/jobset",
        "urgent",
    ),
    devices="GPUs",
)
"""A cluster with GPUs. The plain pod is created first, so that blocks differ and best fit can choose between them."""

# a cluster with NPUs
ASCEND = Programme(
    name="ascend",
    about="Ascend NPUs: modules, leaf switches, SuperPoDs",
    cluster=("ascend/topology.yaml", "ascend/cluster.yaml", "ascend/switches.yaml"),
    acts=(
        "ascend/module-job",
        "ascend/switch-job",
        "ascend/superpod-job",
        "ascend/illegal",
        "ascend/background",
        "ascend/urgent",
    ),
    devices="NPUs",
)

# by name, for the option --cluster
PROGRAMMES = {programme.name: programme for programme in (TRAINING, ASCEND)}
