"""The node's pods at the API server: what their containers have reserved, and the writing of exchanges.

Source: gpu-topology.md sections 7 and 10. The scheduler wrote minors; the kubelet knows GPUs by their UUIDs.
"""

from collections.abc import Callable, Mapping, Sequence

from koordpy.agent.machine import Gpu
from koordpy.agent.plugin.annotations import both, containers_of, given
from koordpy.agent.plugin.ledger import Correction, Reserved
from koordpy.api.objects import Container, Pod
from koordpy.api.quantity import units
from koordpy.cluster.pods import seconds
from koordpy.engine.apiserver.client import ApiClient, ApiError

PAGE = 500
GONE = (404, 409)
INVALID = 422


def reserved_of(pod: Pod, ids: Mapping[int, str], resource: str) -> list[Reserved]:
    """What the containers of an assigned pod have reserved of a resource. ids: minor -> id of the node's GPUs.

    A container gets its own list; an init container, which ends before they start, the first of the pod's GPUs. A pod
    without a readable annotation, or with GPUs that the node does not have, has nothing reserved and is never served.
    """
    known = containers_of(pod.metadata.annotations)
    if known is None or pod.status.phase in ("Succeeded", "Failed"):
        return []
    by_container, visible = known
    own = sorted({minor for minors in by_container.values() for minor in minors})
    pool = [*own, *(minor for minor in visible if minor not in own)]
    wanted: list[tuple[str, int, Sequence[int]]] = [
        (container.name, _size(container, resource), by_container.get(number, ()))
        for number, container in enumerate(pod.spec.containers)
    ]
    wanted += [(c.name, size, pool[:size]) for c in pod.spec.init_containers if (size := _size(c, resource))]
    meta = pod.metadata
    created = seconds(meta.creation_timestamp)
    return [
        Reserved(meta.uid, meta.namespace, meta.name, name, tuple(sorted(ids[minor] for minor in minors)), created)
        for name, size, minors in wanted
        if size and len(minors) == size and all(minor in ids for minor in minors)
    ]


def _size(container: Container, resource: str) -> int:
    amounts = {**container.resources.requests, **container.resources.limits}
    return units(resource, amounts[resource]) if resource in amounts else 0


class NodePods:
    """The pods of one node. gpus: the node's GPUs as they are now."""

    def __init__(self, client: ApiClient, node: str, *, resource: str, gpus: Callable[[], Sequence[Gpu]]) -> None:
        self._client, self._node, self._resource, self._gpus = client, node, resource, gpus
        self._pods: dict[str, Pod] = {}

    async def read(self) -> Sequence[Reserved]:
        """What is reserved now. Raises ApiError, Unreachable."""
        page = await self._client.list_page(
            "/api/v1/pods", type=Pod, limit=PAGE, params={"fieldSelector": f"spec.nodeName={self._node}"}
        )
        self._pods = {pod.metadata.uid: pod for pod in page.items or ()}
        ids = {gpu.minor: gpu.key for gpu in self._gpus()}
        return [one for pod in page.items or () for one in reserved_of(pod, ids, self._resource)]

    async def write(self, corrections: Sequence[Correction]) -> None:
        """Writes exchanges: first every pod holds both sets, then what it was given. A pod that is gone is passed over.

        Raises ApiError, Unreachable; then all of it is to be written again.
        """
        by_key = {gpu.key: gpu for gpu in self._gpus()}
        changes: dict[str, dict[int, Sequence[Gpu]]] = {}
        for one in corrections:
            pod = self._pods.get(one.one.uid)
            if pod is None:
                continue
            number = next((n for n, c in enumerate(pod.spec.containers) if c.name == one.one.container), None)
            if number is not None:
                changes.setdefault(one.one.uid, {})[number] = [by_key[gpu] for gpu in one.gpus if gpu in by_key]
        for write in (both, given):
            for uid, change in changes.items():
                await self._patch(self._pods[uid], write(self._pods[uid].metadata.annotations, change))

    async def _patch(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        meta = pod.metadata
        if not annotations:
            return
        # the uid makes it fail where another pod has taken the name
        body = {"metadata": {"uid": meta.uid, "annotations": dict(annotations)}}
        try:
            await self._client.patch(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", body)
        except ApiError as fault:
            if fault.status not in GONE and not (fault.status == INVALID and "metadata.uid" in str(fault)):
                raise
