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
    "names with a slash": (
        {"requests": [{"name": "a/b", "firstAvailable": [{"name": "c/d", "deviceClassName": "g"}]}]},
        [
            'spec.devices.requests[0].name: "a/b" contains a slash',
            'spec.devices.requests[0].firstAvailable[0].name: "c/d" contains a slash',
        ],
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
        (
            {"nodeSelector": {"nodeSelectorTerms": [{}, {}]}},
            ["spec.nodeSelector.nodeSelectorTerms: must not have more than one term"],
        ),
    ],
)
def test_faults_of_slices(spec: dict[str, Any], faults: list[str]) -> None:
    found = decode({"spec": spec}, ResourceSlice).rest
    assert found is not None
    assert [str(one) for one in claim_faults(found)] == faults


HINTS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "a right slice": (ResourceSlice, {"driver": "d", "pool": {"name": "p"}, "nodeName": "n1"}, []),
    "names of a slice": (
        ResourceSlice,
        {"pool": {"generation": -1, "resourceSliceCount": 0}, "devices": [{}]},
        [
            "spec.pool.generation: -1 is less than 0: the API server would reject it",
            "spec.pool.resourceSliceCount: 0 is less than 1: the API server would reject it",
            "spec.pool.name: is missing: the API server would reject it",
            "spec.devices[0].name: is missing: the API server would reject it",
            "spec.driver: is missing: the API server would reject it",
        ],
    ),
    "an unknown effect of a taint is allowed, a misspelt one is not": (
        ResourceSlice,
        {
            "driver": "d",
            "pool": {"name": "p"},
            "devices": [
                {"name": "a", "taints": [{"key": "k", "effect": "Throttle"}, {"key": "k", "effect": "NoShedule"}]}
            ],
        },
        ["spec.devices[0].taints[1].effect: 'NoShedule' is not read, did you mean NoSchedule?"],
    ),
    "names of requests": (
        ResourceClaim,
        {"devices": {"requests": [{"exactly": {}}, {"name": "a", "firstAvailable": [{"adminAccess": True}]}]}},
        [
            "spec.devices.requests[0].exactly.deviceClassName: is missing: the API server would reject it",
            "spec.devices.requests[0].name: is missing: the API server would reject it",
            "spec.devices.requests[1].firstAvailable[0].adminAccess: is not read: an alternative has no admin access",
            "spec.devices.requests[1].firstAvailable[0].name: is missing: the API server would reject it",
            "spec.devices.requests[1].firstAvailable[0].deviceClassName: is missing: the API server would reject it",
        ],
    ),
    "a name that is no label": (
        ResourceClaim,
        {"devices": {"requests": [{**GPU, "name": "A.b"}]}},
        [
            "spec.devices.requests[0].name: 'A.b' is not a valid name of a request (as in gpu): the API server would "
            "reject it"
        ],
    ),
    "a toleration": (
        ResourceClaim,
        {"devices": exactly(tolerations=[{"operator": "In"}])},
        [
            "spec.devices.requests[0].exactly.tolerations[0].operator: 'In' is none of Exists, Equal: the API server "
            "would reject it"
        ],
    ),
    "requests of a configuration": (
        ResourceClaim,
        {
            "devices": {
                "requests": [GPU],
                "config": [{"requests": ["gpu", "x"]}, {"requests": "gpu"}, {"requests": [1]}],
            }
        },
        [
            'spec.devices.config[0].requests[1]: no request is named "x": the API server would reject it',
            "spec.devices.config[1].requests: must be a list, not the string 'gpu'",
            "spec.devices.config[2].requests[0]: must be a string, not the number 1",
        ],
    ),
}


@pytest.mark.parametrize(("kind", "spec", "texts"), HINTS.values(), ids=HINTS)
def test_warnings_and_faults_of_fields(kind: Any, spec: dict[str, Any], texts: list[str]) -> None:
    found = decode({"spec": spec}, kind)
    assert sorted(str(one) for one in (*found.doubts, *found.faults)) == sorted(texts)
