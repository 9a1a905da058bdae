"""What is being written about pods and has not come back by the watch: their nomination, their end.

Source: kube-parity.md 4.2 and 4.5, preemption.md 4. Between a plan that evicts and the watch's word of it, the next
plan must see the room kept and the victims going, whatever older events arrive meanwhile.
"""

from dataclasses import dataclass

from msgspec.structs import replace as changed

from koordpy.api.objects import Pod


@dataclass(slots=True)
class _Expected:
    pod: Pod
    """As the API server showed it last."""
    nominated: str | None = None
    """Node that it is being nominated to; empty while its nomination is being cleared."""
    ending: str = ""
    """deletionTimestamp that its eviction will have, about."""

    def applied(self) -> Pod:
        pod = self.pod
        if self.nominated is not None:
            pod = changed(pod, status=changed(pod.status, nominated_node_name=self.nominated))
        if self.ending:
            pod = changed(pod, metadata=changed(pod.metadata, deletion_timestamp=self.ending))
        return pod


class Foreseen:
    """Expectations by pod uid."""

    def __init__(self) -> None:
        self._by_uid: dict[str, _Expected] = {}

    def __bool__(self) -> bool:
        return bool(self._by_uid)

    def nominate(self, pod: Pod, node: str) -> Pod:
        """The pod is being nominated to a node, to none where it is empty; the pod as it is to be seen."""
        expected = self._of(pod)
        expected.nominated = node
        return expected.applied()

    def end(self, pod: Pod, timestamp: str) -> Pod:
        """The pod is being evicted and will be gone about then (RFC 3339); the pod as it is to be seen."""
        expected = self._of(pod)
        expected.ending = timestamp
        return expected.applied()

    def _of(self, pod: Pod) -> _Expected:
        return self._by_uid.setdefault(pod.metadata.uid, _Expected(pod))

    def shown(self, pod: Pod) -> Pod:
        """The pod as the API server showed it last."""
        expected = self._by_uid.get(pod.metadata.uid)
        return expected.pod if expected is not None else pod

    def forget(self, uid: str) -> Pod | None:
        """What was expected has happened, or will not; the pod as the API server showed it last."""
        expected = self._by_uid.pop(uid, None)
        return expected.pod if expected is not None else None

    def applied(self, pod: Pod) -> Pod:
        """The pod as it is to be seen; an expectation ends when the pod itself shows what was expected."""
        expected = self._by_uid.get(pod.metadata.uid)
        if expected is None:
            return pod
        expected.pod = pod
        if expected.nominated == pod.status.nominated_node_name or pod.spec.node_name:
            expected.nominated = None
        if pod.metadata.deletion_timestamp:
            expected.ending = ""
        if expected.nominated is None and not expected.ending:
            del self._by_uid[pod.metadata.uid]
            return pod
        return expected.applied()
