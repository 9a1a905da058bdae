"""The independent check of a plan against quotas: no limit is exceeded at any ancestor (preemption.md 9, I3 and I10).

Requests are added up pod by pod and quota by quota, not by the sums and slots that placement works with.
"""

from collections import Counter
from collections.abc import Iterable

from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures


def check_quotas(placed: Iterable[PodInfo], figures: Figures) -> list[str]:
    """Faults of pods that are to be placed on the draft as it is; none where every quota holds them."""
    snapshot, draft = figures.snapshot, figures.draft
    quotas = snapshot.quotas
    tree = quotas.tree
    if not tree.quotas:
        return []
    asked: dict[str, Counter[str]] = {}
    rigid: dict[str, Counter[str]] = {}
    for pod in placed:
        for name in tree.path(quotas.quota_of(pod)):
            asked.setdefault(name, Counter()).update(pod.requests)
            if pod.owner.rigid:
                rigid.setdefault(name, Counter()).update(pod.requests)
    faults = []
    # what is used is guaranteed there, and with it what is promised in its place
    limits = figures.admission.open_limits() if figures.config.quota.guarantee_usage else figures.admission.limits
    for name, request in asked.items():
        limit, least = limits[name], tree.quotas[name].min
        for resource in tree.quotas[name].max:
            used = draft.quotas.used(name, resource)
            most = limit[resource]
            if figures.admission.lent:
                most = min(most, tree.quotas[name].max[resource])
            if request[resource] and used + request[resource] > most:
                faults.append(f"quota {name}: {resource} {used} + {request[resource]} > {most}")
            if name in rigid and rigid[name][resource]:
                held, most = draft.quotas.rigid_used(name, resource), least.get(resource, 0)
                if held + rigid[name][resource] > most:
                    faults.append(f"quota {name}: non-preemptible {resource} {held} + {rigid[name][resource]} > {most}")
    return faults
