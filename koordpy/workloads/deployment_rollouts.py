# SPDX-License-Identifier: Apache-2.0
"""Combines the ReplicaSets of one Deployment into one workload, so that a rollout can replace a gang's pods one by one.

A rollout creates pods of a new ReplicaSet while pods of old ReplicaSets run. If each ReplicaSet were a gang, the new
gang would wait for its whole minimum, and the rollout would never end. Therefore the ReplicaSets are one role with one
run, and new pods are members of the same gang as old pods. The same applies to every object that controls ReplicaSets
(Argo's Rollout) or ReplicationControllers (DeploymentConfig). Source: workloads.md 4 (rollouts).
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
"""Kinds with a gang only if the pod template has min-available. One owner may control several objects of such a
kind."""
REVISIONS = (
    "deployment.kubernetes.io/revision",
    "rollout.argoproj.io/revision",
    "openshift.io/deployment-config.latest-version",
)
"""Annotations with the revision of a ReplicaSet. The highest revision is the newest; the age does not decide, because a
rollback gives an old ReplicaSet the highest revision."""

DESIRED = ("deployment.kubernetes.io/desired-replicas", "rollout.argoproj.io/desired-replicas")
"""Annotations with the number of pods that the owner wants, without additional pods of a rollout (surge)."""


def asks(annotations: Mapping[str, str]) -> bool:
    """Returns True if the annotations of a pod template make the pods of its ReplicaSet a gang."""
    return keys.GANG_MIN in annotations and keys.GANG_NAME not in annotations


def may_be_gang(workload: Workload) -> bool:
    """Returns False if no pod of the workload can be in a derived gang, as for a ReplicaSet without min-available."""
    if workload.head.kind not in ROLLED:
        return True
    return any(asks(one.annotations) for role in workload.roles for one in role.templates)


def rollout_of(sets: Sequence[Workload], uid: str) -> Workload:
    """Returns the ReplicaSets that one object (by uid) controls as one workload with one role. sets: at least one."""
    # the newest ReplicaSet is the first part, and provides template and settings
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
    """Returns (creation time, revision, natural name), a sort key by which the oldest ReplicaSet is first."""
    return seconds(head.created or None), _revision(head), natural_key(head.name)


def _revision(head: Head) -> int:
    """Returns the revision of a ReplicaSet; 0 if it has none."""
    return _number(head, REVISIONS) or 0


def _number(head: Head, names: Iterable[str]) -> int | None:
    """Returns the number in the first of these annotations that has a whole number; None if none of them has."""
    found = (index_of(head.annotations.get(key, "")) for key in names)
    return next((number for number in found if number is not None), None)
