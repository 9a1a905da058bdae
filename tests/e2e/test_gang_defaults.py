# SPDX-License-Identifier: Apache-2.0
"""What users and administrators say, or forget to say, on a real API server: defaults of the configuration place gangs,
keys that nobody reads and gangs without a goal are told of by events, also those of a Job alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually
from tests.e2e.test_preemption import EVENTS, QUOTAS, scheduler
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES, Json, places

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
BLOCK = "example.com/block"
BLOCKS = ("b1", "b2", "b3", "b3")
"""Of the nodes n00000 to n00003: without a goal two pods go to the first two, in one block to the last."""
CONFIG = "gangs: {defaults: {gather: [{layer: blockLayer, strategy: MustGather}]}}"
NO_GOAL = "2 of 2 members bound; topology ignored: no gather goal set"
Told = set[tuple[str, str, str]]
pytestmark = pytest.mark.controllers


@pytest.fixture
async def api(api: Client) -> AsyncIterator[Client]:
    """Four nodes in three blocks, each with room for one pod."""
    await api.apply_crds(CRDS)
    await make_blocks(api)
    room = {"cpu": "1", "memory": "8Gi", "pods": "10"}
    await api.make_nodes(4, labels=lambda i: {BLOCK: BLOCKS[i]}, allocatable=room)
    yield api
    for path in (f"{JOBS}?propagationPolicy=Background", GROUPS, QUOTAS, DEVICES, TOPOLOGIES, EVENTS):
        await api.delete(path)


async def make_blocks(api: Client) -> None:
    """A topology of blocks, by the label BLOCK."""
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
    spec = {"hierarchy": [{"layerName": "blockLayer", "labelKey": BLOCK}]}
    await api.create(TOPOLOGIES, {**kind, "metadata": {"name": "default"}, "spec": spec})


async def make_gang(api: Client, name: str, notes: Json, *, minimum: int = 2, cpu: str = "1") -> None:
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
    await api.create(
        GROUPS, {**group, "metadata": {"name": name, "annotations": notes}, "spec": {"minMember": minimum}}
    )
    for i in range(2):
        labels = {keys.LABEL_POD_GROUP: name}
        manifest = pod_manifest(f"{name}-{i}", scheduler="koord-scheduler", requests={"cpu": cpu}, labels=labels)
        await api.create(pods_path(), manifest)


async def told(api: Client, reason: str) -> Told:
    """(kind, name, note) of the events with a reason."""
    events = [event for event in await api.items(EVENTS) if event["reason"] == reason]
    return {(event["regarding"]["kind"], event["regarding"]["name"], event["note"]) for event in events}


async def first(api: Client, process: Process, reason: str) -> tuple[str, str, str]:
    found: Told = await eventually(lambda: told(api, reason), what=f"the event {reason}", processes=[process])
    (one,) = found
    return one


@pytest.mark.parametrize(
    ("config", "notes", "nodes"),
    [
        ("", {}, {"n00000", "n00001"}),
        (CONFIG, {}, {"n00002", "n00003"}),
        (CONFIG, {keys.GANG_TOPOLOGY: "{}"}, {"n00000", "n00001"}),
    ],
    ids=["none", "by default", "asked for nothing"],
)
async def test_a_gang_is_gathered_as_the_configuration_says(
    api: Client, plane: ControlPlane, tmp_path: Path, config: str, notes: Json, nodes: set[str]
) -> None:
    async with scheduler(plane, tmp_path, config=config) as process:
        await make_gang(api, "g", notes)
        kind, name, note = await first(api, process, "GangScheduled")
        assert set((await places(api)).values()) == nodes
        assert (kind, name) == ("PodGroup", "g")
        if config and not notes:
            assert note == "2 of 2 members bound in blockLayer b3"
        else:
            assert note.startswith(NO_GOAL) is (not notes), note


async def test_settings_that_nobody_reads_are_told_on_their_objects(
    api: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "spec": {"max": {"cpu": "9"}}}
    device = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    spaces = {keys.QUOTA_NAMESPACES: json.dumps(["shared"])}
    odd = {"scheduling.koordinator.sh/rack": "r1"}
    await api.patch("/api/v1/nodes/n00000", {"metadata": {"labels": odd}})
    await api.create(DEVICES, {**device, "metadata": {"name": "n00000", "labels": odd}, "spec": {"devices": []}})
    async with scheduler(plane, tmp_path) as process:
        for name in ("q1", "q2"):
            await api.create(QUOTAS, {**quota, "metadata": {"name": name, "annotations": spaces, "labels": odd}})
        await make_gang(api, "typo", {keys.GANG_PREFIX + "topology": "{}"}, cpu="10m")
        await make_gang(api, "timed", {keys.MAX_RUNTIME: "4 hours"}, cpu="10m")
        await make_gang(api, "loose", {}, minimum=0, cpu="10m")
        foreign = pod_manifest("volcano", scheduler="koord-scheduler", requests={"cpu": "10m"})
        foreign["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
        await api.create(pods_path(), foreign)
        unread = "label scheduling.koordinator.sh/rack is not read by koordpy"
        misspelt = f"annotation {keys.GANG_PREFIX}topology is not read, did you mean annotation {keys.GANG_TOPOLOGY}?"
        wanted = {
            ("Node", "n00000", unread),
            ("Device", "n00000", unread),
            ("ElasticQuota", "q1", unread),
            ("ElasticQuota", "q2", unread),
            (
                "ElasticQuota",
                "q2",
                f"metadata.annotations[{keys.QUOTA_NAMESPACES}]: namespace shared is listed by ElasticQuota default/q1 "
                "already (the older one keeps it: list it once)",
            ),
            ("PodGroup", "typo", misspelt),
            ("PodGroup", "typo", f"gang default/typo: {misspelt}"),
            (
                "PodGroup",
                "timed",
                f"annotation {keys.MAX_RUNTIME} cannot be read: '4 hours' is no duration (as in 30s, 1h30m): its end is"
                " not known",
            ),
            ("PodGroup", "loose", "spec.minMember is 0: its pods start one by one"),
            (
                "Pod",
                "volcano",
                "annotation scheduling.k8s.io/group-name is Volcano's key and ignored: the pod is in no gang;"
                f" {keys.READ_GROUP}",
            ),
        }

        async def all_told() -> bool:
            return await told(api, "InvalidAnnotation") >= wanted

        await eventually(all_told, what="every warning", processes=[process])
        assert await told(api, "InvalidAnnotation") == wanted


async def test_a_job_whose_template_names_a_gang_has_the_gangs_events(
    api: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    notes = {keys.GANG_NAME: "train", keys.GANG_MIN: "2"}
    spec = pod_manifest("any", scheduler="koord-scheduler", requests={"cpu": "1"})["spec"]
    template = {"metadata": {"annotations": notes}, "spec": {**spec, "restartPolicy": "Never"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}
    for number in range(1, 4):
        await api.patch(f"/api/v1/nodes/n{number:05d}", {"spec": {"unschedulable": True}})
    async with scheduler(plane, tmp_path) as process:
        await api.create(JOBS, {**job, "spec": {"parallelism": 2, "completions": 2, "template": template}})
        kind, name, note = await first(api, process, "GangUnschedulable")
        assert (kind, name) == ("Job", "train")
        assert "gang default/train: needed 2, available in the cluster: 1" in note
        await api.patch("/api/v1/nodes/n00001", {"spec": {"unschedulable": None}})
        kind, name, note = await first(api, process, "GangScheduled")
        assert (kind, name) == ("Job", "train") and note.startswith(NO_GOAL)
        assert set((await places(api)).values()) == {"n00000", "n00001"}
