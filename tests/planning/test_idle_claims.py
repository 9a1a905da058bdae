# SPDX-License-Identifier: Apache-2.0
"""Allocated claims that no pod uses: when a plan treats them as unallocated (dra.md 7)."""

from typing import Any

import pytest

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.api.objects import ObjectMeta, PodResourceClaim, SchedulingGroup
from koordpy.api.pod_groups import UpstreamGang, UpstreamPodGroup, UpstreamPodGroupSpec, UpstreamPolicy
from tests.planning.node_rules import node, planned, pod
from tests.planning.test_filter_dra import CLASS, asks, held, offers, resource_claim
from tests.scenarios.cluster import bound


@pytest.mark.parametrize(
    ("running", "placed"),
    [
        ([], {"w-0": "n2", "w-1": "n2"}),
        (["w-2"], {}),  # a bound pod of the PodGroup uses the claim
    ],
)
def test_the_claim_of_a_pod_group_is_dropped_only_without_bound_pods(running: list[str], placed: Any) -> None:
    entry = PodResourceClaim(name="c", resource_claim_name="c")
    spec = UpstreamPodGroupSpec(
        scheduling_policy=UpstreamPolicy(gang=UpstreamGang(min_count=2)), resource_claims=[entry]
    )
    made = UpstreamPodGroup(metadata=ObjectMeta(name="g", namespace="default", uid="uid-g"), spec=spec)
    users = [ClaimConsumer(api_group="scheduling.k8s.io", resource="podgroups", name="g", uid="uid-g")]
    link: dict[str, Any] = {"resource_claims": [entry], "scheduling_group": SchedulingGroup(pod_group_name="g")}
    pods = [pod(f"w-{i}", **link) for i in range(2)] + [pod(name, at="n1", **link) for name in running]
    objects = [node("n1:1"), node("n2:8"), CLASS, offers("n1", "g0"), offers("n2", "g0"), made, pod("x", at="n1")]
    claim = resource_claim("c", asks(), allocation=held("g0", at="n1"), reserved_for=users)
    assert bound(planned([*objects, claim, *pods])) == placed
