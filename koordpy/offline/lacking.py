"""What the input of the offline commands lacks without being at fault: what running pods name, and the pods of its
controllers.

A dump of a cluster that leaves PodGroups or quotas out is planned on all the same, but not as the cluster would be.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from koordpy.api.configfile import KUBE_SCHEDULER_NAME
from koordpy.api.counted import counted, named
from koordpy.api.objects import Pod
from koordpy.cluster.pods import GangSource
from koordpy.offline.kinds import UNMADE
from koordpy.planning.words.ignored_pods import misspelt, of_another

if TYPE_CHECKING:
    from koordpy.cluster.state import ClusterState
    from koordpy.offline.manifests import InputObject, Loaded


def missing_objects(state: "ClusterState") -> Iterator[str]:
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
            there = "is" if len(names) == 1 else "are"
            yield (
                f"{counted(len(names), kind)} that running pods name {there} not in the input: {named(list(names))}"
                f" (of a dump: ask kubectl get for {kind.lower()}s, too)"
            )


_OF_OBJECTS = (GangSource.GROUP, GangSource.UPSTREAM)


class Unmade(NamedTuple):
    """What makes pods of which the input has none, so that nothing can be said of these."""

    place: str
    title: str
    schedulers: Sequence[str]
    """Of its pods, as far as it says so."""

    def line(self, served: Sequence[str], others: Collection[str]) -> str:
        """The warning of it; served: the scheduler names that are koordpy's, others: those that are known to be
        another's."""
        strange = [name for name in self.schedulers if name not in served]
        whose = f"; they would be {of_another(strange[0], served, others)}" if strange else ""
        return f"{self.place}: {self.title}: {UNMADE}{whose}"

    def is_ours(self, served: Sequence[str], others: Collection[str]) -> bool:
        """Whether koordpy is meant to place its pods, or may be."""
        return not self.schedulers or any(name in served or misspelt(name, served, others) for name in self.schedulers)


def unmade_pods(loaded: "Loaded") -> list[Unmade]:
    """What ought to have pods and has none in the input."""
    pods: dict[str, list[Pod]] = {}
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            pods.setdefault(manifest.obj.metadata.namespace, []).append(manifest.obj)
    return [
        Unmade(str(maker.place), maker.title, _schedulers(maker.raw))
        for maker in loaded.makers
        if _asks(maker.raw) and not _has_pods(maker, pods)
    ]


def _has_pods(maker: "InputObject", pods: Mapping[str, Sequence[Pod]]) -> bool:
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
    spec = _part(raw, "spec")
    conditions = _part(raw, "status").get("conditions")
    over = any(
        isinstance(one, dict) and one.get("status") == "True" and one.get("type") in _OVER
        for one in (conditions if isinstance(conditions, list) else ())
    )
    held = any(part.get("suspend") is True for part in (spec, _part(spec, "runPolicy")))
    return not (held or over or any(spec.get(name) == 0 for name in _NONE_OF))


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


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
