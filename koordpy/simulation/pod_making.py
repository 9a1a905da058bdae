# SPDX-License-Identifier: Apache-2.0
"""Creates the pods of workloads where no controllers of Jobs, JobSets and so on run: in simulations and in the embedded
API server.

Existing pods of the input are sorted into roles and slots. `Expansion.make` creates a pod for each empty slot of the
roles that can begin. A role begins if the conditions in its manifest are met, such as dependsOn of a JobSet. `make` is
called after each round, because some roles wait for bound pods. It does not schedule.

Sources: workloads.md 10.1 to 10.4.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta, OwnerReference, Pod
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.api.uids import made_up_uid
from koordpy.pods.daemon_pods import node_of_daemon
from koordpy.simulation.pod_specs import placed
from koordpy.workloads.known_workloads import Known, Lineage
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import Filling, JobPart, PodPosition, Role, Slot, SlotClaim, Workload
from koordpy.workloads.workload_runs import WorkloadPod, WorkloadRun

SCHEDULED = "scheduled"
"""`StepCondition.state` of pods that follow a leader: they are created once the leader is bound."""
RoleKey = tuple[str, str, str]
"""(uid of the workload, group, role)."""


@dataclass(frozen=True, slots=True)
class Top:
    """An object of the input that no other object of the input creates, such as a Job or a CronJob."""

    head: Head
    workload: Workload | None
    """The workload with the roles; it may be a child, such as the Job of a CronJob. None if no pods are created."""
    note: str = ""
    """Why no pods are created, such as `suspended`; empty if pods are created."""
    jobs: Mapping[str, Head] | None = None
    """Job -> its head, if a JobSet is known only by its Jobs: then the Jobs are the topmost objects, and only these
    create pods. None otherwise."""


@dataclass(slots=True)
class Account:
    """Numbers of pods of one topmost object, for the output."""

    head: Head
    note: str
    """Why no pods are created; empty if pods are created, or if the children (Jobs of a CronJob) differ."""
    made: int = 0  # pods that were created
    present: int = 0  # pods of the input that fill a slot


@dataclass(eq=False, slots=True)
class _Step:
    """A role with its pods; the pods of a role are created in one step."""

    top: Top
    role: Role
    run: WorkloadRun  # shared by all roles of the workload or group
    made: bool = False  # True if its pods were created, also in an earlier run

    @property
    def workload(self) -> Workload:
        """The workload with the role."""
        return self.run.workload

    @property
    def key(self) -> RoleKey:
        """Identity of the role."""
        return self.workload.head.uid, self.role.group, self.role.name

    @property
    def pods(self) -> list[WorkloadPod]:
        """Pods of its present run that exist or were created."""
        return self.run.members.setdefault(self.role.name, [])

    @property
    def is_over(self) -> bool:
        """True if its workload is suspended or finished."""
        return bool(self.top.note or self.workload.note)

    def of_part(self, part: JobPart) -> list[WorkloadPod]:
        """Returns the pods of one part, such as one Job of a JobSet."""
        return [one for one in self.pods if one.position.part == part.key]


def followed(workload: Workload, role: Role) -> dict[str, int]:
    """Returns role -> number of steps that wait for completion, for all roles that must come before `role`.

    If the number is above 0, that role is Complete when `role` has begun; if it is 0, that role only had to be Ready.
    If there are several paths between the roles, the largest number is returned.
    """
    ways = {role.name: 0}
    roles = [one for one in workload.roles if one.group == role.group]
    # a role waits only for roles before it in the order, so one pass from the end suffices
    for one in reversed(roles):
        for condition in one.after if one.name in ways else ():
            steps = ways[one.name] + (condition.state == "Complete")
            ways[condition.role] = max(ways.get(condition.role, 0), steps)
    return {one.name: ways[one.name] for one in roles if one.name in ways and one.name != role.name}


def with_ended(workload: Workload, started: Collection[RoleKey]) -> Workload:
    """Returns the workload after the given roles have begun: roles that had to be complete before them are finished.
    started: roles that have begun, by `--started`."""
    uid = workload.head.uid
    begun = [role for role in workload.roles if (uid, role.group, role.name) in started]
    over = {(role.group, name) for role in begun for name, steps in followed(workload, role).items() if steps}
    roles = tuple(
        changed(role, parts=tuple(changed(part, over=True) for part in role.parts))
        if (role.group, role.name) in over
        else role
        for role in workload.roles
    )
    return changed(workload, roles=roles) if over else workload


class Expansion:
    """Workloads with their existing pods, and the pods that are created step by step."""

    def __init__(
        self,
        known: Known,
        tops: Sequence[Top],
        present: Iterable[Pod],
        node_of: Callable[[str], str],
        label_of: Callable[[str, str], str],
        claims: Iterable[str] = (),
        daemons: Callable[[Pod], Sequence[str]] = lambda _: (),
        started: frozenset[RoleKey] = frozenset(),
        done: frozenset[RoleKey] = frozenset(),
    ) -> None:
        """Files the existing pods by role.

        node_of: returns a pod's node; empty if it has none. label_of: returns a label of a pod's node. claims: existing
        claims (`namespace/name`). daemons: returns the nodes for a DaemonSet's pod. started: roles that have begun.
        done: roles with pods from an earlier run; these pods are not created again.
        """
        self._known, self._node_of, self._label_of, self._daemons = known, node_of, label_of, daemons
        self._claims = set(claims)
        self.accounts: dict[str, Account] = {}
        self._steps: dict[RoleKey, _Step] = {}
        self._siblings: dict[tuple[str, str], list[_Step]] = {}
        """(uid of the workload, group) -> its roles."""
        for top in tops:
            note = top.note or (top.workload.note if top.workload is not None else "")
            for head in (top.jobs or {"": top.head}).values():
                account = self.accounts.setdefault(head.uid, Account(head, note))
                account.note = note if account.note == note else ""
            if top.workload is not None:
                self._put(top, top.workload)
        for key in done & self._steps.keys():
            self._steps[key].made = True
        self._begun = set(started)
        """Roles that have begun: the given ones, and the roles that had to be Ready before them."""
        for key in started & self._steps.keys():
            before = followed(self._steps[key].workload, self._steps[key].role)
            self._begun |= {(*key[:2], name) for name, steps in before.items() if not steps}
        self._present: set[str] = set()
        """Keys of the pods in the input."""
        for pod in present:
            self._present.add(pod.key)
            if (lineage := known.lineage(pod)).workload.roles:
                self._file(pod, lineage)
        self._used_names = set(self._present)

    def _put(self, top: Top, workload: Workload) -> None:
        for role in workload.roles:
            siblings = self._siblings.setdefault((workload.head.uid, role.group), [])
            position = PodPosition("", group=role.group, run=workload.run)
            run = siblings[0].run if siblings else WorkloadRun(Lineage((workload,), None, workload, position))
            siblings.append(step := _Step(top, role, run))
            self._steps[step.key] = step

    def _file(self, pod: Pod, lineage: Lineage) -> None:
        """Files an existing pod if it belongs to the present run."""
        position, workload = lineage.position, lineage.maker
        if workload.run and position.run != workload.run:
            return
        one = WorkloadPod(pod.key, pod, bound=_is_bound(pod), created=0.0, lineage=lineage)
        step = self._steps.get((workload.head.uid, position.group, position.role))
        if step is not None:
            step.pods.append(one)
        parts = step.role.parts if step is not None else ()
        if _fills(next((part.filling for part in parts if part.key == position.part), Filling.COUNT), one):
            for uid in dict.fromkeys(above.head.uid for above in lineage.chain):
                if (account := self.accounts.get(uid)) is not None:
                    account.present += 1

    # -- steps --------------------------------------------------------------------------------------------------------

    def _waits_for(self, step: _Step) -> str:
        """Returns the first condition for which a role waits; empty if its pods may be created."""
        if step.pods or all(part.over for part in step.role.parts):
            return ""
        for condition in step.role.after:
            if condition.met or (step.key in self._begun and condition.state != SCHEDULED):
                continue  # a following pod needs the node of its leader
            if condition.state == "Complete" or not self._is_ready(step, condition.role):
                return condition.text
        return ""

    def _is_ready(self, step: _Step, name: str) -> bool:
        """Returns True if all wanted pods of a role, or of its two halves, are bound: bound pods count as Ready here.
        name: name of the role in the spec."""
        for one in self._siblings[step.key[:2]]:
            if name in (one.role.name, one.role.half_of):
                bound = sum(pod.alive and bool(self._node_of(pod.key)) for pod in one.pods)
                if bound < sum(wanted for _, wanted in one.run.wanted(one.role)):
                    return False
        return True

    def _leader(self, step: _Step, part: JobPart) -> str:
        """Returns the key of the leader that the pods of a part follow; empty if they follow none."""
        names = {one.role for one in step.role.after if one.state == SCHEDULED}
        for one in self._siblings[step.key[:2]] if names else ():
            pods = one.pods if len(one.role.parts) == 1 else one.of_part(part)
            if one.role.name in names and (found := next((pod.key for pod in pods if pod.alive), "")):
                return found
        return ""

    # -- pods ---------------------------------------------------------------------------------------------------------

    def make(self) -> tuple[list[Pod], list[PersistentVolumeClaim]]:
        """Creates the pods of all roles that can begin, except for roles that were created before. Returns (pods,
        claims for these pods and for existing pods without a node)."""
        pods: list[Pod] = []
        claims: list[PersistentVolumeClaim] = []
        for step in [one for one in self._steps.values() if not one.made and not self._waits_for(one)]:
            step.made, kept = True, _of_group(step.run)
            for part, wanted in [] if step.is_over else list(step.run.wanted(step.role)):
                base = step.role.template_of(part).pod
                maker = step.top.head if step.top.jobs is None else step.top.jobs.get(part.key)
                if base is None or maker is None:
                    continue  # no controller exists that creates the pods
                owner = part.owner or step.workload.head.reference
                # a foreign pod with the name of a slot prevents its creation, so it counts as present
                self.accounts[maker.uid].present += self._strangers(step, part)
                claims += self._lacking_claims(step, part, maker)
                of_leader = partial(self._label_of, self._leader(step, part))
                for slot in self._open(step, part, wanted):
                    meta = self._meta(slot, maker, base.metadata, owner)
                    meta.labels.update(kept)
                    pods.append(pod := Pod(metadata=meta, spec=placed(base.spec, slot, of_leader)))
                    claims += self._new_claims(slot.claims, maker)
                    self.accounts[maker.uid].made += 1
                    lineage = self._known.lineage(pod)
                    step.pods.append(WorkloadPod(pod.key, pod, bound=False, created=0.0, lineage=lineage))
        return pods, claims

    def _open(self, step: _Step, part: JobPart, wanted: int) -> list[Slot]:
        """Returns the slots to fill, by the part's `filling`. wanted: number of pods that must be alive."""
        head, own = step.workload.head, step.of_part(part)
        filling = [one for one in own if _fills(part.filling, one)]
        if part.filling is Filling.COUNT:  # names are arbitrary: unused ones first
            names = {one.pod.metadata.name for one in own}
            free = (one for taken in (False, True) for one in part.slots() if (one.name in names) is taken)
            return list(islice(free, max(0, wanted - len(filling))))
        if part.filling is Filling.INDEX:
            # two pods of one index count as one, and pods beyond the indexes do not count
            there = {one.index for one in own if one.alive} - {None}
            left = max(0, wanted - sum(i in part.indexes for i in there))
            return list(islice(part.slots(part.closed | {one.index for one in filling}), left))
        free = (one for one in self._named(step, part) if f"{head.namespace}/{one.name}" not in self._present)
        return list(free if part.filling is Filling.NODE else islice(free, wanted))

    def _named(self, step: _Step, part: JobPart) -> Iterable[Slot]:
        """Returns the slots of a part with fixed names of pods; for a DaemonSet, the slots of nodes that have no pod of
        it."""
        if part.filling is not Filling.NODE or step.role.template.pod is None:
            return part.slots()
        head, filled = step.workload.head, {node_of_daemon(one.pod) for one in step.of_part(part)}
        nodes = self._daemons(step.role.template.pod)
        return (Slot(f"{head.name}-{one}", {}, node=one) for one in nodes if one not in filled)

    def _strangers(self, step: _Step, part: JobPart) -> int:
        """Returns the number of slots with a name that a pod outside the workload has."""
        if part.filling not in (Filling.NAME, Filling.NODE):
            return 0
        own, space = {one.key for one in step.pods}, step.workload.head.namespace
        named = (f"{space}/{slot.name}" for slot in self._named(step, part))
        return sum(key in self._present and key not in own for key in named)

    def _meta(self, slot: Slot, maker: Head, base: ObjectMeta, owner: OwnerReference) -> ObjectMeta:
        """Returns the metadata of the pod of a slot. maker: the topmost object. base: metadata of the template."""
        name = slot.name
        while f"{maker.namespace}/{name}" in self._used_names:
            name = f"{name}-{maker.kind.lower()}"
        self._used_names.add(f"{maker.namespace}/{name}")
        return ObjectMeta(
            name=name,
            namespace=maker.namespace,
            uid=made_up_uid("Pod", maker.uid, name),
            creation_timestamp=maker.created or None,
            labels={**base.labels, **slot.labels},
            annotations={**base.annotations, **slot.annotations},
            owner_references=[owner],
        )

    def _lacking_claims(self, step: _Step, part: JobPart, maker: Head) -> Iterator[PersistentVolumeClaim]:
        """Yields the missing claims of existing pods without a node."""
        waiting = [one.pod for one in step.of_part(part) if one.alive and not self._node_of(one.key)]
        first = next(part.slots(), None)
        if not waiting or first is None or not first.claims:
            return
        slots = {slot.name: slot for slot in part.slots()}
        for pod in waiting:
            sources = (volume.persistent_volume_claim for volume in pod.spec.volumes)
            named = {source.claim_name for source in sources if source is not None}
            own = slots.get(pod.metadata.name, first).claims
            yield from self._new_claims((one for one in own if one.name in named), maker)

    def _new_claims(self, wanted: Iterable[SlotClaim], maker: Head) -> Iterator[PersistentVolumeClaim]:
        """Yields the claims in `wanted` that do not exist."""
        for one in wanted:
            key = f"{maker.namespace}/{one.name}"
            if key not in self._claims:
                self._claims.add(key)
                names = {"name": one.name, "namespace": maker.namespace, "creation_timestamp": maker.created or None}
                yield replace(one.template, metadata=replace(one.template.metadata, **names))

    def done(self) -> frozenset[RoleKey]:
        """Returns the roles for which pods were created, without roles with one pod per node: new nodes need further
        pods."""
        return frozenset(
            step.key
            for step in self._steps.values()
            if step.made and all(part.filling is not Filling.NODE for part in step.role.parts)
        )

    # -- output -------------------------------------------------------------------------------------------------------

    def not_begun(self, key: str) -> str:
        """Returns why the pod with a key does not exist yet: its role has not begun. Empty for any other pod."""
        for one in self._steps.values():
            why = "" if one.made or one.is_over else self._waits_for(one)
            slots = (slot for part, wanted in one.run.wanted(one.role) for slot in self._open(one, part, wanted))
            if why and any(key == f"{one.workload.head.namespace}/{slot.name}" for slot in slots):
                head, role = one.top.head, one.role.name
                return f": role {role} of {head} waits for {why}, --started {head.name}:{role} creates its pods"
        return ""

    def document(self) -> list[dict[str, Any]]:
        """Returns `workloads` of the output, in its order: the account of each topmost object."""
        waiting: dict[str, dict[tuple[str, str], int]] = {}
        for one in self._steps.values():
            if not one.made and not one.is_over and (why := self._waits_for(one)):
                roles, name = waiting.setdefault(one.top.head.uid, {}), one.role.name
                missing = sum(len(self._open(one, part, wanted)) for part, wanted in one.run.wanted(one.role))
                roles[name, why] = roles.get((name, why), 0) + missing
        found = [
            {
                "kind": one.head.kind,
                "namespace": one.head.namespace,
                "name": one.head.name,
                "made": one.made,
                "present": one.present,
                "waiting": [
                    {"role": role, "pods": pods, "for": why}
                    for (role, why), pods in waiting.get(one.head.uid, {}).items()
                ],
                "note": one.note,
            }
            for one in self.accounts.values()
        ]
        return sorted(found, key=lambda one: (natural_key(one["namespace"]), natural_key(one["name"]), one["kind"]))


_OF_GROUP = "leaderworkerset.sigs.k8s.io/template-revision-hash"
"""Label with one value on all pods of a group, even if the spec has changed since."""


def _of_group(run: WorkloadRun) -> Mapping[str, str]:
    """Returns the revision label of the group's existing pods, for new pods of the group; empty for none."""
    pods = (one.pod.metadata.labels for found in run.members.values() for one in found if not one.leaving)
    return next(({_OF_GROUP: labels[_OF_GROUP]} for labels in pods if _OF_GROUP in labels), {})


def _is_bound(pod: Pod) -> bool:
    """Returns True if a pod has a node and is not finished. The node may be lost: controllers create no other pod as
    long as the pod exists."""
    return bool(pod.spec.node_name) and pod.status.phase not in ("Succeeded", "Failed")


def _fills(filling: Filling, one: WorkloadPod) -> bool:
    """Returns True if an existing pod fills a slot (workloads.md 10.3). If slots have names or nodes, a pod in any
    state fills its slot."""
    if filling is Filling.COUNT:
        return one.alive
    return filling is not Filling.INDEX or not (one.failed or one.leaving)
