"""Changes of workloads: what pods are made, and how many of them together. Nothing is ever written to them.

Source: workloads.md 1 and 11.
"""

import logging
from collections.abc import Callable

from msgspec import to_builtins

from koordpy.api.owners import WorkloadObject, read_part
from koordpy.cluster.objectbook import object_key
from koordpy.cluster.workloadbook import WorkloadBook
from koordpy.engine.changes.hub import Hub
from koordpy.workloads.kinds.registry import WorkloadKind
from koordpy.workloads.source import Source, head_of
from koordpy.workloads.volcano import VolcanoGroup
from koordpy.workloads.watched import WatchedWorkloads

logger = logging.getLogger(__name__)

VOLCANO_VERSION = "scheduling.volcano.sh/v1beta1"
WATCHED, NOT_SERVED, FORBIDDEN = "watched", "not-served", "forbidden"


class WatchedKinds:
    """All kinds of workloads that are watched, and those that may not be, or are not served."""

    def __init__(self, book: WorkloadBook, wake: Callable[[], None]) -> None:
        """wake: is called when gangs may have changed."""
        self._book, self._wake = book, wake
        self.workloads = WatchedWorkloads(book)
        self.states: dict[str, str] = {}
        """Kind -> watched, not-served or forbidden."""

    def changes(self, kind: WorkloadKind) -> "WorkloadChanges":
        """The sink of a kind."""
        return WorkloadChanges(kind, self, self._wake)

    def now(self, kind: WorkloadKind, state: str, why: str = "") -> None:
        """Takes what became of the watch of a kind; said once."""
        if self.states.get(kind.kind) == state:
            return
        self.states[kind.kind] = state
        name = f"{kind.plural}.{kind.group}"
        if state == NOT_SERVED:
            logger.info("gangs.auto: %s is not served: its pods are grouped by labels", name)
        elif state == FORBIDDEN:
            logger.warning("gangs.auto: %s may not be listed (403): %s: its pods are grouped by labels", name, why)
        readable = frozenset(kind for kind, state in self.states.items() if state == WATCHED)
        self._book.watch(readable)
        self._wake()


class VolcanoChanges:
    """The sink of Volcano's PodGroups."""

    def __init__(self, hub: Hub, wake: Callable[[], None]) -> None:
        """wake: is called when gangs may have changed."""
        self._state, self._listeners, self._wake = hub.state, hub.listeners, wake
        self.groups: dict[str, WorkloadObject] = {}
        """`namespace/name` -> PodGroup, as it was seen last."""

    def now(self, state: str, why: str = "") -> None:
        """Takes what became of the watch."""
        if state == FORBIDDEN:
            logger.warning("gangs.volcano: PodGroups of Volcano may not be listed (403): %s: they are not read", why)
        self._state.read_volcano(state == WATCHED)
        self._wake()

    def upsert(self, obj: WorkloadObject, old: WorkloadObject | None) -> None:
        """A PodGroup that came or changed."""
        key = object_key(obj)
        self.groups[key] = obj
        self._tell(key)
        if old is not None and (old.spec, old.metadata.annotations) == (obj.spec, obj.metadata.annotations):
            return
        source = Source(
            {
                "apiVersion": VOLCANO_VERSION,
                "kind": "PodGroup",
                "metadata": to_builtins(obj.metadata),
                "spec": read_part(obj.spec),
            }
        )
        self._state.put_volcano_group(key, VolcanoGroup.of(source, head_of(source)))
        self._wake()

    def delete(self, obj: WorkloadObject) -> None:
        """A PodGroup that is gone."""
        key = object_key(obj)
        self.groups.pop(key, None)
        self._tell(key)
        self._state.put_volcano_group(key, None)
        self._wake()

    def _tell(self, key: str) -> None:
        for heard in self._listeners.volcano_group:
            heard(key)


class WorkloadChanges:
    """The sink of one kind."""

    def __init__(self, kind: WorkloadKind, kinds: WatchedKinds, wake: Callable[[], None]) -> None:
        self.kind = kind
        self._kinds, self._workloads, self._wake = kinds, kinds.workloads, wake

    def upsert(self, obj: WorkloadObject, old: WorkloadObject | None) -> None:
        """A workload that came or changed."""
        if self._workloads.put(self.kind, to_builtins(obj.metadata), read_part(obj.spec), read_part(obj.status)):
            self._wake()

    def now(self, state: str, why: str = "") -> None:
        """Takes what became of the watch."""
        self._kinds.now(self.kind, state, why)

    def delete(self, obj: WorkloadObject) -> None:
        """A workload that is gone."""
        if self._workloads.drop(obj.metadata.uid):
            self._wake()
