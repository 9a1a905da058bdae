# SPDX-License-Identifier: Apache-2.0
"""What the API server does with crds/: what it accepts, what it refuses and by which words, what kubectl shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, Json, Refused, manifests_of

KOORD = "scheduling.koordinator.sh/v1alpha1"
SIGS = "scheduling.sigs.k8s.io/v1alpha1"
PATHS = {
    "ClusterNetworkTopology": (KOORD, f"/apis/{KOORD}/clusternetworktopologies"),
    "Device": (KOORD, f"/apis/{KOORD}/devices"),
    "PodGroup": (SIGS, f"/apis/{SIGS}/namespaces/default/podgroups"),
    "ElasticQuota": (SIGS, f"/apis/{SIGS}/namespaces/default/elasticquotas"),
}

UNTOUCHED = {"phase": "Pending", "scheduled": 0, "running": 0, "succeeded": 0, "failed": 0}
"""What a PodGroup's status has before anything is written."""
SPINE = {"layerName": "spineLayer", "labelKey": "net/spine", "parentTopologyLayer": "ClusterTopologyLayer"}
BLOCK = {"layerName": "blockLayer", "labelKey": ["net/block", "net/rack"], "parentTopologyLayer": "spineLayer"}
NODE = {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"}
GPU = {"type": "gpu", "minor": 0, "id": "GPU-0", "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}
LINKS = {"name": "links", "topology": json.dumps([["X", "NV18"], ["NV18", "X"]])}

EXAMPLES = [one for one in manifests_of(REPOSITORY / "examples") if one.get("kind") in PATHS]


def aliased(entry: Json) -> Json:
    """An entry of `hierarchy` as `networkTopologySpec` spells it."""
    return {("topologyLayer" if key == "layerName" else key): value for key, value in entry.items()}


def object_of(kind: str, spec: Any, **more: Any) -> Json:
    name = "default" if kind == "ClusterNetworkTopology" else "one"
    return {"apiVersion": PATHS[kind][0], "kind": kind, "metadata": {"name": name}, "spec": spec, **more}


async def offered(api: Client, manifest: Json) -> Json:
    """The server's answer to creating it, without its being kept; unknown fields are refused, as kubectl asks."""
    return await api.create(f"{PATHS[manifest['kind']][1]}?dryRun=All&fieldValidation=Strict", manifest)


async def test_the_definitions_are_established_and_structural(api: Client, crds: list[str]) -> None:
    assert sorted(crds) == [
        "clusternetworktopologies.scheduling.koordinator.sh",
        "devices.scheduling.koordinator.sh",
        "elasticquotas.scheduling.sigs.k8s.io",
        "podgroups.scheduling.sigs.k8s.io",
        "podgroups.scheduling.x-k8s.io",
    ]
    for crd in await api.items("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"):
        conditions = {c["type"]: (c["status"], c.get("message")) for c in crd["status"]["conditions"]}
        assert conditions["NamesAccepted"][0] == "True", crd["metadata"]["name"]
        assert conditions.get("NonStructuralSchema", ("False", None))[0] == "False", conditions
        # Groups below k8s.io are protected: without the approval annotation the server complains here.
        approved = conditions.get("KubernetesAPIApprovalPolicyConformant", ("True", None))
        assert approved[0] == "True", approved


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        pytest.param("ClusterNetworkTopology", {"hierarchy": [SPINE, BLOCK, NODE]}, id="topology"),
        pytest.param("ClusterNetworkTopology", {"hierarchy": [NODE, SPINE, BLOCK]}, id="topology in any order"),
        pytest.param(
            "ClusterNetworkTopology",
            {"networkTopologySpec": [aliased(SPINE), aliased(BLOCK), aliased(NODE)]},
            id="topology in its other spelling",
        ),
        pytest.param(
            "ClusterNetworkTopology", {"hierarchy": [SPINE, BLOCK]}, id="topology whose node layer is implied"
        ),
        pytest.param(
            "ClusterNetworkTopology",
            {"hierarchy": [{"layerName": "blockLayer", "labelKey": "net/block"}]},
            id="topology whose top layer names no parent",
        ),
        pytest.param("PodGroup", {"minMember": 8}, id="gang"),
        pytest.param("PodGroup", {}, id="gang without a minimum"),
        pytest.param(
            "PodGroup",
            {"minMember": 2, "minResources": {"cpu": 4, "memory": "1.5Gi"}, "scheduleTimeoutSeconds": 300},
            id="gang with everything",
        ),
        pytest.param("ElasticQuota", {"min": {"cpu": "40"}, "max": {"cpu": 80, "memory": "1Ti"}}, id="quota"),
        pytest.param("ElasticQuota", {"max": {"nvidia.com/gpu": 16}}, id="quota without a guarantee"),
        pytest.param("Device", {"devices": [GPU], "topologies": {"gpu": [LINKS]}}, id="device"),
        pytest.param("Device", {"devices": [GPU, {**GPU, "type": "rdma"}]}, id="device with one minor of two types"),
    ],
)
async def test_what_users_write_rightly_is_accepted_whole(api: Client, crds: list[str], kind: str, spec: Json) -> None:
    accepted = await offered(api, object_of(kind, spec))

    assert accepted["spec"] == spec


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("ClusterNetworkTopology", {}, "exactly one of hierarchy and networkTopologySpec"),
        (
            "ClusterNetworkTopology",
            {"hierarchy": [SPINE], "networkTopologySpec": [aliased(SPINE)]},
            "exactly one of hierarchy and networkTopologySpec",
        ),
        ("ClusterNetworkTopology", {"hierarchy": []}, "spec.hierarchy"),
        ("ClusterNetworkTopology", {"hierarchy": [{"labelKey": "net/spine"}]}, "spec.hierarchy[0].layerName"),
        ("ClusterNetworkTopology", {"hierarchy": [SPINE, SPINE]}, "spec.hierarchy[1]: Duplicate value"),
        (
            "ClusterNetworkTopology",
            {"networkTopologySpec": [aliased(SPINE), aliased(SPINE)]},
            "spec.networkTopologySpec[1]: Duplicate value",
        ),
        *(
            (
                "ClusterNetworkTopology",
                {"hierarchy": layers} if name == "layerName" else {"networkTopologySpec": [*map(aliased, layers)]},
                words.format(name=name),
            )
            for name in ("layerName", "topologyLayer")
            for layers, words in (
                (
                    [BLOCK],
                    "every parentTopologyLayer must be the {name} of another entry, or ClusterTopologyLayer for the top"
                    ' layer; unknown: ["spineLayer above blockLayer"]',
                ),
                (
                    [SPINE, {**BLOCK, "parentTopologyLayer": "ClusterTopologyLayer"}],
                    "the layers must be one chain, only one may be without a layer below it:"
                    ' ["spineLayer", "blockLayer"]',
                ),
                (
                    [
                        SPINE,
                        BLOCK,
                        {"layerName": "rackLayer", "labelKey": "net/rack", "parentTopologyLayer": "spineLayer"},
                    ],
                    "the layers must be one chain, only one may be without a layer below it:"
                    ' ["blockLayer", "rackLayer"]',
                ),
                (
                    [{**SPINE, "parentTopologyLayer": "blockLayer"}, BLOCK],
                    "the parentTopologyLayers form a circle, no layer is at the top:"
                    ' ["blockLayer above spineLayer", "spineLayer above blockLayer"]',
                ),
                (
                    [{**SPINE, "parentTopologyLayer": "blockLayer"}, BLOCK, NODE],
                    "the parentTopologyLayers form a circle, no layer is at the top:"
                    ' ["blockLayer above spineLayer", "spineLayer above blockLayer", "blockLayer above nodeLayer"]',
                ),
                ([{**SPINE, "parentTopologyLayer": "spineLayer"}], "a layer cannot be its own parent"),
            )
        ),
        (
            "ClusterNetworkTopology",
            {"hierarchy": [{"layerName": "ClusterTopologyLayer"}]},
            "spec.hierarchy[0].layerName",
        ),
        ("ClusterNetworkTopology", {"hierarchy": [{**SPINE, "labelKey": 7}]}, "spec.hierarchy[0].labelKey"),
        ("ClusterNetworkTopology", {"hierarchy": [{**SPINE, "labelKey": []}]}, "spec.hierarchy[0].labelKey"),
        ("ClusterNetworkTopology", {"hierarchy": [{**SPINE, "labelKey": [7]}]}, "spec.hierarchy[0].labelKey[0]"),
        ("ClusterNetworkTopology", {"hierarchy": [{**SPINE, "labelKey": ""}]}, "spec.hierarchy[0].labelKey"),
        (
            "ClusterNetworkTopology",
            {"hierarchy": [SPINE, {**BLOCK, "labelKey": True}]},
            "spec.hierarchy[1].labelKey: Unsupported value: true: supported values:"
            ' "a label key, as example.com/spine", "a list of label keys"',
        ),
        (
            "ClusterNetworkTopology",
            {"hierarchy": [{**SPINE, "labelKey": "not a label!"}]},
            'spec.hierarchy[0].labelKey: Invalid value: "not a label!"',
        ),
        (
            "ClusterNetworkTopology",
            {"hierarchy": [{**SPINE, "labelKey": ["net/spine", "net/"]}]},
            'spec.hierarchy[0].labelKey[1]: Invalid value: "net/"',
        ),
        ("ClusterNetworkTopology", {"hierarchy": [{**SPINE, "labelKey": {"k": "v"}}]}, "spec.hierarchy[0].labelKey"),
        ("ClusterNetworkTopology", {"hierarchy": [{**SPINE, "label": "x"}]}, 'unknown field "spec.hierarchy[0].label"'),
        ("PodGroup", {"minMember": -1}, "spec.minMember"),
        ("PodGroup", {"minMember": "8"}, "spec.minMember"),
        ("PodGroup", {"scheduleTimeoutSeconds": -5}, "spec.scheduleTimeoutSeconds"),
        ("PodGroup", {"minResources": {"cpu": "four"}}, "spec.minResources.cpu"),
        ("PodGroup", {"minMembers": 8}, 'unknown field "spec.minMembers"'),
        ("ElasticQuota", {"min": {"cpu": "-1"}, "max": {"cpu": "1"}}, "spec.min.cpu"),
        ("ElasticQuota", {"min": {"cpu": -1}, "max": {"cpu": 1}}, "spec.min.cpu"),
        ("ElasticQuota", {"max": {"memory": "1GB"}}, "spec.max.memory"),
        ("ElasticQuota", {"min": {"cpu": "1"}, "max": {"memory": "1Gi"}}, "every resource of min must be in max"),
        ("ElasticQuota", {"min": {"cpu": "1"}}, "every resource of min must be in max"),
        ("Device", {"devices": [{"minor": 0}]}, "spec.devices[0].type"),
        ("Device", {"devices": [{**GPU, "minor": -1}]}, "spec.devices[0].minor"),
        ("Device", {"devices": [{**GPU, "health": "sick"}]}, "spec.devices[0].health"),
        ("Device", {"devices": [GPU, GPU]}, "spec.devices[1]: Duplicate value"),
        ("Device", {"devices": [{**GPU, "resources": {"gpu": "all"}}]}, "spec.devices[0].resources.gpu"),
        ("Device", {"topologies": {"gpu": [{**LINKS, "name": "latency"}]}}, "spec.topologies.gpu[0].name"),
        ("Device", {"topologies": {"gpu": [{"name": "links"}]}}, "spec.topologies.gpu[0].topology"),
        ("Device", {"topologies": {"gpu": [LINKS, LINKS]}}, "spec.topologies.gpu[1]: Duplicate value"),
    ],
)
async def test_what_users_get_wrong_is_refused_by_its_name(
    api: Client, crds: list[str], kind: str, spec: Json, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        await offered(api, object_of(kind, spec))

    assert refused.value.status in (400, 422)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("kind", "spec", "status"),
    [
        (
            "ClusterNetworkTopology",
            {"hierarchy": [BLOCK | {"parentTopologyLayer": "ClusterTopologyLayer"}]},
            {
                "detailStatus": [
                    {
                        "topologyInfo": {
                            "topologyLayer": "ClusterTopologyLayer",
                            "topologyName": "ClusterTopologyLayer",
                        },
                        "childTopologyLayer": "blockLayer",
                        "childTopologyNames": ["b1", "b2"],
                        "nodeNum": 4,
                    },
                    {
                        "topologyInfo": {"topologyLayer": "blockLayer", "topologyName": "b1"},
                        "parentTopologyInfo": {
                            "topologyLayer": "ClusterTopologyLayer",
                            "topologyName": "ClusterTopologyLayer",
                        },
                        "childTopologyLayer": "nodeLayer",
                        "nodeNum": 2,
                    },
                ],
                "conditions": [{"type": "Valid", "status": "True", "reason": "Read", "message": "3 layers"}],
            },
        ),
        (
            "PodGroup",
            {"minMember": 2},
            {
                "phase": "Running",
                "occupiedBy": "default/job",
                "scheduled": 2,
                "running": 2,
                "succeeded": 0,
                "failed": 0,
                "scheduleStartTime": "2026-01-01T00:00:00Z",
            },
        ),
        (
            "ElasticQuota",
            {"max": {"cpu": "4"}},
            {"used": {"cpu": "1500m"}, "runtime": {"cpu": 4}, "request": {"cpu": "2"}},
        ),
        (
            "Device",
            {"devices": [GPU]},
            {
                "allocations": [
                    {
                        "type": "gpu",
                        "entries": [{"namespace": "default", "name": "a", "uuid": "0-1", "minors": [0]}],
                    }
                ],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        ),
    ],
)
async def test_status_is_a_subresource_and_keeps_what_is_written(
    api: Client, crds: list[str], kind: str, spec: Json, status: Json
) -> None:
    path = PATHS[kind][1]
    made = await api.create(path, object_of(kind, spec, status=status))
    one = f"{path}/{made['metadata']['name']}"
    try:
        untouched = UNTOUCHED if kind == "PodGroup" else None
        assert made.get("status") == untouched, "a status given by a user counts for nothing"

        await api.patch(f"{one}/status?fieldValidation=Strict", {"status": status, "spec": None})

        kept = await api.get(one)
        assert kept["status"] == {**(untouched or {}), **status}
        assert kept["spec"] == spec, "a write of the status leaves the spec alone"
        assert kept["metadata"]["generation"] == 1
    finally:
        await api.delete(one)


async def columns(api: Client, path: str) -> dict[str, Any]:
    """Name and value of the columns that kubectl shows of the only object, those of -o wide left out."""
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with api.http.get(api.url + path, headers=headers) as answer:
        table = await answer.json()
    (row,) = table["rows"]
    shown = zip(table["columnDefinitions"], row["cells"], strict=True)
    return {column["name"]: cell for column, cell in shown if not column["priority"]}


async def test_kubectl_shows_how_far_a_gang_is_and_why_not_further(api: Client, crds: list[str]) -> None:
    path = PATHS["PodGroup"][1]
    await api.create(path, object_of("PodGroup", {"minMember": 2}))
    try:
        shown = await columns(api, path)
        assert (shown["MinMember"], shown["Scheduled"], shown["Running"]) == (2, 0, 0)
        now = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}
        waits = [{"type": "Scheduled", "status": "False", "reason": "Unschedulable", **now}]
        await api.patch(f"{path}/one/status", {"status": {"phase": "Scheduling", "conditions": waits}})
        shown = await columns(api, path)
        assert (shown["Phase"], shown["Reason"], shown["Scheduled"]) == ("Scheduling", "Unschedulable", 0)
        await api.patch(f"{path}/one/status", {"status": {"phase": "Running", "scheduled": 2, "running": 1}})
        shown = await columns(api, path)
        assert (shown["Name"], shown["Phase"], shown["Scheduled"], shown["Running"]) == ("one", "Running", 2, 1)
    finally:
        await api.delete(f"{path}/one")


async def test_kubectl_shows_what_a_quota_has_of_the_gpus(api: Client, crds: list[str]) -> None:
    path, gpu = PATHS["ElasticQuota"][1], "nvidia.com/gpu"
    await api.create(path, object_of("ElasticQuota", {"min": {gpu: 8, "cpu": 1}, "max": {gpu: "32", "cpu": 1}}))
    try:
        status = {"used": {gpu: "12", "cpu": "1"}, "runtime": {gpu: "24"}, "request": {gpu: "28"}}
        await api.patch(f"{path}/one/status", {"status": status})
        shown = await columns(api, path)
        gpus = {name: cell for name, cell in shown.items() if name.startswith("GPU-")}
        told = {"GPU-Used": "12", "GPU-Runtime": "24", "GPU-Request": "28", "GPU-Min": "8", "GPU-Max": "32"}
        assert gpus == told
    finally:
        await api.delete(f"{path}/one")


async def test_kubectl_shows_whether_the_labels_of_a_topology_have_gaps(api: Client, crds: list[str]) -> None:
    path = PATHS["ClusterNetworkTopology"][1]
    await api.create(path, object_of("ClusterNetworkTopology", {"hierarchy": [{"layerName": "r", "labelKey": "rack"}]}))
    try:
        now = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Read"}
        valid = {"type": "Valid", "status": "True", "message": "r > nodeLayer", **now}
        for word in ("True", "Degraded"):
            await api.patch(f"{path}/default/status", {"status": {"valid": word, "conditions": [valid]}})
            shown = await columns(api, path)
            assert (shown["Valid"], shown["Layers"]) == (word, "r > nodeLayer")
    finally:
        await api.delete(f"{path}/default")


async def test_short_names_find_the_kinds(api: Client, crds: list[str]) -> None:
    names = {
        short: resource["name"]
        for group in (KOORD, SIGS)
        for resource in (await api.get(f"/apis/{group}"))["resources"]
        for short in resource.get("shortNames", [])
    }

    assert names["cnt"] == "clusternetworktopologies"
    assert names["pg"] == "podgroups"
    assert names["eq"] == "elasticquotas"


async def test_the_examples_are_accepted(api: Client, crds: list[str]) -> None:
    assert EXAMPLES, "examples/ has no custom resources"
    for manifest in EXAMPLES:
        await offered(api, manifest)
