# SPDX-License-Identifier: Apache-2.0
"""Pending pods and gangs, one for each row of the tables of reasons (repair.md 1.2) that an API server can hold.

Each row has its own nodes: its pods select them by the label `tests/row`, and no other pod fits them. A node that an
autoscaler adds for a row therefore has that label. `table.py` lists all rows, and what cannot be a row.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpy.api import keys
from koordpy.plan.pending_reason import Reason
from koordpy.workloads.kinds.batch_jobs import JOB_NAME

Json = dict[str, Any]

ROW = "tests/row"
"""Label of nodes and of pods: the name of the row."""
BLOCK = "tests/block"
CHIP = "tests/chip"
"""A resource of one row alone, so that its quota has a runtime that no other row changes."""
HOLD = "tests.example/hold"
"""Finalizer that keeps a deleted pod terminating."""
GPU = "nvidia.com/gpu"
NPU = keys.NPU_RESOURCES[0]
HIGH = {"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": "high"}, "value": 1000}
GATED = "SchedulingGated"
"""Reason that the API server writes; koordpy writes none."""
CONFIG = """
solver: {deterministicTime: 0.000001}
autoscaling:
  fixedLayers: [blockLayer]
"""
"""No time for the solver, so that row `undecided` stays undecided."""
HONEST = CONFIG + "  provisioning: {mode: annotated, after: 1s, retries: 0}\n"
UPSTREAM = CONFIG + "  reasons: upstream\n"
TOPOLOGY: Json = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "ClusterNetworkTopology",
    "metadata": {"name": keys.TOPOLOGY_OBJECT},
    "spec": {
        "hierarchy": [
            {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": keys.CLUSTER_LAYER},
            {"layerName": keys.NODE_LAYER, "parentTopologyLayer": "blockLayer"},
        ]
    },
}


@dataclass(frozen=True)
class Row:
    """A unit of pods with one reason, and the objects around it."""

    name: str
    reason: str
    """Reason of the condition PodScheduled of its pending pods."""
    manifests: Sequence[Json]
    """Objects other than nodes, in the order of creation."""
    nodes: Sequence[Mapping[str, str]] = ({},)
    """Labels of each node besides `tests/row`."""
    room: Mapping[str, str] = field(default_factory=lambda: {GPU: "1"})
    """Allocatable resources of each node besides CPU, memory and pods."""
    helps: bool = True
    """False if nodes of any number do not end the wait of a row whose reason is Unschedulable."""
    nominated: bool = False
    """True if all pending pods have a nominated node."""
    text: str = ""
    """Part of the message of each pending pod."""
    pool: str = ""
    """Row whose nodes the pods select; empty for the row's own nodes."""

    @property
    def buys(self) -> bool:
        """True if autoscalers have to add nodes."""
        return self.reason == Reason.UNSCHEDULABLE

    @property
    def pending(self) -> list[str]:
        """Names of the pods that wait, in the order of creation."""
        return [
            one["metadata"]["name"]
            for one in self.manifests
            if one["kind"] == "Pod" and "running" not in one["metadata"]["labels"]
        ]


def pod(
    row: str,
    name: str = "",
    *,
    gang: bool = False,
    room: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pending pod of a row, named ROW or ROW-NAME; of the row's gang, or alone."""
    resources = dict(room or {GPU: "1"})
    own = {ROW: row, **({keys.LABEL_POD_GROUP: row} if gang else {}), **(labels or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{row}-{name}" if name else row, "namespace": "default", "labels": own},
        "spec": {
            "schedulerName": keys.DEFAULT_SCHEDULER_NAME,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {ROW: row, **(selector or {})},
            "containers": [
                {"name": "main", "image": "example/train:1", "resources": {"requests": resources, "limits": resources}}
            ],
            **spec,
        },
    }


def running(row: str, number: int = 0, *, holds: bool = False, **more: Any) -> Json:
    """A pod that is bound to a node of the row. holds: it stays terminating once it is deleted."""
    made = pod(row, f"running-{number}", **more)
    made["metadata"]["labels"]["running"] = ""
    made["spec"]["nodeName"] = f"{row}-{number}"
    if holds:
        made["metadata"]["finalizers"] = [HOLD]
    return made


def group(row: str, least: int, notes: Mapping[str, str] | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": row, "namespace": "default", "annotations": dict(notes or {})},
        "spec": {"minMember": least, **spec},
    }


def members(row: str, count: int, **more: Any) -> list[Json]:
    return [pod(row, str(i), gang=True, **more) for i in range(count)]


def linked(row: str, *gangs: tuple[int, int]) -> list[Json]:
    """A GangGroup of gangs with (minMember, existing members)."""
    names = [f"{row}-{letter}" for letter in "abc"[: len(gangs)]]
    notes = {keys.GANG_GROUPS: json.dumps([f"default/{name}" for name in names])}
    made: list[Json] = []
    for name, (least, count) in zip(names, gangs, strict=True):
        made.append({**group(row, least, notes), "metadata": {"name": name, "annotations": notes}})
        own = {keys.LABEL_POD_GROUP: name}
        made += [pod(row, f"{name.removeprefix(f'{row}-')}-{i}", labels=own) for i in range(count)]
    return made


def gather(*rules: Mapping[str, Any]) -> dict[str, str]:
    return {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": list(rules)})}


def quota(
    name: str, least: Mapping[str, str], most: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {"min": dict(least), "max": dict(most)},
    }


def within(name: str) -> dict[str, str]:
    return {keys.QUOTA_NAME: name}


def unschedulable() -> list[Row]:
    """Rows for which nodes help."""
    return [
        Row("full", "Unschedulable", [running("full"), pod("full")]),
        Row("large", "Unschedulable", [pod("large", room={GPU: "9"})]),
        Row("gang", "Unschedulable", [group("gang", 3), *members("gang", 3)], nodes=()),
        Row("pair", "Unschedulable", linked("pair", (2, 2), (2, 2)), nodes=()),
        Row(
            "surplus",
            "Unschedulable",
            [
                group("surplus", 2),
                *(running("surplus", i, labels={keys.LABEL_POD_GROUP: "surplus"}) for i in range(2)),
                pod("surplus", "2", gang=True),
            ],
            nodes=({}, {}),
        ),
        Row(
            "min-resources",
            "Unschedulable",
            [group("min-resources", 2, minResources={GPU: "99"}), *members("min-resources", 2)],
            nodes=(),
            helps=False,
            text="minResources do not fit",
        ),
        Row(
            "runtime",
            "Unschedulable",
            [
                quota("runtime", {CHIP: "0"}, {CHIP: "4"}),
                running("runtime", room={CHIP: "1"}, labels=within("runtime")),
                pod("runtime", room={CHIP: "1"}, labels=within("runtime")),
            ],
            room={CHIP: "1"},
        ),
    ]


def not_ready() -> list[Row]:
    """Rows with a gate, or without an object that they need."""
    ready = "NotReadyForScheduling"
    return [
        Row("no-group", ready, members("no-group", 1), text="PodGroup not found"),
        Row("linked", ready, linked("linked", (1, 1), (2, 1))),
        Row(
            "lacks-members",
            ready,
            [group("lacks-members", 3), *members("lacks-members", 2)],
            text="waiting for members, 2 of minMember 3 exist",
        ),
        Row(
            "layer",
            ready,
            [group("layer", 1, gather({"layer": "hallLayer", "strategy": "MustGather"})), *members("layer", 1)],
            text='unknown layer "hallLayer"',
        ),
        Row(
            "setting",
            ready,
            [group("setting", 1, {keys.GANG_TOPOLOGY: "{"}), *members("setting", 1)],
            text="cannot be read",
        ),
        Row("suspended", ready, _suspended(), text="is suspended"),
        Row("volume", ready, [pod("volume", volumes=[_missing_volume()])]),
        Row(
            "volume-of-one",
            ready,
            [
                group("volume-of-one", 2),
                pod("volume-of-one", "0", gang=True),
                pod("volume-of-one", "1", gang=True, volumes=[_missing_volume()]),
            ],
            nodes=({}, {}),
        ),
        Row("claim", ready, [pod("claim", resourceClaims=[{"name": "devices", "resourceClaimName": "missing"}])]),
        Row("gated", GATED, [pod("gated", schedulingGates=[{"name": "tests.example/gate"}])]),
    ]


def _suspended() -> list[Json]:
    """A suspended Job, and the pods that its controller has not deleted yet."""
    pods = [pod("suspended", str(i), restartPolicy="Never") for i in range(2)]
    template = {"metadata": {"labels": pods[0]["metadata"]["labels"]}, "spec": pods[0]["spec"]}
    spec = {"suspend": True, "completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    kind = {"apiVersion": "batch/v1", "kind": "Job"}
    for i, one in enumerate(pods):
        labels = {JOB_NAME: "suspended", keys.JOB_COMPLETION_INDEX: str(i)}
        one["metadata"]["labels"] |= labels
        one["metadata"]["ownerReferences"] = [{**kind, "name": "suspended", "uid": "", "controller": True}]
    return [{**kind, "metadata": {"name": "suspended", "namespace": "default"}, "spec": spec}, *pods]


def _missing_volume() -> Json:
    return {"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}


def waiting() -> list[Row]:
    """Rows that wait for other pods, for a quota, or for their own nodes."""
    spare = {keys.SPARE: "true"}
    plain, gang = "victim", "victims"
    return [
        Row("ending", "WaitingForTermination", [running("ending", holds=True), pod("ending")]),
        Row(
            plain,
            "WaitingForTermination",
            [running(plain, holds=True), pod(plain, priorityClassName="high")],
            nominated=True,
            text="waiting for 1 terminating pod on victim-0",
        ),
        Row(
            gang,
            "WaitingForTermination",
            [
                *(running(gang, i, holds=True) for i in range(2)),
                group(gang, 2),
                *members(gang, 2, priorityClassName="high"),
            ],
            nodes=({}, {}),
            nominated=True,
        ),
        Row("quota", "QuotaExceeded", [quota("quota", {GPU: "0"}, {GPU: "0"}), pod("quota", labels=within("quota"))]),
        Row(
            "quota-of-gang",
            "QuotaExceeded",
            [
                quota("quota-of-gang", {GPU: "1"}, {GPU: "1"}),
                group("quota-of-gang", 2),
                *members("quota-of-gang", 2, labels=within("quota-of-gang")),
            ],
            nodes=({}, {}),
        ),
        Row(
            "parent",
            "QuotaExceeded",
            [
                quota("parent", {GPU: "9"}, {GPU: "9"}, {keys.QUOTA_IS_PARENT: "true"}),
                pod("parent", labels=within("parent")),
            ],
        ),
        Row("spare", "HeldBack", [pod("spare")], nodes=(spare,)),
        Row(
            "request",
            "WaitingForProvisioning",
            [group("request", 2, {keys.GANG_PROVISIONING_CLASS: "tests.example"}), *members("request", 2)],
        ),
        Row(
            "request-failed",
            "ProvisioningFailed",
            [
                group("request-failed", 2, {keys.GANG_PROVISIONING_CLASS: "tests.example"}),
                *members("request-failed", 2),
            ],
        ),
    ]


def helpless() -> list[Row]:
    """Rows for which no node helps, and errors."""
    cannot = "NodesCannotHelp"
    zone = {"key": "tests/zone", "operator": "In", "values": ["b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    block, rule = {BLOCK: "b1"}, {"layer": "blockLayer", "strategy": "MustGather"}
    return [
        Row("by-name", cannot, [pod("by-name", selector={"kubernetes.io/hostname": "gone"})]),
        Row("contradiction", cannot, [pod("contradiction", selector={"tests/zone": "a"}, affinity=affinity)]),
        Row(
            "fixed-layer",
            cannot,
            [group("fixed-layer", 3, gather(rule)), *members("fixed-layer", 3)],
            nodes=(block, block),
        ),
        Row(
            "multiple",
            cannot,
            [
                group("multiple", 2, gather({**rule, "podCountMultiple": 4})),
                *members("multiple", 2),
            ],
            nodes=({BLOCK: "b2"}, {BLOCK: "b2"}),
        ),
        Row(
            "chips",
            "JobValidateFailed",
            [pod("chips", room={NPU: "3"})],
            nodes=({keys.ACCELERATOR_TYPE: "module"},),
            text="JobValidateFailed",
        ),
        Row("selector", "SchedulerError", [*_failing_claim(), _claiming()], text="no such key: model"),
    ]


def _failing_claim() -> list[Json]:
    """A device on the row's node, and a claim with a selector that fails on it."""
    kinds = {"apiVersion": "resource.k8s.io/v1"}
    expression = 'device.attributes["tests.example"].model == "x"'
    device = {"name": "d", "attributes": {"size": {"int": 1}}}
    pool = {"name": "selector", "generation": 1, "resourceSliceCount": 1}
    slice_ = {"driver": "tests.example", "nodeName": "selector-0", "pool": pool, "devices": [device]}
    exactly = {"deviceClassName": "tests", "selectors": [{"cel": {"expression": expression}}]}
    requests = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return [
        {**kinds, "kind": "DeviceClass", "metadata": {"name": "tests"}, "spec": {}},
        {**kinds, "kind": "ResourceSlice", "metadata": {"name": "tests"}, "spec": slice_},
        {**kinds, "kind": "ResourceClaim", "metadata": {"name": "selector", "namespace": "default"}, "spec": requests},
    ]


def _claiming() -> Json:
    return pod("selector", resourceClaims=[{"name": "devices", "resourceClaimName": "selector"}])
