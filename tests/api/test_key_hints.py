# SPDX-License-Identifier: Apache-2.0
"""Keys that nobody reads are told of, with what was meant; keys that are read, or that others write, are not."""

import msgspec
import pytest

from koordpy.api import keys
from koordpy.api.key_hints import READ, Holder, unread_keys
from koordpy.api.objects import ObjectMeta
from koordpy.api.reading_limits import ANNOTATIONS

GANG, QUOTA, SCHEDULING = keys.GANG_PREFIX, keys.QUOTA_PREFIX, "scheduling.koordinator.sh/"
L, A = "label", "annotation"
IN_NO_GANG = "is not read: the pod is in no gang"


def said(holder: Holder, key: str, place: str = "annotation", *, beside: str = "") -> str:
    """What is said of a key after its name; empty for nothing."""
    own = {key: "x", **({beside: "x"} if beside else {})}
    labels, annotations = (own, {}) if place == "label" else ({}, own)
    found = list(unread_keys(holder, labels, annotations))
    assert len(found) <= 1
    start = f"{place} {key} "
    assert all(text.startswith(start) for text in found)
    return found[0].removeprefix(start) if found else ""


@pytest.mark.parametrize("holder", READ)
def test_what_is_read_is_not_told_of(holder: Holder) -> None:
    assert {key: text for key, place in READ[holder].items() if (text := said(holder, key, place))} == {}


@pytest.mark.parametrize("holder", READ)
def test_a_key_in_the_place_of_the_other_kind_is_told_where_it_belongs(holder: Holder) -> None:
    for key, place in READ[holder].items():
        other, right = ("label", "an annotation") if place == "annotation" else ("annotation", "a label")
        assert said(holder, key, other) == f"is not read: it must be {right}"


@pytest.mark.parametrize("holder", READ)
def test_what_koordpy_or_koordinator_writes_is_not_told_of(holder: Holder) -> None:
    for key in (*keys.WRITTEN, *keys.KOORDINATOR_KEYS, f"{keys.GPU_CUDA_VISIBLE_PREFIX}0"):
        assert (said(holder, key), said(holder, key, "label")) == ("", ""), key


def test_every_key_of_ours_below_our_prefixes_is_read_somewhere_or_written() -> None:
    ours = {text for name, text in vars(keys).items() if name.isupper() and isinstance(text, str)}
    known = {key for places in READ.values() for key in places} | {*keys.WRITTEN, *keys.PREFIXES}
    below = {key for key in ours if key.startswith(keys.PREFIXES)}
    assert below - known - set(keys.WRITTEN_PREFIXES) == set()
    assert len(below & known) > 30


@pytest.mark.parametrize(
    ("holder", "key", "place", "text"),
    [
        # misspelt, or a part of the name
        (Holder.GROUP, GANG + "networkTopology", A, "is not read, did you mean annotation TOPOLOGY?"),
        (Holder.GROUP, GANG + "topology", A, "is not read, did you mean annotation TOPOLOGY?"),
        (Holder.GROUP, GANG + "network-topology-aware", A, "is not read, did you mean annotation TOPOLOGY?"),
        (Holder.GROUP, GANG + "networkTopologyAwere", A, "is not read, did you mean annotation TOPOLOGY?"),
        (Holder.PLAIN, QUOTA + "Name", L, f"is not read, did you mean label {keys.QUOTA_NAME}?"),
        (Holder.PLAIN, "quota.scheduling.koordinator.io/name", L, f"is not read, did you mean label {QUOTA}name?"),
        (Holder.QUOTA, QUOTA + "shared-weights", A, f"is not read, did you mean annotation {QUOTA}shared-w"),
        (Holder.DEVICE, SCHEDULING + "gpu-partition", A, f"is not read, did you mean annotation {SCHEDULING}"),
        # nothing like it
        (
            Holder.PLAIN,
            "pod-group.scheduling.sigs.k8s.io/nme",
            L,
            "is not read, did you mean label pod-group.scheduling.sigs.k8s.io/name?",
        ),
        (Holder.GROUP, GANG + "mod", A, f"is not read, did you mean annotation {GANG}mode?"),
        (Holder.PLAIN, "pod-group.scheduling.sigs.k8s.io/na", L, "is not read by koordpy"),
        (Holder.GROUP, GANG + "colour", A, "is not read by koordpy"),
        (Holder.PLAIN, "gputopology.scheduling.koordinator.sh/strategy", A, "is not read by koordpy"),
        (Holder.GROUPED, "topology.scheduling.koordinator.sh/strategy", A, "is not read by koordpy"),
        (Holder.NODE, "koordpy.io/rack", L, "is not read by koordpy"),
        (Holder.PLAIN, "pod-group.scheduling.sigs.k8s.io/timeout", L, "is not read by koordpy"),
        (Holder.PLAIN, "pod-group.scheduling.koordinator.sh/rank", L, "is not read by koordpy"),
        (Holder.QUOTA, QUOTA + "ignore-default-tree", L, "is not read by koordpy"),
        # Koordinator would do something
        (Holder.PLAIN, SCHEDULING + "resource-spec", A, "is not read by koordpy"),
        (Holder.PLAIN, SCHEDULING + "device-allocate-hint", A, "is not read by koordpy"),
        (Holder.GROUPED, SCHEDULING + "device-joint-allocate", A, "is not read by koordpy"),
        (Holder.NODE, SCHEDULING + "usage-thresholds", A, "is not read by koordpy"),
        # of versions to come
        (Holder.PLAIN, SCHEDULING + "last-checkpoint", A, "is not read yet"),
        (Holder.GROUP, GANG + "slice", A, "is not read yet"),
        (Holder.GROUPED, "kueue.x-k8s.io/podset-required-topology", A, "is not read yet"),
        # on the wrong object
        (Holder.GROUPED, keys.GANG_TOPOLOGY, A, "is not read on a pod of a PodGroup: it is an annotation of a Po"),
        (Holder.GROUPED, keys.MAX_RUNTIME, A, "is not read on a pod of a PodGroup: it is an annotation of a Pod"),
        (Holder.GROUPED, keys.LABEL_GANG_MIN, L, "is not read on a pod of a PodGroup: it is a label of a pod of a gan"),
        (Holder.GROUP, keys.QUOTA_NAME, L, "is not read on a PodGroup: it is a label of a pod"),
        (Holder.QUOTA, keys.QUOTA_NAME, L, "is not read on an ElasticQuota: it is a label of a pod"),
        (Holder.PLAIN, keys.QUOTA_PARENT, L, "is not read on a pod in no gang: it is a label of an ElasticQuota"),
        (Holder.NODE, keys.GANG_MODE, A, "is not read on a Node: it is an annotation of a PodGroup"),
        (Holder.NODE, keys.GPU_DELIVERY, L, "is not read on a Node: it is a label of a Device"),
        (Holder.DEVICE, keys.GPU_MIN_BANDWIDTH, L, "is not read on a Device: it is an annotation of a pod"),
        # parameters with free names
        (Holder.GROUP, keys.PROVISIONING_PARAMETER + "Zone", A, ""),
        (Holder.MEMBER, keys.PROVISIONING_PARAMETER + "Zone", A, ""),
        (Holder.WORKLOAD, keys.PROVISIONING_PARAMETER + "Zone", A, ""),
        (Holder.GROUP, keys.PROVISIONING_PARAMETER + "Zone", L, "is not read: it must be an annotation"),
        (Holder.GROUPED, keys.PROVISIONING_PARAMETER + "Zone", A, "is not read on a pod of a PodGroup: it is an annot"),
        (Holder.PLAIN, keys.PROVISIONING_PARAMETER + "Zone", A, IN_NO_GANG),
        (Holder.NODE, keys.PROVISIONING_PARAMETER + "Zone", A, "is not read on a Node: it is an annotation of a PodGr"),
        # a gang that is none
        (Holder.PLAIN, keys.GANG_TOPOLOGY, A, IN_NO_GANG),
        (Holder.PLAIN, keys.LABEL_GANG_NAME, L, IN_NO_GANG),
        (Holder.PLAIN, keys.GANG_MIN, A, IN_NO_GANG),
        # somebody else's gang
        (Holder.PLAIN, "scheduling.k8s.io/group-name", A, "is Volcano's key and ignored: the pod is in no gang"),
        (Holder.PLAIN, "scheduling.volcano.sh/group-name", A, "is Volcano's key and ignored: the pod is in no ga"),
        (Holder.PLAIN, "kueue.x-k8s.io/pod-group-name", L, "is Kueue's key and ignored: the pod is in no gang"),
        (Holder.PLAIN, "pod-group-name", A, "is KAI-Scheduler's key and ignored: the pod is in no gang"),
        (Holder.GROUPED, "scheduling.k8s.io/group-name", A, ""),
        (Holder.MEMBER, "kueue.x-k8s.io/pod-group-name", L, ""),
        # nobody's business
        (Holder.PLAIN, "koordinator.sh/qosClass", L, ""),
        (Holder.PLAIN, "kueue.x-k8s.io/queue-name", L, ""),
        (Holder.NODE, "node.koordinator.sh/cpu-bind-policy", L, ""),
        (Holder.NODE, "network.topology.koordpy.io/block", L, ""),
        (Holder.NODE, "kubernetes.io/arch", L, ""),
        (Holder.PLAIN, "batch.kubernetes.io/job-name", L, ""),
        (Holder.PLAIN, "ring-controller.atlas", L, ""),
        (Holder.PLAIN, "app", L, ""),
    ],
)  # fmt: skip
def test_a_key_that_nobody_reads_is_told_of(holder: Holder, key: str, place: str, text: str) -> None:
    found = said(holder, key, place)
    assert found.startswith(text.replace("TOPOLOGY", keys.GANG_TOPOLOGY)) if text else found == ""


def test_a_slip_beside_the_right_key_is_told_of_below_our_prefixes_alone() -> None:
    right = keys.LABEL_POD_GROUP
    assert said(Holder.GROUPED, "pod-group.scheduling.sig.k8s.io", "label", beside=right) == ""
    assert said(Holder.GROUP, GANG + "Mode", beside=keys.GANG_MODE) == "is not read by koordpy"


def test_of_thousands_of_annotations_those_that_are_read_are_kept() -> None:
    many = {f"{keys.GANG_PREFIX}mod{number}": "x" for number in range(3000)}
    told = {keys.GANG_NAME: "train", keys.GANG_MIN: "2", f"{keys.GPU_CUDA_VISIBLE_PREFIX}0": "GPU-1"}
    written = msgspec.json.encode({"name": "p", "annotations": {**many, **told}})
    kept = msgspec.json.decode(written, type=ObjectMeta).annotations
    assert kept.items() >= told.items()
    assert len(kept) == ANNOTATIONS + len(told)
    few = {key: many[key] for key in list(many)[:ANNOTATIONS]}
    assert ObjectMeta(annotations=few).annotations == few
