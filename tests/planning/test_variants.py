# SPDX-License-Identifier: Apache-2.0
"""A changed copy of a snapshot is what a cluster with that change shows: compared field by field on random clusters."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from koordpy.api.objects import OwnerReference, Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import (
    VariantError,
    new_node,
    read_again,
    with_daemons,
    with_nodes,
    with_pods,
    without_pods,
)
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.ascend.tables.npu_book import npus_of
from koordpy.devices.gpu.gpu_view import GpuView, gpu_view
from koordpy.offline.offline_options import prepare
from koordpy.pods.daemon_pods import copied_daemon
from tests.cli.random_manifests import cluster, stamped

SEEDS = range(12)
MADE_ANEW = {"static_version", "capacity_version", "memo", "tree", "families", "readers", "warnings"}
"""Versions need only differ, the tree is compared by its paths and GPUs by holders."""


class Arguments:
    """What `prepare` reads of a command line."""

    def __init__(self, path: Path) -> None:
        self.paths, self.now, self.config = [str(path)], "2026-01-01T00:00:00Z", None
        self.scheduler_names: list[str] = []
        self.started: list[str] = []


def state_of(seed: int, folder: Path) -> ClusterState:
    path = folder / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": stamped(cluster(seed)).documents}))
    return prepare(Arguments(path)).state  # type: ignore[arg-type]


def holders(gpus: GpuView) -> dict[str, Any]:
    return {name: dict(known.holders) for name, known in gpus.nodes.items()}


def assert_alike(made: Snapshot, shown: Snapshot) -> None:
    for one in fields(Snapshot):
        if one.name in MADE_ANEW:
            continue
        a, b = getattr(made, one.name), getattr(shown, one.name)
        if isinstance(a, np.ndarray):
            assert (a == b).all(), one.name
        elif isinstance(a, Mapping):
            assert dict(a) == dict(b), one.name
        elif one.name == "storage" or one.name == "devices" or one.name == "owners":
            continue  # handles on books that no change here touches
        else:
            assert a == b, one.name
    assert holders(gpu_view(made)) == holders(gpu_view(shown))
    assert dict(gpu_view(made).group_nodes) == dict(gpu_view(shown).group_nodes)
    assert npus_of(made) == npus_of(shown)
    levels = range(made.tree.depth + 1)
    assert [made.tree.domain_of[n].tolist() for n in levels] == [shown.tree.domain_of[n].tolist() for n in levels]
    assert [level.names for level in made.tree.levels] == [level.names for level in shown.tree.levels]


@pytest.mark.parametrize("seed", SEEDS)
def test_pods_that_are_gone(seed: int, tmp_path: Path) -> None:
    state = state_of(seed, tmp_path)
    before = state.snapshot(0)
    gone = [pod for i, pod in enumerate(before.pods.values()) if i % 3 == seed % 3]
    made = without_pods(before, gone)
    for pod in gone:
        state.delete(Pod, pod.key)
    after = state.snapshot(0)
    left = {ref: past for ref, past in after.pasts.items() if ref in made.pasts}
    assert_alike(made, replace(after, pasts=left or made.pasts, linkers=made.linkers))


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_are_new_or_other(seed: int, tmp_path: Path) -> None:
    state = state_of(seed, tmp_path)
    before = state.snapshot(0)
    template, other = before.nodes[seed % len(before.nodes)], before.nodes[0]
    more = new_node(template, "more-1")
    spec = structs.replace(other.node.spec, unschedulable=not other.node.spec.unschedulable)
    meta = structs.replace(other.node.metadata, labels={**other.labels, "block": "b9"})
    changed = structs.replace(other.node, spec=spec, metadata=meta)
    state.upsert(more.node)
    state.upsert(changed)
    after = state.snapshot(0)
    infos = [after.nodes[after.index[name]] for name in ("more-1", other.name)]
    made = with_nodes(before, infos, {"more-1": template.name})
    assert made.static_version != before.static_version
    same = {name: known for name, known in gpu_view(made).nodes.items() if name != "more-1"}
    assert_alike(replace(made, families={**made.families, "gpus": replace(gpu_view(made), nodes=same)}), after)
    assert ("more-1" in gpu_view(made).nodes) == (template.name in gpu_view(before).nodes)


@pytest.mark.parametrize("seed", SEEDS)
def test_daemon_pods_of_nodes(seed: int, tmp_path: Path) -> None:
    """Copies of running pods without devices, as pods of a DaemonSet, on another node each."""
    state = state_of(seed, tmp_path)
    before = state.snapshot(0)
    owner = OwnerReference(kind="DaemonSet", name="agent", uid="agent", api_version="apps/v1", controller=True)
    some = [pod for pod in before.pods.values() if pod.bound and not pod.extended and not pod.asks and not pod.gang]
    for number, pod in enumerate(some):
        name = before.nodes[(seed + number) % len(before.nodes)].name
        copied = copied_daemon(pod.pod, pod.node, name)
        meta = structs.replace(copied.metadata, owner_references=[owner])
        state.upsert(structs.replace(copied, metadata=meta))
    after = state.snapshot(0)
    made = with_daemons(before, [pod for pod in after.pods.values() if pod.key not in before.pods])
    assert (made.staying_version != before.staying_version) == bool(some)
    assert_alike(replace(made, staying_version=after.staying_version), after)


def test_a_daemon_pod_with_devices_is_not_copied(tmp_path: Path) -> None:
    snapshots = (state_of(seed, tmp_path).snapshot(0) for seed in SEEDS)
    snapshot = next(one for one in snapshots if any(pod.bound and pod.asks for pod in one.pods.values()))
    with pytest.raises(VariantError):
        with_daemons(snapshot, [next(pod for pod in snapshot.pods.values() if pod.bound and pod.asks)])


@pytest.mark.parametrize("seed", SEEDS)
def test_pending_pods_that_ask_otherwise(seed: int, tmp_path: Path) -> None:
    state = state_of(seed, tmp_path)
    before = state.snapshot(0)
    new = []
    for pod in before.pending[::2]:
        spec = structs.replace(pod.pod.spec, node_selector={"zone": "b"}, affinity=None, priority=7)
        changed = structs.replace(pod.pod, spec=spec)
        new.append(read_again(pod, changed, before, KoordpyConfiguration()))
        state.upsert(changed)
    made, after = with_pods(before, new), state.snapshot(0)
    assert dict(made.pods) == dict(after.pods)
    assert {pod.key for pod in made.pending} == {pod.key for pod in after.pending}
    found, expected = ({ref: {pod.key for pod in pods} for ref, pods in one.members.items()} for one in (made, after))
    assert found == expected
    assert dict(made.quotas.demand) == dict(after.quotas.demand)


def test_a_running_pod_is_not_asked_otherwise(tmp_path: Path) -> None:
    snapshot = state_of(0, tmp_path).snapshot(0)
    running = next(pod for pod in snapshot.pods.values() if pod.bound)
    with pytest.raises(VariantError):
        with_pods(snapshot, [running])
