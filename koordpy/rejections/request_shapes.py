# SPDX-License-Identifier: Apache-2.0
"""Computes request shapes: classes of pods that a kubelet admits or rejects alike (numa.md 8.2).

Two pods have the same shape if their init containers and containers agree in order, kind and requests, and if overhead,
requests of the pod as a whole and QoS class are equal. Names, images, labels and claims do not matter.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from koordpy.api.objects import Container, Pod, PodStatus, ResourceRequirements
from koordpy.api.quantity import quantity_text
from koordpy.pods.resource_amounts import Amounts, amounts, pod_requests

_OF_QOS = ("cpu", "memory")
"""Resources that decide the QoS class."""


class RequestShape(NamedTuple):
    """The requests of a class of pods."""

    key: bytes
    """Digest: equal for two pods exactly if they have the same shape."""
    total: Amounts
    """Requests of the whole pod, as in kube-parity.md 2.5."""

    @property
    def text(self) -> str:
        """`total` as text, such as `cpu 8, memory 64Gi, nvidia.com/gpu 4`."""
        names = [name for name in _OF_QOS if name in self.total]
        names += sorted(name for name in self.total if name not in _OF_QOS)
        return ", ".join(f"{name} {quantity_text(name, self.total[name])}" for name in names) or "no requests"

    @property
    def devices(self) -> tuple[str, ...]:
        """The requested device resources: resources with a domain in their name, such as nvidia.com/gpu."""
        return devices_of(self.total)


def devices_of(requests: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the requested resources with a domain in their name, in the order of names."""
    return tuple(sorted(name for name in requests if "/" in name))


def request_shape(pod: Pod) -> RequestShape:
    """Returns the request shape of a pod from its spec. Raises `UnreadableError` for an invalid quantity."""
    spec = pod.spec
    kinds = ["sidecar" if one.restart_policy == "Always" else "init" for one in spec.init_containers]
    parts = [(kind, _asked(one)) for kind, one in zip(kinds, spec.init_containers, strict=True)]
    parts += [("container", _asked(one)) for one in spec.containers]
    level = sorted(_positive(amounts(spec.resources.requests)).items()) if spec.resources is not None else []
    overhead = sorted(_positive(amounts(spec.overhead)).items())
    said = msgspec.json.encode((parts, overhead, level, qos_class(pod)))
    return RequestShape(sha256(said).digest(), pod_requests(replace(pod, status=PodStatus())))


def _asked(container: Container) -> list[tuple[str, int]]:
    given = container.resources
    return sorted(_positive(amounts({**given.limits, **given.requests})).items())


def _positive(given: Mapping[str, int]) -> Amounts:
    return {name: amount for name, amount in given.items() if amount > 0}


def qos_class(pod: Pod) -> str:
    """Returns the QoS class of a pod as the API server computes it from the spec: by cpu and memory alone.

    Guaranteed: each container has limits for cpu and memory, and requests the same amounts; if the pod as a whole
    states resources, these must. BestEffort: nothing is requested or limited. Burstable: all other pods.
    """
    level = pod.spec.resources
    if level is not None and (_of_qos(level.requests) or _of_qos(level.limits)):
        parts: Iterable[ResourceRequirements] = (level,)
    else:
        parts = [one.resources for one in (*pod.spec.init_containers, *pod.spec.containers)]
    stated = [(_of_qos({**part.limits, **part.requests}), _of_qos(part.limits)) for part in parts]
    if not any(requests or limits for requests, limits in stated):
        return "BestEffort"
    guaranteed = all(len(limits) == len(_OF_QOS) and requests == limits for requests, limits in stated)
    return "Guaranteed" if guaranteed else "Burstable"


def _of_qos(given: Mapping[str, str | int | float]) -> Amounts:
    return {name: amount for name, amount in _positive(amounts(dict(given))).items() if name in _OF_QOS}
