"""What of the input is no fault and still not what its author meant: fields, keys and words of workloads, and what the
input lacks: objects that running pods name, and the pods of controllers.

None of it is a fault (workloads.md 10.6): unknown fields may be another version's, and a dump of a cluster that leaves
PodGroups or quotas out is planned on all the same, but not as the cluster would be. But whoever tries a manifest before
submitting it wants to hear of it now.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from koordpy.api import keys
from koordpy.api.configfile import KUBE_SCHEDULER_NAME
from koordpy.api.counted import counted, named
from koordpy.api.faults import Fault, key_path
from koordpy.api.limits import some
from koordpy.api.objects import Pod
from koordpy.api.owners import Service
from koordpy.api.spelling import hint
from koordpy.cluster.pods import GangSource
from koordpy.cluster.state import ClusterState
from koordpy.offline.kinds import UNMADE
from koordpy.offline.manifests import InputObject, Loaded
from koordpy.offline.workloads import Read
from koordpy.planning.words.ignored_pods import misspelt, of_another
from koordpy.workloads.kinds.registry import ASKED_BY_TEMPLATE, GANG_KINDS
from koordpy.workloads.model import Role
from koordpy.workloads.source import AskedFields, Source, conditions
from koordpy.workloads.unread import unread_of

_PREFIX_LETTERS = 8
"""Letters of a name that may stand for a longer one that begins with it."""


def of_manifests(read: Read) -> Iterator[str]:
    """Of what stands in the manifests: fields, keys and values."""
    for part in read.parts:
        asked = part.source.asked
        fields = (f"{fault.path}: {fault.text}" for fault in (_doubts(asked) if asked is not None else ()))
        words = unread_of(part.head, part.workload.templates() if part.workload is not None else ())
        yield from (f"{part.maker}: {text}" for text in (*some(fields), *some(words)))


def _doubts(asked: AskedFields) -> Iterator[Fault]:
    """Fields that look like misspelt known ones, but for those of the status, and values that are refused."""
    for path, (raw, names) in asked.names.items():
        for key in raw if path.partition(".")[0] != "status" else ():
            if isinstance(key, str) and key not in names:
                near = hint(key, names) or _begun(key, names)
                if near:
                    yield Fault(key_path(path, key), f"unknown field, not read{near}")
    yield from asked.refused


def _begun(key: str, names: set[str]) -> str:
    folded = key.casefold()
    found = next((one for one in sorted(names) if one.casefold().startswith(folded)), "")
    return f", did you mean {found}?" if found and len(key) >= _PREFIX_LETTERS else ""


def of_schedulers(read: Read, served: Collection[str]) -> Iterator[str]:
    """Workloads of which some roles are koordpy's and some are not, so that they do not start together."""
    for top in read.tops:
        roles: tuple[Role, ...] = top.workload.roles if top.workload is not None else ()
        found: dict[str, str] = {}
        for role in roles:
            for template in role.templates:
                if template.raw:
                    name = role.name or template.path.rpartition(".")[2]
                    found.setdefault(name, template.scheduler or KUBE_SCHEDULER_NAME)
        if len({name in served for name in found.values()}) > 1:
            said = ", ".join(f"{role} is {scheduler}'s" for role, scheduler in found.items())
            yield f"{top.head.kind} {top.head.key}: {said}: they do not start together"


def of_ordered(read: Read, state: ClusterState) -> Iterator[str]:
    """StatefulSets whose pods come one by one, and name a gang that waits for more than one."""
    ordered = {one.head.uid: one for one in read.known.all() if one.ordered}
    told: dict[str, None] = {}
    for info in state.pods() if ordered else ():
        owner = info.pod.metadata.controller
        workload = ordered.get(owner.uid) if owner is not None else None
        if workload is None or info.gang is None or info.bound:
            continue
        least = state.gangs.minimum(info.gang) or 0
        if least > 1:
            told[
                f"StatefulSet {workload.head.key}: podManagementPolicy OrderedReady makes pods one by one: gang "
                f"{info.gang.key} waits for {least} for ever (podManagementPolicy: Parallel makes them together)"
            ] = None
    yield from told


def of_namesakes(read: Read, state: ClusterState) -> Iterator[str]:
    """PodGroups that no pod names, beside a workload of the name whose pods are a gang of their own."""
    used = {info.gang.key for info in state.pods() if info.gang is not None and info.gang.source is GangSource.GROUP}
    groups = state.gangs.groups.keys() - used
    for top in read.tops:
        if top.head.key in groups and top.workload is not None:
            yield (
                f"PodGroup {top.head.key}: no pod names it: the pods of {top.head} would be in it by the label "
                f"{keys.LABEL_POD_GROUP}: {top.head.name} of their template"
            )


def of_owners(read: Read, state: ClusterState, served: Collection[str]) -> Iterator[str]:
    """Workloads that own pods and are not in the input, though gangs follow from them."""
    kinds = GANG_KINDS - {*ASKED_BY_TEMPLATE, "StatefulSet"}
    lost: dict[str, dict[str, None]] = {}
    for info in state.pods():
        owner, meta = info.pod.metadata.controller, info.pod.metadata
        if info.gang is not None or owner is None or owner.kind not in kinds:
            continue
        if owner.kind == "Job" and keys.JOB_COMPLETION_INDEX not in (*meta.labels, *meta.annotations):
            continue
        if info.pod.spec.scheduler_name in served and read.known.find(owner, meta.namespace) is None:
            lost.setdefault(owner.kind, {})[f"{meta.namespace}/{owner.name}"] = None
    for kind, names in sorted(lost.items()):
        yield _lacking(kind, "that pods belong to", names, ": their pods count as plain ones")


def _lacking(kind: str, whose: str, names: Mapping[str, None], effect: str = "") -> str:
    """What is said of objects of a kind that are not in the input."""
    there = "is" if len(names) == 1 else "are"
    said = f"{counted(len(names), kind)} {whose} {there} not in the input: {named(list(names))}{effect}"
    return f"{said} (of a dump: ask kubectl get for {kind.lower()}s, too)"


def of_services(loaded: Loaded) -> Iterator[str]:
    """Services, where no default spread constraint asks for them: one line for all, of a cluster may have hundreds."""
    found = [str(one.place) for one in loaded.manifests if isinstance(one.obj, Service)]
    if found:
        more = f" (as are {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"{found[0]}: Service of v1 is not read: ignored{more}"


# -- what is not there -------------------------------------------------------------------------------------------------


def missing_objects(state: ClusterState) -> Iterator[str]:
    """A line for each kind of which running pods name objects that are not there. Of pending pods the planner tells."""
    quotas, known = state.quota_view(), {**state.gangs.groups, **state.gangs.upstream}
    lost: dict[str, dict[str, None]] = {"PodGroup": {}, "ElasticQuota": {}}
    for pod in state.pods():
        if pod.bound:
            if pod.gang is not None and pod.gang.source in _OF_OBJECTS and pod.gang.key not in known:
                lost["PodGroup"][pod.gang.key] = None
            if name := quotas.unknown(pod):
                lost["ElasticQuota"][name] = None
    for kind, names in lost.items():
        if names:
            yield _lacking(kind, "that running pods name", names)


_OF_OBJECTS = (GangSource.GROUP, GangSource.UPSTREAM)


def unmade_pods(loaded: Loaded) -> list[InputObject]:
    """What ought to have pods and has none in the input, so that nothing can be said of these."""
    pods: dict[str, list[Pod]] = {}
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            pods.setdefault(manifest.obj.metadata.namespace, []).append(manifest.obj)
    return [maker for maker in loaded.makers if _asks(maker.raw) and not _has_pods(maker, pods)]


def of_unmade(maker: InputObject, served: Sequence[str], others: Collection[str]) -> str:
    """The warning of one; served: the scheduler names that are koordpy's, others: those that are known to be
    another's."""
    strange = [name for name in _schedulers(maker.raw) if name not in served]
    whose = f"; they would be {of_another(strange[0], served, others)}" if strange else ""
    return f"{maker}: {UNMADE}{whose}"


def is_ours(maker: InputObject, served: Sequence[str], others: Collection[str]) -> bool:
    """Whether koordpy is meant to place its pods, or may be."""
    names = _schedulers(maker.raw)
    return not names or any(name in served or misspelt(name, served, others) for name in names)


def _has_pods(maker: InputObject, pods: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether the input has pods of an object that is not read.

    The pods of a Deployment are those of its ReplicaSet, those of a CronJob its Jobs'. Whoever writes pods by hand
    gives them their names, and no owner.
    """
    return any(
        name == maker.name or name.startswith(f"{maker.name}-")
        for pod in pods.get(maker.namespace, ())
        for name in (pod.metadata.name, *(owner.name for owner in pod.metadata.owner_references))
    )


_NONE_OF = ("replicas", "parallelism", "completions")
_OVER = ("Complete", "Completed", "Succeeded", "Failed")
"""Conditions of a workload that makes no more pods."""


def _asks(raw: Mapping[str, Any]) -> bool:
    """Whether it ought to have pods now: not where it is suspended, has ended or asks for none."""
    source = Source(raw)
    spec = source.at("spec")
    held = spec.flag("suspend") or spec.at("runPolicy").flag("suspend")
    return not (held or conditions(source, *_OVER) or any(spec.raw.get(name) == 0 for name in _NONE_OF))


def _schedulers(raw: Mapping[str, Any]) -> list[str]:
    """The schedulers of its templates."""
    names = (spec.get("schedulerName") or KUBE_SCHEDULER_NAME for spec in _pod_specs(raw))
    return [name for name in names if isinstance(name, str)]


def _pod_specs(raw: Any) -> Iterator[Mapping[str, Any]]:
    """The pod templates' specs, wherever a kind has them. What names a scheduler names it for all below it."""
    todo = [raw]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += reversed(one)
        elif isinstance(one, dict):
            if isinstance(one.get("containers"), list) or "schedulerName" in one:
                yield one
            else:
                todo += reversed(one.values())
