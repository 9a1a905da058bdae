"""What of a pod concerns other pods: host ports, terms of pod affinity, claims and disks.

Read once when a pod arrives, so that the accounting and a plan's draft need not look into specs again; most pods have
none of it. Sources: kube-parity.md 2.4, 2.7 and 2.8.
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


class HostPort(NamedTuple):
    """A port of the node; an empty hostIP is the wildcard address."""

    protocol: str
    port: int
    address: str


class PodClass(NamedTuple):
    """Pods that no selector there is tells apart; labels that none looks for are left out."""

    namespace: str
    labels: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom terms may speak of, told without reading them. near: pods of the own namespace alone. items, keys: all these
    pods carry one of these label items or keys; items are None where that is not so."""

    near: bool = True
    items: frozenset[tuple[str, str]] | None = frozenset()
    keys: frozenset[str] = frozenset()

    def may_have(self, owner: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether terms of a pod in namespace `owner` may speak of pods with these labels in `namespace`."""
        if self.near and namespace != owner:
            return False
        if self.items is None or not self.items.isdisjoint(labels.items()):
            return True
        return not self.keys.isdisjoint(labels)


NOBODY = Audience()


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of pod affinity and anti-affinity of one pod, equal where they say the same of others."""

    affinity: PodAffinity = field(default=PodAffinity(), compare=False)
    anti_affinity: PodAffinity = field(default=PodAffinity(), compare=False)
    encoded: bytes = b""
    """Both, as JSON; empty for no terms."""
    audience: Audience = field(default=NOBODY, compare=False)

    def __bool__(self) -> bool:
        return bool(self.encoded)

    @property
    def every(self) -> tuple[PodAffinityTerm, ...]:
        """All of them, the preferred ones without their weights."""
        preferred: tuple[WeightedPodAffinityTerm, ...] = (*self.affinity.preferred, *self.anti_affinity.preferred)
        return (
            *self.affinity.required,
            *self.anti_affinity.required,
            *(weighted.pod_affinity_term for weighted in preferred),
        )


NO_TERMS = Terms()


class TermClass(NamedTuple):
    """Pods whose terms of pod affinity and anti-affinity say the same of others."""

    namespace: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Ties:
    """ports: without doubles. volumes: those with a source that a filter looks at."""

    ports: tuple[HostPort, ...] = ()
    terms: Terms = NO_TERMS
    volumes: tuple[Volume, ...] = ()

    def __bool__(self) -> bool:
        return self is not NO_TIES

    @property
    def anti(self) -> bool:
        """Whether a required anti-affinity is among the terms."""
        return bool(self.terms.anti_affinity.required)


NO_TIES = Ties()


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Host ports of containers and restartable init containers."""
    spec = pod.spec
    found: dict[HostPort, None] = {}
    for container in (*spec.containers, *(one for one in spec.init_containers if one.restart_policy == "Always")):
        for port in container.ports:
            if port.host_port > 0:
                found[HostPort(port.protocol or "TCP", port.host_port, port.host_ip or ANY_ADDRESS)] = None
    return tuple(found)


def looked_at(volume: Volume) -> bool:
    """Whether a filter looks at a volume's source."""
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
    """NO_TIES for a pod that concerns no other pod but by its labels and its use of room."""
    spec = pod.spec
    ports, terms = host_ports(pod), _terms_of(pod)
    volumes = tuple(volume for volume in spec.volumes if looked_at(volume)) if spec.volumes else ()
    if terms is not NO_TERMS and (every := terms.every):
        encoded = msgspec.json.encode((terms.affinity, terms.anti_affinity))
        terms = replace(terms, encoded=encoded, audience=audience_of(every))
    return Ties(ports, terms, volumes) if ports or volumes or terms else NO_TIES


def _terms_of(pod: Pod) -> Terms:
    """What a pod asks of other pods, as its spec has it."""
    given = pod.spec.affinity
    if given is None or (given.pod_affinity is None and given.pod_anti_affinity is None):
        return NO_TERMS
    return Terms(given.pod_affinity or PodAffinity(), given.pod_anti_affinity or PodAffinity())


def audience_of(terms: Iterable[PodAffinityTerm]) -> Audience:
    """By one requirement of each term that a pod cannot meet without a label."""
    near, everyone, items, keys = True, False, set[tuple[str, str]](), set[str]()
    for term in terms:
        selector = term.label_selector
        if selector is None:
            continue  # it speaks of nobody
        near = near and not term.namespaces and term.namespace_selector is None
        listed = next((one for one in selector.match_expressions if one.operator == "In"), None)
        there = next((one for one in selector.match_expressions if one.operator in ("Exists", "Gt", "Lt")), None)
        if selector.match_labels:
            items.add(next(iter(selector.match_labels.items())))
        elif listed is not None:
            items.update((listed.key, value) for value in listed.values)
        elif there is not None:
            keys.add(there.key)
        else:
            everyone = True
    return Audience(near, None if everyone else frozenset(items), frozenset(keys))


def pod_class(pod: Pod, looked_for: Collection[str]) -> PodClass:
    """The class of a pod by namespace and those of its labels that selectors look for."""
    labels = pod.metadata.labels
    if not looked_for or not labels:
        return PodClass(pod.metadata.namespace, frozenset())
    return PodClass(pod.metadata.namespace, frozenset(item for item in labels.items() if item[0] in looked_for))


def looks_at_pods(pod: Pod) -> bool:
    """Whether a pod may have selectors of other pods."""
    return pod.spec.affinity is not None or bool(pod.spec.topology_spread_constraints)


def selected_keys(pod: Pod) -> frozenset[str]:
    """Label keys by which a pod's affinity terms and spread constraints look at pods."""
    keys: set[str] = set(spread_keys(pod.spec.topology_spread_constraints))
    for term in _terms_of(pod).every:
        keys.update(term.match_label_keys, term.mismatch_label_keys, _keys(term.label_selector))
    return frozenset(keys)


def spread_keys(constraints: Iterable[TopologySpreadConstraint]) -> frozenset[str]:
    """Label keys by which spread constraints look at pods."""
    keys: set[str] = set()
    for constraint in constraints:
        keys.update(constraint.match_label_keys, _keys(constraint.label_selector))
    return frozenset(keys)


def _keys(selector: LabelSelector | None) -> set[str]:
    if selector is None:
        return set()
    return {*selector.match_labels, *(requirement.key for requirement in selector.match_expressions)}
