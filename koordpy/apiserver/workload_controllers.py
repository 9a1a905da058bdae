# SPDX-License-Identifier: Apache-2.0
"""Controllers of Jobs and JobSets for the embedded API server: they create pods and write statuses.

A JobSet creates Jobs, and a Job creates pods; if an object is deleted, its children are deleted with it.
`koordpy.simulation.pod_making` computes the pods, as in `koordpy simulate`; their names get a random suffix, as in a
cluster. Not supported: podFailurePolicy, successPolicy, a JobSet's failurePolicy, activeDeadlineSeconds and
ttlSecondsAfterFinished. Rules: workloads.md 4, 5.1, 6 and 10.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordpy.api.keys import JOB_COMPLETION_INDEX
from koordpy.api.objects import ObjectMeta, OwnerReference, Pod
from koordpy.apiserver.crd_definitions import DEFINITIONS
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import Change
from koordpy.apiserver.served_resources import Object, is_ready
from koordpy.apiserver.status_errors import StatusError
from koordpy.apiserver.write_rules import rewritten
from koordpy.simulation.pod_making import SCHEDULED, Expansion, RoleKey, Top
from koordpy.workloads.kinds.batch_jobs import read_job
from koordpy.workloads.kinds.jobsets import PREFIX, read_jobset
from koordpy.workloads.known_workloads import Known
from koordpy.workloads.pod_indexes import indexes
from koordpy.workloads.workload_manifest import Head, ReadFields, Source, can_make, conditions, head_of, index_in
from koordpy.workloads.workload_model import JobPart, Role, Workload

JOBS, JOBSETS, PODS = "jobs.batch", "jobsets.jobset.x-k8s.io", "pods"
_DELAY_SECONDS = 0.02
"""Seconds from a change until its namespace is reconciled, so that many changes cause one pass."""
_BACKOFF_LIMIT = 6
"""Default number of failed pods that a Job tolerates."""
_LOG = logging.getLogger(__name__)

# the definition of JobSet without a schema, so that any spec is accepted
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
JOBSET_DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": JOBSETS},
    "spec": {
        "group": "jobset.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "JobSet", "plural": "jobsets", "singular": "jobset", "listKind": "JobSetList"},
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN, "status": _OPEN}}},
                "additionalPrinterColumns": [
                    {"name": "TerminalState", "type": "string", "jsonPath": ".status.terminalState"},
                    {"name": "Suspended", "type": "boolean", "jsonPath": ".spec.suspend"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}


class WorkloadControllers:
    """Serves JobSets. Reconciles Jobs and JobSets shortly after each change, as long as an event loop runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stale: set[str] = set()  # namespaces with changes
        self._timer: asyncio.TimerHandle | None = None
        self._told: set[tuple[str, str]] = set()  # (uid, text) of events that were created
        store.create(DEFINITIONS, JOBSET_DEFINITION)
        store.listeners.append(self._changed)

    def close(self) -> None:
        """Stops the controllers; stored objects remain."""
        if self._timer is not None:
            self._timer.cancel()
        self._store.listeners.remove(self._changed)

    def _changed(self, shelf: str, change: Change) -> None:
        if shelf not in (JOBS, JOBSETS, PODS) or (shelf == PODS and not self._store.shelf(JOBS).entries):
            return
        self._stale.add(change.entry.obj["metadata"]["namespace"])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._sync_stale)

    def _sync_stale(self) -> None:
        self._timer = None
        stale, self._stale = self._stale, set()
        for namespace in sorted(stale):
            try:
                self._sync(namespace)
            except Exception:
                _LOG.exception("Jobs of namespace %s cannot be reconciled", namespace)

    # One namespace

    def _sync(self, namespace: str) -> None:
        """Reconciles a namespace, from the top down: Jobs of JobSets, pods of Jobs, then the statuses."""
        self._drop_orphans(namespace)
        jobsets: list[tuple[Source, Workload]] = []
        for source, head in self._sources(JOBSETS, namespace):
            jobset = read_jobset(source, head, self._jobs(namespace))
            if self._is_sound(JOBSETS, source, jobset):
                self._keep_jobs(source, jobset)
                jobsets.append((source, read_jobset(source, head, self._jobs(namespace))))
        self._make_pods(namespace, [jobset for _, jobset in jobsets])
        for job in self._living(JOBS, namespace):
            self._keep_job(job)
        for source, jobset in jobsets:
            self._keep_status(source, jobset)

    def _living(self, resource: str, namespace: str) -> list[Object]:
        """Returns the objects that are not being deleted."""
        return [one for one in self._store.list(resource, namespace) if "deletionTimestamp" not in one["metadata"]]

    def _sources(self, resource: str, namespace: str) -> list[tuple[Source, Head]]:
        """Returns (manifest, identity) of the objects that are not being deleted."""
        sources = (Source(one, read_fields=ReadFields()) for one in self._living(resource, namespace))
        return [(source, head_of(source)) for source in sources]

    def _jobs(self, namespace: str) -> dict[tuple[str, str], Workload]:
        return {(namespace, head.name): read_job(source, head) for source, head in self._sources(JOBS, namespace)}

    def _is_sound(self, resource: str, source: Source, workload: Workload) -> bool:
        """Returns True if the manifest of a workload has no faults. Otherwise creates one Event with the faults."""
        if resource == JOBS:
            can_make(source.at("spec"), "parallelism", workload.roles[0].number)
        if source.faults:
            self._tell(resource, workload.head, "; ".join(f"{fault.path}: {fault.text}" for fault in source.faults))
        return not source.faults

    def _tell(self, resource: str, head: Head, text: str) -> None:
        """Creates a Warning event about a workload, unless it was created before."""
        if (head.uid, text) in self._told:
            return
        self._told.add((head.uid, text))
        _LOG.warning("%s %s: %s", resource, head.key, text)
        about = {"kind": head.kind, "namespace": head.namespace, "name": head.name, "uid": head.uid}
        now = self._store.now()
        event = {
            "metadata": {"generateName": f"{head.name}.", "namespace": head.namespace},
            "involvedObject": {"apiVersion": head.api_version, **about},
            "reason": "FailedCreate",
            "message": text,
            "type": "Warning",
            "source": {"component": "workload-controllers"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._store.create("events", event)

    def _drop_orphans(self, namespace: str) -> None:
        """Deletes Jobs and pods with a controller that no longer exists."""
        for below, above, kind in ((JOBS, JOBSETS, "JobSet"), (PODS, JOBS, "Job")):
            there = {one["metadata"]["uid"] for one in self._living(above, namespace)}
            for one in self._living(below, namespace):
                owner = _controller(one)
                if owner is not None and owner["kind"] == kind and owner["uid"] not in there:
                    self._store.delete(below, one["metadata"]["name"], namespace=namespace)

    # The Jobs of a JobSet

    def _keep_jobs(self, source: Source, jobset: Workload) -> None:
        """Creates the Jobs of a JobSet that may start now, suspends and resumes them with the JobSet, and deletes
        unfinished Jobs once the JobSet is finished."""
        head, suspended = jobset.head, source.at("spec").flag("suspend")
        if jobset.note == "finished":
            for one in self._living(JOBS, head.namespace):
                if _owned(one, head.uid) and not conditions(Source(one), "Complete", "Failed"):
                    self._store.delete(JOBS, one["metadata"]["name"], namespace=head.namespace)
            return
        there = {one["metadata"]["name"]: one for one in self._living(JOBS, head.namespace)}

        def switched(old: Object) -> Object:
            return {**old, "spec": {**old["spec"], "suspend": suspended}}

        for role in jobset.roles:
            given = next(
                one
                for one in source.at("spec").list("replicatedJobs")
                if one.text("name") == (role.half_of or role.name)
            )
            for part in role.parts:
                job = there.get(part.key)
                if job is None and all(one.met or one.state == SCHEDULED for one in role.after):
                    there[part.key] = self._make_job(head, part, given.at("template"), suspended)
                elif job is not None and bool(job["spec"].get("suspend")) != suspended and _owned(job, head.uid):
                    self._store.update(JOBS, part.key, switched, namespace=head.namespace)

    def _make_job(self, head: Head, part: JobPart, template: Source, suspended: bool) -> Object:
        """Creates a Job of a JobSet, with the labels of the JobSet; returns the stored Job."""
        slot = next(part.slots(), None)
        marks = {key: text for key, text in (slot.labels if slot else {}).items() if key.startswith(PREFIX)}
        meta = template.at("metadata")
        job = {
            "metadata": {
                "name": part.key,
                "namespace": head.namespace,
                "labels": {**meta.strings("labels"), **marks},
                "annotations": {**meta.strings("annotations"), **marks},
                "ownerReferences": [_owner(head.reference)],
            },
            "spec": {"completionMode": "Indexed", **template.at("spec").raw, "suspend": suspended},
        }
        return self._store.create(JOBS, job)

    # Pods

    def _make_pods(self, namespace: str, jobsets: list[Workload]) -> None:
        """Creates the missing pods of all Jobs in a namespace.

        jobsets: the JobSets of the namespace. A role of a JobSet has begun once one of its Jobs exists.
        """
        known, tops, started = Known(lambda _: None), [], set[RoleKey]()
        for jobset in jobsets:
            known.put(jobset)
            jobs = {
                head.name: head
                for _, head in self._sources(JOBS, namespace)
                if head.owner is not None and head.owner.uid == jobset.head.uid
            }
            started |= {
                (jobset.head.uid, role.group, role.name)
                for role in jobset.roles
                if any(part.key in jobs for part in role.parts)
            }
            tops.append(Top(jobset.head, jobset, jobs=jobs))
        of_jobsets = {jobset.head.uid for jobset in jobsets}
        for source, head in self._sources(JOBS, namespace):
            job = read_job(source, head)
            known.put(job)
            alone = head.owner is None or head.owner.uid not in of_jobsets
            if alone and self._is_sound(JOBS, source, job):
                tops.append(Top(head, job))
        present = [msgspec.convert(one, Pod) for one in self._store.list(PODS, namespace)]
        expansion = Expansion(known, tops, present, self._node_of, self._label_of, started=frozenset(started))
        pods, claims = expansion.make()
        for claim in claims:
            self._store.create("persistentvolumeclaims", msgspec.to_builtins(claim))
        for pod in pods:
            lineage = known.lineage(pod)
            role = next(one for one in lineage.workload.roles if one.name == lineage.position.role)
            try:
                self._store.create(PODS, _wire(pod, role))
            except StatusError as error:
                self._tell(JOBS, lineage.chain[0].head, f"pod {pod.metadata.name}: {error}")

    def _node_of(self, key: str) -> str:
        """Returns the node of a pod (`namespace/name`); empty if it has none."""
        namespace, _, name = key.partition("/")
        entry = self._store.shelf(PODS).entries.get((namespace, name))
        return str(entry.obj["spec"].get("nodeName", "")) if entry is not None else ""

    def _label_of(self, key: str, label: str) -> str:
        """Returns the value of a label of the pod's node; empty if the pod has no node or the node no such label."""
        entry = self._store.shelf("nodes").entries.get(("", self._node_of(key)))
        return str((entry.obj["metadata"].get("labels") or {}).get(label, "")) if entry is not None else ""

    # Statuses

    def _keep_job(self, job: Object) -> None:
        """Updates a Job's status from its pods, and deletes surplus pods."""
        source = Source(job)
        if source.faults or conditions(source, "Complete", "Failed"):
            return
        meta, old = job["metadata"], job.get("status") or {}
        part = read_job(source, head_of(source)).roles[0].parts[0]
        own = [one for one in self._store.list(PODS, meta["namespace"]) if _owned(one, meta["uid"])]
        phases: dict[str, list[Object]] = {"Succeeded": [], "Failed": [], "": []}
        for pod in own:
            phase = (pod.get("status") or {}).get("phase", "")
            phases[phase if phase in phases else ""].append(pod)
        active = [pod for pod in phases[""] if "deletionTimestamp" not in pod["metadata"]]
        status = {**old, "startTime": old.get("startTime", self._store.now())}
        status["ready"] = sum(is_ready(pod) for pod in active)
        status["failed"] = max(old.get("failed", 0), len(phases["Failed"]))
        status["succeeded"] = max(old.get("succeeded", 0), len(phases["Succeeded"]))
        if source.at("spec").text("completionMode") == "Indexed":
            ended = indexes(old.get("completedIndexes", "")) | {_index(pod) for pod in phases["Succeeded"]} - {-1}
            status["completedIndexes"] = ",".join(map(str, sorted(ended)))
            status["succeeded"] = len(ended)
        left = part.wanted(status["succeeded"], len(active))
        word = _end_of(source, part, status, len(active))
        if word:
            left = 0
            reason = {"Failed": "BackoffLimitExceeded", "Complete": "CompletionsReached"}[word]
            status["conditions"] = [*old.get("conditions", ()), self._condition(word, reason)]
            if word == "Complete":
                status["completionTime"] = self._store.now()
        status["active"] = min(left, len(active))
        self._store.set_status(JOBS, job, status)
        for pod in sorted(active, key=_index)[left:]:
            self._store.delete(PODS, pod["metadata"]["name"], namespace=meta["namespace"])

    def _condition(self, word: str, reason: str) -> Object:
        now = self._store.now()
        return {"type": word, "status": "True", "reason": reason, "lastProbeTime": now, "lastTransitionTime": now}

    def _keep_status(self, source: Source, jobset: Workload) -> None:
        """Updates a JobSet's status from its Jobs; it ends when all Jobs have completed, or one has failed."""
        old = source.raw.get("status") or {}
        if jobset.note == "finished":
            return
        there = {head.name: job for job, head in self._sources(JOBS, jobset.head.namespace)}
        roles, ends, number = [], list[str](), 0
        for one in source.at("spec").list("replicatedJobs"):
            name, replicas = one.text("name"), one.count("replicas", 1)
            counts = dict.fromkeys(("active", "failed", "ready", "succeeded", "suspended"), 0)
            for j in range(replicas):
                job = there.get(f"{jobset.head.name}-{name}-{j}")
                if job is None or not _owned(job.raw, jobset.head.uid):
                    continue
                part = read_job(job, head_of(job)).roles[0].parts[0]
                done = next((word for word in ("Complete", "Failed") if conditions(job, word)), "")
                ends += [done] if done else []
                counted = job.at("status")
                counts["succeeded"] += done == "Complete"
                counts["failed"] += done == "Failed"
                counts["ready"] += not done and counted.count("ready") + counted.count("succeeded") >= part.number
                counts["active"] += counted.count("active") > 0
                counts["suspended"] += part.note == "suspended"
            number += replicas
            roles.append({"name": name, **counts})
        status = {**old, "restarts": old.get("restarts", 0), "replicatedJobsStatus": roles}
        word = "Failed" if "Failed" in ends else "Completed" if number and len(ends) == number else ""
        if word:
            reason = {"Failed": "FailedJobs", "Completed": "AllJobsCompleted"}[word]
            status["terminalState"] = word
            status["conditions"] = [*old.get("conditions", ()), self._condition(word, reason)]
        self._store.set_status(JOBSETS, dict(source.raw), status)


def _controller(obj: Object) -> Object | None:
    return next((one for one in obj["metadata"].get("ownerReferences") or () if one.get("controller")), None)


def _owned(obj: Mapping[str, Any], uid: str) -> bool:
    owner = _controller(dict(obj))
    return owner is not None and owner["uid"] == uid


def _owner(reference: OwnerReference) -> Object:
    return {**msgspec.to_builtins(reference), "blockOwnerDeletion": True}


def _index(pod: Object) -> int:
    """Returns the completion index of a pod; -1 if it has none."""
    found = index_in(msgspec.convert(pod["metadata"], ObjectMeta), JOB_COMPLETION_INDEX)
    return -1 if found is None else found


def _end_of(source: Source, part: JobPart, status: Object, active: int) -> str:
    """Returns Complete or Failed for a Job that has ended; empty if it has not.

    status: status with the current numbers. active: number of pods that have not ended.
    """
    spec = source.at("spec")
    if part.note:
        return ""
    if status["failed"] > spec.count("backoffLimit", _BACKOFF_LIMIT):
        return "Failed"
    if spec.has("completions") or not spec.has("parallelism"):
        return "Complete" if status["succeeded"] >= spec.count("completions", 1) else ""
    return "Complete" if status["succeeded"] and not active else ""


def _wire(pod: Pod, role: Role) -> Object:
    """Returns a pod as its controller would send it, without a name, which the server generates.

    It is the template as written in the manifest, with the differences that the typed pod has.
    """
    base = role.template.pod
    assert base is not None
    meta, raw = pod.metadata, role.template.raw
    index = index_in(meta, JOB_COMPLETION_INDEX)
    owner = _owner(meta.owner_references[0])
    return {
        "metadata": {
            **(raw.get("metadata") or {}),
            "generateName": f"{owner['name']}-" if index is None else f"{owner['name']}-{index}-",
            "namespace": meta.namespace,
            "labels": dict(meta.labels),
            "annotations": dict(meta.annotations),
            "ownerReferences": [owner],
        },
        "spec": rewritten(raw["spec"], base.spec, pod.spec),
    }
