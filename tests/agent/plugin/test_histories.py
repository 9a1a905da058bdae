# SPDX-License-Identifier: Apache-2.0
"""Random histories of a node: the scheduler places pods with init containers and sidecars, the kubelet admits them, and
both programs start anew at any moment. At none do two pods hold one GPU, and annotations say who holds which."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordpy.agent.gpu_facts import MachineGpu
from koordpy.agent.plugin import gpu_annotations
from koordpy.agent.plugin.checkpoint import read_checkpoint, write_checkpoint
from koordpy.agent.plugin.delivery_ledger import Ledger, NoCandidateError, ReservedGpus
from koordpy.agent.plugin.node_pods import reserved_of
from koordpy.api.objects import Pod
from tests.agent.plugin.manager import MAIN, ONCE, SIDE, CrashError, DeviceManager, PodAsk, RefusedError
from tests.scenarios.gpus import GPU, GpuWorld, gpu_pod, measured
from tests.scenarios.test_gpu_inits import with_inits

GPUS = [MachineGpu(index=n, minor=n, uuid=f"GPU-n1-{n}") for n in range(8)]


class Node:
    """Scheduler, API server, kubelet and plugin of one node."""

    def __init__(self, dice: Random, *, lists_refused: bool, folder: Path) -> None:
        self.dice, self.checkpoint = dice, folder / "checkpoint"
        self.world = GpuWorld().add(measured("n1"))
        self.pods: dict[str, Pod] = {}
        self.asks: dict[str, PodAsk] = {}
        self.started: set[str] = set()
        self.book = Ledger()
        healthy = {gpu.uuid for gpu in GPUS}
        self.kubelet = DeviceManager(healthy, self, dice, self.between, self.answered, lists_refused)
        self.lost: set[str] = set()
        self.trouble: list[tuple[str, type[Exception]]] = []
        self.going_on: dict[str, set[str]] = {}
        """Pod that was deleted by force -> GPUs that its processes use, until they end."""

    # -- the plugin ---------------------------------------------------------------------------------------------------

    def prefer(self, available: Sequence[str], required: Sequence[str], size: int) -> Sequence[str]:
        self.refresh()
        return self.book.prefer(self.kubelet.listed(), available, required, size)

    def allocate(self, ids: Sequence[str]) -> Sequence[str]:
        self.refresh()
        try:
            delivery = self.book.deliver(self.kubelet.listed(), ids)
        except NoCandidateError as why:
            raise RefusedError(str(why)) from None
        write_checkpoint(self.checkpoint, self.book)
        return delivery.gpus

    def refresh(self) -> None:
        known = [one for pod in self.pods.values() if (one := self.reserved(pod))]
        self.book.pods(known, self.kubelet.listed(), lambda one, ended: one.slot[0] in self.going_on)

    def reserved(self, pod: Pod) -> ReservedGpus | None:
        return reserved_of(pod, GPUS, GPU)

    def reconcile(self) -> None:
        self.refresh()
        self.book.reconcile(self.kubelet.listed())
        write_checkpoint(self.checkpoint, self.book)
        for write in (gpu_annotations.both, gpu_annotations.annotation_changes):
            for one in self.book.corrections():
                pod = self.pods[one.uid]
                places = {p.place: [g for g in GPUS if g.uuid in p.gpus] for p in one.parts}
                notes: dict[str, str | None] = {**pod.metadata.annotations, **write(pod.metadata.annotations, places)}
                kept = {key: text for key, text in notes.items() if text is not None}
                self.put(replace(pod, metadata=replace(pod.metadata, annotations=kept)))

    # -- what happens -------------------------------------------------------------------------------------------------

    def put(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod
        self.world.add(pod)

    def come(self, uid: str, inits: list[tuple[str, int]], containers: list[int]) -> None:
        own = with_inits(gpu_pod(uid, *containers, created=len(self.asks)), *inits)
        own = replace(own, metadata=replace(own.metadata, uid=uid))
        self.world.add(own)
        for placement in self.world.plan().placements:
            if placement.pod_key == f"default/{uid}":
                meta = replace(own.metadata, annotations=dict(placement.annotations))
                self.put(replace(own, metadata=meta, spec=replace(own.spec, node_name="n1")))
                asks = [
                    *((f"i{n}", *one) for n, one in enumerate(inits)),
                    *((f"c{n}", MAIN, k) for n, k in enumerate(containers)),
                ]
                self.asks[uid] = PodAsk(uid, uid, tuple(one for one in asks if one[2]), len(self.asks))
                return
        self.world.state.delete(Pod, f"default/{uid}")

    def waiting(self) -> list[str]:
        known = self.kubelet.pods.keys() | self.kubelet.refused.keys()
        return [uid for uid in self.pods if uid not in known and uid not in self.started]

    def admit(self, uid: str) -> None:
        """As the kubelet does it; a crash is followed by a start, which goes through all pods again."""
        todo = [uid]
        while todo:
            one = todo.pop(0)
            try:
                self.kubelet.admit(self.asks[one])
                self.started.add(one)
            except RefusedError as why:
                # an answer about a container that the list leaves out, of which a kubelet that ended knows nothing
                lost = one in self.lost and (
                    "no pod of this node is waiting" in str(why) or "a restarted kubelet" in str(why)
                )
                held = "may still use" in str(why) and self.going_on
                if not (self.kubelet.lists_refused or "another provider" in str(why) or lost or held):
                    raise
                self.failed(one)
            except CrashError:
                self.lost.add(one)
                self.restart()
                todo = sorted(self.kubelet.pods, key=lambda uid: self.asks[uid].created)

    def restart(self) -> None:
        """The kubelet has started anew, and the plugin registers with it."""
        self.kubelet.restart()
        self.book.registered()

    def between(self) -> None:
        self.strike("between")

    def answered(self) -> None:
        self.strike("answered")

    def strike(self, when: str) -> None:
        if self.trouble and self.trouble[0][0] == when:
            raise self.trouble.pop(0)[1]("another provider")

    def failed(self, uid: str) -> None:
        """Later than the kubelet refused it, the API server knows."""
        if not self.kubelet.lists_refused or self.dice.random() < 0.5:
            self.end(uid)

    def end(self, uid: str) -> None:
        self.kubelet.forget(uid)
        self.world.state.delete(Pod, f"default/{uid}")
        del self.pods[uid]
        self.started.discard(uid)

    def delete_by_force(self, uid: str) -> None:
        """Its processes run on, of which neither the API server nor the kubelet's list says anything."""
        own = (gpus for (pod, _), gpus in self.kubelet.sees.items() if pod == uid)
        self.going_on[uid] = {gpu for gpus in own for gpu in gpus}
        self.end(uid)

    def tell_started(self) -> None:
        for uid in self.started & self.pods.keys():
            pod = self.pods[uid]
            self.put(replace(pod, status=replace(pod.status, start_time="2026-01-01T00:00:00Z")))

    # -- what has to hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        users = {gpu: uid for uid, gpus in self.going_on.items() for gpu in gpus}
        for (uid, _), gpus in self.kubelet.sees.items():
            for gpu in gpus if uid in self.kubelet.pods else ():
                assert users.setdefault(gpu, uid) == uid
        for uid in self.started & self.kubelet.pods.keys():
            beside: set[str] = set()
            for name, kind, size in self.asks[uid].containers:
                own = set(self.kubelet.sees[uid, name])
                assert len(own) == size and not own & beside
                beside |= own if kind != ONCE else set()

    def check_annotations(self) -> None:
        for uid in self.started & self.pods.keys():
            one = self.reserved(self.pods[uid])
            assert one is not None
            for part in one.parts:
                assert set(part.gpus) == set(self.kubelet.sees[uid, part.container])
            if not self.kubelet.lists_refused:
                booked = set().union(*self.kubelet.booked[uid].values())
                assert booked == {gpu for part in one.parts for gpu in part.gpus}


pods = st.tuples(
    st.lists(st.tuples(st.sampled_from([ONCE, SIDE]), st.integers(0, 2)), max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=2),
)
TROUBLE = [("between", CrashError), ("between", RefusedError), ("answered", CrashError)]
ACTIONS = ["come", "come", "admit", "admit", "all", "end", "reconcile", "plugin", "lost", "kubelet", "started"]
ACTIONS += ["force", "over"]


def history(data: st.DataObject, *, lists_refused: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="plugin-") as folder:
        dice = Random(data.draw(st.integers(0, 1 << 16)))
        node = Node(dice, lists_refused=lists_refused, folder=Path(folder))
        for step, action in enumerate(data.draw(st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=25))):
            waiting = node.waiting()
            if action == "come":
                inits, containers = data.draw(pods)
                if sum(containers) or any(count for _, count in inits):
                    node.come(f"p{step}", inits, containers)
            elif action in ("admit", "all") and waiting:
                node.trouble = data.draw(st.lists(st.sampled_from(TROUBLE), max_size=2))
                for uid in data.draw(st.permutations(waiting))[: 1 if action == "admit" else None]:
                    node.admit(uid)
                    node.check()
            elif action == "end" and node.started & node.pods.keys():
                node.reconcile()
                node.end(data.draw(st.sampled_from(sorted(node.started & node.pods.keys()))))
            elif action == "force" and node.started & node.pods.keys():
                node.reconcile()
                node.delete_by_force(data.draw(st.sampled_from(sorted(node.started & node.pods.keys()))))
            elif action == "over" and node.going_on:
                del node.going_on[data.draw(st.sampled_from(sorted(node.going_on)))]
            elif action == "reconcile":
                node.reconcile()
            elif action == "plugin":
                node.book = read_checkpoint(node.checkpoint)
                node.book.registered()
            elif action == "lost" and not node.going_on:
                node.tell_started()
                node.reconcile()
                node.book = Ledger()
            elif action == "kubelet":
                node.restart()
                for uid in sorted(node.kubelet.pods, key=lambda uid: node.asks[uid].created):
                    node.admit(uid)
            elif action == "started":
                node.tell_started()
            node.check()
            if not lists_refused:
                node.check_annotations()
        node.reconcile()
        node.check_annotations()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_pod_gets_what_is_written_on_it_and_no_other_pod_has_it(data: st.DataObject) -> None:
    history(data, lists_refused=False)


@settings(max_examples=160, deadline=None)
@given(st.data())
def test_with_a_kubelet_that_lists_refused_pods_no_gpu_has_two_users_and_exchanges_are_written(
    data: st.DataObject,
) -> None:
    history(data, lists_refused=True)
