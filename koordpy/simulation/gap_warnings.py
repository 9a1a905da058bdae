# SPDX-License-Identifier: Apache-2.0
"""Warnings of a simulation about gaps: nodes without the label of a layer that matters for a gang.

A layer matters if a gang requests it or a lower layer. A node with a gap is alone in a domain of the layer, so a gang
cannot use it together with other nodes. A live scheduler reports gaps in a condition and an event of the topology
(docs/topology.md); a simulation has neither. If no node has the label of a layer, `gangs/unit_gates.py` reports that,
in simulations and live. Cost: O(pods) if the topology has gaps, otherwise O(1).
"""

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.topology_gaps import NODES_NAMED, UnlabelledNodes
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.gangs.queue_units import Groups


def gap_warnings(
    state: ClusterState, config: KoordpyConfiguration, now: float, *, only: str = ""
) -> list[tuple[str, str]]:
    """Returns (object, text) for each layer with a gap that is at, or above, a layer which a pending pod's gang
    requests.

    only: key of the single pod to check; empty for all pods.
    """
    gaps = [one for one in state.nodes.gaps.unlabelled if not one.bare]
    if not gaps:
        return []
    snapshot = state.snapshot(now)
    layers, groups = state.nodes.layers, Groups(snapshot, config.gangs)
    pods = [snapshot.pods[only]] if only in snapshot.pods else [] if only else snapshot.pods.values()
    refs = dict.fromkeys(pod.gang for pod in pods if pod.pending and pod.gang is not None)
    rules = [rule for ref in refs for rule in groups.gang(ref).wish.gather]
    deepest = max((layers.level(rule.layer) or 0 for rule in rules), default=0)
    about = f"ClusterNetworkTopology/{keys.TOPOLOGY_OBJECT}" if state.nodes.topology is not None else "HyperNodes"
    return [(about, gap_text(one)) for one in gaps if (layers.level(one.layer.name) or 0) <= deepest]


def gap_text(gap: UnlabelledNodes) -> str:
    """Returns a warning: `2 nodes without label KEY of LAYER, each is a separate domain there: a, b`."""
    layer = gap.layer
    what = f"without label {' or '.join(layer.label_keys)} of" if layer.label_keys else "in no HyperNode of"
    each = "it is a separate domain" if len(gap.nodes) == 1 else "each is a separate domain"
    return (
        f"{count_noun(len(gap.nodes), 'node')} {what} {layer.name}, {each} there: {name_first(gap.nodes, NODES_NAMED)}"
    )
