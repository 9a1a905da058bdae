# SPDX-License-Identifier: Apache-2.0
"""Live: PodGroups that controllers make by default, and rollouts, in whatever order the objects are seen."""

from itertools import permutations
from typing import Any

import pytest

from tests.engine.live import Live, in_virtual_time, live, small, until
from tests.engine.test_workloads import job, member, said, serve, template, uid_of

Json = dict[str, Any]
GROUPS = "podgroups.scheduling.k8s.io"
LEAST = {"gang.scheduling.koordinator.sh/min-available": "2"}


def group(cluster: Live, uid: str, **spec: Any) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}
    meta = {"name": "pg", "namespace": "default", "ownerReferences": [owner]}
    cluster.server.store.create(GROUPS, {"metadata": meta, "spec": {"schedulingPolicy": {"basic": {}}, **spec}})


def of_group(index: int, uid: str) -> Json:
    made = member(index, uid)
    made["spec"] = {**made["spec"], "schedulingGroup": {"podGroupName": "pg"}}
    return made


@pytest.mark.parametrize("order", list(permutations(("group", "pods"))), ids=lambda order: " then ".join(order))
@in_virtual_time
async def test_a_group_made_by_default_leaves_the_job_its_gang(order: tuple[str, ...]) -> None:
    async with live([small("n1", cpu=2)]) as cluster:
        serve(cluster, "scheduling.k8s.io", "v1beta1", "PodGroup")
        async with cluster.running():
            uid = uid_of(job(cluster, 3))
            for what in order:
                if what == "group":
                    group(cluster, uid)
                else:
                    cluster.create(*(of_group(i, uid) for i in range(3)))
            await until(lambda: "gang default/train: needed 3, available in the cluster: 2" in said(cluster, "train-0"))
            assert cluster.places() == {}
            cluster.create(small("n2", cpu=1))
            await until(lambda: len(cluster.places()) == 3)


@in_virtual_time
async def test_a_parent_that_appears_holds_what_waits() -> None:
    async with live([small("n1", cpu=1)]) as cluster:
        serve(cluster, "scheduling.k8s.io", "v1beta1", "PodGroup")
        async with cluster.running():
            group(cluster, "other", parentCompositePodGroupName="root")
            pod = of_group(0, "none")
            pod["metadata"]["ownerReferences"] = []
            cluster.create(pod)
            text = "gang default/pg: unsupported: spec.parentCompositePodGroupName"
            await until(lambda: text in said(cluster, "train-0"))
            assert cluster.places() == {}


def replica_set(cluster: Live, name: str, replicas: int, revision: int) -> str:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u-web", "controller": True}
    notes = {"deployment.kubernetes.io/revision": str(revision)}
    meta = {"name": name, "namespace": "default", "ownerReferences": [owner], "annotations": notes}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"a": name}}, "template": template(LEAST)}
    return uid_of(cluster.server.store.create("replicasets.apps", {"metadata": meta, "spec": spec}))


def of_set(index: int, uid: str, name: str) -> Json:
    made = member(index, uid, name, "ReplicaSet")
    made["metadata"] |= {"annotations": LEAST, "labels": {}}
    made["metadata"]["ownerReferences"][0]["apiVersion"] = "apps/v1"
    return made


@in_virtual_time
async def test_a_new_replica_set_joins_the_gang_of_the_old() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        old = replica_set(cluster, "old", 2, 1)
        cluster.create(of_set(0, old, "old"))
        await until(lambda: "waiting for members, 1 of minMember 2 exist" in said(cluster, "old-0"))
        cluster.create(of_set(1, old, "old"))
        await until(lambda: len(cluster.places()) == 2)
        new = replica_set(cluster, "new", 1, 2)
        cluster.create(of_set(0, new, "new"))
        await until(lambda: "pod default/old-0 of ReplicaSet old uses the capacity" in said(cluster, "new-0"))
        cluster.create(small("n2", cpu=1))
        await until(lambda: "new-0" in {key.rpartition("/")[2] for key in cluster.places()})
