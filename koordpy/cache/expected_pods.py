"""What is being written about pods and has not come back by the watch: their Binding, their nomination, their end.

Sources: kube-parity.md 4.2 and 4.5, preemption.md 4. Plans see a pod as it will be, whatever older events arrive
meanwhile. Each expectation ends when the pod itself shows it. An assumption goes as one: when the pod is confirmed,
replaced, gone or given up, its claims and devices are promised no more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace as changed

from koordpy.api.objects import Pod
from koordpy.cache.reservations import Reservation
from koordpy.pods.volume_book import Promise


def annotated(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """A pod with further annotations."""
    notes = {**pod.metadata.annotations, **annotations}
    return changed(pod, metadata=changed(pod.metadata, annotations=notes))


@dataclass(slots=True)
class _Expected:
    pod: Pod
    """As the API server showed it last."""
    nominated: str | None = None
    """Node that it is being nominated to; empty while its nomination is being cleared."""
    ending: str = ""
    """deletionTimestamp that its eviction will have, about."""
    assumption: Reservation | None = None
    """Stage ASSUMED: what it is counted with while its Binding is not confirmed."""

    def shown(self) -> Pod:
        pod = self.pod
        if self.nominated is not None:
            pod = changed(pod, status=changed(pod.status, nominated_node_name=self.nominated))
        if self.ending:
            pod = changed(pod, metadata=changed(pod.metadata, deletion_timestamp=self.ending))
        if self.assumption is not None and self.assumption.annotations and not pod.spec.node_name:
            pod = annotated(pod, self.assumption.annotations)
        return pod


class ExpectedPods:
    """Expectations by pod (`namespace/name`)."""

    def __init__(self) -> None:
        self._by_pod: dict[str, _Expected] = {}

    def seen(self, pod: Pod) -> Pod:
        """The API server shows a pod: what it shows is expected no more. The pod as plans are to see it."""
        expected = self._by_pod.get(pod.key)
        if expected is None or expected.pod.metadata.uid != pod.metadata.uid:
            return pod
        expected.pod = pod
        if expected.nominated == pod.status.nominated_node_name or pod.spec.node_name:
            expected.nominated = None
        if pod.metadata.deletion_timestamp:
            expected.ending = ""
        self._end(pod.key, expected)
        return expected.shown()

    def shown(self, pod: Pod) -> Pod:
        """A pod that the API server showed so last, as plans are to see it."""
        expected = self._by_pod.get(pod.key)
        return expected.shown() if expected is not None else pod

    def bare(self, pod: Pod) -> Pod:
        """A pod that plans see so, as the API server showed it last."""
        expected = self._by_pod.get(pod.key)
        return expected.pod if expected is not None else pod

    def nominate(self, pod: Pod, node: str) -> None:
        """The pod is being nominated to a node, to none where it is empty."""
        self._of(pod).nominated = node

    def end(self, pod: Pod, timestamp: str) -> None:
        """The pod is being evicted and will be gone about then (RFC 3339)."""
        self._of(pod).ending = timestamp

    def assume(self, pod: Pod, assumption: Reservation) -> Pod:
        """The pod is being bound; as plans are to see it."""
        expected = self._of(pod)
        expected.assumption = assumption
        return expected.shown()

    def unforesee(self, key: str) -> None:
        """Neither its nomination nor its end are to be expected."""
        if (expected := self._by_pod.get(key)) is not None:
            expected.nominated, expected.ending = None, ""
            self._end(key, expected)

    def unassume(self, key: str) -> None:
        """It is bound, or will not be."""
        if (expected := self._by_pod.get(key)) is not None:
            expected.assumption = None
            self._end(key, expected)

    def drop(self, key: str) -> None:
        """Nothing is expected of a pod."""
        self._by_pod.pop(key, None)

    def _of(self, pod: Pod) -> _Expected:
        return self._by_pod.setdefault(pod.key, _Expected(pod))

    def _end(self, key: str, expected: _Expected) -> None:
        if expected.nominated is None and not expected.ending and expected.assumption is None:
            del self._by_pod[key]

    # -- assumed pods -------------------------------------------------------------------------------------------------

    def assumed(self) -> Iterator[tuple[str, Reservation]]:
        return ((key, one.assumption) for key, one in self._by_pod.items() if one.assumption is not None)

    def assumption(self, key: str) -> Reservation | None:
        """What a pod is counted with; None for one that is not assumed."""
        found = self._by_pod.get(key)
        return found.assumption if found is not None else None

    def promises(self) -> dict[str, Promise]:
        """Claim -> what it takes with an assumed pod."""
        return {claim: promise for _, found in self.assumed() for claim, promise in found.volumes.items()}
