# SPDX-License-Identifier: Apache-2.0
"""Random lives of LeaderWorkerSets and of PyTorchJobs in virtual time: `workloadlives` has those of Jobs and JobSets.

Their controllers are played here: groups that are made again as a whole when one of their pods fails or goes, rolling
updates with and without maxSurge, workers that come once their leader is Ready; replicas that succeed, and jobs that
end with their master.

`python -m tests.engine.grouplives --seeds 0-2000` runs many.
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.engine.live import pod
from tests.engine.lives import ending, phase_of
from tests.engine.manifests import Manifest
from tests.engine.workloadlives import SLOTS, Work, WorkloadLives, main, template

LWS, PYTORCH, SETS = "leaderworkersets.leaderworkerset.x-k8s.io", "pytorchjobs.kubeflow.org", "statefulsets.apps"
OF_SET, OF_JOB = "leaderworkerset.sigs.k8s.io/", "training.kubeflow.org/"


@dataclass
class Fleet(Work):
    """A LeaderWorkerSet of groups of `size`, or a PyTorchJob of a master and `size` workers."""

    replicas: int = 2
    surge: int = 0
    revision: int = 0
    trains: bool = False
    """Whether it is a PyTorchJob."""

    @property
    def jobs(self) -> dict[str, tuple[str, int, int]]:
        return {}


@dataclass(frozen=True)
class Seat:
    """A pod that a controller makes."""

    name: str
    run: str
    role: str
    labels: tuple[tuple[str, str], ...]


class GroupLives(WorkloadLives):
    """One history."""

    acts: ClassVar[dict[str, float]] = {
        "succeed": 2.0, "fail": 3.0, "delete": 3.0, "drain": 1.0, "uncordon": 1.0, "scale": 2.0, "roll": 3.0,
        "suspend": 1.0, "resume": 1.5, "remake": 1.2, "retire": 0.6, "kill": 0.6, "wait": 3.0,
    }  # fmt: skip
    kinds = ("LeaderWorkerSet", "PyTorchJob")
    more_nodes = 12

    def prepare(self) -> None:
        """Machines, and one or two workloads."""
        self.serve("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")
        self.serve("kubeflow.org", "v1", "PyTorchJob")
        self.make_nodes()
        for name in ("a", "b")[: self.dice.choice((1, 2, 2))]:
            work = Fleet(name, self.dice.randint(2, 3), replicas=self.dice.randint(1, 2))
            work.trains = self.dice.random() < 0.4
            work.stepwise = not work.trains and self.dice.random() < 0.4
            work.surge = self.dice.choice((0, 1))
            self.works.append(work)
            self._create(work)

    def _shelf(self, work: Fleet) -> str:
        return PYTORCH if work.trains else LWS

    def _spec_of(self, work: Fleet) -> Manifest:
        if work.trains:
            replicas = {"Master": 1, "Worker": work.size}
            specs = {name: {"replicas": n, "template": template()} for name, n in replicas.items()}
            return {"pytorchReplicaSpecs": specs, "runPolicy": {"suspend": work.suspended}}
        policy = {"startupPolicy": "LeaderReady"} if work.stepwise else {}
        inner = {"size": work.size, "workerTemplate": template()}
        return {"replicas": work.replicas, "leaderWorkerTemplate": inner, **policy}

    def _create(self, work: Work) -> None:
        assert isinstance(work, Fleet)
        body = {"metadata": {"name": work.name, "namespace": "default"}, "spec": self._spec_of(work)}
        work.uid = self.cluster.server.store.create(self._shelf(work), body)["metadata"]["uid"]

    def _object(self, work: Fleet) -> Manifest:
        found: Manifest = self.cluster.server.store.get(self._shelf(work), work.name, "default")
        return found

    def _pods(self, work: Work) -> list[Manifest]:
        mine = f"{work.uid}/"
        return [one for one in self.cluster.pods().values() if one["metadata"]["labels"]["run"].startswith(mine)]

    # -- what controllers want ----------------------------------------------------------------------------------------

    def _is_over(self, work: Fleet) -> bool:
        return bool(self._object(work).get("status", {}).get("conditions"))

    def _seats(self, work: Fleet) -> list[Seat]:
        """All pods that may be made now, in order; of groups those of the revision that they have or are to have."""
        if work.trains:
            if work.suspended or self._is_over(work):
                return []
            names = ["master-0", *(f"worker-{i}" for i in range(work.size))]
            return [self._replica(work, name) for name in names]
        out: list[Seat] = []
        for i, revision in self._groups(work).items():
            for j in range(work.size):
                labels = {"name": work.name, "group-index": str(i), "group-key": f"{work.name}-{i}"}
                labels |= {"worker-index": str(j), "template-revision-hash": str(revision)}
                role = "" if not work.stepwise else "workers" if j else "leader"
                name = f"{work.name}-{i}-{j}" if j else f"{work.name}-{i}"
                marks = tuple((OF_SET + key, value) for key, value in labels.items())
                out.append(Seat(name, f"{work.uid}/{i}/{revision}", role, marks))
        return out

    def _replica(self, work: Fleet, name: str) -> Seat:
        role, _, index = name.partition("-")
        labels = {"job-name": work.name, "replica-type": role, "replica-index": index}
        marks = tuple((OF_JOB + key, value) for key, value in labels.items())
        return Seat(f"{work.name}-{name}", f"{work.uid}/", role, marks)

    def _groups(self, work: Fleet) -> dict[int, int]:
        """Group -> revision: one group at a time is of the new one, with maxSurge in a group more."""
        there = {int(one["metadata"]["labels"][OF_SET + "group-index"]): one for one in self._pods(work)}
        revision = OF_SET + "template-revision-hash"
        has = {i: int(one["metadata"]["labels"][revision]) for i, one in there.items()}
        old = [i for i in range(work.replicas) if has.get(i, work.revision) != work.revision]
        groups = {i: has.get(i, work.revision) for i in range(work.replicas)}
        if old and work.surge:
            groups[work.replicas] = has.get(work.replicas, work.revision)
        return groups

    def _update(self, work: Fleet) -> None:
        """The next group of an old revision goes, once all others are Ready."""
        groups = self._groups(work)
        old = [i for i in sorted(groups) if groups[i] != work.revision]
        if not old:
            return
        alive = {one["metadata"]["name"] for one in self._pods(work) if phase_of(one) == "Running" and not ending(one)}
        if all(seat.name in alive for seat in self._seats(work)):
            self._end_group(work, old[-1])

    def _end_group(self, work: Fleet, group: int) -> None:
        for one in self._pods(work):
            if one["metadata"]["labels"][OF_SET + "group-index"] == str(group) and not ending(one):
                self._end(one)

    # -- controllers --------------------------------------------------------------------------------------------------

    def _reconcile(self, work: Work) -> None:
        assert isinstance(work, Fleet)
        if work.trains:
            self._tell_replicas(work)
        seats = {seat.name: seat for seat in self._seats(work)}
        pods = {one["metadata"]["name"]: one for one in self._pods(work)}
        for name, one in pods.items():
            gone = name not in seats or phase_of(one) == "Failed"
            keeps = phase_of(one) == "Succeeded" and (name in seats or self._is_over(work))
            if gone and not keeps and not ending(one):
                self._end(one)
        if not work.trains:
            uids = {one["metadata"]["uid"] for one in pods.values()}
            sets = {one["metadata"]["uid"]: one for one in self.cluster.server.store.list(SETS)}
            for one in pods.values():
                # a group lives and dies as a whole, and workers with their leader
                above = sets.get(one["metadata"]["ownerReferences"][0]["uid"], one)["metadata"]["ownerReferences"][0]
                alone = above["kind"] == "StatefulSet" or (above["kind"] == "Pod" and above["uid"] not in uids)
                if alone or ending(one) or phase_of(one) == "Failed":
                    self._end_group(work, int(one["metadata"]["labels"][OF_SET + "group-index"]))
            self._update(work)
        taken = {one["metadata"]["name"] for one in self.cluster.pods().values()}
        number = self.dice.choice((1, 1, 2, 9))
        for seat in [seat for seat in seats.values() if seat.name not in taken and self._may_be_made(work, seat)][
            :number
        ]:
            self._make_seat(work, seat)
        self._look_at(work)

    def _may_be_made(self, work: Fleet, seat: Seat) -> bool:
        """Workers come after their leader; with LeaderReady once it runs."""
        index = dict(seat.labels).get(OF_SET + "worker-index", "0")
        if index == "0":
            return True
        leader = self.cluster.pods().get(seat.name.rpartition("-")[0])
        return leader is not None and not ending(leader) and (not work.stepwise or phase_of(leader) == "Running")

    def _make_seat(self, work: Fleet, seat: Seat) -> None:
        made = pod(seat.name, gpus=4 // SLOTS, cpu="0", memory="1Mi")
        made["metadata"]["labels"] = {"run": seat.run, "role": seat.role, **dict(seat.labels)}
        made["spec"]["terminationGracePeriodSeconds"] = 1
        if work.trains:
            owner = self._reference("kubeflow.org/v1", "PyTorchJob", self._object(work))
        else:
            owner = self._of_group(work, seat)
            made["metadata"]["annotations"] = {OF_SET + "size": str(work.size)}
        made["metadata"]["ownerReferences"] = [owner]
        self.cluster.create(made)

    @staticmethod
    def _reference(version: str, kind: str, obj: Manifest) -> dict[str, Any]:
        named = {name: obj["metadata"][name] for name in ("name", "uid")}
        return {"apiVersion": version, "kind": kind, **named, "controller": True}

    def _of_group(self, work: Fleet, seat: Seat) -> dict[str, Any]:
        """The StatefulSet of leaders, or that of the workers of a leader, which goes with it."""
        leader = seat.name.rpartition("-")[0]
        name, above = work.name, self._reference("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", self._object(work))
        if dict(seat.labels)[OF_SET + "worker-index"] != "0":
            name, above = leader, self._reference("v1", "Pod", self.cluster.pods()[leader])
        sets = {one["metadata"]["name"]: one for one in self.cluster.server.store.list(SETS)}
        known = sets.get(name)
        if known is not None and known["metadata"]["ownerReferences"] != [above]:
            self.cluster.server.store.remove(SETS, name, "default")
            known = None
        if known is None:
            meta = {"name": name, "namespace": "default", "ownerReferences": [above]}
            known = self.cluster.server.store.create(SETS, {"metadata": meta, "spec": {"template": template()}})
        return self._reference("apps/v1", "StatefulSet", known)

    def _tell_replicas(self, work: Fleet) -> None:
        done = dict.fromkeys(("master", "worker"), 0)
        for one in self._pods(work):
            done[one["metadata"]["labels"]["role"]] += phase_of(one) == "Succeeded"
        told = {name.capitalize(): {"succeeded": n} for name, n in done.items() if n}
        over = [{"type": "Succeeded", "status": "True"}] if done["master"] or self._is_over(work) else []
        status = {"replicaStatuses": told, **({"conditions": over} if over else {})}
        if status != (self._object(work).get("status") or {"replicaStatuses": {}}):
            self.cluster.server.store.update(
                PYTORCH, work.name, lambda old: {**old, "status": status}, namespace="default", status=True
            )

    def _look_at(self, work: Work) -> None:
        assert isinstance(work, Fleet)
        pods = self._pods(work)
        wanted: dict[tuple[str, str], int] = {}
        for seat in self._seats(work):
            done = any(one["metadata"]["name"] == seat.name and phase_of(one) == "Succeeded" for one in pods)
            wanted[seat.run, seat.role] = wanted.get((seat.run, seat.role), 0) + (not done)
        for role, number in wanted.items():
            alive = [one for one in self._of(*role) if phase_of(one) in ("Pending", "Running") and not ending(one)]
            self.saw(role, len(alive), number)

    # -- acts ---------------------------------------------------------------------------------------------------------

    def _spec_changes(self, work: Fleet) -> None:
        spec = self._spec_of(work)
        self.cluster.server.store.update(
            self._shelf(work), work.name, lambda old: {**old, "spec": spec}, namespace="default"
        )

    def do_succeed(self, work: Work) -> bool:
        assert isinstance(work, Fleet)
        return work.trains and super().do_succeed(work)

    def do_scale(self, work: Work) -> bool:
        assert isinstance(work, Fleet)
        if work.trains:
            work.size = self.dice.randint(1, 4)
        else:
            work.replicas = self.dice.randint(1, 3)
        self._spec_changes(work)
        return True

    def do_roll(self, work: Work) -> bool:
        """A LeaderWorkerSet gets another template."""
        assert isinstance(work, Fleet)
        if work.trains:
            return False
        work.revision += 1
        return True

    def _suspend(self, work: Work, suspended: bool) -> None:
        assert isinstance(work, Fleet)
        if work.trains and work.suspended != suspended:
            work.suspended = suspended
            self._spec_changes(work)

    def do_remake(self, work: Work) -> None:
        assert isinstance(work, Fleet)
        for one in self._pods(work):
            if not ending(one):
                self._end(one)
        self.cluster.server.store.remove(self._shelf(work), work.name, "default")
        work.revision = 0
        self._create(work)

    def _missing(self, work: Work) -> list[str]:
        assert isinstance(work, Fleet)
        pods = self.cluster.pods()
        wants = [seat.name for seat in self._seats(work)]
        there = [one for name in wants if (one := pods.get(name)) is not None and not ending(one)]
        runs = [one for one in there if phase_of(one) in ("Running", "Succeeded")]
        if len(runs) != len(wants):
            return [f"{work.name}: {len(runs)} run, {len(wants)} wanted"]
        old = not work.trains and set(self._groups(work).values()) != {work.revision}
        return [f"{work.name}: the update has not ended"] if old else []


if __name__ == "__main__":
    sys.exit(main(GroupLives))
