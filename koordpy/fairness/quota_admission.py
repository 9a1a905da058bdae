# SPDX-License-Identifier: Apache-2.0
"""Quota admission: checks a unit against the quotas of its pods and all their ancestors, before any node is searched.

Each quota has two limits: its runtime (or max) for all pods, and its min for non-preemptible pods
(docs/rules/quota-fairness.md 5). The core of a gang, the members that it needs to start, is admitted as a whole. Of the
other members, a quota admits as many as fit; the placement problem gets the remaining amount as an `Allowance`. Limits
are those of the round's snapshot. Usage is that of the draft, which changes with every placement and eviction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from koordpy.api.counted_nouns import count_noun
from koordpy.api.keys import BUILT_IN_QUOTAS, DEFAULT_QUOTA
from koordpy.api.quantity import quantity_text
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import Quota as QuotaSettings
from koordpy.fairness.quota_runtime import QuotaAmounts, limits, quota_amounts
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Allowance
from koordpy.pods.pod_info import PodInfo, total_charges
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.quota.quota_book import Quotas, QuotaUse
from koordpy.reservations.capacity_view import PLAIN, QuotaDemand, View
from koordpy.reservations.reservation_ledger import ReservationLedger

PLUGIN = "ElasticQuota"
"""Plugin name of quota refusals among the filters."""
REFUSING_QUOTA = "quotaName: "
"""Text before the name of the quota in the message of a pod that a quota refuses."""


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """A quota that does not admit a unit, and the reason. Either the unit exceeds a limit (`limit_name`), or a pod is
    in a parent quota, or the quota's object cannot be read (`closed`). Amounts are those of the exceeded resources;
    None if no limit is exceeded."""

    quota: str
    path: tuple[str, ...]
    """Names of quotas from the top down to the quota of the pods."""
    limit_name: str = ""
    """`runtime`, `max` or, for non-preemptible pods, `min`; empty if no limit is exceeded."""
    limit: Mapping[str, int] | None = None
    used: Mapping[str, int] | None = None
    request: Mapping[str, int] | None = None
    outside: Mapping[str, int] | None = None
    """Amounts that pods in no quota use, which reduce the total that quotas share. None unless a runtime is
    exceeded."""
    gang: str = ""
    """Id of the GangGroup; empty for a plain pod."""
    needed: int = 0
    """Number of members that the gang needs to start."""
    remaining: int = 0
    """Number of pending members of the gang that the quota could still admit."""
    closed: bool = False
    """True if the quota's object cannot be read."""

    @property
    def reason(self) -> str:
        """The reason in the pod's message (quota-fairness.md 6)."""
        if self.closed:
            return f"quota {self.quota} cannot be read: no more pods start in it"
        if not self.limit_name or self.limit is None or self.used is None or self.request is None:
            return f"quota {self.quota} is a parent: use one of its leaves"
        what = "Insufficient non-preemptible quotas" if self.limit_name == "min" else "Insufficient quotas"
        parts = [what, f"{REFUSING_QUOTA}{self.quota}"]
        if len(self.path) > 1:
            parts.append(f"quotaNameTopo: [{' '.join(self.path)}]")
        parts.append(f"{self.limit_name}: {_listed(self.limit)}")
        parts.append(f"used: {_listed(self.used)}")
        parts.append(f"request: {_listed(self.request)}")
        parts.append(f"exceedDimensions: [{' '.join(sorted(self.limit))}]")
        if self.gang:
            parts.append(
                f"gang {self.gang} needs {count_noun(self.needed, 'member')}, quota has room for {self.remaining}"
            )
        if self.outside:
            parts.append(f"pods in no quota use: {_listed(self.outside)}")
        return ", ".join(parts)

    def text(self, nodes: int) -> str:
        """Returns the whole message. nodes: number of nodes of the snapshot."""
        return f"0/{nodes} nodes are available: {self.reason}."


def _listed(amounts: Mapping[str, int]) -> str:
    """Returns amounts as text, such as `cpu=8,memory=16Gi`."""
    return ",".join(f"{name}={quantity_text(name, amount)}" for name, amount in sorted(amounts.items()))


@dataclass(frozen=True, slots=True)
class _QuotaLimit:
    """One limit of one quota, with the usage that is compared with it for one unit."""

    quota: str
    limit_name: str
    limit: Mapping[str, int]
    used: Mapping[str, int]
    rigid: bool
    """True if the limit counts only non-preemptible pods (min)."""

    def free(self, resource: str) -> int:
        """Returns the amount of a resource that is left; negative if usage exceeds the limit already."""
        return self.limit.get(resource, 0) - self.used[resource]


class Admission:
    """Checks units against the limits of a round, in one view of reservations (`capacity_view.py`).

    The caller passes the draft's usage.
    """

    def __init__(self, draft: Draft, settings: QuotaSettings, reservations: ReservationLedger) -> None:
        self.draft, self.reservations, self.view = draft, reservations, PLAIN
        self.quotas: Quotas = draft.snapshot.quotas
        self.settings = settings
        self._demand = QuotaDemand(self.quotas)

    def of_view(self, view: View) -> "Admission":
        """Returns the same limits in another view of reservations."""
        made = copy(self)
        made.view, made.quota_amounts = view, self.quota_amounts
        return made

    @cached_property
    def quota_amounts(self) -> Mapping[str, QuotaAmounts]:
        """Request, usage and runtime of every quota on the snapshot."""
        return quota_amounts(self.quotas, self.settings)

    @property
    def limits(self) -> Mapping[str, Amounts]:
        """Quota -> resource of its max -> maximum usage, without regard to reservations."""
        return self._limits_with({})

    def admission_limits(self) -> Mapping[str, Amounts]:
        """Returns the limits for the admission of a new unit: those of `limits`, changed by reserved amounts.

        Amounts reserved for pods in the built-in quotas (system, default) are subtracted from the total before quotas
        share it. With `guaranteeUsage`, reserved amounts count as used in every quota. In the view of a preemptor,
        usage of pods that this round has placed in built-in quotas is also subtracted; otherwise pods would be evicted
        for a unit that admission then refuses.
        """
        if not self.quotas.tree.quotas or not self.settings.enable_runtime_quota:
            return self.limits
        return self._limits_with(self._reserved(), also=self._unplaced())

    def admission_limits_after(self, freed: Mapping[str, int], only: str = "") -> Mapping[str, Amounts]:
        """Returns `admission_limits` as they would be if pods in no quota used less (docs/rules/quota-fairness.md 4).
        freed: resource -> amount by which they use less. only: the one resource to compute limits for; empty for
        all."""
        if not any(freed.values()) or not self.settings.enable_runtime_quota:
            return self.admission_limits()
        views = [self._reserved(), self._unplaced()]
        less = [{name: dict(of) for name, of in view.items()} if view is not None else None for view in views]
        for view in less:
            if view is not None:
                add_amounts(view.setdefault(DEFAULT_QUOTA, {}), freed, -1)
        return self._limits_with(less[0] or {}, only, also=less[1])

    def limits_after(self, freed: Mapping[str, int]) -> Mapping[str, Amounts]:
        """Returns the limits of the snapshot if pods in no quota used less. freed: resource -> amount above 0."""
        return self._limits_with({DEFAULT_QUOTA: {r: -amount for r, amount in freed.items()}} if freed else {})

    def _reserved(self) -> Mapping[str, Amounts]:
        """Returns quota -> amounts that are reserved in it in this view, in addition to usage."""
        view, ledger = self.view, self.reservations
        if view.placed:
            return ledger.committed_by_quota(without_terminating=view.without_terminating)
        return (
            ledger.reserved_by_quota(without_terminating=view.without_terminating)
            if ledger or view.without_terminating
            else {}
        )

    def _unplaced(self) -> Mapping[str, Amounts] | None:
        """Returns the reserved amounts without placements of the round; None if this makes no difference. With
        `guaranteeUsage`, placements raise guarantees that the limits of the snapshot do not contain. A search for
        victims must respect both the limits with placements and the limits without them."""
        both = self.view.net and self.view.without_terminating and self.settings.guarantee_usage
        return self.reservations.reserved_by_quota(without_terminating=True) if both else None

    def _limits_with(
        self, promised: Mapping[str, Amounts], only: str = "", *, also: Mapping[str, Amounts] | None = None
    ) -> Mapping[str, Amounts]:
        """Returns the limits of all quotas. promised: quota -> reserved amounts; negative amounts raise the total.
        only: the one resource to compute; empty for all. also: other reserved amounts, for which the limits are
        computed, too; the smaller limit applies. None for no others."""
        if also is not None and also != promised:
            one, other = self._limits_with(promised, only), self._limits_with(also, only)
            return {q: {r: min(n, other[q][r]) for r, n in of.items()} for q, of in one.items()}
        # without `guaranteeUsage`, only amounts reserved in the built-in quotas have an effect: they reduce the total
        guarantees = self.settings.guarantee_usage
        if not guarantees:
            promised = {name: of for name, of in promised.items() if name in BUILT_IN_QUOTAS}
        known = only, tuple((name, *sorted(of.items())) for name, of in sorted(promised.items()))
        demand = self.view.demand or self._demand
        found = demand.limits
        if known not in found:
            quotas = demand.quotas
            off = {r: sum(promised.get(name, {}).get(r, 0) for name in BUILT_IN_QUOTAS) for r in quotas.total}
            if any(off.values()):
                quotas = replace(quotas, total={r: n - off[r] for r, n in quotas.total.items()})
            same = quotas is self.quotas and not promised
            amounts = self.quota_amounts if same else quota_amounts(quotas, self.settings, promised, only)
            out = limits(amounts, quotas, self.settings)
            if self.lends:  # no limit exceeds max
                tree = self.quotas.tree.quotas
                out = {q: {r: min(n, tree[q].max[r]) for r, n in of.items()} for q, of in out.items()}
            if promised and not guarantees:
                # a smaller total must not raise a limit, which could happen because rounding gives its last unit to
                # another quota
                most = self.limits
                out = {
                    q: {r: n if off.get(r, 0) < 0 else min(n, most[q][r]) for r, n in of.items()}
                    for q, of in out.items()
                }
            found[known] = out
        return found[known]

    @property
    def lends(self) -> bool:
        """True if runtimes are computed with other demand than that of the snapshot (`lend_runtimes.py`). Then no limit
        exceeds max, even if usage exceeds max already."""
        return self.view.demand is not None

    # -- one unit -----------------------------------------------------------------------------------------------------

    def refusal(self, unit: Unit, use: QuotaUse) -> QuotaRefusal | None:
        """Returns the refusal of a unit if no core of it can be admitted; None if some core may be admitted. If members
        differ, a core other than the lowest-ranked one may fit; the allowances of the placement problem decide that."""
        found = self.core_refusal(unit, use)
        if found is None or not found.limit_name or self._has_equal_cores(unit) or self._exceeds_a_limit(unit, use):
            return found
        return None

    def core_refusal(self, unit: Unit, use: QuotaUse) -> QuotaRefusal | None:
        """Returns the refusal of the lowest-ranked core of a unit; None if all quotas admit this core. If pods are in a
        parent quota or below an unreadable quota, that is the refusal. Else it is the first exceeded limit, from the
        leaf upwards."""
        for pod in unit.pending if self.quotas.tree.quotas else ():
            name = self.quotas.quota_of(pod)
            quota = self.quotas.tree.quotas.get(name)
            if quota is not None and quota.is_parent:
                return QuotaRefusal(name, self.quotas.tree.path(name))
            if closed := self.quotas.tree.closed(name):
                return QuotaRefusal(closed, self.quotas.tree.path(name), closed=True)
        return next(self.core_refusals(unit, use), None)

    def core_refusals(self, unit: Unit, use: QuotaUse) -> Iterator[QuotaRefusal]:
        """Yields a refusal for every limit that does not admit the lowest-ranked core, from each leaf upwards."""
        if not self.quotas.tree.quotas:
            return
        core = core_members(unit)
        for name in dict.fromkeys(self.quotas.quota_of(pod) for pod in core):
            path = self.quotas.tree.path(name)
            for at in reversed(path):
                for quota_limit in self._limits_of(at, use, unit):
                    inside = self._counted(core, quota_limit)
                    asked = total_charges(inside)
                    over = [r for r in quota_limit.used if 0 < asked.get(r, 0) > quota_limit.free(r)]
                    if inside and over:
                        yield self._refusal_of(unit, quota_limit, path, asked, over)

    def _refusal_of(
        self, unit: Unit, quota_limit: _QuotaLimit, path: tuple[str, ...], asked: Mapping[str, int], over: Sequence[str]
    ) -> QuotaRefusal:
        """Returns the refusal of a unit by one limit. asked: requests of the core. over: the exceeded resources."""
        gang, needed, room = "", 0, 0
        if unit.is_gang:
            gang, needed = unit.group_id, max(1, sum(unit.need(g) for g in unit.gangs))
            inside = self._counted(unit.pending, quota_limit)
            room = min(_number_fitting([pod.charged.get(r, 0) for pod in inside], quota_limit.free(r)) for r in over)
        return QuotaRefusal(
            quota=quota_limit.quota,
            path=path,
            limit_name=quota_limit.limit_name,
            limit={r: quota_limit.limit.get(r, 0) for r in over},
            used={r: quota_limit.used[r] for r in over},
            request={r: asked.get(r, 0) for r in over},
            outside=self._use_outside_quotas(quota_limit, over),
            gang=gang,
            needed=needed,
            remaining=room,
        )

    def _use_outside_quotas(self, quota_limit: _QuotaLimit, over: Iterable[str]) -> Mapping[str, int]:
        """Returns the amounts above 0 that pods in no quota use. Empty unless the limit is a runtime of the default
        tree, because these amounts reduce only the total of that tree."""
        if quota_limit.limit_name != "runtime" or self.quotas.tree.quotas[quota_limit.quota].tree_id:
            return {}
        held = [self.quotas.own_used.get(name, {}) for name in BUILT_IN_QUOTAS]
        return {r: amount for r in over if (amount := sum(of.get(r, 0) for of in held))}

    def _limits_of(self, name: str, use: QuotaUse, unit: Unit) -> list[_QuotaLimit]:
        """Returns the two limits of a quota: for all pods, and for non-preemptible pods."""
        quota = self.quotas.tree.quotas[name]
        limit_name = "runtime" if self.settings.enable_runtime_quota else "max"
        kept = self._use_with_reservations(unit, use) if self.reservations else use
        used = {r: kept.used(name, r) for r in quota.max}
        rigid = {r: kept.rigid_used(name, r) for r in quota.max}
        return [
            _QuotaLimit(name, limit_name, self.admission_limits()[name], used, rigid=False),
            _QuotaLimit(name, "min", quota.min, rigid, rigid=True),
        ]

    def _use_with_reservations(self, unit: Unit, use: QuotaUse) -> QuotaUse:
        """Returns the usage including the reservations that are closed to a unit. If the unit searches for victims or
        has a nomination, amounts that terminating pods free are subtracted from the reserved amounts."""
        net = self.view.net or any(pod.nominated_node for pod in unit.pending)
        return self.reservations.use(unit, use, net=net)

    def _counted(self, pods: Iterable[PodInfo], quota_limit: _QuotaLimit) -> list[PodInfo]:
        """Returns the pods that a limit counts: those in the quota or below it; for min only non-preemptible pods."""
        tree, quotas = self.quotas.tree, self.quotas
        inside = [pod for pod in pods if quota_limit.quota in tree.path(quotas.quota_of(pod))]
        return [pod for pod in inside if pod.owner.rigid] if quota_limit.rigid else inside

    def _has_equal_cores(self, unit: Unit) -> bool:
        """Returns True if all possible cores of the unit have equal requests."""
        if unit.plain is not None:
            return True
        if not any(unit.need(gang) for gang in unit.gangs):
            return self._kinds(unit.pending) <= 1
        chosen = [gang for gang in unit.gangs if 0 < unit.need(gang) < len(gang.pending)]
        return all(self._kinds(gang.pending) <= 1 for gang in chosen)

    def _kinds(self, pods: Iterable[PodInfo]) -> int:
        """Returns the number of pods that differ for quotas: by quota, requests and preemptibility."""
        quota_of = self.quotas.quota_of
        return len({(quota_of(pod), pod.owner.rigid, *sorted(pod.charged.items())) for pod in pods})

    def _exceeds_a_limit(self, unit: Unit, use: QuotaUse) -> bool:
        """Returns True if every core exceeds some limit, even with the members of the smallest requests of the
        resource."""
        for pod_keys, resource, room in self._amounts_left(unit, use):
            least = 0
            for gang in unit.gangs:
                asked = [p.charged.get(resource, 0) if p.key in pod_keys else 0 for p in gang.pending]
                least += sum(sorted(asked)[: unit.need(gang)])
            if least > room:
                return True
        return False

    def _amounts_left(self, unit: Unit, use: QuotaUse) -> Iterator[tuple[set[str], str, int]]:
        """Yields (keys of the pending pods that a limit counts, resource, amount left) for every limit and resource.
        The amount left is at least 0, so that pods that do not request the resource are not refused."""
        first = {pod.shape: pod for pod in unit.pending}  # pods of one shape are in one quota
        names = {at for pod in first.values() for at in self.quotas.tree.path(self.quotas.quota_of(pod))}
        for name in sorted(names):
            for quota_limit in self._limits_of(name, use, unit):
                pod_keys = {pod.key for pod in self._counted(unit.pending, quota_limit)}
                for resource in quota_limit.used if pod_keys else ():
                    yield pod_keys, resource, max(0, quota_limit.free(resource))

    # -- placement problem --------------------------------------------------------------------------------------------

    def allowances(self, unit: Unit, numbers: Mapping[bytes, int], use: QuotaUse) -> tuple[Allowance, ...]:
        """Returns the limits of quotas that a placement of the unit might exceed, for the placement problem. numbers:
        shape of a pod -> index of the shape in the problem. All pods of a shape are in the same quota, and either all
        or none are non-preemptible."""
        if not self.quotas.tree.quotas:
            return ()
        first = {pod.shape: pod for pod in reversed(unit.pending)}
        out: dict[Allowance, None] = {}
        for pod_keys, resource, left in self._amounts_left(unit, use):
            amounts = [0] * len(numbers)
            for shape, pod in first.items():
                if pod.key in pod_keys:
                    amounts[numbers[shape]] = pod.charged_alone.get(resource, 0)
            shared = (one.claimed.with_others.get(resource, 0) for one in unit.pending if one.key in pod_keys)
            room = max(0, left - sum(shared))  # a claim of several members counts once
            if sum(amounts[numbers[pod.shape]] for pod in unit.pending) > room:
                out[Allowance(room, tuple(amounts))] = None
        return tuple(out)


def core_members(unit: Unit) -> tuple[PodInfo, ...]:
    """Returns the lowest-ranked core: as many pending members as each gang needs, at least one pod."""
    core: list[PodInfo] = []
    left = {gang.ref: unit.need(gang) for gang in unit.gangs}
    for pod in unit.pending:
        if pod.gang is not None and left.get(pod.gang, 0) > 0:
            left[pod.gang] -= 1
            core.append(pod)
    return tuple(core) or unit.pending[:1]


def _number_fitting(amounts: list[int], free: int) -> int:
    """Returns the number of amounts that fit, if the smallest are added first."""
    count = 0
    for amount in sorted(amounts):
        free -= amount
        if free < 0:
            break
        count += 1
    return count
