"""Ascend NPUs as a family of devices (ascend.md 1); tables and jobs are in `koordpy.planning.ascend`."""

from collections.abc import Iterator, Mapping, Sequence

from koordpy.api import keys
from koordpy.cluster.npus import chip_ids, npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.base import Accelerator, FamilyRound, Given, NodeWorth
from koordpy.planning.accelerators.npus_between import npu_by_count
from koordpy.planning.accelerators.npus_dealing import deal, deal_node
from koordpy.planning.ascend.filter import PLUGIN, AscendChips, illegal
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.rules import Rule
from koordpy.planning.scene import Scene


class NpuFamily(Accelerator):
    """Chips of one product a node, in jobs of one pod or several."""

    plugin = PLUGIN

    def asks(self, pod: PodInfo) -> bool:
        return npu_resource(pod.requests) is not None

    def refusal(self, pod: PodInfo, scene: Scene) -> Refusal | None:
        job = scene.npu_job(pod)
        return illegal(job) if isinstance(job, str) else None

    def rules(self, pod: PodInfo, scene: Scene) -> Iterator[Rule]:
        job = scene.npu_job(pod)
        if isinstance(job, AscendJob):
            yield AscendChips(pod, job, scene.jobs, scene.stock)

    def worth(
        self, kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool
    ) -> NodeWorth | None:
        table = npu_by_count(kinds, now) if gather else None
        return NodeWorth(table) if table is not None else None

    def serves(self, node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
        return deal_node(pods, node, now) is not None

    def give(self, nodes: Mapping[str, int], now: FamilyRound) -> Given:
        snapshot = now.scene.snapshot
        chips = deal([(snapshot.pods[key], node) for key, node in nodes.items()], now)
        if isinstance(chips, str):
            name = snapshot.nodes[nodes[chips]].name
            return Given(faults=(f"{chips}: the chips of node {name} do not serve it",))
        notes: dict[str, Mapping[str, str]] = {}
        for key, own in chips.items():
            pod = snapshot.pods[key]
            job = now.scene.npu_job(pod)
            if isinstance(job, AscendJob):
                notes[key] = _chip_notes(job, pod, own)
        return Given(chips, notes)


def _chip_notes(job: AscendJob, pod: PodInfo, chips: tuple[int, ...]) -> dict[str, str]:
    """What the Binding of an NPU pod says: its chips, ascending, and its rank, as the device plugin reads them
    (ascend.md 6)."""
    resource = npu_resource(pod.requests)
    if resource is None:
        raise ValueError(f"{pod.key} asks for no NPUs")
    notes = {resource: chip_ids(chips, resource), keys.DISTRIBUTED_JOB: "true" if job.several else "false"}
    if job.several:
        notes[keys.RANK_INDEX] = str(job.ranks[pod.key])
    return notes
