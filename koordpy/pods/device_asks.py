# SPDX-License-Identifier: Apache-2.0
"""Defines the readers of device requests of pods: one reader per family of devices.

A family is a kind of devices: GPUs, Ascend NPUs, devices of resource claims. An ask is the request of one pod to one
family, as a value that only the family interprets. The cache does not import the families. It receives the readers when
it is created (`devices/family_registry.py`), and stores their results with each pod (`PodInfo.asks`).

Most pods request no devices. So only pods with an extended resource, a resource claim, or an annotation of a reader are
passed to readers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from koordpy.api.objects import Pod
from koordpy.config.gang_topology import GatherRule
from koordpy.pods.resource_amounts import Amounts
from koordpy.topology.topology_layers import Layers

Asks = Mapping[str, Any]
"""Family -> ask of a pod. Families without an ask have no entry."""
NO_ASKS: Asks = {}
"""Requests of all pods without devices: one shared object, which must not be changed."""


class LatentAsk:
    """An ask that is ignored in clusters without objects of the family (`Snapshot.families`).

    In such clusters no code of the family runs for the pod.
    """


class AskReader:
    """Reads the device requests of pods for one family. The result must depend only on the pod and the configuration.

    The class attributes state which pods must be read; the reader is not called for other pods.
    """

    family: str = ""
    """Name of the family."""
    resources: frozenset[str] | None = None
    """Resources: a pod without any of them has no request to the family. None if other parts of a pod may have one."""
    annotations: frozenset[str] = frozenset()
    """Annotations that request devices without a resource."""
    gang_annotations: tuple[str, ...] = ()
    """Annotations of gangs that `gather_rules` reads."""
    is_late: bool = False
    """True if the reader reads all pods, but only in clusters with objects of the family (`AskReaders.with_late`). In
    other clusters it reads pods with one of `annotations`."""

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Returns the ask of a pod, a comparable value; None if it requests no device of the family.

        requests: amounts above 0 of the whole pod by resource. pending: True if the pod must be placed.
        """
        return None

    def shape(self, pod: Pod, ask: Any) -> Any:
        """Returns the part of the pod's shape for this family: a value that is equal for pods that the family treats
        alike.

        It must be encodable as JSON. ask: result of `read`.
        """
        return None

    def gather_rules(self, annotation: Callable[[str], str | None], layers: Layers) -> tuple[GatherRule, ...]:
        """Returns the gather rules that a gang requests in the family's annotations.

        Called only if the gang has one of `gang_annotations`. annotation: returns the text of an annotation of the
        gang's object or of a member, by its name; None if it is absent.
        """
        return ()


class AskReaders:
    """The readers of all families, in the order of the registry. Each method combines the results of the readers."""

    def __init__(self, readers: Sequence[AskReader] = (), late: frozenset[str] = frozenset()) -> None:
        """late: families with a late reader that have objects in the cluster, so that the reader reads all pods."""
        self._readers = tuple(readers)
        self._by_family = {reader.family: reader for reader in readers}
        self._late = tuple(one for one in readers if one.is_late and one.family in late)
        self.dormant = frozenset(one.family for one in readers if one.is_late and one.family not in late)
        """Families with a late reader that have no objects in the cluster yet."""
        self._annotations = frozenset[str]().union(*(reader.annotations for reader in readers))

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Asks:
        """Returns the device requests of a pod by family; `NO_ASKS` for most pods."""
        if self._may_ask(pod, requests):
            shown = [one for one in self._readers if self._may_read(one, pod, requests)]
        elif self._late:
            shown = list(self._late)
        else:
            return NO_ASKS
        found = ((reader.family, reader.read(pod, requests, pending=pending)) for reader in shown)
        return {family: ask for family, ask in found if ask is not None} or NO_ASKS

    def with_late(self, families: Collection[str]) -> "AskReaders":
        """Returns the readers for a cluster that now also has objects of these families."""
        return AskReaders(self._readers, frozenset(one.family for one in self._late) | frozenset(families))

    def _may_read(self, reader: AskReader, pod: Pod, requests: Amounts) -> bool:
        """Returns whether a reader is called for a pod."""
        if reader.family in self.dormant:
            return not reader.annotations.isdisjoint(pod.metadata.annotations)
        return reader.resources is None or not reader.resources.isdisjoint(requests)

    def shape(self, pod: Pod, asks: Asks) -> list[Any]:
        """Returns the parts of the pod's shape for the families, one value for each family in `asks`."""
        return [self._by_family[family].shape(pod, ask) for family, ask in asks.items()]

    def gather_rules(self, annotation: Callable[[str], str | None], layers: Layers) -> tuple[GatherRule, ...]:
        """Returns the gather rules that a gang requests in annotations of families; empty for most gangs."""
        asked = (one for one in self._readers if any(annotation(name) is not None for name in one.gang_annotations))
        return tuple(rule for reader in asked for rule in reader.gather_rules(annotation, layers))

    def _may_ask(self, pod: Pod, requests: Amounts) -> bool:
        """Returns whether a pod may request devices, without calling a reader: it has an extended resource, a resource
        claim, or an annotation of a reader."""
        if any("/" in name for name in requests) or pod.spec.resource_claims:
            return True
        annotations = pod.metadata.annotations
        return bool(annotations) and not self._annotations.isdisjoint(annotations)
