# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs as a device family (docs/rules/ascend.md): requests, filter, chips, plan check and warnings.

An NPU is called a chip here. A node has chips of one product; a pod requests them by one extended resource, such as
`huawei.com/Ascend910`. A job is a gang of pods that request NPUs, or a plain pod that requests them. The filter needs
the job, because its labels and its number of pods determine which chips are legal.

`NpuFamily` calls other modules of this package for each answer. Placement of whole jobs is in
`koordpy.devices.ascend.jobs`, which depends on the planner.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import ConfigMap, Node, Pod
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.gang_topology import GatherRule
from koordpy.devices.ascend.family.chip_dealing import deal, deal_node
from koordpy.devices.ascend.family.npu_chips_check import check_npus
from koordpy.devices.ascend.family.npu_filter import PLUGIN, AscendChips, illegal
from koordpy.devices.ascend.family.npu_labels import odd_npu_labels
from koordpy.devices.ascend.family.npu_node_costs import npu_by_count
from koordpy.devices.ascend.family.npu_places_check import check_places
from koordpy.devices.ascend.family.npu_round import ascend_jobs, free_chips, npu_job
from koordpy.devices.ascend.tables.ascend_job import AscendJob
from koordpy.devices.ascend.tables.multilevel_policy import level_rules
from koordpy.devices.ascend.tables.npu_book import (
    NPUS,
    NpuBook,
    chip_ids,
    device_list,
    node_facts,
    npu_resource,
    reports_npus,
)
from koordpy.devices.device_family import Family
from koordpy.devices.family_round import FamilyRound, Placed, UnitCosts
from koordpy.devices.links.allocatable_devices import AllocatableDevices
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import AskReader
from koordpy.pods.family_books import FamilyBook
from koordpy.pods.late_books import LateBook
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts
from koordpy.topology.topology_layers import Layers


class NpuAskReader(AskReader):
    """Reads the device request of a pod: the name of its NPU resource. The number is in `PodInfo.requests`."""

    family = NPUS
    resources = frozenset(keys.NPU_RESOURCES)
    gang_annotations = (keys.SCHEDULE_POLICY, keys.AFFINITY_CONFIG)

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Implements `AskReader.read`: returns the NPU resource that the pod requests; None for none."""
        return npu_resource(requests)

    def shape(self, pod: Pod, ask: Any) -> Any:
        """Implements `AskReader.shape`: returns the labels and annotations of a pod that describe its job (ascend.md
        1)."""
        meta = pod.metadata
        labels = [(key, meta.labels[key]) for key in keys.ASCEND_LABELS if key in meta.labels]
        return labels, [(key, meta.annotations[key]) for key in keys.ASCEND_ANNOTATIONS if key in meta.annotations]

    def gather_rules(self, annotation: Callable[[str], str | None], layers: Layers) -> tuple[GatherRule, ...]:
        """Implements `AskReader.gather_rules`: returns the levels of the policy `multilevel` as gather rules of the
        gang."""
        return level_rules(annotation(keys.SCHEDULE_POLICY), annotation(keys.AFFINITY_CONFIG), layers)


class NpuFamily(Family):
    """Ascend NPUs. A node has chips of one product; a job has one pod or more.

    `counts_decide` is False, because it also matters to which rings, cards or meshes the free chips belong.
    `distinguishes_victims` is True, because victims with equally many chips may free chips of different groups.
    """

    name = NPUS
    title = "NPUs"
    plugin = PLUGIN
    resources = frozenset(keys.NPU_RESOURCES)
    counts_decide = False
    spans_nodes = True
    moment_annotation = keys.PREDICATE_TIME
    distinguishes_victims = True

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Implements `Family.reader`."""
        return NpuAskReader()

    def book(self, config: KoordpyConfiguration) -> FamilyBook:
        """Implements `Family.book`: returns a book that is created on the first node or pod with NPUs."""
        return LateBook(NpuBook, resources=self.resources, kinds=NpuBook.kinds)

    def node_report(self, node: Node) -> object:
        """Implements `Family.node_report`: returns the annotations that state unhealthy chips, and the addresses of the
        node."""
        return node_facts(node)

    def is_report(self, config_map: ConfigMap) -> bool:
        """Implements `Family.is_report`: True for the switch table and for the device report of a node."""
        return reports_npus(config_map)

    def object_report(self, config_map: ConfigMap) -> object:
        """Implements `Family.object_report`: returns all data of the switch table, or the device list of a node's
        report."""
        return config_map.data if config_map.metadata.name == keys.SWITCH_TABLE else device_list(config_map)

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Implements `Family.refusal`: returns why the pod's job is illegal; None for a legal job."""
        job = npu_job(pod, inputs)
        return illegal(job) if isinstance(job, str) else None

    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
        """Implements `Family.rules`: yields the filter `AscendChips`; nothing for an illegal job, which `refusal` has
        rejected."""
        job = npu_job(pod, inputs)
        if isinstance(job, AscendJob):
            yield AscendChips(pod, job, ascend_jobs(inputs), free_chips(inputs))

    def signature(self, pod: PodInfo, inputs: FilterInputs) -> str:
        """Implements `Family.signature`: returns the rules of the pod's job as text, or the reason why the job is
        illegal."""
        job = npu_job(pod, inputs)
        return job.signature(pod) if isinstance(job, AscendJob) else job or ""

    def unit_costs(
        self,
        kinds: Sequence[PodInfo],
        members: Sequence[PodInfo],
        now: FamilyRound,
        *,
        gather: bool,
        beside: Sequence[AllocatableDevices],
    ) -> UnitCosts | None:
        """Implements `Family.unit_costs`: returns costs by AscendAffinity for a gang with a gather goal.

        None for a gang without a gather goal, because `jobs/rank_sequence.py` places it in rank order.
        """
        table = npu_by_count(kinds, now) if gather else None
        return UnitCosts(table) if table is not None else None

    def fit_together(self, node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
        """Implements `Family.fit_together`: returns whether the free chips of a node can be divided among the pods."""
        return deal_node(pods, node, now) is not None

    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Implements `Family.allocate`: divides the chips of each node among the pods of the plan, and returns their
        annotations."""
        snapshot = now.inputs.snapshot
        chips = deal([(snapshot.pods[key], node) for key, node in nodes.items()], now)
        if isinstance(chips, str):
            name = snapshot.nodes[nodes[chips]].name
            return FamilyAllocation(faults=(f"{chips}: the free chips of node {name} cannot serve it",))
        notes: dict[str, Mapping[str, str]] = {}
        for key, own in chips.items():
            pod = snapshot.pods[key]
            job = npu_job(pod, now.inputs)
            if isinstance(job, AscendJob):
                notes[key] = _chip_notes(job, pod, own)
        return FamilyAllocation(chips, notes)

    def check(
        self, placed: Placed, allocated: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], now: FamilyRound
    ) -> list[str]:
        """Implements `Family.check`: returns faults of the chips, then faults of nodes under switches or in
        SuperPoDs."""
        names = now.inputs.snapshot.nodes
        own = [(pod, names[node].name) for pod, node in placed]
        return [*check_npus(own, allocated, now.inputs), *check_places(own, notes, now)]

    def node_warnings(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        """Implements `Family.node_warnings`: yields nodes with an unknown or misspelt label `accelerator-type`."""
        return odd_npu_labels(snapshot)

    def cells(self, node: str, allocated: Any, families: Mapping[str, Any]) -> Collection[int]:
        """Implements `Family.cells`: returns the chip numbers, which are positions already."""
        return list(allocated)


def _chip_notes(job: AscendJob, pod: PodInfo, chips: tuple[int, ...]) -> dict[str, str]:
    """Returns the annotations of the Binding of an NPU pod for the device plugin.

    They name the chips in ascending order, say whether the job has several NPU pods, and then give the pod's rank
    (ascend.md 6). Raises `ValueError` for a pod without an NPU request.
    """
    resource = npu_resource(pod.requests)
    if resource is None:
        raise ValueError(f"{pod.key} requests no NPUs")
    notes = {resource: chip_ids(chips, resource), keys.DISTRIBUTED_JOB: "true" if job.multi_pod else "false"}
    if job.multi_pod:
        notes[keys.RANK_INDEX] = str(job.ranks[pod.key])
    return notes
