# SPDX-License-Identifier: Apache-2.0
"""Counts bound pods by node, for filters and scores that depend on other pods: affinity, spread, host ports, volumes.

Pods of one namespace form a class if they have equal labels. Only label keys that some selector names are compared, so
that 50,000 pods become a few classes. A filter then evaluates its selector once for each class.
"""

from collections.abc import Iterable

from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import PodClass, TermClass, pod_class
from koordpy.pods.tally import Tally
from koordpy.pods.volume_book import Disk, claim_key, disks_of


class Neighbours:
    """Counts of bound pods by class and node. Each public attribute is described at the `Snapshot` field of its
    name."""

    def __init__(self) -> None:
        self.looked_for: frozenset[str] = frozenset()
        """Label keys by which classes distinguish pods: the keys that selectors name."""
        self.classes: Tally[PodClass, tuple[str, bool]] = Tally()
        self.terms: Tally[TermClass, str] = Tally()
        self.ports: Tally[tuple[str, int], tuple[str, str]] = Tally()
        self.claim_users: Tally[str, str] = Tally()
        self.disks: Tally[Disk, tuple[str, bool]] = Tally()
        self.selectors: Tally[str, str] = Tally()
        self._labelled: dict[frozenset[str], dict[str, PodInfo]] = {}
        """Set of label keys -> pods (by key) that have exactly these label keys. There are few such sets, because pods
        are created from templates."""

    def account(self, info: PodInfo, sign: int) -> None:
        """Adds a bound pod to the counts (sign 1), or removes it (-1)."""
        self._classify(info, sign)
        carried = frozenset(info.pod.metadata.labels)
        if sign > 0:
            self._labelled.setdefault(carried, {})[info.key] = info
        elif (alike := self._labelled.get(carried)) is not None:
            alike.pop(info.key, None)
            if not alike:
                del self._labelled[carried]
        if info.selector:
            self.selectors.add(info.selector, info.node, sign)
        ties = info.ties
        if ties.terms:
            self.terms.add(TermClass(info.namespace, ties.terms), info.node, sign)
        for volume in ties.volumes:
            key = claim_key(info.namespace, info.name, volume)
            if key:
                self.claim_users.add(key, info.node, sign)
            for disk, read_only in disks_of(volume):
                self.disks.add(disk, (info.node, read_only), sign)
        for port in ties.ports:
            self.ports.add((port.protocol, port.port), (info.node, port.address), sign)

    def look_for(self, label_keys: Iterable[str]) -> frozenset[str]:
        """Adds label keys by which classes distinguish pods. Returns the keys that are new.

        Only pods with one of the new keys are counted again. So a tenant that adds new keys with each pod does not
        cause a count of all pods each time.
        """
        new = frozenset(label_keys) - self.looked_for
        if new:
            self._look(self.looked_for | new, new)
        return new

    def look_only_for(self, label_keys: Iterable[str]) -> None:
        """Removes the label keys that no selector names any more."""
        kept = self.looked_for.intersection(label_keys)
        self._look(kept, self.looked_for - kept)

    def _look(self, label_keys: frozenset[str], changed: frozenset[str]) -> None:
        """Replaces `looked_for`. changed: keys that are added or removed; only pods with one of them change class."""
        pods = [
            info
            for carried, alike in self._labelled.items()
            if not changed.isdisjoint(carried)
            for info in alike.values()
        ]
        for info in pods:
            self._classify(info, -1)
        self.looked_for = label_keys
        for info in pods:
            self._classify(info, 1)

    def _classify(self, info: PodInfo, sign: int) -> None:
        """Adds a pod to the count of its class (sign 1), or removes it (-1).

        Terminating pods are counted separately, because spread constraints ignore them.
        """
        deleting = info.pod.metadata.deletion_timestamp is not None
        self.classes.add(pod_class(info.pod, self.looked_for), (info.node, deleting), sign)
