# SPDX-License-Identifier: Apache-2.0
"""Computes requests of pods and allocatable amounts of nodes, as exact integers by resource name.

The request of a pod is computed as in kube-scheduler, from its containers, init containers, overhead and status.
Source: kube-parity.md section 2.5 (KEP-753 for sidecars, KEP-2837 for pod-level resources, KEP-1287 for resizes).
"""

from collections.abc import Iterable, Mapping
from operator import is_
from typing import NamedTuple

from koordpy.api.bounded_memory import forgotten_by
from koordpy.api.field_faults import UnreadableError
from koordpy.api.objects import Container, ContainerStatus, Node, Pod, Quantities, condition_of
from koordpy.api.quantity import MAX_SUM, units
from koordpy.api.reading_limits import RESOURCES

Amounts = dict[str, int]
"""Resource name -> amount: millicores for cpu; bytes or pieces for other resources."""


class ClaimedAmounts(NamedTuple):
    """Amounts that quotas count for a pod because of its resource claims, in addition to its requests. Must not be
    changed."""

    total: Amounts
    with_others: Amounts
    """The part of `total` for claims that other pods use, too."""
    after_others: Amounts
    """The part of `total` for unallocated claims that an older pod uses, too. The demand of a quota counts this part
    only for the older pod."""


NOTHING_CLAIMED = ClaimedAmounts({}, {}, {})
"""The amounts of a pod without resource claims that quotas count."""

DEFAULT_CPU_MILLI = 100
"""Default cpu request of a container without one, in millicores; used by scores only, as in kube-scheduler."""
DEFAULT_MEMORY_BYTES = 200 * 2**20
"""Default memory request of a container without one, in bytes; used by scores only."""


def amounts(raw: Quantities) -> Amounts:
    """Parses a resource list. Raises `UnreadableError` naming the resource."""
    out: Amounts = {}
    for name, text in raw.items():
        try:
            out[name] = units(name, text)
        except UnreadableError as fault:
            raise UnreadableError(f"{name}: {fault}") from None
    return out


def node_allocatable(node: Node) -> Amounts:
    """Returns the allocatable amounts of a node; its capacity if it has no allocatable (API default)."""
    return amounts(node.status.allocatable or node.status.capacity)


def add_amounts(total: Amounts, more: Mapping[str, int], sign: int = 1) -> None:
    """Adds amounts to a sum in place; sign -1 subtracts them."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount


def sum_of(amounts: Mapping[str, int], more: Mapping[str, int], sign: int = 1) -> Amounts:
    """Returns the sum of amounts as a new dict. sign: -1 to subtract `more`."""
    total = dict(amounts)
    add_amounts(total, more, sign)
    return total


def _maximum(total: Amounts, other: Mapping[str, int]) -> None:
    """Raises each amount in `total` to the amount in `other`, in place."""
    for name, amount in other.items():
        if amount > total.get(name, 0):
            total[name] = amount


def _container(container: Container, status: ContainerStatus | None, infeasible: bool) -> Amounts:
    """Returns the request of a container; a limit without a request counts as the request.

    With a status, each amount is the largest of the allocated resources and requests in the status, and the requests in
    the spec. infeasible: True if the kubelet cannot carry out a resize; then the spec is ignored (KEP-1287).
    """
    limits = container.resources.limits
    asked = amounts({**limits, **container.resources.requests} if limits else container.resources.requests)
    if status is None or status.resources is None:
        return asked
    allocated = amounts(status.allocated_resources)
    _maximum(allocated, amounts(status.resources.requests))
    if not infeasible:
        _maximum(allocated, asked)
    return allocated


def sum_of_containers(pod: Pod, apps: Iterable[Amounts], inits: Iterable[Amounts]) -> Amounts:
    """Returns the request of a pod from its containers (KEP-753).

    Each amount is the maximum of: the sum of all containers and restartable init containers; and, for each init
    container, the sum of it and the restartable init containers before it.
    """
    total: Amounts = {}
    for asked in apps:
        add_amounts(total, asked)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, asked in zip(pod.spec.init_containers, inits, strict=True):
        if container.restart_policy == "Always":
            add_amounts(total, asked)
            add_amounts(sidecars, asked)
            _maximum(peak, sidecars)
        else:
            both = dict(sidecars)
            add_amounts(both, asked)
            _maximum(peak, both)
    _maximum(total, peak)
    return total


def _pod_level(pod: Pod, total: Amounts, infeasible: bool) -> None:
    """Replaces the sums of cpu, memory and hugepages in `total` by the pod-level requests (KEP-2837), in place."""
    level = pod.spec.resources
    if level is None:
        return
    asked = amounts(level.requests)
    for name, amount in amounts(level.limits).items():
        if name not in asked and not total.get(name):
            asked[name] = amount
    if pod.status.resources is not None:
        allocated = amounts(pod.status.allocated_resources)
        _maximum(allocated, amounts(pod.status.resources.requests))
        if not infeasible:
            _maximum(allocated, asked)
        asked = allocated
    total.update({n: amount for n, amount in asked.items() if n in ("cpu", "memory") or n.startswith("hugepages-")})


def _kubelet_statuses(pod: Pod) -> tuple[dict[str, ContainerStatus], bool]:
    """Returns (statuses of a bound pod's containers by name, True if the kubelet cannot carry out a pending resize).

    Of init containers only restartable ones are included, because all others have ended when a pod is resized.
    """
    spec, status = pod.spec, pod.status
    if not spec.node_name or not (status.container_statuses or status.init_container_statuses):
        return {}, False
    over = {c.name for c in spec.init_containers if c.restart_policy != "Always"}
    stated = {s.name: s for s in (*status.init_container_statuses, *status.container_statuses) if s.name not in over}
    pending = condition_of(status.conditions, "PodResizePending")
    return stated, pending is not None and pending.reason == "Infeasible"


_MAX_TEMPLATES = 1 << 10
"""Maximum number of entries of `_templates`."""
_templates: dict[int, tuple[tuple[object, ...], Amounts, tuple[int, int]]] = {}
"""`id()` of the list of containers -> (parts of the spec, requests, requests for scores). Pods of one template share
the list. The entry keeps a reference to it, so that Python does not reuse the id."""
forgotten_by(_templates.clear)


def asked_by(pod: Pod) -> tuple[Amounts, tuple[int, int]]:
    """Returns (`pod_requests`, `score_requests`) of a pod.

    Pods of one template share the result, so it must not be changed.
    """
    spec, status = pod.spec, pod.status
    if status.container_statuses or status.init_container_statuses or status.resources is not None:
        return pod_requests(pod), score_requests(pod)
    parts = (spec.containers, spec.init_containers, spec.resources, spec.overhead)
    known = _templates.get(id(spec.containers))
    if known is None or not all(map(is_, known[0], parts)):
        if len(_templates) >= _MAX_TEMPLATES:
            _templates.clear()
        known = parts, pod_requests(pod), score_requests(pod)
        if len(known[1]) <= RESOURCES:
            _templates[id(spec.containers)] = known
    return known[1:]


def pod_requests(pod: Pod) -> Amounts:
    """Returns the request of the whole pod per resource, without zeros.

    For a pod on a node it includes the amounts in the pod's status, which the kubelet has allocated, so that a resize
    in progress counts with the larger amount.
    """
    return {name: min(amount, MAX_SUM) for name, amount in _requests(pod, {}).items() if amount > 0}


def _requests(pod: Pod, missing: Mapping[str, int]) -> Amounts:
    """Returns the request of the whole pod. missing: amounts assumed for a container that states no request."""
    spec = pod.spec
    stated, infeasible = _kubelet_statuses(pod)

    def asked(container: Container) -> Amounts:
        own = _container(container, stated.get(container.name), infeasible)
        return {**missing, **own} if missing else own

    total = sum_of_containers(pod, map(asked, spec.containers), map(asked, spec.init_containers))
    _pod_level(pod, total, infeasible)
    if spec.overhead:
        add_amounts(total, amounts(spec.overhead))
    return total


def score_requests(pod: Pod) -> tuple[int, int]:
    """Returns (millicores of cpu, bytes of memory) as scores count them: 100m and 200Mi for a container without
    requests.

    For resources with a pod-level request these defaults are not used.
    """
    missing = {"cpu": DEFAULT_CPU_MILLI, "memory": DEFAULT_MEMORY_BYTES}
    if pod.spec.resources is not None and pod.spec.resources.requests:
        named = _requests(pod, {})
        missing = {name: amount for name, amount in missing.items() if name not in named}
    total = _requests(pod, missing)
    return min(total.get("cpu", 0), MAX_SUM), min(total.get("memory", 0), MAX_SUM)
