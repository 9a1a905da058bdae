# SPDX-License-Identifier: Apache-2.0
"""Rounds of a simulation: plan, evict, bind, until nothing changes; everything in the contract's order."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import Eviction, GangReport, GangStatus, PendingPod, Placement, Proof, RoundPlan
from koordpy.simulation.result_fields import object_order
from koordpy.simulation.simulated_rounds import Evicted, SimulationResult, simulate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GANG = "pod-group.scheduling.sigs.k8s.io"


def pod(name: str, *, node: str = "", gang: str = "", scheduler: str = "koord-scheduler", second: int = 0) -> Pod:
    meta = ObjectMeta(
        name=name,
        namespace="default",
        uid=f"uid-{name}",
        creation_timestamp=f"2025-12-31T23:59:{second:02}Z",
        labels={GANG: gang} if gang else {},
    )
    return Pod(metadata=meta, spec=PodSpec(node_name=node, scheduler_name=scheduler, containers=[Container(name="c")]))


def cluster(*pods: Pod) -> ClusterState:
    state = make_state()
    for name in ("n1", "n2"):
        state.upsert(Node(metadata=ObjectMeta(name=name), status=NodeStatus(allocatable={"cpu": "4", "pods": "110"})))
    for item in pods:
        state.upsert(item)
    return state


def plan(
    *,
    bind: Mapping[str, str] | None = None,
    evict: tuple[tuple[str, str, str], ...] = (),
    pending: tuple[str, ...] = (),
    gangs: tuple[GangReport, ...] = (),
    warnings: tuple[tuple[str, str], ...] = (),
) -> RoundPlan:
    """A round's plan; evict: (pod, node, rule)."""
    return RoundPlan(
        placements=tuple(
            Placement(f"default/{name}", f"uid-{name}", node, name, {"b": node, "a": "1"})
            for name, node in (bind or {}).items()
        ),
        evictions=tuple(Eviction(f"default/{name}", f"uid-{name}", node, rule, None) for name, node, rule in evict),
        pending=tuple(PendingPod(f"default/{name}", name, None, Reason.UNSCHEDULABLE, "no room") for name in pending),
        gangs=gangs,
        units=(),
        warnings=warnings,
    )


def gang(name: str, proof: Proof | None, *, bound: int = 0, status: GangStatus = GangStatus.SCHEDULED) -> GangReport:
    return GangReport(f"default/{name}", 3, 2, bound, status, ("blockLayer", "s1/b2") if bound else None, proof, "")


class Script:
    """Plays given plans, one a round; keeps the snapshots that it saw."""

    def __init__(self, *plans: RoundPlan) -> None:
        self.plans: Iterator[RoundPlan] = iter(plans)
        self.seen: list[Snapshot] = []

    def __call__(self, snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        self.seen.append(snapshot)
        return next(self.plans)


def run(state: ClusterState, script: Script, *, rounds: int = 20, evicted: Evicted = "recreate") -> SimulationResult:
    return simulate(state, KoordpyConfiguration(), planner=script, now=NOW, rounds=rounds, evicted=evicted)


def test_rounds_end_when_one_changes_nothing() -> None:
    script = Script(plan(bind={"a": "n1"}, pending=("b",)), plan(bind={"b": "n2"}), plan())
    result = run(cluster(pod("a"), pod("b")), script)
    assert (result.rounds, result.stable) == (3, True)
    assert [(b.pod_key, b.node, b.round) for b in result.bindings] == [("default/a", "n1", 1), ("default/b", "n2", 2)]
    assert result.pending == ()
    assert [len(snapshot.pending) for snapshot in script.seen] == [2, 1, 0]


def test_a_run_that_still_changes_at_its_last_round_is_not_stable() -> None:
    result = run(cluster(pod("a")), Script(plan(bind={"a": "n1"})), rounds=1)
    assert (result.rounds, result.stable) == (1, False)


def test_final_names_every_assigned_pod_whoever_scheduled_it() -> None:
    state = cluster(pod("w-10", node="n1", scheduler="other"), pod("w-9"), pod("w-2", node="gone"), pod("x"))
    result = run(state, Script(plan(bind={"w-9": "n2"}), plan(pending=("x",))))
    assert result.final == (("default/w-2", "gone"), ("default/w-9", "n2"), ("default/w-10", "n1"))


def test_an_evicted_pod_comes_back_newest_of_all_with_a_new_uid() -> None:
    state = cluster(pod("new", second=5), pod("old-10", node="n1"), pod("old-9", node="n1"))
    victims = (("old-10", "n1", "priority"), ("old-9", "n1", "priority"))
    script = Script(plan(bind={"new": "n1"}, evict=victims), plan())
    result = run(state, script)
    again = sorted(script.seen[1].pending, key=lambda info: info.created)
    assert [info.name for info in again] == ["old-9", "old-10"], "in the order of evictions[]"
    assert all(info.created > NOW.timestamp() for info in again)
    assert len({info.uid for info in again} | {"uid-old-9", "uid-old-10"}) == 4
    assert [(e.eviction.pod_key, e.round) for e in result.evictions] == [("default/old-9", 1), ("default/old-10", 1)]
    assert result.final == (("default/new", "n1"),)


def test_an_evicted_pod_comes_back_without_what_its_binding_wrote_on_it() -> None:
    """Else its next Binding would say nothing of each of these, that has nothing to say."""
    state = cluster(pod("old", node="n1"))
    info = state.pod("default/old")
    assert info is not None
    written = {keys.BOUND_RANK: "0", keys.GPU_ALLOCATION: "{}", f"{keys.GPU_CUDA_VISIBLE_PREFIX}0": "GPU-0", "own": "1"}
    state.upsert(replace(info.pod, metadata=replace(info.pod.metadata, annotations=written)))
    script = Script(plan(evict=(("old", "n1", "priority"),)), plan())
    run(state, script)
    (again,) = script.seen[1].pending
    assert again.pod.metadata.annotations == {"own": "1"}


def test_a_dropped_pod_is_gone_but_a_moved_one_comes_back() -> None:
    state = cluster(pod("a", node="n1"), pod("b", node="n1"))
    script = Script(plan(evict=(("a", "n1", "priority"), ("b", "n1", "consolidation"))), plan())
    run(state, script, evicted="drop")
    assert [info.name for info in script.seen[1].pending] == ["b"]


def test_what_the_last_round_evicts_waits_at_the_end_though_no_round_follows() -> None:
    old = (pod("old", node="n1", gang="g"), pod("theirs", node="n1", scheduler="other"))
    evict = (("old", "n1", "priority"), ("theirs", "n1", "priority"))
    result = run(cluster(pod("new"), *old), Script(plan(bind={"new": "n1"}, evict=evict)), rounds=1)
    (waiting,) = result.pending
    assert (waiting.pod_key, waiting.gang, waiting.reason) == ("default/old", "default/g", Reason.UNSCHEDULABLE)
    assert waiting.message == "evicted in the last round of the simulation and not planned again"
    result = run(cluster(pod("new"), *old), Script(plan(bind={"new": "n1"}, evict=evict)), rounds=1, evicted="drop")
    assert result.pending == ()


def test_the_proof_of_a_gang_is_that_of_the_plan_that_bound_its_members() -> None:
    state = cluster(*(pod(f"g-{i}", gang="g") for i in range(3)))
    script = Script(
        plan(bind={"g-0": "n1", "g-1": "n1"}, gangs=(gang("g", Proof.OPTIMAL, bound=2),)),
        plan(gangs=(gang("g", Proof.INFEASIBLE, bound=2),)),
    )
    ((report, proof),) = run(state, script).gangs
    assert (report.name, report.bound, proof) == ("default/g", 2, "optimal")


def test_the_proof_of_a_gang_that_was_not_bound_is_that_of_the_last_plan() -> None:
    state = cluster(pod("g-0", gang="g"), pod("x"))
    reports = [gang("g", proof, status=GangStatus.UNSCHEDULABLE) for proof in (Proof.FEASIBLE, Proof.INFEASIBLE, None)]
    plans = [plan(bind={"x": "n1"}, gangs=(reports[0],)), plan(gangs=(reports[1],))]
    assert run(state, Script(*plans)).gangs[0][1] == "infeasible"
    plans = [plan(bind={}, gangs=(reports[2],))]
    assert run(state, Script(*plans)).gangs[0][1] == "unknown"


def test_the_proof_of_a_gang_that_lost_all_its_members_is_that_of_the_last_plan() -> None:
    state = cluster(pod("g-0", gang="g"))
    taken = plan(
        evict=(("g-0", "n1", "priority"),), gangs=(gang("g", Proof.INFEASIBLE, status=GangStatus.UNSCHEDULABLE),)
    )
    script = Script(
        plan(bind={"g-0": "n1"}, gangs=(gang("g", Proof.OPTIMAL, bound=1),)), taken, plan(gangs=taken.gangs)
    )
    assert run(state, script).document()["gangs"][0]["proof"] == "infeasible"


def test_the_document_has_the_keys_and_the_order_of_the_contract() -> None:
    state = cluster(pod("w-10"), pod("w-9"), pod("p-10"), pod("p-2"))
    script = Script(
        plan(bind={"w-10": "n1", "w-9": "n2"}, gangs=(gang("g-10", None), gang("g-2", Proof.OPTIMAL, bound=2))),
        plan(
            pending=("p-10", "p-2"),
            gangs=(gang("g-10", None), gang("g-2", None, bound=2)),
            warnings=(("PodGroup/default/g", "a"), ("PodGroup/default/g", "a")),
        ),
    )
    result = run(state, script)
    document = result.document()
    assert list(document) == [
        "apiVersion", "kind", "rounds", "stable", "bindings", "evictions", "pending", "gangs", "workloads", "quotas",
        "shares", "final", "claims", "failures", "provisioning", "spares", "backedOff",
    ]  # fmt: skip
    assert document["bindings"] == [
        {"namespace": "default", "pod": "w-9", "node": "n2", "round": 1, "annotations": {"a": "1", "b": "n2"}},
        {"namespace": "default", "pod": "w-10", "node": "n1", "round": 1, "annotations": {"a": "1", "b": "n1"}},
    ]
    assert list(document["bindings"][0]["annotations"]) == ["a", "b"]
    assert document["pending"] == [
        {"namespace": "default", "pod": name, "gang": None, "reason": "Unschedulable", "message": "no room"}
        for name in ("p-2", "p-10")
    ]
    assert document["gangs"] == [
        {
            "name": "default/g-2",
            "members": 3,
            "minMember": 2,
            "bound": 2,
            "status": "Scheduled",
            "domain": {"layer": "blockLayer", "name": "s1/b2"},
            "proof": "optimal",
            "message": "",
            "origin": "",
            "workload": None,
            "repair": None,
        },
        {
            "name": "default/g-10",
            "members": 3,
            "minMember": 2,
            "bound": 0,
            "status": "Scheduled",
            "domain": None,
            "proof": "unknown",
            "message": "",
            "origin": "",
            "workload": None,
            "repair": None,
        },
    ]
    assert result.warnings == (("PodGroup/default/g", "a"),)


def test_names_sort_by_namespace_then_by_name_with_numbers_as_numbers() -> None:
    keys = ["b/a-1", "a/w-10", "a/w-9", "a-2/x", "a-10/x"]
    assert sorted(keys, key=object_order) == ["a/w-9", "a/w-10", "a-2/x", "a-10/x", "b/a-1"]
