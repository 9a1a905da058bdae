# SPDX-License-Identifier: Apache-2.0
"""VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone (kube-parity.md 2.8)."""

from typing import Any

import pytest
from msgspec import convert

from koordpy.api.objects import (
    AwsDisk,
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
    PersistentVolumeClaimSource,
    Pod,
    Requirement,
    Volume,
)
from koordpy.api.storage_objects import (
    BIND_COMPLETED,
    SELECTED_NODE,
    ClaimReference,
    CSIDriver,
    CSIDriverSpec,
    CSINode,
    CSINodeAllocatable,
    CSINodeDriver,
    CSINodeSpec,
    CSIStorageCapacity,
    CSIVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    StorageClass,
    TopologyLabelRequirement,
    TopologyTerm,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeNodeAffinity,
    VolumeResources,
)
from koordpy.plan.round_plan import Proof
from koordpy.plugins.volume_binding import VolumeReach
from tests.planning.node_rules import leaving, node, planned, pod, reasons, states
from tests.scenarios.cluster import bound, group, messages

HOST = "kubernetes.io/hostname"
WRONG_NODE = "UU: node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "UU: node(s) didn't find available persistent volumes to bind"
NO_SPACE = "UU: node(s) did not have enough free storage"
GONE = "UU: node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
NO_ZONE = "UU: node(s) had no available volume zone"
NO_DISK = "U: node(s) had no available disk"
ONE_POD = "U: node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
TOO_MANY = "U: node(s) exceed max volume count"


def claim(name: str, size: str = "5Gi", *, cls: str | None = "local", volume: str = "", **more: Any) -> Any:
    """A claim; with a volume it is bound to it for good, unless `unfinished`."""
    notes = dict(more.pop("annotations", {}))
    if volume and not more.pop("unfinished", False):
        notes[BIND_COMPLETED] = "yes"
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=notes, **more.pop("meta", {}))
    spec = PersistentVolumeClaimSpec(
        storage_class_name=cls,
        volume_name=volume,
        access_modes=more.pop("modes", ["ReadWriteOnce"]),
        resources=VolumeResources(requests={"storage": size}),
        **more.pop("spec", {}),
    )
    return PersistentVolumeClaim(metadata=meta, spec=spec, status=PersistentVolumeClaimStatus(**more))


def on(*names: str) -> VolumeNodeAffinity:
    expression = Requirement(key=HOST, operator="In", values=list(names))
    return VolumeNodeAffinity(
        required=NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[expression])])
    )


def disk(name: str, size: str = "5Gi", *at: str, cls: str = "local", phase: str = "Available", **spec: Any) -> Any:
    """A volume on the given nodes, anywhere without any."""
    meta = ObjectMeta(name=name, labels=spec.pop("labels", {}), **spec.pop("meta", {}))
    return PersistentVolume(
        metadata=meta,
        spec=PersistentVolumeSpec(
            capacity={"storage": size},
            storage_class_name=cls,
            access_modes=spec.pop("modes", ["ReadWriteOnce"]),
            node_affinity=on(*at) if at else None,
            **spec,
        ),
        status=PersistentVolumeStatus(phase=phase),
    )


def storage_class(name: str = "local", provisioner: str = "kubernetes.io/no-provisioner", **more: Any) -> StorageClass:
    more.setdefault("volume_binding_mode", "WaitForFirstConsumer")
    return StorageClass(metadata=ObjectMeta(name=name), provisioner=provisioner, **more)


def user(name: str, *claims: str, **settings: Any) -> Pod:
    """A pod with claims."""
    volumes = [
        Volume(name=f"v{i}", persistent_volume_claim=PersistentVolumeClaimSource(claim_name=c))
        for i, c in enumerate(claims)
    ]
    return pod(name, volumes=volumes, **settings)


NODES = [node("n1:8"), node("n2:8")]
LOCAL = storage_class()


def test_claims_look_for_volumes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    of = VolumeReach.of

    def counted(self: VolumeReach, volume: PersistentVolume) -> Any:
        looked.append(volume.metadata.name)
        return of(self, volume)

    monkeypatch.setattr(VolumeReach, "of", counted)
    names = [f"c{i}" for i in range(60)]
    claims = [claim(name, f"{100 + i}Mi") for i, name in enumerate(names)]
    volumes = [disk(f"d{i}", f"{80 + i}Mi", f"n{i % 2 + 1}") for i in range(200)]
    plan = planned([*NODES, LOCAL, *claims, *volumes, user("p", *names)])
    (placed,) = plan.placements
    assert placed.claims == {f"default/c{i}": f"d{20 + i + i}" for i in range(60)}
    assert len(looked) <= 2 * len(volumes)


# -- before any node is tried ------------------------------------------------------------------------------------------

PREFILTER: dict[str, tuple[list[Any], str]] = {
    "no such claim": ([], 'persistentvolumeclaim "c" not found'),
    "the claim is being deleted": (
        [claim("c", meta={"deletion_timestamp": "2026-01-01T00:00:00Z"})],
        'persistentvolumeclaim "c" is being deleted',
    ),
    "the claim is lost": (
        [claim("c", volume="v", phase="Lost")],
        'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"',
    ),
    "unbound with an immediate class": (
        [claim("c"), storage_class(volume_binding_mode="Immediate")],
        "pod has unbound immediate PersistentVolumeClaims",
    ),
    "unbound with a class without mode": (
        [claim("c"), storage_class(volume_binding_mode="")],
        "pod has unbound immediate PersistentVolumeClaims",
    ),
    "unbound with an unknown class": ([claim("c")], "pod has unbound immediate PersistentVolumeClaims"),
    "unbound without a class": ([claim("c", cls="")], "pod has unbound immediate PersistentVolumeClaims"),
    "a volume's name without the annotation": (
        [claim("c", volume="v", unfinished=True), LOCAL, disk("v")],
        "pod has unbound immediate PersistentVolumeClaims",
    ),
}


@pytest.mark.parametrize(("objects", "text"), PREFILTER.values(), ids=PREFILTER)
def test_claims_that_let_no_node_be_tried(objects: list[Any], text: str) -> None:
    assert reasons([*NODES, *objects, user("p", "c")]) == {"n1": f"UU: {text}", "n2": f"UU: {text}"}
    plan = planned([*NODES, *objects, user("p", "c")])
    assert messages(plan) == {"p": f"0/2 nodes are available: {text}."}


def ephemeral(**settings: Any) -> Pod:
    return pod("p", volumes=[Volume(name="data", ephemeral={"volumeClaimTemplate": {}})], **settings)


def owned(uid: str) -> dict[str, Any]:
    return {"owner_references": [OwnerReference(kind="Pod", name="p", uid=uid, controller=True)]}


EPHEMERAL: dict[str, tuple[list[Any], str]] = {
    "not there yet": (
        [],
        'UU: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-data"',
    ),
    "of another pod": (
        [claim("p-data", volume="v", meta=owned("uid-other")), disk("v")],
        "UU: PVC default/p-data was not created for pod default/p (pod is not owner)",
    ),
    "there and bound": ([claim("p-data", volume="v", meta=owned("uid-p")), disk("v")], "fits"),
}


@pytest.mark.parametrize(("objects", "word"), EPHEMERAL.values(), ids=EPHEMERAL)
def test_ephemeral_claims(objects: list[Any], word: str) -> None:
    assert reasons([NODES[0], *objects, ephemeral()]) == {"n1": word}


def test_a_claim_that_nobody_knows_is_waited_for() -> None:
    text = '0/2 nodes are available: persistentvolumeclaim "c" not found.'
    assert messages(planned([*NODES, user("p", "c")])) == {"p": text}


# -- bound claims ------------------------------------------------------------------------------------------------------


def test_a_bound_volume_is_where_its_affinity_says() -> None:
    objects = [*NODES, claim("c", volume="v"), disk("v", "5Gi", "n2"), user("p", "c")]
    assert reasons(objects) == {"n1": WRONG_NODE, "n2": "fits"}


def test_a_volume_that_is_gone_is_nowhere() -> None:
    assert reasons([*NODES, claim("c", volume="v"), user("p", "c")]) == {"n1": GONE, "n2": GONE}


ZONES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "the same zone": ({"topology.kubernetes.io/zone": "a"}, {"topology.kubernetes.io/zone": "a"}, "fits"),
    "another zone": ({"topology.kubernetes.io/zone": "a"}, {"topology.kubernetes.io/zone": "b"}, NO_ZONE),
    "one of several": ({"topology.kubernetes.io/zone": "a__b"}, {"topology.kubernetes.io/zone": "b"}, "fits"),
    "the old name on the volume": (
        {"failure-domain.beta.kubernetes.io/zone": "a"},
        {"topology.kubernetes.io/zone": "b"},
        NO_ZONE,
    ),
    "the old name on the node": (
        {"topology.kubernetes.io/zone": "a"},
        {"failure-domain.beta.kubernetes.io/zone": "a"},
        "fits",
    ),
    "a node without any such label": ({"topology.kubernetes.io/zone": "a"}, {}, "fits"),
    "a node with the other label alone": (
        {"topology.kubernetes.io/zone": "a"},
        {"topology.kubernetes.io/region": "r"},
        NO_ZONE,
    ),
    "region and zone": (
        {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"},
        {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "s"},
        NO_ZONE,
    ),
}


@pytest.mark.parametrize(("labels", "own", "word"), ZONES.values(), ids=ZONES)
def test_zones_of_bound_volumes(labels: dict[str, str], own: dict[str, str], word: str) -> None:
    objects = [node("n1:8", own), claim("c", volume="v"), disk("v", labels=labels), user("p", "c")]
    assert reasons(objects) == {"n1": word}


# -- claims that wait for their pod ------------------------------------------------------------------------------------

EXAMPLE_10 = [LOCAL, disk("small", "5Gi", "n1"), disk("big", "10Gi", "n1")]

WAITING: dict[str, tuple[list[Any], dict[str, str]]] = {
    "example 10: 4Gi and 6Gi": (
        [*EXAMPLE_10, claim("c", "4Gi"), claim("d", "6Gi"), user("p", "d", "c")],
        {"n1": "fits", "n2": NO_VOLUME},
    ),
    "example 10: 6Gi and 6Gi": (
        [*EXAMPLE_10, claim("c", "6Gi"), claim("d", "6Gi"), user("p", "c", "d")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "of another class": (
        [LOCAL, storage_class("other"), disk("v", cls="other"), claim("c"), user("p", "c")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "not available": (
        [LOCAL, disk("v", phase="Released"), claim("c"), user("p", "c")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "being deleted": (
        [LOCAL, disk("v", meta={"deletion_timestamp": "2026-01-01T00:00:00Z"}), claim("c"), user("p", "c")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "of another mode of access": (
        [LOCAL, disk("v"), claim("c", modes=["ReadWriteMany"]), user("p", "c")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "a block device": (
        [LOCAL, disk("v"), claim("c", spec={"volume_mode": "Block"}), user("p", "c")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "by its selector": (
        [
            LOCAL,
            disk("v", "5Gi", "n1"),
            disk("w", "5Gi", "n2", labels={"kind": "ssd"}),
            claim("c", spec={"selector": LabelSelector(match_labels={"kind": "ssd"})}),
            user("p", "c"),
        ],
        {"n1": NO_VOLUME, "n2": "fits"},
    ),
    "reserved for another claim": (
        [LOCAL, disk("v", claim_ref=ClaimReference(namespace="default", name="d")), claim("c"), user("p", "c")],
        {"n1": NO_VOLUME, "n2": NO_VOLUME},
    ),
    "reserved for the claim": (
        [
            LOCAL,
            disk("v", "9Gi", "n2", claim_ref=ClaimReference(namespace="default", name="c")),
            disk("w", "5Gi", "n1"),
            claim("c"),
            user("p", "c"),
        ],
        {"n1": NO_VOLUME, "n2": "fits"},
    ),
    "made for a node already": (
        [
            storage_class(provisioner="csi.example.com"),
            claim("c", annotations={SELECTED_NODE: "n2"}),
            user("p", "c"),
        ],
        {"n1": NO_VOLUME, "n2": "fits"},
    ),
    "made anywhere": (
        [storage_class(provisioner="csi.example.com"), claim("c"), user("p", "c")],
        {"n1": "fits", "n2": "fits"},
    ),
    "made in some places": (
        [
            storage_class(
                provisioner="csi.example.com",
                allowed_topologies=[
                    TopologyTerm(match_label_expressions=[TopologyLabelRequirement(key=HOST, values=["n1"])])
                ],
            ),
            claim("c"),
            user("p", "c"),
        ],
        {"n1": "fits", "n2": NO_VOLUME},
    ),
    "a volume there comes before making one": (
        [
            storage_class(
                provisioner="csi.example.com",
                allowed_topologies=[
                    TopologyTerm(match_label_expressions=[TopologyLabelRequirement(key=HOST, values=["n1"])])
                ],
            ),
            disk("v", "5Gi", "n2"),
            claim("c"),
            user("p", "c"),
        ],
        {"n1": "fits", "n2": "fits"},
    ),
}


@pytest.mark.parametrize(("objects", "words"), WAITING.values(), ids=WAITING)
def test_claims_that_wait_for_their_pod(objects: list[Any], words: dict[str, str]) -> None:
    assert reasons([*NODES, *objects]) == words


def room(at: str, *, cls: str = "local", **sizes: str) -> CSIStorageCapacity:
    topology = LabelSelector(match_labels={HOST: at})
    return CSIStorageCapacity(
        metadata=ObjectMeta(name=f"cap-{at}", namespace="kube-system"),
        storage_class_name=cls,
        node_topology=topology,
        **sizes,
    )


CAPACITY: dict[str, tuple[bool, list[CSIStorageCapacity], str]] = {
    "enough": (True, [room("n1", capacity="5Gi")], "fits"),
    "too little": (True, [room("n1", capacity="4Gi")], NO_SPACE),
    "none reported": (True, [], NO_SPACE),
    "of another class": (True, [room("n1", cls="other", capacity="9Gi")], NO_SPACE),
    "of another node": (True, [room("n2", capacity="9Gi")], NO_SPACE),
    "the largest volume counts before the capacity": (
        True,
        [room("n1", capacity="9Gi", maximum_volume_size="4Gi")],
        NO_SPACE,
    ),
    "a driver that does not report": (False, [], "fits"),
}


@pytest.mark.parametrize(("reports", "capacities", "word"), CAPACITY.values(), ids=CAPACITY)
def test_room_for_volumes_to_be_made(reports: bool, capacities: list[Any], word: str) -> None:
    driver = CSIDriver(metadata=ObjectMeta(name="csi.example.com"), spec=CSIDriverSpec(storage_capacity=reports))
    made = storage_class(provisioner="csi.example.com")
    assert reasons([NODES[0], made, driver, *capacities, claim("c"), user("p", "c")]) == {"n1": word}


def test_one_volume_is_for_one_claim_of_a_round_and_of_the_next() -> None:
    objects = [NODES[0], LOCAL, disk("v"), claim("c"), claim("d"), user("p", "c"), user("q", "d", created=1)]
    state = states(objects)
    from koordpy.planner.planning_round import plan_round

    plan = plan_round(state.snapshot(0.0))
    assert [(p.pod_key, dict(p.claims)) for p in plan.placements] == [("default/p", {"default/c": "v"})]
    want = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
    assert messages(plan) == {"q": want}
    state.assume("default/p", "n1", plan.placements[0].claims)
    assert messages(plan_round(state.snapshot(0.0))) == {"q": want}
    state.forget("default/p")
    assert len(plan_round(state.snapshot(0.0)).placements) == 1
    state.bind("default/p", "n1", claims=plan.placements[0].claims)
    assert messages(plan_round(state.snapshot(0.0))) == {"q": want}
    taken = state.get(PersistentVolumeClaim, "default/c")
    assert isinstance(taken, PersistentVolumeClaim) and taken.spec.volume_name == "v"


def test_the_smallest_volume_that_does_is_taken() -> None:
    objects = [NODES[0], LOCAL, disk("a-big", "9Gi"), disk("b-small", "5Gi"), claim("c", "4Gi"), user("p", "c")]
    assert [dict(p.claims) for p in planned(objects).placements] == [{"default/c": "b-small"}]


def test_pods_that_share_a_claim_follow_its_choice() -> None:
    made = storage_class(provisioner="csi.example.com")
    pods = [user("p", "c", created=0, node_selector={HOST: "n2"}), user("q", "c", created=1)]
    plan = planned([*NODES, made, claim("c", modes=["ReadWriteMany"]), *pods])
    assert bound(plan) == {"p": "n2", "q": "n2"}
    assert [dict(p.claims) for p in plan.placements] == [{"default/c": ""}, {}]


# -- disks and claims of others ----------------------------------------------------------------------------------------

INLINE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a GCE disk": ({"gcePersistentDisk": {"pdName": "d"}}, {"gcePersistentDisk": {"pdName": "d"}}, NO_DISK),
    "both only read it": (
        {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
        {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
        "fits",
    ),
    "one writes it": (
        {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
        {"gcePersistentDisk": {"pdName": "d"}},
        NO_DISK,
    ),
    "another disk": ({"gcePersistentDisk": {"pdName": "d"}}, {"gcePersistentDisk": {"pdName": "e"}}, "fits"),
    "EBS always": (
        {"awsElasticBlockStore": {"volumeID": "d", "readOnly": True}},
        {"awsElasticBlockStore": {"volumeID": "d", "readOnly": True}},
        NO_DISK,
    ),
    "iSCSI": ({"iscsi": {"iqn": "i"}}, {"iscsi": {"iqn": "i", "readOnly": True}}, NO_DISK),
    "RBD with one monitor in common": (
        {"rbd": {"monitors": ["a", "b"], "pool": "p", "image": "i"}},
        {"rbd": {"monitors": ["b"], "pool": "p", "image": "i"}},
        NO_DISK,
    ),
    "RBD of another pool": (
        {"rbd": {"monitors": ["a"], "pool": "p", "image": "i"}},
        {"rbd": {"monitors": ["a"], "pool": "q", "image": "i"}},
        "fits",
    ),
}


@pytest.mark.parametrize(("held", "wanted", "word"), INLINE.values(), ids=INLINE)
def test_inline_disks(held: dict[str, Any], wanted: dict[str, Any], word: str) -> None:
    there = leaving(pod("w", at="n1", volumes=[convert({"name": "v", **held}, Volume)]))
    assert reasons([NODES[0], there, pod("p", volumes=[convert({"name": "v", **wanted}, Volume)])]) == {"n1": word}


def test_members_of_a_gang_do_not_share_a_disk_on_a_node() -> None:
    volume = Volume(name="v", aws_elastic_block_store=AwsDisk(volume_id="d"))
    members = [pod(f"p-{i}", gang="g", volumes=[volume]) for i in range(2)]
    assert set(bound(planned([*NODES, group("g", 2), *members])).values()) == {"n1", "n2"}
    assert bound(planned([NODES[0], group("g", 2), *members])) == {}


def once(name: str) -> list[Any]:
    return [claim(name, volume="v", modes=["ReadWriteOncePod"]), disk("v", modes=["ReadWriteOncePod"])]


def test_a_claim_of_one_pod_alone_is_taken_wherever_that_pod_is() -> None:
    objects = [*NODES, *once("c"), user("w", "c", at="n1"), user("p", "c")]
    assert reasons(objects) == {"n1": ONE_POD, "n2": ONE_POD}


def test_the_first_pod_of_a_round_takes_a_claim_of_one_pod_alone() -> None:
    plan = planned([*NODES, *once("c"), user("p", "c"), user("q", "c", created=1)])
    assert set(bound(plan)) == {"p"}


def test_members_of_a_gang_that_share_a_claim_of_one_pod_alone_are_told_of_it() -> None:
    members = [user(f"p-{i}", "c", gang="g") for i in range(2)]
    plan = planned([*NODES, *once("c"), group("g", 2), *members])
    assert not plan.placements and not plan.evictions
    assert {one.proof for one in plan.gangs} == {Proof.INFEASIBLE}
    told = messages(plan)
    assert set(told) == {"p-0", "p-1"}
    assert all(f". 0/2 nodes are available: 2 {ONE_POD[3:]}." in text for text in told.values())


def test_a_gang_takes_one_of_those_that_share_a_claim_of_one_pod_alone_where_that_is_enough() -> None:
    members = [user(f"p-{i}", "c", gang="g") for i in range(2)] + [pod("p-2", gang="g")]
    plan = planned([*NODES, *once("c"), group("g", 2), *members])
    assert set(bound(plan)) == {"p-0", "p-2"}
    assert f". 0/2 nodes are available: 2 {ONE_POD[3:]}." in messages(plan)["p-1"]
    assert plan.units[0].proof is Proof.OPTIMAL


def test_nobody_is_evicted_for_members_that_share_a_claim_of_one_pod_alone() -> None:
    waits = [user(f"p-{i}", "c", gang="g", priority=9) for i in range(2)]
    full = [pod(f"v-{name}", at=name, cpu="8") for name in ("n1", "n2")]
    assert not planned([*NODES, *full, *once("c"), group("g", 2), *waits]).evictions
    assert len(planned([*NODES, *full, *once("c"), group("g", 1), *waits]).evictions) == 1


# -- limits ------------------------------------------------------------------------------------------------------------


def limited(name: str, count: int | None) -> CSINode:
    allocatable = CSINodeAllocatable(count=count) if count is not None else None
    drivers = [CSINodeDriver(name="csi.example.com", allocatable=allocatable)]
    return CSINode(metadata=ObjectMeta(name=name), spec=CSINodeSpec(drivers=drivers))


def csi(name: str, handle: str = "", driver: str = "csi.example.com") -> list[Any]:
    """A bound claim and its CSI volume."""
    source = CSIVolumeSource(driver=driver, volume_handle=handle or name)
    return [claim(name, volume=f"v-{name}", modes=["ReadWriteMany"]), disk(f"v-{name}", csi=source)]


def attached(volume: str, at: str) -> VolumeAttachment:
    source = VolumeAttachmentSource(persistent_volume_name=volume)
    return VolumeAttachment(
        metadata=ObjectMeta(name=f"att-{volume}"),
        spec=VolumeAttachmentSpec(attacher="csi.example.com", node_name=at, source=source),
    )


LIMITS: dict[str, tuple[list[Any], str]] = {
    "one is held, one is left": ([limited("n1", 2), user("w", "a", at="n1"), user("p", "b")], "fits"),
    "one is held, none is left": ([limited("n1", 1), user("w", "a", at="n1"), user("p", "b")], TOO_MANY),
    "the same volume once": ([limited("n1", 1), user("w", "a", at="n1"), user("p", "a")], "fits"),
    "two names of one volume": ([limited("n1", 1), *csi("a2", "a"), user("w", "a", at="n1"), user("p", "a2")], "fits"),
    "more asked than the limit": ([limited("n1", 1), user("p", "a", "b")], TOO_MANY),
    "no CSINode": ([user("w", "a", at="n1"), user("p", "b")], "fits"),
    "no limit stated": ([limited("n1", None), user("w", "a", at="n1"), user("p", "b")], "fits"),
    "another driver": (
        [limited("n1", 1), *csi("z", driver="other.example.com"), user("w", "a", at="n1"), user("p", "z")],
        "fits",
    ),
    "attached without a pod": ([limited("n1", 1), attached("v-a", "n1"), user("p", "b")], TOO_MANY),
    "attached and used is one": (
        [limited("n1", 2), attached("v-a", "n1"), user("w", "a", at="n1"), user("p", "b")],
        "fits",
    ),
    "attached elsewhere": ([limited("n1", 1), attached("v-a", "n2"), user("p", "b")], "fits"),
    "a volume to be made counts for the class's driver": (
        [
            limited("n1", 1),
            storage_class(provisioner="csi.example.com"),
            claim("new"),
            user("w", "a", at="n1"),
            user("p", "new"),
        ],
        TOO_MANY,
    ),
}


@pytest.mark.parametrize(("objects", "word"), LIMITS.values(), ids=LIMITS)
def test_volumes_a_node_can_attach(objects: list[Any], word: str) -> None:
    assert reasons([NODES[0], *csi("a"), *csi("b"), *objects]) == {"n1": word}


def test_volumes_of_a_round_add_up() -> None:
    pods = [user(name, name, created=i) for i, name in enumerate(("a", "b"))]
    plan = planned([NODES[0], limited("n1", 1), *csi("a"), *csi("b"), *pods])
    assert messages(plan) == {"b": "0/1 nodes are available: 1 node(s) exceed max volume count."}


def test_volumes_of_members_add_up_and_shared_ones_do_not() -> None:
    own = [user(f"p-{i}", name, gang="g") for i, name in enumerate(("a", "b", "c"))]
    claims = [*csi("a"), *csi("b"), *csi("c")]
    limits = [limited("n1", 2), limited("n2", 1)]
    where = bound(planned([*NODES, *limits, *claims, group("g", 3), *own]))
    assert sorted(where.values()) == ["n1", "n1", "n2"]
    assert bound(planned([*NODES, limited("n1", 1), limited("n2", 1), *claims, group("g", 3), *own])) == {}
    shared = [user(f"p-{i}", "a", gang="g") for i in range(3)]
    assert len(bound(planned([NODES[0], limited("n1", 1), *claims, group("g", 3), *shared]))) == 3


def test_members_with_claims_that_would_compete_are_refused() -> None:
    members = [user(f"p-{i}", name, gang="g") for i, name in enumerate(("c", "d"))]
    objects = [*NODES, LOCAL, disk("v", "5Gi", "n1", "n2"), disk("w", "5Gi", "n2"), claim("c"), claim("d")]
    plan = planned([*objects, group("g", 2), *members])
    unsupported = "unsupported: unbound persistent volume claims among the members of a gang."
    last = f"no new node would help: {unsupported.removesuffix('.')}"
    text = f"gang default/g: needed 2: {unsupported} 0/2 nodes are available: {unsupported} {last}"
    assert messages(plan)["p-0"] == text
    made = [*NODES, storage_class(provisioner="csi.example.com"), claim("c"), claim("d")]
    assert len(bound(planned([*made, group("g", 2), *members]))) == 2


def test_sizes_that_cannot_be_read_change_nothing() -> None:
    state = states([claim("c")])
    with pytest.raises(ValueError, match="no quantity"):
        state.upsert(claim("c", "5 Gigs"))
    kept = state.get(PersistentVolumeClaim, "default/c")
    assert isinstance(kept, PersistentVolumeClaim)
    assert kept.spec.resources.requests == {"storage": "5Gi"}
