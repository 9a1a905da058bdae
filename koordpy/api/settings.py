"""Labels and annotations that are quietly not what their author meant: values nobody can read, misspelt keys, a label
written as an annotation.

Each decides nothing and counts as absent (vocabulary.md), so that the least a scheduler owes is a word on the object.
Settings that hold a gang, or have their own place in a message, are told where they are read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from koordpy.api import keys
from koordpy.api.durations import parse_duration
from koordpy.api.faults import literal
from koordpy.api.objects import ObjectMeta
from koordpy.api.spelling import meant

Check = Callable[[str], str]
"""What is wrong with a value; empty for nothing."""

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,18}", re.ASCII)
LABEL, ANNOTATION = "label", "annotation"


def whole_number(text: str) -> int | None:
    """The number of a label or annotation; None where it is none."""
    try:
        return int(text) if _WHOLE.fullmatch(text.strip()) else None
    except ValueError:  # thousands of digits
        return None


def _one_of(*words: str, holds: str) -> Check:
    listed = " nor ".join(words) if len(words) == 2 else ", ".join(words)
    none = "neither" if len(words) == 2 else "none of"

    def check(text: str) -> str:
        return "" if text in words else f"{literal(text)} is {none} {listed}: {holds} holds"

    return check


def _duration(holds: str, *, never: bool = False) -> Check:
    def check(text: str) -> str:
        if never and text.strip() == "-1":
            return ""
        try:
            above = parse_duration(text.strip() if never else text) > 0
        except ValueError as fault:
            return f"{fault}: {holds} holds"
        return "" if above or never else f"{literal(text)} is not above 0: {holds} holds"

    return check


def _above_zero(text: str) -> str:
    number = whole_number(text)
    return "" if number is not None and number > 0 else f"{literal(text)} is no whole number above 0"


def _index(text: str) -> str:
    return "" if not text or _INDEX.fullmatch(text) else f"{literal(text)} is no index (0, 1, ...)"


_POLICIES = ("once-satisfied", "only-waiting", "waiting-and-running")
Settings = Mapping[tuple[str, str], Check]
"""(label or annotation, key) -> what is wrong with its value."""
OF_GANGS: Settings = MappingProxyType(
    {
        (ANNOTATION, keys.GANG_MODE): _one_of("Strict", "NonStrict", holds="Strict"),
        (ANNOTATION, keys.GANG_MATCH_POLICY): _one_of(*_POLICIES, holds=_POLICIES[0]),
        (ANNOTATION, keys.GANG_WAITING_TIME): _duration("10m"),
        (ANNOTATION, keys.GANG_STALE_GRACE): _duration("the configured time", never=True),
        (ANNOTATION, keys.GANG_TOTAL): _above_zero,
    }
)
OF_PODS: Settings = MappingProxyType(
    {
        (LABEL, keys.RANK_INDEX_LABEL): _index,
        (ANNOTATION, keys.RANK_INDEX_ANNOTATION): _index,
        (ANNOTATION, keys.RANK_INDEX_ANNOTATION_LONG): _index,
        (LABEL, keys.QUOTA_PREEMPTIBLE): _one_of("true", "false", holds="true"),
        (LABEL, keys.DISABLE_PREEMPTIBLE): _one_of("true", "false", holds="false"),
    }
)
OF_QUOTAS: Settings = MappingProxyType(
    {
        (LABEL, keys.QUOTA_IS_PARENT): _one_of("true", "false", holds="false"),
        (LABEL, keys.QUOTA_LENDS): _one_of("true", "false", holds="true"),
        (LABEL, keys.QUOTA_FORCE): _one_of("true", "false", holds="false"),
    }
)

_LABELS = (
    keys.LABEL_POD_GROUP, keys.LABEL_POD_GROUP_X, keys.LABEL_GANG_NAME, keys.LABEL_GANG_MIN, keys.RANK_INDEX_LABEL,
    keys.QUOTA_NAME, keys.QUOTA_USER, keys.QUOTA_PREEMPTIBLE, keys.DISABLE_PREEMPTIBLE, keys.QUOTA_PARENT,
    keys.QUOTA_IS_PARENT, keys.QUOTA_LENDS, keys.QUOTA_TREE_ID, keys.QUOTA_FORCE, keys.GPU_GROUP_NAME,
    keys.GPU_GROUP_REPLICA, keys.GPU_PARTITION_POLICY, keys.GPU_DELIVERY, *keys.ASCEND_LABELS,
)  # fmt: skip
_ANNOTATIONS = (
    keys.GANG_NAME, keys.GANG_MIN, keys.GANG_GROUPS, keys.GANG_MODE, keys.GANG_MATCH_POLICY, keys.GANG_WAITING_TIME,
    keys.GANG_TOTAL, keys.GANG_TOPOLOGY, keys.GANG_TOPOLOGY_ALIAS, keys.GANG_STALE_GRACE, keys.MAX_RUNTIME,
    keys.RANK_INDEX_ANNOTATION, keys.RANK_INDEX_ANNOTATION_LONG, keys.TOPOLOGY_SELECTOR, keys.QUOTA_WEIGHT,
    keys.QUOTA_NAMESPACES, keys.QUOTA_TOTAL, keys.GPU_MIN_BANDWIDTH, keys.GPU_PARTITION_SPEC, keys.GPU_PARTITIONS,
    *keys.ASCEND_ANNOTATIONS,
)  # fmt: skip
_PLACES = {**dict.fromkeys(_LABELS, LABEL), **dict.fromkeys(_ANNOTATIONS, ANNOTATION)}
_WRITTEN = (
    keys.BOUND_DOMAIN, keys.BOUND_RANK, keys.BIND_GROUP_ID, keys.BIND_MEMBER_COUNT, keys.BOUND_EPOCH,
    keys.GPU_ALLOCATION, keys.GPU_NVIDIA_VISIBLE, keys.DEVICE_ALLOCATED, keys.GPU_MODEL, keys.JOB_COMPLETION_INDEX,
)  # fmt: skip
"""Names that others write, or we do: not misspelt, however near they are."""


@lru_cache(maxsize=1 << 12)
def _misplaced(key: str, place: str) -> tuple[str, str]:
    """(key that was meant, its place) of one that is not read where it stands; two empty texts for any other."""
    known = _PLACES.get(key)
    if known is not None:
        return ("", "") if known == place else (key, known)
    if key in _WRITTEN:
        return "", ""
    prefix, _, name = key.rpartition("/")
    for other in _PLACES:
        its_prefix, _, its_name = other.rpartition("/")
        if (prefix == its_prefix and prefix and meant(name, (its_name,))) or (
            name == its_name and meant(prefix, (its_prefix,))
        ):
            return other, _PLACES[other]
    if not prefix:
        near = meant(key, (one for one in _PLACES if "/" not in one and "." in one))
        return (near, _PLACES[near]) if near else ("", "")
    return "", ""


def odd_keys(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """Words for keys that look like one of ours and are not read: misspelt, or a label in an annotation's place."""
    for place, own in ((LABEL, labels), (ANNOTATION, annotations)):
        for key in own:
            right, kind = _misplaced(key, place)
            if not right or right in (labels if kind == LABEL else annotations):
                continue
            if right == key:
                yield f"{place} {key} is not read: it must be {_with_article(kind)}"
            else:
                yield f"{place} {key} is not read, did you mean {kind} {right}?"


def _with_article(place: str) -> str:
    return "a label" if place == LABEL else "an annotation"


def odd_values(settings: Settings, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """Words for settings whose value cannot be read and counts as absent."""
    for (place, key), check in settings.items():
        text = (labels if place == LABEL else annotations).get(key)
        if text is not None and (wrong := check(text)):
            yield f"{place} {key} cannot be read: {wrong}"


def odd_of_pod(meta: ObjectMeta) -> Iterator[str]:
    """What a pod's labels and annotations say in vain."""
    yield from odd_values(OF_PODS, meta.labels, meta.annotations)
    yield from odd_keys(meta.labels, meta.annotations)


def odd_of_quota(meta: ObjectMeta) -> Iterator[str]:
    """What an ElasticQuota's labels and annotations say in vain."""
    yield from odd_values(OF_QUOTAS, meta.labels, meta.annotations)
    yield from odd_keys(meta.labels, meta.annotations)
