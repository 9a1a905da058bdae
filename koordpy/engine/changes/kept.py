"""Changes of kinds that are kept as they are; what each may help with stands in `koordpy.engine.wakeups`."""

from collections.abc import Callable
from typing import Any

from koordpy.cluster.objectbook import object_key
from koordpy.engine.changes.hub import Hub
from koordpy.engine.wakeups import Wake


class KeptChanges:
    """The sink of a resource that is only kept."""

    def __init__(self, hub: Hub, helps: Callable[[Any, Any], Wake], event: str = "") -> None:
        """helps: what a change from one object to another may help with, of which one may be None. event: its name,
        where it is not that of the kind."""
        self._hub, self._helps, self._event = hub, helps, event

    def upsert(self, obj: Any, old: Any) -> None:
        """An object that came or changed."""
        self._hub.state.upsert(obj)
        self._changed(obj, old, obj)

    def delete(self, obj: Any) -> None:
        """An object that is gone."""
        self._hub.state.delete(type(obj), object_key(obj))
        self._changed(obj, obj, None)

    def _changed(self, obj: Any, before: Any, after: Any) -> None:
        self._hub.queue.broadcast(self._helps(before, after), self._event or type(obj).__name__)
