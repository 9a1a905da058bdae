# SPDX-License-Identifier: Apache-2.0
"""DynamicResources to the minimum bar (kube-parity.md 6)."""

import itertools
import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import (
    Allocation,
    BasicDevice,
    CapacityPolicy,
    CelSelector,
    ClaimConsumer,
    CounterUse,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceResult,
    DeviceResults,
    DeviceSelector,
    DeviceTaint,
    DeviceToleration,
    ExactRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
    SubRequest,
)
from koordpy.api.objects import (
    NodeSelector,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodResourceClaim,
    PodResourceClaimStatus,
    Requirement,
)
from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.devices.family_registry import make_state
from koordpy.planner.planning_round import plan_round
from koordpy.pods.claim_refs import DeviceId, Granted
from tests.planning.node_rules import node, planned, pod, reasons, states
from tests.scenarios.cluster import bound, group, messages

DRIVER = "gpu.example.com"
CANNOT = "UU: cannot allocate all claims"
NODE_RESOURCES = "UU: unsupported: node allocatable resources through devices"
ELSEWHERE = "UU: resourceclaim not available on the node"
UPDATED = f"asks for all devices, but resource pool {DRIVER}/n1 is currently being updated"
NODES = [node("n1:8"), node("n2:8")]
MODEL = f'device.attributes["{DRIVER}"].model == "a"'
VICTIM = ClaimConsumer(resource="pods", name="x", uid="uid-x")


def selectors(*expressions: str) -> list[DeviceSelector]:
    return [DeviceSelector(cel=CelSelector(expression=text)) for text in expressions]


CLASS = DeviceClass(
    metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=selectors(f'device.driver == "{DRIVER}"'))
)


def asks(count: int | None = None, *expressions: str, **more: Any) -> DeviceRequest:
    exact = ExactRequest(device_class_name="gpu", count=count, selectors=selectors(*expressions), **more)
    return DeviceRequest(name="r", exactly=exact)


def resource_claim(name: str, *requests: DeviceRequest, **settings: Any) -> ResourceClaim:
    meta = ObjectMeta(name=name, namespace="default", **settings.pop("meta", {}))
    devices = DeviceClaim(requests=list(requests), constraints=settings.pop("constraints", []))
    return ResourceClaim(metadata=meta, spec=ResourceClaimSpec(devices=devices), status=ResourceClaimStatus(**settings))


def offers(at: str, *names: str, generation: int = 1, slices: int = 1, number: int = 0, **device: Any) -> ResourceSlice:
    """The devices of a node's pool."""
    pool = ResourcePool(name=at, generation=generation, resource_slice_count=slices)
    spec = ResourceSliceSpec(
        driver=DRIVER, pool=pool, node_name=at, devices=[SliceDevice(name=name, **device) for name in names]
    )
    return ResourceSlice(metadata=ObjectMeta(name=f"{at}-{generation}-{number}"), spec=spec)


def user(name: str, *claims: str, **settings: Any) -> Pod:
    listed = [PodResourceClaim(name=f"c{i}", resource_claim_name=claim) for i, claim in enumerate(claims)]
    return pod(name, resource_claims=listed, **settings)


def held(*devices: str, at: str, anywhere: bool = False) -> Allocation:
    results = [DeviceResult(request="r", driver=DRIVER, pool=at, device=device) for device in devices]
    here = Requirement(key="metadata.name", operator="In", values=[at])
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[here])])
    return Allocation(devices=DeviceResults(results=results), node_selector=None if anywhere else selector)


def facts(**attributes: Any) -> dict[str, DeviceAttribute]:
    kinds = {str: "text", int: "number", bool: "truth"}
    return {name: DeviceAttribute(**{kinds[type(value)]: value}) for name, value in attributes.items()}


USER = ClaimConsumer(resource="pods", name="r", uid="uid-r")
NODE_CASES: dict[str, tuple[list[Any], dict[str, str]]] = {
    "example 12: two asked, one offered": (
        [offers("n1", "g0"), offers("n2", "g0", "g1"), resource_claim("c", asks(2))],
        {"n1": CANNOT, "n2": "fits"},
    ),
    "no count is one": ([offers("n1", "g0"), resource_claim("c", asks())], {"n1": "fits", "n2": CANNOT}),
    "held by another claim": (
        [
            offers("n1", "g0"),
            offers("n2", "g0"),
            resource_claim("other", asks(), allocation=held("g0", at="n1")),
            resource_claim("c", asks()),
        ],
        {"n1": CANNOT, "n2": "fits"},
    ),
    "the newest generation alone counts": (
        [offers("n1", "g0", "g1"), offers("n1", "g0", generation=2), resource_claim("c", asks(2))],
        {"n1": CANNOT, "n2": CANNOT},
    ),
    "an incomplete pool offers nothing": (
        [
            offers("n1", "g0", slices=2),
            offers("n2", "g0", slices=2),
            offers("n2", "g1", slices=2, number=1),
            resource_claim("c", asks()),
        ],
        {"n1": CANNOT, "n2": "fits"},
    ),
    "by an attribute": (
        [
            offers("n1", "g0", attributes=facts(model="a")),
            offers("n2", "g0", attributes=facts(model="b")),
            resource_claim("c", asks(1, f'device.attributes["{DRIVER}"].model == "b"')),
        ],
        {"n1": CANNOT, "n2": "fits"},
    ),
    "two requests need two devices": (
        [
            offers("n1", "g0", attributes=facts(big=True)),
            offers("n2", "g0", attributes=facts(big=True)),
            offers("n2", "g1", generation=1, attributes=facts(big=False)),
            resource_claim("c", asks(1, f'device.attributes["{DRIVER}"].big'), asks(1)),
        ],
        {"n1": CANNOT, "n2": CANNOT},
    ),
    "tainted devices are left out": (
        [offers("n1", "g0", taints=[DeviceTaint(effect="NoSchedule")]), resource_claim("c", asks())],
        {"n1": CANNOT, "n2": CANNOT},
    ),
    "a counter set that the pool lacks": (
        [offers("n1", "g0", consumes_counters=[CounterUse(counter_set="s")]), resource_claim("c", asks())],
        {"n1": "UU: invalid resource pools were encountered", "n2": CANNOT},
    ),
    "a device that takes resources of its node": (
        [
            offers("n1", "g0", node_allocatable_resource_mappings={"cpu": {"allocationMultiplier": "2"}}),
            offers("n2", "g0"),
            resource_claim("c", asks()),
        ],
        {"n1": NODE_RESOURCES, "n2": "fits"},
    ),
    "a device that takes resources of its node, as v1beta1 writes it": (
        [
            offers("n1", "g0", basic=BasicDevice(node_allocatable_resource_mappings={"memory": {}})),
            resource_claim("c", asks()),
        ],
        {"n1": NODE_RESOURCES, "n2": CANNOT},
    ),
    "a device that takes resources of its node, as Kubernetes 1.37 writes it": (
        [offers("n1", "g0", node_allocatable_resources={"memory": {"overhead": {}}}), resource_claim("c", asks())],
        {"n1": NODE_RESOURCES, "n2": CANNOT},
    ),
    "a device that takes resources of its node, with admin access": (
        [
            offers("n1", "g0", node_allocatable_resources={"cpu": {"mapping": {}}}),
            resource_claim("c", asks(admin_access=True)),
        ],
        {"n1": NODE_RESOURCES, "n2": CANNOT},
    ),
    "allocated already to a device that takes resources of its node": (
        [
            offers("n1", "g0", "g1", node_allocatable_resources={"cpu": {"mapping": {}}}),
            resource_claim("c", asks(), allocation=held("g0", at="n1"), reserved_for=[USER]),
        ],
        {"n1": NODE_RESOURCES, "n2": ELSEWHERE},
    ),
    "a device with compatibility groups": (
        [
            offers("n1", "g0", consumes_counters=[CounterUse(counter_set="s", compatibility_groups=["a"])]),
            offers("n2", "g0", compatibility_groups=["a"]),
            resource_claim("c", asks()),
        ],
        dict.fromkeys(("n1", "n2"), f"{CANNOT}, class gpu: selector #0 matches no device"),
    ),
    "an unknown operator tolerates nothing": (
        [
            offers("n1", "g0", taints=[DeviceTaint(key="k", value="v", effect="NoSchedule")]),
            resource_claim("c", asks(tolerations=[DeviceToleration(key="k", value="v", operator="In")])),
        ],
        {"n1": CANNOT, "n2": CANNOT},
    ),
    "a device that takes resources of its node is of no use to the claim": (
        [
            offers("n1", "g0", node_allocatable_resource_mappings={"cpu": {}}),
            resource_claim("c", asks(2)),
        ],
        {"n1": CANNOT, "n2": CANNOT},
    ),
    "all devices of a pool that is being changed": (
        [offers("n1", "g0", slices=2), offers("n2", "g0"), resource_claim("c", asks(allocation_mode="All"))],
        {"n1": f"UU: claim default/c, request r: {UPDATED}", "n2": "fits"},
    ),
    "all devices of a pool that is being changed, as an alternative": (
        [
            offers("n1", "g0", slices=2),
            resource_claim(
                "c",
                DeviceRequest(
                    name="r", first_available=[SubRequest(name="s", device_class_name="gpu", allocation_mode="All")]
                ),
            ),
        ],
        {"n1": f"UU: claim default/c, request s: {UPDATED}", "n2": CANNOT},
    ),
    "allocated for a node": (
        [resource_claim("c", asks(), allocation=held("g0", at="n2"))],
        {"n1": ELSEWHERE, "n2": "fits"},
    ),
    "allocated for anywhere": (
        [resource_claim("c", asks(), allocation=held("g0", at="n2", anywhere=True))],
        {"n1": "fits", "n2": "fits"},
    ),
}


TWO_CASES: dict[str, tuple[list[Any], dict[str, str]]] = {
    "the other claim has devices": (
        [offers("n1", "g1"), offers("n2", "g2"), resource_claim("d", asks())],
        {"n1": ELSEWHERE, "n2": "fits"},
    ),
    "the other claim has none where the first is available": (
        [offers("n1", "g1"), resource_claim("d", asks())],
        {"n1": ELSEWHERE, "n2": CANNOT},
    ),
    "the other claim has none": ([offers("n2", "g0"), resource_claim("d", asks())], {"n1": CANNOT, "n2": CANNOT}),
    "the other claim has devices of pods, and their eviction does not move the first": (
        [
            offers("n1", "g1"),
            resource_claim("d", asks()),
            resource_claim("x", asks(), allocation=held("g1", at="n1"), reserved_for=[VICTIM]),
            pod("x", at="n1", resource_claims=[PodResourceClaim(name="c", resource_claim_name="x")]),
        ],
        {"n1": CANNOT, "n2": CANNOT},
    ),
    "an invalid pool": (
        [
            offers("n1", "g1", consumes_counters=[CounterUse(counter_set="s")]),
            offers("n2", "g2"),
            resource_claim("d", asks()),
        ],
        {"n1": "UU: invalid resource pools were encountered", "n2": "fits"},
    ),
    "a pool that is being changed": (
        [offers("n1", "g1", slices=2), offers("n2", "g2"), resource_claim("d", asks(allocation_mode="All"))],
        {"n1": f"UU: claim default/d, request r: {UPDATED}", "n2": "fits"},
    ),
    "an error of an expression": (
        [offers("n1", "g1"), offers("n2", "g2", attributes=facts(model="a")), resource_claim("d", asks(1, MODEL))],
        dict.fromkeys(
            ("n1", "n2"),
            f"UU: claim default/d: selector #0 on device {DRIVER}/n1/g1: CEL runtime error: no such key: model. "
            "consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for "
            "optional fields",
        ),
    ),
}


@pytest.mark.parametrize(("objects", "words"), TWO_CASES.values(), ids=TWO_CASES)
def test_one_claim_is_allocated_for_a_node_and_one_is_not(objects: list[Any], words: dict[str, str]) -> None:
    """kube-scheduler looks for devices on each node, also where the first claim is not available."""
    first = resource_claim("c", asks(), allocation=held("g0", at="n2"))
    assert reasons([*NODES, CLASS, first, *objects, user("p", "c", "d")]) == words


@pytest.mark.parametrize(("objects", "words"), NODE_CASES.values(), ids=NODE_CASES)
def test_claims_on_nodes(objects: list[Any], words: dict[str, str]) -> None:
    assert reasons([*NODES, CLASS, *objects, user("p", "c")]) == words


def crowd(count: int) -> list[ClaimConsumer]:
    return [ClaimConsumer(resource="pods", name=f"x{i}", uid=f"u{i}") for i in range(count)]


REFUSED: dict[str, tuple[list[Any], str]] = {
    "no such claim": ([], 'resourceclaim "c" not found'),
    "being deleted": (
        [resource_claim("c", asks(), meta={"deletion_timestamp": "2026-01-01T00:00:00Z"})],
        'resourceclaim "c" is being deleted',
    ),
    "no such class": (
        [resource_claim("c", DeviceRequest(name="r", exactly=ExactRequest(device_class_name="tpu")))],
        "request r: device class tpu does not exist",
    ),
    "too many use it": (
        [resource_claim("c", asks(), allocation=held("g0", at="n1"), reserved_for=crowd(256))],
        "resourceclaim in use",
    ),
    "an expression too far": (
        [resource_claim("c", asks(1, 'device.driver.find("gpu") != ""'))],
        "unsupported: CEL function find()",
    ),
    "derived attributes": (
        [resource_claim("c", asks(derived_attributes=[msgspec.Raw(b'{"name": "custom/numa"}')]))],
        "unsupported: derived attributes",
    ),
    "derived attributes, allocated already": (
        [
            resource_claim(
                "c",
                asks(derived_attributes=[msgspec.Raw(b'{"name": "custom/numa"}')]),
                allocation=held("g0", at="n1", anywhere=True),
            )
        ],
        "unsupported: derived attributes",
    ),
}


@pytest.mark.parametrize(("objects", "text"), REFUSED.values(), ids=REFUSED)
def test_claims_that_let_no_node_be_tried(objects: list[Any], text: str) -> None:
    everything = [*NODES, CLASS, offers("n1", "g0"), *objects, user("p", "c")]
    assert reasons(everything) == {"n1": f"UU: {text}", "n2": f"UU: {text}"}


@pytest.mark.parametrize(
    ("owner", "made", "word"),
    [
        ("uid-p", True, "fits"),
        ("uid-x", True, "UU: ResourceClaim default/p-c was not created for Pod default/p (Pod is not owner)"),
        ("uid-p", False, 'UU: waiting for the resourceclaim of "c" to be created'),
    ],
)
def test_claims_of_templates(owner: str, made: bool, word: str) -> None:
    owners = [OwnerReference(kind="Pod", name="p", uid=owner, controller=True)]
    wire = pod("p", resource_claims=[PodResourceClaim(name="c", resource_claim_template_name="t")])
    if made:
        status = [PodResourceClaimStatus(name="c", resource_claim_name="p-c")]
        wire = replace(wire, status=replace(wire.status, resource_claim_statuses=status))
    found = resource_claim("p-c", asks(), meta={"owner_references": owners})
    assert reasons([NODES[0], CLASS, offers("n1", "g0"), found, wire]) == {"n1": word}


def test_devices_of_a_round_are_taken_once_and_written_with_the_binding() -> None:
    objects = [NODES[0], CLASS, offers("n1", "g0", "g1"), resource_claim("a", asks()), resource_claim("b", asks(2))]
    state = states([*objects, user("p", "a"), user("q", "b", created=1)])
    plan = plan_round(state.snapshot(0.0))
    assert bound(plan) == {"p": "n1"}
    assert messages(plan) == {"q": "0/1 nodes are available: 1 cannot allocate all claims."}
    granted = Granted("r", DeviceId(DRIVER, "n1", "g0"))
    assert [dict(one.devices["claims"]) for one in plan.placements] == [{"default/a": (granted,)}]
    state.bind("default/p", "n1", devices=plan.placements[0].devices)
    written = state.get(ResourceClaim, "default/a")
    assert isinstance(written, ResourceClaim) and written.status.allocation is not None
    assert [one.device for one in written.status.allocation.devices.results] == ["g0"]
    assert [one.uid for one in written.status.reserved_for] == ["uid-p"]
    assert "default/q" in {one.pod_key for one in plan_round(state.snapshot(0.0)).pending}


def test_pods_that_share_a_claim_meet_on_its_node() -> None:
    objects = [*NODES, CLASS, offers("n1", "g0"), offers("n2", "g0"), resource_claim("c", asks())]
    pods = [user("p", "c", node_selector={"kubernetes.io/hostname": "n2"}), user("q", "c", created=1)]
    assert bound(planned([*objects, *pods])) == {"p": "n2", "q": "n2"}


def test_members_that_share_a_claim_are_placed_on_its_node() -> None:
    objects = [*NODES, CLASS, offers("n2", "g0", "g1"), resource_claim("a", asks())]
    members = [user("p-0", "a", gang="g"), user("p-1", "a", gang="g")]
    assert bound(planned([*objects, group("g", 2), *members])) == {"p-0": "n2", "p-1": "n2"}


@pytest.mark.parametrize(("number", "placed"), [(256, True), (257, False)])
def test_a_gang_with_more_members_than_a_claim_may_have_users_is_refused(number: int, placed: bool) -> None:
    objects = [node("n1:300", pods=300), CLASS, offers("n1", "g0"), resource_claim("a", asks())]
    members = [user(f"p-{i}", "a", gang="g") for i in range(number)]
    plan = planned([*objects, group("g", number), *members])
    assert bool(bound(plan)) is placed
    assert placed or "resourceclaim in use" in messages(plan)["p-0"]


def test_members_with_nested_sets_of_devices_are_placed_exactly() -> None:
    big = asks(1, f'device.attributes["{DRIVER}"].big')
    slices = [offers("n1", "g0", attributes=facts(big=True)), offers("n2", "g0", attributes=facts(big=False))]
    objects = [*NODES, CLASS, *slices, resource_claim("a", asks()), resource_claim("b", big)]
    members = [user("p-0", "a", gang="g"), user("p-1", "b", gang="g")]
    assert bound(planned([*objects, group("g", 2), *members])) == {"p-0": "n2", "p-1": "n1"}


@pytest.mark.parametrize("seed", range(40))
def test_a_gang_with_own_claims_is_placed_exactly_where_the_devices_are_enough(seed: int) -> None:
    dice = random.Random(seed)
    models = ["a", "b"]
    free = {at: {model: dice.randrange(4) for model in models} for at in ("n1", "n2")}
    objects: list[Any] = [*NODES, CLASS]
    for at, numbers in free.items():
        for i, model in enumerate(models):
            names = [f"{model}{k}" for k in range(numbers[model])]
            if names:
                objects.append(offers(f"{at}", *names, slices=2, number=i, attributes=facts(model=model)))
            else:
                objects.append(offers(f"{at}", slices=2, number=i))
    wanted = [{model: dice.choice([0, 1, 1, 2]) for model in models} for _ in range(dice.choice([2, 3, 4]))]
    members = []
    for i, numbers in enumerate(wanted):
        requests = [
            DeviceRequest(
                name=model,
                exactly=ExactRequest(
                    device_class_name="gpu",
                    count=number,
                    selectors=selectors(f'device.attributes["{DRIVER}"].model == "{model}"'),
                ),
            )
            for model, number in numbers.items()
            if number
        ]
        objects.append(resource_claim(f"c{i}", *requests))
        members.append(user(f"p-{i}", f"c{i}", gang="g"))
    possible = any(
        all(
            sum(own[model] for own, at in zip(wanted, places, strict=True) if at == name) <= free[name][model]
            for name in free
            for model in models
        )
        for places in itertools.product(free, repeat=len(wanted))
    )
    plan = planned([*objects, group("g", len(wanted)), *members])
    assert bool(bound(plan)) is possible, messages(plan)
    taken = [
        (placement.node, device)
        for placement in plan.placements
        for _, held in placement.devices.get("claims", {}).items()
        for device in held
    ]
    if possible:
        assert len(taken) == sum(map(sum, (own.values() for own in wanted)))
        assert len({one.device for _, one in taken}) == len(taken)
        assert all(one.device.pool == node for node, one in taken)


def test_members_with_a_claim_each_are_one_kind() -> None:
    names = [f"n{i}" for i in range(20)]
    objects: list[Any] = [*(node(f"{name}:8") for name in names), CLASS, *(offers(name, "g0", "g1") for name in names)]
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(40)]
    claims = [resource_claim(f"c{i}", asks()) for i in range(40)]
    plan = planned([*objects, group("g", 40), *members, *claims])
    assert len(bound(plan)) == 40
    assert [str(unit.proof) for unit in plan.units] == ["optimal"]
    assert not plan.units[0].solver


def test_capacity_reaches_expressions() -> None:
    small = offers("n1", "g0", capacity={"memory": DeviceCapacity(value="40Gi")})
    large = offers("n2", "g0", capacity={"memory": DeviceCapacity(value="80Gi")})
    wanted = asks(1, f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi"))')
    words = reasons([*NODES, CLASS, small, large, resource_claim("c", wanted), user("p", "c")])
    assert words == {"n1": CANNOT, "n2": "fits"}


# -- extended resources, evictions, claims left behind -----------------------------------------------------------------


EXTENDED = DeviceClass(
    metadata=ObjectMeta(name="gpu"),
    spec=DeviceClassSpec(
        selectors=selectors(f'device.driver == "{DRIVER}"'), extended_resource_name="gpu.example.com/card"
    ),
)


def test_a_node_without_units_of_a_resource_serves_it_by_devices() -> None:
    slices = [offers("n1", "g0", "g1")]
    asking = [pod(f"p{i}", requests={"gpu.example.com/card": "1"}, created=i) for i in range(3)]
    plan = planned([*NODES, EXTENDED, *slices, *asking])
    assert bound(plan) == {"p0": "n1", "p1": "n1"}
    assert messages(plan) == {"p2": "0/2 nodes are available: 2 cannot allocate all claims."}
    given = [one.devices["claims"] for one in plan.placements]
    assert [list(one) for one in given] == [["default/p0/extended-resources"], ["default/p1/extended-resources"]]


BY_CLASS = "deviceclass.resource.kubernetes.io/gpu"


@pytest.mark.parametrize("resource", ["gpu.example.com/card", BY_CLASS])
def test_a_resource_is_named_by_its_class_or_by_the_name_in_it(resource: str) -> None:
    plan = planned([*NODES, EXTENDED, offers("n1", "g0"), pod("p", requests={resource: "1"})])
    assert bound(plan) == {"p": "n1"}
    granted = Granted("container-0-request-1", DeviceId(DRIVER, "n1", "g0"))
    assert plan.placements[0].devices["claims"] == {"default/p/extended-resources": (granted,)}


def test_a_resource_of_an_unknown_class_is_not_served() -> None:
    plan = planned([*NODES, offers("n1", "g0"), pod("p", requests={BY_CLASS: "1"})])
    assert bound(plan) == {}
    assert messages(plan)["p"].startswith(f"0/2 nodes are available: 2 Insufficient {BY_CLASS}.")


@pytest.mark.parametrize(
    ("capacity", "placed"),
    [
        pytest.param({}, 5, id="shares without limit"),
        pytest.param(
            {"memory": DeviceCapacity(value="40Gi", request_policy=CapacityPolicy(default="10Gi"))}, 4, id="4"
        ),
        pytest.param({"memory": DeviceCapacity(value="40Gi")}, 1, id="a share is the whole"),
        pytest.param(
            {"memory": DeviceCapacity(value="40Gi", request_policy=CapacityPolicy(default="0"))}, 5, id="zero"
        ),
    ],
)
def test_pods_with_extended_resources_share_a_device(capacity: dict[str, DeviceCapacity], placed: int) -> None:
    shared = offers("n1", "g0", capacity=capacity, allow_multiple_allocations=True)
    asking = [pod(f"p{i}", requests={"gpu.example.com/card": "1"}, created=i) for i in range(5)]
    plan = planned([*NODES, EXTENDED, shared, *asking])
    assert bound(plan) == {f"p{i}": "n1" for i in range(placed)}


@pytest.mark.parametrize(("free", "placed"), [((1, 1), 2), ((2, 0), 2), ((1, 0), 0)])
def test_members_with_extended_resources_are_counted_by_free_devices(free: tuple[int, int], placed: int) -> None:
    """n1 and n2 have devices that a claim of another pod holds; the gang needs one device for each of two members."""
    slices = [offers(name, *(f"{name}-{i}" for i in range(2))) for name in ("n1", "n2")]
    taken = [
        resource_claim(f"held-{name}-{i}", asks(), allocation=held(f"{name}-{i}", at=name))
        for name, number in zip(("n1", "n2"), free, strict=True)
        for i in range(number, 2)
    ]
    members = [pod(f"p-{i}", requests={"gpu.example.com/card": "1"}, gang="g") for i in range(2)]
    plan = planned([*NODES, EXTENDED, *slices, *taken, group("g", 2), *members])
    assert len(bound(plan)) == placed


@pytest.mark.parametrize(
    ("facts", "gate"),
    [
        ({"binding_conditions": ["ready"]}, "DRADeviceBindingConditions"),
        ({"allow_multiple_allocations": True}, "DRAConsumableCapacity"),
    ],
)
def test_devices_that_need_a_gate_that_is_off_are_refused_by_its_name(facts: dict[str, Any], gate: str) -> None:
    slices = offers("n1", "g0")
    device = replace(slices.spec.devices[0], **facts)
    slices = replace(slices, spec=replace(slices.spec, devices=[device]))
    objects = [NODES[0], CLASS, slices, resource_claim("c", asks()), user("p", "c")]
    for off in (frozenset[str](), frozenset({gate})):
        state = make_state(live=True)
        for one in objects:
            state.upsert(one)
        claim_book(state.families).gates_off = off
        plan = plan_round(state.snapshot(0.0))
        assert bound(plan) == ({} if off else {"p": "n1"})
        if off:
            assert messages(plan)["p"].startswith(f"0/1 nodes are available: 1 unsupported: {gate} is off.")


def test_an_allocation_that_no_pod_uses_is_dropped_for_a_plan() -> None:
    full = pod("full", requests={"cpu": "8"})
    full = replace(full, spec=replace(full.spec, node_name="n1"))
    claim = resource_claim("c", asks(), allocation=held("g0", at="n1"))
    objects = [*NODES, CLASS, offers("n1", "g0"), offers("n2", "g0"), claim, full, user("p", "c")]
    plan = planned(objects)
    assert bound(plan) == {"p": "n2"}
    assert [one.device.pool for one in plan.placements[0].devices["claims"]["default/c"]] == ["n2"]
