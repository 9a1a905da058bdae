# SPDX-License-Identifier: Apache-2.0
"""Masks names of other tenants in texts that the tenant of one namespace reads.

A `namespace/name` outside of the tenant's namespace is masked even if no such object exists, so an answer does not
reveal which names exist. Exceptions: domains of the tree, resources and label keys (their prefix has a dot), and
numbers as in `0/64 nodes`. Names without a namespace (quotas, users, namespaces) are masked if the snapshot has them
and they do not belong to the tenant. But such a name may also be a word of the scheduler's sentences (`words.txt`).
Then it is masked only after the noun that names its kind, in brackets, and in quotes. Otherwise a tenant with a user
called `nodes` could mask that word in the answers of other tenants. Cost: O(length of the text).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from koordpy.api import keys
from koordpy.cache.snapshot import Snapshot
from koordpy.pods.pod_info import PodInfo

MASK = "(another tenant's)"
"""Replacement of a masked name."""
_CHARACTERS = r"[A-Za-z0-9._-]"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9._:@/-]+")
_QUALIFIED = re.compile(
    rf"(?<!{_CHARACTERS})(?<!/)(?P<kind>[A-Z][A-Za-z]*/)?(?P<space>[A-Za-z0-9._-]+)/(?P<name>[^\s,;()\[\]{{}}\"'`<>|=]*)"
)
_DOMAIN_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_WORD = re.compile(rf"{_CHARACTERS}+")
_NOUNS = frozenset(
    [
        "quota",
        "quotas",
        "user",
        "users",
        "tenant",
        "tenants",
        "queue",
        "queues",
        "namespace",
        "namespaces",
        "parent",
        "owner",
        "elasticquota",
        "child",
        "children",
        "leaf",
        "leaves",
        "named",
        "name",
    ]
)
"""Words after which a name is expected."""
_BETWEEN = frozenset(("and", "or", "of", "the", "named", "more"))
"""Words that may occur between a noun and its names, and inside a list of names."""
_FIXED = frozenset(("affinity/selector",))
"""Words with a slash in kube-scheduler's sentences, which are not names."""
_CLUSTER_KINDS = frozenset(("Node/", "ClusterNetworkTopology/", "DeviceClass/", "PriorityClass/", "StorageClass/"))
"""Prefixes of cluster-scoped objects: their names belong to no tenant."""
_BUILT_IN = frozenset((*keys.BUILT_IN_QUOTAS, ""))


@dataclass(frozen=True)
class ClusterNames:
    """Names in a snapshot, collected once for all tenants."""

    paths: frozenset[str]
    """Paths of the tree's domains and nodes, as they appear in sentences."""
    public: frozenset[str]
    """Names of nodes and domains without their path."""
    quotas: frozenset[str]
    users: frozenset[str]
    namespaces: frozenset[str]
    odd: Mapping[str, tuple[frozenset[str], tuple[int, ...]]]
    """Namespace -> (names of its gangs that have blanks or punctuation, lengths of these names, the longest first)."""
    parents: Mapping[str, tuple[str, ...]]
    """Quota -> names of the quotas on the path from the top to it."""

    @cached_property
    def loose(self) -> frozenset[str]:
        """Names that appear in sentences without a namespace: quotas, users and namespaces."""
        return (self.quotas | self.users | self.namespaces) - _BUILT_IN


def names_of(snapshot: Snapshot) -> ClusterNames:
    """Collects the names of a snapshot. O(pods + nodes)."""
    tree, quotas = snapshot.tree, snapshot.quotas
    paths = {tree.path(level, d) for level in range(1, tree.depth + 1) for d in range(len(tree.levels[level].names))}
    owners = {pod.owner: pod for pod in snapshot.pods.values()}
    gangs = {one.key for one in (*snapshot.members, *snapshot.workload_gangs)}
    gangs |= {*snapshot.pod_groups, *snapshot.upstream_groups}
    odd: dict[str, set[str]] = {}
    for key in gangs:
        if not _PLAIN_KEY.fullmatch(key):
            namespace, _, name = key.partition("/")
            odd.setdefault(namespace, set()).add(name)
    return ClusterNames(
        paths=frozenset(paths),
        public=frozenset(name for level in tree.levels for name in level.names),
        quotas=frozenset(quotas.tree.quotas),
        users=frozenset(quotas.user_of(pod) for pod in owners.values()),
        namespaces=frozenset((*snapshot.namespaces, *(owner.namespace for owner in owners))),
        odd={
            namespace: (frozenset(own), tuple(sorted({len(name) for name in own}, reverse=True)))
            for namespace, own in odd.items()
        },
        parents=quotas.tree.paths,
    )


class Redactor:
    """Masks names that do not belong to one namespace."""

    def __init__(self, names: ClusterNames, namespace: str, pods: Iterable[PodInfo], snapshot: Snapshot) -> None:
        """pods: pods of the namespace, which determine its quotas and users."""
        self.namespace = namespace
        own = {namespace}
        for pod in {pod.owner: pod for pod in pods}.values():
            quota = snapshot.quotas.quota_of(pod)
            own.add(snapshot.quotas.user_of(pod))
            own.update(names.parents.get(quota, (quota,)))
        self.own: frozenset[str] = frozenset(own)
        """Names of the tenant: its namespace, users and quotas, with the parents of the quotas."""
        self._hidden = names.loose - self.own
        self._paths, self._public = names.paths, names.public
        self._odd = {space: found for space, found in names.odd.items() if space != namespace}

    def is_own(self, key: str) -> bool:
        """Returns True if a `namespace/name` is in the tenant's namespace."""
        return key.partition("/")[0] == self.namespace

    def text(self, text: str) -> str:
        """Returns the text with each name of another tenant masked."""
        for namespace, (names, lengths) in self._odd.items():
            text = _without_odd(text, f"{namespace}/", names, lengths)
        text = _QUALIFIED.sub(self._qualified, text)
        return self._without_loose(text) if self._hidden else text

    def texts(self, texts: Iterable[str]) -> list[str]:
        """Masks each text, and removes duplicates of masked texts."""
        return list(dict.fromkeys(self.text(one) for one in texts))

    def unit(self, gangs: Collection[str], title: str) -> str:
        """Returns the title of a unit: the names of the tenant's gangs, and the number of other gangs."""
        if not gangs:
            return self.text(title)
        own = [key for key in gangs if self.is_own(key)]
        others = len(gangs) - len(own)
        more = [f"{others} of another tenant"] if others else []
        return f"gang {','.join([*own, *more])}"

    def _qualified(self, found: re.Match[str]) -> str:
        kind, space, name = found["kind"] or "", found["space"], found["name"]
        bare = name.rstrip(".:")
        tail = name[len(bare) :]
        if kind in _CLUSTER_KINDS:
            return found[0]
        if space == self.namespace:
            return found[0]
        if not kind:
            if f"{space}/{bare}" in self._paths or f"{space}/{bare}" in _FIXED:
                return found[0]
            if space.isdigit() and bare.isdigit():
                return found[0]
            if not _DOMAIN_LABEL.fullmatch(space):
                return found[0]  # a namespace has no dot, underscore or capital letter
        return f"{kind}{MASK}{tail}"

    def _without_loose(self, text: str) -> str:
        out: list[str] = []
        at, depth, is_quoted, is_expected = 0, 0, False, False
        for found in _WORD.finditer(text):
            gap, word = text[at : found.start()], found[0]
            at = found.end()
            depth = max(0, depth + gap.count("[") - gap.count("]"))
            is_quoted ^= bool(gap.count('"') % 2)
            bare = word.rstrip(".")
            is_expected = is_expected and ";" not in gap
            is_plain = self._is_plain(text, found.start(), at, bare)
            if bare in self._hidden and (is_expected or depth or is_quoted or not is_plain):
                out += [gap, MASK, word[len(bare) :]]
                continue
            out += [gap, word]
            lower = bare.lower()
            is_expected = lower in _NOUNS or (is_expected and (lower in _BETWEEN or bare in self.own))
        return "".join([*out, text[at:]])

    def _is_plain(self, text: str, start: int, end: int, word: str) -> bool:
        """Returns True if a word is not treated as a tenant's name.

        These are numbers, words of the scheduler's sentences, names of nodes and domains, and parts of a name with a
        slash, because such a name is checked as a whole.
        """
        if text[end : end + 1] == "/" or text[max(0, start - 1) : start] == "/":
            return True
        return word.isdigit() or word.lower() in vocabulary() or word in self._public


def _without_odd(text: str, prefix: str, names: Collection[str], lengths: Sequence[int]) -> str:
    """Masks each of the names after a prefix. O(occurrences of the prefix x lengths)."""
    out, at = [], 0
    while (start := text.find(prefix, at)) >= 0:
        name = start + len(prefix)
        length = next((one for one in lengths if text[name : name + one] in names), None)
        if length is None:
            out.append(text[at:name])
            at = name
        else:
            out += [text[at:start], MASK]
            at = name + length
    return "".join([*out, text[at:]]) if out else text


@cache
def vocabulary() -> frozenset[str]:
    """Returns the words of the scheduler's sentences, in lower case."""
    return frozenset(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())
