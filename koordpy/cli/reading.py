"""A running cluster as the offline commands see manifests: read once, by lists, into a ClusterState."""

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koordpy.api.config import KoordpyConfiguration
    from koordpy.cluster.state import ClusterState
    from koordpy.engine.apiserver.client import ApiClient
    from koordpy.engine.apiserver.resources import Resource

FAILED_TO_READ = "the cluster cannot be read"


class ClusterUnreadableError(Exception):
    """The cluster could not be read: no access, no answer, or a refusal."""


def read_cluster(kubeconfig: str | None, config: "KoordpyConfiguration") -> "ClusterState":
    """What the planner looks at of a cluster. kubeconfig: None for $KUBECONFIG, the service account, ~/.kube/config.

    Raises ClusterUnreadableError.
    """
    from koordpy.engine.apiserver.client import ApiError, Unreachable
    from koordpy.engine.apiserver.kubeconfig import CredentialError

    try:
        return asyncio.run(_read(kubeconfig, config))
    except (ApiError, Unreachable, CredentialError) as fault:
        raise ClusterUnreadableError(f"{FAILED_TO_READ}: {fault}") from None


async def _read(kubeconfig: str | None, config: "KoordpyConfiguration") -> "ClusterState":
    from koordpy.api.custom import ClusterNetworkTopology
    from koordpy.api.hypernodes import HyperNode
    from koordpy.api.objects import Namespace, Node, Pod
    from koordpy.cluster.state import ClusterState
    from koordpy.cluster.ties import spread_keys
    from koordpy.engine.apiserver.client import ApiClient
    from koordpy.engine.apiserver.credentials import load_access
    from koordpy.engine.apiserver.resources import (
        CLUSTER_NETWORK_TOPOLOGIES,
        DYNAMIC_RESOURCES,
        HYPERNODES,
        NAMESPACES,
        NODES,
        PODS,
        STORAGE,
        discover,
    )

    access = await load_access(kubeconfig)
    state = ClusterState(scheduler_names=config.scheduler_names, storage=True, devices=True)
    state.look_for(spread_keys(config.filters.pod_topology_spread.default_constraints))
    async with ApiClient(access, qps=0) as client:
        kinds: list[tuple[Resource, Any]] = [
            (NODES, Node),
            (NAMESPACES, Namespace),
            (PODS, Pod),
            (CLUSTER_NETWORK_TOPOLOGIES, ClusterNetworkTopology),
            *STORAGE.items(),
        ]
        for wanted, resource in (await discover(client, [HYPERNODES, *DYNAMIC_RESOURCES])).items():
            if resource is not None:
                kinds.append((resource, HyperNode if wanted == HYPERNODES else DYNAMIC_RESOURCES[wanted]))
        for resource, kind in kinds:
            for obj in await _every(client, resource, kind):
                state.upsert(obj)
    return state


async def _every(client: "ApiClient", resource: "Resource", kind: Any) -> list[Any]:
    """Every object of a kind; none where the server does not serve it."""
    from koordpy.engine.apiserver.client import ApiError

    out: list[Any] = []
    token = ""
    while True:
        try:
            page = await client.list_page(resource.path(), type=kind, continue_token=token)
        except ApiError as fault:
            if fault.status == 404:
                return []
            raise
        out += page.items or []
        token = page.metadata.continue_
        if not token:
            return out
