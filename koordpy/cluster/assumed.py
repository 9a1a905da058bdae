"""Pods that are planned and whose Bindings are not confirmed: the node they count on and what they take with it.

Source: kube-parity.md 4.2. An assumption goes as one: when the pod is confirmed, replaced, gone or given up, its
claims, devices and chips are nobody's promise any more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace as changed

from koordpy.api.objects import Pod
from koordpy.cluster.devices import Grant
from koordpy.cluster.volumes import Promise


def annotated(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """A pod with further annotations."""
    notes = {**pod.metadata.annotations, **annotations}
    return changed(pod, metadata=changed(pod.metadata, annotations=notes))


@dataclass(slots=True)
class Assumption:
    """What one pod is counted with. Not changed but by `Assumptions`."""

    node: str
    claims: Mapping[str, Promise] = field(default_factory=dict)
    """Claim -> what it takes."""
    devices: Mapping[str, Grant] = field(default_factory=dict)
    """Resource claim -> what it is allocated."""
    chips: tuple[int, ...] = ()
    """GPUs (minors) or NPUs of the node that it is given."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """What its Binding says, as far as later plans read it."""
    pod: Pod | None = None
    """As the cluster knows it, without those annotations; None where there are none."""


class Assumptions:
    """Assumptions by pod (`namespace/name`)."""

    def __init__(self) -> None:
        self._by_pod: dict[str, Assumption] = {}
        self._in_writing: dict[str, Grant] = {}

    def __len__(self) -> int:
        return len(self._by_pod)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_pod)

    def node(self, key: str) -> str:
        """Node that a pod is assumed on; empty for none."""
        found = self._by_pod.get(key)
        return found.node if found is not None else ""

    def chips(self, key: str) -> tuple[int, ...] | None:
        """Chips that a pod is given; None where it is not assumed or takes none by name."""
        found = self._by_pod.get(key)
        return found.chips or None if found is not None else None

    def put(self, key: str, assumption: Assumption) -> None:
        """Takes an assumption in place of an older one."""
        self._by_pod.pop(key, None)
        self._by_pod[key] = assumption

    def drop(self, key: str) -> bool:
        """Gives an assumption up; whether there was one."""
        return self._by_pod.pop(key, None) is not None

    def shown(self, pod: Pod) -> Pod:
        """An assumed pod as plans read it; the cluster knows it as given."""
        found = self._by_pod[pod.key]
        if not found.annotations:
            return pod
        found.pod = pod
        return annotated(pod, found.annotations)

    def bare(self, pod: Pod) -> Pod:
        """The pod as the API server has it, without the annotations that plans see on an assumed one."""
        found = self._by_pod.get(pod.key)
        return found.pod if found is not None and found.pod is not None else pod

    def takes(self, claim: str) -> bool:
        """Whether a claim is one that an assumed pod takes something for."""
        return any(claim in found.claims for found in self._by_pod.values())

    def takes_device(self, claim: str) -> bool:
        """Whether a resource claim is one that is allocated with an assumed pod."""
        return claim in self._in_writing or any(claim in found.devices for found in self._by_pod.values())

    def write(self, claim: str, devices: Grant) -> None:
        """What a resource claim is allocated is on its way to the API server: it is not free again when the pod that
        it is for is gone before the answer."""
        self._in_writing[claim] = devices

    def written(self, claim: str) -> None:
        """What became of that is known, and told by the claim."""
        self._in_writing.pop(claim, None)

    def promises(self) -> dict[str, Promise]:
        """Claim -> what it takes with an assumed pod."""
        return {claim: promise for found in self._by_pod.values() for claim, promise in found.claims.items()}

    def grants(self) -> dict[str, Grant]:
        """Resource claim -> what it is allocated with an assumed pod, or by a write that is under way."""
        taken = {claim: devices for found in self._by_pod.values() for claim, devices in found.devices.items()}
        return self._in_writing | taken
