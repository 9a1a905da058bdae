# SPDX-License-Identifier: Apache-2.0
"""Maintains the status of PodDisruptionBudgets, as the disruption controller does, and checks evictions against it.

One difference: a percentage refers to the number of pods that match now. The real controller takes the number of
replicas from the owner of the pods.
"""

import asyncio

from koordpy.apiserver.list_selectors import object_selector_match
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import Change
from koordpy.apiserver.served_resources import Object, is_ready
from koordpy.apiserver.status_errors import StatusError
from koordpy.preemption.selection.disruption_budgets import amount

BUDGETS = "poddisruptionbudgets.policy"
_DELAY_SECONDS = 0.05
"""Seconds from a change until the statuses are updated, so that many changes cause one update."""


def _healthy(pod: Object) -> bool:
    """Returns whether a pod is ready and not being deleted."""
    return "deletionTimestamp" not in pod["metadata"] and is_ready(pod)


class DisruptionBudgets:
    """Updates status.disruptionsAllowed: shortly after each change (if an event loop runs), and at every eviction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stale: set[str] = set()  # namespaces with changes
        self._timer: asyncio.TimerHandle | None = None
        store.listeners.append(self._changed)

    def close(self) -> None:
        """Stops updating after changes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self, shelf: str, change: Change) -> None:
        """Marks the namespace of a changed pod or budget for an update. Called after every change in the store."""
        if shelf not in ("pods", BUDGETS) or not self._store.shelf(BUDGETS).entries:
            return
        self._stale.add(change.entry.obj["metadata"]["namespace"])
        if self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # without an event loop, the status is updated at an eviction only
            self._timer = loop.call_later(_DELAY_SECONDS, self._refresh_stale)

    def _refresh_stale(self) -> None:
        self._timer = None
        stale, self._stale = self._stale, set()
        for namespace in sorted(stale):
            for budget in self._store.list(BUDGETS, namespace):
                self.refresh(budget)

    def covering(self, pod: Object) -> list[Object]:
        """Returns the budgets that select a pod."""
        found = self._store.list(BUDGETS, pod["metadata"]["namespace"])
        return [budget for budget in found if object_selector_match(budget["spec"].get("selector"))(pod)]

    def refresh(self, budget: Object) -> Object:
        """Computes the status of a budget, writes it if it has changed, and returns the status."""
        spec, meta = budget["spec"], budget["metadata"]
        match = object_selector_match(spec.get("selector"))
        pods = [pod for pod in self._store.list("pods", meta["namespace"]) if match(pod)]
        pods = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        healthy = sum(_healthy(pod) for pod in pods)
        if spec.get("maxUnavailable") is not None:
            desired = max(0, len(pods) - amount(spec["maxUnavailable"], len(pods)))
        else:
            desired = amount(spec.get("minAvailable", 1), len(pods))
        status = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": len(pods),
            "disruptionsAllowed": max(0, healthy - desired),
            "observedGeneration": meta.get("generation", 0),
        }
        self._store.set_status(BUDGETS, budget, status)
        return status

    def take(self, budget: Object, pod: Object) -> None:
        """Takes one allowed disruption for the eviction of a pod. Raises StatusError 429 if there is none."""
        status = self.refresh(budget)
        # an unhealthy pod may be evicted without an allowance if enough others are healthy
        if not _healthy(pod) and status["currentHealthy"] >= status["desiredHealthy"]:
            return
        if status["disruptionsAllowed"] < 1:
            name = budget["metadata"]["name"]
            needs = f"The disruption budget {name} needs {status['desiredHealthy']} healthy pods and has"
            text = f"{needs} {status['currentHealthy']} currently"
            raise StatusError(
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={"causes": [{"reason": "DisruptionBudget", "message": text}]},
            )
        left = status["disruptionsAllowed"] - 1
        self._store.set_status(BUDGETS, budget, {**status, "disruptionsAllowed": left})
