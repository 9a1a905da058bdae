# SPDX-License-Identifier: Apache-2.0
"""Defines `LateBook`: a wrapper of a device family's book that creates the book only when it is needed.

Most clusters have no devices of families such as Ascend NPUs. Until the first device, pod or object of the family is
seen, no code of the family runs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from koordpy.api.objects import Node, Pod, Wire
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.pods.family_books import Amendment, FamilyBook, FamilyView, PlannedAllocation
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import ClaimedAmounts


class LateBook(FamilyBook):
    """Creates a family's book on the first device, pod or object of the family, and passes every later call to it.

    Before that it is idle: snapshots have no view of it. Methods without a docstring implement those of `FamilyBook`.
    """

    def __init__(
        self,
        make: Callable[[], FamilyBook],
        *,
        resources: frozenset[str] = frozenset(),
        labels: frozenset[str] = frozenset(),
        kinds: tuple[type[Wire], ...] = (),
    ) -> None:
        """make: creates the book. resources: resources of nodes and pods that belong to the family. labels: node labels
        that belong to the family. kinds: `FamilyBook.kinds` of the book."""
        self._make, self._resources, self._labels = make, resources, labels
        self.is_idle = True
        self.kinds = kinds
        self._book: FamilyBook | None = None

    def _started(self) -> FamilyBook:
        """Returns the book; creates it on the first call."""
        if self._book is None:
            self._book = self._make()
            self.is_idle = False
        return self._book

    def put(self, obj: Any) -> None:
        self._started().put(obj)

    def drop(self, kind: type[Wire], key: str) -> None:
        if self._book is not None:
            self._book.drop(kind, key)

    def get(self, kind: type[Wire], key: str) -> Any:
        return self._book.get(kind, key) if self._book is not None else None

    def objects_of(self, kind: type[Wire]) -> Mapping[str, Any]:
        return self._book.objects_of(kind) if self._book is not None else {}

    def put_node(self, node: Node) -> None:
        status = node.status
        if (
            self._book is not None
            or not self._resources.isdisjoint({*status.allocatable, *status.capacity})
            or not self._labels.isdisjoint(node.metadata.labels)
        ):
            self._started().put_node(node)

    def drop_node(self, name: str) -> None:
        if self._book is not None:
            self._book.drop_node(name)

    def put_group(self, group: UpstreamPodGroup) -> None:
        if self._book is not None:
            self._book.put_group(group)

    def drop_group(self, key: str) -> None:
        if self._book is not None:
            self._book.drop_group(key)

    def hold(self, pod: PodInfo, allocated: Any) -> None:
        if self._book is not None or not self._resources.isdisjoint(pod.requests):
            self._started().hold(pod, allocated)

    def release(self, pod: PodInfo) -> None:
        if self._book is not None:
            self._book.release(pod)

    def bind(self, pod: Pod, node: str, allocated: Any) -> None:
        if self._book is not None:
            self._book.bind(pod, node, allocated)

    def view(self) -> FamilyView:
        return self._started().view()

    @property
    def amended(self) -> Collection[str]:
        return self._book.amended if self._book is not None else ()

    def amendment(self, node: str) -> Amendment | None:
        return self._book.amendment(node) if self._book is not None else None

    def charges(self, pods: Iterable[PodInfo]) -> Mapping[str, ClaimedAmounts]:
        return self._book.charges(pods) if self._book is not None else {}

    def added_total(self) -> Mapping[str, int]:
        return self._book.added_total() if self._book is not None else {}

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        return self._book.counts() if self._book is not None else {}

    def predicts_admission(self, node: str) -> bool:
        return self._book is not None and self._book.predicts_admission(node)

    def is_lost(
        self, planned: Sequence[PlannedAllocation], ending: Collection[str], *, new_pods: Sequence[PodInfo]
    ) -> bool:
        return self._started().is_lost(planned, ending, new_pods=new_pods) if planned or new_pods else False

    def is_delivered(self, nodes: Iterable[str]) -> bool:
        return self._book is None or self._book.is_delivered(nodes)

    def ground(self, nodes: Collection[str]) -> list[object]:
        return self._book.ground(nodes) if self._book is not None else []
