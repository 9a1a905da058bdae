# SPDX-License-Identifier: Apache-2.0
"""Warnings about keys of labels and annotations that have no effect on an object.

A key has no effect if it is misspelt, on the wrong kind of object, used as a label instead of an annotation or the
reverse, of another scheduler, or of a later version of koordpy. An unknown key gets a warning only if it has a prefix
of koordpy or is similar to a known key, because other programs also write labels. `annotation_settings.py` checks the
values of known keys. The known keys by kind of object are in vocabulary.md 4 to 9.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain

from koordpy.api import keys
from koordpy.api.bounded_memory import cached
from koordpy.api.spelling import meant

LABEL, ANNOTATION = "label", "annotation"


class Holder(StrEnum):
    """Kinds of objects that have labels and annotations. koordpy reads a different set of keys on each kind."""

    GROUP = "a PodGroup"
    PLAIN = "a pod in no gang"
    MEMBER = "a pod of a gang without a PodGroup"
    """Only the oldest pod's settings apply to the gang."""
    GROUPED = "a pod of a PodGroup"
    DERIVED = "a pod of a gang derived from its workload"
    QUOTA = "an ElasticQuota"
    NODE = "a Node"
    DEVICE = "a Device"
    WORKLOAD = "a workload"


Places = Mapping[str, str]
"""Key -> `label` or `annotation`, the place where it is read."""


def _places(labels: tuple[str, ...], annotations: tuple[str, ...]) -> dict[str, str]:
    """Returns key -> place of the given keys."""
    return {**dict.fromkeys(labels, LABEL), **dict.fromkeys(annotations, ANNOTATION)}


# keys that are read on every pod
_ANY_POD = _places(
    (
        keys.LABEL_POD_GROUP, keys.LABEL_POD_GROUP_X, keys.RANK_INDEX_LABEL, keys.QUOTA_NAME, keys.QUOTA_USER,
        keys.QUOTA_PREEMPTIBLE, keys.DISABLE_PREEMPTIBLE, keys.GPU_GROUP_NAME, keys.GPU_GROUP_REPLICA,
        *keys.ASCEND_LABELS,
    ),
    (
        keys.RANK_INDEX_ANNOTATION, keys.RANK_INDEX_ANNOTATION_LONG, keys.TOPOLOGY_SELECTOR, keys.GPU_MIN_BANDWIDTH,
        keys.GPU_PARTITION_SPEC, keys.NUMA_SPEC, keys.NUMA_SPEC_ALIAS, keys.KAI_PLACEMENT, keys.DEFRAG,
        *keys.ASCEND_ANNOTATIONS,
    ),
)  # fmt: skip
# sets of keys that several kinds of objects share
_RUNTIME = _places((), (keys.MAX_RUNTIME,))
_OF_GANG = _RUNTIME | _places(
    (),
    (
        keys.GANG_TOPOLOGY, keys.GANG_TOPOLOGY_ALIAS, keys.GANG_GROUPS, keys.GANG_MODE, keys.GANG_MATCH_POLICY,
        keys.GANG_WAITING_TIME, keys.GANG_TOTAL, keys.GANG_STALE_GRACE, keys.GANG_REPAIR, keys.GANG_PROVISIONING_CLASS,
        keys.GANG_SEAT_HOLD,
    ),
)  # fmt: skip
_AUTO = _places((), (keys.GANG_AUTO,))
_NAME = _places((keys.LABEL_GANG_NAME, keys.LABEL_GANG_MIN), (keys.GANG_NAME, keys.GANG_MIN))
READ: Mapping[Holder, Places] = {
    Holder.GROUP: _OF_GANG | _places(keys.ASCEND_LABELS, (keys.DEFRAG, *keys.ASCEND_ANNOTATIONS)),
    Holder.PLAIN: _ANY_POD | _RUNTIME | _AUTO,
    Holder.MEMBER: _ANY_POD | _NAME | _OF_GANG | _AUTO,
    Holder.DERIVED: _ANY_POD | _NAME | _OF_GANG | _AUTO,
    Holder.GROUPED: _ANY_POD,
    Holder.QUOTA: _places(
        (keys.QUOTA_PARENT, keys.QUOTA_IS_PARENT, keys.QUOTA_LENDS, keys.QUOTA_TREE_ID, keys.QUOTA_FORCE),
        (keys.QUOTA_WEIGHT, keys.QUOTA_NAMESPACES, keys.QUOTA_TOTAL, keys.QUOTA_CHILDREN_FROM),
    ),
    Holder.NODE: _places((keys.GPU_PARTITION_POLICY, keys.GPU_MODEL, keys.NUMA_POLICY, keys.SPARE), ()),
    Holder.DEVICE: _places((keys.GPU_DELIVERY,), (keys.GPU_PARTITIONS,)),
    Holder.WORKLOAD: _OF_GANG | _AUTO | _places(keys.ASCEND_LABELS, (keys.GANG_MIN, *keys.ASCEND_ANNOTATIONS)),
}
"""Keys that are read on each kind of object. Similar keys are searched in this order."""
# all keys -> place; for a key with two places the place that comes later in `READ`
_PLACES: Places = dict(chain.from_iterable(places.items() for places in READ.values()))
OF_WORKLOADS = frozenset(
    (
        "kai.scheduler/batch-min-member", "scheduling.volcano.sh/group-min-member",
        "kueue.x-k8s.io/job-min-parallelism",
        "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/pod-group-pod-index",
        "kueue.x-k8s.io/pod-group-pod-index-label", "kueue.x-k8s.io/pod-group-fast-admission",
        "kueue.x-k8s.io/pod-group-serving", *keys.VOLCANO_GROUPS, "volcano.sh/task-spec", "volcano.sh/task-index",
    )
)  # fmt: skip
"""Keys of other projects that define gangs of workloads (workloads.md 2 and 5.2)."""
_OF_CONTROLLERS = (
    "jobset.sigs.k8s.io/", "alpha.jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/", "training.kubeflow.org/",
    "batch.kubernetes.io/", "ray.io/", "grove.io/",
)  # fmt: skip
"""Prefixes of keys that controllers of workloads write. Unknown keys with these prefixes get no warning."""
_SILENT = frozenset((*keys.WRITTEN, *keys.KOORDINATOR_KEYS, *keys.NUMA_REPORT))
"""Keys with a prefix of koordpy that never get a warning."""


def is_read(key: str) -> bool:
    """Returns True if koordpy reads or writes a label or annotation of this name on some kind of object."""
    if key in _PLACES or key in _SILENT or key in OF_WORKLOADS:
        return True
    return key.startswith((*keys.WRITTEN_PREFIXES, keys.PROVISIONING_PARAMETER, *_OF_CONTROLLERS))


def place_of(key: str) -> str:
    """Returns `label` or `annotation` for a key that is read on pods; empty for any other key."""
    return next((READ[holder][key] for holder in _PODS if key in READ[holder]), "")


def unread_keys(holder: Holder, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each key of an object that has no effect although its author may expect one."""
    # with `auto` "off" the author does not want a gang, so keys of other projects without effect are intended
    declined = OF_WORKLOADS if annotations.get(keys.GANG_AUTO) == "off" else ()
    for place, own in ((LABEL, labels), (ANNOTATION, annotations)):
        for key in own:
            if key in declined:
                continue
            right, kind, said = _unread(key, place, holder)
            # the key that was probably meant is also set, so this key is not a misspelling of it
            if right and right in (labels if kind == LABEL else annotations):
                if not key.startswith(keys.PREFIXES):
                    continue
                said = "is not read by koordpy"
            if said:
                yield f"{place} {key} {said}"


def misspelt_setting(annotations: Mapping[str, str]) -> str:
    """Returns `annotation KEY is not read, did you mean annotation OTHER?` for the first misspelt setting of a gang.

    Empty for none. Other keys with the prefix of gangs, such as those of Koordinator, are not misspelt settings.
    """
    for key in meant_settings(annotations):
        return f"annotation {key} {_unread(key, ANNOTATION, Holder.GROUP)[2]}"
    return ""


def meant_settings(annotations: Mapping[str, str]) -> dict[str, str]:
    """Returns misspelt annotation of a gang -> the annotation that was probably meant.

    Only annotations with the prefix of gangs are considered, and only if the correct annotation is not set.
    """
    out = {}
    for key in annotations:
        if key.startswith(keys.GANG_PREFIX):
            right, kind, _ = _unread(key, ANNOTATION, Holder.GROUP)
            if right in _OF_GANG and kind == ANNOTATION and right not in annotations:
                out[key] = right
    return out


@cached(1 << 12)
def _unread(key: str, place: str, holder: Holder) -> tuple[str, str, str]:
    """Returns (key that was probably meant, its place, text of the warning).

    The first two are empty if no other key was meant. All three are empty for a key that is read or needs no warning.
    """
    # parameters of ProvisioningRequests have any name; they are read on the objects on which the class is read
    known = keys.GANG_PROVISIONING_CLASS if key.startswith(keys.PROVISIONING_PARAMETER) else key
    kind = READ[holder].get(known)
    if kind is not None:
        return ("", "", "") if kind == place else (key, kind, f"is not read: it must be {_with_article(kind)}")
    if key in _SILENT or key.startswith(keys.WRITTEN_PREFIXES) or (holder in _BY_WORKLOAD and key in OF_WORKLOADS):
        return "", "", ""
    if key in keys.LATER or key.startswith(keys.LATER_PREFIXES):
        return "", "", "is not read yet"
    if known in _PLACES:
        return "", "", _elsewhere(known, holder)
    if holder is Holder.PLAIN and key in keys.FOREIGN_GANGS:
        return "", "", f"is {keys.FOREIGN_GANGS[key]}'s key and ignored: the pod is in no gang; {keys.READ_GROUP}"
    if key in keys.FOREIGN:
        owner, instead = keys.FOREIGN[key]
        return "", "", f"is {owner}'s key and ignored: {instead}"
    right = _near(key)
    if right:
        return right, _PLACES[right], f"is not read, did you mean {_PLACES[right]} {right}?"
    return "", "", "is not read by koordpy" if key.startswith(keys.PREFIXES) else ""


def _elsewhere(key: str, holder: Holder) -> str:
    """Returns the warning for a key that is read only on other kinds of objects."""
    if holder is Holder.PLAIN and key in READ[Holder.MEMBER]:
        return "is not read: the pod is in no gang"
    right, places = next((other, places) for other, places in READ.items() if key in places)
    owner = "a pod" if right in _PODS and holder not in _PODS else right
    return f"is not read on {holder}: it is {_with_article(places[key])} of {owner}"


_BY_WORKLOAD = (Holder.DERIVED, Holder.WORKLOAD)
"""Kinds of objects on which the keys of `OF_WORKLOADS` are read."""
_PODS = (Holder.PLAIN, Holder.MEMBER, Holder.DERIVED, Holder.GROUPED)


def _near(key: str) -> str:
    """Returns the known key that is most similar to an unknown key; empty if no known key is similar."""
    prefix, _, name = key.rpartition("/")
    # a key without a prefix must look like a domain to be compared, because plain words are common in labels
    if not prefix:
        return meant(key, (one for one in _PLACES if "/" not in one and "." in one))
    # a key is prefix/name: one of both must be equal to the known key's, and the other similar
    for other in _PLACES:
        its_prefix, _, its_name = other.rpartition("/")
        if prefix == its_prefix and meant(name, (its_name,), closed=f"{prefix}/" in keys.PREFIXES):
            return other
        if name == its_name and meant(prefix, (its_prefix,)):
            return other
    # if the prefix is koordpy's, a name that is contained in a known name was probably meant to be the known name
    if key.startswith(keys.PREFIXES):
        for other in _PLACES:
            its_prefix, _, its_name = other.rpartition("/")
            if prefix == its_prefix and len(name) >= _PART and _folded(name) in _folded(its_name):
                return other
    return ""


_PART = 5
"""Minimum length of an unknown name that counts as misspelt because a known name contains it."""


def _folded(name: str) -> str:
    """Returns a name in lower case and without hyphens."""
    return name.casefold().replace("-", "")


def _with_article(place: str) -> str:
    return "a label" if place == LABEL else "an annotation"
