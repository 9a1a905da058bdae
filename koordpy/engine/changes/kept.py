"""Changes of kinds that are kept as they are: namespaces, priority classes, owners of pods, disruption budgets."""

from typing import Any

from koordpy.api.objects import PodDisruptionBudget
from koordpy.cluster.objectbook import object_key
from koordpy.engine.changes.hub import Hub
from koordpy.engine.wakeups import Wake


class KeptChanges:
    """The sink of a resource that is only kept; a change of it may help as `wake` says."""

    def __init__(self, hub: Hub, wake: Wake) -> None:
        self._hub, self._wake = hub, wake

    def upsert(self, obj: Any, old: Any) -> None:
        """An object that came or changed."""
        self._hub.state.upsert(obj)
        if (
            old is None
            or old.metadata.labels != obj.metadata.labels
            or getattr(old, "spec", 0) != getattr(obj, "spec", 0)
        ):
            self._hub.queue.broadcast(self._wake, type(obj).__name__)

    def delete(self, obj: Any) -> None:
        """An object that is gone."""
        self._hub.state.delete(type(obj), object_key(obj))
        self._hub.queue.broadcast(self._wake, type(obj).__name__)


class BudgetChanges:
    """The sink of PodDisruptionBudgets: one that allows more may let a unit take its room from others."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def upsert(self, new: PodDisruptionBudget, old: PodDisruptionBudget | None) -> None:
        """A budget that came or changed."""
        self._hub.state.upsert(new)
        allowed = new.status.disruptions_allowed or 0
        if old is not None and (old.spec != new.spec or allowed > (old.status.disruptions_allowed or 0)):
            self._hub.queue.broadcast(Wake.ROOM, "PodDisruptionBudget")

    def delete(self, gone: PodDisruptionBudget) -> None:
        """A budget that is gone."""
        self._hub.state.delete(PodDisruptionBudget, object_key(gone))
        self._hub.queue.broadcast(Wake.ROOM, "PodDisruptionBudget")
