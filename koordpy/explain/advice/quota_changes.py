# SPDX-License-Identifier: Apache-2.0
"""Proposes changes for a unit that a quota refuses: larger limits, another quota, and fewer pods that count in quotas.

Several quotas on the path from a pod's quota to the root may refuse. The first proposals raise one limit each, to the
sum of the quota's usage and the unit's request. A further proposal raises all limits that refuse: after each raise, the
next limit that refuses is found on the changed quotas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from msgspec.structs import replace as restruct

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import with_pods, with_quotas
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, of_snapshot
from koordpy.explain.advice.completed_names import completed, may_end
from koordpy.explain.advice.ended_changes import FEWEST, completion, without
from koordpy.explain.advice.quota_refusals import limit_refusals
from koordpy.fairness.order_keys import Job
from koordpy.fairness.quota_admission import QuotaRefusal
from koordpy.plan.limits import ADVICE_NAMED, ADVICE_RAISES
from koordpy.pods.pod_info import PodInfo, owner_in
from koordpy.quota.quota_tree import QuotaNode

Amounts = Mapping[str, int]
Raise = tuple[str, str, str, int]
"""(quota, `min` or `max`, resource, amount)."""


def quota_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of quotas and of the pods that count in them; nothing without quotas."""
    snapshot, quotas = case.snapshot, case.snapshot.quotas
    if not quotas.tree.quotas:
        return
    yield from _leaf_quotas(case)
    refusals = limit_refusals(case, snapshot)
    yield from _raised_alone(case, refusals)
    yield from _raised_together(case, refusals)
    yield from _guaranteed(case)
    yield from _quota_pods_ended(case, refusals)
    if any(one.limit_name == "runtime" for one in refusals):
        yield from _pending_removed(case, refusals)


def _leaf_quotas(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of the pods' quota: from a quota with children, in which no pod may be, to a leaf quota below it.

    At most `ADVICE_NAMED` leaf quotas are proposed.
    """
    quotas = case.snapshot.quotas
    name = next((n for pod in case.unit.pending if (n := quotas.quota_of(pod)) in quotas.tree.quotas), "")
    if not name or not quotas.tree.quotas[name].is_parent:
        return
    for leaf in [one for one in quotas.tree.quotas if name in quotas.tree.path(one)[:-1]][:ADVICE_NAMED]:

        def edit(snapshot: Snapshot, leaf: str = leaf) -> Snapshot:
            pods = [_in_quota(snapshot.pods[pod.key], leaf, case) for pod in case.unit.pending]
            return with_pods(snapshot, pods)

        text = f"{'its pods' if case.unit.is_gang else 'the pod'} named quota {leaf}, a leaf of quota {name}"
        yield ClusterChange(text, Effort.MISTAKE, of_snapshot(edit), 1, "leaf")


def _in_quota(info: PodInfo, quota: str, case: Case) -> PodInfo:
    """Returns a pod with another quota in its label."""
    meta = info.pod.metadata
    pod = restruct(info.pod, metadata=restruct(meta, labels={**meta.labels, keys.QUOTA_NAME: quota}))
    counts = case.config.quota.trusts_labels_of(info.namespace)
    return restruct(info, pod=pod, owner=owner_in(pod, counts=counts, queue=info.owner.queue))


def _raised_alone(case: Case, refusals: list[QuotaRefusal]) -> Iterator[ClusterChange]:
    """Yields changes that raise one limit of one quota, for the quotas that refuse, from the leaf up."""
    if not refusals:
        return
    tree = case.snapshot.quotas.tree
    path = max((one.path for one in refusals), key=len)
    resources = sorted({resource for one in refusals for resource in one.limit or ()})
    for name in reversed(path):
        if tree.quotas[name].closed:
            continue
        for which in dict.fromkeys(one.limit_name for one in refusals if one.quota == name or one.limit_name != "min"):
            side = "min" if which == "min" else "max"
            raises = _raises(case, name, side, resources)
            if raises:
                yield from _change(case, raises, 1, "quota")


def _raised_together(case: Case, refusals: list[QuotaRefusal]) -> Iterator[ClusterChange]:
    """Yields one change that raises all limits that refuse, if there are several.

    Limits are raised one after the other, until no limit refuses or `ADVICE_RAISES` limits were raised.
    """
    made: dict[tuple[str, str, str], int] = {}
    snapshot = case.snapshot
    for _ in range(ADVICE_RAISES):
        found = limit_refusals(case, snapshot)
        if not found:
            break
        before = len(made), sum(made.values())
        for one in found:
            side = "min" if one.limit_name == "min" else "max"
            for name, which, resource, amount in _raises(case, one.quota, side, sorted(one.limit or ())):
                made[name, which, resource] = max(amount, made.get((name, which, resource), 0))
        if (len(made), sum(made.values())) == before:
            break
        raises = [(*key, amount) for key, amount in made.items()]
        snapshot = _raised(case.snapshot, _agreed(case, raises) or raises)
    raises = [(*key, amount) for key, amount in made.items()]
    if len(raises) > 1:
        yield from _change(case, raises, len(raises) + len(refusals), "quota")


def _raises(case: Case, name: str, side: str, resources: list[str]) -> list[Raise]:
    """Returns the raises of a quota's min or max that the core needs, one for each resource with too small a limit.

    side: `min` or `max`. A min is compared with the usage of non-preemptible pods, a max with the usage of all pods.
    """
    quota, use = case.snapshot.quotas.tree.quotas[name], case.round_state.draft.quotas
    inside = [pod for pod in case.core if name in case.snapshot.quotas.tree.path(case.snapshot.quotas.quota_of(pod))]
    out = []
    for resource in resources:
        rigid = side == "min"
        asked = sum(pod.charged.get(resource, 0) for pod in inside if pod.owner.rigid or not rigid)
        used = use.rigid_used(name, resource) if rigid else use.used(name, resource)
        needed, limit = used + asked, quota.least(resource) if rigid else quota.max.get(resource)
        if limit is not None and asked and needed > limit:
            out.append((name, side, resource, needed))
    return out


def _change(case: Case, asked: list[Raise], size: int, family: str) -> Iterator[ClusterChange]:
    """Yields one change with the given raises, and with further raises that they require (`_agreed`).

    Yields nothing if the raises are impossible. size, family: as in `ClusterChange`; required raises are added to size.
    """
    tree, raises = case.snapshot.quotas.tree, _agreed(case, asked)
    if not raises:
        return
    parts, amount = list[str](), 0.0
    for name, side, resource, most in raises:
        limit = tree.quotas[name].least(resource) if side == "min" else tree.quotas[name].max[resource]
        text = f"{quantity_text(resource, most)} {resource} (it is {quantity_text(resource, limit)})"
        amount += (most - limit) / max(1, most)
        parts.append(f"{side} of quota {name} were {text}")
    edit = of_snapshot(lambda one: _raised(one, raises))
    yield ClusterChange(
        ", and ".join(parts), Effort.LIMIT, edit, size + len(raises) - len(asked), family, amount=amount
    )


def _agreed(case: Case, raises: list[Raise]) -> list[Raise]:
    """Returns the raises and all further raises that keep the quotas consistent.

    A raised min requires that the quota's max is at least this min, and that the parent's min is at least the sum of
    its children's mins. Returns an empty list if that is impossible, because a quota on the path has no max for the
    resource, or is invalid.
    """
    tree = case.snapshot.quotas.tree
    made = {(name, side, resource): amount for name, side, resource, amount in raises}
    for name, resource in [(name, resource) for name, side, resource in made if side == "min"]:
        at = name
        while at:
            quota, least = tree.quotas[at], made[at, "min", resource]
            if quota.closed or resource not in quota.max:
                return []
            if made.get((at, "max", resource), quota.max[resource]) < least:
                made[at, "max", resource] = least
            parent = tree.quotas.get(quota.parent)
            children = [tree.quotas[child] for child in tree.children[quota.parent]]
            if parent is None or parent.forced or any(child.forced for child in children):
                break
            total = sum(made.get((child.name, "min", resource), child.least(resource)) for child in children)
            if total <= made.get((parent.name, "min", resource), parent.least(resource)):
                break
            made[parent.name, "min", resource] = total
            at = parent.name
    return [(*key, amount) for key, amount in made.items()]


def _raised(snapshot: Snapshot, raises: list[Raise]) -> Snapshot:
    """Returns a snapshot with limits of quotas raised as given."""
    changed: dict[str, QuotaNode] = {}
    for name, side, resource, amount in raises:
        quota = changed.get(name, snapshot.quotas.tree.quotas[name])
        least, most = dict(quota.min), dict(quota.max)
        if side == "min":
            least[resource] = amount
        else:
            most[resource] = amount
        changed[name] = replace(quota, min=least, max=most)
    return with_quotas(snapshot, changed.values())


def _guaranteed(case: Case) -> Iterator[ClusterChange]:
    """Yields a larger min of the unit's quota, so that the unit may reclaim capacity that other quotas have borrowed.

    Yields nothing if that would require a larger max, because raising the max is proposed separately.
    """
    quotas = case.snapshot.quotas
    leaf = quotas.tree.quotas.get(quotas.quota_of(case.unit.pending[0]))
    if leaf is None:
        return
    use, requests, raises = case.round_state.draft.quotas, Job(case.unit).requests(), list[Raise]()
    for resource, most in leaf.max.items():
        needed = use.used(leaf.name, resource) + requests.get(resource, 0)
        if requests.get(resource, 0) and leaf.least(resource) < needed <= most:
            raises.append((leaf.name, "min", resource, needed))
    if raises and not any(side == "max" for _, side, _, _ in _agreed(case, raises)):  # raising max is a separate change
        yield from _change(case, sorted(raises), len(raises), "min")


def _quota_pods_ended(case: Case, refusals: list[QuotaRefusal]) -> Iterator[ClusterChange]:
    """Yields, for each quota that refuses, the end of a few of its running pods, so that it can admit the unit.

    The smallest single pod that is enough is chosen, else the largest pods. Yields nothing for a quota if more than
    `ADVICE_NAMED` pods would have to end.
    """
    quotas = case.snapshot.quotas
    for refusal in refusals:
        limit, used, asked = refusal.limit or {}, refusal.used or {}, refusal.request or {}
        lacks = {r: used[r] + asked[r] - limit[r] for r in limit}
        inside = [
            pod
            for pod in case.snapshot.pods.values()
            if may_end(pod, case)
            and refusal.quota in quotas.tree.path(quotas.quota_of(pod))
            and any(pod.charged.get(r) for r in lacks)
            and (pod.owner.rigid or refusal.limit_name != "min")
        ]
        # the smallest pod that is enough alone, else the largest pods until they are enough together
        inside.sort(key=lambda pod: (sum(pod.charged.get(r, 0) for r in lacks), natural_key(pod.key)))
        gone = [one for one in inside if all(one.charged.get(r, 0) >= n for r, n in lacks.items())][:1]
        while not gone or any(sum(pod.charged.get(r, 0) for pod in gone) < n for r, n in lacks.items()):
            if not inside or len(gone) >= ADVICE_NAMED:
                gone = []
                break
            gone.append(inside.pop())
        if gone and (names := completed(gone, case)):
            uses = "it uses" if len(gone) == 1 else "they use"
            text = f"{names} and released what {uses} of quota {refusal.quota}"
            yield replace(completion(gone, case, text, "quota completed"), supersedes=FEWEST)


def _pending_removed(case: Case, refusals: list[QuotaRefusal]) -> Iterator[ClusterChange]:
    """Yields the removal of pending pods of other quotas: of each single quota, then of all quotas.

    It may help because the runtime of a quota (the amount that it may use now) is smaller while other quotas have
    pending pods.
    """
    quotas, own = case.snapshot.quotas, {pod.key for pod in case.unit.members}
    resources = {resource for one in refusals for resource in one.limit or ()}
    inside = {quotas.quota_of(pod) for pod in case.unit.pending}
    waiting: dict[str, list[PodInfo]] = {}
    for pod in case.snapshot.pending:
        name = quotas.quota_of(pod)
        if name in quotas.tree.quotas and name not in inside and pod.key not in own:
            waiting.setdefault(name, []).append(pod)
    asked = {
        name: {r: n for r in sorted(resources) if (n := sum(pod.charged.get(r, 0) for pod in pods))}
        for name, pods in waiting.items()
    }
    order = sorted((name for name in asked if asked[name]), key=lambda n: (sum(asked[n].values()), natural_key(n)))
    several = [order] if len(order) > 1 else []
    for names in [*([name] for name in order[:ADVICE_NAMED]), *several]:
        total = {r: n for r in sorted(resources) if (n := sum(asked[name].get(r, 0) for name in names))}
        amounts = " and ".join(f"{quantity_text(r, n)} {r}" for r, n in total.items())
        what = f"quota {names[0]}" if len(names) == 1 else f"the {len(names)} other quotas"
        gone = [pod for name in names for pod in waiting[name]]
        text = f"the pending pods of {what} were deleted (they request {amounts})"
        yield ClusterChange(text, Effort.OTHERS_END, of_snapshot(without(gone)), len(gone), "waiting")
