# SPDX-License-Identifier: Apache-2.0
"""No GPU is given twice, whatever pods come, are bound, assumed, refused, deleted, whenever the scheduler restarts."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koordpy.api.custom_objects import Device
from koordpy.api.objects import Pod
from koordpy.devices.gpu.held_gpus import named_minors
from koordpy.plan.round_plan import Placement
from tests.given_devices import numbers_of
from tests.planning.gpu.machines import UNIFORM, M, device
from tests.scenarios.cluster import group
from tests.scenarios.gpus import GpuWorld, gpu_node, gpu_pod, measured

FOUR = [row[:4] for row in M[:4]]


class GpuMachine(RuleBasedStateMachine):
    """Three machines and a node without a Device; pods of every kind come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed: list[Any] = [
            *measured("n1", sick=(5,)),
            *measured("n2", matrix=UNIFORM),
            *measured("n3", matrix=FOUR),
            gpu_node("n4", gpus=2),
            *(group(f"g{i}", 2) for i in range(3)),
        ]
        self.world = GpuWorld().add(self.fixed)
        self.sick: dict[str, set[int]] = {"n1": {5}}
        self.number = 0
        self.assumed: dict[str, Placement] = {}

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=2), kind=st.sampled_from(["", "group", "gang", "both"])
    )
    def a_pod_comes(self, counts: list[int], kind: str) -> None:
        self.number += 1
        job = f"j{self.number % 3}" if kind in ("group", "both") else ""
        gang = f"g{self.number % 3}" if kind in ("gang", "both") else ""
        self.world.add(gpu_pod(f"p-{self.number}", *counts, group=job, gang=gang, created=self.number))

    @rule(count=st.integers(1, 2))
    def a_stranger_takes_gpus_without_a_word(self, count: int) -> None:
        self.number += 1
        self.world.add(gpu_pod(f"x-{self.number}", count, at="n2", scheduler="other"))

    @rule(node=st.sampled_from(["n1", "n2", "n3"]), sick=st.sets(st.integers(0, 3), max_size=2))
    def an_agent_reports(self, node: str, sick: set[int]) -> None:
        matrices: dict[str, Any] = {"n1": M, "n2": UNIFORM, "n3": FOUR}
        self.sick[node] = sick
        self.fixed = [one for one in self.fixed if not (isinstance(one, Device) and one.metadata.name == node)]
        self.fixed.append(device(matrices[node], name=node, sick=sick))
        self.world.add(self.fixed[-1])

    @rule(node=st.sampled_from(["n1", "n2", "n3"]))
    def an_agents_report_is_deleted(self, node: str) -> None:
        self.fixed = [one for one in self.fixed if not (isinstance(one, Device) and one.metadata.name == node)]
        self.world.state.delete(Device, node)

    @rule(only=st.booleans())
    def a_round_is_bound(self, only: bool) -> None:
        plan = self.world.plan()
        assert not [p for p in plan.pending if "failed koordpy's own check" in p.message]
        placements = plan.placements[:1] if only else plan.placements
        for placement in placements:
            assert not self.sick.get(placement.node, set()) & set(numbers_of(placement))
            self.world.state.bind(placement.pod_key, placement.node, dict(placement.annotations))

    @rule()
    def a_round_is_assumed(self) -> None:
        for placement in self.world.plan().placements:
            self.world.state.assume(placement.pod_key, placement.node, devices=placement.devices)
            self.assumed[placement.pod_key] = placement

    @rule(confirm=st.booleans())
    def the_assumed_are_settled(self, confirm: bool) -> None:
        for key, placement in self.assumed.items():
            if confirm and self.world.state.assumed_node(key):
                self.world.state.bind(key, placement.node, dict(placement.annotations))
            else:
                self.world.state.forget(key)
        self.assumed.clear()

    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        known = sorted(info.key for info in self.world.state.pods())
        if known:
            key = data.draw(st.sampled_from(known))
            self.world.state.delete(Pod, key)
            self.assumed.pop(key, None)

    @rule()
    def the_scheduler_restarts(self) -> None:
        pods = [info.pod for info in self.world.state.pods()]
        self.world = GpuWorld().add(self.fixed, pods)
        self.assumed.clear()

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        held: dict[tuple[str, int], str] = {}
        for info in self.world.state.pods():
            if not info.bound or info.ask("gpus") is None:
                continue
            waiting = self.assumed.get(info.key)
            minors = (
                numbers_of(waiting)
                if waiting
                else named_minors(info.pod.metadata.annotations, info.ask("gpus").count) or ()
            )
            assert len(minors) in (0, info.ask("gpus").count)
            for minor in minors:
                assert held.setdefault((info.node, minor), info.key) == info.key

    @invariant()
    def no_node_gives_more_than_it_has(self) -> None:
        for name, most in (("n1", 8), ("n3", 4), ("n4", 2)):
            _, used = self.world.state.usage.usage_of(name)
            assert used.get("nvidia.com/gpu", 0) <= most


TestGpus = GpuMachine.TestCase
TestGpus.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
