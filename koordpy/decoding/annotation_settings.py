# SPDX-License-Identifier: Apache-2.0
"""Checks the values of labels and annotations that koordpy reads, and collects all warnings about an object's keys.

A setting with an unreadable value counts as absent (vocabulary.md 1), so the warning says which value applies instead.
Settings that block a gang if they are unreadable, such as networkTopologyAware, are not checked here: they are reported
where they are read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType

from koordpy.api import keys
from koordpy.api.bounded_memory import once
from koordpy.api.durations import parse_duration
from koordpy.api.field_faults import literal
from koordpy.api.key_hints import ANNOTATION, LABEL, Holder, unread_keys
from koordpy.api.objects import ObjectMeta
from koordpy.api.reading_limits import ANNOTATIONS, some, too_many

Check = Callable[[str], str]
"""Returns the fault of a value as text; empty if the value is valid."""

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)


def whole_number(text: str) -> int | None:
    """Returns the number in a label or annotation; None if it is not a whole number."""
    try:
        return int(text) if _WHOLE.fullmatch(text.strip()) else None
    except ValueError:  # int() rejects thousands of digits
        return None


def index_of(text: str) -> int | None:
    """Returns the number in a label, an annotation or a part of a name.

    None if the text is not only digits, or has more than 18 digits, which might not fit 64 bits.
    """
    return int(text) if len(text) <= 18 and text.isascii() and text.isdecimal() else None


def _one_of(*words: str, holds: str) -> Check:
    """Returns a check for a fixed set of words. holds: the value that applies instead of an invalid one."""
    listed = " nor ".join(words) if len(words) == 2 else ", ".join(words)
    none = "neither" if len(words) == 2 else "none of"

    def check(text: str) -> str:
        return "" if text in words else f"{literal(text)} is {none} {listed}: {holds} holds"

    return check


def _duration(instead: str, *, never: bool = False, zero: bool = False) -> Check:
    """Returns a check for a duration above 0.

    instead: text about the value that applies instead of an invalid one. never: True if `-1` (never) and durations of 0
    or less are valid too, with spaces around them. zero: True if 0 is valid.
    """

    def check(text: str) -> str:
        if never and text.strip() == "-1":
            return ""
        try:
            length = parse_duration(text.strip() if never else text)
            above = length > 0 or (zero and length == 0)
        except ValueError as fault:
            return f"{fault}: {instead}"
        return "" if above or never else f"{literal(text)} is {'below' if zero else 'not above'} 0: {instead}"

    return check


def _above_zero(text: str) -> str:
    number = whole_number(text)
    return "" if number is not None and number > 0 else f"{literal(text)} is no whole number above 0"


def _index(text: str) -> str:
    return "" if not text or index_of(text) is not None else f"{literal(text)} is not an index (0, 1, ...)"


def _spare(text: str) -> str:
    return "" if text in ("true", "false") else f"{literal(text)} is neither true nor false: it counts as absent"


_POLICIES = ("once-satisfied", "only-waiting", "waiting-and-running")
"""Values of match-policy (gang-network.md 2.4); the first is the default."""
Settings = Mapping[tuple[str, str], Check]
"""(label or annotation, key) -> check of its value."""
# settings of workloads with a maximum runtime, of gangs, of pods and of quotas
OF_RUNS: Settings = MappingProxyType({(ANNOTATION, keys.MAX_RUNTIME): _duration("its end is not known")})
OF_GANGS: Settings = MappingProxyType(
    {
        **OF_RUNS,
        (ANNOTATION, keys.GANG_MODE): _one_of("Strict", "NonStrict", holds="Strict"),
        (ANNOTATION, keys.GANG_MATCH_POLICY): _one_of(*_POLICIES, holds=_POLICIES[0]),
        (ANNOTATION, keys.GANG_WAITING_TIME): _duration("10m holds"),
        (ANNOTATION, keys.GANG_STALE_GRACE): _duration("the configured time holds", never=True),
        (ANNOTATION, keys.GANG_TOTAL): _above_zero,
        (ANNOTATION, keys.GANG_SEAT_HOLD): _duration("the configured time holds", zero=True),
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
OF_NODES: Settings = MappingProxyType({(LABEL, keys.SPARE): _spare})
OF_QUOTAS: Settings = MappingProxyType(
    {
        (LABEL, keys.QUOTA_IS_PARENT): _one_of("true", "false", holds="false"),
        (LABEL, keys.QUOTA_LENDS): _one_of("true", "false", holds="true"),
        (LABEL, keys.QUOTA_FORCE): _one_of("true", "false", holds="false"),
    }
)


def odd_values(settings: Settings, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each setting with an unreadable value; such a setting counts as absent."""
    for (place, key), check in settings.items():
        text = (labels if place == LABEL else annotations).get(key)
        if text is not None and (wrong := check(text)):
            yield f"{place} {key} cannot be read: {wrong}"


_OF_PODS = frozenset({Holder.PLAIN, Holder.MEMBER, Holder.GROUPED, Holder.DERIVED})


def _half_group(labels: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for a GPU group with only one of its two labels (gpu-topology.md 5)."""
    name, replica = labels.get(keys.GPU_GROUP_NAME), labels.get(keys.GPU_GROUP_REPLICA)
    if (name is None and replica is not None) or (name is not None and (not name or replica is None)):
        yield f"labels {keys.GPU_GROUP_NAME} and {keys.GPU_GROUP_REPLICA} form a GPU group only together"


# kind of object -> the settings that are checked on it
_VALUES: Mapping[Holder, Settings] = {
    Holder.GROUP: OF_GANGS,
    Holder.PLAIN: {**OF_PODS, **OF_RUNS},
    Holder.MEMBER: OF_PODS,
    Holder.GROUPED: OF_PODS,
    Holder.QUOTA: OF_QUOTAS,
    Holder.NODE: OF_NODES,
}


def forgotten_annotations(given: int) -> tuple[str, ...]:
    """Returns the warning for an object with more annotations than koordpy stores; empty if it stores all of them.

    given: number of annotations of the object; 0 if none was dropped.
    """
    many = too_many(given, ANNOTATIONS, "annotations")
    return (f"metadata.annotations: {many}, in addition to those that koordpy knows",) if many else ()


@once
def odd_settings(holder: Holder, meta: ObjectMeta) -> tuple[str, ...]:
    """Returns the warnings about labels and annotations of an object that have no effect, up to the limit per
    object."""
    values = odd_values(_VALUES.get(holder, {}), meta.labels, meta.annotations)
    halves = _half_group(meta.labels) if holder in _OF_PODS else ()
    told = forgotten_annotations(meta.annotations_given)
    return tuple(some(chain(told, values, unread_keys(holder, meta.labels, meta.annotations), halves)))
