"""A plain CPU pod pays for no room that it has no use for (modules_entered.py)."""

from tests.planning.modules_entered import of_a_binding, of_a_plan

DEVICES = ("koordpy.planning.gpu.", "koordpy.planning.ascend.", "koordpy.planning.jobs.ascend.")


def test_the_plan_of_a_plain_cpu_pod_enters_few_modules_and_none_of_devices_or_solvers() -> None:
    found = of_a_plan()
    assert "koordpy.planning.attempt" in found
    assert not [name for name in found if name.startswith((*DEVICES, "koordpy.planning.solver."))]
    assert len(found) <= 18, sorted(found)


def test_its_way_from_the_watch_event_to_the_binding_enters_few_modules() -> None:
    found = of_a_binding()
    assert {"koordpy.engine.watching.reflector", "koordpy.engine.binding.confirming"} <= found.keys()
    assert len(found) <= 75, sorted(found)
