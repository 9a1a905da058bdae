# SPDX-License-Identifier: Apache-2.0
"""A process that dies at an await of a commit, every one of them in its turn; the next one finishes what it began.

The awaits are read off the source of the modules that commit. A scene is played once to see at which turn of the event
loop who waits where, and again for each turn at which the process is to die: virtual time makes it the same play.
"""

import ast
import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import Any

from koordpy.api import keys
from koordpy.engine.binding import (
    binder,
    binding_confirmation,
    claim_calls,
    claim_releases,
    claim_writes,
    commit,
    device_checks,
    device_conditions,
    unit_commit,
    volume_writes,
)
from koordpy.engine.client.token_bucket import TokenBucket
from koordpy.engine.evictions import eviction_calls, evictor, nominations
from tests.engine.card_scenes import (
    ask_for_conditions,
    bad_weather,
    carded,
    carded_gang,
    leave_a_claim,
    map_cards,
    name_a_claim_that_is_gone,
    plain,
    report,
)
from tests.engine.live import Live, gang
from tests.engine.manifests import CLAIMS_OF_DEVICES, GPU, QUOTAS, nominated_node
from tests.engine.replica import Replica
from tests.engine.storage import LOCAL, MADE, pod_with
from tests.engine.storm import Storm
from tests.engine.test_reservations import claim, claiming
from tests.engine.virtual import VirtualLoop, Wire, run, virtual_server

MODULES: tuple[ModuleType, ...] = (
    commit,
    unit_commit,
    binding_confirmation,
    binder,
    volume_writes,
    claim_calls,
    claim_releases,
    claim_writes,
    device_checks,
    device_conditions,
    evictor,
    nominations,
    eviction_calls,
)


@cache
def awaits() -> dict[str, dict[tuple[int, int], str]]:
    """File -> (first, last line) of each await -> `module.Class.function: expression`."""
    out: dict[str, dict[tuple[int, int], str]] = {}
    for module in MODULES:
        found = out.setdefault(module.__file__ or "", {})

        def look(node: ast.AST, path: str, found: dict[tuple[int, int], str]) -> None:
            for child in ast.iter_child_nodes(node):
                name = getattr(child, "name", "") if isinstance(child, ast.ClassDef | ast.AsyncFunctionDef) else ""
                if isinstance(child, ast.Await):
                    found[child.lineno, child.end_lineno or 0] = f"{path}: {ast.unparse(child.value)}"
                elif isinstance(child, ast.AsyncWith) and "asyncio.timeout" not in ast.unparse(child.items[0]):
                    items = ", ".join(map(ast.unparse, child.items))
                    found[child.lineno, child.body[0].lineno - 1] = f"{path}: with {items}"
                look(child, f"{path}.{name}" if name else path, found)

        look(ast.parse(inspect.getsource(module)), module.__name__.rpartition(".")[2], found)
    return out


def _frames(task: "asyncio.Task[Any]") -> Iterator[FrameType]:
    """Where a task stands, from the outermost coroutine to the innermost."""
    at: Any = task.get_coro()
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        if frame is not None:
            yield frame
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)


def standing(loop: VirtualLoop) -> frozenset[str]:
    """The awaits at which somebody stands now."""
    files, out = awaits(), set()
    for task in asyncio.all_tasks(loop):
        for frame in _frames(task):
            code: CodeType = frame.f_code
            if (lines := files.get(code.co_filename)) is not None:
                at = [span for span in lines if span[0] <= frame.f_lineno <= span[1]]
                out |= {lines[min(at, key=lambda span: span[1] - span[0])]} if at else set()
    return frozenset(out)


@dataclass
class Scene:
    """What is there first, what happens then, and when it has come to its end."""

    name: str
    before: Callable[[Storm], None]
    happens: Callable[[Storm, Replica], Awaitable[None] | None]
    done: Callable[[Storm], bool]
    traits: Set[str] = frozenset({"devices", "volumes", "claims", "priorities"})
    seed: int = 1
    """Of how long each request takes."""


@dataclass
class Played:
    """One play of a scene. standing: turn of the loop -> the awaits at which somebody stood."""

    standing: dict[int, frozenset[str]] = field(default_factory=dict)
    died_at: frozenset[str] = frozenset()

    def covering(self) -> list[int]:
        """A few turns at which somebody stands at every await that is ever stood at."""
        left = frozenset[str]().union(*self.standing.values())
        out = []
        while left:
            best = max(self.standing, key=lambda turn: (len(self.standing[turn] & left), -turn))
            out.append(best)
            left -= self.standing[best]
        return out


async def _play(loop: VirtualLoop, scene: Scene, at: int | None) -> Played:
    async with virtual_server(scene.seed) as server:
        storm = Storm(Live(server), random.Random(scene.seed), lambda: Wire(server), loop.wall)
        loop.on_request, loop.on_send, loop.on_reply = storm.requested, storm.sent, storm.replied
        storm.stage(frozenset(scene.traits))
        storm.prepare()
        replica = storm.replica("one", elects=False)
        storm.replicas.append(replica)
        played = Played()
        tasks = [asyncio.create_task(replica.run()), asyncio.create_task(storm.surroundings())]
        try:
            with storm.by_others():
                scene.before(storm)
            await storm.come_to_rest()

            def turn(step: int) -> None:
                if at is None:
                    played.standing[step] = standing(loop)
                elif step == at:
                    played.died_at = standing(loop)
                    replica.kill()

            loop.on_step = turn
            with storm.by_others():
                if (more := scene.happens(storm, replica)) is not None:
                    await more
            while not scene.done(storm):
                assert loop.time() < 300.0, f"not all are bound: {storm.cluster.places()}"
                await asyncio.sleep(0.02)
            loop.on_step = None
            storm.clear_up()
            await storm.come_to_rest()
        finally:
            loop.on_step = None
            replica.stop()
            await tasks[0]
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)
        return played


def play(scene: Scene, at: int | None = None) -> Played:
    """Plays a scene; the process dies at a turn. AssertionError where the end is not right."""
    return run(lambda loop: _play(loop, scene, at), scene.seed)


# -- the scenes -------------------------------------------------------------------------------------------------------


def _half_full(storm: Storm) -> None:
    storm.cluster.create(*gang("low", 3, gpus=3))


def _whole_and_high(storm: Storm, replica: Replica) -> None:
    """A gang with volumes and claims, and another that evicts for room of which the first needs nothing: a more
    important one may take the node to which its volumes are bound when a process dies."""
    group, *pods = gang("whole", 2, gpus=0)
    storm.cluster.create(group)
    for pod, kind in zip(pods, (MADE, LOCAL), strict=True):
        name = pod["metadata"]["name"]
        storm.storage.claim(name, kind)
        pod["spec"]["volumes"] = pod_with("x", name)["spec"]["volumes"]
        claim(storm.cluster, name)
        pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name}]
        storm.cluster.create(pod)
    group, *pods = gang("high", 2, gpus=3)
    storm.cluster.create(group, *(storm.acts.users.dressed(pod, "high", "") for pod in pods))


def _held_back(storm: Storm, replica: Replica) -> None:
    """The same, while each write waits for the rate limit of the client."""
    assert replica.client is not None
    replica.client.bucket = TokenBucket(20.0, 1, clock=asyncio.get_running_loop().time)
    _whole_and_high(storm, replica)


def _all_bound(storm: Storm) -> bool:
    return storm.cluster.bound("whole-0", "whole-1", "high-0", "high-1")


def _in_bad_weather(storm: Storm, replica: Replica) -> None:
    """The same, while every kind of request fails once or twice before it is carried out, and after."""
    faults = storm.cluster.server.faults
    faults.fail(504, method="POST", path="*/binding", times=1, after=True)
    faults.fail(409, method="POST", path="*/binding", times=1)
    faults.fail("drop", method="POST", path="*/binding", times=1)
    faults.fail(500, method="POST", path="*/binding", times=1)
    faults.fail(500, method="GET", path="/api/v1/namespaces/*/pods/*", times=2)
    faults.fail(503, method="DELETE", path="*/pods/*", times=1)
    faults.fail(409, method="DELETE", path="*/pods/*", times=1)
    faults.fail(500, method="PATCH", path="*/pods/*/status", times=2)
    faults.fail(409, method="PATCH", path="*/resourceclaims/*/status", times=1)
    faults.fail("drop", method="PATCH", path="*/resourceclaims/*/status", times=1, after=True)
    faults.fail(500, method="GET", path="*/resourceclaims/*", times=4)
    faults.fail(409, method="PATCH", path="*/persistentvolume*", times=1)
    _whole_and_high(storm, replica)


def _refused(storm: Storm, replica: Replica) -> None:
    """Bindings are refused after claims were written; a pod that holds a claim is gone; two units share a claim."""
    faults = storm.cluster.server.faults
    faults.fail(429, method="POST", path="*/binding", times=4, retry_after=0)
    faults.fail(500, method="PATCH", path="*/resourceclaims/*/status", times=1, after=True)
    storm.acts.lie_in_wait(
        "claim", "after", 1, lambda replica, pod: _fails(storm, 500, "GET", "*/resourceclaims/*", 12)
    )
    claim(storm.cluster, "shared", 1)
    for name in ("p1", "p2", "p3"):
        storm.cluster.create(claiming(name, "shared", cpu="0"))
    claim(storm.cluster, "other", 1)
    storm.cluster.create(claiming("p4", "other", cpu="0"))
    storm.cluster.delete("held")


def _holding(storm: Storm) -> None:
    claim(storm.cluster, "held", 1)
    storm.cluster.create(claiming("held", "held", cpu="0"))


def _borrowed(storm: Storm) -> None:
    """Quota b holds what quota a owns."""
    for name, least, most in (("a", 8, 12), ("b", 4, 12)):
        spec = {"min": {GPU: str(least)}, "max": {GPU: str(most)}}
        storm.cluster.server.store.create(QUOTAS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    for at in range(12):
        (pod,) = gang(f"b{at}", 1, gpus=1)[1:]
        pod["metadata"]["labels"] = {keys.QUOTA_NAME: "b"}
        storm.cluster.create(pod)


def _reclaimed(storm: Storm, replica: Replica) -> None:
    """The owner asks for it; one eviction is refused again and again, so that the plan is dropped half-way."""
    storm.cluster.server.faults.fail(500, method="POST", path="*/eviction", times=2)
    storm.cluster.server.faults.fail(429, method="POST", path="*/eviction", times=30, retry_after=0)
    # the nominations are cleared, and that fails, too, at first
    storm.acts.lie_in_wait("eviction", "before", 12, lambda replica, pod: _no_statuses(storm))
    group, *pods = gang("owner", 2, gpus=4)
    for pod in pods:
        pod["metadata"]["labels"][keys.QUOTA_NAME] = "a"
    storm.cluster.create(group, *pods)


def _fails(storm: Storm, effect: int, method: str, path: str, times: int) -> None:
    storm.cluster.server.faults.fail(effect, method=method, path=path, times=times)


def _no_statuses(storm: Storm) -> None:
    _fails(storm, 500, "PATCH", "*/pods/*/status", 10)


async def _silent(storm: Storm, replica: Replica) -> None:
    """The watch of pods brings nothing for a while after they were bound."""
    faults = storm.cluster.server.faults

    def silence(replica: Replica, pod: str) -> None:
        faults.fail(503, method="WATCH", path="/api/v1/pods")
        faults.fail(503, method="GET", path="/api/v1/pods")
        faults.drop_watches("pods")

    storm.acts.lie_in_wait("binding", "before", 0, silence)
    _whole_and_high(storm, replica)
    await asyncio.sleep(3.0)
    faults.clear()


def _retired(storm: Storm, replica: Replica) -> None:
    """It is asked to end while evictions are out."""
    storm.acts.lie_in_wait("delete", "before", 0, lambda replica, pod: replica.retire())
    _whole_and_high(storm, replica)


def _retired_while_it_gives_back(storm: Storm, replica: Replica) -> None:
    """It is asked to end when a Binding was refused whose claims are written."""
    storm.acts.lie_in_wait("binding", "after", 1, lambda replica, pod: replica.retire())
    _refused(storm, replica)


def _bound(*names: str) -> Callable[[Storm], bool]:
    return lambda storm: storm.cluster.bound(*names)


def _not_nominated(name: str) -> Callable[[Storm], bool]:
    return lambda storm: not nominated_node(storm.cluster.pods()[name])


def _two_on_one_node(storm: Storm) -> None:
    for at, gpus in enumerate((4, 4, 2, 2)):
        _alone(storm, f"low{at}", gpus, "")


def _alone(storm: Storm, name: str, gpus: int, rank: str, at: str = "") -> None:
    (pod,) = gang(name, 1, gpus=gpus)[1:]
    pod["metadata"]["labels"].clear()
    pod = storm.acts.users.dressed(pod, rank, "")
    pod["spec"]["terminationGracePeriodSeconds"] = 30
    if at:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": at}
    storm.cluster.create(pod)


async def _nominated(storm: Storm, name: str) -> str:
    while not (node := nominated_node(storm.cluster.pods()[name])):  # noqa: ASYNC110 - not an event
        await asyncio.sleep(0.001)
    return node


async def _passed_over(storm: Storm, replica: Replica) -> None:
    """A more important gang takes capacity that another pod is nominated to, of which a part is free already, and to
    clear the nomination fails at first."""
    storm.linger_seconds = 2.0
    _alone(storm, "middle", 4, "middle", at=storm.cluster.places()["low3-0"])
    await _nominated(storm, "middle-0")
    # after a death between the two evictions, the first victim may be gone before the second is evicted
    while sum("deletionTimestamp" in obj["metadata"] for obj in storm.cluster.pods().values()) < 2:
        if "low3-0" not in storm.cluster.pods():
            _high(storm, 3, gpus=2)
            return
        await asyncio.sleep(0.001)
    storm.cluster.delete("low3-0")
    _high(storm, 3, gpus=2)
    storm.acts.lie_in_wait("status", "before", 3, lambda replica, pod: _no_statuses(storm))


def _high(storm: Storm, members: int, gpus: int = 3) -> None:
    group, *pods = gang("high", members, gpus=gpus)
    storm.cluster.create(group, *(storm.acts.users.dressed(pod, "high", "") for pod in pods))


async def _void(storm: Storm, replica: Replica) -> None:
    """The node that a pod is nominated to is gone before its victims are."""
    storm.linger_seconds = 2.0
    _alone(storm, "alone", 4, "high")
    node = await _nominated(storm, "alone-0")
    await asyncio.sleep(0.2)
    storm.cluster.server.store.remove("nodes", node)


async def _void_for_good(storm: Storm, replica: Replica) -> None:
    """The same where no other node is left, and to say so fails at first."""
    storm.linger_seconds = 2.0
    _alone(storm, "alone", 4, "high")
    node = await _nominated(storm, "alone-0")
    for other in storm.cluster.server.store.list("nodes"):
        storm.acts.machines.close(other["metadata"]["name"], closed=True)
    await asyncio.sleep(0.2)
    storm.cluster.server.store.remove("nodes", node)
    _no_statuses(storm)


def _unstuck(storm: Storm, replica: Replica) -> None:
    """Somebody allocated a claim on a node that takes nobody any more; to take that back fails at first."""
    store = storm.cluster.server.store
    (held,) = store.list(CLAIMS_OF_DEVICES)
    allocation = held["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    device = next(f"{result['pool']}-{at}" for at in range(2) if f"{result['pool']}-{at}" != result["device"])
    status = {
        "allocation": {**allocation, "devices": {**allocation["devices"], "results": [{**result, "device": device}]}}
    }
    claim(storm.cluster, "tied", 1)
    store.update(CLAIMS_OF_DEVICES, "tied", lambda obj: {**obj, "status": status}, namespace="default", status=True)
    storm.acts.machines.close(result["pool"], closed=True)
    storm.cluster.server.faults.fail(500, method="PATCH", path="*/resourceclaims/*/status", times=2)
    storm.cluster.create(claiming("tied", "tied", cpu="0"))
    claim(storm.cluster, "other", 1)
    storm.cluster.create(claiming("p1", "other", cpu="0"))


async def _just_bound(storm: Storm, replica: Replica) -> None:
    """Victims are chosen whose Bindings are under way."""
    storm.cluster.server.faults.latency_seconds = 0.3
    storm.acts.lie_in_wait("binding", "before", 0, lambda replica, pod: _high(storm, 3))
    storm.cluster.create(*gang("low", 3, gpus=3))
    await asyncio.sleep(0.5)
    storm.cluster.server.faults.latency_seconds = 0.0


def _holding_a_card(storm: Storm) -> None:
    map_cards(storm.cluster)
    storm.cluster.create(carded("held"))


def _cards(storm: Storm, replica: Replica) -> None:
    """A gang of cards, pods with what a dead leader left of them, and a pod that holds a card is gone."""
    bad_weather(storm.cluster)
    storm.cluster.create(*carded_gang("cards", 2))
    storm.cluster.create(plain("stale"), carded("left"))
    name_a_claim_that_is_gone(storm.cluster, "stale")
    leave_a_claim(storm.cluster, "left")
    storm.cluster.delete("held")


async def _conditions(storm: Storm, replica: Replica) -> None:
    """The devices of a claim are made ready two seconds after their allocation."""
    claim(storm.cluster, "slow", 1)
    storm.cluster.create(claiming("slow", "slow", cpu="0"))
    while not storm.cluster.bound("slow"):
        await asyncio.sleep(2.0)
        with storm.by_others():
            report(storm.cluster, "slow")


P14 = ("p1", "p2", "p3", "p4")
HIGH = ("high-0", "high-1", "high-2")
SCENES = (
    Scene("in good weather", _half_full, _whole_and_high, _all_bound),
    Scene("in bad weather", _half_full, _in_bad_weather, _all_bound),
    Scene("held back", _half_full, _held_back, _all_bound),
    Scene("given back", _holding, _refused, _bound(*P14), {"claims"}),
    Scene("reclaimed", _borrowed, _reclaimed, _bound("owner-0", "owner-1"), {"devices"}, seed=2),
    Scene("in silence", _half_full, _silent, _all_bound),
    Scene("retired", _half_full, _retired, _all_bound),
    Scene("retired while it gives back", _holding, _retired_while_it_gives_back, _bound(*P14), {"claims"}),
    Scene("passed over", _two_on_one_node, _passed_over, _bound(*HIGH), {"priorities", "devices"}),
    Scene("void", _half_full, _void, _bound("alone-0"), {"priorities"}),
    Scene("void for good", _half_full, _void_for_good, _not_nominated("alone-0"), {"priorities"}),
    Scene("unstuck", _holding, _unstuck, _bound("tied", "p1"), {"claims"}),
    Scene("cards", _holding_a_card, _cards, _bound("cards-0", "cards-1", "stale", "left"), {"claims"}),
    Scene("conditions", lambda storm: ask_for_conditions(storm.cluster), _conditions, _bound("slow"), {"claims"}),
    Scene("just bound", lambda storm: None, _just_bound, _bound(*HIGH), {"priorities"}),
)
