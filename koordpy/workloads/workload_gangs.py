# SPDX-License-Identifier: Apache-2.0
"""Derives the gangs of one run of a workload, such as a Job or one restart of a JobSet: one gang for each role.

`Derivation` decides whether the pods are a gang, and with which minimums. This is computed once, and stays valid until
a manifest changes. `gangs` then counts the pods, after each change of a pod. Names may repeat; `gang_names.py` makes
them unique.

Sources: workloads.md 2 to 5.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_not
from typing import Any

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.field_faults import UnreadableError, literal
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.api.pod_endings import failed_since
from koordpy.api.reading_limits import some
from koordpy.config.configuration import Gangs
from koordpy.config.gang_topology import parse_topology_wish
from koordpy.decoding.annotation_settings import index_of
from koordpy.workloads.deployment_rollouts import ROLLED, asks
from koordpy.workloads.gang_minimum import MinimumSetting, minima, totals_of_others
from koordpy.workloads.kinds.kind_registry import GANG_KINDS
from koordpy.workloads.live_members import live_counts, surplus_pods
from koordpy.workloads.rank_indexes import RankSpan, rank_spans
from koordpy.workloads.workload_hints import unread_of
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import JobPart, Role, SharedDomain
from koordpy.workloads.workload_runs import WorkloadPod, WorkloadRun


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadGang:
    """One gang: the pods of one role in one run."""

    namespace: str
    name: str
    """`WORKLOAD` or `WORKLOAD:ROLE`."""
    pods: tuple[str, ...]
    """Keys of the pods, the oldest first."""
    min_member: int
    origin: str
    """Text for messages: why the pods are a gang, such as `8 members of Job train`."""
    meta: ObjectMeta
    """Annotations that apply to the gang. If an annotation is set in several places, the value nearest to the pod
    counts."""
    fault: str = ""
    title: Head | None = None
    """The topmost object of a kind from which gangs may be derived; None if there is none."""
    maker: str = ""
    """Kind and name of the object for which a controller creates the pods, such as `Job train`."""
    role: str = ""
    run: tuple[str, ...] = ()
    is_planned_alone: bool = False
    """True if the gang is planned without the other roles. That is so if the other roles have bound pods, and this gang
    has no bound pod and too few members, or has a fault."""
    succeeded: bool = False
    """True if a member has Succeeded, even if only the status of its controller shows it."""
    is_planned_jointly: bool = True
    """True if the gang is planned together with the other roles of its run."""
    is_default: bool = False
    """True for a Job that is a gang by default, without a setting that requests it."""
    doubts: tuple[str, ...] = ()
    """Warnings for the owner: settings that have no effect, or not the effect that their author may expect."""
    foreign_pods: tuple[str, ...] = ()
    """Bound pods of the run that another scheduler has placed."""
    has_lost_members: bool = False
    """True if fewer members are bound or Succeeded now than were bound together (workloads.md 5.6)."""
    failed_since: float | None = None
    """Time at which members were lost, in seconds since the epoch; None if no failed pod states it."""
    source: str = "workload"
    """Where the gang comes from: `workload`, `labels`, `kueue` or `volcano`."""
    is_awaited: bool = False
    """True if the owner of the pods is unknown, but expected to be observed soon."""
    steps: tuple[tuple[str, int, str], ...] = ()
    """(role, number of pods, condition for which the controller waits) of roles of the run that are created later."""
    halted: str = ""
    """Why the controller will delete the pending pods, such as `Job train is suspended`; empty for none."""
    missing: bool = False
    """True if the object that the pods name does not exist."""
    total_minimum: tuple[str, int] | None = None
    """(PodGroup, number of members) that the gangs of all tasks must reach together; None if only `min_member`
    applies."""
    minimum_setting: MinimumSetting | None = None
    """The setting that states `min_member`, or could; None if changing a setting of the workload has no known
    effect."""
    domains: tuple[SharedDomain, ...] = ()
    hard_keys: tuple[str, ...] = ()
    """Keys of node labels with one value for the nodes of all pods, from spec.scheduling of the Job. Only for pods that
    name no PodGroup."""
    one_victim: bool = False
    """True if spec.scheduling of the Job requires that all pods are evicted together. Only for pods that name no
    PodGroup."""
    outgoing: tuple[str, ...] = ()
    """Keys of bound pods of older ReplicaSets, which a rollout replaces; in natural order."""
    superseded: tuple[str, ...] = ()
    """Keys of pending pods of older ReplicaSets; in natural order."""
    ranks: tuple[RankSpan, ...] = ()
    """Rank indexes of the role's pods; empty if its pods have none."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Resources that must be free before any member starts (minResources)."""

    @property
    def by_workload(self) -> bool:
        """True if the number of members follows the number of pods that a controller keeps alive."""
        return self.source != "volcano"

    @property
    def key(self) -> str:  # `namespace/name`
        return f"{self.namespace}/{self.name}"


def _meta(run: WorkloadRun, role: Role) -> ObjectMeta:
    """Returns the annotations that apply to a role. Of an annotation in several places, the nearest value counts."""
    nearest = [*run.own_notes(role), *run.notes, role.deadline]
    notes = {key: text for one in reversed(nearest) for key, text in one.items()}
    return ObjectMeta(namespace=run.workload.head.namespace, name=run.workload.head.name, annotations=notes)


def _requests_gang(said: Mapping[str, str]) -> bool:
    """Returns True if annotations request a gang (workloads.md 3). An unreadable topology annotation counts as a
    request."""
    if said.get(keys.GANG_AUTO) == "on" or (keys.GANG_MIN in said and keys.GANG_NAME not in said):
        return True
    text = said.get(keys.GANG_TOPOLOGY, said.get(keys.GANG_TOPOLOGY_ALIAS))
    if text is None:
        return False
    try:
        wish = parse_topology_wish(text)
    except UnreadableError:
        return True
    return bool(wish.gather) or wish.pipeline > 1


class Derivation:
    """Derives the gangs of one run. The manifests are read once, and again after they change."""

    def __init__(
        self, run: WorkloadRun, config: Gangs, schedulers: Container[str], naming_roles: Container[str]
    ) -> None:
        """schedulers: names of this scheduler. naming_roles: roles with pods that name a gang themselves."""
        self.run, self.top, self._seen = run, run.lineage.top, self._pod_properties(run, naming_roles)
        self._workload, head = run.workload, run.workload.head
        every = run.roles  # all roles of the run
        ours = [role for role in every if self._is_served(role, schedulers)]
        self._others = [role for role in every if role not in ours]
        """Roles of pods that another scheduler places."""
        self._several = len(every) > 1  # True if the names of gangs contain the role
        self._metas = {role.name: _meta(run, role) for role in ours}
        """Role -> annotations that apply to it."""
        self._roles = [
            role
            for role in ours
            if self._metas[role.name].annotations.get(keys.GANG_AUTO) != "off"
            and (run.members.get(role.name) or role.name not in naming_roles)
        ]
        # three ways to request a gang: a minimum for another scheduler, koordpy's annotations, the Job's scheduling
        # policy
        said = [self._metas[role.name].annotations for role in self._roles]
        speaking = [*run.notes, *run.oldest.values(), *(role.template.annotations for role in every)]
        self._asked = any(totals_of_others(run.workload, speaking)) or any(map(_requests_gang, said))
        self._asked = self._asked or run.workload.policy == "gang"
        if head.kind in ROLLED:  # only min-available on the pod template makes a gang of a ReplicaSet
            self._asked = any(asks(one.annotations) for role in every for one in run.templates(role))
        self._minima = minima(run, self._roles, str(self.top), several=self._several)
        self._by_labels = run.workload.origin != "workload"
        of_kinds = {head.kind, self.top.kind} <= {*config.kinds, *ROLLED}
        of_kinds = of_kinds and config.auto_of(head.namespace) == "workloads"
        self._is_read = bool(self._roles) and (self._by_labels or of_kinds) and run.workload.policy != "basic"
        # an unreadable value makes a gang, too: the gang then reports the fault and blocks the pods
        odd = any(one.get(keys.GANG_AUTO, "off") not in ("on", "off") for one in said)
        one = run.workload.counted and sum(role.number for role in every) <= 1  # the spec makes a single pod
        self.is_gang = self._is_read and (self._asked or odd or (run.workload.by_default and not one))
        """True if the pods are a gang, not plain pods (workloads.md 3)."""

    @staticmethod
    def _pod_properties(run: WorkloadRun, naming_roles: Container[str]) -> object:
        """Returns a value of the pods on which the derivation depends: if it changes, the derivation must be repeated.

        None: it must be repeated after every change, because a role without a template is read from its pods.
        """
        roles = run.roles
        if not all(role.template.raw for role in roles):
            return None
        silent = [role.name for role in roles if role.name in naming_roles]
        templates = [id(one) for role in roles for one in run.templates(role)] if run.workload.sets else []
        return list(run.members), silent, list(totals_of_others(run.workload, run.oldest.values())), templates

    def holds(self, run: WorkloadRun, naming_roles: Container[str]) -> bool:
        """Returns True if the derivation is still valid for the present state of the run."""
        before, now = self.run.chain, run.chain
        if len(now) != len(before) or any(map(is_not, before, now)) or self.run.lineage.missing != run.lineage.missing:
            return False
        return self._seen is not None and self._seen == self._pod_properties(run, naming_roles)

    def _is_served(self, role: Role, schedulers: Container[str]) -> bool:
        """Returns True if this scheduler places a role: by the role's template, or without one by its pods."""
        if role.template.raw:
            return self.run.templates(role)[0].scheduler in schedulers
        pods = self.run.members.get(role.name, ())
        return not pods or any(one.pod.spec.scheduler_name in schedulers for one in pods)

    @cached_property
    def _unread(self) -> tuple[str, ...]:
        """Warnings about settings without effect on the topmost object that is read."""
        top = next((one for one in reversed(self.run.chain) if one.is_kind), self._workload)
        templates = self._workload.templates()
        if self._workload.sets:
            templates = self.run.templates(self._workload.roles[0])[:1]
        return tuple(some(unread_of(top.head, templates)))

    def gangs(self, run: WorkloadRun) -> Iterator[WorkloadGang]:
        """Yields one gang for each role that has pods or wants pods. Names may repeat those of other runs.

        If the run is not a gang, yields only groups of surplus pods, which the controller will delete.
        """
        if not self._is_read:
            return
        self.run, self._live_counts = run, live_counts(run)
        if self._workload.sets:
            self.top = run.head
        born = [role for role in self._roles if not role.after or run.members.get(role.name)]  # that exist (6)
        self._later = tuple(
            (role.name, role.number, ", ".join(one.text for one in role.after if not one.met) or role.after[0].text)
            for role in self._roles
            if role not in born
        )
        others = (one for role in self._others for one in run.members.get(role.name, ()))
        self._foreign_bound = tuple(one.key for one in others if one.is_live)
        runs = any(one.is_live for role in self._roles for one in run.members.get(role.name, ()))
        is_counted = self._workload.counted and run.is_present  # else the number of existing pods is used
        for role in born:
            members = [one for one in run.members.get(role.name, ()) if not one.failed]
            alive = sum(one.alive for one in members)
            parts = list(run.wanted(role)) if is_counted else []
            wanted = sum(number for _, number in parts) if is_counted else alive  # pods that the controller keeps
            own = sum(part.least(number) for part, number in parts) if is_counted else alive  # default minimum
            halted = self._halted(role) if not wanted else ""
            self._wanted_by_set = {part.key: number for part, number in parts}
            beyond = self._beyond(role, members, parts) if is_counted and not (halted and self.is_gang) else []
            gone = {key for _, _, found in beyond for key in found}  # surplus pods, which form separate blocked groups
            members = [one for one in members if one.key not in gone]
            if not (members or wanted or gone):
                continue
            gang = self._gang(role, members, wanted, own, runs=runs)
            for maker, number, found in beyond:
                yield self._unwanted(gang, maker, number, found)
            if self.is_gang and (members or wanted):
                yield replace(gang, halted=halted) if halted else gang

    def _beyond(
        self, role: Role, members: Sequence[WorkloadPod], parts: Sequence[tuple[JobPart, int]]
    ) -> list[tuple[Head, int, tuple[str, ...]]]:
        """Returns (controller, number of pods that it wants, pending pods above this number) for each controller.

        The pods with the last indexes are above the number; the controller will delete them. Each ReplicaSet of a
        Deployment has its own number; any other workload has one number for the role.
        """
        found: list[tuple[Head, int, tuple[str, ...]]] = []
        # each branch checks that the object with the number controls the pods; otherwise the number is of another
        # object
        if self._workload.sets:
            numbers = {part.key: number for part, number in parts}
            for head in self._workload.sets:
                own = [one for one in members if one.position.part == head.name]
                makers = {one.pod.metadata.controller for one in own} - {None}
                if all(maker is not None and maker.name == head.name for maker in makers):
                    found.append((head, numbers[head.name], surplus_pods(role, own, numbers[head.name])))
        elif not self._by_labels and any(one.head.uid == self.top.uid for one in self.run.chain):
            wanted = sum(number for _, number in parts)
            found.append((self.top, wanted, surplus_pods(role, members, wanted)))
        return [one for one in found if one[2]]

    def _unwanted(self, gang: WorkloadGang, maker: Head, wanted: int, pods: tuple[str, ...]) -> WorkloadGang:
        """Returns a gang that blocks surplus pods and states the reason."""
        return replace(
            gang,
            name=f"{maker.name if self._workload.sets else gang.name}@beyond",
            pods=pods,
            min_member=0,
            halted=f"{maker} wants {count_noun(wanted, 'pod')}, and there are more",
            is_planned_jointly=False,
        )

    def _gang(self, role: Role, members: Sequence[WorkloadPod], wanted: int, own: int, *, runs: bool) -> WorkloadGang:
        """Returns the gang of a role.

        wanted: number of pods that the controller keeps alive. own: default minimum of the kind. runs: True if a pod of
        the run is bound.
        """
        workload, head, group = self._workload, self.run.head, self.run.position.group
        said = self._minima[role.name]  # the minimum by settings
        least, by, fault = own, "", said.fault
        if said.number is not None and not said.fault:
            least = min(wanted, said.number) if workload.counted else said.number
            if workload.desired is not None:  # surge pods do not raise the minimum
                least = min(least, workload.desired)
            by = f", at least {least} by {said.by}" if said.by and least < wanted else ""
        notes = self._metas[role.name].annotations
        if (auto := notes.get(keys.GANG_AUTO, "on")) not in ("on", "off"):
            fault = f"annotation {keys.GANG_AUTO} cannot be read: {literal(auto)} is neither on nor off"
        # held: indexes of bound pods; a failed pod with such an index was replaced
        held = {one.position.index for one in members if one.bound} - {None}
        failed = [one for one in self.run.members.get(role.name, ()) if one.failed and one.position.index not in held]
        there = [one for one in members if one.alive and (one.bound or one.is_placeable)]  # that run or may be placed
        bound = any(one.bound for one in there)
        older = self._of_older_sets(role, members)
        name = f"{head.name}-{group}" if group else head.name
        named = role.name if self._several or self.top.kind in ("JobSet", "TrainJob") else ""
        return WorkloadGang(
            namespace=head.namespace,
            name=f"{name}:{role.name}" if self._several else name,
            pods=tuple(one.key for one in members if not one.succeeded),
            min_member=least,
            origin=self._origin(role, wanted, named) + by,
            meta=self._metas[role.name],
            fault=fault,
            title=self.top if self.top.kind in GANG_KINDS else None,
            maker=str(self.top),
            source=workload.origin,
            role=named,
            run=(workload.head.uid, group, self.run.position.run),
            is_planned_alone=runs and not bound and (len(there) < least or bool(fault)),
            succeeded=any(one.succeeded for one in members) or any(part.succeeded for part in role.parts),
            is_planned_jointly=wanted > 0,
            is_default=not self._asked and head.kind == "Job" and not self._by_labels,
            foreign_pods=self._foreign_bound,
            has_lost_members=any(map(self._has_lost, members)),
            failed_since=failed_since((one.pod for one in failed), (one.pod for one in members if one.bound)),
            minimum_setting=said.setting,
            domains=role.domains,
            ranks=() if workload.sets else rank_spans(role),
            outgoing=tuple(one.key for one in older if one.is_live),
            superseded=tuple(one.key for one in older if one.alive and not one.is_live),
            hard_keys=workload.hard_keys,
            one_victim=workload.one_victim,
            steps=self._later if self.is_gang else (),
            doubts=(*filter(None, [said.doubt]), *self._unread),
        )

    def _of_older_sets(self, role: Role, members: Sequence[WorkloadPod]) -> list[WorkloadPod]:
        """Returns the pods of all ReplicaSets except the newest, in natural order."""
        if not self._workload.sets:
            return []
        newest = self.run.templates(role)[0]
        sets = {part.key for part in role.parts if role.template_of(part) is not newest}
        return sorted((one for one in members if one.position.part in sets), key=lambda one: natural_key(one.key))

    def _halted(self, role: Role) -> str:
        """Returns why no pods of a role are wanted: its workload or all its Jobs are suspended or finished. Empty if
        neither is so."""
        if not self.run.is_present:
            return ""
        notes = {self._workload.note} if self._workload.note else {part.note for part in role.parts}
        note = notes.pop() if len(notes) == 1 else ""
        return f"{self.top} is {note}" if note else ""

    def _origin(self, role: Role, wanted: int, named: str) -> str:
        text = f"{count_noun(wanted, 'member')} {self._workload.said or f'of {self._controllers(role)}'}"
        if self.run.position.group:
            text += f", group {self.run.position.group}"
        if named:
            text += f", role {role.name}"
        return f"{text} ({role.detail})" if role.detail else text

    def _controllers(self, role: Role) -> str:
        """Returns a text on the objects that create the members: one workload, or several ReplicaSets of a rollout."""
        owner = self._workload.head.owner
        if owner is None or sum(part.number > 0 for part in role.parts) < 2 or not self._workload.sets:
            return str(self.top)
        return f"{self._workload.head.kind}s of {owner.kind} {owner.name}"

    def _has_lost(self, one: WorkloadPod) -> bool:
        """Returns True if fewer members are bound or Succeeded now than were bound together with this pod."""
        said = one.pod.metadata.annotations
        number = index_of(said.get(keys.BIND_MEMBER_COUNT, "")) or 0
        if self._workload.sets:  # a rollout takes pods from a ReplicaSet: these pods are not lost
            number = min(number, self._wanted_by_set.get(one.position.part, 0))
        return one.bound and self._live_counts[said.get(keys.BIND_GROUP_ID, "")] < number


def renamed(gang: WorkloadGang, suffix: str) -> WorkloadGang:
    """Returns the gang with a suffix on its name; the suffix is before the role."""
    name, colon, role = gang.name.partition(":")
    return replace(gang, name=f"{name}{suffix}{colon}{role}")
