"""Which cluster the demo plays on and what arrives there: `koordpy demo --cluster NAME`.

A programme is data: manifests below examples/, their order, and the promises that are checked at the end.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Programme:
    """Paths are relative to the folder of the examples. acts: without `.yaml`; devices: what the bars are made of."""

    name: str
    about: str
    cluster: tuple[str, ...]
    acts: tuple[str, ...]
    devices: str


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
"""The notebook comes first: then blocks differ, and best fit has something to say."""

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

PROGRAMMES = {programme.name: programme for programme in (TRAINING, ASCEND)}
