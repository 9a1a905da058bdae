"""How much of one object is read: the one table of limits on what tenants write.

An annotation above its limit is refused as a whole, in words that name it; what is only told of, hints, is cut. Each
limit is far above what real workloads write, and low enough that an object at every limit costs milliseconds.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

JSON_BYTES = 1 << 16
"""UTF-8 bytes of an annotation that holds JSON."""
NAME_BYTES = 253
"""UTF-8 bytes of a gang's name in an annotation: those of a name in Kubernetes."""
LINKED_GANGS = 1000
"""Gangs in one `groups` annotation, and in one GangGroup."""
GANG_KINDS = 1000
"""Kinds of pods of one GangGroup that a plan must tell apart."""
TIED_TERMS = 512
"""Terms of affinity to pods and spread constraints of all kinds of pods of one GangGroup: each is held against each
kind."""
PORTS = 128
"""Host ports of one pod."""
GANG_PORTS = 1000
"""Host ports of all pods of one GangGroup."""
CLAIMS = 128
"""Claims that one pod names, and makes."""
GATHER_ENTRIES = 64
"""Entries of gatherStrategy, and of parallelModel."""
ANNOTATIONS = 256
"""Annotations of one object; beyond, only those are kept that are read on some object."""
RESOURCES = 50
"""Resources that one pod asks for."""
MIN_RESOURCES = 64
"""Resources in minResources of a PodGroup."""
QUOTA_RESOURCES = 64
"""Resources in min or max of an ElasticQuota, and in an annotation of it."""
CONTAINERS = 1000
"""Containers of a pod, of all kinds together, that the admission webhook answers for."""
WORKLOAD_PODS = 100_000
"""Pods that one workload makes offline."""
WORKLOAD_PARTS = 5000
"""Jobs of a JobSet, groups of a LeaderWorkerSet."""
OWNERS = 8
"""Objects one above the other that control a pod."""
SELECTOR_TERMS = 1000
"""Terms of a pod's node affinity, and their expressions, together."""
TIES_BYTES = 1 << 13
"""A pod's affinity and anti-affinity to pods, and its spread constraints, as compact JSON. Each pair of pods is looked
at by them."""
SPEC_BYTES = 1 << 18
"""What decides where a pod may go, as compact JSON."""
NAME_LETTERS = 100
"""Letters of a name that may be a misspelt one; none that is read has as many."""
FAULTS = 256
"""Faults taken down of one workload."""
MEANT_AMONG = 64
"""Quotas among which the one is looked for that a pod may have meant."""
HINTS = 10
"""Doubts told of one object."""
CYCLE_NAMES = 10
"""Names of a circle of quotas that are said."""


def too_long(text: str, most: int = JSON_BYTES) -> str:
    """What is wrong with an annotation's length; empty for nothing."""
    size = len(text) if text.isascii() else len(text.encode())
    return too_many(size, most, "bytes")


def too_many(count: int, limit: int, what: str) -> str:
    """What is wrong with a number of entries; empty for nothing."""
    return f"{count} {what}, at most {limit} are read" if count > limit else ""


def some(hints: Iterable[str]) -> Iterator[str]:
    """The first hints of one object, and a word that there are more; the rest is not even looked for."""
    rest = iter(hints)
    yield from islice(rest, HINTS)
    if next(rest, None) is not None:
        yield "more of it is not read, or not as it was meant"
