# SPDX-License-Identifier: Apache-2.0
"""What counts in place of an object that cannot be read is never more room and never fewer rules, kind by kind."""

import json
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import Device, DeviceEntry, DeviceSpec
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.api.storage_objects import CSIDriver, CSINode, CSIVolumeSource
from koordpy.decoding.wire_json import Undecodable, WireReader, unreadable
from koordpy.engine.watching.object_substitutes import RESTRICTIONS, substitute_for
from koordpy.offline.read_kinds import _KINDS
from koordpy.preemption.selection.disruption_budgets import protects
from tests.planning.node_rules import node, pod, reasons, states
from tests.planning.test_filter_dra import CLASS, asks, offers, resource_claim
from tests.planning.test_filter_dra import user as device_user
from tests.planning.test_filter_volumes import GONE, NO_SPACE, NO_VOLUME, TOO_MANY, claim, disk, storage_class, user

ONLY_RANK_OR_COUNT = {
    "Namespace", "PriorityClass", "VolumeAttachment", "ConfigMap",
    "Service", "ReplicationController", "ReplicaSet", "StatefulSet",
}  # fmt: skip
NODE = node("n1:8")
NOT_WATCHED = {"NamedObject", "ResourceClaimTemplate", "ComputeDomain"}


def unread(obj: Any, part: str, value: Any = 7, known: Any | None = None) -> Any:
    """What counts for an object one part of which says what no part can say."""
    raw = {**to_builtins(obj), part: value}
    with pytest.raises(Undecodable) as caught:
        WireReader(type(obj)).read(json.dumps(raw).encode())
    return substitute_for(type(obj), caught.value, known)


def test_every_kind_that_is_read_says_what_it_means_or_only_ranks_or_counts() -> None:
    kinds = {kind.type.__name__ for kind in _KINDS.values()} - NOT_WATCHED
    assert {kind.__name__ for kind in RESTRICTIONS} == kinds - ONLY_RANK_OR_COUNT
    assert kinds >= ONLY_RANK_OR_COUNT


KINDS = sorted({kind.type for kind in _KINDS.values()}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_counts_is_marked_and_has_the_name_the_version_and_what_was_read_last(kind: type[Any]) -> None:
    part = next(
        name for name in ("spec", "data", "value", "provisioner", "capacity", "metadata") if hasattr(kind(), name)
    )
    wrong: Any = {"name": "x", "labels": 7} if part == "metadata" else []
    known = kind(metadata=ObjectMeta(name="x", resource_version="1"))
    fresh = kind(metadata=ObjectMeta(name="x", resource_version="2"))
    for before in (None, known):
        found = unread(fresh, part, wrong, before)
        if found is not None:
            assert (found.metadata.name, unreadable(found.metadata) != "") == ("x", True)
            assert part == "metadata" or found.metadata.resource_version == "2"


def test_a_node_is_cordoned_and_keeps_the_room_that_it_had() -> None:
    for before, room in ((None, {}), (NODE, NODE.status.allocatable)):
        found = unread(NODE, "status", {"allocatable": 5}, before)
        assert found.spec.unschedulable and found.status.allocatable == room


def test_a_pending_pod_is_gated_and_one_that_is_bound_or_ends_meanwhile_is_so() -> None:
    known = Pod(metadata=ObjectMeta(name="p"))
    pending = unread(known, "spec", {"containers": "none"}, known)
    assert [gate.name for gate in pending.spec.scheduling_gates] == [keys.UNREADABLE]
    bound = unread(known, "spec", {"containers": "none", "nodeName": "n1"}, pending)
    assert (bound.spec.node_name, bound.spec.scheduling_gates) == ("n1", [])
    ended = replace(known, status=replace(known.status, phase="Succeeded"))
    assert unread(ended, "spec", [], bound).status.phase == "Succeeded"


def test_claims_volumes_and_classes_let_no_pod_through() -> None:
    mine, delayed, volume = user("p", "data"), claim("data"), disk("v1", "5Gi", "n1")
    bound, taken = claim("data", volume="v1"), disk("v1", "5Gi", "n1", phase="Bound")
    assert reasons([NODE, mine, delayed, volume, storage_class()]) == {"n1": "fits"}
    assert reasons([NODE, mine, bound, taken]) == {"n1": "fits"}
    for one, objects in ((delayed, [volume, storage_class()]), (bound, [taken])):
        odd = unread(one, "spec", {"selector": 7}, one)
        assert reasons([NODE, mine, odd, *objects]) == {"n1": 'UU: persistentvolumeclaim "data" cannot be read'}
    for gone in (unread(volume, "spec"), unread(storage_class(), "provisioner"), unread(volume, "spec", 7, volume)):
        assert gone is None
    assert reasons([NODE, mine, bound]) == {"n1": GONE}
    assert reasons([NODE, mine, delayed, storage_class()]) == {"n1": NO_VOLUME}
    assert reasons([NODE, mine, delayed, volume])["n1"].startswith("UU: pod has unbound immediate")


def test_csi_nodes_and_drivers_give_no_room() -> None:
    csi = CSIVolumeSource(driver="csi.example", volume_handle="h")
    objects = [NODE, node("n2:8"), user("p", "data"), claim("data", volume="v1"), disk("v1", phase="Bound", csi=csi)]
    assert reasons(objects) == {"n1": "fits", "n2": "fits"}
    odd = unread(CSINode(metadata=ObjectMeta(name="n1")), "spec", {"drivers": 7})
    assert reasons([*objects, odd]) == {"n1": TOO_MANY, "n2": "fits"}
    made = [NODE, user("p", "data"), claim("data"), storage_class(provisioner="csi.example")]
    assert reasons(made) == {"n1": "fits"}
    driver = unread(CSIDriver(metadata=ObjectMeta(name="csi.example")), "spec")
    assert reasons([*made, driver]) == {"n1": NO_SPACE}


def test_resource_claims_slices_and_classes_give_no_devices() -> None:
    asking, devices, mine = device_user("p", "c"), offers("n1", "d0"), resource_claim("c", asks(1))
    assert reasons([NODE, asking, CLASS, devices, mine]) == {"n1": "fits"}
    odd = unread(mine, "status", {"allocation": 5}, mine)
    assert reasons([NODE, asking, CLASS, devices, odd]) == {"n1": 'UU: resourceclaim "c" cannot be read'}
    assert unread(devices, "spec") is unread(CLASS, "spec") is None


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("devices", [[{"type": "gpu", "minor": "0"}, {"type": "gpu", "minor": 1}], "all"])
def test_no_device_of_a_node_is_given(known: bool, devices: Any) -> None:
    entries = [DeviceEntry(type="gpu", minor=minor, id=f"g{minor}") for minor in range(4)]
    good = Device(metadata=ObjectMeta(name="n1"), spec=DeviceSpec(devices=entries))
    odd = unread(good, "spec", {"devices": devices}, good if known else None)
    asking = [node("n1:8", {}, **{"nvidia.com/gpu": "4"}), pod("p", requests={"nvidia.com/gpu": "1"})]
    assert reasons([*asking, good]) == {"n1": "fits"}
    assert reasons([*asking, odd])["n1"] != "fits"


def test_a_budget_allows_no_disruption_of_any_pod_that_it_may_speak_of() -> None:
    meta = ObjectMeta(name="b", namespace="default")
    known = PodDisruptionBudget(
        metadata=meta, spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"a": "b"}))
    )
    good = replace(known, status=PodDisruptionBudgetStatus(disruptions_allowed=3))
    (running,) = states([NODE, pod("p", at="n1")]).pods()
    for budget, before, part, value, covered in (
        (known, None, "spec", {"selector": 7}, True),
        (known, None, "spec", 7, True),
        (known, known, "spec", {"minAvailable": []}, False),
        (good, good, "status", {"disruptionsAllowed": "3"}, False),
    ):
        odd = unread(budget, part, value, before)
        assert (odd.status.disruptions_allowed, protects(odd, running)) == (0, covered)
