# SPDX-License-Identifier: Apache-2.0
"""Extended resources that devices serve (`example.com/card`), for scenes and storms: pods that ask for them, and what
goes wrong while their claims are written."""

from typing import Any

from koordpy.engine.binding.claim_calls import FINALIZER
from tests.engine.live import Live, gang, pod
from tests.engine.manifests import CLAIMS_OF_DEVICES

CARD = "example.com/card"
SLICES = "resourceslices.resource.k8s.io"
CLASSES = "deviceclasses.resource.k8s.io"


def map_cards(cluster: Live) -> None:
    """The class of the drivers' devices serves cards."""
    cluster.server.store.update(
        CLASSES, "gpu", lambda obj: {**obj, "spec": {**obj["spec"], "extendedResourceName": CARD}}
    )


def plain(name: str) -> dict[str, Any]:
    """A pod that asks for nothing."""
    return pod(name, gpus=0, cpu="0", memory="0")


def carded(name: str, count: int = 1) -> dict[str, Any]:
    """A pod that asks for cards."""
    made = plain(name)
    made["spec"]["containers"][0]["resources"] = {"requests": {CARD: str(count)}, "limits": {CARD: str(count)}}
    return made


def carded_gang(name: str, members: int, count: int = 1) -> list[dict[str, Any]]:
    """A gang of such pods."""
    group, *pods = gang(name, members, gpus=0)
    for one in pods:
        one["spec"]["containers"][0]["resources"] = {"requests": {CARD: str(count)}, "limits": {CARD: str(count)}}
    return [group, *pods]


def name_a_claim_that_is_gone(cluster: Live, name: str) -> None:
    """A leader died after it had named a claim in a pod's status."""
    stale = {"extendedResourceClaimStatus": {"resourceClaimName": "gone", "requestMappings": []}}
    cluster.server.store.update(
        "pods",
        name,
        lambda obj: {**obj, "status": {**obj.get("status", {}), **stale}},
        namespace="default",
        status=True,
    )


def leave_a_claim(cluster: Live, owner: str) -> None:
    """A leader died after it had created a claim for a pod: it is allocated to nobody yet."""
    uid = cluster.pods()[owner]["metadata"]["uid"]
    meta = {
        "name": f"{owner}-extended-resources-left",
        "namespace": "default",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "finalizers": [FINALIZER],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": uid, "controller": True}],
    }
    request = {"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu", "count": 1}}
    cluster.server.store.create(CLAIMS_OF_DEVICES, {"metadata": meta, "spec": {"devices": {"requests": [request]}}})


def ask_for_conditions(cluster: Live) -> None:
    """Every device must be made ready before a pod that uses it is bound."""
    asked = {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    for name in [one["metadata"]["name"] for one in cluster.server.store.list(SLICES)]:
        cluster.server.store.update(SLICES, name, lambda obj: {**obj, "spec": _with(obj["spec"], asked)})


def _with(spec: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "devices": [{**one, **asked} for one in spec["devices"]]}


def report(cluster: Live, claim: str, condition: str = "ready") -> None:
    """The driver reports a condition of all devices of a claim, if it is allocated."""

    def reported(obj: dict[str, Any]) -> dict[str, Any]:
        status = obj.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        told = {"type": condition, "status": "True", "reason": "Attached", "message": "by the fabric"}
        ids = [{key: one[key] for key in ("driver", "pool", "device")} for one in results]
        return {**obj, "status": {**status, "devices": [{**one, "conditions": [told]} for one in ids]}}

    cluster.server.store.update(CLAIMS_OF_DEVICES, claim, reported, namespace="default", status=True)


def bad_weather(cluster: Live) -> None:
    """Every kind of request about a claim for extended resources fails once or twice."""
    faults = cluster.server.faults
    faults.fail("drop", method="POST", path="*/resourceclaims", times=1, after=True)
    faults.fail(500, method="POST", path="*/resourceclaims", times=1)
    faults.fail(409, method="PATCH", path="*-extended-resources-*/status", times=1)
    faults.fail("drop", method="PATCH", path="*-extended-resources-*/status", times=1, after=True)
    faults.fail(500, method="GET", path="*-extended-resources-*", times=8)
    faults.fail(500, method="PATCH", path="*/pods/*/status", times=1)
    faults.fail(500, method="DELETE", path="*/resourceclaims/*", times=1)
    faults.fail(409, method="DELETE", path="*/resourceclaims/*", times=1)
    faults.fail(429, method="POST", path="*/binding", times=2, retry_after=0)
