# SPDX-License-Identifier: Apache-2.0
"""What a gang's Succeeded members count for, whether or not their pods are there (gang-network.md 2.4)."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Condition,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    OwnerReference,
    Pod,
)
from koordpy.api.pod_groups import PodGroup, PodGroupStatus
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.gang_book import MOST_WITHOUT_PODS
from koordpy.cache.gang_history import MOST_KEPT
from koordpy.cache.gang_members import Members
from koordpy.pods.gang_refs import GangRef, GangSource
from tests.cluster.test_hostile import calls_of
from tests.scenarios.cluster import World, group, node, pod

REF = GangRef("default", "g")


def member(name: str, *, owner: str = "", phase: str = "", at: str = "", created: int = 0, ended: int = 0) -> Pod:
    """A member; created, ended: seconds after midnight."""
    made = pod(
        name, gang="g", phase=phase, at=at or ("n" if phase in ("Running", "Succeeded") else ""), created=created
    )
    if owner:
        reference = OwnerReference(kind="Job", name=owner, uid=owner, controller=True)
        made = replace(made, metadata=replace(made.metadata, owner_references=[reference]))
    if ended:
        at_text = f"2026-01-01T00:{ended // 60:02}:{ended % 60:02}Z"
        state = ContainerState(terminated=ContainerStateTerminated(finished_at=at_text))
        made = replace(
            made, status=replace(made.status, container_statuses=[ContainerStatus(name="main", state=state)])
        )
    return made


def world(*pods: Pod, least: int = 4, status: PodGroupStatus | None = None) -> World:
    made: PodGroup = replace(group("g", least), status=status or PodGroupStatus())
    return World().add(node("n:9"), made, *pods)


def gang(state: ClusterState) -> Members:
    return state.gangs.gang(REF)


def forget(made: World, *names: str) -> None:
    """These pods are deleted."""
    for name in names:
        made.state.delete(Pod, f"default/{name}")


def test_a_succeeded_member_counts_on_when_its_pod_is_deleted() -> None:
    made = world(member("a", owner="j", phase="Succeeded", ended=9), member("b", owner="j", phase="Running"))
    forget(made, "a")
    made.add(member("c", owner="j"))
    assert (gang(made.state).succeeded, gang(made.state).done, len(gang(made.state).ended)) == (1, 1, 1)


def test_a_running_or_failed_pod_that_is_deleted_counts_for_nothing() -> None:
    made = world(member("a", owner="j", phase="Running"), member("b", owner="j", phase="Failed", ended=9))
    forget(made, "a", "b")
    made.add(member("c", owner="j"))
    assert gang(made.state).succeeded == gang(made.state).done == 0


@pytest.mark.parametrize(
    ("ended_owner", "waiting_owner", "counts"),
    [("j", "j", True), ("j", "k", False), ("", "", True), ("", "k", False), ("j", "", False)],
)
def test_succeeded_pods_stand_for_pods_of_their_own_controller(
    ended_owner: str, waiting_owner: str, counts: bool
) -> None:
    made = world(
        member("a", owner=ended_owner, phase="Succeeded", ended=5), member("b", owner=waiting_owner, created=9)
    )
    assert gang(made.state).done == counts


def deleted(one: Pod, at: str) -> Pod:
    """With 30 s of grace; at: until when, minute:second."""
    said = {"deletion_timestamp": f"2026-01-01T00:{at}Z", "deletion_grace_period_seconds": 30}
    return replace(one, metadata=replace(one.metadata, **said))


def disrupted(one: Pod) -> Pod:
    evicted = Condition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
    return replace(one, status=replace(one.status, conditions=[evicted]))


@pytest.mark.parametrize("owner", ["j", ""])
@pytest.mark.parametrize(
    "end", [lambda one: deleted(one, "00:33"), disrupted, lambda one: disrupted(deleted(one, "00:33"))]
)
def test_a_member_that_was_evicted_and_exits_0_has_not_succeeded(end: Callable[[Pod], Pod], owner: str) -> None:
    made = world(end(member("a", owner=owner, phase="Succeeded", ended=5)), member("b", owner=owner))
    found = gang(made.state)
    assert (found.succeeded, found.done, [pod.name for pod in found.failed]) == (0, 0, ["a"])
    forget(made, "a")
    found = gang(made.state)
    assert (found.succeeded, found.done, found.failed) == (0, 0, ())


def test_a_member_that_ended_before_its_deletion_was_asked_for_has_succeeded() -> None:
    made = world(deleted(member("a", owner="j", phase="Succeeded", ended=5), "00:36"), member("b", owner="j"))
    assert (gang(made.state).succeeded, gang(made.state).done) == (1, 1)
    forget(made, "a")
    assert (gang(made.state).succeeded, gang(made.state).done) == (1, 1)


def test_a_member_that_is_seen_to_succeed_before_its_eviction_is_seen_is_counted_no_more_then() -> None:
    made = world(member("a", owner="j", phase="Succeeded", ended=5), member("b", owner="j"))
    assert gang(made.state).succeeded == 1
    made.add(deleted(member("a", owner="j", phase="Succeeded", ended=5), "00:33"))
    assert gang(made.state).succeeded == 0
    forget(made, "a")
    assert gang(made.state).succeeded == 0


def test_a_pod_without_an_owner_that_is_gone_stands_for_nobody() -> None:
    made = world(member("a", phase="Succeeded", ended=5))
    forget(made, "a")
    made.add(member("b"))
    assert gang(made.state).done == 0


def test_a_pod_of_the_name_takes_back_what_was_remembered() -> None:
    made = world(member("a", owner="j", phase="Succeeded", ended=5), member("b", owner="j", phase="Running"))
    forget(made, "a")
    made.add(member("a", owner="j", created=9))
    assert gang(made.state).succeeded == 0


def test_a_new_run_begins_with_nobody() -> None:
    made = world(*(member(name, owner="j", phase="Succeeded", ended=5) for name in "ab"))
    forget(made, "a")
    made.add(member("c", owner="k", created=9))
    found = gang(made.state)
    assert (found.succeeded, found.done) == (0, 0)


def test_a_run_that_is_gone_leaves_nothing_of_the_one_before() -> None:
    made = world(*(member(name, owner="j", phase="Succeeded", ended=5) for name in "ab"))
    made.add(member("c", owner="k", phase="Running", created=9))
    forget(made, "a", "b")
    assert gang(made.state).succeeded == 0
    forget(made, "c")
    assert gang(made.state).succeeded == 0


def test_another_part_of_the_same_run_counts_where_it_ended_after_the_others_began() -> None:
    made = world(
        member("driver", owner="js-driver", phase="Succeeded", ended=60), member("w", owner="js-w", phase="Running")
    )
    assert gang(made.state).succeeded == 1
    forget(made, "driver")
    made.add(member("w-1", owner="js-w", created=90))
    assert (gang(made.state).succeeded, gang(made.state).done) == (1, 1)


TOLD = PodGroupStatus(scheduled=4, succeeded=3, departed=2, occupied_by_uid="j")


@pytest.mark.parametrize(
    ("status", "there", "succeeded", "done"),
    [
        (TOLD, [("a", "Succeeded")], 3, 3),  # two were gone already, and it is known of whom
        (TOLD, [], 3, 3),  # the third was deleted while nobody looked
        (TOLD, [("a", "Succeeded"), ("b", "Succeeded"), ("c", "Succeeded")], 5, 5),  # two have Succeeded meanwhile
        (replace(TOLD, occupied_by_uid=""), [("a", "Succeeded")], 3, 1),  # by whom is not known
        (PodGroupStatus(), [("a", "Succeeded")], 1, 1),
    ],
)
def test_a_process_that_starts_anew_takes_what_the_status_tells(
    status: PodGroupStatus, there: list[tuple[str, str]], succeeded: int, done: int
) -> None:
    pods = [member(name, owner="j", phase=phase, ended=5) for name, phase in there]
    made = world(*pods, member("w", owner="j", created=1), status=status)
    assert (gang(made.state).succeeded, gang(made.state).done) == (succeeded, done)
    # what koordpy writes later is its own word and adds nothing
    made.add(replace(group("g", 4), status=replace(status, succeeded=9, departed=9)))
    assert gang(made.state).succeeded == succeeded


def test_of_another_run_what_the_status_tells_stands_for_nobody() -> None:
    made = world(member("w", owner="k", created=1), status=TOLD)
    assert (gang(made.state).succeeded, gang(made.state).done) == (0, 0)


def test_what_a_gang_once_had_is_what_it_had_when_its_minimum_was_met() -> None:
    def whole(made: World) -> int:
        return gang(made.state).past.whole

    made = world(*(member(name, owner="j", phase="Running") for name in "abcd"))
    assert whole(made) == 4
    made.add(group("g", 8))
    assert whole(made) == 4  # the minimum was raised
    made.add(member("e", owner="j", phase="Running"))
    assert whole(made) == 5
    forget(made, "a")
    assert whole(made) == 5
    made.add(group("g", 4))
    assert whole(made) == 4  # it has its minimum as it is
    forget(made, "b", "c", "d", "e")
    assert whole(made) == 0


@pytest.mark.parametrize(
    ("conditions", "whole"),
    [
        ([], 3),
        ([Condition(type="Stale", status="True", reason="MembersMissing")], 0),
        ([Condition(type="Stale", status="False", reason="MinimumMet")], 3),
    ],
)
def test_what_a_gang_once_had_is_told_by_its_status_unless_members_are_missing(
    conditions: list[Any], whole: int
) -> None:
    pods = [member(name, phase="Running") for name in "abc"]
    made = world(*pods, least=8, status=PodGroupStatus(scheduled=3, conditions=conditions))
    assert gang(made.state).past.whole == whole


@pytest.mark.parametrize("pods_first", [True, False])
def test_what_is_remembered_goes_with_the_last_pod_and_the_group(pods_first: bool) -> None:
    made = world(member("a", owner="j", phase="Succeeded", ended=5), member("b", owner="j", phase="Running"), least=1)
    assert gang(made.state).past.whole
    forget(made, "a")
    if pods_first:
        forget(made, "b")
        assert gang(made.state).past.gone
        made.state.delete(PodGroup, "default/g")
    else:
        made.state.delete(PodGroup, "default/g")
        assert gang(made.state).past.gone
        forget(made, "b")
    assert not gang(made.state).past.gone and not made.state.snapshot(0.0).pasts


def test_a_group_that_is_made_again_finds_its_members_as_they_were() -> None:
    made = world(*(member(name, owner="j", phase="Succeeded", ended=5) for name in "ab"))
    made.add(*(member(name, owner="j", phase="Running") for name in "cd"))
    assert gang(made.state).past.whole == 4
    forget(made, "a", "b")
    made.state.delete(PodGroup, "default/g")
    made.add(group("g", 4))
    assert (gang(made.state).succeeded, gang(made.state).past.whole) == (2, 4)


def whole(made: World) -> int:
    return gang(made.state).past.whole


def test_members_of_a_job_that_has_ended_are_none_of_the_next() -> None:
    made = world(*(member(name, owner="j", phase="Succeeded", ended=5) for name in "abcd"))
    made.add(*(member(name, owner="k", phase="Running", created=9) for name in "efgh"))
    assert whole(made) == 4
    made.add(group("g", 8))  # nobody is lost where the minimum is raised
    assert whole(made) == gang(made.state).present == 4


def test_what_the_job_before_once_had_is_forgotten_though_its_pods_are_still_ending() -> None:
    made = world(*(member(name, owner="j", phase="Running") for name in "abcd"))
    assert whole(made) == 4
    made.add(group("g", 8))
    for name in "abcd":
        going = member(name, owner="j", phase="Running")
        made.add(replace(going, metadata=replace(going.metadata, deletion_timestamp="2026-01-01T00:00:09Z")))
    # five of eight Bindings have come through
    made.add(*(member(name, owner="k", phase="Running", created=9) for name in "efghi"))
    forget(made, *"abcd")
    assert (gang(made.state).present, whole(made)) == (5, 0)


def test_a_job_whose_pods_are_orphaned_has_lost_nobody() -> None:
    made = world(*(member(name, owner="j", phase="Running") for name in "abcd"))
    assert whole(made) == 4
    made.add(group("g", 8), *(member(name, phase="Running") for name in "abcd"))
    assert (gang(made.state).present, whole(made)) == (4, 4)


def test_pods_without_an_owner_that_are_gone_count_for_their_own_run() -> None:
    made = world(member("a", phase="Succeeded", ended=5), member("b", phase="Running"))
    forget(made, "a")
    assert gang(made.state).succeeded == gang(made.state).deleted_succeeded == 1
    forget(made, "b")
    made.add(member("c", phase="Running", created=9))
    assert gang(made.state).succeeded == 0


@pytest.mark.parametrize(("since", "succeeded"), [("00:00:00", 3), ("00:00:09", 3), ("00:00:07", 0)])
def test_a_status_that_names_no_owner_counts_where_pods_are_as_old_as_it_is(since: str, succeeded: int) -> None:
    scheduled = Condition(type="Scheduled", status="True", last_transition_time=f"2026-01-01T{since}Z")
    told = replace(TOLD, occupied_by_uid="", conditions=[scheduled])
    created = 0 if since == "00:00:00" else 9
    made = world(*(member(name, owner=name, phase="Running", created=created) for name in "vw"), least=8, status=told)
    assert (gang(made.state).succeeded, whole(made)) == (succeeded, 4 + 1 if succeeded else 0)


def test_pods_of_an_earlier_job_hide_none_that_were_deleted_while_nobody_looked() -> None:
    before = [member(name, owner="i", phase="Succeeded", ended=5) for name in "xy"]
    pods = [member("a", owner="j", phase="Succeeded", created=9, ended=20), member("w", owner="j", created=9)]
    made = world(*before, *pods, status=replace(TOLD, departed=0))
    assert (gang(made.state).succeeded, gang(made.state).done, gang(made.state).deleted_succeeded) == (3, 3, 2)


@pytest.mark.parametrize(("owner", "once"), [("j", 4), ("k", 0)])
def test_what_a_gang_once_had_is_told_of_its_own_run(owner: str, once: int) -> None:
    pods = [member(name, owner=owner, phase="Running", created=9) for name in "abcd"]
    told = PodGroupStatus(scheduled=4, occupied_by_uid="j")
    assert whole(world(*pods, least=8, status=told)) == once


def test_of_a_world_that_is_half_read_nothing_is_counted() -> None:
    made = World().add(node("n:9"), replace(group("g", 8), status=replace(TOLD, scheduled=8, succeeded=5)))
    made.add(*(member(name, owner="j", phase="Succeeded", ended=5) for name in "abc"))
    made.add(*(member(name, owner="j", phase="Running") for name in "de"))
    # as a relist tells it: those that are gone came first
    forget(made, "a")
    made.add(*(member(name, owner="j", phase="Running") for name in "fg"))
    assert (gang(made.state).succeeded, gang(made.state).present, whole(made)) == (5, 9, 9)


def test_a_gang_that_a_pod_has_left_has_it_no_more() -> None:
    made = world(member("a", owner="j", phase="Running"), least=1)
    assert whole(made) == 1
    other = member("a", owner="j", phase="Running")
    made.add(replace(other, metadata=replace(other.metadata, labels={})))
    assert not made.state.snapshot(0.0).pasts


def test_a_completed_driver_whose_pod_is_there_is_not_counted_again_after_a_restart() -> None:
    told = PodGroupStatus(scheduled=3, succeeded=1, occupied_by_uid="w")
    made = world(
        member("driver", owner="d", phase="Succeeded", ended=60),
        member("w-0", owner="w", phase="Running"),
        member("w-1", owner="w", phase="Running"),
        status=told,
    )
    assert (gang(made.state).succeeded, gang(made.state).deleted_succeeded) == (1, 0)


def test_who_ran_beside_the_workers_counts_when_none_of_them_is_left() -> None:
    made = world(
        member("driver", owner="d", phase="Running"),
        *(member(f"w-{i}", owner="w", phase="Running") for i in range(3)),
    )
    assert gang(made.state).done == 0
    made.add(member("driver", owner="d", phase="Succeeded"))  # nobody says when
    forget(made, "w-0", "w-1", "w-2")
    made.add(*(member(f"v-{i}", owner="w", created=600) for i in range(3)))
    assert gang(made.state).done == 1
    forget(made, "driver")
    assert gang(made.state).done == 1
    forget(made, "v-0", "v-1", "v-2")
    made.add(*(member(f"n-{i}", owner="another", created=900) for i in range(3)))
    assert gang(made.state).done == 0


def named(name: str, **said: Any) -> Pod:
    """A member of a gang without an object."""
    made = member(name, **said)
    notes = {keys.GANG_NAME: "g", keys.GANG_MIN: "3"}
    return replace(made, metadata=replace(made.metadata, labels={}, annotations=notes))


@pytest.mark.parametrize("driver_first", [True, False])
@pytest.mark.parametrize("has_object", [True, False])
def test_a_driver_counts_for_workers_that_are_made_again_when_none_of_either_is_left(
    has_object: bool, driver_first: bool
) -> None:
    made_by, ref = (member, REF) if has_object else (named, GangRef("default", "g", GangSource.NAMED))
    workers = [made_by(f"w-{i}", owner="w", phase="Running") for i in range(2)]
    made = world(made_by("driver", owner="d", phase="Running"), *workers, least=3)

    def found() -> tuple[int, int]:
        gang = made.state.gangs.gang(ref)
        return gang.done, gang.succeeded

    assert found() == (0, 0)
    made.add(made_by("driver", owner="d", phase="Succeeded", ended=60))
    if driver_first:
        forget(made, "driver")
    forget(made, "w-0", "w-1")
    if not driver_first:
        forget(made, "driver")
    made.add(made_by("v-0", owner="w", created=600))
    assert found() == (1, 1)
    made.add(made_by("v-0", owner="w", phase="Running", created=600))
    assert found()[1] == 1
    forget(made, "v-0")
    made.add(made_by("x-0", owner="later", created=900))
    assert found() == (0, 0)


def test_a_driver_whose_pod_is_there_counts_in_the_status_of_workers_that_are_made_again() -> None:
    workers = [member(f"w-{i}", owner="w", phase="Running") for i in range(2)]
    made = world(member("driver", owner="d", phase="Running"), *workers, least=3)
    assert gang(made.state).present == 3
    made.add(member("driver", owner="d", phase="Succeeded", ended=60))
    forget(made, "w-0", "w-1")
    made.add(*(member(f"v-{i}", owner="w", phase="Running", created=600) for i in range(2)))
    found = gang(made.state)
    assert (found.succeeded, found.present, found.past.whole) == (1, 3, 3)
    assert not [ref for ref, tally, need in made.state.gangs.tallies() if tally.half_bound(need)]


@pytest.mark.parametrize(
    ("told", "waiting", "done"),
    [("d,w", "w", 1), ("d,w", "d", 1), ("d,w", "later", 0), ("d", "w", 0)],
)
@pytest.mark.parametrize("there", [True, False])
def test_who_ran_beside_the_workers_is_told_by_the_status(told: str, waiting: str, done: int, there: bool) -> None:
    status = PodGroupStatus(succeeded=1, departed=0 if there else 1, scheduled=1, occupied_by_uid=told)
    driver = [member("driver", owner="d", phase="Succeeded", ended=60)] if there else []
    made = world(*driver, status=status, least=3)
    assert gang(made.state).succeeded == 1
    made.add(*(member(f"v-{i}", owner=waiting, created=600) for i in range(2)))
    assert (gang(made.state).done, gang(made.state).succeeded) == (done, done)


def test_a_gang_without_an_object_is_forgotten_when_many_others_ended_after_it() -> None:
    made = World().add(node("n:9"))
    for i in range(MOST_WITHOUT_PODS + 1):
        one = named(f"a-{i}", owner="j", phase="Succeeded", ended=5)
        notes = {keys.GANG_NAME: f"g{i}", keys.GANG_MIN: "1"}
        made.add(replace(one, metadata=replace(one.metadata, annotations=notes)))
        forget(made, f"a-{i}")
    kept = {ref.name for ref in made.state.snapshot(0.0).pasts}
    assert len(kept) == MOST_WITHOUT_PODS and "g0" not in kept


def test_pods_of_a_finished_worker_without_its_node_tell_that_it_ran() -> None:
    made = world(member("driver", owner="d", phase="Succeeded", ended=60))
    lost = member("w-0", owner="w", phase="Failed")
    made.add(replace(lost, spec=replace(lost.spec, node_name="")), member("v-0", owner="w", created=600))
    assert gang(made.state).done == 1


def test_pods_of_an_earlier_job_that_are_still_ending_are_no_members_of_the_next() -> None:
    ending = []
    for i in range(3):
        one = member(f"a-{i}", owner="old", phase="Running")
        ending.append(replace(one, metadata=replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")))
    made = world(*ending)
    assert len(gang(made.state).members) == 3
    made.add(*(member(f"b-{i}", owner="new", created=60) for i in range(2)))
    assert [pod.name for pod in gang(made.state).members] == ["b-0", "b-1"]


def test_pods_of_a_job_that_was_made_again_under_its_name_are_no_members_before_they_are_deleted() -> None:
    def of_train(name: str, uid: str, **said: Any) -> Pod:
        one = member(name, owner=uid, **said)
        (owner,) = one.metadata.owner_references
        return replace(one, metadata=replace(one.metadata, owner_references=[replace(owner, name="train")]))

    made = world(of_train("a-0", "old", phase="Succeeded", ended=50), of_train("a-1", "old", phase="Running"), least=2)
    made.add(*(of_train(f"b-{i}", "new", created=60) for i in range(2)))
    found = gang(made.state)
    assert [pod.name for pod in found.members] == ["b-0", "b-1"]
    assert (found.done, found.succeeded) == (0, 0)
    # one that ran beside it, under a name of its own, goes on
    made.add(member("driver", owner="driver", phase="Running"))
    assert [pod.name for pod in gang(made.state).members] == ["b-0", "b-1", "driver"]


def test_of_a_gang_that_10000_members_left_a_bounded_number_is_remembered_and_goes_with_it() -> None:
    cluster = world(member("w-0", owner="job", phase="Running"), member("w-1", owner="job"))

    def ends(number: int) -> None:
        cluster.add(member(f"d-{number}", owner="job", phase="Succeeded", ended=number % 3000))
        cluster.state.delete(Pod, f"default/d-{number}")

    def rounds(number: int) -> int:
        return calls_of(lambda: (ends(number), cluster.plan()))

    few = rounds(0)
    for number in range(1, MOST_KEPT):
        ends(number)
    assert gang(cluster.state).succeeded == MOST_KEPT
    many = rounds(MOST_KEPT)
    assert many < few + 6 * MOST_KEPT
    for number in range(MOST_KEPT, MOST_KEPT + 2000):
        ends(number)
    assert gang(cluster.state).succeeded == MOST_KEPT
    assert rounds(MOST_KEPT + 2000) < many + few

    for name in ("w-0", "w-1"):
        cluster.state.delete(Pod, f"default/{name}")
    cluster.state.delete(PodGroup, "default/g")
    assert cluster.snapshot().pasts == {}
