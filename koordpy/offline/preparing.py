# SPDX-License-Identifier: Apache-2.0
"""Fills a ClusterState from manifests, for simulate, explain, topology, view and the demo."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.claim_objects import ComputeDomain, ResourceClaimTemplate
from koordpy.api.custom_objects import Device, ElasticQuota
from koordpy.api.field_faults import InputFaultsError, UnreadableError, literal, one_line
from koordpy.api.objects import KubernetesObject, Namespace, Node, Pod, PriorityClass
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.api.reading_limits import some
from koordpy.api.spelling import hint
from koordpy.api.times import parse_moment
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration, Quota
from koordpy.config.configuration_file import KUBE_SCHEDULER_NAME, Flag, load_config
from koordpy.decoding.claim_faults import claim_faults
from koordpy.devices.family_registry import apply_webhook
from koordpy.engine.engine_settings import empty_state
from koordpy.offline import input_hints, makers
from koordpy.offline.earlier_results import bind_as
from koordpy.offline.loaded_manifests import InputObject, Loaded, Manifest
from koordpy.offline.manifests import load_manifests, load_objects
from koordpy.offline.offline_options import DEFAULT_NOW
from koordpy.offline.resource_validation import refused_resources
from koordpy.offline.workload_growth import Growth
from koordpy.offline.workload_manifests import Read
from koordpy.pods.object_book import object_key
from koordpy.quota.quota_reading import read_quotas
from koordpy.simulation.claim_controllers import channel_template, volume_claim_faults
from koordpy.simulation.pod_making import RoleKey
from koordpy.simulation.server_defaults import (
    Priorities,
    creation_times,
    filled_group,
    filled_namespace,
    filled_node,
    filled_pod,
    with_identity,
)

DEFAULTS = "defaults"
"""Source of a configuration that neither a file nor a cluster provides."""
POLICIES = ("Never", keys.PREEMPT_LOWER_PRIORITY)
"""Values of preemptionPolicy."""


@dataclass(frozen=True, slots=True)
class ClusterInput:
    """Objects of a running cluster, to which manifests are added."""

    source: str
    """URL of the API server, for warnings."""
    objects: list[dict[str, Any]]
    now: datetime
    config: KoordpyConfiguration
    configuration: str
    """Source of the configuration: a file, a ConfigMap, or the defaults."""
    notes: list[str]
    """Warnings about objects that could not be read, or that are ignored."""


@dataclass(frozen=True, slots=True)
class Offline:
    """The input, ready for the planner."""

    state: ClusterState
    config: KoordpyConfiguration
    now: datetime
    pods: frozenset[str]
    """`namespace/name` of every pod of the input."""
    warnings: list[str]
    unmade: list[InputObject]
    """Objects that should have pods and have none in the input."""
    stuck: tuple[str, ...]
    """Warnings about gangs that are placed here, although they would wait forever in a cluster."""
    others: frozenset[str]
    """Scheduler names of other schedulers: default-scheduler, and the names on running pods."""
    growth: Growth
    """Creates the pods of workloads during the run."""
    input: "FilledInput"
    started: tuple[str, ...]
    """Roles of workloads that have begun, as the option --started names them."""
    configuration: str
    """Source of the configuration: a file, a ConfigMap, or the defaults."""
    later: int
    """Number of objects that were created after `now`."""


def flags_of(args: argparse.Namespace) -> list[Flag]:
    """Returns the options that override fields of the configuration."""
    return [Flag("--scheduler-name", ("schedulerNames",), args.scheduler_names)] if args.scheduler_names else []


def prepared(args: argparse.Namespace, cluster: ClusterInput | None = None) -> Offline:
    """Reads the configuration and the manifests; manifests replace objects of the cluster with the same kind and name.

    Raises InputFaultsError with the faults of both.
    """
    faults: list[str] = []
    now = cluster.now if cluster is not None else parse_moment(DEFAULT_NOW)
    try:
        now = parse_moment(args.now) if args.now is not None else now
    except ValueError as fault:
        faults.append(f"--now: {fault}")
    config, configuration = KoordpyConfiguration(), args.config or DEFAULTS
    if cluster is not None:
        config, configuration = cluster.config, cluster.configuration
    else:
        try:
            config = load_config(args.config, flags=flags_of(args))
        except InputFaultsError as fault:
            faults += fault.lines
    below = load_objects(cluster.objects, cluster.source) if cluster is not None else None
    given = FilledInput(load_manifests(args.paths or (), below), now)
    if cluster is not None:
        given.loaded.warnings[:0] = cluster.notes
    return assembled(given, config, args.started, configuration=configuration, faults=faults)


def assembled(
    given: "FilledInput",
    config: KoordpyConfiguration,
    started_roles: Sequence[str],
    *,
    configuration: str,
    faults: Sequence[str] = (),
    done: frozenset[RoleKey] = frozenset(),
    later: int = -1,
) -> Offline:
    """Fills the state from an input. Raises InputFaultsError with the given faults and those of the input.

    done: roles with pods that an earlier run created. later: number of objects that earlier runs created after `now`;
    -1 for a first run.
    """
    read, loaded, now, told = given.read, given.loaded, given.now, list(faults)
    started = read.started(started_roles, told)
    given.check_quotas(config.quota)
    told += loaded.fault_lines
    if told:
        raise InputFaultsError(told)
    state = empty_state(config)
    devices = (obj for obj in given.objects if isinstance(obj, Device))
    # the admission webhook would change pods if the configuration or a Device sets delivery `env`
    by_env = "env" in (config.gpu.delivery, *(one.metadata.labels.get(keys.GPU_DELIVERY) for one in devices))

    def store(obj: KubernetesObject) -> None:
        state.upsert(_admitted(obj, config) if by_env else obj)

    def put(obj: KubernetesObject) -> None:
        try:
            store(obj)
        except UnreadableError as unreadable:
            raise InputFaultsError([one_line(f"{type(obj).__name__}/{object_key(obj)}: {unreadable}")]) from None

    state.workloads.know(read.known, read.groups)
    for manifest, obj in zip(loaded.manifests, given.objects, strict=True):
        try:
            store(obj)
        except UnreadableError as unreadable:
            loaded.fault_of(manifest, str(unreadable))
    if loaded.fault_lines:
        raise InputFaultsError(loaded.fault_lines)
    for domain in (obj for obj in given.objects if isinstance(obj, ComputeDomain)):
        template = channel_template(domain)
        if template is not None and state.get(ResourceClaimTemplate, object_key(template)) is None:
            state.upsert(template)
    before = {obj.key for obj in given.objects if isinstance(obj, Pod)}
    growth = given.growth(state, started, put, done=done, later=later)
    growth.begin()
    for found, places in loaded.results:
        later, lacking = bind_as(places, state, growth.begin, now, max(later, growth.later))
        for fault in lacking:
            loaded.fault_of(found, fault)
    if loaded.fault_lines:
        raise InputFaultsError(loaded.fault_lines)
    made = {pod.key for pod in state.pods() if pod.key not in before}
    served = config.scheduler_names
    others = {KUBE_SCHEDULER_NAME, *(pod.pod.spec.scheduler_name for pod in state.pods() if pod.bound)} - {*served}
    unmade = makers.unmade_pods(loaded, served, others)
    replaced = {one_line(f"{one.place}: {one.warning}") for one in unmade if one.warning}
    misplaced = list(makers.of_misplaced(loaded, read, served, others))
    stuck = (*input_hints.of_ordered(read, state), *(text for text, counts in misplaced if counts))
    warnings = [
        *(line for line in loaded.warnings if line not in replaced),
        *read.warnings,
        *(line for line in input_hints.of_manifests(read) if line not in loaded.warnings),
        *input_hints.of_schedulers(read, served),
        *(text for text, counts in misplaced if not counts),
        *stuck,
        *input_hints.of_namesakes(read, state),
        *(makers.of_unmade(one, served, others) for one in unmade),
        *input_hints.missing_objects(state),
        *input_hints.of_selectors(state, served),
        *input_hints.of_owners(read, state, served),
    ]
    return Offline(
        state,
        config,
        now,
        frozenset(before | made),
        warnings,
        unmade,
        stuck,
        frozenset(others),
        growth,
        given,
        tuple(started_roles),
        configuration,
        max(later, growth.later),
    )


def _admitted(obj: KubernetesObject, config: KoordpyConfiguration) -> KubernetesObject:
    """Returns the object as the admission webhook would change it: pending pods of koordpy get the GPU variables."""
    if isinstance(obj, Pod) and not obj.spec.node_name and obj.spec.scheduler_name in config.scheduler_names:
        return apply_webhook(obj, config)
    return obj


class FilledInput:
    """Manifests with the defaults of an API server, and their workloads.

    Everything that an API server would reject becomes a fault of `loaded`.
    """

    def __init__(self, loaded: Loaded, now: datetime, births: Mapping[int, datetime] | None = None) -> None:
        """births: order of an object -> creation time if its manifest has none. Other objects without a creation time
        get generated times, one second apart, the last at `now`."""
        self.loaded, self.now = loaded, now
        self._priorities = Priorities.from_classes(m.obj for m in loaded.manifests if isinstance(m.obj, PriorityClass))
        for rest in loaded.rests:
            self._filled(rest)
        orders = sorted({*(one.order for one in loaded.manifests), *(one.order for one in loaded.workloads)})
        times = dict(zip(orders, creation_times(len(orders), now), strict=True)) | dict(births or {})
        self.births = times
        """Order of an object -> creation time that is used if its manifest has none."""
        self.read = Read(loaded, times.__getitem__)
        self.read.check(self._priorities)
        self.objects = [
            self.read.known.identified(
                with_identity(self._filled(manifest), kind=manifest.kind.name, created=self._creation(manifest))
            )
            for manifest in loaded.manifests
        ]

    def _creation(self, manifest: Manifest) -> datetime | None:
        """Returns a generated creation time for an object without one.

        None for nodes, because decisions depend on the age of a node, so it must not be generated.
        """
        return None if isinstance(manifest.obj, Node) else self.births[manifest.order]

    def growth(
        self,
        state: ClusterState,
        started: frozenset[RoleKey],
        put: Callable[[KubernetesObject], None],
        *,
        done: frozenset[RoleKey] = frozenset(),
        later: int = -1,
    ) -> Growth:
        """Returns a `Growth`, which creates the pods of workloads.

        put: adds an object to the state. done, later: as in `assembled`.
        """
        return Growth(self.read, self.objects, started, self._priorities, state, put, self.now, done=done, later=later)

    def _filled(self, manifest: Manifest) -> KubernetesObject:
        obj = manifest.obj
        for fault in claim_faults(obj):
            self.loaded.fault_of(manifest, fault)
        if isinstance(obj, Pod | UpstreamPodGroup):
            known = self._priorities
            for fault in volume_claim_faults(obj.spec) if isinstance(obj, Pod) else ():
                self.loaded.fault_of(manifest, fault)
            for refused in some(map(str, refused_resources(obj.spec))) if isinstance(obj, Pod) else ():
                self.loaded.warn(manifest, refused)
            filled = filled_pod(obj, known) if isinstance(obj, Pod) else filled_group(obj, known)
            if filled is None:
                self._lacks_class(manifest, obj.spec.priority_class_name)
            if isinstance(obj, UpstreamPodGroup) and obj.spec.preemption_policy not in ("", *POLICIES):
                said = literal(obj.spec.preemption_policy)[1:-1]
                text = f'spec.preemptionPolicy: "{said}" is none of {", ".join(POLICIES)}'
                self.loaded.fault_of(manifest, text)
            return filled or obj
        if isinstance(obj, Node):
            status = manifest.raw.get("status")
            given = isinstance(status, dict) and status.get("allocatable") is not None
            return filled_node(obj, allocatable_given=given)
        return filled_namespace(obj) if isinstance(obj, Namespace) else obj

    def _lacks_class(self, manifest: Manifest, name: str) -> None:
        """Records a fault for a pod or PodGroup with a PriorityClass that is not in the input."""
        if not self.loaded.is_faulty("PriorityClass", name):
            near = hint(name, self._priorities.classes)
            self.loaded.fault_of(manifest, f"spec.priorityClassName: no PriorityClass {name} in the input{near}")

    def check_quotas(self, settings: Quota) -> None:
        """Records the faults for which the webhook rejects ElasticQuotas, each at its object.

        A quota in a namespace that must not have quotas is not a fault, because the live scheduler ignores it, too.
        """
        loaded = self.loaded
        found = {
            f"{obj.metadata.namespace}/{obj.metadata.name}": (manifest, obj)
            for manifest, obj in zip(loaded.manifests, self.objects, strict=True)
            if isinstance(obj, ElasticQuota)
        }
        parent = f"metadata.labels[{keys.QUOTA_PARENT}]"
        for fault in read_quotas((quota for _, quota in found.values()), settings).faults:
            if fault.of_rights:
                continue
            manifest, quota = found[fault.key]
            lost = loaded.is_faulty("ElasticQuota", quota.metadata.labels.get(keys.QUOTA_PARENT, ""))
            if fault.field != parent or not lost:  # else the parent is missing because it has a fault
                loaded.fault_of(manifest, f"{fault.field}: {fault.text}")
        for rest in loaded.rests:
            if isinstance(rest.obj, ElasticQuota):
                for fault in read_quotas([_agreeing(rest.obj, rest.raw)], settings).faults:
                    if fault.field != parent and not fault.of_rights:
                        loaded.fault_of(rest, f"{fault.field}: {fault.text}")


def _agreeing(quota: ElasticQuota, raw: Mapping[str, Any]) -> ElasticQuota:
    """Returns a faulty quota without the resources with an unreadable min or max, so that only the readable rest is
    checked."""
    spec = raw.get("spec")
    sides = [spec.get(name) for name in ("min", "max")] if isinstance(spec, dict) else []
    said = {resource for side in sides if isinstance(side, dict) for resource in side}
    if any(side is not None and not isinstance(side, dict) for side in sides):
        said = set()
    lost = {
        resource
        for side, read in zip(sides, (quota.spec.min, quota.spec.max), strict=False)
        for resource in said
        if isinstance(side, dict) and side.get(resource) is not None and resource not in read
    }
    least, most = (
        {resource: amount for resource, amount in side.items() if resource in said - lost}
        for side in (quota.spec.min, quota.spec.max)
    )
    return replace(quota, spec=replace(quota.spec, min=least, max=most))
