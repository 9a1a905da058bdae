# SPDX-License-Identifier: Apache-2.0
"""The subresources pods/binding and pods/eviction, with the rules of kube-apiserver (kube-parity.md 4.4, 4.7).

A Binding writes nodeName, annotations and the condition PodScheduled in one atomic step. As in kube-apiserver, neither
the existence nor the capacity of the node is checked. An Eviction is a deletion that a PodDisruptionBudget may refuse.
"""

from typing import Any

from koordpy.apiserver import status_errors
from koordpy.apiserver.budget_controller import DisruptionBudgets
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import ShelfEntry
from koordpy.apiserver.served_resources import Object, ServedResource
from koordpy.apiserver.status_errors import StatusError

_BINDING = ServedResource("", "v1", "Binding", "pods/binding")


def bind(store: Store, namespace: str, name: str, binding: Object) -> ShelfEntry:
    """Binds a pod to `target.name`, and returns its new state.

    Raises StatusError: 404 if the pod does not exist; 409 if it has another uid or version than the Binding names, or
    is bound, being deleted or gated; 400 or 422 if the Binding is invalid.
    """
    pods = store.resource("pods")
    entry = store.entry(pods, name, namespace)
    given: Object = binding.get("metadata") or {}
    target: Object = binding.get("target") or {}
    node = target.get("name")
    if given.get("name", name) != name:
        raise StatusError(400, f"name in URL does not match name in Binding object: {name}, {given['name']}")
    if not node:
        raise status_errors.invalid(_BINDING, name, ("target.name", "FieldValueRequired", "Required value"))
    if target.get("kind") not in (None, "", "Node", "Minion"):
        text = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise status_errors.invalid(_BINDING, name, ("target.kind", "FieldValueNotSupported", text))
    pod = entry.obj
    meta, spec = pod["metadata"], pod["spec"]
    status_errors.check_preconditions(_BINDING, pod, given)
    if "deletionTimestamp" in meta:
        raise status_errors.conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise status_errors.conflict(_BINDING, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise status_errors.conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")
    new_meta = dict(meta)
    annotations = given.get("annotations")
    if annotations:
        new_meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
    status = dict(pod.get("status") or {})
    status.pop("nominatedNodeName", None)
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": store.now()}
    others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    status["conditions"] = [*others, scheduled]
    new = {**pod, "metadata": new_meta, "spec": {**spec, "nodeName": node}, "status": status}
    return store.replace(pods, (meta["namespace"], name), new)


def evict(store: Store, budgets: DisruptionBudgets, namespace: str, name: str, eviction: Object) -> None:
    """Deletes a pod if its PodDisruptionBudget allows it.

    Raises StatusError: 429 with a DisruptionBudget cause if the budget does not allow it; 500 if several budgets cover
    the pod; 404 if the pod does not exist; 409 if a precondition fails.
    """
    entry = store.entry("pods", name, namespace)
    options: dict[str, Any] = dict(eviction.get("deleteOptions") or {})
    pod = entry.obj
    phase = (pod.get("status") or {}).get("phase")
    # pods that do not run, or are deleted already, may be evicted whatever their budget allows
    free = phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]
    if not free:
        covering = budgets.covering(pod)
        if len(covering) > 1:
            raise StatusError(
                500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            )
        if covering:
            budgets.take(covering[0], pod)
    store.delete("pods", name, namespace=namespace, options=options)
