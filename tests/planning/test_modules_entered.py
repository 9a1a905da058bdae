# SPDX-License-Identifier: Apache-2.0
"""A plain CPU pod, and a gang of GPUs, pay for no room that they have no use for (modules_entered.py)."""

from tests.planning.modules_entered import of_a_binding, of_a_gpu_gang, of_a_plan

DEVICES = "koordpy.devices."


def test_the_plan_of_a_plain_cpu_pod_enters_few_modules_and_none_of_devices_or_solvers() -> None:
    found = of_a_plan()
    assert "koordpy.attempts.unit_attempt" in found
    assert not [name for name in found if name.startswith((DEVICES, "koordpy.placement.solver."))]
    assert not [name for name in found if "preemption" in name or ".victim" in name], "no victims are searched for"
    assert [name for name in found if ".actions." in name] == ["koordpy.planner.actions.allocate"]
    assert len(found) <= 21, sorted(found)


def test_its_way_from_the_watch_event_to_the_binding_enters_few_modules() -> None:
    found = of_a_binding()
    assert {"koordpy.engine.watching.reflector", "koordpy.engine.binding.binding_confirmation"} <= found.keys()
    assert len(found) <= 88, sorted(found)


def test_a_cluster_without_npus_never_enters_their_room() -> None:
    for found in (of_a_plan(), of_a_gpu_gang(), of_a_binding()):
        assert not [name for name in found if ".ascend" in name]


def test_a_cluster_without_numa_data_never_enters_their_room() -> None:
    for found in (of_a_plan(), of_a_gpu_gang(), of_a_binding()):
        assert not [name for name in found if ".numa" in name]
