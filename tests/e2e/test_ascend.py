# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs on a real API server, with the rights that the chart gives: SuperPoDs, switches, reports of chips.

What is bound is compared with what `koordpy simulate` says of a dump of the same objects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.dumped import Json, dump, offline, planned, said
from tests.e2e.installed import Install, Installed
from tests.e2e.process import Process, eventually
from tests.e2e.test_chart_rights import EVERYONE, VERBS, served
from tests.e2e.test_gangs import by_name
from tests.e2e.test_scheduler import GROUPS

OURS = keys.DEFAULT_SCHEDULER_NAME
CHIP = keys.NPU_RESOURCES[0]
REPORTS = "/api/v1/namespaces/kube-system/configmaps"
LARGE = {keys.TOR_AFFINITY: "large-model-schema"}
SECOND = {"ascend": {"nslbVersion": "2.0"}}
LIVE_ONLY = {keys.BOUND_EPOCH, keys.BOUND_LEASE, keys.PREDICATE_TIME}


@pytest.fixture
async def reports(api: Client) -> AsyncIterator[None]:
    """Reports and tables that a test made are gone afterwards."""
    yield
    for one in await api.items(REPORTS):
        name = one["metadata"]["name"]
        if name == keys.SWITCH_TABLE or name.startswith(keys.DEVICE_INFO_PREFIX):
            await api.delete(f"{REPORTS}/{name}")


def ids(*chips: int) -> str:
    return ",".join(f"Ascend910-{k}" for k in chips)


async def make_servers(
    api: Client, names: Sequence[str], *, chips: int, product: str, labels: Mapping[str, Json] | None = None
) -> None:
    """Nodes of one product; labels: more of them, by node."""
    room = {"cpu": "96", "memory": "1024Gi", "pods": "110", CHIP: str(chips)}
    own = [{keys.ACCELERATOR_TYPE: product, **(labels or {}).get(name, {})} for name in names]
    await api.make_nodes(len(names), allocatable=room, name=names.__getitem__, labels=own.__getitem__)


def worker(name: str, chips: int, *, job: str = "", scheduler: str = OURS, labels: Json | None = None) -> Json:
    own = {**(labels or {}), **({keys.LABEL_POD_GROUP: job} if job else {})}
    return pod_manifest(name, scheduler=scheduler, requests={"cpu": "1", CHIP: str(chips)}, labels=own)


async def make_job(
    api: Client, name: str, size: int, chips: int, *, annotations: Json | None = None, labels: Json | None = None
) -> None:
    """A PodGroup, which carries the keys of the job, and its pods NAME-0, NAME-1, ..."""
    meta = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
    await api.create(GROUPS, {**group, "spec": {"minMember": size}})
    for i in range(size):
        await api.create(pods_path(), worker(f"{name}-{i}", chips, job=name))


def run(installed: Installed, controlplane: ControlPlane, folder: Path) -> Process:
    return installed.run(controlplane.kubeconfig("npus", token=installed.token), folder)


async def bound(api: Client, process: Process, *names: str) -> dict[str, Json]:
    """Pods by name, once those are on nodes."""

    async def there() -> dict[str, Json]:
        pods = await by_name(api)
        return pods if all(pods.get(name, {}).get("spec", {}).get("nodeName") for name in names) else {}

    return await eventually(there, what=f"{', '.join(names)} bound", processes=[process])


async def told(api: Client, process: Process, name: str, text: str, *, reason: str = "Unschedulable") -> None:
    async def has_been() -> bool:
        found = condition((await by_name(api))[name], "PodScheduled") or {}
        return found.get("reason") == reason and text in found.get("message", "")

    await eventually(has_been, what=f"{name} told: {text}", processes=[process])


def noted(pod: Json, *names: str) -> tuple[str, ...]:
    return tuple(pod["metadata"]["annotations"].get(name, "") for name in names)


async def test_a_superpod_job_is_ranked_and_a_lost_rank_comes_back_into_its_block(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path
) -> None:
    """Blocks of two nodes: any way eats one reserve, and one SuperPoD is fewer than two."""
    installed = await install()
    names = [f"s{pod}-{i}" for pod, size in ((0, 3), (1, 5)) for i in range(size)]
    places = {name: {keys.SUPER_POD_ID: name[1]} for name in names}
    await make_servers(api, names, chips=16, product="module-a3-16-super-pod", labels=places)
    await make_job(api, "job", 4, 16, annotations={keys.SP_BLOCK: "32"})
    expected = offline("simulate", await dump(api), tmp_path)
    with run(installed, controlplane, tmp_path) as process:
        pods = await bound(api, process, *(f"job-{i}" for i in range(4)))
        assert said(pods, expected) == planned(expected)
        assert [pods[f"job-{i}"]["spec"]["nodeName"] for i in range(4)] == ["s1-0", "s1-1", "s1-2", "s1-3"]
        place = (keys.SUPER_POD_RANK, keys.BOUND_SUPER_POD, keys.RANK_INDEX, keys.DISTRIBUTED_JOB)
        assert [noted(pods[f"job-{i}"], *place) for i in range(4)] == [
            ("0", "1", "0", "true"),
            ("0", "1", "1", "true"),
            ("1", "1", "2", "true"),
            ("1", "1", "3", "true"),
        ]
        assert {noted(pods[f"job-{i}"], CHIP) for i in range(4)} == {(ids(*range(16)),)}
        stamps = [noted(pods[f"job-{i}"], keys.PREDICATE_TIME)[0] for i in range(4)]
        assert all(stamp.isdigit() and len(stamp) == 19 for stamp in stamps), "unix time in nanoseconds"
        for _, notes in planned(expected).values():
            assert not LIVE_ONLY & set(notes)

        # its node goes to somebody else before it is there again
        await api.delete(f"{pods_path()}/job-2")
        other = await api.create(pods_path(), worker("other", 16, scheduler="volcano"))
        await api.bind(other, "s1-2", annotations={CHIP: ids(*range(16))})
        before = (await by_name(api))["job-3"]
        await api.create(pods_path(), worker("job-2", 16, job="job"))
        pods = await bound(api, process, "job-2")
        assert pods["job-2"]["spec"]["nodeName"] == "s1-4"
        assert noted(pods["job-2"], *place) == ("1", "1", "2", "true")
        assert pods["job-3"]["metadata"]["annotations"] == before["metadata"]["annotations"], "the others stay"

        # no room in its SuperPoD: it waits, whatever is free elsewhere
        await api.delete(f"{pods_path()}/job-0")
        other = await api.create(pods_path(), worker("another", 16, scheduler="volcano"))
        await api.bind(other, "s1-0", annotations={CHIP: ids(*range(16))})
        await api.create(pods_path(), worker("job-0", 16, job="job"))
        await told(api, process, "job-0", "SuperPoD 1")
        await api.delete(f"{pods_path()}/other")
        pods = await bound(api, process, "job-0")
        assert (pods["job-0"]["spec"]["nodeName"], *noted(pods["job-0"], *place)) == ("s1-2", "0", "1", "0", "true")
        assert await asyncio.to_thread(process.stop) == 0


async def test_a_block_without_room_moves_as_a_whole_where_its_job_asks_for_it(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path
) -> None:
    """Rank 2 is lost and SuperPoD 1 is full: rank 3 is evicted, and both go to SuperPoD 0; ranks 0 and 1 stay."""
    installed = await install()
    names = [f"s{pod}-{i}" for pod, size in ((0, 3), (1, 4)) for i in range(size)]
    places = {name: {keys.SUPER_POD_ID: name[1]} for name in names}
    await make_servers(api, names, chips=16, product="module-a3-16-super-pod", labels=places)
    asks = {keys.FAULT_SCHEDULING: "grace"}
    await make_job(api, "job", 4, 16, annotations={keys.SP_BLOCK: "32"}, labels=asks)
    place = (keys.SUPER_POD_RANK, keys.BOUND_SUPER_POD, keys.RANK_INDEX)
    with run(installed, controlplane, tmp_path) as process:
        pods = await bound(api, process, *(f"job-{i}" for i in range(4)))
        assert [pods[f"job-{i}"]["spec"]["nodeName"] for i in range(4)] == [f"s1-{i}" for i in range(4)]
        before = {name: pods[name]["metadata"]["uid"] for name in ("job-0", "job-1", "job-3")}
        await api.delete(f"{pods_path()}/job-2")
        other = await api.create(pods_path(), worker("other", 16, scheduler="volcano"))
        await api.bind(other, "s1-2", annotations={CHIP: ids(*range(16))})
        await api.create(pods_path(), worker("job-2", 16, job="job"))

        async def evicted() -> bool:
            found = (await by_name(api)).get("job-3")
            return found is None or found["metadata"]["uid"] != before["job-3"]

        await eventually(evicted, what="job-3 evicted", processes=[process])
        await api.create(pods_path(), worker("job-3", 16, job="job"))  # as its owner does
        pods = await bound(api, process, "job-2", "job-3")
        assert {pods[name]["spec"]["nodeName"][:2] for name in ("job-2", "job-3")} == {"s0"}
        assert [noted(pods[f"job-{i}"], *place) for i in range(4)] == [
            ("0", "1", "0"),
            ("0", "1", "1"),
            ("1", "0", "2"),
            ("1", "0", "3"),
        ]
        assert {name: pods[name]["metadata"]["uid"] for name in ("job-0", "job-1")} == {
            name: before[name] for name in ("job-0", "job-1")
        }, "the other block stays"
        assert await asyncio.to_thread(process.stop) == 0


def table(leaves: Mapping[str, int], address: Mapping[str, str]) -> Json:
    """Leaf a has its servers a0, a1, ... at slices 0, 1, ...; they are named by their addresses."""
    listed = [
        {
            "tor_id": number,
            "tor_ip": f"10.9.0.{number + 1}",
            "server": [
                {"server_ip": address[f"{leaf}{i}"], "npu_count": 8, "slice_id": i} for i in range(leaves[leaf])
            ],
        }
        for number, leaf in enumerate(leaves)
    ]
    text = json.dumps({"version": "1.0", "tor_count": 4, "server_list": listed})
    meta = {"name": keys.SWITCH_TABLE, "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {keys.SWITCH_TABLE_KEY: text}}


async def test_switch_jobs_wait_for_the_table_and_a_restart_finds_the_same_leaves(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path, reports: None
) -> None:
    installed = await install({"config": SECOND})
    leaves = dict.fromkeys("abcd", 4)
    names = [f"{leaf}{i}" for leaf, size in leaves.items() for i in range(size)]
    await make_servers(api, names, chips=8, product="module-910b-8")
    address = {name: f"10.1.0.{i + 1}" for i, name in enumerate(names)}
    for name, where in address.items():
        here = {"status": {"addresses": [{"type": "InternalIP", "address": where}]}}
        await api.patch(f"/api/v1/nodes/{name}/status", here)
    await make_job(api, "first", 9, 8, labels=LARGE)
    marks = (keys.SHARED_TOR, keys.TOR_HEALTHY, keys.SHARED_TOR_IP, keys.RANK_INDEX)
    with run(installed, controlplane, tmp_path) as process:
        lacking = "JobValidateFailed: tor-affinity needs ConfigMap kube-system/basic-tor-node-cm"
        for i in (0, 8):
            await told(api, process, f"first-{i}", lacking, reason="JobValidateFailed")
        await api.create(REPORTS, table(leaves, address))
        pods = await bound(api, process, *(f"first-{i}" for i in range(9)))
        assert [pods[f"first-{i}"]["spec"]["nodeName"] for i in range(9)] == names[:9]
        assert [noted(pods[f"first-{i}"], *marks) for i in range(9)] == [
            *(("2", "0", "", str(i)) for i in range(8)),
            ("1", "0", "10.9.0.3", "8"),
        ]
        assert await asyncio.to_thread(process.stop) == 0
    # leaf c is known as shared by what the pods there say, and by nothing else
    await make_job(api, "second", 6, 8, labels=LARGE)
    expected = offline("simulate", await dump(api), tmp_path, config=SECOND)
    with run(installed, controlplane, tmp_path) as process:
        pods = await bound(api, process, *(f"second-{i}" for i in range(6)))
        assert said(pods, expected) == planned(expected)
        assert [pods[f"second-{i}"]["spec"]["nodeName"] for i in range(6)] == ["d0", "d1", "d2", "d3", "c1", "c2"]
        assert [noted(pods[f"second-{i}"], *marks) for i in (0, 5)] == [
            ("2", "0", "", "0"),
            ("1", "0", "10.9.0.3", "5"),
        ]
        assert await asyncio.to_thread(process.stop) == 0


def report(node: str, chips: str, **more: str) -> Json:
    """What the device plugin says; unhealthy=, unlinked=."""
    names = {"unhealthy": f"{CHIP}-Unhealthy", "unlinked": f"{CHIP}-NetworkUnhealthy"}
    listed = {CHIP: chips, **{names[key]: text for key, text in more.items()}}
    text = json.dumps({"DeviceInfo": {"DeviceList": listed}, "UpdateTime": 1, "CheckCode": "0"})
    meta = {"name": f"{keys.DEVICE_INFO_PREFIX}{node}", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {keys.DEVICE_INFO_KEY: text}}


async def test_the_device_plugins_report_changes_the_free_chips(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path, reports: None
) -> None:
    installed = await install()
    await make_servers(api, ["n1"], chips=8, product="module-910b-8")
    path = f"{REPORTS}/{keys.DEVICE_INFO_PREFIX}n1"
    await api.create(REPORTS, report("n1", ids(5, 6, 7), unhealthy=ids(5)))
    await api.create(pods_path(), worker("p", 3))
    with run(installed, controlplane, tmp_path) as process:
        await told(api, process, "p", "didn't have 3 free Ascend chips in one affinity group")
        await api.patch(path, report("n1", ids(5, 6, 7), unhealthy=""))
        pods = await bound(api, process, "p")
        assert noted(pods["p"], CHIP, keys.DISTRIBUTED_JOB) == (ids(5, 6, 7), "false")

        await api.create(pods_path(), worker("q", 2))
        await told(api, process, "q", "didn't have 2 free Ascend chips in one affinity group")
        await api.patch(path, report("n1", ids(0, 1, 5, 6, 7), unlinked=ids(1)))
        pods = await bound(api, process, "q")
        assert noted(pods["q"], CHIP) == (ids(0, 1),), "one pod needs no network"

        await api.create(pods_path(), worker("r", 3))
        await told(api, process, "r", "didn't have 3 free Ascend chips in one affinity group")
        expected = offline("explain", await dump(api), tmp_path, "--pod", "default/r")
        assert [one["message"] for one in expected["nodes"][0]["reasons"]] == [
            "node(s) didn't have 3 free Ascend chips in one affinity group"
        ]
        # without a report the node's own numbers hold
        await api.delete(path)
        pods = await bound(api, process, "r")
        assert noted(pods["r"], CHIP) == (ids(2, 3, 4),)
        assert await asyncio.to_thread(process.stop) == 0


async def test_config_maps_are_read_in_kube_system_and_that_is_all(api: Client, install: Install) -> None:
    """Every resource that is served, with every verb, in kube-system; and ConfigMaps of another namespace."""
    installed = await install()
    everywhere: set[tuple[str, str, str]] = set()
    here: set[tuple[str, str, str]] = set()

    async def ask(question: tuple[str, str, str, str]) -> None:
        namespace, group, resource, verb = question
        plural, _, subresource = resource.partition("/")
        attributes = {"namespace": namespace, "group": group, "resource": plural, "subresource": subresource}
        spec = {"user": installed.account, "groups": EVERYONE, "resourceAttributes": {**attributes, "verb": verb}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        if answer["status"]["allowed"]:
            (here if namespace == "kube-system" else everywhere).add((group, resource, verb))

    resources = sorted(await served(api))
    await api.each([(n, g, r, v) for n in ("kube-system", "default") for g, r in resources for v in VERBS], ask)
    assert here - everywhere == {("", "configmaps", verb) for verb in ("get", "list", "watch")}
    assert everywhere <= here
