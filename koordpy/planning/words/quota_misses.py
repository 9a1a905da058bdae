"""What would let a job through its quotas: for `koordpy explain`, with numbers that hold.

Source: simulate.md 5.2; quota-fairness.md 5. Every limit that refuses has to give way, so all are named
in one line. A runtime can grow to its quota's max and no further: beyond it is max that would have to be larger, and
what the cluster has left for it then.
"""

from collections.abc import Sequence
from dataclasses import replace

from koordpy.api.natural import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cluster.quotas import QuotaUse
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.quota.admission import Admission, QuotaRefusal
from koordpy.planning.units import Unit
from koordpy.planning.words.suggestions import NEAREST


def quota_misses(unit: Unit, admission: Admission, use: QuotaUse) -> list[str]:
    """The nearest misses of a unit that its quotas refuse; empty where they do not."""
    tree = admission.quotas.tree
    for name in dict.fromkeys(admission.quotas.quota_of(pod) for pod in unit.pending):
        if (quota := tree.quotas.get(name)) is not None and quota.is_parent:
            return [f"the pod named one of the leaves of quota {name}"]
        if closed := tree.closed(name):
            return [f"quota {closed} could be read"]
    refusals = list(admission.core_refusals(unit, use))
    parts = dict.fromkeys(part for one in refusals for part in _parts(one, admission))
    if not parts:
        return []
    if any(one.limit_name == "runtime" for one in refusals):
        raised = _raised(refusals, admission)
        for one in raised.core_refusals(unit, raised.draft.quotas):
            parts |= dict.fromkeys(_parts(one, raised))  # a larger max is no larger runtime where nothing is left
    misses = [", and ".join(parts)]
    if all(one.limit_name == "min" for one in refusals):
        misses.append(f"{'its members' if unit.is_gang else 'the pod'} might be evicted (were not non-preemptible)")
    return misses


def _parts(refusal: QuotaRefusal, admission: Admission) -> list[str]:
    """What would have to be so of one limit, per resource."""
    assert refusal.limit is not None
    assert refusal.used is not None
    assert refusal.request is not None
    quota = admission.quotas.tree.quotas[refusal.quota]
    out = []
    for resource, limit in sorted(refusal.limit.items()):
        needed = refusal.used[resource] + refusal.request[resource]
        if refusal.limit_name == "runtime" and needed <= quota.max[resource]:
            more = quantity_text(resource, needed - limit)
            waits = _kept_for(refusal, resource, admission)
            out.append(f"runtime of quota {quota.name} left {more} more {resource}{waits}")
            continue
        name, bound = ("min", limit) if refusal.limit_name == "min" else ("max", quota.max[resource])
        text = f"{quantity_text(resource, needed)} {resource} (it is {quantity_text(resource, bound)})"
        out.append(f"{name} of quota {quota.name} were {text}")
    return out


def _kept_for(refusal: QuotaRefusal, resource: str, admission: Admission) -> str:
    """For whom a runtime may keep room: what waits in other quotas, the largest first."""
    quotas = admission.quotas
    asked = {
        name: amounts[resource]
        for name, amounts in quotas.own_waiting.items()
        if name in quotas.tree.quotas and refusal.quota not in quotas.tree.path(name) and amounts.get(resource, 0) > 0
    }
    largest = sorted(asked, key=lambda name: (-asked[name], natural_key(name)))
    if not largest:
        return ""
    texts = [f"{quantity_text(resource, asked[name])} in {name}" for name in largest[:NEAREST]]
    return f" (what waits in other quotas asks for {', '.join(texts)}{', ...' if len(largest) > NEAREST else ''})"


def let_through(unit: Unit, admission: Admission, use: QuotaUse) -> Snapshot:
    """The snapshot with every max that refuses a unit, or whose runtime does, as large as told and no larger."""
    return _with_limits(list(admission.core_refusals(unit, use)), admission, exactly=True)


def _raised(refusals: Sequence[QuotaRefusal], admission: Admission) -> Admission:
    """Admission with every limit that refuses as large as it would have to be."""
    changed = _with_limits(refusals, admission)
    return Admission(Draft(changed), admission.settings, admission.promises)


def _with_limits(refusals: Sequence[QuotaRefusal], admission: Admission, *, exactly: bool = False) -> Snapshot:
    quotas = admission.quotas
    tree = dict(quotas.tree.quotas)
    for refusal in refusals:
        quota = tree[refusal.quota]
        least, most = dict(quota.min), dict(quota.max)
        for resource in refusal.limit or ():
            needed = (refusal.used or {})[resource] + (refusal.request or {})[resource]
            if refusal.limit_name == "min":
                least[resource] = needed
            if not exactly or refusal.limit_name == "min":
                needed = max(most[resource], needed)
            most[resource] = needed
        tree[refusal.quota] = replace(quota, min=least, max=most)
    return replace(admission.draft.snapshot, quotas=replace(quotas, tree=replace(quotas.tree, quotas=tree)))
