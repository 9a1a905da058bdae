# SPDX-License-Identifier: Apache-2.0
"""Pods with volumes, live: what a plan chose is written and waited for before any Binding."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koordpy.api.objects import ObjectMeta
from koordpy.api.storage_objects import BOUND_BY_CONTROLLER, SELECTED_NODE, PersistentVolumeClaim
from koordpy.engine.binding.volume_writes import node_selection
from tests.engine.live import Live, gang, in_virtual_time, live, small, until
from tests.engine.storage import HOST, MADE, Storage, hold_writes, mounting, pod_with


@asynccontextmanager
async def disks(*nodes: str) -> AsyncIterator[tuple[Live, Storage]]:
    """A cluster of nodes with host names, and the two classes."""
    async with live([small(name, labels={HOST: name}) for name in nodes]) as cluster:
        storage = Storage(cluster.server)
        storage.classes()
        yield cluster, storage


@in_virtual_time
async def test_a_volume_that_is_there_is_taken_before_the_pod_is_bound() -> None:
    async with disks("n1", "n2") as (cluster, storage), cluster.running() as scheduler:
        storage.volume("v2", "n2")
        storage.claim("data")
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.holder("v2") == "data")
        volume = storage.get_volume("v2")
        assert volume["spec"]["claimRef"]["uid"] == storage.get_claim("data")["metadata"]["uid"]
        assert volume["metadata"]["annotations"][BOUND_BY_CONTROLLER] == "yes"
        await asyncio.sleep(0.1)
        assert cluster.places() == {}
        assert scheduler.state.assumed_node("default/p") == "n2"
        storage.step()
        await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": "n2"}


@in_virtual_time
async def test_a_volume_is_made_for_the_node_that_the_pod_will_be_on() -> None:
    async with disks("n1") as (cluster, storage), cluster.running():
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.selected("data") == "n1")
        await asyncio.sleep(0.1)
        assert cluster.places() == {}
        storage.step()
        await until(lambda: cluster.bound("p"))
        assert storage.made == ["for-data"]


async def test_pods_that_wait_for_volumes_keep_no_other_from_being_bound() -> None:
    async with disks("n1") as (cluster, storage), cluster.running(max_binds_in_flight=1) as scheduler:
        for i in range(3):
            storage.claim(f"data-{i}", MADE)
            cluster.create(pod_with(f"p-{i}", f"data-{i}", cpu="0"))
        await until(lambda: all(storage.selected(f"data-{i}") for i in range(3)))
        cluster.pod("plain")
        await until(lambda: cluster.bound("plain"))
        assert cluster.places() == {"plain": "n1"}
        assert len(scheduler.committer.waiting_for_claims) == 3
        async with storage.controller():
            await until(lambda: cluster.bound("p-0", "p-1", "p-2"))


async def test_volumes_promised_to_one_pod_are_not_given_to_the_next() -> None:
    async with disks("n1") as (cluster, storage), cluster.running():
        storage.volume("v1", "n1")
        for name in ("first", "second"):
            storage.claim(name)
        cluster.create(pod_with("p", "first"))
        await until(lambda: storage.holder("v1") == "first")
        cluster.create(pod_with("q", "second"))
        await until(lambda: "didn't find available persistent volumes" in cluster.condition("q").get("message", ""))
        async with storage.controller():
            await until(lambda: cluster.bound("p"))
            assert storage.holder("v1") == "first"
            storage.volume("v2", "n1")
            await until(lambda: cluster.bound("q"))


async def test_a_volume_is_kept_while_its_write_is_under_way() -> None:
    async with disks("n1") as (cluster, storage), cluster.running() as scheduler:
        storage.volume("v1", "n1")
        for name in ("first", "second"):
            storage.claim(name)
        write = hold_writes(scheduler.claims)
        cluster.create(pod_with("p", "first"))
        await until(lambda: len(scheduler.committer.waiting_for_claims) == 1)
        cluster.create(pod_with("q", "second"))
        await until(lambda: "didn't find available persistent volumes" in cluster.condition("q").get("message", ""))
        assert storage.holder("v1") == ""
        write.set()
        await until(lambda: storage.holder("v1") == "first")


async def test_a_write_whose_reply_is_lost_is_found_by_the_next_plan() -> None:
    async with disks("n1") as (cluster, storage), cluster.running() as scheduler, storage.controller():
        storage.volume("v1", "n1", size="6Gi")
        storage.volume("v2", "n1", size="8Gi")
        storage.claim("data")
        cluster.server.faults.fail("drop", method="PATCH", path="*/persistentvolumes/*", times=1, after=True)
        cluster.create(pod_with("p", "data"))
        await until(lambda: cluster.bound("p"))
        assert (storage.holder("v1"), storage.holder("v2")) == ("data", "")
        assert not scheduler.committer.waiting_for_claims


async def test_a_claim_bound_to_what_the_node_does_not_reach_sends_the_pod_after_it() -> None:
    async with disks("n1", "n2") as (cluster, storage), cluster.running():
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.selected("data"))
        other = {"n1": "n2", "n2": "n1"}[storage.selected("data")]
        storage.volume("elsewhere", other, class_name=MADE)
        storage.give("elsewhere", "data")
        await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": other}


@in_virtual_time
async def test_a_claim_that_is_bound_to_a_volume_nobody_has_heard_of_yet_is_waited_for() -> None:
    """Claims and volumes come by different watches; the volume may be one that the node does not reach."""
    async with disks("n1") as (cluster, storage), cluster.running() as scheduler:
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.selected("data") == "n1")
        cluster.server.faults.fail("timeout", method="WATCH", path="/api/v1/persistentvolumes")
        assert cluster.server.faults.drop_watches("persistentvolumes") == 1
        storage.step()
        await until(lambda: cluster.is_known_to(scheduler, "persistentvolumeclaims"))
        await asyncio.sleep(0.2)
        assert cluster.places() == {} and len(scheduler.committer.waiting_for_claims) == 1
        cluster.server.faults.clear()
        await until(lambda: cluster.bound("p"))


async def test_a_claim_made_anew_under_its_name_is_another() -> None:
    """The volume that was taken for the first is no more this one's."""
    async with disks("n1") as (cluster, storage), cluster.running() as scheduler:
        storage.volume("v1", "n1", size="6Gi")
        storage.volume("v2", "n1", size="8Gi")
        storage.claim("data")
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.holder("v1") == "data" and len(scheduler.committer.waiting_for_claims) == 1)
        first = storage.get_claim("data")["metadata"]["uid"]
        cluster.server.store.remove("persistentvolumeclaims", "data", "default")
        storage.claim("data")
        async with storage.controller():
            await until(lambda: cluster.bound("p"))
        assert storage.get_claim("data")["spec"]["volumeName"] == "v2"
        assert storage.get_volume("v1")["spec"]["claimRef"]["uid"] == first


async def test_a_pod_whose_claim_goes_while_it_waits_is_told_so() -> None:
    async with disks("n1") as (cluster, storage), cluster.running() as scheduler:
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.selected("data") == "n1")
        cluster.server.store.remove("persistentvolumeclaims", "data", "default")
        await until(lambda: 'persistentvolumeclaim "data" not found' in cluster.condition("p").get("message", ""))
        assert cluster.places() == {} and not scheduler.committer.waiting_for_claims


async def test_a_claim_or_class_that_comes_wakes_the_pod_that_waits_for_it() -> None:
    async with disks("n1") as (cluster, storage), cluster.running(), storage.controller():
        cluster.create(pod_with("p", "data"))
        await until(lambda: 'persistentvolumeclaim "data" not found' in cluster.condition("p").get("message", ""))
        storage.claim("data", "later")
        await until(lambda: "unbound immediate" in cluster.condition("p").get("message", ""))
        cluster.server.store.create(
            "storageclasses.storage.k8s.io",
            {
                "metadata": {"name": "later"},
                "provisioner": "disks.example.com",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        )
        await until(lambda: cluster.bound("p"))


async def test_a_pod_whose_volume_is_not_made_in_time_is_told_and_tried_again() -> None:
    async with disks("n1") as (cluster, storage), cluster.running(volume_bind_seconds=0.2):
        storage.provisioning = False
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data"))
        await until(lambda: "timed out waiting for claim default/data" in cluster.condition("p").get("message", ""))
        assert cluster.condition("p")["reason"] == "SchedulerError"
        await until(lambda: cluster.planner.tried("default/p") > 1)
        assert storage.selected("data") == "n1"
        storage.provisioning = True
        async with storage.controller():
            await until(lambda: cluster.bound("p"))


async def test_room_and_volumes_of_a_pod_that_gave_up_are_free_again() -> None:
    async with disks("n1") as (cluster, storage), cluster.running():
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data", cpu="4"))
        await until(lambda: storage.selected("data") == "n1")
        cluster.pod("q", cpu="4")
        await until(lambda: cluster.condition("q"))
        cluster.delete("p")
        await until(lambda: cluster.bound("q"))


async def test_a_node_selection_that_is_taken_away_lets_the_pod_go_elsewhere() -> None:
    async with disks("n1", "n2") as (cluster, storage), cluster.running() as scheduler:
        storage.claim("data", MADE)
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.selected("data"))
        first = storage.selected("data")
        other = {"n1": "n2", "n2": "n1"}[first]
        cluster.server.store.update("nodes", first, lambda obj: {**obj, "spec": {"unschedulable": True}})
        await until(lambda: cluster.is_known_to(scheduler, "nodes"))
        assert cluster.places() == {}
        storage.unselect("data")
        await until(lambda: storage.selected("data") == other)
        async with storage.controller():
            await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": other}


def test_the_node_of_a_volume_is_written_once_however_often_its_claim_is_looked_at() -> None:
    asking = PersistentVolumeClaim(metadata=ObjectMeta(name="data", namespace="default", resource_version="7"))
    notes = {"annotations": {SELECTED_NODE: "n1"}}
    assert node_selection(asking, "n1") == {"metadata": {"resourceVersion": "7", **notes}}
    asked = PersistentVolumeClaim(metadata=ObjectMeta(name="data", namespace="default", **notes))
    assert node_selection(asked, "n1") is None
    assert node_selection(asked, "n2") is not None


async def test_a_volume_that_another_took_first_voids_the_plan_and_another_is_found() -> None:
    async with disks("n1") as (cluster, storage):
        storage.volume("v1", "n1", size="6Gi")
        storage.volume("v2", "n1", size="8Gi")
        storage.claim("data")
        async with cluster.running() as scheduler:
            patch = scheduler.claims._client.patch
            raced: list[str] = []

            async def race(path: str, body: Any, **options: Any) -> Any:
                if path.endswith("/v1") and not raced:
                    raced.append(path)
                    storage.take("v1", "theirs")
                return await patch(path, body, **options)

            scheduler.claims._client.patch = race  # type: ignore[method-assign]
            async with storage.controller():
                cluster.create(pod_with("p", "data"))
                await until(lambda: cluster.bound("p"))
            assert raced
            assert storage.holder("v1") == "theirs"
            assert storage.get_claim("data")["spec"]["volumeName"] == "v2"
            assert b'koordpy_conflicts_total{kind="claim"} 1.0' in scheduler.metrics.render()


@pytest.mark.parametrize("fate", ["taken", "freed", "deleted"])
async def test_a_volume_lost_while_its_claim_waits_voids_the_plan_and_another_is_found(fate: str) -> None:
    async with disks("n1") as (cluster, storage), cluster.running() as scheduler:
        storage.volume("v1", "n1", size="6Gi")
        storage.volume("v2", "n1", size="8Gi")
        storage.claim("data")
        cluster.create(pod_with("p", "data"))
        await until(lambda: storage.holder("v1") == "data" and len(scheduler.committer.waiting_for_claims) == 1)
        if fate == "deleted":
            cluster.server.store.remove("persistentvolumes", "v1")
        else:
            storage.take("v1", "theirs" if fate == "taken" else None)
        async with storage.controller():
            await until(lambda: cluster.bound("p"))
        found = storage.get_claim("data")["spec"]["volumeName"]
        assert found == ("v1" if fate == "freed" else "v2") and storage.holder(found) == "data"
        conflicts = b'koordpy_conflicts_total{kind="claim"} 1.0' in scheduler.metrics.render()
        assert conflicts == (fate != "deleted")


@in_virtual_time
async def test_of_a_gang_no_member_is_bound_before_every_claim_is() -> None:
    async with disks("n1", "n2") as (cluster, storage), cluster.running():
        group, *members = gang("g", 2, gpus=4)
        storage.claim("a", MADE)
        storage.volume("v", "n1", "n2")
        storage.claim("b")
        cluster.create(group, mounting(members[0], "a"), mounting(members[1], "b"))
        await until(lambda: storage.selected("a") and storage.holder("v") == "b")
        storage.provisioning = False
        storage.step()
        assert storage.get_claim("b")["status"]["phase"] == "Bound"
        await asyncio.sleep(0.2)
        assert cluster.places() == {}
        storage.provisioning = True
        storage.step()
        await until(lambda: cluster.bound("g-0", "g-1"))
        assert cluster.places()["g-0"] == storage.selected("a")


async def test_a_gang_whose_volume_another_took_is_planned_again_as_a_whole() -> None:
    async with disks("n1") as (cluster, storage):
        group, *members = gang("g", 2, gpus=1)
        storage.volume("v1", "n1", size="6Gi")
        storage.claim("a")
        cluster.server.faults.fail(409, method="PATCH", path="*/persistentvolumes/v1", times=1)
        async with cluster.running() as scheduler:
            cluster.create(group, mounting(members[0], "a"), members[1])
            await until(lambda: cluster.condition("g-0").get("reason") == "SchedulerError")
            assert cluster.places() == {}
            async with storage.controller():
                await until(lambda: cluster.bound("g-0", "g-1"))
            assert not scheduler.committer.waiting_for_claims


async def test_gangs_get_volumes_of_a_class_that_has_made_some_before() -> None:
    async with disks("n1") as (cluster, storage), cluster.running(), storage.controller():
        for name in ("g", "h"):
            group, *members = gang(name, 2, gpus=1)
            for member in members:
                storage.claim(f"of-{member['metadata']['name']}", MADE)
                mounting(member, f"of-{member['metadata']['name']}")
            cluster.create(group, *members)
            await until(lambda name=name: cluster.bound(f"{name}-0", f"{name}-1"))  # type: ignore[misc]
        assert len(storage.made) == 4


async def test_a_process_that_starts_while_volumes_are_made_goes_on_from_there() -> None:
    async with disks("n1", "n2") as (cluster, storage):
        storage.volume("v", "n1", "n2")
        storage.claim("there")
        storage.claim("made", MADE)
        async with cluster.running():
            cluster.create(pod_with("p", "there", "made"))
            await until(lambda: storage.selected("made") and storage.holder("v") == "there")
        first = storage.selected("made")
        assert cluster.places() == {}
        async with cluster.running(), storage.controller():
            await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": first}
        assert storage.made == ["for-made"]


@in_virtual_time
async def test_a_claim_of_two_pods_is_bound_once_and_both_follow_it() -> None:
    async with disks("n1", "n2") as (cluster, storage), cluster.running():
        storage.claim("shared", MADE)
        cluster.create(pod_with("p", "shared"))
        await until(lambda: storage.selected("shared"))
        cluster.create(pod_with("q", "shared"))
        await until(lambda: cluster.planner.tried("default/q") == 1)
        await asyncio.sleep(0.1)
        assert cluster.places() == {}
        async with storage.controller():
            await until(lambda: cluster.bound("p", "q"))
        assert set(cluster.places().values()) == {storage.selected("shared")}


async def test_stopping_does_not_wait_for_volumes() -> None:
    async with disks("n1") as (cluster, storage):
        async with cluster.running(drain_seconds=60.0):
            storage.claim("data", MADE)
            cluster.create(pod_with("p", "data"))
            await until(lambda: storage.selected("data"))
        # leaving the block waits for the process's end, 10 s at most
        assert cluster.places() == {}
