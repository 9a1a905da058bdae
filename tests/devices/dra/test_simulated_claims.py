# SPDX-License-Identifier: Apache-2.0
"""Claims at the end of a simulation, for objects with unusual names and for extended resources (dra.md 1, 2, 8, 13)."""

from pathlib import Path
from typing import Any

import pytest

from tests.workloads.cluster import Json, simulate, workload

API = "resource.k8s.io/v1"
MADE = {"resource.kubernetes.io/extended-resource-claim": "true"}


def node(name: str) -> Json:
    room = {"cpu": 8, "pods": 110}
    return workload("v1", "Node", name, {}, status={"allocatable": room, "capacity": room})


def device_class(**spec: Any) -> Json:
    return workload(API, "DeviceClass", "gpu", spec)


def offered(*devices: Json, **spec: Any) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    where = spec or {"nodeName": "n1"}
    return workload(API, "ResourceSlice", "s", {"driver": "d.example.com", "pool": pool, **where, "devices": devices})


def claim(name: str, *held: str, request: Json | None = None, meta: Json | None = None) -> Json:
    requests = [request or {"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    results = [{"request": "r", "driver": "d.example.com", "pool": "p", "device": one} for one in held]
    status = {"allocation": {"devices": {"results": results}}} if held else {}
    meta = {"namespace": "default", **(meta or {})}
    return workload(API, "ResourceClaim", name, {"devices": {"requests": requests}}, meta=meta, status=status)


def pod(name: str, *claims: str, limits: Json | None = None, node: str = "") -> Json:
    spec: Json = {
        "schedulerName": "koord-scheduler",
        "containers": [{"name": "c", "image": "i", "resources": {"limits": limits or {}}}],
        "resourceClaims": [{"name": f"c{i}", "resourceClaimName": one} for i, one in enumerate(claims)],
    }
    return workload("v1", "Pod", name, {**spec, "nodeName": node} if node else spec, meta={"uid": f"uid-{name}"})


def leftover(of: str, *held: str) -> Json:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": of, "uid": f"uid-{of}", "controller": True}
    return claim(f"{of}-extended-resources-x", *held, meta={"annotations": MADE, "ownerReferences": [owner]})


D0, D1 = {"name": "d0"}, {"name": "d1"}
GPUS = device_class(extendedResourceName="nvidia.com/gpu")
BY_NAME = "deviceclass.resource.kubernetes.io/gpu"
CASES: dict[str, tuple[list[Json], dict[str, list[str]]]] = {
    "a resource that selects a class by its name": (
        [device_class(), offered(D0, D1), pod("p", limits={BY_NAME: 2})],
        {"p-extended-resources-sim": ["container-0-request-0 d0", "container-0-request-0 d1"]},
    ),
    "a claim with a name like those of extended resources": (
        [device_class(), offered(D0), claim("x-extended-resources"), pod("p", "x-extended-resources")],
        {"x-extended-resources": ["r d0"]},
    ),
    "a claim with the name of the pod's claim for extended resources": (
        [
            GPUS,
            offered(D0, D1),
            claim("p-extended-resources"),
            pod("p", "p-extended-resources", limits={"nvidia.com/gpu": 1}),
        ],
        {"p-extended-resources": ["r d0"], "p-extended-resources-sim": ["container-0-request-0 d1"]},
    ),
    "a claim for extended resources that an unbound pod has left": (
        [GPUS, offered(D0), leftover("p", "d0"), pod("p", limits={"nvidia.com/gpu": 1})],
        {"p-extended-resources-sim": ["container-0-request-0 d0"]},
    ),
    "a claim for extended resources of a bound pod": (
        [GPUS, offered(D0, D1), leftover("q", "d0"), pod("q", limits={"nvidia.com/gpu": 1}, node="n1"), pod("p")],
        {"q-extended-resources-x": ["r d0"]},
    ),
    "an alternative has no admin access": (
        [
            device_class(),
            offered(D0),
            claim("a", "d0"),
            claim(
                "c",
                request={
                    "name": "r",
                    "firstAvailable": [{"name": "s", "deviceClassName": "gpu", "adminAccess": True}],
                },
            ),
            pod("p", "c"),
        ],
        {"a": ["r d0"], "c": []},
    ),
    "a generation below 0": (
        [
            device_class(),
            workload(
                API,
                "ResourceSlice",
                "s",
                {"driver": "d", "pool": {"name": "p", "generation": -1}, "nodeName": "n1", "devices": [D0]},
            ),
            claim("c"),
            pod("p", "c"),
        ],
        {"c": ["r d0"]},
    ),
}


@pytest.mark.parametrize(("objects", "wanted"), CASES.values(), ids=CASES)
def test_claims_of_a_simulation(tmp_path: Path, objects: list[Json], wanted: dict[str, list[str]]) -> None:
    document = simulate(tmp_path, node("n1"), *objects).document
    given = {one["name"]: [f"{r['request']} {r['device']}" for r in one["results"]] for one in document["claims"]}
    assert given == wanted


def test_pods_that_have_reserved_a_claim_are_in_natural_order(tmp_path: Path) -> None:
    users = [pod(name, "c") for name in ("p-10", "p-2", "p-1")]
    document = simulate(tmp_path, node("n1"), device_class(), offered(D0), claim("c"), *users).document
    assert [one["reservedFor"] for one in document["claims"]] == [["p-1", "p-2", "p-10"]]


def test_devices_of_different_nodes_may_have_equal_names(tmp_path: Path) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    slices = [
        workload(
            API,
            "ResourceSlice",
            f"of-{name}",
            {
                "driver": "d.example.com",
                "pool": pool,
                "nodeName": name,
                "devices": [{"name": "d", "bindingConditions": [name]}],
            },
        )
        for name in ("n1", "n2")
    ]
    objects = [node("n1"), node("n2"), device_class(), *slices, claim("c")]
    document = simulate(tmp_path, *objects, pod("p", "c")).document
    at = [one["node"] for one in document["bindings"]]
    [made] = document["claims"]
    assert made["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == at
    assert made["results"][0]["bindingConditions"] == at


BINDS = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
LONG_AGO = {"allocationTimestamp": "2026-01-01T00:00:00Z"}


def reported(kind: str) -> list[Json]:
    """What the driver says of device d0."""
    at = {"driver": "d.example.com", "pool": "p", "device": "d0"}
    return [{**at, "conditions": [{"type": kind, "status": "True"}]}]


@pytest.mark.parametrize(
    ("allocation", "states", "user", "wanted"),
    [
        pytest.param({}, [], "p", 0, id="not ready yet"),
        pytest.param({}, reported("Failed"), "p", 1, id="failed"),
        pytest.param(LONG_AGO, [], "p", 1, id="not ready for too long"),
        pytest.param(LONG_AGO, reported("Ready"), "p", 0, id="ready"),
        pytest.param({}, reported("Failed"), "q", None, id="failed, but in use by a running pod"),
    ],
)
def test_a_claim_whose_devices_do_not_become_ready_is_allocated_anew(
    tmp_path: Path, allocation: Json, states: list[Json], user: str, wanted: int | None
) -> None:
    made = claim("c", "d0")
    made["status"]["allocation"] |= allocation
    made["status"]["allocation"]["devices"]["results"][0] |= BINDS
    made["status"] |= {
        "devices": states,
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"}],
    }
    objects = [node("n1"), device_class(), offered({**D0, **BINDS}), made, pod("q", "c", node="n1"), pod("p", "c")]
    document = simulate(tmp_path, *objects, args=("--now", "2026-01-01T01:00:00Z")).document
    if wanted is None:
        assert "resourceclaim not available on the node" in document["pending"][0]["message"]
    else:
        assert [one["round"] for one in document["claims"]] == [wanted]
        assert [one["pod"] for one in document["bindings"]] == ["p"]


@pytest.mark.parametrize(
    ("conditions_at", "device"),
    [("n1", "z"), ("n2", "z"), ("", "a1")],
    ids=["of the node", "of another node in the same slice", "none"],
)
def test_pools_with_binding_conditions_come_last(tmp_path: Path, conditions_at: str, device: str) -> None:
    def listed(name: str) -> Json:
        binds = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
        return {"name": f"a{name[1:]}", "nodeName": name, **(binds if name == conditions_at else {})}

    first = offered(listed("n1"), listed("n2"), perDeviceNodeSelection=True)
    second = offered({"name": "z"}, nodeName="n1")
    second["metadata"]["name"] = second["spec"]["pool"]["name"] = "t"
    objects = [node("n1"), device_class(), first, second, claim("c"), pod("p", "c")]
    document = simulate(tmp_path, *objects, config={"dra": {"choice": "firstFit"}}).document
    assert [one["device"] for one in document["claims"][0]["results"]] == [device]


def test_a_further_share_draws_on_no_counter(tmp_path: Path) -> None:
    """The driver has lowered the counter below what the first share of the device uses."""
    card = {**D0, "allowMultipleAllocations": True, "capacity": {"m": {"value": "8"}}}
    card["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": "2"}}}]
    slices = [offered(card), offered()]
    slices[1]["metadata"]["name"] = "counters"
    slices[1]["spec"]["sharedCounters"] = [{"name": "s", "counters": {"c": {"value": "1"}}}]
    for one in slices:
        one["spec"]["pool"]["resourceSliceCount"] = 2
    held = claim("a", "d0")
    held["status"]["allocation"]["devices"]["results"][0] |= {"shareID": "x", "consumedCapacity": {"m": "3"}}
    asked = {"name": "r", "exactly": {"deviceClassName": "gpu", "capacity": {"requests": {"m": "5"}}}}
    objects = [node("n1"), device_class(), *slices, held, claim("c", request=asked), pod("p", "c")]
    document = simulate(tmp_path, *objects).document
    assert [one["pod"] for one in document["bindings"]] == ["p"]
    assert document["claims"][1]["results"][0]["consumedCapacity"] == {"m": "5"}
