"""Ascend NPUs as a family of devices (ascend.md); tables and jobs are in `koordpy.planning.ascend`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.base import Accelerator, Given
from koordpy.planning.ascend.dealing import deal
from koordpy.planning.ascend.filter import AscendChips, illegal
from koordpy.planning.ascend.job import Job
from koordpy.planning.ascend.notes import chip_notes
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.rules import Rule

if TYPE_CHECKING:
    from koordpy.planning.figures import Figures
    from koordpy.planning.scene import Scene


class Npus(Accelerator):
    """Chips of one product a node, in jobs of one pod or several."""

    def refusal(self, pod: PodInfo, scene: "Scene") -> Refusal | None:
        job = scene.npu_job(pod)
        return illegal(job) if isinstance(job, str) else None

    def rules(self, pod: PodInfo, scene: "Scene") -> Iterator[Rule]:
        job = scene.npu_job(pod)
        if isinstance(job, Job):
            yield AscendChips(pod, job, scene.jobs, scene.stock)

    def give(self, nodes: Mapping[str, int], figures: "Figures") -> Given:
        chips = deal([(figures.snapshot.pods[key], node) for key, node in nodes.items()], figures)
        if isinstance(chips, str):
            name = figures.snapshot.nodes[nodes[chips]].name
            return Given(faults=(f"{chips}: the chips of node {name} do not serve it",))
        notes: dict[str, Mapping[str, str]] = {}
        for key, own in chips.items():
            pod = figures.snapshot.pods[key]
            job = figures.npu_job(pod)
            if isinstance(job, Job):
                notes[key] = chip_notes(job, pod, own)
        return Given(chips, notes)
