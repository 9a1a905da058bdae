# SPDX-License-Identifier: Apache-2.0
"""Default constraints of spread take their selector from a pod's services and controller, as kube-scheduler's do."""

import random
from collections import Counter
from math import log
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordpy.api.objects import LabelSelector, OwnerReference, Pod, Requirement, TopologySpreadConstraint, Wire
from koordpy.api.owner_objects import ReplicaSet, ReplicationController, Service, StatefulSet
from koordpy.config.configuration import SYSTEM_SPREAD, Filters, KoordpyConfiguration, PodTopologySpreadArgs
from koordpy.pods.pod_owners import OwnerBook
from tests.planning.node_rules import asked, node, planned, pod, states
from tests.scenarios.cluster import bound

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
SYSTEM = KoordpyConfiguration(filters=Filters(pod_topology_spread=PodTopologySpreadArgs(defaulting_type="System")))


def listed(*constraints: TopologySpreadConstraint) -> KoordpyConfiguration:
    args = PodTopologySpreadArgs(defaulting_type="List", default_constraints=constraints)
    return KoordpyConfiguration(filters=Filters(pod_topology_spread=args))


def made(kind: Any, name: str, selector: Any, namespace: str = "default") -> Any:
    manifest = {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}}
    return msgspec.convert(manifest, kind)


def service(name: str, namespace: str = "default", **selector: str) -> Service:
    found: Service = made(Service, name, selector, namespace)
    return found


def owned(manifest: Pod, api_version: str, kind: str, name: str, *, controller: bool = True) -> Pod:
    owner = OwnerReference(api_version=api_version, kind=kind, name=name, uid=name, controller=controller)
    return replace(manifest, metadata=replace(manifest.metadata, owner_references=[owner]))


def selector_of(incoming: Pod, *objects: Wire) -> LabelSelector | None:
    book = OwnerBook()
    for obj in objects:
        book.put(obj)
    return book.view().selector_of(incoming)


P = pod("p", labels={"app": "web", "tier": "1"})
SET = made(
    ReplicaSet, "r", {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}
)
IN_APP = Requirement(key="app", operator="In", values=("web",))
HAS_TIER = Requirement(key="tier", operator="Exists")


@pytest.mark.parametrize(
    ("incoming", "objects", "labels", "expressions"),
    [
        (P, [], None, None),
        (P, [service("s", app="web")], {"app": "web"}, []),
        (P, [service("s", app="web"), service("t", tier="1")], {"app": "web", "tier": "1"}, []),
        (P, [service("s", app="web", tier="2")], None, None),
        (P, [service("s", namespace="other", app="web")], None, None),
        (P, [service("s")], None, None),
        (owned(P, "apps/v1", "ReplicaSet", "r"), [SET], {}, [IN_APP, HAS_TIER]),
        (owned(P, "apps/v1", "ReplicaSet", "r"), [SET, service("s", tier="1")], {"tier": "1"}, [IN_APP, HAS_TIER]),
        (owned(P, "apps/v1", "ReplicaSet", "r", controller=False), [SET], None, None),
        (owned(P, "apps/v1beta1", "ReplicaSet", "r"), [SET], None, None),
        (owned(P, "apps/v1", "ReplicaSet", "gone"), [SET, service("s", app="web")], {"app": "web"}, []),
        (owned(P, "apps/v1", "ReplicaSet", "r"), [made(ReplicaSet, "r", None)], None, None),
        (owned(P, "apps/v1", "ReplicaSet", "r"), [made(ReplicaSet, "r", {})], None, None),
        (
            owned(P, "apps/v1", "StatefulSet", "r"),
            [made(StatefulSet, "r", {"matchLabels": {"app": "web"}}), SET],
            {},
            [IN_APP],
        ),
        (
            owned(P, "v1", "ReplicationController", "r"),
            [made(ReplicationController, "r", {"app": "of it"}), service("s", app="web", tier="1")],
            {"app": "of it", "tier": "1"},
            [],
        ),
        (owned(P, "batch/v1", "Job", "r"), [SET], None, None),
    ],
)
def test_a_pod_is_spread_with_what_its_services_and_its_controller_select(
    incoming: Pod, objects: list[Wire], labels: dict[str, str] | None, expressions: list[Requirement] | None
) -> None:
    found = selector_of(incoming, *objects)
    if labels is None:
        assert found is None
    else:
        assert found is not None and (found.match_labels, [*found.match_expressions]) == (labels, expressions)


def test_the_system_defaults_are_those_of_kube_scheduler() -> None:
    assert [(c.topology_key, c.max_skew, c.when_unsatisfiable) for c in SYSTEM_SPREAD] == [
        (HOST, 3, "ScheduleAnyway"),
        (ZONE, 5, "ScheduleAnyway"),
    ]


def expected(places: dict[str, str | None], running: Counter[str]) -> dict[str, int]:
    """PodTopologySpread's score by the rule of section 3, node by node; a node without a zone has one part only."""
    zones: Counter[str | None] = Counter()
    for name, zone in places.items():
        zones[zone] += running[name]
    raw = {}
    for name, zone in places.items():
        points = running[name] * log(len(places) + 2) + 3 - 1
        if zone is not None:
            points += zones[zone] * log(len(zones) + 2) + 5 - 1
        raw[name] = int(points + 0.5)
    low, high = min(raw.values()), max(raw.values())
    return {name: 100 * (high + low - value) // high for name, value in raw.items()}


@pytest.mark.parametrize("seed", range(12))
def test_system_spreading_scores_hosts_and_zones_even_where_a_node_has_no_zone(seed: int) -> None:
    dice = random.Random(seed)
    places = {f"n{i}": dice.choice(["a", "b", "c", None]) for i in range(dice.randrange(2, 7))}
    running = Counter(dice.choices(list(places), k=dice.randrange(12)))
    objects: list[Any] = [node(f"{name}:40", {ZONE: zone} if zone else {}) for name, zone in places.items()]
    objects += [pod(f"{at}-{i}", at=at, labels={"app": "web"}) for at, n in running.items() for i in range(n)]
    objects += [pod(f"other-{i}", at="n0", labels={"app": "db"}) for i in range(3)]
    said = asked([*objects, service("s", app="web"), pod("p", labels={"app": "web"})], config=SYSTEM)
    assert {one.node: one.scores["PodTopologySpread"] for one in said.nodes} == expected(places, running)


def test_without_a_service_or_controller_nothing_is_spread() -> None:
    objects = [node("a:9"), node("b:9"), pod("q", at="a", labels={"app": "web"})]
    said = asked([*objects, pod("p", labels={"app": "web"})], config=SYSTEM)
    assert [one.scores["PodTopologySpread"] for one in said.nodes] == [0, 0]


def test_pods_of_two_sets_with_equal_labels_are_told_apart_by_their_owner() -> None:
    """Only the pods of one have a controller that is known; the shapes of both are equal but for it."""
    objects: list[Any] = [node("a:9"), node("b:9"), pod("q", at="a", labels={"app": "web"})]
    spread = owned(pod("spread", labels={"app": "web"}), "apps/v1", "ReplicaSet", "r")
    free = owned(pod("free", labels={"app": "web"}), "apps/v1", "ReplicaSet", "unknown")
    objects.append(made(ReplicaSet, "r", {"matchLabels": {"app": "web"}}))
    state = states([*objects, spread, free], SYSTEM)
    assert len({pod.shape for pod in state.snapshot(0.0).pending}) == 2
    plan = planned([*objects, free], config=SYSTEM)
    assert bound(plan) == {"free": "a"}, "packed"
    assert bound(planned([*objects, spread], config=SYSTEM)) == {"spread": "b"}


def test_a_listed_constraint_without_a_selector_filters_by_that_of_the_owner() -> None:
    constraint = TopologySpreadConstraint(max_skew=1, topology_key=HOST, when_unsatisfiable="DoNotSchedule")
    objects = [node("a:9"), node("b:9"), pod("q", at="a", labels={"app": "web"})]
    incoming = pod("p", labels={"app": "web"})
    feasible = [one.feasible for one in asked([*objects, incoming], config=listed(constraint)).nodes]
    assert feasible == [True, True], "nothing selects it"
    said = asked([*objects, incoming, service("s", app="web")], config=listed(constraint))
    assert [one.feasible for one in said.nodes] == [False, True]


def test_a_service_that_comes_and_goes_is_followed() -> None:
    state = states([node("a:9"), node("b:9"), pod("p", labels={"app": "web"})], SYSTEM)
    (info,) = state.snapshot(0.0).pending
    seen = []
    for change in (service("s", app="web"), service("s", app="db"), None):
        if change is not None:
            state.upsert(change)
        else:
            state.delete(Service, "default/s")
        owners = state.snapshot(0.0).owners
        assert owners is not None
        seen.append(owners.selector_of(info.pod))
    assert [one.match_labels if one else None for one in seen] == [{"app": "web"}, None, None]
