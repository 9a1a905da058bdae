# SPDX-License-Identifier: Apache-2.0
"""A gang that must stay in one rack, below which labels of nodes were changed, live."""

import json

from tests.engine.live import gang, in_virtual_time, live, small, until
from tests.engine.manifests import TOPOLOGIES
from tests.workloads.cluster import NETWORK

RACKS = [
    {"layerName": "rackLayer", "labelKey": "rack", "parentTopologyLayer": "ClusterTopologyLayer"},
    {"layerName": "nodeLayer", "parentTopologyLayer": "rackLayer"},
]


@in_virtual_time
async def test_a_member_made_again_is_told_that_the_others_are_in_two_racks() -> None:
    async with live([small(name, labels={"rack": "r0"}) for name in ("n0", "n1", "n2")]) as cluster:
        store = cluster.server.store
        store.create(TOPOLOGIES, {"metadata": {"name": "default"}, "spec": {"hierarchy": RACKS}})
        group, *pods = gang("g", 3, gpus=4)
        wish = {"gatherStrategy": [{"layer": "rackLayer", "strategy": "MustGather"}]}
        group["metadata"]["annotations"] = {NETWORK: json.dumps(wish)}
        names = [one["metadata"]["name"] for one in pods]
        async with cluster.running() as scheduler:
            cluster.create(group, *pods)
            await until(lambda: cluster.bound(*names))
            moved = next(one for one in store.list("nodes") if one["metadata"]["name"] == cluster.places()[names[0]])
            labels = {**moved["metadata"]["labels"], "rack": "r1"}
            store.replace(
                store.resource("nodes"),
                ("", moved["metadata"]["name"]),
                {**moved, "metadata": {**moved["metadata"], "labels": labels}},
            )
            seen = scheduler.state.snapshot
            await until(lambda: "r1" in {node.labels["rack"] for node in seen(0.0).nodes})
            cluster.delete(names[-1])
            cluster.create(pods[-1])
            text = "gang default/g: bound members are in two domains of rackLayer: r0, r1"
            await until(lambda: text in cluster.condition(names[-1]).get("message", ""))
            store.replace(
                store.resource("nodes"),
                ("", moved["metadata"]["name"]),
                {**moved, "metadata": {**moved["metadata"], "labels": {**labels, "rack": "r0"}}},
            )
            await until(lambda: cluster.bound(*names))
