# SPDX-License-Identifier: Apache-2.0
"""Limits on how much of one object is read, so that no tenant can slow down or fill the scheduler with one object.

All limits on objects that tenants write are in this table. An annotation above its limit is rejected as a whole, and
the message names the limit; a list of warnings is cut. Each limit is far above the values of real workloads, and low
enough that an object at every limit costs milliseconds.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

JSON_BYTES = 1 << 16
"""Maximum UTF-8 bytes of an annotation with JSON."""
NAME_BYTES = 253
"""Maximum UTF-8 bytes of the name of a gang in an annotation; the limit of Kubernetes for names of objects."""
LINKED_GANGS = 1000
"""Maximum number of gangs in one `groups` annotation, and in one GangGroup."""
GANG_KINDS = 1000
"""Maximum number of shapes of pods in one GangGroup."""
TIED_TERMS = 512
"""Maximum number of pod affinity terms and spread constraints over all shapes of one GangGroup.

Each term is matched with each shape.
"""
PORTS = 128
"""Maximum number of host ports of one pod."""
GANG_PORTS = 1000
"""Maximum number of host ports of all pods of one GangGroup."""
CLAIMS = 128
"""Maximum number of claims that one pod names or creates."""
GATHER_ENTRIES = 64
"""Maximum number of entries of gatherStrategy, and of parallelModel."""
ANNOTATIONS = 256
"""Maximum number of annotations of one object. Above it, only annotations that koordpy reads somewhere are stored."""
RESOURCES = 50
"""Maximum number of resources that one pod requests."""
MIN_RESOURCES = 64
"""Maximum number of resources in minResources of a PodGroup."""
QUOTA_RESOURCES = 64
"""Maximum number of resources in min or max of an ElasticQuota, and in each of its annotations."""
CONTAINERS = 1000
"""Maximum number of containers of a pod, of all kinds together, that the admission webhook handles."""
WORKLOAD_PODS = 100_000
"""Maximum number of pods that are created offline for one workload."""
WORKLOAD_PARTS = 5000
"""Maximum number of Jobs of a JobSet, and of groups of a LeaderWorkerSet."""
OWNERS = 8
"""Maximum number of owners above a pod."""
SELECTOR_TERMS = 1000
"""Maximum number of a pod's node affinity terms and their expressions, together."""
TIES_BYTES = 1 << 13
"""Maximum bytes of a pod's affinity and anti-affinity to pods, and its spread constraints, as compact JSON.

Each pair of pods is compared by them, so their length matters.
"""
SPEC_BYTES = 1 << 18
"""Maximum bytes of a pod's placement constraints, as compact JSON."""
NAME_LETTERS = 100
"""Maximum length of a name that is compared with known names to find a misspelling; known names are shorter."""
FAULTS = 256
"""Maximum number of faults recorded for one workload."""
MEANT_AMONG = 64
"""Maximum number of quotas that a pod's misspelt quota name is compared with."""
HINTS = 10
"""Maximum number of warnings for one object."""
CYCLE_NAMES = 10
"""Maximum number of names in the text about a cycle of quotas."""


def too_long(text: str, most: int = JSON_BYTES) -> str:
    """Returns a fault's text if a text has more than `most` UTF-8 bytes; empty if it is within the limit."""
    size = len(text) if text.isascii() else len(text.encode())
    return too_many(size, most, "bytes")


def too_many(count: int, limit: int, what: str) -> str:
    """Returns a fault's text if a count is above its limit; empty if it is within the limit. what: the counted
    things."""
    return f"{count} {what}, at most {limit} are read" if count > limit else ""


def some(hints: Iterable[str]) -> Iterator[str]:
    """Yields the first `HINTS` warnings of one object, and a note if there are more. Further warnings are not
    computed."""
    rest = iter(hints)
    yield from islice(rest, HINTS)
    if next(rest, None) is not None:
        yield "further warnings are not listed"
