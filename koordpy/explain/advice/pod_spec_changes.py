# SPDX-License-Identifier: Apache-2.0
"""Proposes changes of the pods' specification: without one of its rules, with a corrected name, with smaller requests.

Each change edits the specification of all pending members to which it applies, and converts the result as the scheduler
converts pods. Functions that take and return a `Pod` edit one pod.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.counted_nouns import join_words
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import (
    Affinity,
    Container,
    Pod,
    Quantities,
    ResourceRequirements,
    Taint,
    Toleration,
    Volume,
)
from koordpy.api.quantity import quantity_text
from koordpy.api.spelling import meant
from koordpy.cache.snapshot import UNSCHEDULABLE_TAINT
from koordpy.cache.snapshot_variants import read_again, with_pods
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World
from koordpy.fairness.quota_admission import Admission
from koordpy.infeasibility.empty_nodes import NODE_CONDITIONS
from koordpy.plan.limits import ADVICE_KINDS, ADVICE_LESS, ADVICE_NAMED
from koordpy.plugins.node_filters import repels, taint_text
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_rules import Respec, in_containers, rule_title, rules_of, with_affinity

_MARKS = (keys.QUOTA_PREEMPTIBLE, keys.DISABLE_PREEMPTIBLE)
"""Labels that make a pod non-preemptible."""


def pod_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of the specification of a unit's pods."""
    yield from _missing_claims(case)
    yield from _misspelt(case)
    yield from rule_changes(case)
    yield from _selectors(case)
    yield from _tolerations(case)
    yield from _annotations(case)
    yield from _preemptible(case)
    yield from _smaller(case)


def rule_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that give up one rule of the members: a spread constraint, affinity, anti-affinity, host port."""
    for text, respec in rules_of([pod.pod for pod in case.unit.pending]):
        yield _change(case, f"{rule_title(text)} were removed", Effort.OWN_WISH, respec)


def _change(
    case: Case,
    text: str,
    effort: Effort,
    respec: Respec,
    size: int = 1,
    family: str = "",
    *,
    amount: float = 0.0,
    parts: Iterable[str] = (),
    only: Iterable[PodInfo] | None = None,
) -> ClusterChange:
    """Returns a change that edits every pending pod of the unit by `respec`.

    only: the pods to edit; None for all pending pods. Other arguments: as in `ClusterChange`.
    """
    chosen = case.unit.pending if only is None else tuple(only)

    def make(world: World) -> World:
        pods = (world.snapshot.pods[pod.key] for pod in chosen)
        changed = ((pod, respec(pod.pod)) for pod in pods)
        new = [read_again(old, pod, world.snapshot, world.config) for old, pod in changed if pod != old.pod]
        return World(with_pods(world.snapshot, new), world.config, world.only)

    return ClusterChange(text, effort, make, size, family, amount=amount, parts=frozenset(parts))


def _missing_claims(case: Case) -> Iterator[ClusterChange]:
    """Yields the creation of all PersistentVolumeClaims that pods of the unit use and that do not exist.

    The pods are tried without these volumes, so the text requires volumes that every node can use.
    """
    there = case.snapshot.storage.claims
    missing = {
        f"{pod.namespace}/{source.claim_name}": None
        for pod in case.unit.pending
        for volume in pod.pod.spec.volumes
        if (source := volume.persistent_volume_claim) is not None
        and f"{pod.namespace}/{source.claim_name}" not in there
    }
    if missing and len(missing) <= ADVICE_NAMED:
        names, is_one = sorted(missing, key=natural_key), len(missing) == 1
        text = f"PersistentVolumeClaim{'' if is_one else 's'} {join_words(names)} existed"
        text += f", with {'a volume' if is_one else 'volumes'} that every node can use"
        yield _change(case, text, Effort.MISTAKE, partial(_without_claims, names=frozenset(missing)), len(missing))


def _without_claims(pod: Pod, *, names: frozenset[str]) -> Pod:
    """Returns a pod without the volumes of the given claims. names: `namespace/name` of the claims."""

    def is_left(volume: Volume) -> bool:
        source = volume.persistent_volume_claim
        return source is None or f"{pod.metadata.namespace}/{source.claim_name}" not in names

    return replace(pod, spec=replace(pod.spec, volumes=list(filter(is_left, pod.spec.volumes))))


def _misspelt(case: Case) -> Iterator[ClusterChange]:
    """Yields, for each requested resource that no node has, the change to a resource with a similar name that a node
    has."""
    there = case.snapshot.offered_resources
    lost = {name for pod in case.kinds for name in pod.requests if name not in there}
    for name in sorted(lost):
        if near := meant(name, there):
            text = f"it requested {near} instead of {name}, which no node has"
            yield _change(case, text, Effort.MISTAKE, partial(_renamed, old=name, new=near))


def _renamed(pod: Pod, *, old: str, new: str) -> Pod:
    """Returns a pod that requests resource `new` instead of `old`."""

    def amounts(given: Quantities) -> Quantities:
        return {new if name == old else name: amount for name, amount in given.items()}

    return _with_amounts(pod, amounts)


def _with_amounts(pod: Pod, amounts: Callable[[Quantities], Quantities]) -> Pod:
    """Returns a pod with requests and limits changed by `amounts`, in all containers and for the pod as a whole."""

    def resources(given: ResourceRequirements) -> ResourceRequirements:
        return replace(given, requests=amounts(given.requests), limits=amounts(given.limits))

    made = in_containers(pod, lambda one: replace(one, resources=resources(one.resources)))
    whole = made.spec.resources
    return made if whole is None else replace(made, spec=replace(made.spec, resources=resources(whole)))


def _selectors(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that leave out labels of the node selector, or required node affinity: each alone, then together.

    If no node has the value of a selector, the text lists values that nodes have.
    """
    asked = dict.fromkeys(item for pod in case.kinds for item in sorted(pod.pod.spec.node_selector.items()))
    for key, value in asked:
        there = sorted({node.labels[key] for node in case.snapshot.nodes if key in node.labels})
        note = ""
        if value not in there:
            some = [*there[:ADVICE_NAMED], *(["others"] if len(there) > ADVICE_NAMED else [])]
            note = f"no node has it; nodes have {join_words(some)}" if there else "no node has this label"
            note = f" ({note})"
        text = f"node selector {key}={value} were removed{note}"
        edit = partial(_without_selector, key=key, value=value)
        yield _change(case, text, Effort.OWN_WISH, edit, parts=[f"selector {key}={value}"])
    labels = [f"selector {key}={value}" for key, value in asked]
    if len(asked) > 1:
        text = "its node selector were removed"
        yield _change(case, text, Effort.OWN_WISH, _without_selectors, len(asked), parts=labels)
    if any(_needs_nodes(pod.pod) for pod in case.kinds):
        text = "its required node affinity were removed"
        affinity = "node affinity"
        yield _change(case, text, Effort.OWN_WISH, _without_node_affinity, parts=[affinity])
        if asked:
            text, size = "its node selector and its required node affinity were removed", len(asked) + 1

            def without_both(pod: Pod) -> Pod:
                return _without_node_affinity(_without_selectors(pod))

            yield _change(case, text, Effort.OWN_WISH, without_both, size, parts=[*labels, affinity])


def _needs_nodes(pod: Pod) -> bool:
    """Returns True if a pod has required node affinity."""
    near = pod.spec.affinity
    return near is not None and near.node_affinity is not None and near.node_affinity.required is not None


def _without_selector(pod: Pod, *, key: str, value: str) -> Pod:
    left = {name: text for name, text in pod.spec.node_selector.items() if (name, text) != (key, value)}
    return replace(pod, spec=replace(pod.spec, node_selector=left))


def _without_selectors(pod: Pod) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_selector={}))


def _without_node_affinity(pod: Pod) -> Pod:
    def edit(near: Affinity) -> Affinity:
        own = near.node_affinity
        return near if own is None else replace(near, node_affinity=replace(own, required=None))

    return with_affinity(pod, edit)


def _tolerations(case: Case) -> Iterator[ClusterChange]:
    """Yields tolerations of taints that exclude the unit from nodes.

    Each proposal tolerates all such taints of some nodes. Proposals with the fewest taints are first; the last proposal
    tolerates all these taints. Taints of cordons, and of nodes that are not ready or under pressure, are never
    proposed, because the pods would not run there.
    """
    sets: dict[tuple[Taint, ...], int] = {}
    for node in case.snapshot.nodes:
        cordon = UNSCHEDULABLE_TAINT.key if node.unschedulable else None
        closing = [
            taint
            for taint in node.taints
            if taint.key != cordon and any(repels(taint, pod.pod.spec.tolerations) for pod in case.kinds)
        ]
        unusable = node.unschedulable or any(taint.key.startswith(NODE_CONDITIONS) for taint in closing)
        if closing and not unusable:
            sets[tuple(closing)] = sets.get(tuple(closing), 0) + 1
    order = sorted(sets, key=lambda one: (len(one), -sets[one], [taint_text(taint) for taint in one]))
    several = tuple(dict.fromkeys(taint for one in order for taint in one))
    for taints in [*order[:ADVICE_NAMED], *([several] if several not in sets else [])]:
        names = " and ".join(map(taint_text, taints))
        text = f"it tolerated taint{'s' if len(taints) > 1 else ''} {names}"
        edit = partial(_tolerant, taints=taints)
        parts = [f"taint {taint_text(taint)}" for taint in taints]
        yield _change(case, text, Effort.OPEN_NODE, edit, len(taints), parts=parts)


def _tolerant(pod: Pod, *, taints: tuple[Taint, ...]) -> Pod:
    more = [Toleration(key=one.key, operator="Equal", value=one.value, effect=one.effect) for one in taints]
    return replace(pod, spec=replace(pod.spec, tolerations=[*pod.spec.tolerations, *more]))


def _annotations(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that remove the annotations on GPU bandwidth and GPU partitions."""
    for key in (keys.GPU_MIN_BANDWIDTH, keys.GPU_PARTITION_SPEC):
        if any(key in pod.pod.metadata.annotations for pod in case.kinds):
            yield _change(case, f"annotation {key} were removed", Effort.OWN_WISH, partial(_without_note, key=key))


def _without_note(pod: Pod, *, key: str) -> Pod:
    """Returns a pod without an annotation."""
    left = {name: text for name, text in pod.metadata.annotations.items() if name != key}
    return replace(pod, metadata=replace(pod.metadata, annotations=left))


def _preemptible(case: Case) -> Iterator[ClusterChange]:
    """Yields the change of non-preemptible pods to preemptible pods, if the min of a quota refuses them.

    Non-preemptible pods must fit the min of their quotas; preemptible pods need not.
    """
    admission = Admission(case.round_state.draft, case.config.quota, case.round_state.reservations)
    refused = any(one.limit_name == "min" for one in admission.core_refusals(case.unit, case.round_state.draft.quotas))
    if refused:
        marks = {key for pod in case.unit.pending for key in _MARKS if key in pod.pod.metadata.labels}
        whose = "its members" if case.unit.is_gang else "the pod"
        text = f"{whose} were preemptible (without label {' and '.join(sorted(marks))})"
        yield _change(case, text, Effort.OWN_WISH, _evictable, 1)


def _evictable(pod: Pod) -> Pod:
    """Returns a pod without the labels that make it non-preemptible."""
    left = {key: text for key, text in pod.metadata.labels.items() if key not in _MARKS}
    return replace(pod, metadata=replace(pod.metadata, labels=left))


def _smaller(case: Case) -> Iterator[ClusterChange]:
    """Yields smaller requests of one resource: the most that any node has in total, or the most that any node has free.

    For accelerators smaller numbers are proposed, too. The resource must be requested by one container of each pod. If
    pods of the unit request different amounts, each proposal changes the pods of one role, one gang, or one pod.
    """
    draft, snapshot = case.round_state.draft, case.snapshot
    for name in sorted({name for pod in case.kinds for name in pod.requests}) if snapshot.nodes else ():
        column = snapshot.columns[name]
        whole, free = int(snapshot.allocatable[:, column].max()), int(draft.free()[:, column].max())
        for title, pods in _requesting(case, name).items():
            amount = pods[0].requests[name]
            parts = _parts(min(amount - 1, whole)) if name in keys.ACCELERATORS else []
            for less in sorted({whole, free, *parts}, reverse=True):
                if 0 < less < amount:
                    text = f"{title} requested {quantity_text(name, less)} {name}"
                    text += f" (it requests {quantity_text(name, amount)})"
                    edit = partial(_with_less, name=name, text=quantity_text(name, less))
                    share = (amount - less) / amount
                    family = f"less {name}{title}"
                    yield _change(case, text, Effort.SMALLER, edit, family=family, amount=share, only=pods)


def _requesting(case: Case, name: str) -> dict[str, list[PodInfo]]:
    """Returns the pods that request a resource, grouped by their name in texts: `it`, `each member`
    or `each pod of role worker`.

    Left out are pods with several containers that request the resource, and groups with different amounts.
    """
    pending = case.unit.pending
    if len({pod.requests.get(name, 0) for pod in pending}) == 1:
        groups = {"each member" if case.unit.is_gang else "it": list(pending)}
    else:
        groups = {}
        for pod in pending:
            if pod.requests.get(name):
                groups.setdefault(_group_title(pod, case), []).append(pod)
    return {
        title: pods
        for title, pods in list(groups.items())[:ADVICE_KINDS]
        if len({pod.requests.get(name) for pod in pods}) == 1 and all(_only_holder(pod, name) for pod in pods)
    }


def _group_title(pod: PodInfo, case: Case) -> str:
    """Returns a text for pods like `pod`: `each pod of role worker`; without a role `each pod of gang default/a` if the
    unit has several gangs, else the name of the pod."""
    gang = next((one for one in case.unit.gangs if one.ref == pod.gang), None)
    if gang is None:
        return f"pod {pod.key}"
    if gang.workload_gang is not None and gang.workload_gang.role:
        return f"each pod of role {gang.workload_gang.role}"
    return f"each pod of gang {gang.key}" if len(case.unit.gangs) > 1 else f"pod {pod.key}"


def _parts(most: int) -> list[int]:
    """Returns the numbers of devices to try, from `most` down: `ADVICE_LESS` numbers in steps of 1, then halves."""
    few = list(range(most, max(0, most - ADVICE_LESS), -1))
    while few and few[-1] > 1:
        few.append(few[-1] // 2)
    return few


def _only_holder(pod: PodInfo, name: str) -> Container | None:
    """Returns the only container that requests a resource. None if several containers request it, or if the request is
    one of the whole pod."""
    spec = pod.pod.spec
    holders = [one for one in spec.containers if name in one.resources.requests or name in one.resources.limits]
    others = any(name in one.resources.requests or name in one.resources.limits for one in spec.init_containers)
    if len(holders) != 1 or others or spec.resources is not None or name in spec.overhead:
        return None
    return holders[0]


def _with_less(pod: Pod, *, name: str, text: str) -> Pod:
    """Returns a pod with another request of a resource. text: the quantity, as in a manifest."""

    def amounts(given: Quantities) -> Quantities:
        return {key: text if key == name else amount for key, amount in given.items()}

    return _with_amounts(pod, amounts)
