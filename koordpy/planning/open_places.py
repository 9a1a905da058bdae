"""Promised places stay open: nobody starts who would keep a pod from the room that is promised to it.

Source: preemption.md 4. On its node that room is closed to others already (`nominated_capacity.py`). What else a place
depends on: where other pods stand, by affinity and spread; and what is left to the pod's quotas, which is less once
pods start that count in none. Those who went for a place that is closed go in vain, and others would go anew.
"""

from collections.abc import Mapping

from koordpy.api.keys import BUILT_IN_QUOTAS
from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.quota.admission import PLUGIN
from koordpy.planning.units import Unit

BY_PODS: tuple[str, ...] = ("PodTopologySpread", "InterPodAffinity")
BY_QUOTAS: tuple[str, ...] = (PLUGIN,)
"""Filters that a place depends on beside those of its node."""
Places = frozenset[tuple[str, tuple[str, ...]]]
"""(pod key, what its place depends on)."""


def open_places(unit: Unit, figures: Figures) -> Places:
    """Promised places that a unit may not have, and that depend on more than their node: those that are open once the
    ending pods are gone."""
    draft, promises, pods = figures.draft, figures.promises, figures.snapshot.pods
    made = {key: draft.placed[key] for key in draft.later if key in draft.placed}
    asker = min(unit.pending, key=lambda pod: pod.priority)
    coming = promises.coming(asker, but={pod.key for pod in unit.members})
    shuns = any(pod.ties.anti for pod in unit.pending)
    leaning = {key: node for key, node in coming.items() if shuns or _leans(pods[key])}
    leaning |= {key: node for key, node in made.items() if _leans(pods[key])}
    places = {**coming, **made}
    out = {(key, BY_PODS) for key in _fitting(leaning, places, figures)} if leaning else set()
    if _shrinks_quotas(unit, figures):
        out |= {(key, BY_QUOTAS) for key in _admitted(places, figures)}
    return frozenset(out)


def _leans(pod: PodInfo) -> bool:
    return bool(pod.ties or pod.pod.spec.topology_spread_constraints)


def _fitting(leaning: Mapping[str, int], places: Mapping[str, int], figures: Figures) -> set[str]:
    """Pods that fit their node by where others are: with nobody in a promised place, or with all others in theirs."""
    draft, pods = figures.draft, figures.snapshot.pods
    made = [key for key in places if key in draft.placed]
    with draft.trial(without=[pod for pod in figures.promises.ending if pod.key not in draft.evicted]):
        with draft.lifted(made):
            out = {key for key, node in leaning.items() if figures.of(pods[key]).slots[node] > 0}
        for key, node in leaning.items() if len(out) < len(leaning) and len(places) > 1 else ():
            if key not in out:
                with draft.lifted([key] if key in made else []), draft.trial():
                    for other, at in places.items():
                        if other != key and other not in made:
                            draft.assign(pods[other], at)
                    out |= {key} if figures.of(pods[key]).slots[node] > 0 else set()
    return out


def _shrinks_quotas(unit: Unit, figures: Figures) -> bool:
    """Whether less is left to quotas once a unit starts."""
    quotas, settings = figures.snapshot.quotas, figures.config.quota
    if not quotas.tree.quotas or not settings.enable_runtime_quota:
        return False
    return settings.guarantee_usage or any(quotas.quota_of(pod) in BUILT_IN_QUOTAS for pod in unit.pending)


def _admitted(places: Mapping[str, int], figures: Figures) -> list[str]:
    """Pods that their quotas let start, once all that is promised has started and the ending pods are gone."""
    draft, quotas, pods = figures.draft, figures.snapshot.quotas, figures.snapshot.pods
    limits = figures.admission.open_limits(placed=True)
    left = {name: {r: n - draft.quotas.used(name, r) for r, n in of.items()} for name, of in limits.items()}
    coming = [(1, pods[key]) for key in places if key not in draft.placed]
    for sign, pod in coming + [(-1, pod) for pod in figures.promises.ending if pod.key not in draft.evicted]:
        for name in quotas.tree.path(quotas.quota_of(pod)):
            for r, amount in pod.requests.items():
                if r in left[name]:
                    left[name][r] -= sign * amount
    return [
        key
        for key in places
        if all(
            left[name].get(r, 0) >= 0
            for name in quotas.tree.path(quotas.quota_of(pods[key]))
            for r in pods[key].requests
        )
    ]
