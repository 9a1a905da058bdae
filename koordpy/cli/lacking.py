"""What the input of the offline commands lacks without being at fault: what running pods name, and the pods of its
controllers.

A dump of a cluster that leaves PodGroups or quotas out is planned on all the same, but not as the cluster would be.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordpy.api.counted import counted
from koordpy.api.objects import LabelSelector, Pod
from koordpy.api.owners import ReplicationController
from koordpy.api.strict import decode_rest
from koordpy.cli.kinds import MAKERS_READ, UNMADE
from koordpy.cli.output import named
from koordpy.cluster.pods import GangSource, gang_ref
from koordpy.cluster.selectors import selector_matches

if TYPE_CHECKING:
    from koordpy.cli.manifests import Loaded, Maker, Manifest
    from koordpy.cluster.state import ClusterState


def missing_objects(state: "ClusterState") -> Iterator[str]:
    """A line for each kind of which running pods name objects that are not there. Of pending pods the planner tells."""
    quotas, known = state.quota_view(), {**state.pod_groups(), **state.upstream_groups()}
    lost: dict[str, dict[str, None]] = {"PodGroup": {}, "ElasticQuota": {}}
    for pod in state.pods():
        if pod.bound:
            if pod.gang is not None and pod.gang.source in _OF_OBJECTS and pod.gang.key not in known:
                lost["PodGroup"][pod.gang.key] = None
            if name := quotas.unknown(pod):
                lost["ElasticQuota"][name] = None
    for kind, names in lost.items():
        if names:
            there = "is" if len(names) == 1 else "are"
            yield (
                f"{counted(len(names), kind)} that running pods name {there} not in the input: {named(list(names))}"
                f" (of a dump: ask kubectl get for {kind.lower()}s, too)"
            )


_OF_OBJECTS = (GangSource.GROUP, GangSource.UPSTREAM)


def controllers_without_pods(loaded: "Loaded") -> Iterator[str]:
    """A line for each controller that asks for pods and of which the input has none."""
    for manifest in _idle(loaded):
        yield f"{manifest.place}: {manifest.title}: {UNMADE}"


def _idle(loaded: "Loaded") -> Iterator["Manifest"]:
    pods: dict[str, list[Pod]] = {}
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            pods.setdefault(manifest.obj.metadata.namespace, []).append(manifest.obj)
    owners = {
        (pod.metadata.namespace, owner.kind, owner.name)
        for own in pods.values()
        for pod in own
        for owner in pod.metadata.owner_references
    }
    for manifest in loaded.manifests:
        if manifest.kind.name in MAKERS_READ and _asks(manifest.raw):
            meta = manifest.obj.metadata  # type: ignore[attr-defined]
            if (meta.namespace, manifest.kind.name, meta.name) not in owners and not _selected(
                manifest, pods.get(meta.namespace, ())
            ):
                yield manifest


def unmade_pods(loaded: "Loaded") -> dict[str, str]:
    """What makes pods of which the input has none, so that nothing can be said of these -> key of the gang that they
    would be in, empty for none."""
    found = {f"{one.kind} {one.namespace}/{one.name}": (one.namespace, one.raw) for one in _without_pods(loaded)}
    found.update((one.title, (one.obj.metadata.namespace, one.raw)) for one in _idle(loaded))  # type: ignore[attr-defined]
    return {title: _gang_of(namespace, raw) for title, (namespace, raw) in found.items()}


def _gang_of(namespace: str, raw: Mapping[str, Any]) -> str:
    """The gang of the pods of a template."""
    spec = raw.get("spec")
    if isinstance(spec, dict) and isinstance(inner := spec.get("jobTemplate"), dict):
        spec = inner.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    pod = decode_rest(template, Pod)
    if pod is None:
        return ""
    ref = gang_ref(replace(pod, metadata=replace(pod.metadata, namespace=namespace)))
    return ref.key if ref is not None else ""


def _without_pods(loaded: "Loaded") -> Iterator["Maker"]:
    """The objects that are not read and make pods of which the input has none."""
    owned: dict[str, set[str]] = {}
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            meta = manifest.obj.metadata
            own = owned.setdefault(meta.namespace, set())
            own.update((meta.name, *(owner.name for owner in meta.owner_references)))
    # the pods of a Deployment are those of its ReplicaSet, those of a CronJob its Jobs'; whoever writes pods by
    # hand gives them their names, and no owner
    for maker in loaded.makers:
        names = owned.get(maker.namespace, ())
        if not any(name == maker.name or name.startswith(f"{maker.name}-") for name in names):
            yield maker


def _asks(raw: Mapping[str, object]) -> bool:
    spec = raw.get("spec")
    return not isinstance(spec, dict) or spec.get("replicas") != 0


def _selected(manifest: "Manifest", pods: Sequence[Pod]) -> bool:
    """Whether one of the pods is of the controller's selector."""
    selector = manifest.obj.spec.selector  # type: ignore[attr-defined]
    if isinstance(manifest.obj, ReplicationController):
        selector = LabelSelector(match_labels=selector) if selector else None
    return any(selector_matches(selector, pod.metadata.labels) for pod in pods)
