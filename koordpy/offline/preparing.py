"""What simulate, explain and view share: their options, and the way from manifests to a filled ClusterState."""

import argparse
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

    from koordpy.api.config import KoordpyConfiguration, Quota
    from koordpy.api.custom import ElasticQuota
    from koordpy.api.objects import Wire
    from koordpy.cluster.state import ClusterState
    from koordpy.offline.lacking import Unmade
    from koordpy.offline.manifests import Loaded, Manifest
    from koordpy.offline.workloads import Growth, Read
    from koordpy.sim.filling import Priorities

DEFAULT_NOW = "2026-01-01T00:00:00Z"


class InputFaultsError(Exception):
    """Bad input; `lines` names every fault (exit status 2)."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Offline(NamedTuple):
    """The input, ready for the planner."""

    state: "ClusterState"
    config: "KoordpyConfiguration"
    now: "datetime"
    pods: frozenset[str]
    """`namespace/name` of every pod of the input."""
    warnings: list[str]
    unmade: "list[Unmade]"
    stuck: tuple[str, ...]
    """What is told of gangs that wait for ever in a cluster, though they are placed here."""
    others: frozenset[str]
    """Scheduler names of others, as pods that run have them."""
    growth: "Growth"
    """Pods that workloads make."""

    def grow(self) -> list[str]:
        """Makes the pods of workloads that begin now; their keys."""
        return self.growth.begin(self.node_of, self.label_of, later=True)

    def workloads(self) -> "list[dict[str, Any]]":
        """What became of each workload of the input."""
        return self.growth.document(self.node_of)

    def node_of(self, key: str) -> str:
        """Node of a pod, empty for none."""
        return node_of(self.state, key)

    def label_of(self, key: str, label: str) -> str:
        """A label of the node of a pod."""
        return label_of(self.state, key, label)


def add_arguments(parser: argparse.ArgumentParser, among: "argparse._MutuallyExclusiveGroup | None" = None) -> None:
    """The options that these commands have. among: sources of which manifests are one; else they are required."""
    (parser if among is None else among).add_argument(
        "-f",
        "--filename",
        dest="paths",
        metavar="PATH",
        action="append",
        required=among is None,
        help="manifests: a file, a folder (its *.yaml, *.yml and *.json) or - for the standard input; repeatable",
    )
    parser.add_argument("--now", metavar="RFC3339", default=DEFAULT_NOW, help="time of the run (default: %(default)s)")
    parser.add_argument("--config", metavar="FILE", help="a KoordpyConfiguration")
    parser.add_argument(
        "--scheduler-name",
        dest="scheduler_names",
        metavar="NAME",
        action="append",
        help="scheduler name to serve, in place of the configured ones; repeatable",
    )
    add_started(parser)


def add_started(parser: argparse.ArgumentParser) -> None:
    """The option that says which steps of workloads have begun."""
    parser.add_argument(
        "--started",
        metavar="[NAMESPACE/][NAME:]ROLE",
        action="append",
        default=[],
        help="a role of a workload that has begun, in place of those that it follows; repeatable",
    )


def prepare(args: argparse.Namespace) -> Offline:
    """Reads configuration and manifests. Raises InputFaultsError with the faults of both."""
    with nothing_collected():
        return _prepare(args)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Modules and input are a few hundred thousand values without cycles: looking for garbage among them takes as long
    as reading them. Afterwards it is looked for as seldom as in a live scheduler: a plan makes values, few cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def _prepare(args: argparse.Namespace) -> Offline:
    from koordpy.api.config import KoordpyConfiguration
    from koordpy.api.configfile import KUBE_SCHEDULER_NAME, ConfigError, Flag, load_config
    from koordpy.api.leafreaders import parse_moment
    from koordpy.api.objects import Pod
    from koordpy.engine.settings import empty_state, engine_settings
    from koordpy.offline import workload_warnings
    from koordpy.offline.lacking import missing_objects, unmade_pods
    from koordpy.offline.manifests import load_manifests

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
    except ConfigError as fault:
        faults += fault.lines
    loaded = load_manifests(args.paths)
    objects, read = filled_all(loaded, now)
    started = read.started(args.started, faults)
    _check_quotas(loaded, objects, config.quota)
    faults += loaded.fault_lines
    if faults:
        raise InputFaultsError(faults)
    state = empty_state(engine_settings(config))
    pods = set()
    found = [obj for obj in objects if isinstance(obj, Pod)]
    assert state.workloads is not None
    state.workloads.know(read.known(found))
    by_env = config.gpu.delivery == "env" or any(map(_delivers_by_env, objects))
    for manifest, obj in zip(loaded.manifests, objects, strict=True):
        state.upsert(_admitted(obj, config) if by_env else obj)
        if manifest.kind.name == "Pod":
            meta = manifest.obj.metadata  # type: ignore[attr-defined]
            pods.add(f"{meta.namespace}/{meta.name}")
    growth = growth_of(read, objects, started, now, lambda obj: state.upsert(_admitted(obj, config) if by_env else obj))
    before = {pod.key for pod in found}
    growth.begin(lambda key: node_of(state, key), lambda key, label: label_of(state, key, label), later=False)
    pods |= {pod.key for pod in state.pods() if pod.key not in before}
    served = config.scheduler_names
    others = {KUBE_SCHEDULER_NAME, *(pod.pod.spec.scheduler_name for pod in state.pods() if pod.bound)} - {*served}
    unmade = unmade_pods(loaded)
    doubtful = [line for line in workload_warnings.of_manifests(read) if line not in loaded.warnings]
    doubtful += workload_warnings.of_schedulers(read, served)
    stuck = tuple(workload_warnings.of_ordered(read, state))
    doubtful += stuck
    doubtful += workload_warnings.of_namesakes(read, state)
    return Offline(
        state,
        config,
        now,
        frozenset(pods),
        [
            *loaded.warnings,
            *read.warnings,
            *doubtful,
            *(one.line(served, others) for one in unmade),
            *missing_objects(state),
            *workload_warnings.of_owners(read, state, served),
        ],
        unmade,
        stuck,
        frozenset(others),
        growth,
    )


def node_of(state: "ClusterState", key: str) -> str:
    info = state.pod(key)
    return info.node if info is not None else ""


def label_of(state: "ClusterState", key: str, label: str) -> str:
    node = state.node(node_of(state, key))
    return node.labels.get(label, "") if node is not None else ""


def growth_of(
    read: "Read",
    objects: "list[Wire]",
    started: "frozenset[tuple[str, str, str]]",
    now: "datetime",
    put: "Callable[[Wire], None]",
) -> "Growth":
    """What makes the pods of workloads."""
    from koordpy.api.objects import Node, Pod, PriorityClass
    from koordpy.api.storage import PersistentVolumeClaim
    from koordpy.offline.workloads import Growth, daemon_nodes
    from koordpy.sim.filling import Priorities
    from koordpy.workloads.making import Expansion

    pods = [obj for obj in objects if isinstance(obj, Pod)]
    nodes = [obj for obj in objects if isinstance(obj, Node)]
    claims = [obj.metadata for obj in objects if isinstance(obj, PersistentVolumeClaim)]
    expansion = Expansion(
        read.known(pods),
        read.tops,
        read.templates,
        pods,
        claims=[f"{meta.namespace}/{meta.name}" for meta in claims],
        daemons=lambda pod: daemon_nodes(nodes, pod),
        started=started,
    )
    priorities = Priorities.of(obj for obj in objects if isinstance(obj, PriorityClass))
    return Growth(expansion, priorities, put, now)


def _delivers_by_env(obj: "Wire") -> bool:
    """Whether it is the Device of a node that makes the admission webhook needed."""
    from koordpy.api import keys
    from koordpy.api.custom import Device

    return isinstance(obj, Device) and obj.metadata.labels.get(keys.GPU_DELIVERY) == "env"


def _admitted(obj: "Wire", config: "KoordpyConfiguration") -> "Wire":
    """The object as the admission webhook leaves it: variables of GPUs in pending pods of ours."""
    from koordpy.api.objects import Pod
    from koordpy.cluster.gpu_env import inject

    if isinstance(obj, Pod) and not obj.spec.node_name and obj.spec.scheduler_name in config.scheduler_names:
        return inject(obj, config.gpu.resources)
    return obj


def filled_all(loaded: "Loaded", now: "datetime") -> "tuple[list[Wire], Read]":
    """The objects with everything an API server would have filled in, and the workloads; what it would refuse becomes a
    fault."""
    from koordpy.api.objects import PriorityClass
    from koordpy.offline.workloads import Read
    from koordpy.sim.filling import Priorities, creation_times, with_identity

    priorities = Priorities.of(m.obj for m in loaded.manifests if isinstance(m.obj, PriorityClass))
    for rest in loaded.rests:
        _check_class(rest, loaded, priorities)
    orders = sorted({*(one.order for one in loaded.manifests), *(one.order for one in loaded.workloads)})
    times = dict(zip(orders, creation_times(len(orders), now), strict=True))
    read = Read(loaded, times.__getitem__)
    read.check(priorities)
    objects = [
        with_identity(_filled(manifest, loaded, priorities), kind=manifest.kind.name, created=times[manifest.order])
        for manifest in loaded.manifests
    ]
    return objects, read


def _check_quotas(loaded: "Loaded", objects: "list[Wire]", settings: "Quota") -> None:
    """Refuses what the webhook refuses of ElasticQuotas, each fault at the object that it is about.

    What has no right here is ignored with a warning: a dump of a cluster has such quotas, and its scheduler goes on.
    """
    from koordpy.api import keys
    from koordpy.api.custom import ElasticQuota
    from koordpy.cluster.quota_tree import read_quotas

    found = {
        f"{obj.metadata.namespace}/{obj.metadata.name}": (manifest, obj)
        for manifest, obj in zip(loaded.manifests, objects, strict=True)
        if isinstance(obj, ElasticQuota)
    }
    parent = f"metadata.labels[{keys.QUOTA_PARENT}]"
    for fault in read_quotas((quota for _, quota in found.values()), settings).faults:
        if fault.of_rights:
            continue
        manifest, quota = found[fault.key]
        if fault.field == parent and loaded.is_faulty("ElasticQuota", quota.metadata.labels.get(keys.QUOTA_PARENT, "")):
            continue  # the parent is one of those that could not be read
        loaded.fault_of(manifest, f"{fault.field}: {fault.text}")
    for rest in loaded.rests:
        if isinstance(rest.obj, ElasticQuota):
            for fault in read_quotas([_agreeing(rest.obj, rest.raw)], settings).faults:
                if fault.field != parent and not fault.of_rights:
                    loaded.fault_of(rest, f"{fault.field}: {fault.text}")


def _agreeing(quota: "ElasticQuota", raw: "Mapping[str, Any]") -> "ElasticQuota":
    """The rest of a quota that cannot be read as a whole, without the resources that min or max say unreadably: of them
    nothing can be said."""
    from msgspec.structs import replace

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


def _check_class(manifest: "Manifest", loaded: "Loaded", priorities: "Priorities") -> None:
    """Refuses a PriorityClass that is not there, as an API server does of pods and their groups."""
    from koordpy.api.groups import UpstreamPodGroup
    from koordpy.api.objects import Pod
    from koordpy.api.spelling import hint
    from koordpy.sim.filling import filled_group

    obj = manifest.obj
    if isinstance(obj, Pod):
        known = priorities.of_pod(obj.spec) is not None
    elif isinstance(obj, UpstreamPodGroup):
        known = filled_group(obj, priorities) is not None
    else:
        return
    name = obj.spec.priority_class_name
    if not known and not loaded.is_faulty("PriorityClass", name):
        text = f"spec.priorityClassName: no PriorityClass {name} in the input{hint(name, priorities.classes)}"
        loaded.fault_of(manifest, text)


def _filled(manifest: "Manifest", loaded: "Loaded", priorities: "Priorities") -> "Wire":
    from koordpy.api.groups import UpstreamPodGroup
    from koordpy.api.objects import Namespace, Node, Pod
    from koordpy.sim.filling import filled_group, filled_namespace, filled_node, filled_pod

    obj = manifest.obj
    if isinstance(obj, Pod | UpstreamPodGroup):
        filled: Wire | None
        if isinstance(obj, UpstreamPodGroup):
            filled = filled_group(obj, priorities)
        else:
            filled = filled_pod(obj, priorities) if priorities.of_pod(obj.spec) is not None else None
        if filled is not None:
            return filled
        _check_class(manifest, loaded, priorities)
    elif isinstance(obj, Node):
        status = manifest.raw.get("status")
        given = isinstance(status, dict) and status.get("allocatable") is not None
        return filled_node(obj, allocatable_given=given)
    elif isinstance(obj, Namespace):
        return filled_namespace(obj)
    return obj
