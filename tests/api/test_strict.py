# SPDX-License-Identifier: Apache-2.0
"""Wire objects are decoded strictly: every fault is named by its path, and what is no fault passes."""

from typing import Any

import pytest

from koordpy.api.claim_objects import ResourceClaimTemplate, ResourceSlice
from koordpy.api.custom_objects import ClusterNetworkTopology, NodeResourceTopology
from koordpy.api.field_faults import key_path
from koordpy.api.objects import Node, Pod, PodDisruptionBudget
from koordpy.api.pod_groups import PodGroup
from koordpy.api.storage_objects import CSIStorageCapacity, PersistentVolume
from koordpy.decoding.manifest_documents import read_documents
from koordpy.decoding.strict_decoding import decode


def decoded(text: str, kind: type[Any]) -> tuple[Any, list[str]]:
    (document,) = read_documents(text.encode(), as_json=False)
    assert document.fault is None
    found = decode(document.value, kind)
    return found.value, [str(fault) for fault in found.faults]


@pytest.mark.parametrize(
    ("kind", "text", "faults"),
    [
        (Pod, "spec: {containers: nothing}", ["spec.containers: must be a list, not the string 'nothing'"]),
        (Pod, "spec: {priority: high}", ["spec.priority: must be a whole number, not the string 'high'"]),
        (Pod, "spec: {priority: true}", ["spec.priority: must be a whole number, not the boolean true"]),
        (Pod, "spec: {priority: 1.5}", ["spec.priority: must be a whole number, not the number 1.5"]),
        (Pod, "spec: {priority: 99999999999999999999}", ["spec.priority: 99999999999999999999 is out of"]),
        (Pod, "metadata: {labels: {app: true}}", ["metadata.labels.app: must be a string, not the boolean true"]),
        (Pod, "metadata: {labels: {a.b/c: 7}}", ["metadata.labels[a.b/c]: must be a string, not the number 7"]),
        (Pod, "metadata: {annotations: {a: [x]}}", ["metadata.annotations.a: must be a string, not a list"]),
        (Pod, "spec: {nodeSelector: {disk: 0.5}}", ["spec.nodeSelector.disk: must be a string, not the number 0.5"]),
        (Pod, "spec: {tolerations: {key: a}}", ["spec.tolerations: must be a list, not a mapping"]),
        (Pod, "spec: {hostNetwork: 'yes'}", ["spec.hostNetwork: must be true or false, not the string 'yes'"]),
        (Pod, "spec: [a]", ["spec: must be a mapping, not a list"]),
        (
            Pod,
            "spec: {containers: [null, 5]}",
            ["spec.containers[0]: null in a list", "spec.containers[1]: must be a mapping, not the number 5"],
        ),
        (
            Pod,
            "spec: {containers: [{name: 1, ports: [{containerPort: http}]}], priority: x}",
            [
                "spec.containers[0].name: must be a string, not the number 1",
                "spec.containers[0].ports[0].containerPort: must be a whole number",
                "spec.priority",
            ],
        ),
        (
            Pod,
            "spec: {containers: [{resources: {requests: {nvidia.com/gpu: 500m, cpu: 1K, memory: -1, x: {}}}}]}",
            [
                "spec.containers[0].resources.requests[nvidia.com/gpu]: '500m' must be whole",
                "spec.containers[0].resources.requests.cpu: '1K' is no quantity",
                "spec.containers[0].resources.requests.memory: '-1' is negative",
                "spec.containers[0].resources.requests.x: must be a quantity, not a mapping",
            ],
        ),
        (Pod, "spec: {overhead: {cpu: true}}", ["spec.overhead.cpu: must be a quantity, not a boolean"]),
        (Pod, "spec: {resources: {limits: {memory: 1_000}}}", ["spec.resources.limits.memory: '1_000' is no quantity"]),
        (Pod, "metadata: {creationTimestamp: soon}", ["metadata.creationTimestamp: 'soon' is no time"]),
        (Pod, "metadata: {creationTimestamp: 5}", ["metadata.creationTimestamp: must be a string, not the number 5"]),
        (Node, "status: {allocatable: {cpu: 1 000}}", ["status.allocatable.cpu: '1 000' is no quantity"]),
        (Node, "status: {allocatable: {cpu: .nan}}", ["status.allocatable.cpu: '.nan' is no quantity"]),
        (Node, "spec: {taints: [{key: a, value: 1}]}", ["spec.taints[0].value: must be a string, not the number 1"]),
        (PodGroup, "spec: {minMember: '2'}", ["spec.minMember: must be a whole number, not the string '2'"]),
        (PodGroup, "spec: {minResources: {cpu: 0x10}}", ["spec.minResources.cpu: '0x10' is no quantity"]),
        (CSIStorageCapacity, "capacity: ''", ["capacity: '' is no quantity"]),
        (PodDisruptionBudget, "spec: {minAvailable: ''}", ["spec.minAvailable: '' is neither a whole number nor"]),
        (
            ResourceSlice,
            "spec: {devices: [{name: d, capacity: {memory: {value: 80 GB}}}]}",
            ["spec.devices[0].capacity.memory.value: '80 GB' is no quantity"],
        ),
        (
            ClusterNetworkTopology,
            "spec: {hierarchy: [{layerName: a, labelKey: {x: y}}]}",
            ["spec.hierarchy[0].labelKey: must be a string or a list, not a mapping"],
        ),
        (
            ClusterNetworkTopology,
            "spec: {hierarchy: [{layerName: a, labelKey: [b, 5]}]}",
            ["spec.hierarchy[0].labelKey[1]: must be a string, not the number 5"],
        ),
        (
            NodeResourceTopology,
            "zones: [{resources: [{name: cpu, available: 4x}, {name: x.y/z, capacity: 4.5, available: 4x}]}]",
            [
                "zones[0].resources[0].available: '4x' is no quantity",
                "zones[0].resources[1].available: '4x' is no quantity",
                "zones[0].resources[1].capacity: '4.5' must be whole",
            ],
        ),
        (PodDisruptionBudget, "spec: {minAvailable: half}", ["spec.minAvailable: 'half' is neither"]),
        (
            PodDisruptionBudget,
            "spec: {minAvailable: true}",
            ["spec.minAvailable: must be a whole number, not the boolean true"],
        ),
    ],
)
def test_every_fault_is_named_with_its_path(kind: type[Any], text: str, faults: list[str]) -> None:
    value, found = decoded(text, kind)
    assert value is None
    assert len(found) == len(faults)
    for line, start in zip(found, faults, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    "text",
    [
        "spec: null\nmetadata: null\nstatus: null\n",
        "spec: {tolerations: null, nodeSelector: null, affinity: null, containers: null}",
        "unknown: {a: [1, 2.5]}\nspec: {somethingNew: true}",
        "metadata: {creationTimestamp: null, managedFields: [{time: 2026-01-01T00:00:00Z}]}",
    ],
)
def test_null_and_unknown_fields_are_no_faults(text: str) -> None:
    assert decoded(text, Pod) == (Pod(), [])


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("{cpu: 0.10, memory: 1e3}", {"cpu": "0.10", "memory": "1e3"}),
        ("{cpu: 9007199254740993}", {"cpu": 9007199254740993}),
        ("{x.y/z: 1000m, memory: 123456789012345678901}", {"x.y/z": "1000m", "memory": "123456789012345678901"}),
        ("{cpu: null, memory: ' 1Gi '}", {"memory": " 1Gi "}),
    ],
)
def test_a_quantity_keeps_its_text(text: str, requests: dict[str, Any]) -> None:
    pod, faults = decoded(f"spec: {{containers: [{{resources: {{requests: {text}}}}}]}}", Pod)
    assert faults == []
    assert pod.spec.containers[0].resources.requests == requests


@pytest.mark.parametrize(
    ("text", "priority"), [("7", 7), ("1e3", 1000), ("1_000", 1000), ("010", 8), ("3.0", 3), ("-2147483648", -(2**31))]
)
def test_a_whole_number_may_be_written_in_many_ways(text: str, priority: int) -> None:
    pod, faults = decoded(f"spec: {{priority: {text}}}", Pod)
    assert faults == [] and pod.spec.priority == priority


def test_what_readers_disagree_on_is_text_where_text_is_asked_for() -> None:
    pod, faults = decoded("metadata: {labels: {rev: 1e3, index: 08, axis: y, empty: }}", Pod)
    assert faults == [] and pod.metadata.labels == {"rev": "1e3", "index": "08", "axis": "y", "empty": ""}


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.123456Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T02:00:00+02:00"),
        ("2026-01-01", "2026-01-01T00:00:00Z"),
        ("2026-01-01 10:00:00", "2026-01-01T10:00:00Z"),
    ],
)
def test_times_need_no_quotes(text: str, time: str) -> None:
    pod, faults = decoded(f"metadata: {{creationTimestamp: {text}}}", Pod)
    assert faults == [] and pod.metadata.creation_timestamp == time


def test_raw_parts_are_plain_values() -> None:
    pod, faults = decoded("spec: {volumes: [{name: v, csi: {driver: d, size: 1.5, big: 0x10, none: null}}]}", Pod)
    assert faults == [] and pod.spec.volumes[0].csi == {"driver": "d", "size": 1.5, "big": 16}


def test_keys_with_other_characters_stand_in_brackets() -> None:
    assert key_path("", "spec") == "spec"
    assert key_path("metadata.labels", "app") == "metadata.labels.app"
    assert key_path("limits", "nvidia.com/gpu") == "limits[nvidia.com/gpu]"
    assert key_path("limits", "hugepages-2Mi") == "limits.hugepages-2Mi"
    assert key_path("data", "0") == "data[0]"


@pytest.mark.parametrize(
    ("kind", "text", "faults"),
    [
        (
            Pod,
            "spec: {volumes: [{gcePersistentDisk: {pdName: 1}}]}",
            ["spec.volumes[0].gcePersistentDisk.pdName: must be a string, not the number 1"],
        ),
        (
            Pod,
            "spec: {volumes: [{gcePersistentDisk: d}]}",
            ["spec.volumes[0].gcePersistentDisk: must be a mapping, not the string 'd'"],
        ),
        (
            Pod,
            "spec: {volumes: [{rbd: {monitors: a, image: i}}]}",
            ["spec.volumes[0].rbd.monitors: must be a list, not the string 'a'"],
        ),
        (
            Pod,
            "spec: {volumes: [{iscsi: {readOnly: 'no'}}]}",
            ["spec.volumes[0].iscsi.readOnly: must be true or false, not the string 'no'"],
        ),
        (
            PersistentVolume,
            "spec: {cinder: {volumeID: 7}}",
            ["spec.cinder.volumeID: must be a string, not the number 7"],
        ),
        (
            ResourceSlice,
            "spec: {devices: [{attributes: {a: {int: x}, b: {bool: 1}, c: big, d: {string: 1}}}]}",
            [
                "spec.devices[0].attributes.a.int: must be a whole number, not the string 'x'",
                "spec.devices[0].attributes.b.bool: must be true or false, not the number 1",
                "spec.devices[0].attributes.c: must be a mapping, not the string 'big'",
                "spec.devices[0].attributes.d.string: must be a string, not the number 1",
            ],
        ),
        (
            ResourceClaimTemplate,
            "spec: {spec: {devices: {requests: [{exactly: {count: two}}]}}}",
            ["spec.spec.devices.requests[0].exactly.count: must be a whole number, not the string 'two'"],
        ),
    ],
)
def test_disks_and_devices_are_read_as_strictly(kind: type[Any], text: str, faults: list[str]) -> None:
    value, found = decoded(text, kind)
    assert value is None
    assert [line[: len(start)] for line, start in zip(found, faults, strict=True)] == faults


def test_of_a_faulty_object_the_rest_can_be_read() -> None:
    text = "metadata: {name: p, labels: {a: b, c: 1}}\nspec: {priority: x, nodeName: n, containers: [5, {name: c}]}"
    (document,) = read_documents(text.encode(), as_json=False)
    rest = decode(document.value, Pod).rest
    assert rest is not None
    assert (rest.metadata.name, rest.metadata.labels) == ("p", {"a": "b"})
    assert (rest.spec.priority, rest.spec.node_name, [one.name for one in rest.spec.containers]) == (
        None,
        "n",
        ["", "c"],
    )


@pytest.mark.parametrize("raw", [None, "text", [], 5])
def test_of_what_is_no_object_nothing_is_left(raw: Any) -> None:
    rest = decode(raw, Pod).rest
    assert rest is None or rest == Pod()
