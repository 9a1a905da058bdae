# SPDX-License-Identifier: Apache-2.0
"""Resource claims of pods that were not bound: what was written for them is taken back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from koordpy.engine.binding.claim_releases import ASKED_AGAIN_SWEEPS, FINISHED_SECONDS, MAX_RELEASE_TRIES
from koordpy.engine.queue_entry import State
from tests.engine.card_scenes import carded, map_cards
from tests.engine.live import LONG_LEASE, Live, gang, in_virtual_time, live, node, small, until
from tests.engine.test_reservations import claim, claiming, devices, die_after_allocation, offer, status, users
from tests.faults import InjectedFault

CLAIMS = "resourceclaims.resource.k8s.io"


def finalizers(cluster: Live, name: str) -> list[str]:
    found: list[str] = cluster.server.store.get(CLAIMS, name, "default")["metadata"].get("finalizers", [])
    return found


def deleted_instead_of_bound(
    cluster: Live, scheduler: Any, name: str, then: Callable[[], object] = lambda: None
) -> None:
    """The pod goes away at the very moment of its Binding."""
    post = scheduler.binder._client.post

    async def gone(path: str, body: Any, **options: Any) -> Any:
        if path.endswith(f"/{name}/binding"):
            cluster.delete(name)
            then()
        return await post(path, body, **options)

    scheduler.binder._client.post = gone


async def test_the_claims_of_a_pod_that_is_gone_at_its_binding_are_free_again() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "first")
        claim(cluster, "second")
        deleted_instead_of_bound(cluster, scheduler, "p")
        cluster.create(claiming("p", "first"))
        await until(lambda: scheduler.releaser.released == 1)
        assert status(cluster, "first") == {}
        await until(lambda: not finalizers(cluster, "first"))
        cluster.create(claiming("q", "second"))
        await until(lambda: cluster.bound("q"))
        assert devices(cluster, "second") == {"a"}


async def test_a_claim_that_others_use_loses_the_reservation_and_keeps_its_allocation() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "shared")
        cluster.create(claiming("p", "shared"))
        await until(lambda: cluster.bound("p"))
        deleted_instead_of_bound(cluster, scheduler, "q")
        cluster.create(claiming("q", "shared"))
        await until(lambda: scheduler.releaser.released == 1)
        assert users(cluster, "shared") == {"p"} and devices(cluster, "shared") == {"a"}
        assert finalizers(cluster, "shared")


async def test_after_a_refused_binding_the_pod_is_planned_without_the_allocation_of_the_first_try() -> None:
    """The node of the first try goes away with the refusal; the claim must not tie the pod to it."""
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        cluster.server.faults.fail(403, method="POST", path="*/p/binding", times=1)
        post = scheduler.binder._client.post

        async def refuse(path: str, body: Any, **options: Any) -> Any:
            if path.endswith("/p/binding") and body["target"]["name"] == "n1":
                cluster.server.store.remove("nodes", "n1")
                cluster.nodes(small("n2"))
                offer(cluster, "n2", "b")
            return await post(path, body, **options)

        scheduler.binder._client.post = refuse  # type: ignore[method-assign]
        cluster.create(claiming("p", "data"))
        await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": "n2"}
        assert devices(cluster, "data") == {"b"} and users(cluster, "data") == {"p"}


@in_virtual_time
async def test_a_pod_that_another_scheduler_binds_first_keeps_its_claims() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        post = scheduler.binder._client.post

        async def overtake(path: str, body: Any, **options: Any) -> Any:
            if path.endswith("/p/binding"):
                cluster.bind("p", "elsewhere")
            return await post(path, body, **options)

        scheduler.binder._client.post = overtake  # type: ignore[method-assign]
        cluster.create(claiming("p", "data"))
        await until(lambda: not scheduler.committer.open and cluster.bound("p"))
        await asyncio.sleep(0.1)
        assert users(cluster, "data") == {"p"}


async def test_a_gang_whose_second_claim_cannot_be_written_gives_the_first_one_back() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a", "b")
        for name in ("one", "two"):
            claim(cluster, name)
        cluster.server.faults.fail(422, method="PATCH", path="*/resourceclaims/two/status", times=1)
        cluster.create(claiming("p", "one", "two"))
        await until(lambda: scheduler.releaser.released)
        await until(lambda: cluster.bound("p"))
        assert devices(cluster, "one") | devices(cluster, "two") == {"a", "b"}


async def test_a_release_goes_through_a_server_that_fails_and_others_who_write() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        faults = cluster.server.faults

        def weather() -> None:
            assert users(cluster, "data") == {"p"}
            faults.fail(500, method="GET", path="*/resourceclaims/data", times=2)
            faults.fail(409, method="PATCH", path="*/resourceclaims/data/status", times=2)

        deleted_instead_of_bound(cluster, scheduler, "p", weather)
        cluster.create(claiming("p", "data"))
        await until(lambda: scheduler.releaser.released)
        assert status(cluster, "data") == {}


async def test_a_claim_left_allocated_to_a_full_node_is_allocated_anew_elsewhere() -> None:
    """What a leader leaves that dies between allocation and Binding, when the node fills up meanwhile."""
    async with live([small("n1"), small("n2")]) as cluster:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        await die_after_allocation(cluster)
        cluster.pod("filler", cpu="4")
        cluster.bind("filler", "n1")
        offer(cluster, "n2", "b")
        async with cluster.running():
            await until(lambda: cluster.bound("p"))
        assert cluster.places()["p"] == "n2"
        assert devices(cluster, "data") == {"b"} and users(cluster, "data") == {"p"}


@in_virtual_time
async def test_a_claim_in_use_by_a_running_pod_is_never_deallocated_for_one_that_waits() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        cluster.create(claiming("p", "data", cpu="4"))
        await until(lambda: cluster.bound("p"))
        offer(cluster, "n2", "b")
        cluster.create(claiming("q", "data"))
        await until(lambda: cluster.condition("q"))
        await asyncio.sleep(0.2)
        assert (users(cluster, "data"), devices(cluster, "data")) == ({"p"}, {"a"})
        assert not cluster.bound("q") and not scheduler.releaser.released


async def test_at_the_start_reservations_of_pods_that_are_gone_are_released() -> None:
    async with live([small("n1")]) as cluster:
        offer(cluster, "n1", "a")
        for name in ("old", "data"):
            claim(cluster, name)
        cluster.server.faults.fail(500, method="POST", path="*/binding")
        async with cluster.running() as scheduler:
            scheduler.releaser._may_write = lambda: False
            cluster.create(claiming("p", "old"))
            await until(lambda: users(cluster, "old") == {"p"})
        cluster.delete("p")
        cluster.server.faults.clear()
        cluster.create(claiming("q", "data"))
        async with cluster.running():
            await until(lambda: cluster.bound("q"))
        assert status(cluster, "old") == {} and devices(cluster, "data") == {"a"}


def end(cluster: Live, name: str, phase: str, *states: str) -> None:
    """A pod becomes finished. states: of its containers: `running`, `terminated`, or `waiting` for a container that has
    never run."""
    listed = [
        {"name": f"c{i}", **({} if one == "waiting" else {"containerID": f"x://{i}"}), "state": {one: {}}}
        for i, one in enumerate(states)
    ]
    ended = {"phase": phase, "containerStatuses": listed}
    cluster.server.store.update("pods", name, lambda obj: {**obj, "status": ended}, namespace="default", status=True)


@pytest.mark.parametrize(
    ("states", "grouped", "is_over"),
    [
        ((), False, True),
        (("terminated", "terminated"), False, True),
        (("waiting",), False, True),  # the kubelet rejected the pod
        (("terminated", "running"), False, False),  # not the kubelet set the phase
        (("terminated",), True, True),  # the pod is in the cache
    ],
)
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@in_virtual_time
async def test_devices_of_a_finished_pod_are_free_after_a_minute(
    phase: str, states: tuple[str, ...], grouped: bool, is_over: bool
) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        for name in ("data", "next"):
            claim(cluster, name)
        first = claiming("p", "data")
        if grouped:
            group, _ = gang("g", 1)
            first["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "g"}
            cluster.create(group)
        cluster.create(first)
        await until(lambda: cluster.bound("p"))
        end(cluster, "p", phase, *states)
        cluster.create(claiming("q", "next"))
        await asyncio.sleep(FINISHED_SECONDS - 5)
        assert (users(cluster, "data"), devices(cluster, "data")) == ({"p"}, {"a"})
        assert not cluster.bound("q")
        assert "waiting for devices of deleted or finished pods on n1." in cluster.condition("q")["message"]
        await asyncio.sleep(2 * scheduler.releaser._settings.sweep_seconds + 10)
        assert (status(cluster, "data") == {}, bool(cluster.bound("q"))) == (is_over, is_over)
        assert devices(cluster, "next" if is_over else "data") == {"a"}


@in_virtual_time
async def test_a_claim_for_extended_resources_goes_with_its_finished_pod() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        map_cards(cluster)
        cluster.create(carded("p"))
        await until(lambda: cluster.bound("p"))
        end(cluster, "p", "Succeeded", "terminated")
        cluster.create(carded("q"))
        await asyncio.sleep(FINISHED_SECONDS - 5)
        assert not cluster.bound("q")
        await asyncio.sleep(2 * scheduler.releaser._settings.sweep_seconds + 10)
        assert cluster.bound("q")


async def test_a_pod_that_may_run_is_seldom_asked_for_though_its_phase_is_final() -> None:
    async with live([small("n1")]) as cluster, cluster.running(sweep_seconds=600.0) as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        cluster.create(claiming("p", "data"))
        await until(lambda: cluster.bound("p"))
        end(cluster, "p", "Failed", "running")
        await until(lambda: scheduler.state.pod("default/p") is None)
        get, asked = scheduler.releaser._client.get_or_none, 0

        async def counted(path: str, **options: Any) -> Any:
            nonlocal asked
            asked += path.endswith("/pods/p")
            return await get(path, **options)

        scheduler.releaser._client.get_or_none = counted  # type: ignore[method-assign]
        for _ in range(3 * ASKED_AGAIN_SWEEPS):
            await scheduler.releaser.sweep()
        assert 3 <= asked <= 4, "once for so many sweeps"
        assert (users(cluster, "data"), devices(cluster, "data")) == ({"p"}, {"a"})
        cluster.delete("p")
        for _ in range(ASKED_AGAIN_SWEEPS):
            await scheduler.releaser.sweep()
        assert status(cluster, "data") == {}


async def test_a_claim_that_cannot_be_released_stands_in_the_way_of_no_other() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a", "b")
        for name in ("first", "second"):
            claim(cluster, name)
        stuck: list[InjectedFault] = []
        deleted_instead_of_bound(cluster, scheduler, "p", lambda: stuck.append(refuse(cluster, "first")))
        cluster.create(claiming("p", "first"))
        await until(lambda: bool(stuck))
        deleted_instead_of_bound(cluster, scheduler, "q")
        cluster.create(claiming("q", "second"))
        await until(lambda: status(cluster, "second") == {} and scheduler.releaser.released == 1)
        await until(lambda: stuck[0].hits == MAX_RELEASE_TRIES)
        assert users(cluster, "first") == {"p"}


def refuse(cluster: Live, name: str) -> InjectedFault:
    """No more writes of a claim's status."""
    return cluster.server.faults.fail(500, method="PATCH", path=f"*/resourceclaims/{name}/status")


@pytest.mark.parametrize("written", [0, 1, 2, 3])
async def test_a_lease_that_is_lost_among_the_writes_of_claims_leaves_nothing_that_the_next_leader_cannot_finish(
    written: int,
) -> None:
    """The lease is taken away after so many writes; another process, which cannot bind there any more, goes on."""
    async with live([small("n1")]) as cluster:
        offer(cluster, "n1", "a", "b")
        for name in ("one", "two"):
            claim(cluster, name)
        async with cluster.running() as scheduler:
            patch, done = scheduler.reserver._calls._client.patch, 0

            async def lose(path: str, body: Any, **options: Any) -> Any:
                nonlocal done
                if "resourceclaims" in path:
                    if done == written:
                        scheduler.leading.clear()
                    done += 1
                return await patch(path, body, **options)

            scheduler.reserver._calls._client.patch = lose  # type: ignore[method-assign]
            cluster.create(claiming("p", "one", "two"))
            await until(lambda: not scheduler.leading.is_set())
            await until(lambda: not scheduler.committer.waiting_for_claims)
            assert cluster.places() == {}
        cluster.server.store.update("nodes", "n1", lambda obj: {**obj, "spec": {"unschedulable": True}})
        cluster.nodes(node("n2", gpus=0, cpu=4, memory_gib=8))
        offer(cluster, "n2", "c", "d")
        async with cluster.running(lease=LONG_LEASE):
            await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": "n2"}
        assert devices(cluster, "one") | devices(cluster, "two") == {"c", "d"}
        assert users(cluster, "one") == users(cluster, "two") == {"p"}


async def test_devices_that_a_release_frees_wake_who_waits_for_them_though_the_watch_is_late() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "first")
        claim(cluster, "second")
        cluster.create(claiming("p", "first"))
        await until(lambda: cluster.bound("p"))
        cluster.create(claiming("q", "second"))
        await until(lambda: "cannot allocate all claims" in cluster.condition("q").get("message", ""))
        reflector = scheduler.feeds.reflectors[CLAIMS]
        held, handle = [], reflector._handle
        reflector._handle = held.append  # type: ignore[method-assign]
        tried = cluster.planner.tried("default/q")
        cluster.delete("p")
        # its room helps nobody: the devices are the claim's
        await until(
            lambda: cluster.planner.tried("default/q") > tried and scheduler.queue.counts()[State.UNSCHEDULABLE]
        )
        await scheduler.releaser.sweep()
        await until(lambda: not finalizers(cluster, "first") and len(held) >= 2)
        reflector._handle = handle  # type: ignore[method-assign]
        for line in held:
            handle(line)
        await until(lambda: cluster.bound("q"))
