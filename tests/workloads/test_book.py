# SPDX-License-Identifier: Apache-2.0
"""What follows from workloads and pods is the same whatever came first, and however it came to be."""

import os
from random import Random
from typing import Any

import pytest

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import Gangs
from koordpy.decoding.strict_decoding import decode
from koordpy.devices.family_registry import make_state
from koordpy.pods.gang_refs import GangRef
from koordpy.workloads.kinds.kind_registry import workload_of
from koordpy.workloads.volcano_gangs import VolcanoGroup
from koordpy.workloads.workload_manifest import Source, head_of

SEEDS = int(os.environ.get("KOORDPY_BOOKS", "300"))
Json = dict[str, Any]
POD = {"metadata": {}, "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]}}
LWS = "leaderworkerset.sigs.k8s.io/"


def owner(api: str, kind: str, name: str, uid: str) -> list[Json]:
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}]


class World:
    """Workloads and pods of all sorts, as controllers would make them, at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.workloads: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        """PodGroups of Volcano that operators wrote, by name."""
        self.number = 0

    def turn(self, state: ClusterState) -> None:
        what = self.random.randrange(10)
        if what == 0:
            self.begin(state)
        elif what == 1 and self.workloads:
            uid = self.random.choice(list(self.workloads))
            del self.workloads[uid]
            state.workloads.drop_workload(uid)
        elif what == 2 and self.workloads:
            one = self.random.choice(list(self.workloads.values()))
            self.change(one)
            put(state, one)
        elif what == 3 and self.pods:
            key = self.random.choice(list(self.pods))
            del self.pods[key]
            state.delete(Pod, key)
        elif what == 4 and self.pods:
            one = self.random.choice(list(self.pods.values()))
            one["status"] = {"phase": self.random.choice(["Running", "Succeeded", "Failed", "Pending"])}
            if self.random.random() < 0.6:
                one["spec"] = {**one["spec"], "nodeName": "n0"}
            put_pod(state, one)
        else:
            self.make(state)

    def begin(self, state: ClusterState) -> None:
        """A workload of some kind, and what stands between it and its pods."""
        self.number += 1
        name, uid = self.random.choice(["a", "b"]), f"u{self.number}"
        meta: Json = {"name": name, "namespace": "default", "uid": uid, "creationTimestamp": self.time()}
        if self.random.random() < 0.2:
            meta["annotations"] = {
                "gang.scheduling.koordinator.sh/" + self.random.choice(["auto", "min-available"]): self.random.choice(
                    ["on", "off", "2", "x"]
                )
            }
        kind = self.random.choice(
            ["Job", "JobSet", "LeaderWorkerSet", "PyTorchJob", "PodGang", "TrainJob", "ReplicaSet", "MPIJob"]
        )
        job = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "template": POD}
        if kind == "Job":
            self.take(state, {"apiVersion": "batch/v1", "kind": kind, "metadata": meta, "spec": job})
        elif kind == "PyTorchJob":
            roles = {role: {"replicas": n, "template": POD} for role, n in (("Master", 1), ("Worker", 2))}
            spec = {"pytorchReplicaSpecs": roles}
            self.take(state, {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": meta, "spec": spec})
        elif kind == "MPIJob":
            roles = {"Launcher": {"template": POD}, "Worker": {"replicas": 2, "template": POD}}
            spec = {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": roles}
            self.take(state, {"apiVersion": "kubeflow.org/v2beta1", "kind": kind, "metadata": meta, "spec": spec})
            self.group(state, owner("kubeflow.org/v2beta1", kind, name, uid))
        elif kind == "PodGang":
            refs = [{"namespace": "default", "name": f"{name}-{i}"} for i in range(3)]
            spec = {"podgroups": [{"name": "g", "minReplicas": 2, "podReferences": refs}]}
            self.take(
                state, {"apiVersion": "scheduler.grove.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
            )
        elif kind == "ReplicaSet":
            # of a Deployment that is not known, which may have others
            meta["ownerReferences"] = owner("apps/v1", "Deployment", name, f"d-{name}")
            least = {"gang.scheduling.koordinator.sh/min-available": "2"} if self.random.random() < 0.6 else {}
            spec = {"replicas": self.random.randrange(3), "template": {**POD, "metadata": {"annotations": least}}}
            self.take(state, {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec})
        elif kind == "LeaderWorkerSet":
            spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": POD}}
            self.take(
                state, {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": kind, "metadata": meta, "spec": spec}
            )
            self.stateful_set(state, name, f"{uid}-s", owner("leaderworkerset.x-k8s.io/v1", kind, name, uid))
        else:
            if kind == "TrainJob":
                above = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind, "metadata": meta, "spec": {}}
                self.take(state, above)
                references = owner("trainer.kubeflow.org/v1alpha1", kind, name, uid)
                self.group(state, references)
                meta = {**meta, "uid": f"{uid}-js", "ownerReferences": references, "annotations": {}}
            roles = [
                {"name": "d", "replicas": 1, "template": {"spec": {**job, "parallelism": 1, "completions": 1}}},
                {"name": "w", "replicas": 2, "template": {"spec": job}, "dependsOn": [{"name": "d"}]},
            ]
            sets = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
            self.take(state, {**sets, "spec": {"replicatedJobs": roles}})

    def stateful_set(self, state: ClusterState, name: str, uid: str, references: list[Json]) -> None:
        meta = {"name": name, "namespace": "default", "uid": uid, "ownerReferences": references}
        spec = {"replicas": 2, "template": POD}
        self.take(state, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec})

    def group(self, state: ClusterState, references: list[Json]) -> None:
        """A PodGroup of Volcano that an operator wrote, which may count more pods than can start together."""
        meta = {"name": references[0]["name"], "namespace": "default", "ownerReferences": references}
        one = {"metadata": meta, "spec": {"minMember": self.random.randint(1, 8)}}
        self.groups[meta["name"]] = one
        put_group(state, one)

    def take(self, state: ClusterState, one: Json) -> None:
        self.workloads[one["metadata"]["uid"]] = one
        put(state, one)

    def change(self, one: Json) -> None:
        spec = one["spec"] = dict(one["spec"])
        what = self.random.randrange(4)
        if what == 0:
            spec["suspend"] = self.random.random() < 0.5
        elif what == 1:
            one["status"] = {"succeeded": self.random.randrange(3), "restarts": self.random.randrange(2)}
        elif "parallelism" in spec:
            spec["parallelism"] = spec["completions"] = self.random.randint(1, 4)
        else:
            spec["replicas"] = self.random.randint(1, 3)

    def time(self) -> str:
        self.number += 1
        return f"2026-01-01T{self.number // 3600 % 24:02}:{self.number // 60 % 60:02}:{self.number % 60:02}Z"

    def make(self, state: ClusterState) -> None:
        """A pod of some workload, or of none."""
        workloads = [one for one in self.workloads.values() if one["kind"] != "TrainJob"]
        above = self.random.choice(workloads) if workloads and self.random.random() < 0.8 else None
        i, name = self.random.randrange(4), f"{self.random.choice('ab')}-{self.random.randrange(4)}"
        labels: Json = {}
        notes: Json = {}
        references: list[Json] = []
        if above is not None:
            meta, kind = above["metadata"], above["kind"]
            name = f"{meta['name']}-{i}"
            references = owner(above["apiVersion"], kind, meta["name"], meta["uid"])
            labels["batch.kubernetes.io/job-completion-index"] = str(i)
            if kind == "PyTorchJob":
                labels["training.kubeflow.org/replica-type"] = "worker" if i else "master"
                labels["training.kubeflow.org/replica-index"] = str(max(0, i - 1))
            elif kind == "JobSet":
                role = self.random.choice("dw")
                attempt = str(self.random.randrange(2))
                labels |= {f"jobset.sigs.k8s.io/{key}": text for key, text in (("replicatedjob-name", role),)}
                labels |= {"jobset.sigs.k8s.io/job-index": "0", "jobset.sigs.k8s.io/restart-attempt": attempt}
            elif kind == "MPIJob":
                labels["training.kubeflow.org/replica-type"] = "worker" if i else "launcher"
                labels["training.kubeflow.org/replica-index"] = str(max(0, i - 1))
            elif kind == "StatefulSet" and self.random.random() < 0.5:
                labels |= {LWS + "group-index": str(i), LWS + "worker-index": "0", LWS + "name": meta["name"]}
                labels[LWS + "template-revision-hash"] = self.random.choice(["r1", "r2"])
            elif kind == "PodGang":
                references = []
            if kind in ("MPIJob", "JobSet") and self.random.random() < 0.7:
                notes["scheduling.k8s.io/group-name"] = meta["name"]
        if self.random.random() < 0.1:
            labels["pod-group.scheduling.sigs.k8s.io"] = self.random.choice(["a", "g"])
        if self.random.random() < 0.1:
            labels["kueue.x-k8s.io/pod-group-name"] = "a"
            notes["kueue.x-k8s.io/pod-group-total-count"] = "2"
        if self.random.random() < 0.1:
            notes["gang.scheduling.koordinator.sh/min-available"] = "2"
        self.number += 1
        meta = {
            "name": name,
            "namespace": "default",
            "uid": f"p{self.number}",
            "labels": labels,
            "annotations": notes,
            "ownerReferences": references,
            "creationTimestamp": self.time(),
        }
        pod = {"metadata": meta, "spec": POD["spec"], "status": {"phase": "Pending"}}
        self.pods[f"default/{name}"] = pod
        put_pod(state, pod)
        if LWS + "name" in labels and self.random.random() < 0.5:
            # the workers of a leader
            self.stateful_set(state, name, f"{meta['uid']}-s", owner("v1", "Pod", name, meta["uid"]))


def put_pod(state: ClusterState, raw: Json) -> None:
    pod = decode(raw, Pod).value
    assert pod is not None
    state.upsert(pod)


def put(state: ClusterState, raw: Json) -> None:
    source = Source(raw)
    state.workloads.put_workload(workload_of(source, head_of(source)))


def put_group(state: ClusterState, raw: Json) -> None:
    source = Source(raw)
    state.put_volcano_group(f"default/{raw['metadata']['name']}", VolcanoGroup.read(source, head_of(source)))


def empty() -> ClusterState:
    return make_state(scheduler_names=("koord-scheduler",), gangs=Gangs())


def seen(state: ClusterState) -> tuple[object, ...]:
    """What others see of gangs."""
    snapshot = state.snapshot(0.0)
    members = {ref: sorted(pod.key for pod in pods) for ref, pods in snapshot.members.items()}
    filed: dict[str, tuple[GangRef | None, int | None, bool]] = {
        key: (info.gang, info.index, info.lost) for key, info in snapshot.pods.items() if not info.finished
    }
    named = {ref: keys for ref, keys in members.items() if any(not state_finished(state, key) for key in keys)}
    return snapshot.workload_gangs, snapshot.meant, named, filed, sorted(snapshot.node_warnings)


def state_finished(state: ClusterState, key: str) -> bool:
    info = state.pod(key)
    return info is None or info.finished


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_follows_depends_on_what_is_there_alone(seed: int) -> None:
    world, state = World(seed), empty()
    for turn in range(60):
        world.turn(state)
        if turn % world.random.randint(1, 6) == 0:
            state.snapshot(0.0)
    found = seen(state)
    fresh = empty()
    items = [(put, one) for one in world.workloads.values()]
    items += [(put_pod, one) for one in world.pods.values()]
    items += [(put_group, one) for one in world.groups.values()]
    world.random.shuffle(items)
    for enter, one in items:
        enter(fresh, one)
    assert found == seen(fresh)
    assert found == seen(fresh), "a second snapshot is the same"
    for gang in fresh.snapshot(0.0).workload_gangs.values():
        assert sorted(gang.pods, key=natural_key) == sorted(set(gang.pods), key=natural_key)
