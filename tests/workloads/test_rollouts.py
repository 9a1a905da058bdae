# SPDX-License-Identifier: Apache-2.0
"""Rolling updates of gangs: new pods start one by one beside the old, and a fresh start still waits for the minimum."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

import pytest

from koordpy.cli.main import main
from tests.workloads.cluster import MIN, Answer, Json, nodes, simulate, template, workload

DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u-web", "controller": True}
ROLLOUT = {**DEPLOYMENT, "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
CONFIG = {**DEPLOYMENT, "apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig"}


def least(number: int | None) -> Json:
    return {MIN: str(number)} if number is not None else {}


def replica_set(
    name: str, replicas: int, minimum: int | None = 2, *, owner: Json | None = DEPLOYMENT, born: int = 0, **more: Any
) -> Json:
    """A ReplicaSet of `app: web`, born so many minutes after the first hour of the year."""
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web", "hash": name}},
        "template": template(least(minimum), {"app": "web", "hash": name}),
    }
    meta: Json = {
        "uid": f"u-{name}",
        "creationTimestamp": f"2026-01-01T00:{born:02}:00Z",
        "ownerReferences": [owner] if owner else [],
        "annotations": more.get("notes", {}),
    }
    if more.get("kind") == "ReplicationController":
        spec["selector"] = {"app": "web", "hash": name}
        return workload("v1", "ReplicationController", name, spec, meta=meta)
    return workload("apps/v1", "ReplicaSet", name, spec, meta=meta)


def pods(
    of: str, count: int, *, on: int | None = None, minimum: int | None = 2, kind: str = "ReplicaSet", mark: int = 0
) -> list[Json]:
    """Pods of a ReplicaSet, on nodes from a number on, or waiting; mark: how many were bound together."""
    api = "apps/v1" if kind == "ReplicaSet" else "v1"
    reference = {"apiVersion": api, "kind": kind, "name": of, "uid": f"u-{of}", "controller": True}
    notes = least(minimum)
    if mark:
        prefix = "internal.scheduling.koordinator.sh/bind-gang-"
        notes |= {f"{prefix}group-id": f"default/{of}", f"{prefix}member-count": str(mark)}
    made = template(notes, {"app": "web", "hash": of})
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{of}-{i}", "ownerReferences": [reference], **made["metadata"]},
            "spec": {**made["spec"], **({"nodeName": f"n{on + i}"} if on is not None else {})},
            "status": {"phase": "Running" if on is not None else "Pending"},
        }
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("room", "objects", "bound", "gangs"),
    [
        pytest.param(
            3,
            [replica_set("old", 2), replica_set("new", 1, born=1), *pods("old", 2, on=0), *pods("new", 1)],
            {"new-0"},
            {"old": (2, 3)},
            id="surge",
        ),
        pytest.param(
            5,
            [
                *(replica_set("old", 3, 4), replica_set("new", 2, 4, born=1)),
                *(*pods("old", 3, on=0, minimum=4), *pods("new", 2, minimum=4)),
            ],
            {"new-0", "new-1"},
            {"old": (4, 5)},
            id="surge and unavailable",
        ),
        pytest.param(
            4,
            [
                *(replica_set("old", 3, 4), replica_set("new", 2, 4, born=1)),
                *(*pods("old", 3, on=0, minimum=4), *pods("new", 2, minimum=4)),
            ],
            {"new-0"},
            {"old": (4, 4)},
            id="room for the hole alone",
        ),
        pytest.param(
            2,
            [replica_set("old", 1), replica_set("new", 1, born=1), *pods("old", 1, on=0), *pods("new", 1)],
            {"new-0"},
            {"old": (2, 2)},
            id="unavailable",
        ),
        pytest.param(
            3,
            [replica_set("old", 0), replica_set("new", 2, born=1), *pods("new", 2)],
            {"new-0", "new-1"},
            {"new": (2, 2)},
            id="recreate",
        ),
        pytest.param(
            1,
            [replica_set("old", 0), replica_set("new", 2, born=1), *pods("new", 2)],
            set[str](),
            {"new": (2, 0)},
            id="recreate without room",
        ),
        pytest.param(
            4,
            [
                *(replica_set("a", 1), replica_set("b", 1, born=1), replica_set("c", 1, born=2)),
                *(*pods("a", 1, on=0), *pods("b", 1, on=1), *pods("c", 1)),
            ],
            {"c-0"},
            {"a": (2, 3)},
            id="several old ones",
        ),
        pytest.param(
            3,
            [
                replica_set("first", 1, notes={"deployment.kubernetes.io/revision": "3"}),
                replica_set("second", 2, born=1, notes={"deployment.kubernetes.io/revision": "2"}),
                *(*pods("second", 2, on=0), *pods("first", 1)),
            ],
            {"first-0"},
            {"first": (2, 3)},
            id="rollback",
        ),
        pytest.param(
            3,
            [replica_set("only", 3), *pods("only", 1, on=0), *pods("only", 3)[1:]],
            {"only-1", "only-2"},
            {"only": (2, 3)},
            id="scaled up",
        ),
        pytest.param(
            2,
            [replica_set("only", 2, 9), *pods("only", 2, minimum=9)],
            {"only-0", "only-1"},
            {"only": (2, 2)},
            id="a minimum above the replicas",
        ),
        pytest.param(
            3,
            [
                *(replica_set("old", 2, None), replica_set("new", 1, born=1)),
                *(*pods("old", 2, on=0, minimum=None), *pods("new", 1)),
            ],
            {"new-0"},
            {"old": (2, 3)},
            id="becomes a gang",
        ),
        pytest.param(
            3,
            [
                *(replica_set("old", 2), replica_set("new", 1, None, born=1)),
                *(*pods("old", 2, on=0), *pods("new", 1, minimum=None)),
            ],
            {"new-0"},
            {"old": (2, 3)},
            id="is a gang no more",
        ),
        pytest.param(
            2,
            [replica_set("old", 0), replica_set("new", 2, None, born=1), *pods("new", 1, minimum=None)],
            {"new-0"},
            {},
            id="was a gang",
        ),
        pytest.param(
            1,
            [
                *(replica_set("one", 1, owner=None), replica_set("two", 2, owner=None, born=1)),
                *(*pods("one", 1, on=0), *pods("two", 2)),
            ],
            set[str](),
            {"one": (1, 1), "two": (2, 0)},
            id="two that nobody rolls",
        ),
    ],
)
@pytest.mark.parametrize("owner", [DEPLOYMENT, ROLLOUT, CONFIG], ids=["Deployment", "Rollout", "DeploymentConfig"])
def test_a_rollout_is_one_gang(
    tmp_path: Path,
    room: int,
    objects: list[Json],
    bound: set[str],
    gangs: dict[str, tuple[int, int]],
    owner: Json,
) -> None:
    """gangs: name -> (minimum, bound in the end)."""
    objects = [_of(one, owner) for one in objects]
    answer = simulate(tmp_path, *nodes(room), *objects)
    given = {one["metadata"]["name"] for one in objects if one["kind"] == "Pod"}
    assert set(answer.bound) & given == bound, answer.document["pending"]
    assert {name: (one["minMember"], one["bound"]) for name, one in answer.gangs.items()} == gangs


def _of(one: Json, owner: Json) -> Json:
    """The same object of another kind of owner, with ReplicationControllers below a DeploymentConfig."""
    meta, kind = one["metadata"], one["kind"]
    references = [owner if reference["uid"] == "u-web" else reference for reference in meta["ownerReferences"]]
    if owner is not CONFIG:
        return {**one, "metadata": {**meta, "ownerReferences": references}}
    if kind == "Pod":
        references = [{**one, "apiVersion": "v1", "kind": "ReplicationController"} for one in references]
        return {**one, "metadata": {**meta, "ownerReferences": references}}
    spec = {**one["spec"], "selector": one["spec"]["selector"]["matchLabels"]}
    made = {**one, "apiVersion": "v1", "kind": "ReplicationController", "spec": spec}
    return {**made, "metadata": {**meta, "ownerReferences": references}}


def test_pods_beyond_what_a_replica_set_wants_wait(tmp_path: Path) -> None:
    objects = [replica_set("old", 1), replica_set("new", 1, born=1), *pods("old", 3, on=0)[:2], *pods("new", 2)]
    answer = simulate(tmp_path, *nodes(5), *objects)
    assert answer.bound == ["new-0"]
    text = "gang default/new@beyond: ReplicaSet new wants 1 pod, and there are more"
    assert answer.message("new-1") == text


@pytest.mark.parametrize(
    ("old", "new", "owner", "said"),
    [
        (2, 1, DEPLOYMENT, "3 members of ReplicaSets of Deployment web"),
        (2, 1, ROLLOUT, "3 members of ReplicaSets of Rollout web"),
        (2, 0, DEPLOYMENT, "2 members of ReplicaSet old"),
        (0, 2, DEPLOYMENT, "2 members of ReplicaSet new"),
    ],
)
def test_the_gang_of_a_rollout_names_the_owner_of_its_replica_sets(
    tmp_path: Path, old: int, new: int, owner: Json, said: str
) -> None:
    sets = [replica_set("old", old, owner=owner), replica_set("new", new, owner=owner, born=1)]
    answer = simulate(tmp_path, *nodes(4), *sets, *pods("old", old, on=0), *pods("new", new))
    assert [one["origin"].partition(", at least")[0] for one in answer.gangs.values()] == [said]


@pytest.mark.parametrize(
    ("wanted", "stands", "new", "gone"),
    [
        (3, 3, 1, False),  # the rollout took one
        (3, 2, 1, True),  # one of the others is lost
        (4, 3, 0, True),
    ],
)
def test_pods_that_a_rollout_takes_are_not_lost(
    tmp_path: Path, wanted: int, stands: int, new: int, *, gone: bool
) -> None:
    old = pods("old", stands, on=0, minimum=4, mark=4)
    objects = [replica_set("old", wanted, 4), replica_set("new", new, 4, born=1), *old, *pods("new", 2, minimum=4)]
    config = {"staleGangs": {"enabled": True, "grace": "0s"}}
    answer = simulate(tmp_path, *nodes(stands), *objects, config=config)
    assert bool(answer.document["evictions"]) is gone, answer.document


@pytest.mark.parametrize(
    ("old", "new", "gpu", "said"),
    [
        (1, 1, 0, "; pod default/old-0 of ReplicaSet old uses the capacity"),
        (2, 2, 0, "; pod default/old-0 of ReplicaSet old uses the capacity"),
        (1, 1, 1, ""),  # no node has what the new template asks for
        (0, 2, 0, ""),  # a fresh start
    ],
)
def test_a_rollout_without_spare_room_names_the_old_pod_that_holds_it(
    tmp_path: Path, old: int, new: int, gpu: int, said: str
) -> None:
    created = replica_set("new", new, born=1)
    made = [*pods("new", new)]
    for one in made:
        one["spec"] = template(gpu=gpu)["spec"]
    answer = simulate(tmp_path, *nodes(max(1, old)), replica_set("old", old), created, *pods("old", old, on=0), *made)
    assert answer.pending == [f"new-{i}" for i in range(new)]
    for name in answer.pending:
        assert (said in answer.message(name)) if said else "uses the capacity" not in answer.message(name)


@pytest.mark.parametrize(
    ("minimum", "old", "new", "on", "gpu", "said"),
    [
        (2, 2, 1, None, 2, True),  # the first template asks for more than any node has
        (4, 3, 2, None, 2, True),
        (2, 2, 2, None, 2, False),  # maxSurge 100%: the new pods are the minimum, and start
        (2, 2, 1, None, 1, False),  # the old template fits: room would help
        (2, 1, 1, 0, 2, False),  # an old pod runs: the new one starts beside it
        (2, 0, 2, None, 2, False),  # no old pod is left
    ],
)
def test_a_rollout_that_waits_for_an_old_pod_that_fits_no_node_names_it(
    tmp_path: Path, minimum: int, old: int, new: int, on: int | None, gpu: int, *, said: bool
) -> None:
    old_pods = pods("old", old, on=on, minimum=minimum)
    for one in old_pods:
        one["spec"] = {**one["spec"], **template(gpu=gpu)["spec"]}
    sets = [replica_set("old", old, minimum), replica_set("new", new, minimum, born=1)]
    room = new + (on is not None) - (gpu == 1)
    answer = simulate(tmp_path, *nodes(max(1, room), gpu=1), *sets, *old_pods, *pods("new", new, minimum=minimum))
    names = [f"new-{i}" for i in range(new)]
    text = (
        "no node could take pod default/old-0 of ReplicaSet old, and the rollout creates fewer new pods than the "
        "minimum while this ReplicaSet has replicas"
    )
    if said:
        assert answer.bound == []
        assert all(answer.message(name).endswith(f"{text}.") for name in names)
        with redirect_stdout(io.StringIO()) as out:
            main(["explain", "-f", str(tmp_path / "in.yaml"), "--pod", "default/new-0", "-o", "json"])
        explanation = json.loads(out.getvalue())
        assert explanation["message"].endswith(f"{text}.")
        assert not any("slot" in miss for miss in explanation["wouldFitIf"])
    else:
        assert gpu == 1 or set(names) <= set(answer.bound)
        assert not any(text in answer.message(name) for name in answer.pending)


class Controller:
    """What a Deployment's controller does, round by round, as of RollingUpdate."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.replicas = random.randint(1, 4)
        self.minimum = random.randint(1, 5)
        self.surge = random.randint(0, 2)
        self.unavailable = random.randint(0 if self.surge else 1, 2)
        self.sets: dict[str, int] = {"v0": self.replicas}
        """Replicas, the newest last."""
        self.pods: dict[str, int | None] = {}
        """Pod -> its node."""
        self.made = 0

    @property
    def newest(self) -> str:
        return list(self.sets)[-1]

    def of(self, name: str, *, ready: bool | None = None) -> list[str]:
        own = [pod for pod in self.pods if pod.startswith(f"{name}-")]
        return [pod for pod in own if ready is None or (self.pods[pod] is not None) is ready]

    def template_changes(self) -> None:
        """A new revision, or a rollback to an old one."""
        if len(self.sets) > 1 and self.random.random() < 0.3:
            old = self.random.choice(list(self.sets)[:-1])
            self.sets[old] = self.sets.pop(old)
        else:
            self.sets[f"v{len(self.sets)}"] = 0

    def act(self) -> None:
        total, new = sum(self.sets.values()), self.newest
        if self.sets[new] < self.replicas:
            self.sets[new] += max(0, min(self.replicas + self.surge - total, self.replicas - self.sets[new]))
        elif self.sets[new] > self.replicas:
            self.sets[new] = self.replicas
        running = sum(node is not None for node in self.pods.values())
        for old in list(self.sets)[:-1]:
            waiting = min(self.sets[old], len(self.of(old, ready=False)))
            self.sets[old] -= waiting
            spare = max(0, running - (self.replicas - self.unavailable))
            down = min(spare, self.sets[old])
            self.sets[old] -= down
            running -= down
        for name, wanted in self.sets.items():
            own = sorted(self.of(name), key=lambda pod: self.pods[pod] is None)
            for pod in own[wanted:]:
                del self.pods[pod]
            for _ in range(wanted - len(own)):
                self.made += 1
                self.pods[f"{name}-{self.made}"] = None

    def objects(self) -> list[Json]:
        found = []
        for i, (name, wanted) in enumerate(self.sets.items()):
            prefix = "deployment.kubernetes.io/"
            notes = {f"{prefix}revision": str(i + 1), f"{prefix}desired-replicas": str(self.replicas)}
            found.append(replica_set(name, wanted, self.minimum, born=int(name[1:]), notes=notes))
            for pod in self.of(name):
                (made,) = pods(name, 1, on=self.pods[pod], minimum=self.minimum)
                found.append({**made, "metadata": {**made["metadata"], "name": pod}})
        return found

    @property
    def is_done(self) -> bool:
        return len(self.of(self.newest, ready=True)) == self.replicas == len(self.pods)


@pytest.mark.parametrize("seed", range(24))
def test_random_rollouts_end_where_there_is_room(tmp_path: Path, seed: int) -> None:
    """Nothing is evicted; a fresh gang starts with its minimum or not at all; beside members that run a new pod starts
    wherever there is room; with room for the surge every rollout ends."""
    random = Random(seed)
    controller = Controller(random)
    room = max(1, controller.replicas + random.randint(-1, controller.surge))
    enough = room >= controller.replicas + (0 if controller.unavailable else 1)
    for step in range(30):
        if step in (8, 11):
            controller.template_changes()
        controller.act()
        answer = round_of(tmp_path, room, controller)
        before = sum(node is not None for node in controller.pods.values())
        need = min(controller.minimum, controller.replicas, sum(controller.sets.values()))
        after = before + len(answer.bound)
        assert not answer.document["evictions"]
        assert before or not after or after >= need
        if before >= need:
            assert after == min(room, len(controller.pods)), (controller.sets, controller.pods)
        free = [i for i in range(room) if i not in controller.pods.values()]
        controller.pods |= dict(zip(answer.bound, free, strict=False))
    assert not enough or controller.is_done, (controller.sets, controller.pods)


def round_of(folder: Path, room: int, controller: Controller) -> Answer:
    return simulate(folder, *nodes(room), *controller.objects())
