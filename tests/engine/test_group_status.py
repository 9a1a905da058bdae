"""What PodGroups say: phases, whose groups are written to, and how often (kube-parity.md 4.5)."""

import pytest
from msgspec.structs import replace

from koordpy.api.objects import Condition, Pod
from koordpy.cluster.members import Members
from koordpy.cluster.pods import pod_info
from koordpy.engine.status.group_status import counts_of, phase_of
from tests.engine.live import gang, live, small, until
from tests.scenarios import cluster

NAMES = frozenset({"koord-scheduler"})


def member(text: str, number: int) -> Pod:
    """`Running`, `bound`, `Pending`, `Succeeded`, `Failed`, `deleted` (Failed by that) or `evicted`."""
    phase = {"bound": "Pending", "deleted": "Failed", "evicted": "Failed"}.get(text, text)
    made = cluster.pod(f"p-{number}", gang="g", at="" if text == "Pending" else "n", phase=phase)
    if text == "deleted":
        return replace(made, metadata=replace(made.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    if text == "evicted":
        marked = [Condition(type="DisruptionTarget", status="True")]
        return replace(made, status=replace(made.status, conditions=marked))
    return made


@pytest.mark.parametrize(
    ("pods", "need", "phase"),
    [
        ("", 2, "Pending"),
        ("Pending", 2, "Pending"),
        ("Pending Pending", 2, "Scheduling"),
        ("bound Pending", 2, "Scheduling"),
        ("bound bound", 2, "Scheduled"),
        ("bound Running", 2, "Scheduled"),
        ("Running Running Pending", 2, "Running"),
        ("Running Succeeded", 2, "Running"),
        ("Succeeded Succeeded", 2, "Finished"),
        ("Succeeded Succeeded Pending", 2, "Scheduling"),
        ("Succeeded Succeeded Running", 2, "Running"),
        ("Succeeded Failed", 2, "Failed"),
        ("Running Failed", 2, "Failed"),
        ("Running Failed Pending", 2, "Scheduling"),
        ("Running Failed Running", 2, "Running"),
        ("Running deleted", 2, "Pending"),
        ("deleted deleted", 2, "Pending"),
        ("evicted evicted Pending Pending", 2, "Scheduling"),
        ("evicted evicted", 2, "Pending"),
    ],
)
def test_phases(pods: str, need: int, phase: str) -> None:
    made = [pod_info(member(text, i), scheduler_names=NAMES) for i, text in enumerate(pods.split())]
    found = Members(pods=tuple(made))
    assert phase_of(found, counts_of(found), need=need) == phase


async def test_groups_of_other_schedulers_are_left_alone() -> None:
    async with live([small("n")]) as cluster:
        group, *pods = gang("theirs", 2, gpus=1)
        for each in pods:
            each["spec"]["schedulerName"] = "another"
        cluster.create(group, *pods, *gang("ours", 1, gpus=1))
        cluster.create(gang("empty", 1)[0])
        async with cluster.running():
            await until(lambda: cluster.group("ours").get("phase") == "Scheduled")
            cluster.delete("theirs-1")
            cluster.create(*gang("later", 1, gpus=1))
            await until(lambda: cluster.group("later").get("phase") == "Scheduled")
            assert (cluster.group("theirs"), cluster.group("empty")) == ({}, {})
            # a group that was ours goes on saying what is
            cluster.delete("ours-0")
            await until(lambda: cluster.group("ours").get("phase") == "Pending")
            assert cluster.group("ours")["scheduled"] == 0


async def test_counts_of_nobody_are_shown() -> None:
    async with live([small("n")]) as cluster:
        cluster.create(*gang("g", 2, gpus=8))
        async with cluster.running():
            await until(lambda: cluster.group("g").get("phase") == "Scheduling")
            counts = {name: cluster.group("g").get(name) for name in ("scheduled", "running", "succeeded", "failed")}
            assert counts == {"scheduled": 0, "running": 0, "succeeded": 0, "failed": 0}
