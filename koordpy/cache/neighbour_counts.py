"""What filters and scores ask of the pods on other nodes: counts by node, kept as pods come and go.

Pods of equal labels are one class, and only labels count that some selector looks at; so 50,000 pods are a few counts.
"""

from collections.abc import Iterable

from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import PodClass, TermClass, pod_class
from koordpy.pods.tally import Tally
from koordpy.pods.volume_book import Disk, claim_key, disks_of


class Neighbours:
    """Counts of bound pods by what concerns other pods, and by node; each as its namesake of a Snapshot."""

    def __init__(self) -> None:
        self.looked_for: frozenset[str] = frozenset()
        """Label keys that classes tell pods apart by."""
        self.classes: Tally[PodClass, tuple[str, bool]] = Tally()
        self.terms: Tally[TermClass, str] = Tally()
        self.ports: Tally[tuple[str, int], tuple[str, str]] = Tally()
        self.claim_users: Tally[str, str] = Tally()
        self.disks: Tally[Disk, tuple[str, bool]] = Tally()
        self.selectors: Tally[str, str] = Tally()
        self._labelled: dict[frozenset[str], dict[str, PodInfo]] = {}
        """Label keys that counted pods carry together -> those pods by key: templates are few."""

    def account(self, info: PodInfo, sign: int) -> None:
        """Counts a bound pod (1), or no longer (-1)."""
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
        """Tells pods apart by further label keys. Returns the keys that are new; only pods that carry one are counted
        anew, for any tenant's pod may bring keys."""
        new = frozenset(label_keys) - self.looked_for
        if new:
            self._look(self.looked_for | new, new)
        return new

    def look_only_for(self, label_keys: Iterable[str]) -> None:
        """Forgets the keys that nobody looks for any more."""
        kept = self.looked_for.intersection(label_keys)
        self._look(kept, self.looked_for - kept)

    def _look(self, label_keys: frozenset[str], changed: frozenset[str]) -> None:
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
        deleting = info.pod.metadata.deletion_timestamp is not None
        self.classes.add(pod_class(info.pod, self.looked_for), (info.node, deleting), sign)
