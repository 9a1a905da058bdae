# SPDX-License-Identifier: Apache-2.0
"""Generated clusters: layers, fan-outs, and manifests that an API server takes."""

from collections import Counter
from itertools import pairwise

import pytest

from tests import clusters
from tests.faults import FaultyServer


def domains(cluster: clusters.Cluster, key: str) -> Counter[str]:
    return Counter(node["metadata"]["labels"][key] for node in cluster.nodes)


def test_the_usual_cluster_has_64_nodes_of_8_gpus_in_four_layers() -> None:
    cluster = clusters.training_cluster()
    assert [node["metadata"]["name"] for node in cluster.nodes[:2]] == ["node-0", "node-1"]
    assert all(node["status"]["allocatable"]["nvidia.com/gpu"] == "8" for node in cluster.nodes)
    sizes = [sorted(domains(cluster, key).values()) for _, key in clusters.LAYERS]
    assert sizes == [[64], [32, 32], [8] * 8, [2] * 32]


@pytest.mark.parametrize("size", [1, 63, 500])
def test_domains_nest_whatever_the_size(size: int) -> None:
    cluster = clusters.training_cluster(size, nodes_per_accelerator=3, accelerators_per_block=2, blocks_per_spine=5)
    keys = [key for _, key in clusters.LAYERS]
    assert len(cluster.nodes) == size
    for upper, lower in pairwise(keys):
        parents = {(n["metadata"]["labels"][lower], n["metadata"]["labels"][upper]) for n in cluster.nodes}
        assert len(parents) == len(domains(cluster, lower))


def test_the_same_arguments_give_the_same_cluster() -> None:
    assert clusters.training_cluster(100).manifests() == clusters.training_cluster(100).manifests()


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"blocks_per_spine": 0}, {"accelerators_per_block": -1}])
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        clusters.training_cluster(**wrong)


async def test_an_api_server_takes_every_manifest() -> None:
    server = FaultyServer()
    cluster = clusters.training_cluster(5)
    server.store.create("clusternetworktopologies.scheduling.koordinator.sh", cluster.topology)
    for node in cluster.nodes:
        assert server.store.create("nodes", node)["status"] == node["status"]
    group, *pods = clusters.gang("g", 3, annotations={"a": "b"})
    server.store.create("podgroups.scheduling.sigs.k8s.io", group)
    for pod in pods:
        server.store.create("pods", pod)
    assert [item["metadata"]["name"] for item in server.store.list("pods")] == ["g-0", "g-1", "g-2"]
