"""What pods ask of families of devices, as the cache reads it: a reader a family, by the family's name.

The cache knows no family. It is given the readers when it is made (`devices.family_registry`), and keeps with each pod
what they find (`PodInfo.asks`). A pod without an extended resource, a resource claim, or an annotation that a reader
looks for is shown to no reader.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koordpy.api.objects import Pod
from koordpy.config.gang_topology import GatherRule
from koordpy.pods.resource_amounts import Amounts
from koordpy.topology.topology_layers import Layers

Asks = Mapping[str, Any]
"""Family -> what a pod asks of it; families of which it asks nothing are left out."""
NO_ASKS: Asks = {}
"""Of all pods without devices: one object, which nobody changes."""


class AskReader:
    """Reads what pods ask of one family. Depends on the pod and on the configuration alone."""

    family: str = ""
    resources: frozenset[str] | None = None
    """Resources of which a pod requests one if it asks anything; None if more of a pod may say so."""
    annotations: frozenset[str] = frozenset()
    """Annotations by which a pod asks for devices without naming a resource."""
    gang_annotations: tuple[str, ...] = ()
    """Annotations of gangs that `gather_rules` reads."""

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Returns what a pod asks, a value that can be compared; None for nothing.

        requests: amounts above 0 of the whole pod by resource. pending: True if the pod is to be placed.
        """
        return None

    def shape(self, pod: Pod, ask: Any) -> Any:
        """Returns what of a pod tells its shape apart for the family, as plain values that JSON knows."""
        return None

    def gather_rules(self, said: Callable[[str], str | None], layers: Layers) -> tuple[GatherRule, ...]:
        """Returns the gather rules that a gang asks for in the family's own annotations.

        said: annotation -> its text in the gang's object or a member, None where it is absent. Asked if the gang has
        one of `gang_annotations`.
        """
        return ()


class AskReaders:
    """The readers of all families, in the order of the registry."""

    def __init__(self, readers: Sequence[AskReader] = ()) -> None:
        self._readers = tuple(readers)
        self._by_family = {reader.family: reader for reader in readers}
        self._annotations = frozenset[str]().union(*(reader.annotations for reader in readers))

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Asks:
        """Returns what a pod asks of each family; `NO_ASKS` for most pods."""
        if not self._may_ask(pod, requests):
            return NO_ASKS
        shown = (one for one in self._readers if one.resources is None or not one.resources.isdisjoint(requests))
        found = ((reader.family, reader.read(pod, requests, pending=pending)) for reader in shown)
        return {family: ask for family, ask in found if ask is not None} or NO_ASKS

    def shape(self, pod: Pod, asks: Asks) -> list[Any]:
        """Returns what of a pod tells its shape apart, family by family."""
        return [self._by_family[family].shape(pod, ask) for family, ask in asks.items()]

    def gather_rules(self, said: Callable[[str], str | None], layers: Layers) -> tuple[GatherRule, ...]:
        """Returns the gather rules that a gang asks for in annotations of families; none for most gangs."""
        asked = (one for one in self._readers if any(said(name) is not None for name in one.gang_annotations))
        return tuple(rule for reader in asked for rule in reader.gather_rules(said, layers))

    def _may_ask(self, pod: Pod, requests: Amounts) -> bool:
        if any("/" in name for name in requests) or pod.spec.resource_claims:
            return True
        annotations = pod.metadata.annotations
        return bool(annotations) and not self._annotations.isdisjoint(annotations)
