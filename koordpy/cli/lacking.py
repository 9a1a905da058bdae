"""What the input of the offline commands lacks without being at fault: what running pods name, and the pods of its
controllers.

A dump of a cluster that leaves PodGroups or quotas out is planned on all the same, but not as the cluster would be.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from koordpy.api.counted import counted
from koordpy.api.objects import LabelSelector, Pod
from koordpy.api.owners import ReplicationController
from koordpy.cli.kinds import MAKERS_READ, WRITE_PODS
from koordpy.cli.output import named
from koordpy.cluster.pods import GangSource
from koordpy.cluster.selectors import selector_matches

if TYPE_CHECKING:
    from koordpy.cli.manifests import Loaded, Manifest
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
                yield f"{manifest.place}: {manifest.title}: its pods are not made {WRITE_PODS}"


def pods_are_lacking(loaded: "Loaded") -> bool:
    """Whether something in the input makes pods of which the input has none: of these nothing can be said."""
    owned: dict[str, set[str]] = {}
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            meta = manifest.obj.metadata
            own = owned.setdefault(meta.namespace, set())
            own.update((meta.name, *(owner.name for owner in meta.owner_references)))
    # the pods of a Deployment are those of its ReplicaSet, those of a CronJob its Jobs'; whoever writes pods by
    # hand gives them their names, and no owner
    return any(
        not any(name == maker or name.startswith(f"{maker}-") for name in owned.get(namespace, ()))
        for namespace, maker in loaded.makers
    ) or any(controllers_without_pods(loaded))


def _asks(raw: Mapping[str, object]) -> bool:
    spec = raw.get("spec")
    return not isinstance(spec, dict) or spec.get("replicas") != 0


def _selected(manifest: "Manifest", pods: Sequence[Pod]) -> bool:
    """Whether one of the pods is of the controller's selector."""
    selector = manifest.obj.spec.selector  # type: ignore[attr-defined]
    if isinstance(manifest.obj, ReplicationController):
        selector = LabelSelector(match_labels=selector) if selector else None
    return any(selector_matches(selector, pod.metadata.labels) for pod in pods)
