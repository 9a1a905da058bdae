# SPDX-License-Identifier: Apache-2.0
"""Checks the two guards of preemption.md 3.7, pod by pod, without code of the search.

The harm of a rule's victims may be at most a configured multiple of the gain. Members above minMember may not cause the
eviction of other gangs as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.verify.eviction_check import MOVE, PRIORITY, QUOTA, SHARE, EvictedUnit

_KINDS = ("accelerators", "cpu", "pods")
"""Measures of harm. The first measure that the placed pods request is used."""


def check_harm(placed: Sequence[PodInfo], taken: Sequence[EvictedUnit], config: KoordpyConfiguration) -> list[str]:
    """Returns the faults of rules with more harm than their factor (`protection.maxHarm`) times the gain.

    The gain is the amount that the placed pods request, the harm the amount that the rule's victims request.
    """
    limits = config.protection.max_harm
    factors = {
        PRIORITY: limits.priority,
        QUOTA: limits.quota,
        SHARE: limits.fair_share,
        MOVE: limits.consolidation,
    }
    kind = next(kind for kind in _KINDS if any(_counted(pod, kind) for pod in placed) or kind == "pods")
    gain = sum(_counted(pod, kind) for pod in placed)
    faults = []
    for rule, factor in factors.items():
        gone = [pod for one in taken if one.rule == rule for pod in one.pods]
        if factor is None or not gone:
            continue
        harm = sum(_counted(pod, kind) for pod in gone)
        if harm > Fraction(str(factor)) * gain:
            faults.append(
                f"{rule} evicts {float(harm):g} {kind} for {float(gain):g}, more than {factor:g} times as many"
            )
        if kind != "accelerators":
            faults += [
                f"{p.key} uses accelerators, but the placed pods request none"
                for p in gone
                if _counted(p, "accelerators")
            ]
    return faults


def _counted(pod: PodInfo, kind: str) -> Fraction:
    """Returns a pod's amount of one measure. kind: one of `_KINDS`. Accelerators are counted in whole devices; a card
    that two resources describe counts once."""
    if kind != "accelerators":
        return Fraction(pod.charged.get("cpu", 0) if kind == "cpu" else 1)
    most = {True: Fraction(0), False: Fraction(0)}
    for name in keys.ACCELERATORS:
        amount = Fraction(pod.charged.get(name, 0), 100 if name in keys.HUNDREDTHS else 1)
        of_gpus = name in keys.GPU_RESOURCES
        most[of_gpus] = max(most[of_gpus], amount)
    return most[True] + most[False]


def check_surplus(
    unit: Unit, placed: Iterable[PodInfo], taken: Sequence[EvictedUnit], groups: Groups, gone: Mapping[str, PodInfo]
) -> list[str]:
    """Returns the faults of gangs that are evicted as a whole for members above the preemptor's minMember.

    Gangs that run below their minimum are included. Victims of rule `quota` are exempt. unit: the preemptor. gone: key
    -> pod that the draft has already evicted.
    """
    here: dict[object, int] = {}
    for pod in placed:
        here[pod.gang] = here.get(pod.gang, 0) + 1
    above = [
        gang.key
        for gang in unit.gangs
        if gang.min_member >= 1
        and here.get(gang.ref, 0) + len(_staying(gang.pods, gone)) + gang.succeeded > gang.min_member
        and here.get(gang.ref, 0)
    ]
    if not above:
        return []
    leaving = {**gone, **{pod.key: pod for one in taken for pod in one.pods}}
    faults = []
    for one in taken:
        for ref in dict.fromkeys(pod.gang for pod in one.pods if pod.gang is not None and one.rule != QUOTA):
            gang = groups.gang(ref)
            before, after = _staying(gang.pods, gone), _staying(gang.pods, leaving)
            broken = len(before) + gang.succeeded < gang.min_member
            if broken or (not after and (gang.min_member > 0 or gang.one_victim)):
                faults.append(f"gang {gang.key} is evicted for members of gang {above[0]} above its minMember")
    return faults


def _staying(pods: Iterable[PodInfo], gone: Mapping[str, PodInfo]) -> list[PodInfo]:
    """Returns the live pods (bound, not on a lost node) that are not terminating and not in `gone`."""
    live = (pod for pod in pods if pod.bound and not pod.lost)
    return [pod for pod in live if pod.key not in gone and not pod.pod.metadata.deletion_timestamp]
