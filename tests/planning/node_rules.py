# SPDX-License-Identifier: Apache-2.0
"""A few nodes, a few pods on them, one pod asked about: what the tables of filters are written with."""

from collections.abc import Mapping, Sequence
from typing import Any

from koordpy.api.objects import (
    Affinity,
    LabelSelector,
    ObjectMeta,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Wire,
)
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import Explanation, explain
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_ties import spread_keys
from tests.scenarios.cluster import node, pod

__all__ = ["anti", "asked", "near", "node", "planned", "pod", "reasons", "states"]


def states(objects: Sequence[Wire], config: KoordpyConfiguration | None = None) -> ClusterState:
    """A state that knows the objects, those of storage too."""
    owners = config is not None and config.filters.pod_topology_spread.reads_owners
    state = make_state(owners=owners, dra=config.dra if config is not None else None)
    if config is not None:
        state.look_for(spread_keys(config.filters.pod_topology_spread.constraints))
    for obj in objects:
        state.upsert(obj)
    return state


def asked(objects: Sequence[Wire], name: str = "p", config: KoordpyConfiguration | None = None) -> Explanation:
    """What `explain` says of a pod of the default namespace."""
    return explain(states(objects, config).snapshot(0.0), config, f"default/{name}")


def reasons(objects: Sequence[Wire], name: str = "p") -> dict[str, str]:
    """Node -> `Code: message, message`, `fits` where the pod fits."""
    short = {"Unschedulable": "U", "UnschedulableAndUnresolvable": "UU"}
    return {
        one.node: "fits" if one.feasible else f"{short[one.reasons[0][1]]}: {', '.join(r[2] for r in one.reasons)}"
        for one in asked(objects, name).nodes
    }


def planned(objects: Sequence[Wire], config: KoordpyConfiguration | None = None) -> RoundPlan:
    """One round."""
    return plan_round(states(objects, config).snapshot(0.0), config)


def term(key: str, labels: Mapping[str, str] | None, **settings: Any) -> PodAffinityTerm:
    """A term on pods with the labels; None = no selector at all."""
    selector = None if labels is None else LabelSelector(match_labels=dict(labels))
    return PodAffinityTerm(topology_key=key, label_selector=selector, **settings)


def near(*terms: PodAffinityTerm) -> Affinity:
    """Required pod affinity."""
    return Affinity(pod_affinity=PodAffinity(required=list(terms)))


def anti(*terms: PodAffinityTerm) -> Affinity:
    """Required pod anti-affinity."""
    return Affinity(pod_anti_affinity=PodAffinity(required=list(terms)))


def elsewhere(wire: Pod, namespace: str) -> Pod:
    """The same pod in another namespace."""
    from msgspec.structs import replace

    meta = replace(wire.metadata, namespace=namespace, uid=f"{namespace}-{wire.metadata.uid}")
    return replace(wire, metadata=meta)


def leaving(wire: Pod) -> Pod:
    """The same pod while it is being deleted."""
    from msgspec.structs import replace

    meta: ObjectMeta = replace(wire.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return replace(wire, metadata=meta)
