# SPDX-License-Identifier: Apache-2.0
"""The plugin over real sockets, with a kubelet that speaks the real API."""

import asyncio
import errno
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from koordpy.agent.plugin import allocator
from koordpy.agent.plugin.checkpoint import read_checkpoint
from koordpy.agent.plugin.delivery_ledger import Ledger, Part, ReservedGpus
from koordpy.agent.plugin.orphans import SETTLE_SECONDS, Orphans
from koordpy.agent.plugin.plugin_server import PluginOffer
from koordpy.agent.plugin.plugin_service import CHECKPOINT, ENDING, PluginService
from tests.agent.plugin.kubelet import Kubelet, RefusedError

GPUS = [f"GPU-{n}" for n in range(4)]
OFFERS = [PluginOffer(gpu, True, n // 2) for n, gpu in enumerate(GPUS)]


def pod(name: str, *gpus: int, created: float = 0.0) -> ReservedGpus:
    parts = (Part("0", "c", len(gpus), tuple(GPUS[n] for n in gpus)),)
    return ReservedGpus(f"uid-{name}", "default", name, parts, created)


class Node:
    """The pods of the node as the API server has them, and their annotations once they were corrected."""

    def __init__(self) -> None:
        self.pods: dict[str, ReservedGpus] = {}
        self.fail = False
        self.processes: bool | None = False
        self.now = 0.0
        self.reads = asyncio.Event()
        self.corrections: list[ReservedGpus] = []
        self.corrected = asyncio.Event()

    def add(self, *pods: ReservedGpus) -> None:
        self.pods |= {one.pod: one for one in pods}

    async def read(self) -> Sequence[ReservedGpus]:
        self.reads.set()
        if self.fail:
            raise ConnectionError("no API server")
        return list(self.pods.values())

    def corrected_to(self) -> dict[str, tuple[str, ...]]:
        return {one.pod: one.parts[0].gpus for one in self.corrections}

    async def correct(self, corrections: Sequence[ReservedGpus]) -> None:
        if self.fail:
            raise ConnectionError("no API server")
        self.corrections += corrections
        self.add(*corrections)
        self.corrected.set()


@pytest.fixture
async def kubelet() -> AsyncIterator[Kubelet]:
    # not in tmp_path: the path of a unix socket ends after 107 characters
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        running = Kubelet(Path(folder))
        await running.start()
        yield running
        await running.stop()


@asynccontextmanager
async def plugin(
    kubelet: Kubelet,
    node: Node,
    confirm: Callable[[Sequence[str]], Awaitable[None]] | None = None,
    *,
    processes: bool | None = False,
    wait: float = 60.0,
) -> AsyncIterator[PluginService]:
    """processes: whether the control groups of pods that are gone have any; wait: seconds that an answer may take."""
    node.processes = processes
    service = PluginService(
        node.read,
        node.correct,
        folder=kubelet.folder,
        pod_resources=kubelet.pod_resources,
        orphans=Orphans(lambda uid: node.processes, clock=lambda: node.now),
        confirm=confirm,
        look_seconds=0.02,
        reconcile_seconds=0.1,
        wait_seconds=wait,
        quiet_seconds=0.1,
    )
    service.server.offer(OFFERS)
    task = asyncio.create_task(service.run())
    try:
        await kubelet.until(lambda: len(kubelet.devices) == len(GPUS))
        yield service
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_kubelet_is_told_of_gpus_their_health_and_numa_nodes(kubelet: Kubelet) -> None:
    async with plugin(kubelet, Node()) as service:
        (registration,) = kubelet.registrations
        assert (registration.version, registration.resource_name) == ("v1beta1", "nvidia.com/gpu")
        assert registration.options.get_preferred_allocation_available
        assert kubelet.devices["GPU-3"] == ("Healthy", (1,))
        service.server.offer([PluginOffer("GPU-0", False, 0), *OFFERS[1:]])
        await kubelet.until(lambda: kubelet.devices["GPU-0"][0] == "Unhealthy")


async def test_each_pod_gets_what_the_scheduler_chose(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3), pod("b", 0, 1, created=1))
    async with plugin(kubelet, node):
        assert await kubelet.admit("a", 2) == ["GPU-2", "GPU-3"]
        assert await kubelet.admit("b", 2) == ["GPU-0", "GPU-1"]


async def test_offered_ids_that_fit_nobody_still_deliver_the_reserved_gpus(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node):
        assert await kubelet.admit("a", 2, ids=["GPU-0", "GPU-3"]) == ["GPU-2", "GPU-3"]


async def test_pods_that_got_each_other_s_gpus_are_put_right(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 0, 1), pod("b", 2, 3, created=1))
    kubelet.known.add("a")  # as one that it refused and still lists
    async with plugin(kubelet, node):
        assert await kubelet.admit("b", 2, ids=["GPU-0", "GPU-1"]) == ["GPU-0", "GPU-1"]
        await asyncio.wait_for(node.corrected.wait(), 60)
        assert node.corrected_to() == {
            "a": ("GPU-2", "GPU-3"),
            "b": ("GPU-0", "GPU-1"),
        }
        assert await kubelet.admit("a", 2) == ["GPU-2", "GPU-3"]


async def test_a_correction_that_cannot_be_written_is_written_later(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 0, 1), pod("b", 2, 3, created=1))
    kubelet.known.add("a")
    async with plugin(kubelet, node) as service:
        await kubelet.admit("b", 2, ids=["GPU-0", "GPU-1"])
        node.fail = True
        await service.reconcile()
        assert node.corrections == []
        node.fail = False
        await service.reconcile()
        assert node.corrected_to() == {
            "a": ("GPU-2", "GPU-3"),
            "b": ("GPU-0", "GPU-1"),
        }


async def test_without_a_pod_that_waits_the_kubelet_is_refused(kubelet: Kubelet) -> None:
    async with plugin(kubelet, Node()):
        with pytest.raises(RefusedError, match="no pod of this node is waiting for 2 GPUs"):
            await kubelet.admit("stranger", 2)


async def test_while_the_api_server_is_away_known_pods_are_served_and_unknown_ones_refused(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node, wait=0) as service:
        await service.reconcile()
        node.fail = True
        node.add(pod("b", 0))
        assert await kubelet.admit("a", 2) == ["GPU-2", "GPU-3"]
        with pytest.raises(RefusedError):
            await kubelet.admit("b", 1)


async def test_a_kubelet_that_starts_anew_is_registered_with_again(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3), pod("b", 0, 1, created=1))
    async with plugin(kubelet, node):
        await kubelet.admit("a", 2)
        await kubelet.stop()
        kubelet.devices = {}
        await kubelet.start()
        await kubelet.until(lambda: len(kubelet.devices) == len(GPUS))
        assert len(kubelet.registrations) == 2
        assert await kubelet.admit("b", 2) == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("keep", [True, False], ids=["with its checkpoint", "from the kubelet's list alone"])
async def test_a_plugin_that_starts_anew_knows_who_was_served(kubelet: Kubelet, keep: bool) -> None:
    node = Node()
    node.add(pod("a", 2, 3), pod("b", 0, 1, created=1))
    async with plugin(kubelet, node):
        await kubelet.admit("a", 2)
    if not keep:
        (kubelet.folder / CHECKPOINT).unlink()
    kubelet.devices = {}
    async with plugin(kubelet, node) as service:
        await service.reconcile()
        assert await kubelet.admit("b", 2, ids=["GPU-0", "GPU-1"]) == ["GPU-0", "GPU-1"]
        with pytest.raises(RefusedError):
            await kubelet.admit("a-again", 2, ids=["GPU-1", "GPU-2"])


async def test_a_broken_checkpoint_is_put_aside(kubelet: Kubelet) -> None:
    (kubelet.folder / CHECKPOINT).write_text("{")
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node):
        assert await kubelet.admit("a", 2) == ["GPU-2", "GPU-3"]
    assert (kubelet.folder / CHECKPOINT).with_suffix(".broken").exists()


async def test_a_kubelet_that_answers_so_many_lists_a_second_is_asked_again(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node):
        kubelet.busy = 2
        assert await kubelet.admit("a", 2, ids=["GPU-0", "GPU-3"]) == ["GPU-2", "GPU-3"]


async def test_where_the_kubelet_does_not_say_which_pods_it_has_nothing_is_delivered(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node, wait=0):
        kubelet.busy = 100
        with pytest.raises(RefusedError, match="the kubelet's list of pods cannot be read: rejected by rate limit"):
            await kubelet.admit("a", 2, ids=["GPU-2", "GPU-3"])


# -- trouble that ends ------------------------------------------------------------------------------------------------


async def waiting(task: "asyncio.Task[list[str]]", node: Node) -> None:
    """The kubelet is kept waiting while the node's pods are read some times more."""
    for _ in range(5):
        node.reads.clear()
        async with asyncio.timeout(60):
            await node.reads.wait()
    assert not task.done()


async def test_pods_that_were_bound_while_the_api_server_is_away_are_served_once_it_is_back(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3), pod("b", 0, created=1))
    async with plugin(kubelet, node):
        node.fail = True
        asking = asyncio.create_task(kubelet.admit("a", 2))
        await waiting(asking, node)
        node.fail = False
        assert await asking == ["GPU-2", "GPU-3"]
        assert await kubelet.admit("b", 1) == ["GPU-0"]
        # what it prefers was known by then, so the kubelet books the pod's own
        assert set(kubelet.booked["default", "a", "c"]) == {"GPU-2", "GPU-3"}


async def test_the_kubelet_is_kept_waiting_once_for_one_outage(
    kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait counts from the beginning of the outage: once it is over, later pods are answered at the first try."""
    node = Node()
    caplog.set_level(logging.INFO, logger=allocator.__name__)
    async with plugin(kubelet, node, wait=0.5):
        node.fail = True
        node.add(*(pod(name, n) for n, name in enumerate("abcd")))
        for name in "abcd":
            caplog.clear()
            with pytest.raises(RefusedError, match="no pod of this node is waiting for 1 GPU"):
                await kubelet.admit(name, 1)
            waits = [one for one in caplog.messages if one.startswith("the kubelet waits up to")]
            assert not waits or name == "a"
        node.fail = False
        assert await kubelet.admit("b", 1) == ["GPU-1"]


async def test_a_list_of_the_kubelet_that_cannot_be_read_for_a_while_fails_no_pod(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node):
        kubelet.busy = 15
        assert await kubelet.admit("a", 2, ids=["GPU-0", "GPU-3"]) == ["GPU-2", "GPU-3"]


async def test_a_pod_that_the_api_server_does_not_know_is_refused_at_once(kubelet: Kubelet) -> None:
    async with plugin(kubelet, Node(), wait=1000):
        with pytest.raises(RefusedError, match="no pod of this node is waiting"):
            await kubelet.admit("stranger", 1)


# -- pods that are gone -----------------------------------------------------------------------------------------------


async def deleted_by_force(kubelet: Kubelet, node: Node) -> None:
    """Pod `a` has run; the API server and the kubelet's list know of it no more, and `b` is bound to its GPUs."""
    node.add(pod("a", 0, 1))
    await kubelet.admit("a", 2)
    node.processes = True
    del node.pods["a"]
    kubelet.known.discard("a")
    del kubelet.booked["default", "a", "c"]
    node.add(pod("b", 0, 1, created=1), pod("other", 2, created=2))


async def test_gpus_of_a_pod_that_was_deleted_by_force_are_delivered_once_its_processes_have_ended(
    kubelet: Kubelet,
) -> None:
    node = Node()
    async with plugin(kubelet, node) as service:
        await deleted_by_force(kubelet, node)
        asking = asyncio.create_task(kubelet.admit("b", 2))
        await waiting(asking, node)
        why = "containers of the deleted pod default/a may still use it"
        assert service.allocator.unavailable == {"GPU-0": why, "GPU-1": why}
        node.processes = False
        assert await asking == ["GPU-0", "GPU-1"]
        assert service.allocator.unavailable == {}


async def test_another_agent_knows_of_them_by_the_checkpoint(kubelet: Kubelet) -> None:
    node = Node()
    async with plugin(kubelet, node):
        await deleted_by_force(kubelet, node)
    kubelet.devices = {}
    async with plugin(kubelet, node, processes=True):
        asking = asyncio.create_task(kubelet.admit("b", 2))
        await waiting(asking, node)
        node.processes = False
        assert await asking == ["GPU-0", "GPU-1"]


async def test_other_gpus_are_delivered_and_a_wait_that_is_too_long_is_a_refusal(kubelet: Kubelet) -> None:
    node = Node()
    async with plugin(kubelet, node):
        await deleted_by_force(kubelet, node)
        assert await kubelet.admit("other", 1) == ["GPU-2"]
        asking = asyncio.create_task(kubelet.admit("b", 2))
        await waiting(asking, node)
        node.now += 60
        with pytest.raises(RefusedError, match="deleted pod default/a may still use GPU-0, GPU-1, reserved for"):
            await asking


async def test_without_control_groups_the_grace_period_is_waited_for(kubelet: Kubelet) -> None:
    node = Node()
    async with plugin(kubelet, node):
        await deleted_by_force(kubelet, node)
        node.processes = None
        asking = asyncio.create_task(kubelet.admit("b", 2))
        await waiting(asking, node)
        node.now += 30 + SETTLE_SECONDS
        assert await asking == ["GPU-0", "GPU-1"]


async def test_a_pod_that_has_ended_leaves_its_gpus_at_once(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 0, 1))
    async with plugin(kubelet, node, wait=0):
        await kubelet.admit("a", 2)
        node.add(replace(node.pods["a"], settled=True, finished=True, ended=True))
        kubelet.known.discard("a")
        del kubelet.booked["default", "a", "c"]
        node.add(pod("b", 0, 1, created=1))
        assert await kubelet.admit("b", 2) == ["GPU-0", "GPU-1"]


async def test_a_pod_that_was_failed_by_another_than_its_kubelet_keeps_its_gpus(kubelet: Kubelet) -> None:
    """As the garbage collector does when a Node is deleted."""
    node = Node()
    async with plugin(kubelet, node):
        await deleted_by_force(kubelet, node)
        node.add(replace(pod("a", 0, 1), settled=True, finished=True))
        asking = asyncio.create_task(kubelet.admit("b", 2))
        await waiting(asking, node)
        node.processes = False
        assert await asking == ["GPU-0", "GPU-1"]


# -- a disk that is full ----------------------------------------------------------------------------------------------


def full(path: Path, ledger: Ledger) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_what_cannot_be_written_down_is_not_delivered(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.add(pod("a", 0, 1), pod("b", 2, 3, created=1))
    async with plugin(kubelet, node) as service:
        await kubelet.admit("a", 2)
        told: list[str] = []
        service.changed = lambda: told.append(service.obstacle)
        with monkeypatch.context() as patch:
            patch.setattr(allocator, "write_checkpoint", full)
            with pytest.raises(RefusedError, match=r"cannot be recorded: .*: No space left on device"):
                await kubelet.admit("b", 2)
            assert [one.slot[0] for one in service.allocator.ledger.deliveries] == ["uid-a"]
            assert "the checkpoint cannot be written" in service.obstacle
        async with asyncio.timeout(60):
            while service.obstacle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(told) == 2
        assert await kubelet.admit("b", 2) == ["GPU-2", "GPU-3"]
        kept = read_checkpoint(kubelet.folder / CHECKPOINT).deliveries
        assert {one.slot[0]: one.gpus for one in kept} == {"uid-a": ("GPU-0", "GPU-1"), "uid-b": ("GPU-2", "GPU-3")}


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_an_ending_plugin_serves_pods_that_were_bound_before_it_leaves(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 0, 1), pod("b", 2, created=1))
    async with plugin(kubelet, node) as service:
        service.retire()
        assert service.obstacle == ENDING
        leaving = asyncio.create_task(service.drain())
        for _ in range(20):
            node.reads.clear()
            await node.reads.wait()
        assert not leaving.done()
        assert await kubelet.admit("a", 2) == ["GPU-0", "GPU-1"]
        assert await kubelet.admit("b", 1) == ["GPU-2"]
        node.add(*(replace(one, settled=True) for one in node.pods.values()))
        async with asyncio.timeout(60):
            await leaving


async def test_a_plugin_that_the_kubelet_does_not_know_of_leaves_at_once(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 0, 1))
    async with plugin(kubelet, node) as service:
        await kubelet.stop()
        kubelet.empty()
        async with asyncio.timeout(60):
            while not service.obstacle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await service.drain()


async def test_a_plugin_registers_once_it_knows_of_gpus(kubelet: Kubelet) -> None:
    node = Node()
    service = PluginService(node.read, node.correct, folder=kubelet.folder, pod_resources=kubelet.pod_resources)
    task = asyncio.create_task(service.run())
    await asyncio.sleep(0.2)
    assert (kubelet.registrations, service.obstacle != "") == ([], True)
    service.server.offer(OFFERS)
    await kubelet.until(lambda: len(kubelet.devices) == len(GPUS))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pods_that_were_served_are_confirmed_and_again_where_that_failed(kubelet: Kubelet) -> None:
    node, told, fails = Node(), asyncio.Queue[tuple[str, ...]](), [True]

    async def confirm(uids: Sequence[str]) -> None:
        told.put_nowait(tuple(uids))
        if fails.pop() if fails else False:
            raise ConnectionError("no API server")

    first, second = pod("a", 0, 1), pod("b", 2, 3, created=1)
    node.add(first, second)
    async with plugin(kubelet, node, confirm):
        await kubelet.admit("a", 2)
        async with asyncio.timeout(10):
            assert [await told.get(), await told.get()] == [(first.uid,)] * 2
            await kubelet.admit("b", 2)
            while await told.get() != (first.uid, second.uid):
                pass
