# SPDX-License-Identifier: Apache-2.0
"""Faults of claims, templates and slices in offline input (dra.md 13)."""

from typing import Any

import pytest

from koordpy.api.claim_objects import ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koordpy.decoding.claim_faults import claim_faults
from koordpy.decoding.strict_decoding import decode

GPU = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}


def exactly(**fields: Any) -> dict[str, Any]:
    return {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **fields}}]}


CLAIMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "right": ({"requests": [GPU]}, []),
    "as in v1beta1": ({"requests": [{"name": "gpu", "deviceClassName": "gpu"}]}, []),
    "neither kind": (
        {"requests": [{"name": "gpu"}]},
        ["spec.devices.requests[0]: exactly one of exactly and firstAvailable is required"],
    ),
    "a name twice": ({"requests": [GPU, GPU]}, ['spec.devices.requests[1].name: "gpu" is given twice']),
    "too many alternatives": (
        {"requests": [{"name": "a", "firstAvailable": [{"name": f"s{i}", "deviceClassName": "g"} for i in range(9)]}]},
        ["spec.devices.requests[0].firstAvailable: at most 8 entries"],
    ),
    "no device": (exactly(count=0), ["spec.devices.requests[0].exactly.count: must be greater than zero"]),
    "a count of all": (
        exactly(count=1, allocationMode="All"),
        ["spec.devices.requests[0].exactly.count: must not be given with allocationMode All"],
    ),
    "an unknown mode": (
        exactly(allocationMode="Some"),
        ["spec.devices.requests[0].exactly.allocationMode: must be ExactCount or All"],
    ),
    "an empty constraint": (
        {"requests": [GPU], "constraints": [{}]},
        ["spec.devices.constraints[0]: exactly one of matchAttribute and distinctAttribute is required"],
    ),
    "an attribute without domain": (
        {"requests": [GPU], "constraints": [{"matchAttribute": "numa"}]},
        ["spec.devices.constraints[0].matchAttribute: must be DOMAIN/NAME"],
    ),
    "a constraint on no request": (
        {"requests": [GPU], "constraints": [{"requests": ["x"], "matchAttribute": "a/b"}]},
        ['spec.devices.constraints[0].requests[0]: no request is named "x"'],
    ),
}


@pytest.mark.parametrize(("devices", "faults"), CLAIMS.values(), ids=CLAIMS)
def test_faults_of_claims_and_templates(devices: dict[str, Any], faults: list[str]) -> None:
    claim = decode({"spec": {"devices": devices}}, ResourceClaim).rest
    template = decode({"spec": {"spec": {"devices": devices}}}, ResourceClaimTemplate).rest
    assert claim is not None and template is not None
    assert [str(one) for one in claim_faults(claim)] == faults
    assert [str(one) for one in claim_faults(template)] == [one.replace("spec.", "spec.spec.", 1) for one in faults]


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        ({"nodeName": "n1"}, []),
        ({}, ["spec: exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection is required"]),
        (
            {"nodeName": "n1", "allNodes": True},
            ["spec: exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection is required"],
        ),
        (
            {
                "nodeName": "n1",
                "devices": [
                    {
                        "name": "d",
                        "capacity": {
                            "m": {"value": "1", "requestPolicy": {"validRange": {"min": "1"}, "validValues": ["1"]}}
                        },
                    }
                ],
            },
            ["spec.devices[0].capacity[m].requestPolicy: validRange and validValues must not both be given"],
        ),
    ],
)
def test_faults_of_slices(spec: dict[str, Any], faults: list[str]) -> None:
    found = decode({"spec": spec}, ResourceSlice).rest
    assert found is not None
    assert [str(one) for one in claim_faults(found)] == faults
