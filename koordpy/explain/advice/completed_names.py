# SPDX-License-Identifier: Apache-2.0
"""Names a set of running pods in a short text: `gang team-a/big (8 pods) and pod team-a/x completed`.

A text may name whole gangs, all pods of a gang in one domain, all pods of a node, and single pods with ranges of
numbers. It is exact: with the state of the cluster it identifies exactly these pods.
"""

from collections.abc import Iterator, Mapping, Sequence

from koordpy.api.counted_nouns import join_words
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta, OwnerReference
from koordpy.explain.advice.advice_case import Case
from koordpy.plan.limits import ADVICE_NAMED, ADVICE_RANGE
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.pod_owners import replacing_controller

_TEMPLATE_HASH = "pod-template-hash"
"""Label that a Deployment gives its ReplicaSets and their pods; its value ends the name of the ReplicaSet."""


def may_end(pod: PodInfo, case: Case) -> bool:
    """Returns True if the end of a pod may be proposed. The pod must be bound, able to end, of another unit, and not
    evicted by the round.

    If a controller that replaces pods owns both the pod and the pod to explain, it is not proposed, because the
    controller would replace it.
    """
    own = pod.gang is not None and any(pod.gang == gang.ref for gang in case.unit.gangs)
    if not pod.bound or stays(pod) or own or _is_sibling(pod, case):
        return False
    return pod.key not in case.round_state.draft.evicted


def completed(pods: Sequence[PodInfo], case: Case) -> str:
    """Returns the names of the pods followed by `completed`, for example `pods a and b completed`.

    Empty if the text would have too many names.
    """
    left, parts = {pod.key: pod for pod in pods}, list[str]()
    for ref in dict.fromkeys(pod.gang for pod in pods if pod.gang is not None):
        there = running(ref, case)
        if len(there) > 1 and all(pod.key in left for pod in there):
            parts.append(f"gang {ref.key} ({len(there)} pods)")
            left = _without(left, there)
    for ref in dict.fromkeys(pod.gang for pod in left.values() if pod.gang is not None):
        for place, there in _parts(ref, left, case):
            parts.append(f"the {len(there)} pods (of {len(running(ref, case))}) of gang {ref.key} in {place}")
            left = _without(left, there)
    for name in sorted({pod.node for pod in left.values()}, key=natural_key):
        there = tuple(pod for pod in case.snapshot.pods_on.get(name, ()) if may_end(pod, case))
        if len(there) > ADVICE_NAMED and all(pod.key in left for pod in there):
            parts.append(f"all {len(there)} pods on node {name} that can complete")
            left = _without(left, there)
    by_gang: dict[GangRef | None, list[str]] = {}
    for pod in left.values():
        in_gang = pod.gang is not None and len(running(pod.gang, case)) > 1
        by_gang.setdefault(pod.gang if in_gang else None, []).append(pod.key)
    named = len(parts)
    for gang, keys in sorted(by_gang.items(), key=lambda one: (one[0] is None, natural_key(one[1][0]))):
        names = _ranges(keys)
        named += len(names)
        of = "" if gang is None else f" of gang {gang.key} ({len(keys)} of its {len(running(gang, case))} pods)"
        parts.append(f"pod{'s' if len(keys) > 1 else ''} {join_words(names)}{of}")
    return f"{join_words(parts)} completed" if named <= ADVICE_NAMED + 2 else ""


def not_replaced(pods: Sequence[PodInfo]) -> str:
    """Returns a text with controllers that would replace ended pods, as ` without being replaced by Deployment a/b`.

    Empty if no pod has such a controller. Controllers of batch workloads do not replace completed pods.
    """
    owners = dict.fromkeys(
        _scaled_object(pod.pod.metadata, owner)
        for pod in pods
        if (owner := replacing_controller(pod.pod.metadata)) is not None
    )
    names = sorted(owners, key=natural_key)
    if not names:
        return ""
    listed = join_words(names) if len(names) <= ADVICE_NAMED else f"{len(names)} controllers"
    return f" without being replaced by {listed}"


def _scaled_object(meta: ObjectMeta, owner: OwnerReference) -> str:
    """Returns the object that a user scales so that an ended pod is not replaced, such as `Deployment team-a/web`.

    It is the controlling owner, except for a ReplicaSet with the name that a Deployment gives it.
    """
    suffix = f"-{meta.labels.get(_TEMPLATE_HASH, '')}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return f"Deployment {meta.namespace}/{owner.name.removesuffix(suffix)}"
    return f"{owner.kind} {meta.namespace}/{owner.name}"


def _is_sibling(pod: PodInfo, case: Case) -> bool:
    """Returns True if a controller that replaces pods owns the pod and the pod to explain."""
    owner = replacing_controller(pod.pod.metadata)
    return owner is not None and bool(owner.uid) and owner.uid == case.pod.controller


def _without(pods: Mapping[str, PodInfo], gone: Sequence[PodInfo]) -> dict[str, PodInfo]:
    keys = {pod.key for pod in gone}
    return {key: pod for key, pod in pods.items() if key not in keys}


def breaks_gangs(pods: Sequence[PodInfo], case: Case) -> bool:
    """Returns True if the pods include some, but not all, running pods of a gang."""
    keys = {pod.key for pod in pods}
    refs = {pod.gang for pod in pods if pod.gang is not None}
    return any(one.key not in keys for ref in refs for one in running(ref, case))


def running(ref: GangRef, case: Case) -> tuple[PodInfo, ...]:
    """Returns the bound pods of a gang."""
    return tuple(pod for pod in case.snapshot.members.get(ref, ()) if pod.bound)


def _parts(ref: GangRef, left: Mapping[str, PodInfo], case: Case) -> Iterator[tuple[str, tuple[PodInfo, ...]]]:
    """Yields (domain, all running pods of a gang in it) for the largest domains where all these pods are in `left`.

    Only domains below the cluster and above the nodes count, and only those with at least two running pods of the gang.
    """
    tree, index = case.snapshot.tree, case.snapshot.index
    pods, open_keys = running(ref, case), set(left)
    for level in range(1, tree.depth):
        by_domain: dict[int, list[PodInfo]] = {}
        for pod in pods:
            if pod.node in index:
                by_domain.setdefault(int(tree.domain_of[level][index[pod.node]]), []).append(pod)
        for domain, there in sorted(by_domain.items()):
            if len(there) > 1 and all(pod.key in open_keys for pod in there):
                open_keys -= {pod.key for pod in there}
                yield f"{tree.layer_name(level)} {tree.path(level, domain)}", tuple(there)


def _ranges(keys: Sequence[str]) -> list[str]:
    """Returns names of pods in natural order. Three or more pods with consecutive numbers are one name,
    `big-0 to big-7`."""
    out: list[str] = []
    run: list[str] = []
    for key in [*sorted(keys, key=natural_key), None]:
        if run and (key is None or key != _next(run[-1])):
            is_range = len(run) >= ADVICE_RANGE
            out += [f"{run[0]} to {run[-1]}"] if is_range else run
            run = []
        run += [key] if key is not None else []
    return out


def _next(key: str) -> str | None:
    """Returns the key of the pod with the next number, `default/big-1` for `default/big-0`; None without a number."""
    stem, dash, number = key.rpartition("-")
    plain = number.isdecimal() and str(int(number)) == number
    return f"{stem}{dash}{int(number) + 1}" if dash and plain else None
