# SPDX-License-Identifier: Apache-2.0
"""Index of pods by their controlling owner, so that a changed workload updates its own pods without a scan of all pods.

The key is the uid in the controlling ownerReference. `below` also finds pods of objects between an owner and its pods,
such as the Jobs of a JobSet, in O(objects and pods found).
"""

from collections.abc import Callable, Collection, Iterable

from koordpy.api.objects import Pod
from koordpy.workloads.known_workloads import unfile


class ControlledPods:
    """Index: object -> the pods that it controls."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, str]] = {}
        """uid of an owner -> `namespace/name` of a pod -> uid of the pod."""

    def add(self, key: str, pod: Pod) -> None:
        """Files a pod (`namespace/name`) under its controlling owner, if it has one."""
        if (owner := pod.metadata.controller) is not None:
            self._of.setdefault(owner.uid, {})[key] = pod.metadata.uid

    def drop(self, key: str, pod: Pod) -> None:
        """Removes a pod. pod: its state when it was added."""
        if (owner := pod.metadata.controller) is not None:
            unfile(self._of, owner.uid, key)

    def __contains__(self, uid: object) -> bool:
        """Returns True if an object (by uid) controls a pod directly."""
        return uid in self._of

    def of(self, uid: str) -> Collection[str]:
        """Returns the keys of the pods that an object (by uid) controls directly."""
        return self._of.get(uid, ())

    def below(self, owners: Iterable[str], workloads: Callable[[str], Iterable[str]]) -> dict[str, None]:
        """Returns the pods that objects (by uid) control directly, or through other objects and pods.

        The result is a dict with the pods' keys and None. workloads: uid of an object -> uids of the workloads that it
        controls directly.
        """
        found: dict[str, None] = {}
        left, seen = [*owners], set[str]()
        while left:
            uid = left.pop()
            if uid in seen:
                continue
            seen.add(uid)
            left += workloads(uid)
            for key, pod in self._of.get(uid, {}).items():
                found[key] = None
                left.append(pod)
        return found
