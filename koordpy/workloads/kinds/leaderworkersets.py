# SPDX-License-Identifier: Apache-2.0
"""Reads a LeaderWorkerSet, which creates groups of one leader pod and `size` - 1 worker pods.

Each group is a gang. But the leader and the workers of a group are two roles, and so two gangs, if the workers are
created later than the leader, or if another scheduler places one of the two.

Sources: workloads.md 4, 5.3, 6 and 10.2.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import sha1

from koordpy.api.objects import Pod
from koordpy.decoding.annotation_settings import index_of
from koordpy.workloads.workload_manifest import Head, Source, can_make
from koordpy.workloads.workload_model import (
    JobPart,
    PodPosition,
    Role,
    Slot,
    StepCondition,
    Template,
    Workload,
    claim_templates,
    own_claims,
)

PREFIX = "leaderworkerset.sigs.k8s.io/"
EXCLUSIVE = PREFIX + "exclusive-topology"
"""Annotation with the key of a node label: each group has a domain of this label alone."""
LEADER, WORKERS = "leader", "workers"
"""Names of the two roles, and of the two parts."""


class _Groups:
    """The groups of a LeaderWorkerSet, with equal templates and sizes. A group is identified by its number as text."""

    def __init__(self, source: Source, head: Head) -> None:
        spec = source.at("spec")
        inner = spec.at("leaderWorkerTemplate")
        self.head = head
        self.size = inner.count("size", 1)  # pods of one group, with its leader
        if self.size < 1:
            inner.fault("size", f"{self.size} is below 1")
        self.replicas = spec.count("replicas", 1)  # number of groups
        if not can_make(spec, "replicas", self.replicas * self.size, self.replicas, "groups"):
            self.replicas = 0
        self.workers = Template.read(inner.at("workerTemplate"))
        self.leader = Template.read(inner.at("leaderTemplate")) if inner.has("leaderTemplate") else self.workers
        self._ready = spec.word("startupPolicy", "LeaderCreated", "LeaderReady") == "LeaderReady"
        self._key = head.annotations.get(EXCLUSIVE, "")  # node label of exclusive domains; empty for none
        self._subgroups = inner.at("subGroupPolicy")
        self._claims = claim_templates(inner, "volumeClaimTemplates")
        self._is_alike = self.leader is self.workers  # True if one template makes leaders and workers
        self._steps = self._ready or bool(self._key)  # True if workers are created after their leader
        self.is_split = self.size > 1 and (self._steps or self.leader.scheduler != self.workers.scheduler)
        """True if leader and workers are two roles."""
        self.revision = source.at("status").text("updateRevision", "1")

    def _slot(self, group: str, j: int) -> Slot:
        """Returns pod `j` of a group, with labels and annotations as the controller writes them. Pod 0 is the leader.

        With exclusive topology, the leader gets a domain of the node label alone, and the workers must follow the
        leader.
        """
        head = self.head
        leader = f"{head.name}-{group}"
        key = sha1(f"{head.namespace}/{leader}".encode(), usedforsecurity=False).hexdigest()
        labels = {
            "name": head.name,
            "group-index": group,
            "group-key": key,
            "worker-index": str(j),
            "template-revision-hash": self.revision,
        }
        notes = {"size": str(self.size)}
        if j:
            notes["leader-name"] = leader
        subgroup = self._subgroups.maybe("subGroupSize") if self._subgroups.raw else None
        if subgroup:
            excluded = self._subgroups.text("subGroupPolicyType") == "LeaderExcluded"
            # as in LeaderWorkerSet's webhook: if size - 1 is a multiple of the subgroup size, the leader is an
            # additional pod of the first subgroup
            first = 1 if excluded or (j and (self.size - 1) % subgroup == 0) else 0
            if j >= first:
                labels["subgroup-index"] = str((j - first) // subgroup)
            notes["subgroup-size"] = str(subgroup)
            notes["subgroup-policy-type"] = self._subgroups.text("subGroupPolicyType", "LeaderWorker")
        name = f"{leader}-{j}" if j else leader
        return Slot(
            name,
            {PREFIX + name: value for name, value in labels.items()},
            {PREFIX + name: value for name, value in notes.items()},
            exclusive_domain=(self._key, PREFIX + "group-key", key, False) if self._key and not j else None,
            follows=self._key if j else "",
            claims=own_claims(self._claims, name),
        )

    def _part(self, group: str, span: range) -> JobPart:
        template, slot = self.workers if span.start else self.leader, partial(self._slot, group)
        return JobPart(number=len(span), slot=slot, span=span, key=self.part_of(span.start), template=template)

    def part_of(self, j: int) -> str:
        """Returns the key of the part to which pod `j` of a group belongs: `leader` or `workers`.

        If leader and workers have one template and are one role, all pods belong to the part `leader`.
        """
        return WORKERS if j and (self.is_split or not self._is_alike) else LEADER

    def roles(self, group: str) -> Sequence[Role]:
        """Returns the roles of one group: a single role, or leader and workers.

        A single role has two parts if leader and workers have different templates.
        """
        make = partial(Role, group=group, detail=f"size {self.size}")
        all_pods, split = range(self.size), self.is_split or (not self._is_alike and self.size > 1)
        parts = [self._part(group, span) for span in ((all_pods[:1], all_pods[1:]) if split else (all_pods,))]
        if not self.is_split:
            return (make(name="", parts=tuple(parts), template=self.leader),)
        # states of the leader for which the controller waits before it creates the workers
        states = [state for state, so in (("Ready", self._ready), ("scheduled", bool(self._key))) if so]
        after = tuple(StepCondition(LEADER, state, f"leader {state}") for state in states)
        make = partial(make, half_of="" if self._is_alike else None)
        return (
            make(name=LEADER, parts=(parts[0],), template=self.leader),
            make(name=WORKERS, parts=(parts[1],), template=self.workers, after=after),
        )


def read_leader_worker_set(source: Source, head: Head) -> Workload:
    """Reads a LeaderWorkerSet. Each group has its own roles, because each group starts and restarts alone."""
    groups = _Groups(source, head)

    def position(pod: Pod) -> PodPosition | None:
        """Returns the position of a pod by labels, else by its name `SET-GROUP` or `SET-GROUP-WORKER`.

        None if neither states the group.
        """
        labels = pod.metadata.labels
        group, worker = labels.get(PREFIX + "group-index", ""), labels.get(PREFIX + "worker-index", "")
        if not group:
            parts = pod.metadata.name.removeprefix(f"{head.name}-").split("-")
            group, worker = parts[0], worker or (parts[1] if len(parts) > 1 else "0")
        if index_of(group) is None:
            return None
        index = index_of(worker)
        role = "" if not groups.is_split else LEADER if index == 0 else WORKERS
        run = labels.get(PREFIX + "template-revision-hash", groups.revision)
        return PodPosition(role, index, groups.part_of(index or 0), group=group, run=run)

    return Workload(
        head=head,
        roles=tuple(role for i in range(groups.replicas) for role in groups.roles(str(i))),
        position=position,
        by_default=True,
        children=(("StatefulSet", head.name), *(("StatefulSet", f"{head.name}-{i}") for i in range(groups.replicas))),
        marks=((PREFIX + "name", head.name),),
        of_group=groups.roles,
    )
