# SPDX-License-Identifier: Apache-2.0
"""Reads the parts of a pod that constrain other pods, called its ties: host ports, pod affinity terms, claims and
disks.

They are read once per version of a pod, so that cache and draft need not read specs. Most pods have no ties. Sources:
kube-parity.md 2.4, 2.7 and 2.8.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from koordpy.api.objects import (
    LabelSelector,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    Volume,
    WeightedPodAffinityTerm,
)

ANY_ADDRESS = "0.0.0.0"
"""The wildcard address: the port is used on all addresses of the node."""


class HostPort(NamedTuple):
    """A port of the node that a container uses. An empty hostIP in the spec is stored as the wildcard address."""

    protocol: str
    port: int
    address: str


class PodClass(NamedTuple):
    """A class of pods that no existing selector distinguishes: namespace and labels, without labels that no selector
    reads."""

    namespace: str
    labels: frozenset[tuple[str, str]]
    """(key, value) of the labels that a selector reads."""


@dataclass(frozen=True, slots=True)
class Audience:
    """A cheap condition that every pod meets which the affinity terms of another pod match.

    The condition is necessary, but not sufficient: if a pod does not meet it, the terms need not be evaluated.
    """

    near: bool = True
    """True if the terms match only pods in the namespace of the pod that has the terms."""
    items: frozenset[tuple[str, str]] | None = frozenset()
    """Every matched pod has one of these labels or one of `keys`; None if no such condition is known."""
    keys: frozenset[str] = frozenset()
    """Label keys of terms for which a pod must have the key, with any value."""

    def may_have(self, owner: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Returns whether terms of a pod in namespace `owner` may match pods with these labels in `namespace`."""
        if self.near and namespace != owner:
            return False
        if self.items is None or not self.items.isdisjoint(labels.items()):
            return True
        return not self.keys.isdisjoint(labels)


NO_PODS = Audience()
"""Audience of a pod without terms."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The pod affinity and anti-affinity terms of one pod. Two objects are equal if their `encoded` is equal."""

    affinity: PodAffinity = field(default=PodAffinity(), compare=False)
    anti_affinity: PodAffinity = field(default=PodAffinity(), compare=False)
    encoded: bytes = b""
    """Both kinds of terms as JSON; empty for no terms."""
    audience: Audience = field(default=NO_PODS, compare=False)
    """The pods that the terms may match."""

    def __bool__(self) -> bool:
        return bool(self.encoded)

    @property
    def every(self) -> tuple[PodAffinityTerm, ...]:
        """All terms, the preferred ones without their weights."""
        preferred: tuple[WeightedPodAffinityTerm, ...] = (*self.affinity.preferred, *self.anti_affinity.preferred)
        return (
            *self.affinity.required,
            *self.anti_affinity.required,
            *(weighted.pod_affinity_term for weighted in preferred),
        )


NO_TERMS = Terms()
"""Terms of a pod without pod affinity and anti-affinity."""


class TermClass(NamedTuple):
    """A class of pods: one namespace, and equal terms of pod affinity and anti-affinity."""

    namespace: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Ties:
    """The ties of one pod. As a boolean it is False if the pod has none."""

    ports: tuple[HostPort, ...] = ()
    """Host ports, without duplicates."""
    terms: Terms = NO_TERMS
    volumes: tuple[Volume, ...] = ()
    """Volumes with a source that a filter reads."""

    def __bool__(self) -> bool:
        return self is not NO_TIES

    @property
    def anti(self) -> bool:
        """True if the pod has a required anti-affinity term."""
        return bool(self.terms.anti_affinity.required)


NO_TIES = Ties()
"""Ties of a pod that constrains other pods only by its labels and requests, as most pods."""


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Returns the host ports of containers and restartable init containers."""
    spec = pod.spec
    found: dict[HostPort, None] = {}
    for container in (*spec.containers, *(one for one in spec.init_containers if one.restart_policy == "Always")):
        for port in container.ports:
            if port.host_port > 0:
                found[HostPort(port.protocol or "TCP", port.host_port, port.host_ip or ANY_ADDRESS)] = None
    return tuple(found)


def looked_at(volume: Volume) -> bool:
    """Returns True if a filter reads the source of a volume: a claim, a CSI volume, or a disk that pods may not
    share."""
    return bool(
        volume.persistent_volume_claim
        or volume.ephemeral is not None
        or volume.csi
        or volume.gce_persistent_disk
        or volume.aws_elastic_block_store
        or volume.iscsi
        or volume.rbd
    )


def ties_of(pod: Pod) -> Ties:
    """Returns the ties of a pod; `NO_TIES` if only its labels and its requests concern other pods."""
    spec = pod.spec
    ports, terms = host_ports(pod), _terms_of(pod)
    volumes = tuple(volume for volume in spec.volumes if looked_at(volume)) if spec.volumes else ()
    if terms is not NO_TERMS and (every := terms.every):
        encoded = msgspec.json.encode((terms.affinity, terms.anti_affinity))
        terms = replace(terms, encoded=encoded, audience=audience_of(every))
    return Ties(ports, terms, volumes) if ports or volumes or terms else NO_TIES


def _terms_of(pod: Pod) -> Terms:
    """Returns the affinity and anti-affinity terms of a pod's spec, without `encoded` and `audience`."""
    given = pod.spec.affinity
    if given is None or (given.pod_affinity is None and given.pod_anti_affinity is None):
        return NO_TERMS
    return Terms(given.pod_affinity or PodAffinity(), given.pod_anti_affinity or PodAffinity())


def audience_of(terms: Iterable[PodAffinityTerm]) -> Audience:
    """Returns a condition that every pod meets which at least one of the terms matches.

    It uses one label requirement per term, which is enough because a matched pod must meet all requirements of a term.
    """
    near, everyone, items, keys = True, False, set[tuple[str, str]](), set[str]()
    for term in terms:
        selector = term.label_selector
        if selector is None:
            continue  # a term without a selector matches no pod
        near = near and not term.namespaces and term.namespace_selector is None
        listed = next((one for one in selector.match_expressions if one.operator == "In"), None)
        existing = next((one for one in selector.match_expressions if one.operator in ("Exists", "Gt", "Lt")), None)
        if selector.match_labels:
            items.add(next(iter(selector.match_labels.items())))
        elif listed is not None:
            items.update((listed.key, value) for value in listed.values)
        elif existing is not None:
            keys.add(existing.key)
        else:
            everyone = True
    return Audience(near, None if everyone else frozenset(items), frozenset(keys))


def pod_class(pod: Pod, looked_for: Collection[str]) -> PodClass:
    """Returns the class of a pod: its namespace, and those of its labels that selectors read.

    looked_for: keys of the labels that selectors of existing pods or services read.
    """
    labels = pod.metadata.labels
    if not looked_for or not labels:
        return PodClass(pod.metadata.namespace, frozenset())
    return PodClass(pod.metadata.namespace, frozenset(item for item in labels.items() if item[0] in looked_for))


def looks_at_pods(pod: Pod) -> bool:
    """Returns True if a pod may have selectors for other pods."""
    return pod.spec.affinity is not None or bool(pod.spec.topology_spread_constraints)


def selected_keys(pod: Pod) -> frozenset[str]:
    """Returns the label keys that a pod's affinity terms and spread constraints read."""
    keys: set[str] = set(spread_keys(pod.spec.topology_spread_constraints))
    for term in _terms_of(pod).every:
        keys.update(term.match_label_keys, term.mismatch_label_keys, _keys(term.label_selector))
    return frozenset(keys)


def spread_keys(constraints: Iterable[TopologySpreadConstraint]) -> frozenset[str]:
    """Returns the label keys that spread constraints read."""
    keys: set[str] = set()
    for constraint in constraints:
        keys.update(constraint.match_label_keys, _keys(constraint.label_selector))
    return frozenset(keys)


def _keys(selector: LabelSelector | None) -> set[str]:
    """Returns the label keys of a selector."""
    if selector is None:
        return set()
    return {*selector.match_labels, *(requirement.key for requirement in selector.match_expressions)}
