# SPDX-License-Identifier: Apache-2.0
"""Groups of scheduling.k8s.io on a real API server that serves them, by a koordpy with no more than the chart's rights.

The API server, its admission and kube-controller-manager are the real ones; pods are bound and never run.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.engine.status.upstream_status import CONDITION, conditions_of_version
from tests.e2e.chart import Helm
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.coscheduling import served
from tests.e2e.gang_api import GangApi
from tests.e2e.installed import X, installer
from tests.e2e.process import Process, always, eventually
from tests.e2e.test_scheduler import GROUPS as SIGS_GROUPS
from tests.e2e.test_scheduler import places

Json = dict[str, Any]
X_GROUPS = f"/apis/{X}/v1alpha1/namespaces/default/podgroups"
RACK = "example.com/rack"
HALF_A_NODE = {"cpu": "1", "nvidia.com/gpu": "4"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def plane(assets: Path, gangs: GangApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("upstream")
    with ControlPlane(assets, upstream_gangs=True, controller_manager=True, folder=folder) as plane:
        yield plane


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    async with plane.client() as client:
        await client.apply_crds(CRDS)
        yield client
        await client.clear()
        for path in (SIGS_GROUPS, client.gangs.workloads):
            await client.delete(path)
        groups = client.gangs.groups
        for group in await client.items(groups):
            await client.delete(f"{groups}/{group['metadata']['name']}")


@pytest.fixture
async def koordpy(api: Client, plane: ControlPlane, helm: Helm, tmp_path: Path) -> AsyncIterator[Process]:
    """koordpy as the chart installs it, not started yet."""
    namespace = await api.make_namespace(f"koordpy-{next(_numbers)}")
    async with installer(api, plane, helm, namespace) as install:
        installed = await install()
        process = installed.run(plane.kubeconfig("koordpy", token=installed.token), tmp_path)
        yield process
        process.stop()


async def group(api: Client, name: str, policy: Json, **spec: Any) -> Json:
    body = {"apiVersion": api.gangs.group_version, "kind": "PodGroup", "metadata": {"name": name}}
    return await api.create(api.gangs.groups, {**body, "spec": {"schedulingPolicy": policy, **spec}})


def gang_of(count: int) -> Json:
    return {"gang": {"minCount": count}}


async def member(api: Client, name: str, of: str, *, scheduler: str = keys.DEFAULT_SCHEDULER_NAME, **spec: Any) -> None:
    spec = {"schedulingGroup": {"podGroupName": of}, **spec}
    await api.create(pods_path(), pod_manifest(name, scheduler=scheduler, requests=HALF_A_NODE, spec=spec))


async def members(api: Client, of: str, count: int, **options: Any) -> None:
    for i in range(count):
        await member(api, f"{of}-{i}", of, **options)


async def said(api: Client, name: str) -> tuple[str, str]:
    """(status, reason) of the group's condition; if the version of the API has two names for it, both say the same."""
    found = await api.get(f"{api.gangs.groups}/{name}")
    said = [condition(found, kind) for kind in conditions_of_version(api.gangs.version)]
    contents = {(one["status"], one["reason"], one["message"]) if one else ("", "", "") for one in said}
    if ("", "", "") in contents:
        return "", ""
    assert len(contents) == 1
    ((status, reason, _),) = contents
    return status, reason


async def message(api: Client, pod: str) -> str:
    found = condition(await api.get(f"{pods_path()}/{pod}"), "PodScheduled")
    return found["message"] if found else ""


async def bound(api: Client, *names: str, by: Process) -> dict[str, str]:
    async def all_of_them() -> bool:
        return set(names) <= set(await places(api))

    await eventually(all_of_them, what=f"{', '.join(names)} bound", processes=[by])
    return await places(api)


async def test_a_gang_waits_for_its_group_and_its_members_and_is_bound_whole(api: Client, koordpy: Process) -> None:
    await api.make_nodes(2)
    koordpy.start()
    await members(api, "g", 3)

    async def missing() -> bool:
        return await message(api, "g-0") == "gang default/g: PodGroup not found"

    await eventually(missing, what="the missing group named", processes=[koordpy])
    await group(api, "g", gang_of(4))

    async def incomplete() -> bool:
        return await message(api, "g-0") == "gang default/g: waiting for members, 3 of minMember 4 exist"

    await eventually(incomplete, what="the missing member named", processes=[koordpy])
    assert await said(api, "g") == ("", ""), "not tried, nothing said"
    await member(api, "g-3", "g")
    await bound(api, "g-0", "g-1", "g-2", "g-3", by=koordpy)

    async def told() -> bool:
        return await said(api, "g") == ("True", "Scheduled")

    await eventually(told, what="the condition True", processes=[koordpy])
    await api.delete(pods_path())
    await member(api, "g-9", "g")
    await eventually(lambda: message(api, "g-9"), what="one of four waits again", processes=[koordpy])
    await always(told, what="True is final", for_s=2, processes=[koordpy])


async def test_a_gang_without_room_says_so_until_room_comes(api: Client, koordpy: Process) -> None:
    await api.make_nodes(1)
    koordpy.start()
    await group(api, "g", gang_of(4))
    await members(api, "g", 4)

    async def refused() -> bool:
        return await said(api, "g") == ("False", "Unschedulable")

    await eventually(refused, what="the condition False", processes=[koordpy])
    assert "needed 4, available in the cluster: 2" in await message(api, "g-0")
    found = condition(await api.get(f"{api.gangs.groups}/g"), CONDITION)
    assert found is not None and found["message"] == await message(api, "g-0")
    assert await places(api) == {}
    await api.make_nodes(1, name=lambda i: "more")
    await bound(api, "g-0", "g-1", "g-2", "g-3", by=koordpy)

    async def told() -> bool:
        return await said(api, "g") == ("True", "Scheduled")

    await eventually(told, what="the condition True", processes=[koordpy])


async def test_of_a_basic_group_what_fits_is_bound(api: Client, koordpy: Process) -> None:
    await api.make_nodes(1)
    koordpy.start()
    await group(api, "loose", {"basic": {}})
    await members(api, "loose", 3)

    async def two() -> bool:
        return len(await places(api)) == 2

    await eventually(two, what="two of three bound", processes=[koordpy])

    async def told() -> bool:
        return await said(api, "loose") == ("True", "Scheduled")

    await eventually(told, what="the condition True", processes=[koordpy])
    await always(two, what="the third waits", for_s=1, processes=[koordpy])


async def test_a_topology_constraint_keeps_a_gang_in_one_rack_that_has_a_name(api: Client, koordpy: Process) -> None:
    """Two nodes without the label have most room, rack a is half full, rack b holds the gang."""
    racks = ["", "", "a", "a", "b", "b"]
    await api.make_nodes(6, labels=lambda i: {RACK: racks[i]} if racks[i] else {})
    other = await api.create(pods_path(), pod_manifest("other", scheduler="other", requests=HALF_A_NODE))
    await api.bind(other, "n00002")
    koordpy.start()
    await group(api, "g", gang_of(4), schedulingConstraints={"topology": [{"key": RACK}]})
    await members(api, "g", 4)
    found = await bound(api, "g-0", "g-1", "g-2", "g-3", by=koordpy)
    assert {found[f"g-{i}"] for i in range(4)} == {"n00004", "n00005"}


async def test_the_priority_of_the_group_counts_not_that_of_its_pods(api: Client, koordpy: Process) -> None:
    """Room for one: the group of high priority goes first though its pods have less than those of the other."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in (("high", 1000), ("low", 10)):
        await api.create(classes, {"metadata": {"name": name}, "value": value})
    try:
        await api.make_nodes(1)
        for name, of_group, of_pods in (("a-low", "low", "high"), ("b-high", "high", "low")):
            made = await group(
                api, name, gang_of(2), priorityClassName=of_group, disruptionMode=api.gangs.all_or_nothing
            )
            assert made["spec"]["priority"] == {"high": 1000, "low": 10}[of_group]
            await members(api, name, 2, priorityClassName=of_pods)
        koordpy.start()
        assert set(await bound(api, "b-high-0", "b-high-1", by=koordpy)) == {"b-high-0", "b-high-1"}
    finally:
        for name in ("high", "low"):
            await api.delete(f"{classes}/{name}")


async def test_members_of_different_schedulers_are_an_error_and_none_is_bound(api: Client, koordpy: Process) -> None:
    await api.make_nodes(2)
    koordpy.start()
    await group(api, "g", gang_of(2))
    await members(api, "g", 2)
    names = await bound(api, "g-0", "g-1", by=koordpy)
    await group(api, "mixed", gang_of(2))
    await member(api, "mixed-0", "mixed")
    await member(api, "mixed-1", "mixed", scheduler="another")

    async def told() -> bool:
        return await said(api, "mixed") == ("False", "SchedulerError")

    await eventually(told, what="the condition SchedulerError", processes=[koordpy])

    async def pod_told() -> bool:
        found = condition(await api.get(f"{pods_path()}/mixed-0"), "PodScheduled") or {}
        text = "gang default/mixed: members differ in schedulerName: another, koord-scheduler"
        return (found.get("reason"), found.get("message")) == ("SchedulerError", text)

    await eventually(pod_told, what="the member told", processes=[koordpy])
    assert await places(api) == names


async def test_groups_made_for_a_workload_are_gangs_of_their_own(api: Client, koordpy: Process) -> None:
    """A Workload holds templates only: its controller makes the PodGroups, and those are what is scheduled."""
    await api.make_nodes(2)
    templates = [{"name": "workers", "schedulingPolicy": gang_of(2)}]
    body = {"apiVersion": api.gangs.group_version, "kind": "Workload", "metadata": {"name": "training"}}
    await api.create(api.gangs.workloads, {**body, "spec": {"podGroupTemplates": templates}})
    koordpy.start()
    reference = api.gangs.made_from("training", "workers")
    for name in ("workers-0", "workers-1"):
        await group(api, name, gang_of(2), **reference)
        await members(api, name, 2)
    await bound(api, "workers-0-0", "workers-0-1", "workers-1-0", "workers-1-1", by=koordpy)


async def test_three_kinds_of_groups_of_one_name_live_side_by_side(api: Client, koordpy: Process) -> None:
    """`train` of scheduling.sigs.k8s.io by label, of scheduling.k8s.io by spec and `train-x` of scheduling.x-k8s.io."""
    async with served(api, "podgroups"):
        await api.make_nodes(3)
        koordpy.start()
        by_label = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}}
        await api.create(SIGS_GROUPS, {**by_label, "spec": {"minMember": 2}})
        by_x = {"apiVersion": f"{X}/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train-x"}}
        by_x["metadata"]["annotations"] = {keys.GANG_SEAT_HOLD: "0s"}  # the place of its lost member is given away
        await api.create(X_GROUPS, {**by_x, "spec": {"minMember": 2}})
        await group(api, "train", gang_of(3))
        for i in range(2):
            for of, label in (("train", keys.LABEL_POD_GROUP), ("train-x", keys.LABEL_POD_GROUP_X)):
                labels = {label: of}
                scheduler = keys.DEFAULT_SCHEDULER_NAME
                pod = pod_manifest(f"label-{of}-{i}", scheduler=scheduler, requests=HALF_A_NODE, labels=labels)
                await api.create(pods_path(), pod)
            await member(api, f"spec-{i}", "train")
        labelled = [f"label-{of}-{i}" for of in ("train", "train-x") for i in range(2)]
        await bound(api, *labelled, by=koordpy)
        waits = "gang default/train: waiting for members, 2 of minMember 3 exist"

        async def waiting() -> bool:
            return await message(api, "spec-0") == waits

        await eventually(waiting, what="two of three wait for the third", processes=[koordpy])
        assert set(await places(api)) == set(labelled), "the namesake's members are none of theirs"

        async def labelled_told(by_x: str = "Scheduled") -> bool:
            groups = (await api.get(f"{SIGS_GROUPS}/train"), "Scheduled"), (await api.get(f"{X_GROUPS}/train-x"), by_x)
            return all((condition(one, kind) or {}).get("status") == "True" for one, kind in groups)

        await eventually(labelled_told, what="the two whole gangs told", processes=[koordpy])
        await api.delete(f"{pods_path()}/label-train-x-0")
        await member(api, "spec-2", "train")
        found = await bound(api, "spec-0", "spec-1", "spec-2", by=koordpy)
        assert max(list(found.values()).count(node) for node in set(found.values())) == 2

        async def all_told() -> bool:
            # one gang of the three has lost a member
            return await said(api, "train") == ("True", "Scheduled") and await labelled_told(by_x="Stale")

        await eventually(all_told, what="each kind's own status", processes=[koordpy])
