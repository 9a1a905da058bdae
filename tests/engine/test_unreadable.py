# SPDX-License-Identifier: Apache-2.0
"""Objects that an API server took and koordpy cannot read, as another operator's loose definitions allow: an event on
the object says what is wrong, it is taken with caution, everything else goes on, and it counts as soon as it is mended.
"""

from collections.abc import Callable
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, Device, ElasticQuota
from koordpy.api.pod_groups import PodGroup
from koordpy.apiserver.crd_definitions import DEFINITIONS
from koordpy.engine.watching.object_substitutes import RESTRICTIONS
from tests.clusters import pod
from tests.engine.live import LONG_LEASE, QUICK, Live, live, small, until

LOOSE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
HYPERNODES = "hypernodes.topology.volcano.sh"
SHIPPED = {
    "PodGroup": "podgroups.scheduling.sigs.k8s.io",
    "ElasticQuota": "elasticquotas.scheduling.sigs.k8s.io",
    "ClusterNetworkTopology": "clusternetworktopologies.scheduling.koordinator.sh",
    "Device": "devices.scheduling.koordinator.sh",
}


def loosen(cluster: Live, name: str) -> None:
    """The definition that checks nothing."""

    def without(old: dict[str, Any]) -> dict[str, Any]:
        versions = [{**one, "schema": {"openAPIV3Schema": LOOSE}} for one in old["spec"]["versions"]]
        return {**old, "spec": {**old["spec"], "versions": versions}}

    cluster.server.store.update(DEFINITIONS, name, without)


def put(cluster: Live, kind: str, name: str, spec: Any, **meta: Any) -> None:
    cluster.server.store.create(SHIPPED[kind], {"metadata": {"name": name, **meta}, "spec": spec})


def change(cluster: Live, kind: str, name: str, spec: Any) -> None:
    resource = cluster.server.store.resource(SHIPPED[kind])
    namespace = "default" if resource.namespaced else ""
    cluster.server.store.update(SHIPPED[kind], name, lambda old: {**old, "spec": spec}, namespace=namespace)


def told(cluster: Live, reason: str = "UnreadableObject") -> dict[tuple[str, str], str]:
    """(kind, name) -> note of the last event of a reason."""
    found = [event for event in cluster.events() if event["reason"] == reason]
    return {(e["involvedObject"]["kind"], e["involvedObject"]["name"]): e["message"] for e in found}


SERVED = {
    "PodGroup": PodGroup,
    "ElasticQuota": ElasticQuota,
    "ClusterNetworkTopology": ClusterNetworkTopology,
    "Device": Device,
}
UNREADABLE: dict[str, tuple[Any, str]] = {
    "PodGroup": ({"minMember": "three"}, "spec.minMember: must be a whole number, not the string 'three'"),
    "ElasticQuota": (
        {"min": {"cpu": [1]}, "max": 5},
        "spec.min.cpu: must be a quantity, not a list; spec.max: must be a mapping, not the number 5",
    ),
    "ClusterNetworkTopology": ({"hierarchy": {"layerName": "a"}}, "spec.hierarchy: must be a list, not a mapping"),
    "Device": ({"devices": [{"minor": "0"}]}, "spec.devices[0].minor: must be a whole number, not the string '0'"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("when", ["listed", "watched"])
async def test_an_object_that_cannot_be_read_is_told_by_an_event_and_others_go_on(kind: str, when: str) -> None:
    spec, why = UNREADABLE[kind]
    async with live([small("n1")]) as cluster:
        loosen(cluster, SHIPPED[kind])
        if when == "listed":
            put(cluster, kind, "odd", spec)
        async with cluster.running():
            cluster.pod("first")
            await until(lambda: cluster.bound("first"))
            if when == "watched":
                put(cluster, kind, "odd", spec)
            await until(lambda: (kind, "odd") in told(cluster))
            assert told(cluster)[kind, "odd"].startswith(
                f"{RESTRICTIONS[SERVED[kind]].meaning}, as it cannot be read: {why}"
            )
            cluster.pod("second")
            await until(lambda: cluster.bound("second"))


async def test_a_gang_goes_on_by_what_its_pod_group_said_last_and_by_what_it_says_when_it_is_mended() -> None:
    async with live([small("n1")]) as cluster:
        loosen(cluster, SHIPPED["PodGroup"])
        put(cluster, "PodGroup", "g", {"minMember": 2})
        async with cluster.running():
            cluster.pod("p-0", labels={keys.LABEL_POD_GROUP: "g"})
            await until(lambda: "1 of minMember 2 exist" in cluster.condition("p-0").get("message", ""))
            change(cluster, "PodGroup", "g", {"minMember": [1]})
            await until(lambda: ("PodGroup", "g") in told(cluster))
            assert not cluster.bound("p-0")
            change(cluster, "PodGroup", "g", {"minMember": 1})
            await until(lambda: cluster.bound("p-0"))


async def test_a_pod_group_that_never_could_be_read_holds_its_pods_until_it_is_mended() -> None:
    async with live([small("n1")]) as cluster:
        loosen(cluster, SHIPPED["PodGroup"])
        put(cluster, "PodGroup", "g", {"minMember": None, "minResources": "all"})
        async with cluster.running():
            cluster.pod("p-0", labels={keys.LABEL_POD_GROUP: "g"})
            why = "cannot be read: spec.minResources: must be a mapping, not the string 'all'"
            await until(lambda: f"gang default/g: PodGroup {why}" in cluster.condition("p-0").get("message", ""))
            await until(lambda: told(cluster).get(("PodGroup", "g")) == f"its pending pods wait, as it {why}")
            change(cluster, "PodGroup", "g", {"minMember": 1})
            await until(lambda: cluster.bound("p-0"))


async def test_what_is_wrong_with_a_hypernode_is_told_by_an_event_on_it() -> None:
    versions = [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": LOOSE}}]
    names = {"plural": "hypernodes", "kind": "HyperNode"}
    spec = {"group": keys.GROUP_VOLCANO_TOPOLOGY, "names": names, "scope": "Cluster", "versions": versions}
    async with live([small("n1")]) as cluster:
        cluster.server.store.create(DEFINITIONS, {"metadata": {"name": HYPERNODES}, "spec": spec})
        pattern = {"type": "Node", "selector": {"regexMatch": {"pattern": "n[1"}}}
        cluster.server.store.create(HYPERNODES, {"metadata": {"name": "s0"}, "spec": {"tier": 1, "members": [pattern]}})
        cluster.server.store.create(HYPERNODES, {"metadata": {"name": "s1"}, "spec": {"tier": "one"}})
        async with cluster.running():
            cluster.pod("p")
            await until(lambda: cluster.bound("p"))
            await until(lambda: len(told(cluster)) == len(told(cluster, "InvalidAnnotation")) == 1)
            assert told(cluster, "InvalidAnnotation")["HyperNode", "s0"].startswith(
                "spec.members[0].selector.regexMatch.pattern: cannot be"
            )
            why = "it cannot be read: spec.tier: must be a whole number, not the string 'one'"
            assert told(cluster)["HyperNode", "s1"] == f"it is ignored as if it did not exist, as {why}"


ODD_IMAGE = {"names": "a-text", "sizeBytes": 7}


def swap(cluster: Live, plural: str, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes an object as no API server would let it be changed."""
    resource = cluster.server.store.resource(plural)
    namespace = "default" if resource.namespaced else ""
    cluster.server.store.replace(resource, (namespace, name), change(cluster.server.store.get(plural, name, namespace)))


def change_node(cluster: Live, name: str, images: list[Any], *, cordoned: bool = False) -> None:
    """What its kubelet reports of it."""

    def changed(old: dict[str, Any]) -> dict[str, Any]:
        spec = {**old.get("spec", {}), "unschedulable": cordoned}
        return {**old, "spec": spec, "status": {**old["status"], "images": images}}

    swap(cluster, "nodes", name, changed)


async def test_a_pod_that_says_more_than_is_read_is_told_once_and_leaves_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        huge = pod("huge", gpus=0)
        asked = {f"example.com/r{i}": "1" for i in range(51)}
        huge["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
        cluster.create(huge)
        await until(lambda: ("Pod", "huge") in told(cluster))
        why = "spec.containers: 51 resources, at most 50 are read"
        assert told(cluster)["Pod", "huge"].endswith(f"as it cannot be read: {why}")
        (line,) = (record for record in caplog.records if why in record.getMessage())
        assert (vars(line)["object"], vars(line)["namespace"]) == ("default/huge", "default")
        cluster.pod("other")
        await until(lambda: cluster.bound("other"))
        (shown,) = scheduler.inspection.unreadable()
        assert (shown["object"], shown["wrong"]) == ("default/huge", why)
        swap(cluster, "pods", "huge", lambda old: {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}})
        cluster.pod("third")
        await until(lambda: cluster.bound("third"))
        assert b'koordpy_refused_inputs_total{kind="Pod",reason="UnreadableObject"} 1.0' in scheduler.metrics.render()
        cluster.delete("huge")
        await until(lambda: scheduler.inspection.unreadable() == [])


async def test_a_node_that_cannot_be_read_takes_no_new_pods_and_keeps_its_own() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.pod("first", cpu="3")
        await until(lambda: cluster.bound("first"))
        change_node(cluster, "n1", [ODD_IMAGE])
        await until(lambda: ("Node", "n1") in told(cluster))
        why = "status.images[0].names: must be a list, not the string 'a-text'"
        assert told(cluster)["Node", "n1"] == f"it accepts no new pods, as it cannot be read: {why}"
        cluster.pod("second")
        refused = "0/1 nodes are available: 1 node(s) were unschedulable."
        await until(lambda: cluster.condition("second").get("message", "").startswith(refused))
        assert scheduler.state.usage.usage_of("n1")[1]["cpu"] == 3000
        assert b'koordpy_unreadable_objects{kind="Node"} 1.0' in scheduler.metrics.render()
        assert b'koordpy_refused_inputs_total{kind="Node",reason="UnreadableObject"} 1.0' in scheduler.metrics.render()
        (shown,) = scheduler.inspection.unreadable()
        assert shown == {
            "apiVersion": "v1", "kind": "Node", "object": "n1", "wrong": why, "meaning": "it accepts no new pods",
        }  # fmt: skip
        change_node(cluster, "n1", [])
        await until(lambda: cluster.bound("second"))
        assert scheduler.inspection.unreadable() == []
        assert b"koordpy_unreadable_objects{" not in scheduler.metrics.render()


async def test_a_node_that_cannot_be_read_is_there_after_a_restart_closed_and_with_its_pods() -> None:
    async with live([small("n1")]) as cluster:
        change_node(cluster, "n1", [ODD_IMAGE])
        cluster.pod("first", cpu="3")
        cluster.bind("first", "n1")
        async with cluster.running() as scheduler:
            cluster.pod("second")
            refused = "0/1 nodes are available: 1 node(s) were unschedulable."
            await until(lambda: cluster.condition("second").get("message", "").startswith(refused))
            assert scheduler.state.usage.usage_of("n1")[1]["cpu"] == 3000
            await until(lambda: ("Node", "n1") in told(cluster))
            change_node(cluster, "n1", [], cordoned=True)
            await cluster.at_rest(scheduler, "nodes")
            assert not cluster.bound("second")
            change_node(cluster, "n1", [])
            await until(lambda: cluster.bound("second"))


async def test_one_of_two_replicas_tells_and_the_one_that_takes_over_tells_what_it_knows() -> None:
    def events() -> list[dict[str, Any]]:
        return [event for event in cluster.events() if event["reason"] == "UnreadableObject"]

    async with live([small("n1")]) as cluster, cluster.running(QUICK, lease=LONG_LEASE) as leader:
        await until(leader.leading.is_set)
        async with cluster.running(QUICK, lease=LONG_LEASE) as standby:
            for number in (1, 2):
                change_node(cluster, "n1", [ODD_IMAGE] * number)
                wrong = f"images[{number - 1}]"
                await until(lambda: any(wrong in event["message"] for event in events()))  # noqa: B023
                await until(lambda: any(wrong in one["wrong"] for one in standby.inspection.unreadable()))  # noqa: B023
            assert len(events()) == 2 and not standby.leading.is_set()
            leader.stop()
            await until(lambda: len(events()) == 3)
            assert standby.leading.is_set()


async def test_a_pod_that_cannot_be_read_is_not_planned_for_and_one_on_a_node_takes_what_it_took() -> None:
    def oddly(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "spec": {**old["spec"], "tolerations": "all", "containers": [{"name": "c"}]}}

    async with live([small("n1")]) as cluster:
        async with cluster.running() as scheduler:
            cluster.pod("runs", cpu="3")
            await until(lambda: cluster.bound("runs"))
            swap(cluster, "pods", "runs", oddly)
            cluster.pod("waits", cpu="2")
            await until(lambda: "Insufficient cpu" in cluster.condition("waits").get("message", ""))
            swap(cluster, "pods", "waits", oddly)
            await until(lambda: len(told(cluster)) == 2)
            assert scheduler.state.usage.usage_of("n1")[1]["cpu"] == 3000
            cluster.delete("runs")
            cluster.pod("next", cpu="4")
            await until(lambda: cluster.bound("next"))
            assert not cluster.bound("waits")
        assert told(cluster)["Pod", "waits"].startswith("it is not scheduled; on a node it uses what it used, as it")


async def test_no_pod_starts_in_a_quota_that_cannot_be_read_and_those_of_others_do() -> None:
    async with live([small("n1")]) as cluster:
        loosen(cluster, SHIPPED["ElasticQuota"])
        put(cluster, "ElasticQuota", "a", {"min": {"cpu": "1"}, "max": {"cpu": "4"}})
        async with cluster.running():
            change(cluster, "ElasticQuota", "a", {"min": {"cpu": "1"}, "max": {"cpu": ["3"]}})
            await until(lambda: ("ElasticQuota", "a") in told(cluster))
            cluster.pod("in", labels={keys.QUOTA_NAME: "a"})
            said = "quota a cannot be read: no more pods start in it"
            await until(lambda: said in cluster.condition("in").get("message", ""))
            cluster.pod("out")
            await until(lambda: cluster.bound("out"))
            change(cluster, "ElasticQuota", "a", {"min": {"cpu": "1"}, "max": {"cpu": "3"}})
            await until(lambda: cluster.bound("in"))
