# SPDX-License-Identifier: Apache-2.0
"""What one tenant writes on his objects wakes his own units and those that it concerns, and nobody else's."""

import json
import random

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.config.configuration import Quota as Settings
from koordpy.devices.family_registry import make_state
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.object_changes import ClaimUsers, group_changes, quota_changes
from koordpy.engine.changes.pod_changes_live import PodChanges
from koordpy.engine.grouping import UnitNames
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import ANY, Wake
from koordpy.gangs.gang_links import Links
from koordpy.gangs.queue_units import Groups
from koordpy.pods.gang_refs import GangSource
from tests.scenarios.cluster import group, node, pod
from tests.scenarios.quotas import quota


class Waiting:
    """Gangs a (which names b), c and d of one pod each, and a pod alone, all told to wait for a change."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.now = 100.0
        self.queue = UnitQueue(clock=lambda: self.now)
        self.state = make_state(quota=settings or Settings())
        self.names = UnitNames()
        hub = Hub(self.state, self.queue, self.names)
        self.pods = PodChanges(hub, ClaimUsers())
        self.groups, self.quotas = group_changes(hub, GangSource.GROUP), quota_changes(hub)
        self.state.upsert(node("n1:1"))
        self.say("a", groups='["b"]')
        for name in "cd":
            self.say(name)
        for name in "acd":
            self.pods.upsert(pod(f"{name}-0", gang=name, cpu="9"), None)
        self.pods.upsert(pod("alone", cpu="9"), None)
        self.quotas.upsert(quota("q", 0, 10), None)
        self.tried()
        self.tried()

    def say(self, gang: str, **notes: str) -> PodGroup:
        """A PodGroup with annotations, of which groups is short."""
        notes = {keys.GANG_GROUPS if key == "groups" else f"example.com/{key}": text for key, text in notes.items()}
        one = group(gang, 2, notes)
        self.groups.upsert(one, None)
        return one

    def tried(self) -> set[str]:
        """Units that the next round tries; they are told to wait for a change anew."""
        self.now += 60.0
        self.queue.poll()
        if self.names.refresh(self.state.snapshot(self.now)):
            self.queue.regroup(self._unit_now)
        entries = self.queue.take(light_pods=10)
        for entry in entries:
            self.queue.settle_unschedulable(entry, wakes=ANY, plugins=(), gated=False, seconds=0.0)
        return {entry.unit for entry in entries}

    def pod(self, name: str) -> Pod | None:
        """A pod as it is known."""
        info = self.state.pod(f"default/{name}")
        return info.pod if info is not None else None

    def _unit_now(self, key: str) -> str | None:
        info = self.state.pod(key)
        return self.names.of_pod(info) if info is not None else None


def test_a_gang_that_says_something_new_wakes_itself_alone_where_others_are_linked() -> None:
    waiting = Waiting()
    waiting.say("c", turn="1")
    assert waiting.tried() == {"gang:default/c"}


def test_a_gang_that_comes_changes_or_goes_wakes_those_that_name_it() -> None:
    waiting = Waiting()
    b = waiting.say("b")
    assert waiting.tried() == {"gang:default/a,default/b"}
    waiting.say("b", turn="1")
    assert waiting.tried() == {"gang:default/a,default/b"}
    waiting.groups.delete(b)
    assert waiting.tried() == {"gang:default/a"}


def test_gangs_that_are_linked_and_parted_again_are_tried() -> None:
    waiting = Waiting()
    waiting.say("d", groups='["c"]')
    assert waiting.tried() == {"gang:default/c,default/d"}
    waiting.say("d")
    assert waiting.tried() == {"gang:default/c", "gang:default/d"}


def test_gangs_that_no_link_concerns_have_no_links_read_and_all_others_are_named_as_planned() -> None:
    rng = random.Random(17)
    waiting, names = Waiting(), list("abcdefgh")
    waiting.tried()
    assert not waiting.names.stale
    for i in range(50):
        waiting.say(f"other{i}")
        waiting.pods.upsert(pod(f"other{i}-0", gang=f"other{i}", cpu="9"), None)
    assert not waiting.names.stale
    told = waiting.state.snapshot(waiting.now)
    waiting.names.refresh(told)
    assert told.memo == {Links: Groups(waiting.state.snapshot(waiting.now)).links}
    for _ in range(300):
        one, named = rng.choice(names), rng.sample([*names, "gone"], rng.choice((0, 0, 1, 2)))
        turn = rng.randrange(3)
        if turn == 0:
            waiting.groups.delete(group(one, 2))
        elif turn == 1:
            waiting.say(one, **({"groups": json.dumps(named)} if named else {}))
        else:
            waiting.pods.upsert(pod(f"{one}-0", gang=rng.choice(names), cpu="9"), waiting.pod(f"{one}-0"))
        waiting.tried()
        told = waiting.state.snapshot(waiting.now)
        waiting.names.refresh(told)
        planned = Groups(waiting.state.snapshot(waiting.now))
        assert Groups(told).links == planned.links
        assert {ref: waiting.names.of_gang(ref) for ref in planned.every()} == {
            ref: planned.id_of(ref) for ref in planned.every()
        }


def test_a_quota_that_says_nothing_of_quotas_wakes_nobody() -> None:
    waiting = Waiting()
    one = quota("q", 0, 10)
    waiting.quotas.upsert(replace(one, metadata=replace(one.metadata, annotations={"example.com/turn": "1"})), None)
    assert waiting.tried() == set()
    waiting.quotas.upsert(quota("q", 0, 20), None)
    assert "default/alone" in waiting.tried()


def test_a_quota_that_does_not_count_wakes_nobody() -> None:
    waiting = Waiting(Settings(namespaces=["koordpy-system"]))
    waiting.quotas.upsert(quota("q", 0, 20), None)
    waiting.quotas.delete(quota("q", 0, 20))
    assert waiting.tried() == set()
    assert not waiting.queue._wakes & Wake.QUOTA
