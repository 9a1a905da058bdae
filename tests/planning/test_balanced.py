# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesBalancedAllocation: off by default, kube-scheduler 1.35's formula when switched on."""

import pytest

from koordpy.config.configuration import KoordpyConfiguration, Scores
from tests.planning.node_rules import asked, node, planned, pod
from tests.scenarios.cluster import bound

NODES = [node("n1:4", memory="8Gi"), node("n2:4", memory="4Gi")]


@pytest.mark.parametrize(
    ("cpu", "memory", "want"),
    [
        # n1: 1/2 of cpu; 2 of 8Gi = 1/4: spread 1/8. n2: 1/2 and 1/2.
        ("2", "2Gi", {"n1": 87, "n2": 100}),
        ("4", "4Gi", {"n1": 75, "n2": 100}),
        # More than there is counts as all of it; neither asked for is 0.
        ("0", "0", {"n1": 0, "n2": 0}),
    ],
)
def test_even_use_of_cpu_and_memory_is_better(cpu: str, memory: str, want: dict[str, int]) -> None:
    said = asked([*NODES, pod("p", cpu=cpu, requests={"memory": memory})])
    assert {one.node: one.scores["NodeResourcesBalancedAllocation"] for one in said.nodes} == want


def test_it_counts_in_the_total_only_with_a_weight() -> None:
    objects = [node("n1:4", memory="8Gi"), node("n2:16", memory="32Gi"), pod("p", cpu="2", requests={"memory": "1Gi"})]
    assert bound(planned(objects)) == {"p": "n1"}
    weighed = KoordpyConfiguration(scores=Scores(weights={"NodeResourcesBalancedAllocation": 100}))
    assert bound(planned(objects, weighed)) == {"p": "n2"}
