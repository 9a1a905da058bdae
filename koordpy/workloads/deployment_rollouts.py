"""The ReplicaSets of one Deployment as one workload, so that a rollout replaces the pods of a gang one by one.

A rollout creates pods of a new ReplicaSet while pods of old ones run. Each ReplicaSet as a gang would wait for its
whole minimum, and the rollout would never end. Together they are one role with one run: new pods are members beside the
old ones. The same holds for every object that controls ReplicaSets (Argo's Rollout) or ReplicationControllers
(DeploymentConfig).
Source: workloads.md 4 (rollouts).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.times import seconds
from koordpy.decoding.annotation_settings import index_of
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import Role, Workload

ROLLED = frozenset(("ReplicaSet", "ReplicationController"))
"""Kinds whose pods are a gang by min-available on the pod template alone, and of which one owner may have several."""
REVISIONS = (
    "deployment.kubernetes.io/revision",
    "rollout.argoproj.io/revision",
    "openshift.io/deployment-config.latest-version",
)
"""Annotations by which controllers number ReplicaSets: a rollback gives an old one the highest number again."""

DESIRED = ("deployment.kubernetes.io/desired-replicas", "rollout.argoproj.io/desired-replicas")
"""Annotations that say how many pods the owner wants without those of the surge."""


def asks(annotations: Mapping[str, str]) -> bool:
    """Whether the annotations of a pod template make the pods of its ReplicaSet a gang."""
    return keys.GANG_MIN in annotations and keys.GANG_NAME not in annotations


def may_be_gang(workload: Workload) -> bool:
    """False for ReplicaSets whose pods are plain ones, whatever else is known."""
    if workload.head.kind not in ROLLED:
        return True
    return any(asks(one.annotations) for role in workload.roles for one in role.templates)


def rollout_of(sets: Sequence[Workload], uid: str) -> Workload:
    """The ReplicaSets that one object (its uid) controls, as one workload with one role. sets: one at least."""
    by_revision = sorted(sets, key=lambda one: (_revision(one.head), *_age(one.head)), reverse=True)
    newest = by_revision[0]
    parts = tuple(
        replace(part, template=role.template) for one in by_revision for role in one.roles for part in role.parts
    )
    return replace(
        newest,
        head=replace(newest.head, uid=uid),
        roles=(Role(name="", parts=parts, template=newest.roles[0].template),),
        sets=tuple(sorted((one.head for one in sets), key=_age)),
        desired=_number(newest.head, DESIRED),
    )


def _age(head: Head) -> tuple[float, int, object]:
    """Sorts the oldest first."""
    return seconds(head.created or None), _revision(head), natural_key(head.name)


def _revision(head: Head) -> int:
    """The number that its controller gives a ReplicaSet; 0 without one."""
    return _number(head, REVISIONS) or 0


def _number(head: Head, names: Iterable[str]) -> int | None:
    """The first of some annotations that holds a whole number."""
    found = (index_of(head.annotations.get(key, "")) for key in names)
    return next((number for number in found if number is not None), None)
