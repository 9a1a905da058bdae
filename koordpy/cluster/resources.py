"""What a pod asks for and what a node has, as exact integers by resource name.

Source: kube-parity.md section 2.5 (KEP-753 for sidecars, KEP-2837 for pod-level resources, KEP-1287 for resizes).
"""

from collections.abc import Iterable, Mapping

from koordpy.api.objects import Container, ContainerStatus, Node, Pod, Quantities
from koordpy.api.quantity import units

Amounts = dict[str, int]
"""Milli-cores of cpu, whole units of everything else."""

DEFAULT_CPU_MILLI = 100
DEFAULT_MEMORY_BYTES = 200 * 2**20
"""What a container without a request weighs in scores, and only there."""


def amounts(raw: Quantities) -> Amounts:
    """Parses a resource list. Raises ValueError naming the resource."""
    out: Amounts = {}
    for name, text in raw.items():
        try:
            out[name] = units(name, text)
        except ValueError as fault:
            raise ValueError(f"{name}: {fault}") from None
    return out


def node_allocatable(node: Node) -> Amounts:
    """Allocatable amounts; capacity only where a node states no allocatable at all (API default)."""
    return amounts(node.status.allocatable or node.status.capacity)


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _maximum(total: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > total.get(name, 0):
            total[name] = amount


def _container(container: Container, status: ContainerStatus | None, infeasible: bool) -> Amounts:
    limits = container.resources.limits
    asked = amounts({**limits, **container.resources.requests} if limits else container.resources.requests)
    if status is None or status.resources is None:
        return asked
    held = amounts(status.allocated_resources)
    _maximum(held, amounts(status.resources.requests))
    if not infeasible:
        _maximum(held, asked)
    return held


def _sum(pod: Pod, apps: Iterable[Amounts], inits: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for asked in apps:
        _add(total, asked)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, asked in zip(pod.spec.init_containers, inits, strict=True):
        if container.restart_policy == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            _maximum(peak, sidecars)
        else:
            both = dict(sidecars)
            _add(both, asked)
            _maximum(peak, both)
    _maximum(total, peak)
    return total


def _pod_level(pod: Pod, total: Amounts, infeasible: bool) -> None:
    level = pod.spec.resources
    if level is None:
        return
    asked = amounts(level.requests)
    for name, amount in amounts(level.limits).items():
        if name not in asked and not total.get(name):
            asked[name] = amount
    if pod.status.resources is not None:
        held = amounts(pod.status.allocated_resources)
        _maximum(held, amounts(pod.status.resources.requests))
        if not infeasible:
            _maximum(held, asked)
        asked = held
    total.update({n: amount for n, amount in asked.items() if n in ("cpu", "memory") or n.startswith("hugepages-")})


def pod_requests(pod: Pod) -> Amounts:
    """The whole pod's request per resource, zeros left out.

    Of a pod on a node the figures of its status count too: what the kubelet has given it, before and after a resize.
    """
    spec, status = pod.spec, pod.status
    stated: dict[str, ContainerStatus] = {}
    infeasible = False
    if spec.node_name and (status.container_statuses or status.init_container_statuses):
        stated = {s.name: s for s in (*status.init_container_statuses, *status.container_statuses)}
        infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in status.conditions)
    apps = [_container(c, stated.get(c.name), infeasible) for c in spec.containers]
    inits = [_container(c, stated.get(c.name), infeasible) for c in spec.init_containers]
    total = _sum(pod, apps, inits)
    _pod_level(pod, total, infeasible)
    if spec.overhead:
        _add(total, amounts(spec.overhead))
    return {name: amount for name, amount in total.items() if amount > 0}


def score_requests(pod: Pod) -> tuple[int, int]:
    """(milli-cores, bytes) that scores count: a container without a request weighs 100m and 200Mi."""

    def weighed(container: Container) -> Amounts:
        asked = _container(container, None, False)
        return {"cpu": asked.get("cpu", DEFAULT_CPU_MILLI), "memory": asked.get("memory", DEFAULT_MEMORY_BYTES)}

    total = _sum(pod, map(weighed, pod.spec.containers), map(weighed, pod.spec.init_containers))
    _pod_level(pod, total, False)
    if pod.spec.overhead:
        over = amounts(pod.spec.overhead)
        _add(total, {n: over.get(n, 0) for n in ("cpu", "memory")})
    return total.get("cpu", 0), total.get("memory", 0)
