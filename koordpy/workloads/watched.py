"""Workloads as the API server shows them, one after the other.

A JobSet is read together with its Jobs; where JobSets may not be read, their Jobs tell of them. What cannot change a
gang is let go: of pod templates all but their metadata and scheduler, of a status all but what is counted by.
Sources: workloads.md 4, 5.1 and 11.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec import json

from koordpy.workloads.book import DerivedBook
from koordpy.workloads.kinds.jobsets import jobset_by_jobs, read_jobset
from koordpy.workloads.kinds.registry import WorkloadKind
from koordpy.workloads.model import Workload
from koordpy.workloads.source import Head, Source, head_of

JOBSET = "JobSet"
COUNTED = ("succeeded", "failedIndexes", "completedIndexes", "restarts", "updateRevision")
"""Fields of a status that decide how many pods are wanted, and which run they are of."""


class WatchedWorkloads:
    """Objects in, workloads on to a book: those of JobSets with the next `flush`."""

    def __init__(self, book: DerivedBook) -> None:
        self._book = book
        self.watched: frozenset[str] = frozenset()
        """Kinds that can be read."""
        self._seen: dict[str, bytes] = {}
        """uid -> digest of what was read of the object."""
        self._jobsets: dict[str, tuple[Source, Head]] = {}
        self._jobs: dict[str, dict[str, tuple[Source, Head]]] = {}
        """uid of a JobSet -> its Jobs by uid."""
        self._owner: dict[str, str] = {}
        """Job -> its JobSet, by uid."""
        self._stale: set[str] = set()
        """JobSets that are to be read anew, or whose Jobs are."""

    def put(
        self, kind: WorkloadKind, meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]
    ) -> bool:
        """Takes an object as it is now; False where nothing changed that counts.

        One that is being deleted counts as gone: its controller makes nothing more.
        """
        uid = str(meta.get("uid"))
        if meta.get("deletionTimestamp"):
            return self.drop(uid)
        raw = {
            "apiVersion": f"{kind.group}/{kind.versions[0]}" if kind.group else kind.versions[0],
            "kind": kind.kind,
            "metadata": {name: meta[name] for name in _META if name in meta},
            "spec": _slim(spec),
            "status": _counted(status),
        }
        said = sha256(json.encode(raw)).digest()
        if self._seen.get(uid) == said:
            return False
        self._seen[uid] = said
        source = Source(raw)
        head = head_of(source)
        if kind.kind == JOBSET:
            self._jobsets[uid] = source, head
            self._stale.add(uid)
            return True
        if kind.kind == "Job":
            self._put_job(uid, source, head)
        self._book.put_workload(kind.read(source, head))
        return True

    def _put_job(self, uid: str, source: Source, head: Head) -> None:
        self._leave(uid)
        owner = head.owner
        if owner is not None and owner.kind == JOBSET:
            self._owner[uid] = owner.uid
            self._jobs.setdefault(owner.uid, {})[uid] = source, head
            self._stale.add(owner.uid)

    def _leave(self, uid: str) -> None:
        jobset = self._owner.pop(uid, None)
        if jobset is not None:
            jobs = self._jobs[jobset]
            del jobs[uid]
            if not jobs:
                del self._jobs[jobset]
            self._stale.add(jobset)

    def drop(self, uid: str) -> bool:
        """Forgets an object; whether it was known."""
        if self._seen.pop(uid, None) is None:
            return False
        if self._jobsets.pop(uid, None) is not None:
            self._stale.add(uid)
        else:
            self._leave(uid)
            self._book.drop_workload(uid)
        return True

    def watch(self, kinds: frozenset[str]) -> None:
        """Takes which kinds can be read now."""
        if (JOBSET in kinds) != (JOBSET in self.watched):
            self._stale.update(self._jobs)
        self.watched = kinds

    @property
    def is_due(self) -> bool:
        """Whether a `flush` has something to do."""
        return bool(self._stale)

    def flush(self) -> None:
        """Reads the JobSets anew of which something changed, each once."""
        for uid in self._stale:
            workload = self._jobset(uid)
            if workload is None:
                self._book.drop_workload(uid)
            else:
                self._book.put_workload(workload)
        self._stale.clear()

    def _jobset(self, uid: str) -> Workload | None:
        jobs = self._jobs.get(uid, {})
        by_name = {(head.namespace, head.name): source for source, head in jobs.values()}
        if (known := self._jobsets.get(uid)) is not None:
            return read_jobset(*known, by_name)
        if JOBSET in self.watched or not jobs:
            return None
        _, first = next(iter(jobs.values()))
        assert first.owner is not None
        source = Source(jobset_by_jobs(first.owner, first.namespace, [source for source, _ in jobs.values()]))
        if not source.at("spec").list("replicatedJobs"):
            return None
        return read_jobset(source, head_of(source, created=first.created), by_name)


_META = ("name", "namespace", "uid", "creationTimestamp", "labels", "annotations", "ownerReferences")


def _slim(value: Any) -> Any:
    """A spec without what its pods' containers are."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            kept: dict[str, Any] = {"containers": [{}] if value["containers"] else []}
            return {**kept, "schedulerName": value["schedulerName"]} if "schedulerName" in value else kept
        return {name: _slim(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_slim(part) for part in value]
    return value


def _counted(status: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: status[name] for name in COUNTED if name in status}
    found["conditions"] = list(_conditions(status))
    roles = status.get("replicatedJobsStatus")
    if isinstance(roles, list):
        names = ("name", "succeeded", "failed")
        found["replicatedJobsStatus"] = [
            {name: one[name] for name in names if name in one} for one in roles if isinstance(one, Mapping)
        ]
    replicas = status.get("replicaStatuses")
    if isinstance(replicas, Mapping):
        found["replicaStatuses"] = {
            name: {"succeeded": one["succeeded"]}
            for name, one in replicas.items()
            if isinstance(one, Mapping) and "succeeded" in one
        }
    return found


def _conditions(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    conditions = status.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and one.get("status") == "True":
            yield {"type": one.get("type"), "status": "True"}
