# SPDX-License-Identifier: Apache-2.0
"""Finds the links between gangs in their `groups` annotations. Linked gangs are one GangGroup, which starts as a whole.

Within a namespace, it is enough that one of two gangs names the other (gang-network.md 2.2). A link to another
namespace is valid only if both gangs name each other; otherwise a tenant could block, or join, gangs of another tenant.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.pods.gang_refs import GangRef

# warnings about invalid links: for the gang that names another gang, and for the named gang
ONE_SIDED = f"annotation {keys.GANG_GROUPS}: gangs of other namespaces are linked only if they name this gang in theirs"
NAMED_BY_OTHERS = (
    f"gangs of other namespaces name this gang in their annotation {keys.GANG_GROUPS}: they are linked only if this "
    "gang names them"
)


class Named(NamedTuple):
    """The gangs that one gang names, as `namespace/name`, each once."""

    every: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """The named gangs in other namespaces."""

    @classmethod
    def from_names(cls, namespace: str, names: Iterable[str]) -> "Named":
        """Returns the gangs of a list. names: as users write them: without a namespace if it is the gang's
        namespace."""
        own = f"{namespace}/"
        every = tuple(dict.fromkeys(name if "/" in name else own + name for name in names))
        return cls(every, tuple(key for key in every if not key.startswith(own)))


@dataclass(frozen=True)
class Links:
    """The links of a snapshot."""

    groups: Mapping[GangRef, tuple[GangRef, ...]]
    """Gang -> the gangs of its GangGroup in natural order. A gang without links has no entry."""
    binding: Mapping[GangRef, tuple[str, ...]]
    """Gang -> `namespace/name` of the gangs in its annotation with which it must start, including gangs that do not
    exist, without invalid links."""
    doubts: Mapping[GangRef, tuple[str, ...]] = field(default_factory=dict)
    """Gang -> warnings about its invalid links."""


def links_of(linkers: Iterable[GangRef], named: Callable[[GangRef], Named], there: Mapping[str, GangRef]) -> Links:
    """Returns the links of a snapshot. linkers: gangs that name other gangs. named: returns the gangs that a gang
    names. there: key -> existing gang.

    The algorithm is union-find with path halving. Its cost is nearly linear in the number of names.
    """
    up: dict[str, str] = {}  # union-find: key -> key nearer to the root of its set; a root refers to itself
    refs: dict[str, GangRef] = {}

    def top(key: str) -> str:
        """Returns the root of a key's set."""
        while (above := up[key]) != key:
            up[key] = key = up[above]
        return key

    binding: dict[GangRef, tuple[str, ...]] = {}
    doubts: dict[GangRef, dict[str, None]] = {}
    answers: dict[GangRef, frozenset[str]] = {}  # gang of another namespace -> keys that it names
    for ref in linkers:
        held, elsewhere = named(ref)
        # links to gangs in other namespaces that do not name this gang
        one_sided = set()
        for key in elsewhere:
            other = there.get(key)
            if other is not None and other not in answers:
                answers[other] = frozenset(named(other).every)
            if other is None or ref.key not in answers[other] or there.get(ref.key) != ref:
                one_sided.add(key)
                doubts.setdefault(ref, {})[ONE_SIDED] = None
                if other is not None:
                    doubts.setdefault(other, {})[NAMED_BY_OTHERS] = None
        if one_sided:
            held = tuple(key for key in held if key not in one_sided)
        binding[ref] = held
        # if a gang of another source also has this key, the key means that gang, and the id is used here
        me = ref.key if there.get(ref.key) == ref else ref.id
        refs[me] = ref
        ends = {me, *(there.keys() & held)}
        tops = {top(key) for key in map(up.get, ends) if key is not None}
        up.update(dict.fromkeys(ends | tops, next(iter(tops), me)))
    groups = _grouped((refs.get(key) or there[key], top(key)) for key in list(up))
    return Links(dict(groups), binding, {ref: tuple(texts) for ref, texts in doubts.items()})


def _grouped(tops: Iterable[tuple[GangRef, str]]) -> Iterator[tuple[GangRef, tuple[GangRef, ...]]]:
    """Yields (gang, all gangs of its set in natural order). tops: (gang, root of its set)."""
    grouped: dict[str, list[GangRef]] = {}
    for ref, top in tops:
        grouped.setdefault(top, []).append(ref)
    for found in grouped.values():
        group = tuple(
            sorted(found, key=lambda one: (natural_key(one.namespace), natural_key(one.name), one.source.value))
        )
        for ref in group:
            yield ref, group
