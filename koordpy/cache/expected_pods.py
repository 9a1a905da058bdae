# SPDX-License-Identifier: Apache-2.0
"""Expected changes of pods: Bindings, nominations and evictions that were sent, but that the watch has not shown yet.

Plans see a pod with its expected changes, even if the watch delivers older states of it. An expectation ends when the
watch shows the change, or when the request has failed. The expected Binding of a pod is called assumption, as for
assumed pods in kube-scheduler. An assumption includes the pod's volumes and devices, which are released together with
it. Sources: kube-parity.md 4.2 and 4.5, preemption.md 4.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace as changed

from koordpy.api.objects import Pod
from koordpy.cache.reservations import Reservation
from koordpy.pods.volume_book import ClaimVolume


def annotated(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """Returns a copy of a pod with additional annotations."""
    notes = {**pod.metadata.annotations, **annotations}
    return changed(pod, metadata=changed(pod.metadata, annotations=notes))


@dataclass(slots=True)
class _Expected:
    """The expectations of one pod."""

    pod: Pod
    """The last state from the API server."""
    nominated: str | None = None
    """Expected nominated node. Empty if the nomination is being cleared; None if no change is expected."""
    ending: str = ""
    """Expected deletionTimestamp (RFC 3339) of a pod that is being evicted; empty for no expectation."""
    assumption: Reservation | None = None
    """Reservation of stage ASSUMED while the Binding is not confirmed; None if no Binding was sent."""

    def shown(self) -> Pod:
        """Returns the pod with its expected changes."""
        pod = self.pod
        if self.nominated is not None:
            pod = changed(pod, status=changed(pod.status, nominated_node_name=self.nominated))
        if self.ending:
            pod = changed(pod, metadata=changed(pod.metadata, deletion_timestamp=self.ending))
        if self.assumption is not None and self.assumption.annotations and not pod.spec.node_name:
            pod = annotated(pod, self.assumption.annotations)
        return pod


class ExpectedPods:
    """Expected changes by pod (`namespace/name`)."""

    def __init__(self) -> None:
        self._by_pod: dict[str, _Expected] = {}
        """Pod key -> its expectations; only pods with at least one."""

    def observe(self, pod: Pod) -> Pod:
        """Ends the expectations that a new state from the API server fulfils. Returns the pod with the remaining
        ones."""
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
        """Returns a pod's last state from the API server with its expected changes; `pod` itself if none are
        expected."""
        expected = self._by_pod.get(pod.key)
        return expected.shown() if expected is not None else pod

    def bare(self, pod: Pod) -> Pod:
        """Returns the last state from the API server, without expected changes. pod: the state with these changes."""
        expected = self._by_pod.get(pod.key)
        return expected.pod if expected is not None else pod

    def nominate(self, pod: Pod, node: str) -> None:
        """Records that the pod is being nominated. node: empty to clear its nomination."""
        self._of(pod).nominated = node

    def end(self, pod: Pod, timestamp: str) -> None:
        """Records that the pod is being evicted. timestamp: expected end (RFC 3339)."""
        self._of(pod).ending = timestamp

    def assume(self, pod: Pod, assumption: Reservation) -> Pod:
        """Records that the pod is being bound; returns it with the expected changes."""
        expected = self._of(pod)
        expected.assumption = assumption
        return expected.shown()

    def unforesee(self, key: str) -> None:
        """Removes the expected nomination and the expected deletion of a pod, because the request failed."""
        if (expected := self._by_pod.get(key)) is not None:
            expected.nominated, expected.ending = None, ""
            self._end(key, expected)

    def unassume(self, key: str) -> None:
        """Removes the assumption of a pod that is bound, or that will not be bound."""
        if (expected := self._by_pod.get(key)) is not None:
            expected.assumption = None
            self._end(key, expected)

    def drop(self, key: str) -> None:
        """Removes all expectations of a pod."""
        self._by_pod.pop(key, None)

    def _of(self, pod: Pod) -> _Expected:
        return self._by_pod.setdefault(pod.key, _Expected(pod))

    def _end(self, key: str, expected: _Expected) -> None:
        """Deletes the record of a pod if no expectation is left in it."""
        if expected.nominated is None and not expected.ending and expected.assumption is None:
            del self._by_pod[key]

    # -- assumed pods -------------------------------------------------------------------------------------------------

    def assumed(self) -> Iterator[tuple[str, Reservation]]:
        """Yields (key, reservation) of each assumed pod."""
        return ((key, one.assumption) for key, one in self._by_pod.items() if one.assumption is not None)

    def assumption(self, key: str) -> Reservation | None:
        """Returns the reservation of an assumed pod; None for a pod that is not assumed."""
        found = self._by_pod.get(key)
        return found.assumption if found is not None else None

    def promises(self) -> dict[str, ClaimVolume]:
        """Returns volume claim -> the volume and node that an assumed pod binds the claim to."""
        return {claim: promise for _, found in self.assumed() for claim, promise in found.volumes.items()}
