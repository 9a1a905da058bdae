"""Whose a pod is, as far as its own labels tell: read once, when the pod is taken in.

Source: quota-fairness.md 1 and 5. Pods of one namespace, quota and user share one `Owner`.
"""

from functools import lru_cache
from typing import NamedTuple

from koordpy.api import keys
from koordpy.api.objects import Pod


class Owner(NamedTuple):
    """What of a pod decides whose it is."""

    namespace: str
    quota: str
    """Its quota label, else the queue of its group; empty for none."""
    user: str
    """Its user label; empty for none that counts."""
    rigid: bool
    """Non-preemptible."""


@lru_cache(maxsize=1 << 14)
def _owner(namespace: str, quota: str, user: str, rigid: bool) -> Owner:
    return Owner(namespace, quota, user, rigid)


def non_preemptible(pod: Pod) -> bool:
    """Whether the pod says that no rule may evict it: its quota's min has to hold it (quota-fairness.md 5)."""
    labels = pod.metadata.labels
    return labels.get(keys.QUOTA_PREEMPTIBLE) == "false" or labels.get(keys.DISABLE_PREEMPTIBLE) == "true"


def owner_in(pod: Pod, *, counts: bool = True, queue: str = "") -> Owner:
    """Whose a pod is; counts: whether what it says of its user and of evictions does; queue: its quota where it names
    none."""
    labels = pod.metadata.labels
    quota, user = labels.get(keys.QUOTA_NAME, queue), labels.get(keys.QUOTA_USER, "") if counts else ""
    return _owner(pod.metadata.namespace, quota, user, counts and non_preemptible(pod))
