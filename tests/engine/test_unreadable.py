"""Objects that an API server took and koordpy cannot read, as another operator's loose definitions allow: an event on
the object says what is wrong, everything else goes on, and the object counts as soon as it is mended."""

from typing import Any

import pytest

from koordpy.api import keys
from koordpy.sim.definitions import DEFINITIONS
from tests.engine.live import Live, live, small, until

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


def told(cluster: Live) -> dict[tuple[str, str], str]:
    """(kind, name) -> note of the last InvalidAnnotation event."""
    found = [event for event in cluster.events() if event["reason"] == "InvalidAnnotation"]
    return {(e["involvedObject"]["kind"], e["involvedObject"]["name"]): e["message"] for e in found}


UNREADABLE: dict[str, tuple[Any, str]] = {
    "PodGroup": ({"minMember": "three"}, "spec.minMember: text ('three') in place of a whole number"),
    "ElasticQuota": (
        {"min": {"cpu": [1]}, "max": 5},
        "spec.min.cpu: a list in place of a quantity; spec.max: a number",
    ),
    "ClusterNetworkTopology": ({"hierarchy": {"layerName": "a"}}, "spec.hierarchy: a mapping in place of a list"),
    "Device": ({"devices": [{"minor": "0"}]}, "spec.devices[0].minor: text ('0') in place of a whole number"),
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
            assert told(cluster)[kind, "odd"].startswith(f"it cannot be read: {why}")
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
            await until(lambda: "PodGroup not found" in cluster.condition("p-0").get("message", ""))
            why = "it cannot be read: spec.minResources: text ('all') in place of a mapping"
            await until(lambda: told(cluster).get(("PodGroup", "g")) == why)
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
            await until(lambda: len(told(cluster)) == 2)
            assert told(cluster)["HyperNode", "s0"].startswith("spec.members[0].selector.regexMatch.pattern: cannot be")
            why = "it cannot be read: spec.tier: text ('one') in place of a whole number"
            assert told(cluster)["HyperNode", "s1"] == why
