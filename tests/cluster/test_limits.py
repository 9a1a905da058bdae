# SPDX-License-Identifier: Apache-2.0
"""What one object may cost: the limits of koordpy/api/reading_limits.py, each from both sides, and what it leaves
behind."""

import gc
import json
import subprocess
import sys
import tracemalloc
from weakref import ref

import pytest
from msgspec import convert
from msgspec.structs import replace

from koordpy.api import keys, reading_limits
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.field_faults import UnreadableError
from koordpy.api.key_hints import Holder
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import (
    Affinity,
    Container,
    ContainerPort,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    Toleration,
    TopologySpreadConstraint,
    Volume,
)
from koordpy.cache.pod_book import MOST_LABEL_KEYS
from koordpy.cache.snapshot import NOWHERE
from koordpy.config.gang_topology import parse_topology_wish
from koordpy.decoding.annotation_settings import odd_settings
from koordpy.devices.family_registry import make_state
from koordpy.engine.watching.pod_intake import PodIntake
from koordpy.feasibility.round_state import PlannerCache
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_ties import PodClass, pod_class
from tests.cluster.test_hostile import calls_of
from tests.scenarios.cluster import TWO_LAYERS, World, bound, group, messages, node, nodes_of, pod, wish


def strange(i: int, count: int) -> Pod:
    return pod(f"s-{i}", requests={f"evil.example/r{i}-{k}": "1" for k in range(count)})


@pytest.mark.parametrize("count", [reading_limits.RESOURCES - 1, reading_limits.RESOURCES])
def test_a_pod_may_ask_for_so_many_resources_and_not_one_more(count: int) -> None:
    state = make_state()
    own = strange(0, count)  # and cpu
    if count < reading_limits.RESOURCES:
        state.upsert(own)
        return
    with pytest.raises(ValueError, match=r"^spec\.containers: 51 resources, at most 50 are read$"):
        state.upsert(own)
    assert state.pod(own.key) is None


def test_a_pod_that_runs_is_counted_however_many_resources_it_asks_for() -> None:
    own = strange(0, 100)
    state = make_state()
    state.upsert(node("n1:9"))
    state.upsert(replace(own, spec=replace(own.spec, node_name="n1")))
    snapshot = state.snapshot(0.0)
    assert snapshot.used[0, snapshot.columns["cpu"]] == 1000


def test_names_that_no_node_offers_make_no_column_and_are_refused_by_name() -> None:
    world = World().add(node("n1:9"), *(strange(i, 40) for i in range(20)))
    plan = world.plan()
    assert bound(plan) == {}
    assert "Insufficient evil.example/r7-39" in messages(plan)["s-7"]
    assert len(world.snapshot().columns) == len({"pods", NOWHERE, "cpu", "memory"})


def test_what_is_held_of_a_resource_that_went_is_never_room_for_another() -> None:
    world = World().add(node("n1:9"), pod("old", at="n1", requests={"a.example/x": "4"}))
    world.add(pod("new", requests={"b.example/y": "1"}), pod("more", requests={"a.example/x": "1"}))
    assert bound(world.plan()) == {}


def test_terms_of_node_affinity_have_a_limit() -> None:
    def asking(terms: int) -> Pod:
        one = NodeSelectorTerm(match_expressions=[Requirement(key="a", operator="Exists")])
        required = NodeSelector(node_selector_terms=[one] * terms)
        return pod("p", affinity=Affinity(node_affinity=NodeAffinity(required=required)))

    state = make_state()
    state.upsert(asking(reading_limits.SELECTOR_TERMS // 2))
    with pytest.raises(ValueError, match=r"^spec\.affinity\.nodeAffinity: 1002 terms and expressions, at most 1000"):
        state.upsert(asking(reading_limits.SELECTOR_TERMS // 2 + 1))


def test_host_ports_and_claims_of_a_pod_have_a_limit() -> None:
    def asking(ports: int, claims: int) -> Pod:
        volumes = [
            Volume(name=f"v{i}", persistent_volume_claim=PersistentVolumeClaimSource(claim_name=f"c{i}"))
            for i in range(claims)
        ]
        listed = [ContainerPort(container_port=1, host_port=i + 1) for i in range(ports)]
        own = pod("p", volumes=volumes)
        return replace(own, spec=replace(own.spec, containers=[Container(name="c", ports=listed)]))

    state = make_state()
    state.upsert(asking(128, 128))
    with pytest.raises(ValueError, match=r"^spec\.containers: 129 host ports, at most 128 are read$"):
        state.upsert(asking(129, 0))
    with pytest.raises(ValueError, match=r"^spec\.volumes: 129 claims, at most 128 are read$"):
        state.upsert(asking(0, 129))


def test_what_decides_where_a_pod_may_go_has_a_limit_of_its_bytes_together() -> None:
    def asking(labels: int) -> Pod:
        rule = LabelSelector(match_labels={f"key-{i:06}": "value" for i in range(labels)})
        term = PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=rule)
        return pod("p", affinity=Affinity(pod_anti_affinity=PodAffinity(required=[term])))

    state = make_state()
    state.upsert(asking(340))
    with pytest.raises(ValueError, match=r"^spec: \d+ bytes of pod affinity and topology spread constraints, at most"):
        state.upsert(asking(400))
    spread = TopologySpreadConstraint(max_skew=1, topology_key="k", when_unsatisfiable="DoNotSchedule")
    with pytest.raises(ValueError, match=r"^spec: \d+ bytes of pod affinity and topology spread constraints, at most"):
        state.upsert(pod("p", topology_spread_constraints=[spread] * 900))
    tolerations = [Toleration(key=f"key-{i:06}", operator="Exists") for i in range(9000)]
    with pytest.raises(ValueError, match=r"^spec: \d+ bytes of placement constraints, at most 262144 are read$"):
        state.upsert(pod("p", tolerations=tolerations))


def test_a_gather_strategy_has_a_limit() -> None:
    rule = {"layer": "a", "strategy": "PreferGather"}
    parse_topology_wish(json.dumps({"gatherStrategy": [rule] * reading_limits.GATHER_ENTRIES}))
    with pytest.raises(UnreadableError, match=r"^gatherStrategy: 65 entries, at most 64 are read"):
        parse_topology_wish(json.dumps({"gatherStrategy": [rule] * (reading_limits.GATHER_ENTRIES + 1)}))


def test_hints_of_one_object_are_ten_and_a_word_that_there_are_more() -> None:
    with pytest.raises(UnreadableError) as fault:
        parse_topology_wish(json.dumps({f"field{i}": 1 for i in range(1000)}))
    assert str(fault.value).count("; ") == reading_limits.HINTS
    assert str(fault.value).endswith("; further warnings are not listed")
    notes = {f"{keys.GANG_MODE}{i}": "x" for i in range(1000)}
    said = odd_settings(Holder.GROUP, group("g", 1, notes).metadata)
    assert len(said) == reading_limits.HINTS + 1
    assert said[-1] == "further warnings are not listed"


@pytest.mark.parametrize("count", [reading_limits.ANNOTATIONS, reading_limits.ANNOTATIONS + 1])
def test_annotations_beyond_those_that_are_kept_are_told_in_one_line(count: int) -> None:
    notes = {f"example.com/{i}": "x" for i in range(count)}
    own = pod(
        "p", requests={"cpu": "99"}, annotations={**notes, "kubectl.kubernetes.io/last": "x"} if count > 256 else notes
    )
    kept = PodIntake()(own)
    assert kept is not None
    world = World().add(node("n1:9"), group("g", 1, notes), pod("p-0", gang="g"), kept)
    told = [(name, text) for name, text in world.plan().warnings if "annotations" in text]
    more = f"metadata.annotations: {count} annotations, at most 256 are read, in addition to those that koordpy knows"
    on_pod = more.replace(f"{count} ", f"{count + 1} ")
    assert sorted(told) == ([("Pod/default/p", on_pod), ("PodGroup/default/g", more)] if count > 256 else [])


def test_figures_of_strange_pods_that_wait_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordpy.feasibility.round_state.STATIC_KEPT", 60)
    pods = [pod(f"p-{i}", cpu="9", node_selector={"k": f"{i}"}) for i in range(21)]
    world = World().add(*nodes_of("s1{b1: n1 n2 n3}"), *pods[:20])
    cache = PlannerCache()
    plan_round(world.snapshot(), planner_cache=cache)
    assert len(cache.at(world.snapshot()).static) == 20
    world.add(pods[20])
    plan_round(world.snapshot(), planner_cache=cache)
    assert cache.at(world.snapshot()).static == {}


@pytest.mark.parametrize("count", [reading_limits.MEANT_AMONG, reading_limits.MEANT_AMONG + 1])
def test_a_quota_that_a_pod_may_have_meant_is_looked_for_among_few(count: int) -> None:
    quotas = [{"metadata": {"name": f"team-{i}-quota", "namespace": "default"}} for i in range(count)]
    world = World().add(node("n1:9"), *(convert(one, ElasticQuota) for one in quotas))
    world.add(*(pod(f"p-{i}", labels={keys.QUOTA_NAME: f"teem-{i}-quota"}) for i in range(50)))
    plans = []
    calls = calls_of(lambda: plans.append(world.plan()))
    told = [text for _, text in plans[0].warnings if "did you mean" in text]
    if count == reading_limits.MEANT_AMONG:
        assert "did you mean team-7-quota?" in told[7]
    else:
        assert not told and calls < 50 * 3000


def test_what_an_object_says_is_read_once_while_it_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def counting(text: str) -> object:
        reads.append(text)
        return parse_topology_wish(text)

    monkeypatch.setattr("koordpy.gangs.gang_reading.parse_topology_wish", counting)
    broken = {keys.GANG_TOPOLOGY: '{"gatherStrategy": 5}'}
    world = World().add(node("n1:9"), group("g", 1, broken), pod("p-0", gang="g"))
    for _ in range(5):
        assert "cannot be read" in messages(world.plan())["p-0"]
    assert len(reads) == 1
    world.add(group("g", 1, broken))
    world.plan()
    assert len(reads) == 2


def test_memory_goes_with_the_pods_that_took_it() -> None:
    state = make_state()
    state.upsert(node("n1:9"))

    def come_and_go(turn: int) -> None:
        for i in range(turn * 1024, turn * 1024 + 1024):
            own = strange(i, 10)
            state.upsert(own if i % 2 else replace(own, spec=replace(own.spec, node_name="n1")))
        state.snapshot(0.0)
        for i in range(turn * 1024, turn * 1024 + 1024):
            state.delete(Pod, f"default/s-{i}")
        state.snapshot(0.0)
        gc.collect()

    tracemalloc.start()
    sizes = []
    for turn in range(18):
        come_and_go(turn)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # what is kept of the last 4,096 templates rises and falls, four turns long: it rises no further
    assert max(sizes[12:]) < max(sizes[6:12]) * 1.1, sizes


def test_resident_memory_returns_when_strange_pods_have_come_and_gone() -> None:
    command = [sys.executable, "-m", "bench.attack.memory", "--pods", "20000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def looking(name: str, key: str) -> Pod:
    rule = LabelSelector(match_expressions=[Requirement(key=key, operator="Exists")])
    term = PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=rule)
    return pod(name, affinity=Affinity(pod_anti_affinity=PodAffinity(required=[term])))


def test_a_label_key_that_a_pod_looks_for_costs_only_the_pods_that_carry_it(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    state.upsert(node("n1:9"))
    for i in range(50):
        state.upsert(pod(f"other-{i}", at="n1", labels={"app": "other"}))
    state.upsert(pod("wanted", at="n1", labels={"wanted": "1"}))
    classified: list[str] = []

    def counting(one: Pod, looked_for: frozenset[str]) -> PodClass:
        classified.append(one.metadata.name)
        return pod_class(one, looked_for)

    monkeypatch.setattr("koordpy.cache.neighbour_counts.pod_class", counting)
    state.upsert(looking("p", "wanted"))
    state.upsert(looking("q", "nobody-has-it"))
    assert classified == ["wanted", "wanted"]
    assert PodClass("default", frozenset({("wanted", "1")})) in state.snapshot(0.0).classes


def test_terms_are_those_of_the_spec_and_pods_that_say_the_same_are_of_one_class() -> None:
    world = World().add(node("n1:9"), looking("p", "app"), looking("q", "app"), looking("r", "other"))
    known = [world.state.pod(f"default/{name}") for name in "pqr"]
    said = [info.ties.terms for info in known if info is not None]
    assert [one.anti_affinity for one in said] == [info.pod.spec.affinity.pod_anti_affinity for info in known]  # type: ignore
    assert said[0] == said[1] != said[2]
    assert len({*said}) == 2


def test_label_keys_are_forgotten_when_the_pods_that_looked_for_them_are_gone() -> None:
    state = make_state()
    state.look_for(["configured"])
    state.upsert(node("n1:9"))
    state.upsert(pod("stays", at="n1", labels={"key-1": "v", "kept": "v"}))
    state.upsert(looking("looks", "kept"))
    for i in range(MOST_LABEL_KEYS + 1):
        state.upsert(looking("p", f"key-{i}"))
    state.delete(Pod, "default/p")
    state.upsert(looking("last", "other"))
    snapshot = state.snapshot(0.0)
    assert {"configured", "kept", "other"} <= snapshot.looked_for
    assert len(snapshot.looked_for) < 10
    assert list(snapshot.classes) == [PodClass("default", frozenset({("kept", "v")}))]
    state.delete(Pod, "default/stays")
    assert not state.snapshot(0.0).classes


def test_a_round_with_gangs_is_forgotten_with_its_snapshot() -> None:
    world = World().add(TWO_LAYERS, *nodes_of("s1{b1: n1:4 n2:4}"), group("g", 2, wish({"blockLayer": "Must"})))
    world.add(*(pod(f"g-{i}", gang="g", requests={"nvidia.com/gpu": "1"}) for i in range(3)))
    snapshot = world.snapshot()
    gone = ref(snapshot)
    plan = plan_round(snapshot, planner_cache=PlannerCache())
    assert "needed 2, available in" in plan.pending[0].message
    del snapshot, plan
    gc.collect()
    assert gone() is None


def test_figures_of_shapes_that_are_gone_are_forgotten() -> None:
    cache = PlannerCache()
    for turn in range(3):
        world = World().add(node("n1:1"))
        world.add(*(pod(f"p-{turn}-{i}", cpu="2", node_selector={"k": f"{turn}-{i}"}) for i in range(300)))
        plan_round(world.snapshot(), planner_cache=cache)
        cache.version = world.snapshot().static_version
    assert len(cache.static) <= 600


def test_a_long_shape_is_known_by_its_digest_and_short_ones_apart() -> None:
    state = make_state()
    for name, key in (("a", "x" * 2000), ("b", "x" * 2000), ("c", "x" * 1999 + "y"), ("d", "y")):
        state.upsert(looking(name, key))
    a, b, c, d = (info.shape for info in state.snapshot(0.0).pending)
    assert a == b != c != d
    assert len(a) == len(c) == 32 < len(d)


def in_gang(letters: int, **own: str) -> Pod:
    return pod("p", annotations={keys.GANG_NAME: "x" * letters, keys.GANG_MIN: "2"}, **own)


def test_a_name_of_a_gang_has_the_limit_of_any_name() -> None:
    state = make_state()
    state.upsert(in_gang(reading_limits.NAME_BYTES))
    known = state.pod("default/p")
    assert known is not None and known.gang is not None
    long = in_gang(reading_limits.NAME_BYTES + 1)
    with pytest.raises(ValueError, match=r"^metadata\.annotations\[\S+/name\]: 254 bytes, at most 253 are read$"):
        state.upsert(long)
    state.upsert(replace(long, spec=replace(long.spec, node_name="n1")))
    running = state.pod("default/p")
    assert running is not None and running.gang is None


def test_a_long_name_is_forgotten_when_it_is_sorted() -> None:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(50):
        natural_key("1a" * 5000 + str(i))
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 1_000_000, held


def test_the_resources_of_a_group_have_a_limit() -> None:
    def asking(count: int) -> dict[str, str]:
        least = {f"evil.example/r{i}": "0" for i in range(count)}
        world = World().add(node("n1:9"), group("g", 1, min_resources=least), pod("p", gang="g"))
        return messages(world.plan())

    assert asking(reading_limits.MIN_RESOURCES) == {}
    assert "spec.minResources cannot be read: 65 resources, at most 64 are read" in asking(65)["p"]
