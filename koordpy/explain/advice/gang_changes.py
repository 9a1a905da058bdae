# SPDX-License-Identifier: Apache-2.0
"""Proposes changes of a gang's settings: without a required layer, a multiple or a topology key, or no gang at all.

An annotation is changed in the metadata of the object that has it (a PodGroup, a workload or a pod), and then parsed
again as by the scheduler. Topology keys are changed in the PodGroup's spec, membership in the pods.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import Edit, VariantError, with_pods
from koordpy.config.gang_topology import TopologyWish
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World, of_snapshot
from koordpy.gangs.gang_reading import settings_of
from koordpy.gangs.gang_settings import Gang
from koordpy.plan.limits import ADVICE_NAMED
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.problems.problem_building import unit_multiples

Rule = dict[str, Any]
"""One entry of `gatherStrategy` in the annotation, as decoded JSON."""


def gang_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields changes of the settings of a unit's gangs; nothing for a plain pod."""
    if not case.unit.is_gang:
        return
    yield from _gather(case)
    yield from _hard_keys(case)
    yield from _independent(case)


def without_pods_of(snapshot: Snapshot, ref: GangRef) -> Snapshot:
    """Returns a snapshot in which a gang has no pods."""
    return replace(snapshot, members={one: pods for one, pods in snapshot.members.items() if one != ref}, memo={})


def _gather(case: Case) -> Iterator[ClusterChange]:
    """Yields changes that give up MustGather and podCountMultiple rules: each rule alone, then all together."""
    layers = case.snapshot.tree.layers
    rules = [rule for gang in case.unit.gangs for rule in gang.wish.gather if rule.must]
    hard = {(rule.layer, rule.scope): layers.level(rule.layer) or 0 for rule in rules}
    parts: list[tuple[str, Callable[[Rule], None]]] = []
    for layer, scope in sorted(hard, key=lambda one: (-hard[one], one)):
        of = "" if scope == "group" else f" (scope {scope})"
        of += _owners(case, partial(_gathers, layer=layer, scope=scope))
        parts.append(
            (
                f"the gather strategy for {layer}{of} were PreferGather instead of MustGather",
                partial(_prefer, layer=layer, scope=scope),
            )
        )
    for level, k in unit_multiples(case.unit, case.round_state).items():
        layer = case.snapshot.tree.layer_name(level)
        of = _owners(case, partial(_counts, layer=layer))
        parts.append((f"podCountMultiple {layer}={k}{of} were removed", partial(_uncount, layer=layer)))
    for text, edit in parts:
        yield ClusterChange(text, Effort.OWN_WISH, _rewritten(case, [edit]), 1, supersedes="gather")
    if len(parts) > 1:
        text = ", and ".join(text for text, _ in parts)
        yield ClusterChange(text, Effort.OWN_WISH, _rewritten(case, [edit for _, edit in parts]), len(parts), "gather")


def _gathers(gang: Gang, *, layer: str, scope: str) -> bool:
    """Returns True if a gang has MustGather for a layer with this scope."""
    return any(rule.must and (rule.layer, rule.scope) == (layer, scope) for rule in gang.wish.gather)


def _counts(gang: Gang, *, layer: str) -> bool:
    """Returns True if a gang has a podCountMultiple for a layer."""
    return any(rule.multiple > 1 and rule.layer == layer for rule in gang.wish.gather)


def _owners(case: Case, says: Callable[[Gang], bool]) -> str:
    """Returns ` of gangs A and B`, the gangs that have a rule, to be added to a text.

    Empty if the settings of all gangs of the unit are in one object. says: returns True if a gang has the rule.
    """
    snapshot = case.snapshot
    found = [(gang, settings_of(snapshot, gang.ref)) for gang in case.unit.gangs]
    if len({(gang.ref.namespace, meta.name) for gang, meta in found if meta is not None}) < 2:
        return ""
    names = [gang.ref.key for gang, _ in found if says(gang)]
    if len(names) > ADVICE_NAMED:
        return f" of {len(names)} gangs"
    return f" of gang{'s' if len(names) > 1 else ''} {' and '.join(names)}" if names else ""


def _prefer(rule: Rule, *, layer: str, scope: str) -> None:
    """Changes an entry for this layer and scope to PreferGather. PreferGather has no scope, so the scope is removed."""
    if rule.get("layer") == layer and rule.get("scope", "group") == scope:
        rule["strategy"] = "PreferGather"
        rule.pop("scope", None)


def _uncount(rule: Rule, *, layer: str) -> None:
    """Removes podCountMultiple from an entry for this layer."""
    if rule.get("layer") == layer:
        rule.pop("podCountMultiple", None)


def _rewritten(case: Case, edits: list[Callable[[Rule], None]]) -> Callable[[World], World]:
    """Returns a change that applies edits to the gather rules of every gang of the unit.

    If a gang has no annotation, it gets one: the default rules of the configuration after the edits. The change raises
    VariantError if no rule is changed.
    """

    def make(world: World) -> World:
        snapshot, changed = world.snapshot, False
        for gang in case.unit.gangs:
            meta = settings_of(snapshot, gang.ref)
            if meta is None:
                continue
            key = next((one for one in (keys.GANG_TOPOLOGY, keys.GANG_TOPOLOGY_ALIAS) if one in meta.annotations), "")
            before = json.loads(meta.annotations[key]) if key else {"gatherStrategy": _as_rules(gang.wish)}
            wish = copy.deepcopy(before)
            for rule in wish.get("gatherStrategy") or ():
                for edit in edits:
                    edit(rule)
            if wish != before:
                changed = True
                noted_meta = _noted(meta, key or keys.GANG_TOPOLOGY, json.dumps(wish))
                snapshot = with_meta(snapshot, gang.ref, noted_meta)
        if not changed:
            raise VariantError
        return replace(world, snapshot=snapshot)

    return make


def _as_rules(wish: TopologyWish) -> list[Rule]:
    """Returns the gather rules of a gang as they would be in the annotation. For gangs with the default rules, which
    are in no annotation."""
    return [
        {
            "layer": rule.layer,
            "strategy": "MustGather" if rule.must else "PreferGather",
            "podCountMultiple": rule.multiple,
            "scope": rule.scope,
        }
        for rule in wish.gather
    ]


def noted(case: Case, key: str, text: str) -> Edit:
    """Returns a change that sets an annotation on every gang of a unit, or on its plain pod."""

    def edit(snapshot: Snapshot) -> Snapshot:
        if case.unit.plain is not None:
            pod = snapshot.pods[case.unit.plain.key]
            meta = _noted(pod.pod.metadata, key, text)
            return with_pods(snapshot, [structs.replace(pod, pod=structs.replace(pod.pod, metadata=meta))])
        for gang in case.unit.gangs:
            own = settings_of(snapshot, gang.ref)
            if own is None:
                raise VariantError
            snapshot = with_meta(snapshot, gang.ref, _noted(own, key, text))
        return snapshot

    return edit


def _noted(meta: ObjectMeta, key: str, text: str) -> ObjectMeta:
    """Returns metadata with an annotation set."""
    return structs.replace(meta, annotations={**meta.annotations, key: text})


def with_meta(snapshot: Snapshot, ref: GangRef, meta: ObjectMeta) -> Snapshot:
    """Returns a snapshot with new metadata on the object with a gang's settings.

    meta: metadata of a workload, of a PodGroup of Koordinator or upstream, or of a pod. Raises VariantError if the
    object is a bound pod, or does not exist.
    """
    if ref in snapshot.workload_gangs:
        derived = {**snapshot.workload_gangs, ref: replace(snapshot.workload_gangs[ref], meta=meta)}
        return replace(snapshot, workload_gangs=derived, memo={})
    if ref.source is GangSource.GROUP and ref.key in snapshot.pod_groups:
        group = structs.replace(snapshot.pod_groups[ref.key], metadata=meta)
        return replace(snapshot, pod_groups={**snapshot.pod_groups, ref.key: group}, memo={})
    if ref.source is GangSource.UPSTREAM and ref.key in snapshot.upstream_groups:
        upstream = structs.replace(snapshot.upstream_groups[ref.key], metadata=meta)
        return replace(snapshot, upstream_groups={**snapshot.upstream_groups, ref.key: upstream}, memo={})
    pod = next((pod for pod in snapshot.members.get(ref, ()) if pod.pod.metadata.name == meta.name), None)
    if pod is None or pod.bound:
        raise VariantError
    return with_pods(snapshot, [structs.replace(pod, pod=structs.replace(pod.pod, metadata=meta))])


def _hard_keys(case: Case) -> Iterator[ClusterChange]:
    """Yields, for each topology key of the unit's upstream PodGroups, the change that removes it."""
    for key in dict.fromkeys(key for gang in case.unit.gangs for key in gang.hard_keys):

        def edit(snapshot: Snapshot, key: str = key) -> Snapshot:
            groups = dict(snapshot.upstream_groups)
            for gang in case.unit.gangs:
                group = groups.get(gang.ref.key)
                if gang.ref.source is not GangSource.UPSTREAM or group is None or key not in gang.hard_keys:
                    continue
                given = group.spec.scheduling_constraints
                left = [one for one in given.topology if one.key != key] if given is not None else []
                if given is not None:
                    spec = structs.replace(group.spec, scheduling_constraints=structs.replace(given, topology=left))
                    groups[gang.ref.key] = structs.replace(group, spec=spec)
            if groups == snapshot.upstream_groups:
                raise VariantError
            return replace(snapshot, upstream_groups=groups, memo={})

        yield ClusterChange(f"topology key {key} were removed from the PodGroup", Effort.OWN_WISH, of_snapshot(edit), 1)


def _independent(case: Case) -> Iterator[ClusterChange]:
    """Yields the change of a gang into plain pods, if no setting requests a gang and no member runs.

    This is so for Jobs that koordpy treats as gangs by default (`is_default`).
    """
    unit = case.unit
    gang = unit.gangs[0] if unit.gangs else None
    if gang is None or gang.workload_gang is None or not gang.workload_gang.is_default or unit.bound_any:
        return

    def edit(snapshot: Snapshot) -> Snapshot:
        pods = [structs.replace(snapshot.pods[pod.key], gang=None, index=None) for pod in unit.pending]
        derived = {ref: one for ref, one in snapshot.workload_gangs.items() if ref != gang.ref}
        return replace(with_pods(without_pods_of(snapshot, gang.ref), pods), workload_gangs=derived)

    title = gang.workload_gang.title
    text = f'its pods were not a gang: annotation {keys.GANG_AUTO}: "off" on {title} makes them plain pods'
    yield ClusterChange(text, Effort.NO_GANG, of_snapshot(edit), of_all=True)
