# SPDX-License-Identifier: Apache-2.0
"""Reads the pods of the node with the GPUs reserved for them, and writes annotations of pods, both at the API server.

Reserved GPUs are the GPUs that the scheduler has written to the annotations of a pod. The scheduler writes minors
(numbers of device files), but the kubelet identifies GPUs by UUIDs, so this module translates. It writes annotations in
two cases: two pods have exchanged their reserved GPUs (`delivery_ledger`), or a pod with gpushare annotations has got
its GPUs. Rules: gpu-topology.md 7 and 10.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from koordpy.agent.gpu_facts import MachineGpu
from koordpy.agent.plugin.delivery_ledger import DEFAULT_GRACE_SECONDS, Part, ReservedGpus
from koordpy.agent.plugin.gpu_annotations import annotation_changes, both, places_of
from koordpy.api import keys
from koordpy.api.keys import INIT_PREFIX
from koordpy.api.objects import Container, Pod
from koordpy.api.quantity import units
from koordpy.api.times import seconds
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError

PAGE = 500
"""Maximum number of pods that one list request returns. A node has fewer (110 by default), so one request is enough."""
FINISHED = ("Succeeded", "Failed")
"""Phases of ended pods."""
GONE = (404, 409)
"""HTTP status codes of a patch if the pod is deleted: 404 if no pod has its name; 409 if another pod has its name, so
that the uid in the patch does not match."""
INVALID = 422
"""HTTP status code of a patch with an invalid field. For the uid it means the same as 409."""


def reserved_of(pod: Pod, gpus: Sequence[MachineGpu], resource: str) -> ReservedGpus | None:
    """Returns the reserved GPUs of a pod that is bound to the node; None if the pod requests no GPU of `resource`.

    gpus: GPUs of the node. Containers are in the order in which the kubelet asks for their devices. A container has no
    reserved GPUs if its annotations are missing, name another number of GPUs than it requests, or name GPUs that the
    node does not have. The device plugin then refuses its request.
    """
    inits, others = pod.spec.init_containers, pod.spec.containers
    order = [*((f"{INIT_PREFIX}{i}", c) for i, c in enumerate(inits)), *((str(i), c) for i, c in enumerate(others))]
    asking = [(place, c, size) for place, c in order if (size := _size(c, resource))]
    if not asking:
        return None
    names = {str(gpu.minor): gpu.minor for gpu in gpus} | {gpu.uuid: gpu.minor for gpu in gpus if gpu.uuid}
    ids = {gpu.minor: gpu.key for gpu in gpus}
    known = places_of(pod.metadata.annotations, names) or {}

    def told(place: str, size: int) -> tuple[str, ...]:
        """Returns the ids of the GPUs that the annotations state for a container; empty if they do not match it."""
        minors = set(known.get(place, ()))
        return tuple(sorted(ids[minor] for minor in minors)) if len(minors) == size and minors <= ids.keys() else ()

    parts = tuple(
        Part(place, c.name, size, told(place, size), place.startswith(INIT_PREFIX) and c.restart_policy != "Always")
        for place, c, size in asking
    )
    meta, grace = pod.metadata, pod.spec.termination_grace_period_seconds
    # settled: no more requests follow, because the kubelet has admitted the pod (it then sets the start time) or the
    # pod is deleted
    settled = meta.deletion_timestamp is not None or pod.status.start_time is not None
    finished = pod.status.phase in FINISHED
    # a failed pod may have running containers: the garbage collector sets Failed for pods of a deleted Node
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    running = any(one.state is None or one.state.terminated is None for one in statuses)
    return ReservedGpus(
        meta.uid,
        meta.namespace,
        meta.name,
        parts,
        created=seconds(meta.creation_timestamp),
        settled=settled,
        grace_seconds=float(DEFAULT_GRACE_SECONDS if grace is None else grace),
        finished=finished,
        ended=finished and not running,
    )


def _size(container: Container, resource: str) -> int:
    """Returns the number of GPUs that a container requests."""
    amounts = {**container.resources.requests, **container.resources.limits}
    return units(resource, amounts[resource]) if resource in amounts else 0


class NodePods:
    """The pods of one node at the API server. The device plugin (`Allocator`, `PluginService`) reads and writes
    them."""

    def __init__(
        self, client: ApiClient, node: str, *, resource: str, gpus: Callable[[], Sequence[MachineGpu]]
    ) -> None:
        """node: name of the node. resource: name of the GPU resource. gpus: returns the GPUs that the node has now."""
        self._client, self._node, self._resource, self._gpus = client, node, resource, gpus
        self._pods: dict[str, Pod] = {}
        """uid -> pod, of the last `read`."""

    async def read(self) -> Sequence[ReservedGpus]:
        """Returns the pods of the node that request GPUs, with their reserved GPUs. Raises ApiError, Unreachable."""
        page = await self._client.list_page(
            "/api/v1/pods", type=Pod, limit=PAGE, params={"fieldSelector": f"spec.nodeName={self._node}"}
        )
        self._pods = {pod.metadata.uid: pod for pod in page.items or ()}
        gpus = self._gpus()
        found = [reserved_of(pod, gpus, self._resource) for pod in page.items or ()]
        return [one for one in found if one is not None]

    async def write(self, pods: Sequence[ReservedGpus]) -> None:
        """Writes the GPUs of pods that have exchanged them to their annotations.

        Two writes are needed for each pod, so that between them no GPU looks free to the scheduler: first all pods get
        annotations with their old and new GPUs, then with their new GPUs only. A deleted pod is skipped. Raises
        ApiError, Unreachable; the caller must then write all pods again.
        """
        by_key = {gpu.key: gpu for gpu in self._gpus()}
        for write in (both, annotation_changes):
            for one in pods:
                pod = self._pods.get(one.uid)
                if pod is not None:
                    places = {part.place: [by_key[gpu] for gpu in part.gpus if gpu in by_key] for part in one.parts}
                    await self._patch(pod, write(pod.metadata.annotations, places))

    async def confirm(self, uids: Sequence[str]) -> None:
        """Sets the gpushare annotation "assigned" of pods from "false" to "true", because the pods have got their GPUs.

        uids: uids of the pods. Raises ApiError, Unreachable; the caller must then call it again.
        """
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is not None and pod.metadata.annotations.get(keys.GPUSHARE_ASSIGNED) == "false":
                now = str(int(time.time()))
                await self._patch(pod, {keys.GPUSHARE_ASSIGNED: "true", keys.GPUSHARE_ASSUME_TIME: now})

    async def _patch(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Writes annotations of a pod; None deletes a key. A deleted pod is skipped. Raises ApiError, Unreachable."""
        meta = pod.metadata
        if not annotations:
            return
        # the uid makes the patch fail if the name belongs to another pod now
        body = {"metadata": {"uid": meta.uid, "annotations": dict(annotations)}}
        try:
            await self._client.patch(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", body)
        except ApiError as fault:
            if fault.status not in GONE and not (fault.status == INVALID and "metadata.uid" in str(fault)):
                raise
