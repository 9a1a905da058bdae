"""From manifests to a filled ClusterState, for simulate, explain, topology, view and the demo."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration, Quota
from koordpy.api.configfile import KUBE_SCHEDULER_NAME, Flag, load_config
from koordpy.api.custom import Device, ElasticQuota
from koordpy.api.faults import InputFaultsError
from koordpy.api.groups import UpstreamPodGroup
from koordpy.api.objects import KubernetesObject, Namespace, Node, Pod, PriorityClass
from koordpy.api.spelling import hint
from koordpy.api.times import parse_moment
from koordpy.cluster.gpu_env import inject
from koordpy.cluster.quota_tree import read_quotas
from koordpy.cluster.state import ClusterState
from koordpy.engine.settings import empty_state
from koordpy.offline import doubtful
from koordpy.offline.manifests import InputObject, Manifest, load_manifests
from koordpy.offline.options import DEFAULT_NOW
from koordpy.offline.workloads import Growth, Read
from koordpy.sim.filling import (
    Priorities,
    creation_times,
    filled_group,
    filled_namespace,
    filled_node,
    filled_pod,
    with_identity,
)
from koordpy.sim.making import RoleKey


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
    """What ought to have pods and has none in the input."""
    stuck: tuple[str, ...]
    """What is told of gangs that wait for ever in a cluster, though they are placed here."""
    others: frozenset[str]
    """Scheduler names of others, as pods that run have them."""
    growth: Growth
    """Pods that workloads make."""


def prepared(args: argparse.Namespace) -> Offline:
    """Reads configuration and manifests. Raises InputFaultsError with the faults of both."""
    faults: list[str] = []
    now = parse_moment(DEFAULT_NOW)
    try:
        now = parse_moment(args.now)
    except ValueError as fault:
        faults.append(f"--now: {fault}")
    config = KoordpyConfiguration()
    named = [Flag("--scheduler-name", ("schedulerNames",), args.scheduler_names)] if args.scheduler_names else []
    try:
        config = load_config(args.config, flags=named)
    except InputFaultsError as fault:
        faults += fault.lines
    given = FilledInput(args.paths, now)
    read, loaded = given.read, given.loaded
    started = read.started(args.started, faults)
    given.check_quotas(config.quota)
    faults += loaded.fault_lines
    if faults:
        raise InputFaultsError(faults)
    state = empty_state(config)
    devices = (obj for obj in given.objects if isinstance(obj, Device))
    # a node whose Device says so makes the admission webhook needed
    by_env = "env" in (config.gpu.delivery, *(one.metadata.labels.get(keys.GPU_DELIVERY) for one in devices))

    def put(obj: KubernetesObject) -> None:
        state.upsert(_admitted(obj, config) if by_env else obj)

    state.workloads.know(read.known, read.groups)
    for obj in given.objects:
        put(obj)
    before = {obj.key for obj in given.objects if isinstance(obj, Pod)}
    growth = given.growth(state, started, put)
    growth.begin()
    made = {pod.key for pod in state.pods() if pod.key not in before}
    served = config.scheduler_names
    others = {KUBE_SCHEDULER_NAME, *(pod.pod.spec.scheduler_name for pod in state.pods() if pod.bound)} - {*served}
    unmade = doubtful.unmade_pods(loaded)
    stuck = tuple(doubtful.of_ordered(read, state))
    services = () if config.filters.pod_topology_spread.reads_owners else doubtful.of_services(loaded)
    warnings = [
        *loaded.warnings,
        *services,
        *read.warnings,
        *(line for line in doubtful.of_manifests(read) if line not in loaded.warnings),
        *doubtful.of_schedulers(read, served),
        *stuck,
        *doubtful.of_namesakes(read, state),
        *(doubtful.of_unmade(one, served, others) for one in unmade),
        *doubtful.missing_objects(state),
        *doubtful.of_owners(read, state, served),
    ]
    return Offline(state, config, now, frozenset(before | made), warnings, unmade, stuck, frozenset(others), growth)


def _admitted(obj: KubernetesObject, config: KoordpyConfiguration) -> KubernetesObject:
    """The object as the admission webhook leaves it: variables of GPUs in pending pods of ours."""
    if isinstance(obj, Pod) and not obj.spec.node_name and obj.spec.scheduler_name in config.scheduler_names:
        return inject(obj, config.gpu.resources)
    return obj


class FilledInput:
    """Manifests with everything that an API server would have filled in, and the workloads; what it would refuse is a
    fault of `loaded`."""

    def __init__(self, paths: Sequence[str], now: datetime) -> None:
        self.loaded = loaded = load_manifests(paths)
        self._now = now
        self._priorities = Priorities.of(m.obj for m in loaded.manifests if isinstance(m.obj, PriorityClass))
        for rest in loaded.rests:
            self._filled(rest)
        orders = sorted({*(one.order for one in loaded.manifests), *(one.order for one in loaded.workloads)})
        times = dict(zip(orders, creation_times(len(orders), now), strict=True))
        self.read = Read(loaded, times.__getitem__)
        self.read.check(self._priorities)
        self.objects = [
            with_identity(self._filled(manifest), kind=manifest.kind.name, created=times[manifest.order])
            for manifest in loaded.manifests
        ]

    def growth(
        self, state: ClusterState, started: frozenset[RoleKey], put: Callable[[KubernetesObject], None]
    ) -> Growth:
        """What makes the pods of workloads in a state. put: takes one in."""
        return Growth(self.read, self.objects, started, self._priorities, state, put, self._now)

    def _filled(self, manifest: Manifest) -> KubernetesObject:
        obj = manifest.obj
        if isinstance(obj, Pod | UpstreamPodGroup):
            known = self._priorities
            filled = filled_pod(obj, known) if isinstance(obj, Pod) else filled_group(obj, known)
            if filled is None:
                self._lacks_class(manifest, obj.spec.priority_class_name)
            return filled or obj
        if isinstance(obj, Node):
            status = manifest.raw.get("status")
            given = isinstance(status, dict) and status.get("allocatable") is not None
            return filled_node(obj, allocatable_given=given)
        return filled_namespace(obj) if isinstance(obj, Namespace) else obj

    def _lacks_class(self, manifest: Manifest, name: str) -> None:
        """Takes down a PriorityClass that is not there, which an API server refuses of pods and their groups."""
        if not self.loaded.is_faulty("PriorityClass", name):
            near = hint(name, self._priorities.classes)
            self.loaded.fault_of(manifest, f"spec.priorityClassName: no PriorityClass {name} in the input{near}")

    def check_quotas(self, settings: Quota) -> None:
        """Refuses what the webhook refuses of ElasticQuotas, each fault at the object that it is about.

        What has no right here is ignored with a warning: a dump of a cluster has such quotas, its scheduler goes on.
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
            if fault.field != parent or not lost:  # else the parent is one of those that could not be read
                loaded.fault_of(manifest, f"{fault.field}: {fault.text}")
        for rest in loaded.rests:
            if isinstance(rest.obj, ElasticQuota):
                for fault in read_quotas([_agreeing(rest.obj, rest.raw)], settings).faults:
                    if fault.field != parent and not fault.of_rights:
                        loaded.fault_of(rest, f"{fault.field}: {fault.text}")


def _agreeing(quota: ElasticQuota, raw: Mapping[str, Any]) -> ElasticQuota:
    """The rest of a quota that cannot be read as a whole, without the resources that min or max say unreadably: of them
    nothing can be said."""
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
