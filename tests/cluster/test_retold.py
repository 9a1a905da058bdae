# SPDX-License-Identifier: Apache-2.0
"""A pod that is told again, changed or not: the books are as if they had seen nothing but its last state."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.ascend.tables.npu_book import npus_of
from koordpy.devices.family_registry import make_state
from koordpy.devices.gpu.gpu_book import gpu_book
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_view import gpu_view
from koordpy.pods.resource_amounts import asked_by, pod_requests, score_requests
from tests.scenarios.cluster import node

ANTI = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


def versions() -> st.SearchStrategy[dict[str, Any]]:
    """What a pod may look like from one event to the next."""
    return st.fixed_dictionaries({
        "at": st.sampled_from(["", "n1", "n1", "n1", "n2"]),
        "cpu": st.sampled_from(["1", "1", "2"]),
        "gpus": st.sampled_from([0, 2]),
        "allocated": st.sampled_from([None, ["0", "1"], ["2", "3"]]),
        "chips": st.sampled_from([None, "Ascend910-0", "Ascend910-1"]),
        "app": st.sampled_from([None, "a", "b"]),
        "quota": st.sampled_from([None, "q"]),
        "near": st.sampled_from([None, "s", "t"]),
        "group": st.sampled_from([None, "g"]),
        "gang": st.sampled_from([None, "h"]),
        "port": st.sampled_from([None, 80]),
        "claim": st.sampled_from([None, "c"]),
        "affinity": st.sampled_from([None, ANTI]),
        "ending": st.booleans(),
    })  # fmt: skip


def made(name: str, v: dict[str, Any]) -> Pod:
    requests = {"cpu": v["cpu"], **({"nvidia.com/gpu": str(v["gpus"])} if v["gpus"] else {})}
    labels = {"app": v["app"], keys.QUOTA_NAME: v["quota"], keys.LABEL_POD_GROUP: v["gang"]}
    if v["group"]:
        labels |= {keys.GPU_GROUP_NAME: v["group"], keys.GPU_GROUP_REPLICA: "2"}
    gpus = msgspec.json.encode({"visibleGPUs": v["allocated"]}).decode() if v["allocated"] else None
    notes = {keys.TOPOLOGY_SELECTOR: v["near"], keys.GPU_ALLOCATION: gpus, "huawei.com/Ascend910": v["chips"]}
    container = {"name": "m", "resources": {"requests": requests}}
    if v["port"]:
        container["ports"] = [{"containerPort": v["port"], "hostPort": v["port"]}]
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": v["claim"]}}] if v["claim"] else []
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": {key: text for key, text in labels.items() if text},
        "annotations": {key: text for key, text in notes.items() if text},
    }
    if v["ending"]:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"nodeName": v["at"], "schedulerName": keys.DEFAULT_SCHEDULER_NAME, "containers": [container]}
    spec |= {"volumes": volumes, **({"affinity": v["affinity"]} if v["affinity"] else {})}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def told(snapshot: Snapshot) -> dict[str, Any]:
    """What plans read of the pods of a snapshot."""
    return {
        "used": snapshot.used[:, [0, snapshot.columns["cpu"]]].tolist(),
        "scored": snapshot.score_used.tolist(),
        "pods": dict(snapshot.pods),
        "pending": {info.key for info in snapshot.pending},
        "members": {ref: {info.key for info in members} for ref, members in snapshot.members.items()},
        "selectors": snapshot.selectors,
        "classes": snapshot.classes,
        "terms": snapshot.terms,
        "ports": snapshot.ports,
        "claims": snapshot.claim_users,
        "held": snapshot.quotas.usage,
        "waiting": snapshot.quotas.demand,
        "groups": gpu_view(snapshot).group_nodes,
        "npus": {name: set(held) for name, held in npus_of(snapshot).holdings.items()},
    }


def a_state() -> ClusterState:
    state = make_state()
    # whatever pods come first: the labels that selectors look at are known
    state.look_for(["app"])
    for name in ("n1:8", "n2:8"):
        state.upsert(node(name))
    return state


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), versions()), min_size=1, max_size=8), st.booleans())
def test_only_the_last_state_of_a_pod_counts(history: list[tuple[str, dict[str, Any]]], assumed: bool) -> None:
    state, last = a_state(), dict[str, dict[str, Any]]()
    for name, version in history:
        pod = made(name, version)
        if assumed and (info := state.pod(pod.key)) is not None and info.pending:
            state.assume(pod.key, "n1", devices={GPUS: (4, 5)} if info.ask(GPUS) is not None else {})
        elif state.assumed_node(pod.key):
            state.forget(pod.key)
        state.upsert(pod)
        last[name] = version
    for name in last:
        state.forget(f"default/{name}")
    fresh = a_state()
    for name, version in last.items():
        fresh.upsert(made(name, version))
    assert told(state.snapshot(0.0)) == told(fresh.snapshot(0.0))
    assert {n: gpu_book(state).minors_held(n) for n in ("n1", "n2")} == {
        n: gpu_book(fresh).minors_held(n) for n in ("n1", "n2")
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(versions(), min_size=2, max_size=6))
def test_what_siblings_ask_for_is_told_once_and_right(shapes: list[dict[str, Any]]) -> None:
    templates = [made("t", version) for version in shapes]
    for i in (*range(len(templates)), *range(len(templates))):
        pod = templates[i]
        assert asked_by(pod) == (pod_requests(pod), score_requests(pod))
        sibling = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name="s"))
        assert asked_by(sibling)[0] is asked_by(pod)[0]
        resized = msgspec.structs.replace(pod.spec, overhead={"cpu": "1"})
        bigger = msgspec.structs.replace(pod, spec=resized)
        assert asked_by(bigger)[0]["cpu"] == asked_by(pod)[0]["cpu"] + 1000
