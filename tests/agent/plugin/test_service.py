"""The plugin over real sockets, with a kubelet that speaks the real API."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koordpy.agent.plugin.ledger import Part, ReservedGpus
from koordpy.agent.plugin.server import PluginOffer
from koordpy.agent.plugin.service import CHECKPOINT, PluginService
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
        self.corrections: list[ReservedGpus] = []
        self.corrected = asyncio.Event()

    def add(self, *pods: ReservedGpus) -> None:
        self.pods |= {one.pod: one for one in pods}

    async def read(self) -> Sequence[ReservedGpus]:
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
async def plugin(kubelet: Kubelet, node: Node) -> AsyncIterator[PluginService]:
    service = PluginService(
        node.read,
        node.correct,
        folder=kubelet.folder,
        pod_resources=kubelet.pod_resources,
        look_seconds=0.02,
        reconcile_seconds=0.1,
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
        with pytest.raises(RefusedError, match="no pod of this node waits for 2 GPUs"):
            await kubelet.admit("stranger", 2)


async def test_while_the_api_server_is_away_known_pods_are_served_and_unknown_ones_refused(kubelet: Kubelet) -> None:
    node = Node()
    node.add(pod("a", 2, 3))
    async with plugin(kubelet, node) as service:
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
    async with plugin(kubelet, node):
        kubelet.busy = 100
        with pytest.raises(RefusedError, match="the kubelet's list of pods cannot be read: rejected by rate limit"):
            await kubelet.admit("a", 2, ids=["GPU-2", "GPU-3"])
