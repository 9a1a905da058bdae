# SPDX-License-Identifier: Apache-2.0
"""Members that come and go: the gang that waits is looked at again, whoever's pods they are."""

from msgspec import convert

from koordpy.api.objects import Pod
from koordpy.devices.family_registry import make_state
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.object_changes import ClaimUsers
from koordpy.engine.changes.pod_changes_live import PodChanges
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import Wake


def member(name: str, scheduler: str = "koord-scheduler") -> Pod:
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "schedulerName": scheduler,
            "schedulingGroup": {"podGroupName": "g"},
            "containers": [{"name": "c"}],
        },
        "status": {"phase": "Pending"},
    }
    return convert(manifest, Pod)


class Waiting:
    """A gang whose first member was tried and told to wait for others."""

    def __init__(self) -> None:
        self.now = 100.0
        self.queue = UnitQueue(clock=lambda: self.now)
        self.changes = PodChanges(Hub(make_state(), self.queue), ClaimUsers())
        self.changes.upsert(member("a"), None)
        assert self.tried_again()
        assert not self.tried_again()

    def tried_again(self) -> bool:
        """Whether it is due within a minute; it is told to wait anew."""
        self.now += 60.0
        self.queue.poll()
        entries = self.queue.take(light_pods=10)
        for entry in entries:
            self.queue.settle_unschedulable(entry, wakes=Wake.NOTHING, plugins=(), gated=True, seconds=0.0)
        return bool(entries)


def test_a_member_of_ours_wakes_the_gang() -> None:
    gang = Waiting()
    gang.changes.upsert(member("b"), None)
    assert gang.tried_again()


def test_a_member_of_another_scheduler_wakes_the_gang_which_must_not_be_of_two() -> None:
    gang = Waiting()
    gang.changes.upsert(member("b", "another"), None)
    assert gang.tried_again()


def test_the_end_of_a_member_of_another_scheduler_wakes_the_gang() -> None:
    gang = Waiting()
    stranger = member("b", "another")
    gang.changes.upsert(stranger, None)
    assert gang.tried_again()
    gang.changes.delete(stranger)
    assert gang.tried_again()
