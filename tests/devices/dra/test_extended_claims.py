# SPDX-License-Identifier: Apache-2.0
"""The claim for the extended resources of a pod: requests, and which request serves a container (dra.md 8)."""

import pytest

from koordpy.api.claim_objects import DeviceClass, DeviceClassSpec
from koordpy.api.objects import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements
from koordpy.devices.dra.ledger.extended_claims import extended_claim
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers

GPU, BY_NAME = "nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu"
CLASS = DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(extended_resource_name=GPU))
OFFERS = DeviceOffers({}, {"gpu": CLASS}, {})


def box(name: str, number: int, *, sidecar: bool = False, resource: str = GPU) -> Container:
    limits: dict[str, str | int | float] = {"cpu": "1", **({resource: str(number)} if number else {})}
    return Container(
        name=name, resources=ResourceRequirements(limits=limits), restart_policy="Always" if sidecar else ""
    )


@pytest.mark.parametrize(
    ("inits", "mains", "counts", "mappings"),
    [
        pytest.param([], [box("a", 2), box("b", 0)], {"container-0-request-1": 2}, ["a 0"], id="one container"),
        pytest.param(
            [box("i", 3)],
            [box("a", 1), box("b", 1)],
            {"container-0-request-1": 1, "container-1-request-1": 1, "container-2-request-1": 1},
            ["a 1", "b 2", "i 1", "i 2", "i 0"],
            id="an init container requests the rest",
        ),
        pytest.param(
            [box("i", 2), box("s", 1, sidecar=True), box("j", 4)],
            [box("a", 1)],
            {"container-1-request-1": 1, "container-2-request-1": 3, "container-3-request-1": 1},
            ["s 1", "a 3", "i 1", "i 3", "j 3", "j 2"],
            id="a sidecar serves init containers before it",
        ),
        pytest.param(
            [box("i", 3), box("j", 3)],
            [],
            {"container-0-request-1": 3},
            ["i 0", "j 0"],
            id="of equal rests the first becomes a request",
        ),
        pytest.param(
            [], [box("a", 2, resource=BY_NAME)], {"container-0-request-1": 2}, ["a 0"], id="a class by its name"
        ),
    ],
)
def test_requests_and_mappings(
    inits: list[Container], mains: list[Container], counts: dict[str, int], mappings: list[str]
) -> None:
    pod = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(init_containers=inits, containers=mains))
    resource = BY_NAME if any(BY_NAME in one.resources.limits for one in mains) else GPU
    made = extended_claim(pod, [resource], OFFERS)
    assert {one.name: one.exact.count for one in made.devices.requests} == counts
    assert [f"{one.container} {one.request.split('-')[1]}" for one in made.mappings] == mappings
