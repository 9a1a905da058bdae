# SPDX-License-Identifier: Apache-2.0
"""The status of Volcano's PodGroups: who writes what, and whose (workloads.md 9)."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from koordpy.config.configuration import Gangs
from koordpy.engine.status.volcano_status import VolcanoStatus, patch_of
from tests.engine.live import QUICK, Live, in_virtual_time, live, small, until
from tests.engine.tuning import tuned

Json = dict[str, Any]
GROUPS = "podgroups.scheduling.volcano.sh"
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def serve_groups(cluster: Live) -> None:
    """The definition of Volcano's PodGroups."""
    names = {"plural": "podgroups", "kind": "PodGroup", "listKind": "PodGroupList", "singular": "podgroup"}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "subresources": {"status": {}},
    }
    spec = {"group": "scheduling.volcano.sh", "scope": "Namespaced", "names": names, "versions": [version]}
    cluster.server.store.create(DEFINITIONS, {"metadata": {"name": GROUPS}, "spec": spec})


def group(cluster: Live, name: str, least: int, **status: Any) -> None:
    meta = {"name": name, "namespace": "default"}
    cluster.server.store.create(GROUPS, {"metadata": meta, "spec": {"minMember": least}})
    if status:
        cluster.server.store.update(
            GROUPS, name, lambda obj: {**obj, "status": status}, namespace="default", status=True
        )


KUEUE: Json = {
    "labels": {"kueue.x-k8s.io/pod-group-name": "k"},
    "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
}


def member(cluster: Live, name: str, of: str, scheduler: str = "koord-scheduler", **more: Any) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Mi"}}
    spec = {"schedulerName": scheduler, "containers": [{"name": "c", "resources": resources}]}
    meta = {"name": name, "namespace": "default", "annotations": {"scheduling.k8s.io/group-name": of}, **more}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def set_phase(cluster: Live, phase: str, *names: str) -> None:
    for name in names:
        cluster.server.store.update(
            "pods",
            name,
            lambda obj: {**obj, "status": {**obj.get("status", {}), "phase": phase}},
            namespace="default",
            status=True,
        )


def status(cluster: Live, name: str) -> Json:
    found: Json = cluster.server.store.get(GROUPS, name, "default").get("status", {})
    return found


def said(cluster: Live, name: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Phase, and (reason, message) of each condition that is True."""
    now = status(cluster, name)
    true = {
        one["type"]: (one["reason"], one["message"]) for one in now.get("conditions", ()) if one["status"] == "True"
    }
    return now.get("phase", ""), true


def counts(cluster: Live, name: str) -> tuple[int, ...]:
    return tuple(status(cluster, name).get(key, 0) for key in ("running", "succeeded", "failed"))


def is_so(cluster: Live, name: str, phase: str, type_: str, reason: str, text: str) -> Callable[[], bool]:
    def check() -> bool:
        found, true = said(cluster, name)
        return found == phase and list(true) == [type_] and true[type_][0] == reason and text in true[type_][1]

    return check


@in_virtual_time
async def test_a_group_says_how_its_gang_fares() -> None:
    async with live([small("n1", cpu=1)]) as cluster:
        serve_groups(cluster)
        async with cluster.running():
            group(cluster, "g", 2, phase="Pending")
            member(cluster, "a", "g")
            few = "gang default/g: waiting for members, 1 of minMember 2 exist"
            await until(is_so(cluster, "g", "Inqueue", "Unschedulable", "NotEnoughPods", few))
            member(cluster, "b", "g")
            room = "gang default/g: needed 2, available in the cluster: 1"
            await until(is_so(cluster, "g", "Inqueue", "Unschedulable", "NotEnoughResources", room))
            cluster.nodes(small("n2", cpu=1))
            await until(is_so(cluster, "g", "Running", "Scheduled", "Scheduled", "2 pods bound, minMember is 2"))
            false = {one["type"]: one["status"] for one in status(cluster, "g")["conditions"]}
            assert false == {"Unschedulable": "False", "Scheduled": "True"}
            set_phase(cluster, "Running", "a", "b")
            await until(lambda: counts(cluster, "g") == (2, 0, 0))
            set_phase(cluster, "Succeeded", "a")
            await until(lambda: counts(cluster, "g") == (1, 1, 0))
            assert said(cluster, "g")[0] == "Running"
            set_phase(cluster, "Failed", "b")
            await until(lambda: counts(cluster, "g") == (0, 1, 1))
            assert said(cluster, "g")[0] == "Inqueue"
            cluster.delete("b")
            await until(is_so(cluster, "g", "Completed", "Scheduled", "Scheduled", "all pods have Succeeded (1)"))
            cluster.delete("a")
            cluster.server.store.remove(GROUPS, "g", "default")
            group(cluster, "g", 1)
            member(cluster, "a", "g")
            await until(is_so(cluster, "g", "Running", "Scheduled", "Scheduled", "1 pod bound"))
            cluster.delete("a")
            await until(lambda: said(cluster, "g")[0] == "Inqueue")


@in_virtual_time
async def test_who_has_succeeded_of_a_group_of_others_is_not_waited_for() -> None:
    async with live([small("n1", cpu=4)]) as cluster:
        serve_groups(cluster)
        async with cluster.running():
            group(cluster, "g", 2)
            for name in ("a", "b"):
                member(cluster, name, "g")
            await until(lambda: cluster.bound("a", "b"))
            set_phase(cluster, "Succeeded", "a")
            cluster.delete("b")
            member(cluster, "c", "g")
            await until(lambda: cluster.bound("c"))
            # Kueue's groups alike
            for name in ("d", "e"):
                member(cluster, name, "", **KUEUE)
            await until(lambda: cluster.bound("d", "e"))
            set_phase(cluster, "Succeeded", "d")
            cluster.delete("e")
            member(cluster, "f", "", **KUEUE)
            await until(lambda: cluster.bound("f"))


@in_virtual_time
@pytest.mark.parametrize("volcano", ["read", "take", "off"])
async def test_only_take_lets_a_group_in_that_has_no_pods(volcano: Any) -> None:
    settings = tuned(QUICK, gangs=Gangs(volcano=volcano))
    async with live([small("n1", cpu=8)]) as cluster:
        serve_groups(cluster)
        group(cluster, "early", 2)
        async with cluster.running(settings):
            group(cluster, "fresh", 2)
            group(cluster, "pending", 2, phase="Pending")
            group(cluster, "runs", 2, phase="Running", running=2)
            group(cluster, "theirs", 1, phase="Unknown")
            member(cluster, "other", "theirs", scheduler="volcano")
            group(cluster, "ours", 1)
            member(cluster, "mine", "ours")
            await until(lambda: cluster.bound("mine") and (volcano == "off" or said(cluster, "ours")[0] == "Running"))
            new = "Inqueue" if volcano == "take" else ""
            wanted = {"early": new, "fresh": new, "pending": new or "Pending", "runs": "Running", "theirs": "Unknown"}
            await until(lambda: {name: said(cluster, name)[0] for name in wanted} == wanted)
            assert counts(cluster, "runs") == (2, 0, 0)


@in_virtual_time
async def test_what_another_writes_after_us_stands_until_ours_changes() -> None:
    async with live([small("n1", cpu=2)]) as cluster:
        serve_groups(cluster)
        async with cluster.running() as scheduler:
            group(cluster, "g", 1)
            member(cluster, "a", "g")
            await until(lambda: said(cluster, "g")[0] == "Running")
            writer = scheduler.writers.gangs[-1] if scheduler.writers is not None else None
            assert writer is not None
            sent = writer.sent
            other = {"type": "Other", "status": "True", "transitionID": "t"}
            cluster.server.store.update(
                GROUPS,
                "g",
                lambda obj: {**obj, "status": {**obj["status"], "phase": "Unknown", "conditions": [other]}},
                namespace="default",
                status=True,
            )
            member(cluster, "b", "g")
            await until(lambda: cluster.bound("b"))
            # the message counts pods, so one more is a change of ours; it says the phase only where that changed
            await until(lambda: writer.sent == sent + 1)
            assert other in status(cluster, "g")["conditions"]


@in_virtual_time
async def test_a_right_that_is_missing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with live([small("n1", cpu=2)]) as cluster:
        serve_groups(cluster)
        async with cluster.running():
            for name in ("g", "h"):
                group(cluster, name, 1)
            cluster.server.faults.fail(403, method="PATCH", path="*/podgroups/*/status")
            member(cluster, "a", "g")
            member(cluster, "b", "h")
            await until(lambda: "podgroups.scheduling.volcano.sh/status" in caplog.text)
            await asyncio.sleep(30)
            assert caplog.text.count("podgroups.scheduling.volcano.sh/status") == 1
            assert "its status was not written" not in caplog.text
            cluster.server.faults.clear()
            await until(lambda: {said(cluster, name)[0] for name in ("g", "h")} == {"Running"})


def test_conditions_of_others_are_kept_as_they_are() -> None:
    others = [
        {"type": "Custom", "status": "True", "transitionID": "x"},
        {"type": "Scheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]
    before = VolcanoStatus("Running", 2, 0, 0, "Scheduled", "Scheduled", "ok")
    wanted = VolcanoStatus("Inqueue", 1, 0, 0, "Unschedulable", "NotEnoughPods", "few")
    now = datetime(2026, 2, 3, tzinfo=UTC).timestamp()
    patch = patch_of(wanted, before, others, now)
    assert (patch["phase"], patch["running"], "failed" in patch) == ("Inqueue", 1, False)
    custom, scheduled, unschedulable = patch["conditions"]
    assert custom == others[0]
    assert (scheduled["status"], scheduled["lastTransitionTime"]) == ("False", "2026-02-03T00:00:00Z")
    assert (unschedulable["reason"], unschedulable["status"]) == ("NotEnoughPods", "True")
    assert patch_of(wanted, wanted, others, now) == {}
