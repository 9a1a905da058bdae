# SPDX-License-Identifier: Apache-2.0
"""Lists the required rules of pods about other pods and host ports, and copies pods without one of these rules.

Explanations use this to find the rule that blocks a pod: they plan the pod without each of its rules.
"""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from koordpy.api.objects import Affinity, Container, Pod

Respec = Callable[[Pod], Pod]
"""Returns a copy of a pod with a changed specification."""


def rules_of(pods: Iterable[Pod]) -> list[tuple[str, Respec]]:
    """Returns the required spread, affinity, anti-affinity and host port rules of pods, sorted by name.

    An entry is (name of the rule in messages, function that returns a copy of a pod without this rule).
    """
    found: dict[str, Respec] = {}
    for pod in pods:
        spec = pod.spec
        for one in spec.topology_spread_constraints:
            if one.when_unsatisfiable != "ScheduleAnyway":
                found.setdefault(f"spread over {one.topology_key}", partial(_without_spread, key=one.topology_key))
        near = spec.affinity
        for term in near.pod_affinity.required if near is not None and near.pod_affinity is not None else ():
            found.setdefault(f"affinity over {term.topology_key}", partial(_without_affinity, key=term.topology_key))
        for term in near.pod_anti_affinity.required if near is not None and near.pod_anti_affinity is not None else ():
            found.setdefault(
                f"anti-affinity over {term.topology_key}", partial(_without_anti_affinity, key=term.topology_key)
            )
        for container in (*spec.init_containers, *spec.containers):
            for port in container.ports:
                if port.host_port > 0:
                    found.setdefault(f"host port {port.host_port}", partial(_without_port, port=port.host_port))
    return sorted(found.items(), key=lambda item: item[0])


def rule_title(name: str) -> str:
    """Returns the rule of a name in `rules_of` as a noun: `the required pod affinity over KEY`, or the host port."""
    titles = {
        "spread": "the topology spread constraint",
        "affinity": "the required pod affinity",
        "anti-affinity": "the required pod anti-affinity",
    }
    kind, _, rest = name.partition(" ")
    return f"{titles[kind]} {rest}" if kind in titles else name


def _without_spread(pod: Pod, *, key: str) -> Pod:
    """Returns the pod without its required spread constraints over a node label."""
    left = [
        one
        for one in pod.spec.topology_spread_constraints
        if one.topology_key != key or one.when_unsatisfiable == "ScheduleAnyway"
    ]
    return replace(pod, spec=replace(pod.spec, topology_spread_constraints=left))


def _without_affinity(pod: Pod, *, key: str) -> Pod:
    """Returns the pod without its required affinity terms over a node label."""

    def edit(near: Affinity) -> Affinity:
        if near.pod_affinity is None:
            return near
        left = [term for term in near.pod_affinity.required if term.topology_key != key]
        return replace(near, pod_affinity=replace(near.pod_affinity, required=left))

    return with_affinity(pod, edit)


def _without_anti_affinity(pod: Pod, *, key: str) -> Pod:
    """Returns the pod without its required anti-affinity terms over a node label."""

    def edit(near: Affinity) -> Affinity:
        if near.pod_anti_affinity is None:
            return near
        left = [term for term in near.pod_anti_affinity.required if term.topology_key != key]
        return replace(near, pod_anti_affinity=replace(near.pod_anti_affinity, required=left))

    return with_affinity(pod, edit)


def with_affinity(pod: Pod, edit: Callable[[Affinity], Affinity]) -> Pod:
    """Returns the pod with its affinity changed by `edit`; unchanged if it has no affinity."""
    near = pod.spec.affinity
    return pod if near is None else replace(pod, spec=replace(pod.spec, affinity=edit(near)))


def in_containers(pod: Pod, edit: Callable[[Container], Container]) -> Pod:
    """Returns the pod with `edit` applied to each of its containers and init containers."""
    spec = pod.spec
    made = replace(spec, containers=[*map(edit, spec.containers)], init_containers=[*map(edit, spec.init_containers)])
    return replace(pod, spec=made)


def _without_port(pod: Pod, *, port: int) -> Pod:
    """Returns the pod without a host port."""

    def edit(container: Container) -> Container:
        left = [replace(one, host_port=0) if one.host_port == port else one for one in container.ports]
        return replace(container, ports=left)

    return in_containers(pod, edit)
