# SPDX-License-Identifier: Apache-2.0
"""A pod that waited for nodes has another reason soon after something else stops it: a gate, an object, a quota.

An autoscaler adds nodes as long as the condition says Unschedulable (repair.md 1.2), so that it may not stay until the
next attempt, which is up to five minutes later.
"""

from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cache.snapshot import Snapshot
from koordpy.engine.grouping import UnitNames
from tests.engine.live import Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.manifests import GPU, GROUPS, QUOTAS
from tests.engine.storage import MADE, Storage, pod_with
from tests.engine.test_quotas import manifest

READY = "NotReadyForScheduling"


def reason(cluster: Live, name: str) -> Any:
    return cluster.condition(name).get("reason")


def is_deleted_slowly(cluster: Live) -> None:
    cluster.server.store.delete("pods", "g-1", namespace="default", options={"gracePeriodSeconds": 600})


def is_gone(cluster: Live) -> None:
    cluster.delete("g-1")


def loses_its_group(cluster: Live) -> None:
    cluster.server.store.remove(GROUPS, "g", "default")


def needs_more_members(cluster: Live) -> None:
    cluster.server.store.update(GROUPS, "g", lambda obj: {**obj, "spec": {"minMember": 4}}, namespace="default")


GATES = {
    is_deleted_slowly: "2 of minMember 3 exist, 1 more is being deleted",
    is_gone: "2 of minMember 3 exist",
    loses_its_group: "PodGroup not found",
    needs_more_members: "3 of minMember 4 exist",
}


@pytest.mark.parametrize("change", GATES)
@in_virtual_time
async def test_a_gang_that_lacks_nodes_hears_of_a_gate_that_closes(change: Any) -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        notes = {keys.GANG_MATCH_POLICY: "waiting-and-running"}
        group, *members = gang("g", 3, min_member=2, gpus=0, annotations=notes)
        cluster.create(group, *members[:2])
        await until(lambda: cluster.bound("g-0", "g-1"))
        cluster.server.store.update(GROUPS, "g", lambda obj: {**obj, "spec": {"minMember": 3}}, namespace="default")
        members[2]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "99"
        cluster.create(members[2])
        await until(lambda: reason(cluster, "g-2") == "Unschedulable")
        change(cluster)
        await until(lambda: reason(cluster, "g-2") == READY, seconds=9)
        assert GATES[change] in cluster.condition("g-2")["message"]


CLAIMS = "persistentvolumeclaims"


def has_no_claim(cluster: Live) -> None:
    cluster.server.store.remove(CLAIMS, "data", "default")


def has_a_claim_that_is_deleted(cluster: Live) -> None:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        return {**obj, "metadata": {**obj["metadata"], "finalizers": ["kubernetes.io/pvc-protection"]}}

    cluster.server.store.update(CLAIMS, "data", change, namespace="default")
    cluster.server.store.delete(CLAIMS, "data", namespace="default")


def has_a_claim_that_lost_its_volume(cluster: Live) -> None:
    change = lambda obj: {**obj, "status": {**obj["status"], "phase": "Lost"}}  # noqa: E731
    cluster.server.store.update(CLAIMS, "data", change, namespace="default", status=True)


def has_no_storage_class(cluster: Live) -> None:
    cluster.server.store.remove("storageclasses.storage.k8s.io", MADE)


OBJECTS = {
    has_no_claim: 'persistentvolumeclaim "data" not found',
    has_a_claim_that_is_deleted: 'persistentvolumeclaim "data" is being deleted',
    has_a_claim_that_lost_its_volume: 'persistentvolumeclaim "data" bound to non-existent persistentvolume',
    has_no_storage_class: "pod has unbound immediate PersistentVolumeClaims",
}


@pytest.mark.parametrize("change", OBJECTS)
@in_virtual_time
async def test_a_pod_that_lacks_nodes_hears_of_an_object_that_is_missing(change: Any) -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        storage = Storage(cluster.server)
        storage.classes()
        for name in ("data", "other"):
            storage.claim(name, MADE)
            cluster.create(pod_with("p" if name == "data" else "beside", name, cpu="99"))
        await until(lambda: reason(cluster, "p") == reason(cluster, "beside") == "Unschedulable")
        assert "Insufficient cpu" in cluster.condition("p")["message"]
        change(cluster)
        await until(lambda: reason(cluster, "p") == READY, seconds=9)
        assert OBJECTS[change] in cluster.condition("p")["message"]
        others_too = change is has_no_storage_class
        await until(lambda: reason(cluster, "beside") == (READY if others_too else "Unschedulable"))


@in_virtual_time
async def test_a_pod_that_never_fits_is_unschedulable_soon_after_its_claim_is_made() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        storage = Storage(cluster.server)
        storage.classes()
        cluster.create(pod_with("p", "data", cpu="99"))
        await until(lambda: reason(cluster, "p") == READY)
        storage.claim("data", MADE)
        await until(lambda: reason(cluster, "p") == "Unschedulable", seconds=9)


def in_quota(made: dict[str, Any], name: str, **labels: str) -> dict[str, Any]:
    made["metadata"].setdefault("labels", {}).update({keys.QUOTA_NAME: name, **labels})
    return made


TEAMS = {
    # max and min of the quota, labels of its pods, and what the pods that start add to it
    "max": ("4", "0", {}),
    "above": ("9", "0", {}),
    "min": ("9", "4", {keys.QUOTA_PREEMPTIBLE: "false"}),
}


@pytest.mark.parametrize("binds", ["koordpy", "another scheduler"])
@pytest.mark.parametrize("kind", ["pod", "gang"])
@pytest.mark.parametrize("team", TEAMS)
@in_virtual_time
async def test_a_unit_that_lacks_nodes_hears_that_others_have_used_up_its_quota(
    team: str, kind: str, binds: str
) -> None:
    """The quota admits 2 more; then a unit on other nodes uses 3 of its 4, directly or beside it below one parent."""
    most, least, labels = TEAMS[team]
    async with live([small("n1"), small("n2", gpus=4)]) as cluster, cluster.running():
        store = cluster.server.store
        if team == "above":
            store.create(QUOTAS, manifest("top", {}, {GPU: "4"}, labels={keys.QUOTA_IS_PARENT: "true"}))
        parent = {keys.QUOTA_PARENT: "top"} if team == "above" else {}
        store.create(QUOTAS, manifest("a", {GPU: least}, {GPU: most}, labels=parent))
        store.create(QUOTAS, manifest("b", {}, {GPU: "9"}, labels=parent))
        waiting = [pod("g-0", gpus=2, cpu="0")]
        if kind == "gang":
            group, *waiting = gang("g", 2, gpus=1)
            cluster.create(group)
        for one in waiting:
            one["spec"]["nodeSelector"] = {"to": "come"}
        cluster.create(*(in_quota(one, "a", **labels) for one in waiting))
        await until(lambda: reason(cluster, "g-0") == "Unschedulable")
        other = in_quota(pod("other", gpus=3, cpu="0"), "b" if team == "above" else "a", **labels)
        if binds == "another scheduler":
            other["spec"]["schedulerName"] = "other"
        for _ in range(2):
            cluster.create(other)
            if binds == "another scheduler":
                cluster.bind("other", "n2")
            await until(lambda: cluster.bound("other"))
            await until(lambda: reason(cluster, "g-0") == "QuotaExceeded", seconds=9)
            cluster.delete("other")
            await until(lambda: reason(cluster, "g-0") == "Unschedulable", seconds=9)


@in_virtual_time
async def test_a_gang_that_changes_just_before_its_search_is_decided_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its GangGroup changes while the search takes its snapshot, so that the search has no unit."""
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        refresh, changed = UnitNames.refresh, []

        def changing(names: UnitNames, snapshot: Snapshot) -> bool:
            for entry in scheduler.queue.entries.values():
                if entry.search is not None and len(changed) < 3:
                    changed.append(entry.unit)
                    scheduler.queue.touch(entry.unit, "PodGroupUpdate")
            return refresh(names, snapshot)

        monkeypatch.setattr(UnitNames, "refresh", changing)
        cluster.pod("low", cpu="3")
        await until(lambda: cluster.bound("low"))
        cluster.pod("p", cpu="2")
        await until(lambda: reason(cluster, "p") == "Unschedulable")
        cluster.pod("small", cpu="1")
        await until(lambda: cluster.bound("small"))
        assert changed
