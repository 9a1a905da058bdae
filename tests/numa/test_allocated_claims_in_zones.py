# SPDX-License-Identifier: Apache-2.0
"""Allocated claims of pods that demand alignment (numa.md 7): a table of plain pods, and random units whose placements
are compared with an enumeration that shares no code with the planner."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.claim_objects import (
    BasicDevice,
    ClaimConsumer,
    DeviceAttribute,
    DeviceClass,
    ResourceSlice,
    SliceDevice,
)
from koordpy.api.custom_objects import NodeResourceTopology, TopologyAttribute, TopologyZone, ZoneResource
from koordpy.api.objects import (
    Container,
    ObjectMeta,
    Pod,
    PodResourceClaim,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Wire,
)
from koordpy.plan.round_plan import RoundPlan
from koordpy.pods.claim_refs import CLAIMS
from tests.planning.node_rules import node, planned, reasons
from tests.planning.test_filter_dra import ELSEWHERE, asks, held, messages, offers, resource_claim
from tests.scenarios.cluster import bound, group, pod_meta

CPUS = 4
"""Of a zone; a node has two zones."""
NUMA_NODE = "resource.kubernetes.io/numaNode"
Zone = int | tuple[int, ...] | None
"""NUMA zones of a device; None for a device without the attribute."""
CLASS = DeviceClass(metadata=ObjectMeta(name="gpu"))
"""Without a selector, which kube-scheduler could not evaluate on a device with a list of zones."""
OTHER_ZONES = "U: resourceclaim not available on the node"


def offered(at: str, zones: Sequence[Zone]) -> ResourceSlice:
    def device(i: int, zone: Zone) -> SliceDevice:
        value = DeviceAttribute(numbers=[*zone]) if isinstance(zone, tuple) else DeviceAttribute(number=zone)
        return SliceDevice(name=f"d{i}", basic=BasicDevice(attributes={NUMA_NODE: value} if zone is not None else {}))

    made = offers(at)
    made.spec.devices.extend(device(i, zone) for i, zone in enumerate(zones))
    return made


def report(at: str, used: Sequence[int]) -> NodeResourceTopology:
    """Two zones of single-numa-node and scope pod. used: CPUs in use in each zone."""
    attributes = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
    zones = [
        TopologyZone(
            name=f"node-{i}",
            type="Node",
            resources=[ZoneResource(name="cpu", capacity=str(CPUS), allocatable=str(CPUS), available=str(CPUS - one))],
        )
        for i, one in enumerate(used)
    ]
    listed = [TopologyAttribute(name=name, value=value) for name, value in attributes.items()]
    return NodeResourceTopology(metadata=ObjectMeta(name=at), zones=zones, attributes=listed)


def worker(
    name: str,
    cpu: int,
    *claims: str,
    demand: bool = True,
    gang: str = "",
    at: str = "",
    zone: int | None = None,
    priority: int = 100,
) -> Pod:
    """A Guaranteed pod with whole CPUs, or a pod without requests for cpu 0."""
    amounts = {"cpu": str(cpu), "memory": "1Mi"} if cpu else {}
    notes = {keys.NUMA_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}'} if demand else {}
    if zone is not None:
        notes[keys.RESOURCE_STATUS] = json.dumps(
            {"numaNodeResources": [{"node": zone, "resources": {"cpu": str(cpu)}}]}
        )
    spec = PodSpec(
        scheduler_name=keys.DEFAULT_SCHEDULER_NAME,
        node_name=at,
        containers=[
            Container(name="main", image="i", resources=ResourceRequirements(requests=amounts, limits=amounts))
        ],
        resource_claims=[PodResourceClaim(name=f"c{i}", resource_claim_name=one) for i, one in enumerate(claims)],
        priority=priority,
    )
    status = PodStatus(phase="Running" if at else "Pending")
    return Pod(metadata=pod_meta(name, gang=gang, created=0, annotations=notes), spec=spec, status=status)


def holder(claim: str, at: str) -> Pod:
    """A running pod, which no other pod may evict, with a claim."""
    return worker(f"h-{claim}", 0, claim, demand=False, at=at, priority=1000)


def reserved(name: str, at: str, *devices: str) -> Any:
    user = ClaimConsumer(resource="pods", name=f"h-{name}", uid=holder(name, at).metadata.uid)
    return resource_claim(name, asks(len(devices)), allocation=held(*devices, at=at), reserved_for=[user])


USED_0 = worker("x", CPUS, at="n1", zone=0, demand=False, priority=0)
"""Uses all CPUs of zone 0, and may be evicted."""
CASES: dict[str, tuple[Sequence[Zone], Pod, Sequence[Wire], str]] = {
    # devices of the node, pending pod, other objects, verdict; the claim f has d0
    "the kubelet takes zone 0": ((1,), worker("p", 2, "f"), [], ELSEWHERE),
    "a zone in common": (((0, 1),), worker("p", 2, "f"), [], "fits"),
    "no demand": ((1,), worker("p", 2, "f", demand=False), [], "fits"),
    "no attribute": ((None,), worker("p", 2, "f"), [], "fits"),
    "zone 0 is used": ((1,), worker("p", 2, "f"), [USED_0], "fits"),
    "another zone after an eviction": ((0,), worker("p", 2, "f"), [USED_0], OTHER_ZONES),
    "a new claim beside it": (
        (0, 1), worker("p", 2, "f", "c"), [resource_claim("c", asks())], "UU: cannot allocate all claims",
    ),
    "nothing aligned, a new claim in the zone of the first one": (
        (1, 0, 1), worker("p", 0, "f", "c"), [resource_claim("c", asks())], "fits",
    ),
    "nothing aligned, no device in the zone of the first one": (
        (1, 0), worker("p", 0, "f", "c"), [resource_claim("c", asks())], "UU: cannot allocate all claims",
    ),
    "nothing aligned, two claims in different zones": (
        (1, 0), worker("p", 0, "f", "g"), [reserved("g", "n1", "d1"), holder("g", "n1")], ELSEWHERE,
    ),
    "nothing aligned, two claims in different zones, of which no eviction takes one": (
        (1, 0), worker("p", 0, "f", "g"), [reserved("g", "n1", "d1"), holder("g", "n1"), USED_0], ELSEWHERE,
    ),
}  # fmt: skip


def cluster(zones: Sequence[Zone], used: Sequence[int], *others: Wire) -> list[Wire]:
    fixed = [node("n1:64"), report("n1", used), CLASS, offered("n1", zones)]
    return [*fixed, reserved("f", "n1", "d0"), holder("f", "n1"), *others]


@pytest.mark.parametrize("case", CASES)
def test_an_allocated_claim_is_compared_with_the_zones(case: str) -> None:
    zones, pending, others, verdict = CASES[case]
    objects = [*cluster(zones, (CPUS * (USED_0 in others), 0), *others), pending]
    assert reasons(objects) == {"n1": verdict}
    plan = planned(objects)
    assert bound(plan) == ({"p": "n1"} if verdict in ("fits", OTHER_ZONES) else {}), messages(plan)
    assert [one.pod_key for one in plan.evictions] == (["default/x"] if verdict == OTHER_ZONES else [])


def test_a_claim_that_no_pod_uses_is_allocated_anew() -> None:
    """The claim is allocated in zone 1, and the kubelet takes zone 0."""
    idle = resource_claim("f", asks(), allocation=held("d0", at="n1"))
    plan = planned([node("n1:64"), report("n1", (0, 0)), CLASS, offered("n1", (1, 0)), idle, worker("p", 2, "f")])
    [placed] = plan.placements
    assert [one.device.device for one in placed.devices[CLAIMS]["default/f"]] == ["d1"]


def test_a_pod_is_evicted_for_its_device_though_further_evictions_would_close_the_node() -> None:
    """Zone 0 is in use, so the pod gets zone 1, where its devices are. Without any other pod it would get zone 0."""
    used = [USED_0, worker("y", 2, at="n1", zone=1, demand=False, priority=0)]
    victim = worker("h-f", 0, "f", demand=False, at="n1", priority=0)
    fixed = [node("n1:64"), report("n1", (CPUS, 2)), CLASS, offered("n1", ((0, 1), 1)), reserved("f", "n1", "d0")]
    plan = planned([*fixed, *used, victim, resource_claim("c", asks(2)), worker("p", 1, "c")])
    assert [one.pod_key for one in plan.evictions] == ["default/h-f"]


# --- random units ---


@dataclass
class Scene:
    """A cluster with one pending unit. Claims, pods and nodes are known by name."""

    zones: dict[str, list[Zone]] = field(default_factory=dict)
    """Node -> zones of its devices d0, d1, ..."""
    free: dict[str, list[int] | None] = field(default_factory=dict)
    """Node -> free CPUs of its zones; None for a node without NUMA data."""
    fixed: dict[str, tuple[str, set[int]]] = field(default_factory=dict)
    """Allocated claim -> (node, devices)."""
    open: dict[str, int] = field(default_factory=dict)
    """Claim without an allocation -> number of devices."""
    pods: list[tuple[str, int, list[str], bool]] = field(default_factory=list)
    """(name, CPUs, claims, whether it demands alignment) in rank order."""
    objects: list[Wire] = field(default_factory=list)


def made(seed: int) -> Scene:
    dice, scene = random.Random(seed), Scene()
    for name in ("n1", "n2")[: dice.choice((1, 1, 2))]:
        scene.zones[name] = [dice.choice((0, 0, 1, 1, (0, 1), None)) for _ in range(dice.choice((2, 3, 4)))]
        used = [dice.choice((0, 0, 2, CPUS)) for _ in range(2)]
        has_data = dice.random() < 0.9
        scene.free[name] = [CPUS - one for one in used] if has_data else None
        scene.objects += [node(f"{name}:64"), offered(name, scene.zones[name])]
        if has_data:
            scene.objects.append(report(name, used))
            scene.objects += [
                worker(f"x-{name}-{i}", one, demand=False, at=name, zone=i, priority=1000)
                for i, one in enumerate(used)
                if one
            ]
    for i in range(dice.choice((0, 1, 1, 2))):
        at = dice.choice(list(scene.zones))
        taken = set().union(*(some for place, some in scene.fixed.values() if place == at))
        left = [one for one in range(len(scene.zones[at])) if one not in taken]
        if left:
            some = set(dice.sample(left, min(len(left), dice.choice((1, 1, 2)))))
            scene.fixed[f"f{i}"] = at, some
            names = [f"d{one}" for one in sorted(some)]
            scene.objects += [reserved(f"f{i}", at, *names), holder(f"f{i}", at)]
    for i in range(dice.choice((1, 1, 2, 3))):
        cpu, claims = dice.choice((0, 1, 2, 2, 3, CPUS)), list[str]()
        if scene.fixed and dice.random() < 0.6:
            claims.append(dice.choice(list(scene.fixed)))
        if dice.random() < 0.5:
            claims.append(f"c{i}")
            scene.open[f"c{i}"] = dice.choice((1, 1, 2))
        elif dice.random() < 0.2:
            claims.append("shared")
            scene.open["shared"] = 1
        scene.pods.append((f"p-{i}", cpu, claims, dice.random() < 0.8))
    scene.objects += [CLASS, *(resource_claim(name, asks(count)) for name, count in scene.open.items())]
    gang = "g" if len(scene.pods) > 1 else ""
    scene.objects += [group("g", len(scene.pods))] if gang else []
    scene.objects += [worker(name, cpu, *own, demand=demand, gang=gang) for name, cpu, own, demand in scene.pods]
    return scene


def zones_at(scene: Scene, places: Sequence[str]) -> list[set[int]] | None:
    """Returns the zone of each pod on its node, empty for none; None if a kubelet or a demand refuses a pod."""
    left = {name: None if free is None else free.copy() for name, free in scene.free.items()}
    out: list[set[int]] = []
    for (_, cpu, claims, demand), place in zip(scene.pods, places, strict=True):
        free = left[place]
        if demand and not claims and (free is None or not cpu):
            return None
        if not cpu:
            out.append(set())
        elif free is None:
            if demand:
                return None
            out.append(set())
        else:
            zone = next((i for i, one in enumerate(free) if one >= cpu), None)
            if zone is None:
                return None
            free[zone] -= cpu
            out.append({zone})
    return out


def places_of_claims(scene: Scene, places: Sequence[str]) -> dict[str, str] | None:
    """Returns the node of each claim of the unit; None if pods of one claim are on different nodes."""
    found: dict[str, str] = {name: at for name, (at, _) in scene.fixed.items()}
    for (_, _, claims, _), place in zip(scene.pods, places, strict=True):
        if any(found.setdefault(claim, place) != place for claim in claims):
            return None
    return found


def as_set(zone: Zone) -> set[int] | None:
    return None if zone is None else set(zone) if isinstance(zone, tuple) else {zone}


def keeps_zones(scene: Scene, at: Mapping[str, str], given: Mapping[str, set[int]], zones: Sequence[set[int]]) -> bool:
    """Whether the devices of every pod with a demand are where they must be. given: claim -> devices."""
    for (_, _, claims, demand), own in zip(scene.pods, zones, strict=True):
        known = [as_set(scene.zones[at[claim]][one]) for claim in claims for one in given[claim]]
        some = [one for one in known if one is not None]
        if demand and own and not all(one & own for one in some):
            return False
        if demand and not own and not all(one & other for one, other in itertools.combinations(some, 2)):
            return False
    return True


def choices(
    scene: Scene, at: Mapping[str, str], names: Sequence[str], used: frozenset[tuple[str, int]]
) -> Iterator[dict[str, set[int]]]:
    """Yields claim -> devices for the named claims, for every choice of free devices."""
    if not names:
        yield {}
        return
    place = at[names[0]]
    free = [i for i in range(len(scene.zones[place])) if (place, i) not in used]
    for some in itertools.combinations(free, scene.open[names[0]]):
        for rest in choices(scene, at, names[1:], used | {(place, i) for i in some}):
            yield {names[0]: set(some), **rest}


def is_valid(scene: Scene, places: Sequence[str]) -> bool:
    """Whether the pods can be placed on these nodes together."""
    fixed = {name: some for name, (_, some) in scene.fixed.items()}
    used = frozenset((at, i) for at, some in scene.fixed.values() for i in some)
    zones, at = zones_at(scene, places), places_of_claims(scene, places)
    if zones is None or at is None:
        return False
    names = [name for name in scene.open if name in at]
    return any(keeps_zones(scene, at, {**fixed, **given}, zones) for given in choices(scene, at, names, used))


def parts(scene: Scene, places: Sequence[str]) -> Iterator[tuple[Scene, list[str]]]:
    """Yields the unit with only some of its pods, and their nodes."""
    seats = list(zip(scene.pods, places, strict=True))
    for number in range(1, len(seats)):
        for some in itertools.combinations(seats, number):
            yield replace(scene, pods=[pod for pod, _ in some]), [place for _, place in some]


def fits(scene: Scene) -> tuple[bool, bool]:
    """Returns whether all pods of the unit can be placed together; and whether so without a pod that gets the zones of
    its devices only because other pods of the unit use other zones."""
    valid = [some for some in itertools.product(scene.zones, repeat=len(scene.pods)) if is_valid(scene, some)]
    return bool(valid), any(all(is_valid(*part) for part in parts(scene, some)) for some in valid)


def judge(scene: Scene, plan: RoundPlan) -> None:
    """Fails if the plan breaks a rule."""
    placed = {one.pod_key.partition("/")[2]: one for one in plan.placements}
    places = [placed[name].node for name, *_ in scene.pods]
    zones, at = zones_at(scene, places), places_of_claims(scene, places)
    assert zones is not None, "a kubelet rejects a pod"
    assert at is not None, "a claim is used on two nodes"
    given = {name: some for name, (_, some) in scene.fixed.items()}
    for one in placed.values():
        for key, grant in one.devices.get(CLAIMS, {}).items():
            given[key.partition("/")[2]] = {int(device.device.device[1:]) for device in grant}
    taken = [(at[claim], i) for claim, some in given.items() for i in some]
    assert len(taken) == len(set(taken)), "a device is given twice"
    assert keeps_zones(scene, at, given, zones), "a device is in a wrong zone"


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_units_are_placed_if_some_placement_keeps_the_zones(first: int) -> None:
    """A gang may stay pending if a member gets the zones of its devices only because of other members."""
    seen = Counter[tuple[bool, bool]]()
    for seed in range(first, first + 100):
        scene = made(seed)
        plan, able = planned(scene.objects), fits(scene)
        seen[able] += 1
        is_placed = len(bound(plan)) == len(scene.pods)
        assert is_placed or not bound(plan)
        assert able[1] <= is_placed <= able[0], (seed, able, messages(plan))
        if is_placed:
            judge(scene, plan)
    assert min(seen[True, True], seen[False, False]) > 10
