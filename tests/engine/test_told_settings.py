# SPDX-License-Identifier: Apache-2.0
"""Settings that nobody reads, or that say nothing, are told by an event on their object, once."""

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.config.configuration import GangDefaults, Gangs, GatherEntry, KoordpyConfiguration
from koordpy.observe.message_rates import MOST_OF_A_NAMESPACE, MOST_SUBJECTS, MOST_TEXTS, SentMessages
from tests.clusters import training_cluster
from tests.engine.live import Live, gang, in_virtual_time, live, pod, small, until

QUOTAS, GROUPS = "elasticquotas.scheduling.sigs.k8s.io", "podgroups.scheduling.sigs.k8s.io"
DEVICES = "devices.scheduling.koordinator.sh"
TOPOLOGIES = "clusternetworktopologies.scheduling.koordinator.sh"
TYPO = keys.GANG_PREFIX + "networkTopology"
MEANT = f"annotation {TYPO} is not read, did you mean annotation {keys.GANG_TOPOLOGY}?"
STRANGE = keys.GANG_PREFIX + "colour"
NAMED = {keys.GANG_NAME: "g", keys.GANG_MIN: "2"}


def told(cluster: Live, reason: str = "InvalidAnnotation") -> list[tuple[str, str, str]]:
    """(kind, name, note) of each event, in natural order of the notes."""
    found = [event for event in cluster.events() if event["reason"] == reason]
    return sorted((e["involvedObject"]["kind"], e["involvedObject"]["name"], e["message"]) for e in found)


def owned(name: str, **options: Any) -> dict[str, Any]:
    """A small pod of a training."""
    made = pod(name, gpus=0, cpu="1", memory="1Mi", **options)
    owner = {"apiVersion": "example.com/v1", "kind": "Training", "name": "train", "uid": "u-train", "controller": True}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [owner]}}


async def test_a_key_that_nobody_reads_is_told_on_each_kind_of_object() -> None:
    odd = small("n1")
    odd["metadata"]["labels"] = {**odd["metadata"].get("labels", {}), "koordpy.io/maintenance-window": "later"}
    async with live([odd]) as cluster, cluster.running():
        store = cluster.server.store
        store.create(
            QUOTAS,
            {
                "metadata": {"name": "q", "labels": {keys.QUOTA_PREFIX + "is-parents": "true"}},
                "spec": {"max": {"cpu": "9"}},
            },
        )
        store.create(
            DEVICES,
            {"metadata": {"name": "n1", "labels": {"scheduling.koordinator.sh/delivery-mode": "env"}}, "spec": {}},
        )
        cluster.create(*gang("g", 2, annotations={TYPO: "{}"}, gpus=1))
        cluster.create(owned("p", annotations={"scheduling.k8s.io/group-name": "train"}))
        await until(lambda: cluster.bound("p"))
        await until(lambda: len({kind for kind, _, _ in told(cluster)}) == 5)
        assert not cluster.bound("g-0", "g-1")
        assert told(cluster) == [
            ("Device", "n1", "label scheduling.koordinator.sh/delivery-mode is not read by koordpy"),
            (
                "ElasticQuota",
                "q",
                f"label {keys.QUOTA_PREFIX}is-parents is not read, did you mean label {keys.QUOTA_IS_PARENT}?",
            ),
            ("Node", "n1", "label koordpy.io/maintenance-window is not read yet"),
            (
                "Pod",
                "p",
                "annotation scheduling.k8s.io/group-name is Volcano's key and ignored: the pod is in no gang;"
                f" {keys.READ_GROUP}",
            ),
            ("PodGroup", "g", MEANT),
            ("PodGroup", "g", f"gang default/g: {MEANT}"),
        ]


async def test_an_object_is_told_once_and_again_when_it_is_made_anew() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        for _ in range(2):
            group, *members = gang("g", 2, annotations={STRANGE: "{}"}, gpus=1)
            cluster.create(group, *members)
            await until(lambda: cluster.bound("g-0", "g-1"))
            cluster.delete("g-0")
            cluster.create(members[0])
            await until(lambda: cluster.bound("g-0", "g-1"))
            cluster.delete("g-0")
            cluster.delete("g-1")
            cluster.server.store.delete(GROUPS, "g", namespace="default")
        await until(lambda: len(told(cluster)) == 2)
        assert told(cluster) == [("PodGroup", "g", f"annotation {STRANGE} is not read by koordpy")] * 2


@in_virtual_time
async def test_what_all_pods_of_a_job_say_is_told_once() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(*(owned(f"p-{i}", annotations={"scheduling.k8s.io/group-name": "train"}) for i in range(3)))
        await until(lambda: cluster.bound("p-0", "p-1", "p-2") and told(cluster))
        await asyncio.sleep(5)
        ((kind, _, note),) = told(cluster)
        assert (kind, note.split()[1]) == ("Pod", "scheduling.k8s.io/group-name")


async def test_a_setting_that_says_nothing_or_cannot_be_read_is_told_on_the_pod_group() -> None:
    empty = json.dumps({"gatherStrategy": [{"layer": "nodeLayer", "strategy": "PreferGather", "podCountMultiple": 0}]})
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(*gang("loose", 2, min_member=0, gpus=0))
        cluster.create(*gang("timed", 1, annotations={keys.MAX_RUNTIME: "4 hours"}, gpus=0))
        cluster.create(*gang("counted", 1, annotations={keys.GANG_TOPOLOGY: empty}, gpus=0))
        await until(lambda: len(told(cluster)) == 3)
        assert told(cluster) == [
            ("PodGroup", "counted", "networkTopologyAware: gatherStrategy[0].podCountMultiple: 0 has no effect"),
            ("PodGroup", "loose", "spec.minMember is 0: its pods start one by one"),
            (
                "PodGroup",
                "timed",
                f"annotation {keys.MAX_RUNTIME} cannot be read: '4 hours' is no duration (as in 30s, 1h30m): "
                "its end is not known",
            ),
        ]


async def test_of_two_quotas_for_one_namespace_the_loser_is_told() -> None:
    def quota(name: str, *spaces: str) -> None:
        notes = {keys.QUOTA_NAMESPACES: json.dumps(spaces)} if spaces else {}
        meta = {"name": name, "annotations": notes}
        cluster.server.store.create(QUOTAS, {"metadata": meta, "spec": {"max": {"cpu": "9"}}})

    async with live([small("n1")]) as cluster, cluster.running():
        quota("a", "shared", "default")
        quota("b", "shared")
        quota("default")
        cluster.pod("p")
        await until(lambda: len(told(cluster)) == 2)
        where = f"metadata.annotations[{keys.QUOTA_NAMESPACES}]"
        assert told(cluster) == [
            (
                "ElasticQuota",
                "a",
                f"annotation {keys.QUOTA_NAMESPACES}: namespace default belongs to ElasticQuota default/default",
            ),
            (
                "ElasticQuota",
                "b",
                f"{where}: namespace shared is listed by ElasticQuota default/a already "
                "(the older one keeps it: list it once)",
            ),
        ]


@pytest.mark.parametrize("owner", [True, False], ids=["of a training", "of nobody"])
async def test_a_gang_without_an_object_has_its_events_on_the_owner_of_its_pods_or_on_the_oldest(owner: bool) -> None:
    about = ("Training", "train") if owner else ("Pod", "p-0")
    async with live([small("n1", cpu=1)]) as cluster, cluster.running():
        for i in range(2):
            made = owned(f"p-{i}", annotations=NAMED)
            cluster.create(made if owner else {**made, "metadata": {**made["metadata"], "ownerReferences": []}})
        await until(lambda: told(cluster, "GangUnschedulable"))
        ((*subject, note),) = told(cluster, "GangUnschedulable")
        assert tuple(subject) == about and "gang default/g: needed 2, available in the cluster: 1" in note
        cluster.create(small("n2"))
        await until(lambda: cluster.bound("p-0", "p-1"))
        await until(lambda: told(cluster, "GangScheduled"))
        assert told(cluster, "GangScheduled") == [(*about, "2 of 2 members bound")]


@pytest.mark.parametrize("default", [False, True])
async def test_the_first_event_of_a_gang_without_a_goal_says_so(default: bool) -> None:
    tree = training_cluster(4, nodes_per_accelerator=1, accelerators_per_block=2, blocks_per_spine=2)
    gather = (GatherEntry(layer="blockLayer", strategy="PreferGather"),) if default else ()
    async with live(tree.nodes) as cluster:
        cluster.planner.config = KoordpyConfiguration(gangs=Gangs(defaults=GangDefaults(gather=gather)))
        cluster.server.store.create(TOPOLOGIES, tree.topology)
        async with cluster.running():
            cluster.create(*gang("g", 2))
            await until(lambda: told(cluster, "GangScheduled"))
            ((_, _, note),) = told(cluster, "GangScheduled")
            said = note.startswith("2 of 2 members bound; topology ignored: no gather goal set")
            assert said is not default
            assert not default or note == "2 of 2 members bound in blockLayer dc-0/spine-0/block-0"


def test_of_one_text_so_many_objects_are_told_and_each_once() -> None:
    known = SentMessages()
    assert [known.is_new(name, "text") for name in ("a", "a", "b")] == [True, False, True]
    assert sum(known.is_new(number, "text") for number in range(2 * MOST_SUBJECTS)) == MOST_SUBJECTS - 2
    assert known.is_new("a", "another text")


def test_texts_that_were_not_said_for_long_are_forgotten() -> None:
    known = SentMessages(count(0.0, 10.0).__next__)
    assert all(known.is_new("a", f"text {number}") for number in range(MOST_TEXTS + 1))
    assert known.is_new("a", "text 0")
    assert not known.is_new("a", f"text {MOST_TEXTS}")


def test_an_object_that_changes_all_the_time_is_told_ten_texts_a_minute_and_the_others_later() -> None:
    now = [0.0]
    known = SentMessages(lambda: now[0])
    assert [known.is_new("a", f"text {number}") for number in range(12)] == [True] * 10 + [False] * 2
    assert known.is_new("b", "text 11")
    now[0] = 60.0
    assert known.is_new("a", "text 11")


def test_what_a_namespace_says_uses_up_nothing_of_others() -> None:
    now = [0.0]
    known = SentMessages(lambda: now[0])
    said = [known.is_new(number, "text", "evil") for number in range(2 * MOST_SUBJECTS)]
    assert sum(said) == MOST_SUBJECTS and known.is_said("any", "text", "evil")
    assert known.is_new("a", "text", "honest")
    for turn in range(3):
        now[0] += 60.0
        said = [known.is_new(number, f"text {number} of {turn % 2}", "evil") for number in range(2 * MOST_TEXTS)]
        assert sum(said) == MOST_OF_A_NAMESPACE
    assert not known.is_new("a", "text", "honest")


def test_what_waits_for_a_minute_to_pass_is_not_said() -> None:
    known = SentMessages(lambda: 0.0)
    assert all(known.is_new(number, f"text {number}", "evil") for number in range(MOST_OF_A_NAMESPACE))
    assert not known.is_new("a", "another text", "evil") and not known.is_said("a", "another text", "evil")
