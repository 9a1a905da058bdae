# SPDX-License-Identifier: Apache-2.0
"""The amounts of a pod that the kubelet may align: by container, as held by the running pod, and the demanded
alignment.

Read once for each version of a pod, for all nodes. A node aligns those resources that its zones list. CPUs are aligned
only in whole numbers and for Guaranteed pods, memory only for Guaranteed pods, devices always (docs/rules/numa.md 2 and
5).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.bounded_memory import HashedOnce, cached, shared
from koordpy.api.field_faults import UnreadableError, literal
from koordpy.api.json_text import read_json
from koordpy.api.objects import Container, Pod, Quantities
from koordpy.devices.numa.admission import PodAmounts, Policy, Request, RequestPart, Scope, is_memory
from koordpy.pods.resource_amounts import Amounts, add_amounts, amounts, sum_of_containers

NUMA = "numa"
"""Name of the family."""
_NEVER = frozenset({"ephemeral-storage", "pods"})
"""Resources that no manager of the kubelet aligns, whatever a report lists."""
_SPEC_WORDS = {
    "": Policy.NONE,
    "SingleNUMANode": Policy.SINGLE,
    "Restricted": Policy.RESTRICTED,
    "BestEffort": Policy.BEST_EFFORT,
}
_ALIAS_WORDS = {
    "": Policy.NONE,
    "single-numa-node": Policy.SINGLE,
    "restricted": Policy.RESTRICTED,
    "best-effort": Policy.BEST_EFFORT,
    "none": Policy.NONE,
}
_Row = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class NumaAsk(HashedOnce):
    """The amounts of a pod that may be aligned. Amounts are sorted by resource."""

    containers: tuple[Request, ...]
    """Requests with scope container, in the order in which the kubelet admits them."""
    whole: _Row
    """Amounts of the request with scope pod."""
    held: _Row
    """Amounts that the pod holds while it runs."""
    demand: Policy = Policy.NONE
    """Policy that the pod demands of its node: none, restricted or single-numa-node."""
    fault: str = ""
    """Why the demand cannot be read; empty if it can."""
    ignored: tuple[str, ...] = ()
    """Warnings about parts of the demand that have no effect."""

    __hash__ = HashedOnce.__hash__

    def on(self, resources: frozenset[str], scope: Scope) -> PodAmounts:
        """Returns the amounts that a node aligns. resources: the resources that its zones align."""
        return _amounts_on(self, resources, scope)


@cached(1 << 13)
def _amounts_on(ask: NumaAsk, resources: frozenset[str], scope: Scope) -> PodAmounts:
    """Returns what a node aligns of a pod; cached for equal pods and nodes."""
    asked = ask.containers if scope is Scope.CONTAINER else (Request(RequestPart.POD, ask.whole),)
    requests = ((part, _only(row, resources)) for part, row in asked)
    return PodAmounts(tuple(Request(part, row) for part, row in requests if row), _only(ask.held, resources))


def _only(row: _Row, resources: frozenset[str]) -> _Row:
    """Returns the amounts of the given resources."""
    return tuple(one for one in row if one[0] in resources)


def numa_ask(pod: Pod) -> NumaAsk | None:
    """Returns what may be aligned of a pod; None for a pod without aligned amounts and without a demand."""
    demand, fault, ignored = read_demand(pod.metadata.annotations)
    spec = pod.spec
    guaranteed = not _has_pod_level_requests(pod) and is_guaranteed(pod)
    inits = [_aligned(one, guaranteed) for one in spec.init_containers]
    apps = [_aligned(one, guaranteed) for one in spec.containers]
    if not any((*inits, *apps)) and demand is Policy.NONE and not fault and not ignored:
        return None
    held: Amounts = {}
    requests: list[Request] = []
    for container, own in zip(spec.init_containers, inits, strict=True):
        sidecar = container.restart_policy == "Always"
        requests.append(Request(RequestPart.SIDECAR if sidecar else RequestPart.INIT, _row(own)))
        if sidecar:
            add_amounts(held, own)
    for own in apps:
        requests.append(Request(RequestPart.CONTAINER, _row(own)))
        add_amounts(held, own)
    whole = sum_of_containers(pod, apps, inits)
    containers = tuple(one for one in requests if one.amounts)
    return shared(NumaAsk(containers, _row(whole), _row(held), demand, fault, ignored))


def _row(found: Mapping[str, int]) -> _Row:
    return tuple(sorted((name, amount) for name, amount in found.items() if amount > 0))


def _requests(container: Container) -> Amounts:
    """Returns the requests of a container; a limit without a request counts as the request."""
    return amounts({**container.resources.limits, **container.resources.requests})


def _aligned(container: Container, guaranteed: bool) -> Amounts:
    """Returns the amounts of a container that its kubelet may align."""
    out: Amounts = {}
    for name, amount in _requests(container).items():
        if name in _NEVER or amount <= 0:
            continue
        if name == "cpu":
            if guaranteed and amount % 1000 == 0:
                out[name] = amount
        elif not is_memory(name) or guaranteed:
            out[name] = amount
    return out


def _has_pod_level_requests(pod: Pod) -> bool:
    """Returns whether the pod as a whole requests or limits a resource that the kubelet accepts there."""
    level = pod.spec.resources
    names = (*level.requests, *level.limits) if level is not None else ()
    return any(name == "cpu" or is_memory(name) for name in names)


def is_guaranteed(pod: Pod) -> bool:
    """Returns whether the QoS class of a pod without pod-level resources is Guaranteed, as the API server computes it.

    Every container has limits of cpu and memory, and its requests are equal to them.
    """
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return bool(containers) and all(map(_is_limited, containers))


def _is_limited(container: Container) -> bool:
    limits = _compute(container.resources.limits)
    return len(limits) == 2 and _compute({**limits, **container.resources.requests}) == limits


def _compute(found: Quantities) -> dict[str, int]:
    """Returns the amounts of cpu and memory above 0 in a resource list."""
    both = {name: text for name, text in found.items() if name in ("cpu", "memory")}
    return {name: amount for name, amount in amounts(both).items() if amount > 0}


def read_demand(annotations: Mapping[str, str]) -> tuple[Policy, str, tuple[str, ...]]:
    """Returns (policy that a pod demands, why the demand cannot be read, warnings about parts without effect)."""
    text = annotations.get(keys.NUMA_SPEC)
    if text is None:
        alias = annotations.get(keys.NUMA_SPEC_ALIAS)
        if alias is None:
            return Policy.NONE, "", ()
        policy, wrong = _word(alias, _ALIAS_WORDS)
        return policy, _unreadable(keys.NUMA_SPEC_ALIAS, wrong), ()
    try:
        raw = read_json(text)
    except UnreadableError:
        raw = None
    if not isinstance(raw, dict):
        return Policy.NONE, _unreadable(keys.NUMA_SPEC, "no JSON object"), ()
    word = raw.get("numaTopologyPolicy")
    policy, wrong = _word("" if word is None else word, _SPEC_WORDS)
    exclusive = "singleNUMANodeExclusive"
    ignored = (f"annotation {keys.NUMA_SPEC}: {exclusive} is not supported",) if raw.get(exclusive) else ()
    return policy, _unreadable(keys.NUMA_SPEC, wrong), ignored


def _word(value: object, words: Mapping[str, Policy]) -> tuple[Policy, str]:
    """Returns (demanded policy, fault) of a value; best-effort demands nothing."""
    found = words.get(value) if isinstance(value, str) else None
    if found is None:
        return Policy.NONE, f"{literal(value)} is none of {', '.join(_listed(words))}"
    return (found if found.rejects else Policy.NONE), ""


def _listed(words: Collection[str]) -> Iterator[str]:
    return (word for word in words if word)


def _unreadable(key: str, fault: str) -> str:
    return f"annotation {key} cannot be read: {fault}" if fault else ""
