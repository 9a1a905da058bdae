# SPDX-License-Identifier: Apache-2.0
"""NodeDeclaredFeatures: pods that need a feature, on nodes that declare it or not (kube-parity.md 2.1)."""

from typing import Any

import pytest

from koordpy.api.objects import Node, Pod
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.decoding.wire_json import read_plain
from koordpy.engine.staleness import differs
from koordpy.engine.wakeups import BY_FILTER, Wake, of_node
from koordpy.plugins.node_filters import required_features
from koordpy.verify.plan_check import allows
from tests.clusters import node, pod
from tests.planning.node_rules import planned, reasons, states
from tests.scenarios.cluster import bound, group, messages

RESTART, HOST_USERS = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"
UNMATCHED = "UU: node(s) didn't match Pod's required features"
RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]


def declaring(name: str, *features: str) -> Node:
    """A node with `status.declaredFeatures`."""
    manifest: Any = node(name)
    return read_plain({**manifest, "status": {**manifest["status"], "declaredFeatures": [*features]}}, Node)


def needing(name: str = "p", *, rules: Any = (), init: Any = (), **spec: Any) -> Pod:
    """A pod with restart rules of its container, of an init container, and fields of its spec."""
    manifest: Any = pod(name, gpus=1)
    manifest["spec"]["containers"][0]["restartPolicyRules"] = [*rules]
    containers = [{"name": "init", "restartPolicyRules": [*init]}] if init else []
    manifest["spec"] |= {"initContainers": containers, **spec}
    return read_plain(manifest, Pod)


@pytest.mark.parametrize(
    ("wanted", "features"),
    [
        (needing(), ()),
        (needing(rules=[{"action": "Restart"}]), ()),
        (needing(rules=RULES), (RESTART,)),
        (needing(init=RULES), (RESTART,)),
        (needing(hostNetwork=True), ()),
        (needing(hostUsers=False), ()),
        (needing(hostNetwork=True, hostUsers=True), ()),
        (needing(hostNetwork=True, hostUsers=False), (HOST_USERS,)),
        (needing(rules=RULES, hostNetwork=True, hostUsers=False), (RESTART, HOST_USERS)),
    ],
)
def test_the_spec_says_which_features_a_pod_needs(wanted: Pod, features: tuple[str, ...]) -> None:
    assert required_features(wanted) == features
    nodes = [declaring("n1"), declaring("n2", RESTART, "Another"), declaring("n3", HOST_USERS, RESTART)]
    here = {"n1": (), "n2": (RESTART,), "n3": (RESTART, HOST_USERS)}
    expected = {name: "fits" if set(features) <= set(have) else UNMATCHED for name, have in here.items()}
    assert reasons([*nodes, wanted]) == expected
    snapshot = states([*nodes, wanted]).snapshot(0.0)
    assert {one.name: allows(snapshot.pods["default/p"], one, KoordpyConfiguration()) for one in snapshot.nodes} == {
        name: verdict == "fits" for name, verdict in expected.items()
    }


def test_a_gang_goes_to_the_nodes_that_declare_the_feature() -> None:
    members = [needing(f"g-{i}", rules=RULES) for i in range(2)]
    labelled: list[Any] = [group("g", 2)]
    for one in members:
        one.metadata.labels["pod-group.scheduling.sigs.k8s.io"] = "g"
        labelled.append(one)
    plan = planned([declaring("n1"), declaring("n2", RESTART), *labelled])
    assert bound(plan) == {"g-0": "n2", "g-1": "n2"}


def test_a_pod_waits_with_kube_schedulers_sentence() -> None:
    plan = planned([declaring("n1"), declaring("n2"), needing(rules=RULES)])
    assert bound(plan) == {}
    assert messages(plan)["p"].startswith("0/2 nodes are available: 2 node(s) didn't match Pod's required features.")


def test_a_plain_pod_and_one_that_needs_a_feature_are_not_equal() -> None:
    plan = planned([declaring("n1"), needing("plain"), needing("special", rules=RULES)])
    assert bound(plan) == {"plain": "n1"}


def test_a_node_that_declares_a_feature_wakes_pods_and_voids_plans() -> None:
    before, after = (next(iter(states([one]).snapshot(0.0).nodes)) for one in (declaring("n"), declaring("n", RESTART)))
    state = states([])
    assert of_node(before, after) == Wake.NODE_FEATURES
    assert Wake.NODE_FEATURES in BY_FILTER["NodeDeclaredFeatures"]
    assert differs(state, after, before) and not differs(state, before, before)
