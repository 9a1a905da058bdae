# SPDX-License-Identifier: Apache-2.0
"""Claims that controllers of a cluster make, made offline, too: of templates, of ephemeral volumes, of workloads."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main
from tests.workloads.cluster import Answer, Json, job, jobset, nodes, role, simulate, template, workload

CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
}
WAITS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "local"},
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def devices(node: str, count: int) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "pool": pool, "nodeName": node}
    return workload(
        "resource.k8s.io/v1",
        "ResourceSlice",
        f"slice-{node}",
        {**spec, "devices": [{"name": f"gpu-{i}"} for i in range(count)]},
    )


def requests(count: int) -> Json:
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}]}}


def device_template(name: str, count: int) -> Json:
    return workload("resource.k8s.io/v1", "ResourceClaimTemplate", name, {"spec": requests(count)})


def with_devices(of: str = "two", entry: str = "gpus", **more: Any) -> Json:
    """A pod template with a claim by template."""
    return template(resourceClaims=[{"name": entry, "resourceClaimTemplateName": of}], **more)


def volume_claim(size: str = "1Gi", **meta: Any) -> Json:
    resources = {"requests": {"storage": size}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": resources}
    return {"metadata": meta, "spec": spec}


def volumes(*on: str, size: str = "1Gi", label: str = "kubernetes.io/hostname") -> list[Json]:
    """A local volume on each of these nodes."""
    out = []
    for i, node in enumerate(on):
        term = {"matchExpressions": [{"key": label, "operator": "In", "values": [node]}]}
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        out.append(workload("v1", "PersistentVolume", f"v{i}", spec, status={"phase": "Available"}))
    return out


def hosts(count: int, cpu: int = 4) -> list[Json]:
    made = nodes(count, cpu, "h")
    for one in made:
        one["metadata"]["labels"] = {"kubernetes.io/hostname": one["metadata"]["name"]}
    return made


def bare(name: str, made: Json, **meta: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": made["spec"]}


def places(answer: Answer) -> dict[str, str]:
    return {one["pod"]: one["node"] for one in answer.document["bindings"]}


# -- ResourceClaims of templates ---------------------------------------------------------------------------------------

GROUP = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": with_devices()}}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(job(number=2, pod=with_devices()), id="Job"),
        pytest.param(jobset(role("w", 1, 2, with_devices())), id="JobSet"),
        pytest.param(workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", GROUP), id="LeaderWorkerSet"),
        pytest.param(
            workload("apps/v1", "Deployment", "d", {"replicas": 2, "template": with_devices()}), id="Deployment"
        ),
        pytest.param(
            workload("kubeflow.org/v1", "PyTorchJob", "pt", {"pytorchReplicaSpecs": {
                "Master": {"template": with_devices()}, "Worker": {"template": with_devices()},
            }}),
            id="PyTorchJob",
        ),
    ],
)  # fmt: skip
def test_pods_of_workloads_get_the_claims_of_their_templates(made: Json, tmp_path: Path) -> None:
    cluster = [CLASS, *nodes(3, 4), *(devices(f"n{i}", 2) for i in range(2)), device_template("two", 2)]
    answer = simulate(tmp_path, *cluster, made)
    assert sorted(places(answer).values()) == ["n0", "n1"] and answer.pending == []
    assert simulate(tmp_path, *cluster[:-2], device_template("two", 2), made).pending != []


def owned(name: str, uid: str = "p", entry: str = "gpus", **status: Any) -> Json:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    meta = {"annotations": {"resource.kubernetes.io/pod-claim-name": entry}, "ownerReferences": [owner]}
    return workload("resource.k8s.io/v1", "ResourceClaim", name, requests(1), meta=meta, status=status)


def stranger(name: str) -> Json:
    return workload("resource.k8s.io/v1", "ResourceClaim", name, requests(1))


AT_N1 = {
    "devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    },
}


@pytest.mark.parametrize(
    ("objects", "status", "bound"),
    [
        pytest.param([], {}, {"p": "n0"}, id="made"),
        pytest.param([stranger("p-gpus-sim")], {}, {"p": "n0"}, id="name taken"),
        pytest.param([owned("x", allocation=AT_N1)], {}, {"p": "n1"}, id="one that is there is used"),
        pytest.param([owned("x", uid="q", allocation=AT_N1)], {}, {"p": "n0"}, id="another pod's"),
        pytest.param(
            [owned("x", entry="", allocation=AT_N1)],
            {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "x"}]},
            {"p": "n1"},
            id="named in the status",
        ),
        pytest.param([], {"resourceClaimStatuses": [{"name": "gpus"}]}, {"p": "n0"}, id="needs none"),
    ],
)
def test_a_pod_of_the_input_gets_its_claim_once(
    objects: list[Json], status: Json, bound: dict[str, str], tmp_path: Path
) -> None:
    pod = {**bare("p", with_devices("one"), uid="p"), "status": status}
    cluster = [CLASS, *nodes(2), devices("n0", 1), devices("n1", 1), device_template("one", 1)]
    answer = simulate(tmp_path, *cluster, *objects, pod)
    assert places(answer) == bound, answer.document["pending"]


def test_a_template_that_is_not_there_is_told(tmp_path: Path) -> None:
    answer = simulate(tmp_path, CLASS, *nodes(1), devices("n0", 2), job(number=1, pod=with_devices("other")))
    assert 'waiting for the resourceclaim of "gpus" to be created' in answer.message("train-0")
    assert "1 ResourceClaimTemplate that pods name is not in the input: default/other" in answer.err


def test_evicted_pods_give_their_devices_back_and_get_new_claims(tmp_path: Path) -> None:
    low = bare("low", with_devices("one"), uid="low")
    high = bare("high", template(priority=10), uid="high")
    low["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00Z"
    cluster = [CLASS, *nodes(1), devices("n0", 1), device_template("one", 1)]
    runs = {**low, "spec": {**low["spec"], "nodeName": "n0"}}
    consumer = {"resource": "pods", "name": "low", "uid": "low"}
    at = json.loads(json.dumps(AT_N1).replace("n1", "n0"))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "low", "uid": "low", "controller": True}
    meta = {"uid": "c", "ownerReferences": [owner]}
    claim = workload(
        "resource.k8s.io/v1",
        "ResourceClaim",
        "x",
        requests(1),
        meta=meta,
        status={"allocation": at, "reservedFor": [consumer]},
    )
    runs["status"] = {"phase": "Running", "resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "x"}]}
    answer = simulate(tmp_path, *cluster, claim, runs, high)
    assert [one["pod"] for one in answer.document["evictions"]] == ["low"] and places(answer) == {"high": "n0"}
    more = simulate(tmp_path, *cluster, *nodes(1, name="m"), devices("m0", 1), claim, runs, high)
    assert more.pending == []


# -- PersistentVolumeClaims --------------------------------------------------------------------------------------------


def ephemeral(**more: Any) -> Json:
    source = {"volumeClaimTemplate": volume_claim(**more)}
    return template(volumes=[{"name": "scratch", "ephemeral": source}])


@pytest.mark.parametrize(
    "made",
    [
        pytest.param([bare("a", ephemeral()), bare("b", ephemeral())], id="Pods"),
        pytest.param([job(number=2, pod=ephemeral())], id="Job"),
        pytest.param(
            [workload("apps/v1", "ReplicaSet", "r", {"replicas": 2, "template": ephemeral()})], id="ReplicaSet"
        ),
        pytest.param([jobset(role("w", 2, 1, ephemeral()))], id="JobSet"),
        pytest.param(
            [workload("apps/v1", "StatefulSet", "s", {
                "replicas": 2, "template": template(), "volumeClaimTemplates": [volume_claim(name="data")],
            })],
            id="StatefulSet",
        ),
        pytest.param(
            [workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", {"replicas": 1, "leaderWorkerTemplate": {
                "size": 2, "workerTemplate": template(), "volumeClaimTemplates": [volume_claim(name="data")],
            }})],
            id="LeaderWorkerSet",
        ),
    ],
)  # fmt: skip
def test_volume_claims_are_made_and_decide_the_node(made: list[Json], tmp_path: Path) -> None:
    answer = simulate(tmp_path, WAITS, *hosts(4), *volumes("h1", "h3"), *made)
    assert sorted(places(answer).values()) == ["h1", "h3"], answer.document["pending"]
    assert sorted(place for place in places(simulate(tmp_path, WAITS, *hosts(4), *volumes("h1"), *made)).values()) in (
        [],
        ["h1"],
    )


def test_the_annotation_of_a_template_says_its_class(tmp_path: Path) -> None:
    claim = volume_claim(name="data", annotations={"volume.beta.kubernetes.io/storage-class": "local"})
    del claim["spec"]["storageClassName"]
    made = {"replicas": 1, "template": template(), "volumeClaimTemplates": [claim]}
    answer = simulate(tmp_path, WAITS, *hosts(2), *volumes("h1"), workload("apps/v1", "StatefulSet", "s", made))
    assert places(answer) == {"s-0": "h1"}


@pytest.mark.parametrize("mounted", [True, False])
def test_a_claim_of_a_jobset_is_for_pods_that_mount_it(mounted: bool, tmp_path: Path) -> None:
    own = template()
    if mounted:
        own["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    made = jobset(role("w", 1, 1, own), volumeClaimPolicies=[{"templates": [volume_claim(name="data")]}])
    answer = simulate(tmp_path, WAITS, *hosts(2), *volumes("h1"), made)
    assert places(answer) == {"js-w-0-0": "h1" if mounted else "h0"}
    given = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **volume_claim("5Gi", name="data-js")}
    answer = simulate(tmp_path, WAITS, *hosts(2), *volumes("h1"), made, given)
    assert bool(answer.pending) is mounted  # the claim that is there asks for more


def test_a_present_pod_of_a_stateful_set_gets_its_claim(tmp_path: Path) -> None:
    spec = {"replicas": 1, "template": template(), "volumeClaimTemplates": [volume_claim(name="data")]}
    source = {"name": "data", "persistentVolumeClaim": {"claimName": "data-s-0"}}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "S", "controller": True}
    there = bare("s-0", template(volumes=[source]), ownerReferences=[owner])
    answer = simulate(
        tmp_path,
        WAITS,
        *hosts(2),
        *volumes("h1"),
        workload("apps/v1", "StatefulSet", "s", spec, meta={"uid": "S"}),
        there,
    )
    assert places(answer) == {"s-0": "h1"}


def test_a_claim_of_an_ephemeral_volume_that_is_another_pods_is_refused(tmp_path: Path) -> None:
    given = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **volume_claim(name="p-scratch")}
    answer = simulate(tmp_path, WAITS, *hosts(1), *volumes("h0"), given, bare("p", ephemeral()))
    assert "PVC default/p-scratch was not created for pod default/p" in answer.message("p")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            bare("p", ephemeral(size="much")),
            "Pod default/p: spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests",
        ),
        (
            bare("p", template(volumes=[{"name": "scratch", "ephemeral": {}}])),
            "Pod default/p: spec.volumes[0].ephemeral.volumeClaimTemplate: is missing",
        ),
        (
            job(number=1, pod=ephemeral(size="much")),
            "Job default/train: spec.template.spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests",
        ),
        (
            workload("apps/v1", "StatefulSet", "s", {
                "template": template(), "volumeClaimTemplates": [volume_claim("much", name="data")],
            }),
            "StatefulSet default/s: spec.volumeClaimTemplates[0].spec.resources.requests",
        ),
        (
            jobset(role("w", 1, 1), volumeClaimPolicies=[{"templates": [volume_claim()]}]),
            "JobSet default/js: spec.volumeClaimPolicies[0].templates[0].metadata.name: is missing",
        ),
    ],
)  # fmt: skip
def test_templates_of_claims_that_cannot_be_read_are_faults(made: Json, text: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, WAITS, *hosts(1), made)
    assert answer.status == 2 and text in answer.err, answer.err


def test_explain_sees_the_claims(tmp_path: Path) -> None:
    path = tmp_path / "in.yaml"
    objects = [CLASS, WAITS, *hosts(2), *volumes("h1"), job(number=1, pod=ephemeral())]
    path.write_text(yaml.safe_dump_all(objects))
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert main(["explain", "-f", str(path), "--pod", "train-0", "-o", "json"]) == 0
    found = {one["node"]: one["feasible"] for one in json.loads(out.getvalue())["nodes"]}
    assert found == {"h0": False, "h1": True}


@pytest.mark.parametrize(
    ("objects", "node"),
    [
        ([CLASS, *hosts(2), devices("h0", 2), device_template("one", 1), job(number=1, pod=with_devices("one"))], "h0"),
        ([WAITS, *hosts(2), *volumes("h1"), job(number=1, pod=ephemeral())], "h1"),
    ],
)
def test_topology_shows_where_pods_with_claims_have_slots(objects: list[Json], node: str, tmp_path: Path) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert main(["topology", "-f", str(path), "--pod", "train-0", "-o", "json"]) == 0
    domains = json.loads(out.getvalue())["domains"]
    assert [one["name"] for one in domains if one["layer"] == "nodeLayer" and one["slots"]] == [node]
