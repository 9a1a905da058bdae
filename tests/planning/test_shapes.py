# SPDX-License-Identifier: Apache-2.0
"""Pods are of one shape only where all that filters and scores look at is the same: one is taken for the other."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from koordpy.api.objects import Container, ContainerImage, Pod, ResourceRequirements
from koordpy.config.configuration import KoordpyConfiguration, NodeResourcesFitScore, Scores
from tests.planning.node_rules import node, planned, pod
from tests.scenarios.cluster import bound


def of(name: str, created: int, *asked: Mapping[str, str], image: str = "") -> Pod:
    """A pod with a container for each of the requests, and one before them that has the image."""
    wire = pod(name, created=created)
    containers = [
        Container(name=f"c{i}", resources=ResourceRequirements(requests=dict(r))) for i, r in enumerate(asked)
    ]
    first: Any = [Container(name="i", image=image)] if image else []
    return replace(wire, spec=replace(wire.spec, containers=containers, init_containers=first))


def test_pods_that_differ_in_an_init_containers_image_go_each_where_its_own_is() -> None:
    there = node("n2:4")
    there = replace(there, status=replace(there.status, images=[ContainerImage(names=["big:1"], size_bytes=1 << 32)]))
    plan = planned([node("n1:4"), there, of("a", 1, {}, image="small:1"), of("b", 2, {}, image="big:1")])
    assert bound(plan) == {"a": "n1", "b": "n2"}


def test_pods_of_equal_requests_are_scored_each_by_the_containers_that_ask_for_none() -> None:
    config = KoordpyConfiguration(scores=Scores(node_resources_fit=NodeResourcesFitScore(strategy="LeastAllocated")))
    half = {"cpu": "100m", "memory": "230Mi"}
    pods = [of("a", 1, half, half), of("b", 2, {"cpu": "200m", "memory": "230Mi"}, {"memory": "230Mi"})]
    nodes = [amounts("n1", "1", "100Ti"), amounts("n2", "1k", "1Gi")]
    assert bound(planned([*nodes, *pods], config)) == {"a": "n1", "b": "n2"}


def amounts(name: str, cpu: str, memory: str) -> Any:
    """A node of these."""
    wire = node(f"{name}:1")
    allocatable = {**wire.status.allocatable, "cpu": cpu, "memory": memory, "pods": "9"}
    return replace(wire, status=replace(wire.status, allocatable=allocatable))
