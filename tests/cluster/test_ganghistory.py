"""What a gang's Succeeded members count for, whether or not their pods are there (gang-network.md 2.4)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.groups import PodGroup, PodGroupStatus
from koordpy.api.objects import (
    Condition,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    OwnerReference,
    Pod,
)
from koordpy.cluster.members import Members
from koordpy.cluster.pods import GangRef
from koordpy.cluster.state import ClusterState
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
    return state.gang(REF)


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


def test_another_part_of_the_same_run_counts_where_it_ended_after_the_others_began() -> None:
    made = world(
        member("driver", owner="js-driver", phase="Succeeded", ended=60), member("w", owner="js-w", phase="Running")
    )
    assert gang(made.state).succeeded == 1
    forget(made, "driver")
    made.add(member("w-1", owner="js-w", created=90))
    assert (gang(made.state).succeeded, gang(made.state).done) == (1, 0)


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


def test_what_is_remembered_goes_with_the_group() -> None:
    made = world(member("a", owner="j", phase="Succeeded", ended=5), member("b", owner="j", phase="Running"), least=1)
    forget(made, "a", "b")
    assert gang(made.state).past.gone
    made.state.delete(PodGroup, "default/g")
    assert not gang(made.state).past.gone and not made.state.snapshot(0.0).pasts
