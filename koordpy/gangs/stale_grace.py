# SPDX-License-Identifier: Apache-2.0
"""Computes the grace period of stale gangs, and how many missing members must start together after it.

A stale gang has fewer live members than its minimum, because a pod failed or was deleted. After its grace period it is
evicted as a whole, so that it does not use capacity without progress. Source: preemption.md 7.
"""

import contextlib

from koordpy.api import keys
from koordpy.api.durations import parse_duration
from koordpy.api.pod_endings import failed_since
from koordpy.api.times import seconds
from koordpy.cache.gang_history import SCHEDULED, STALE
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import StaleGangs
from koordpy.config.node_failures import Repair
from koordpy.gangs.broken_gangs import repair_policy
from koordpy.gangs.gang_reading import settings_of
from koordpy.gangs.gang_settings import Gang
from koordpy.pods.gang_refs import GangSource


def stale_minimum(gang: Gang, snapshot: Snapshot, settings: StaleGangs, repair: Repair) -> int:
    """Returns the number of pending members that must start together, because with fewer the gang would be evicted as
    stale. It is the number of missing members after the grace period, or if no member is live; 0 within the grace
    period, and for gangs that are never stale."""
    if not (gang.strict and gang.exists and gang.pending):
        return 0
    # `past.whole` is the number of members that ran together before; the minimum may have been raised later
    least = min(gang.min_member, gang.past.whole or gang.min_member)
    missing = least - len(gang.live) - gang.done
    if missing <= 0 or (grace := grace_seconds(gang, snapshot, settings, repair)) < 0:
        return 0
    over = not gang.live or snapshot.now - since(gang, snapshot) >= grace
    return missing if over else 0


def grace_seconds(gang: Gang, snapshot: Snapshot, settings: StaleGangs, repair: Repair) -> float:
    """Returns the grace period in seconds; negative if the gang is never evicted as stale. The gang's annotation has
    precedence over the configuration. The configuration does not apply to a gang with the repair policy `wait`
    (repair.md 4.3)."""
    if (own := _own_grace(gang, snapshot)) is not None:
        return own
    waits = repair_policy(gang, snapshot, repair) == "wait"
    return settings.grace if settings.enabled and not waits else -1.0


def regather_grace(gang: Gang, snapshot: Snapshot, settings: StaleGangs) -> float:
    """Returns the seconds after which a broken gang is moved as a whole (policy `regather`); negative for never. This
    does not depend on `staleGangs.enabled` (repair.md 4.3)."""
    own = _own_grace(gang, snapshot)
    return settings.grace if own is None else own


def _own_grace(gang: Gang, snapshot: Snapshot) -> float | None:
    """Returns the grace period in a gang's annotation, in seconds; negative for "-1" (never); None if it is absent or
    invalid."""
    meta = settings_of(snapshot, gang.ref)
    text = meta.annotations.get(keys.GANG_STALE_GRACE, "").strip() if meta is not None else ""
    with contextlib.suppress(ValueError):
        return -1.0 if text == "-1" else parse_duration(text)
    return None


def since(gang: Gang, snapshot: Snapshot) -> float:
    """Returns when the gang became stale, in seconds since 1970; the time of the snapshot if it is unknown."""
    known = began(gang, snapshot)
    return snapshot.now if known is None else known


def began(gang: Gang, snapshot: Snapshot) -> float | None:
    """Returns when the gang became stale, in seconds since 1970; None if it is unknown.

    It is the lastTransitionTime of the PodGroup's condition Stale. Without conditions it is the time at which the last
    member failed.
    """
    group = snapshot.pod_groups.get(gang.ref.key) if gang.ref.source is GangSource.GROUP else None
    conditions = {one.type: one for one in group.status.conditions} if group is not None else {}
    said = conditions.get(STALE)
    if group is not None and said is not None and said.status == "True" and said.last_transition_time:
        at = seconds(said.last_transition_time)
        if at < seconds(group.metadata.creation_timestamp):
            return at  # a manifest without a creation time gets a generated one, later than the begin of the run
        return max(at, gang.run.began)  # the condition may still be that of an earlier run
    if SCHEDULED in conditions:
        # the condition will have the time once it is written; a failed member may have been replaced long ago
        return None
    if gang.workload_gang is not None:
        return gang.workload_gang.failed_since
    failed = (pod.pod for pod in gang.failed)
    return failed_since(failed, (pod.pod for pod in gang.bound))
