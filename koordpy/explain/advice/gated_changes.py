# SPDX-License-Identifier: Apache-2.0
"""Proposes changes for a unit that a gate blocks: misspelt names, missing PodGroups, other numbers of members.

The message of a gate hints at the right name for a misspelt field, value or layer of the topology annotation. The name
is corrected and the annotation is parsed again. This is repeated a few times, because each message names only the first
faults.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import structs

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.field_faults import UnreadableError
from koordpy.api.key_hints import meant_settings
from koordpy.api.objects import ObjectMeta
from koordpy.api.pod_groups import PodGroup, PodGroupSpec
from koordpy.api.spelling import meant
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import with_pods
from koordpy.config.gang_topology import parse_topology_wish
from koordpy.explain.advice.advice_case import Case
from koordpy.explain.advice.cluster_change import ClusterChange, Effort, World, of_snapshot
from koordpy.explain.advice.gang_changes import with_meta, without_pods_of
from koordpy.explain.advice.member_changes import copied_member, fewer_members
from koordpy.gangs.gang_reading import settings_of
from koordpy.plan.limits import ADVICE_CORRECTIONS, ADVICE_MEMBERS, ADVICE_NAMED
from koordpy.pods.gang_refs import GangRef, GangSource

_TOPOLOGY = (keys.GANG_TOPOLOGY, keys.GANG_TOPOLOGY_ALIAS)
"""Topology annotations; the first that is present applies."""
_HINTED = re.compile(r"^([\w\[\].-]+): (unknown field)?[^;]*, did you mean (\w+)\?")
"""Matches the message about a fault of the topology annotation. Groups: path of the fault, `unknown field` or None, and
the name that was probably meant."""
_STEP = re.compile(r"[^.\[\]]+")
"""One step of a path: a key, or an index."""


def gated_changes(case: Case) -> Iterator[ClusterChange]:
    """Yields corrections of misspelt names, missing PodGroups, further members, and a smaller minMember."""
    yield from _meant_group(case)
    yield from _missing_groups(case)
    yield from _meant_keys(case)
    yield from _meant_wish(case)
    if case.unit.is_gang and any(case.unit.present(gang) < gang.min_member for gang in case.unit.gangs):
        yield from _more_members(case)
        yield from fewer_members(case)


def _meant_group(case: Case) -> Iterator[ClusterChange]:
    """Yields the change of pods that name a PodGroup which does not exist: they name an existing one with a similar
    name."""
    ref, snapshot = case.pod.gang, case.snapshot
    if ref is None or ref.source is not GangSource.GROUP or ref.key in snapshot.pod_groups:
        return
    if near := meant(ref.key, snapshot.pod_groups):
        other = GangRef.from_key(near)

        def edit(snapshot: Snapshot) -> Snapshot:
            pods = (snapshot.pods[pod.key] for pod in case.unit.pending if pod.gang == ref)
            return with_pods(without_pods_of(snapshot, ref), [structs.replace(pod, gang=other) for pod in pods])

        text = f"its PodGroup label named {other.name} (PodGroup {near} exists, {ref.key} does not)"
        yield ClusterChange(text, Effort.MISTAKE, of_snapshot(edit))


def _missing_groups(case: Case) -> Iterator[ClusterChange]:
    """Yields the creation of the PodGroups that pods of the unit name and that do not exist.

    A PodGroup that starts all its present members together is tried, because the minimum is not known.
    """
    missing = [gang for gang in case.unit.gangs if not gang.exists and gang.ref.source is GangSource.GROUP]
    if not missing or len(missing) > ADVICE_NAMED:
        return

    def edit(snapshot: Snapshot) -> Snapshot:
        made = {
            gang.ref.key: PodGroup(
                metadata=ObjectMeta(name=gang.ref.name, namespace=gang.ref.namespace),
                spec=PodGroupSpec(min_member=len(gang.pods)),
            )
            for gang in missing
        }
        return replace(snapshot, pod_groups={**snapshot.pod_groups, **made}, memo={})

    text = ", and ".join(f"PodGroup {gang.key} existed with minMember {len(gang.pods)}" for gang in missing)
    yield ClusterChange(text, Effort.MISTAKE, of_snapshot(edit), len(missing))


def _meant_keys(case: Case) -> Iterator[ClusterChange]:
    """Yields one change that corrects all misspelt annotation keys of the unit's gangs."""
    snapshot, names = case.snapshot, dict[str, str]()
    for gang in case.unit.gangs:
        meta = settings_of(snapshot, gang.ref)
        names |= meant_settings(meta.annotations) if meta is not None else {}
    if not names:
        return

    def edit(snapshot: Snapshot) -> Snapshot:
        for gang in case.unit.gangs:
            meta = settings_of(snapshot, gang.ref)
            if meta is None or not names.keys() & meta.annotations.keys():
                continue
            notes = {names.get(key, key): text for key, text in meta.annotations.items()}
            snapshot = with_meta(snapshot, gang.ref, structs.replace(meta, annotations=notes))
        return snapshot

    text = ", and ".join(f"annotation {key} were named {right}" for key, right in names.items())
    yield ClusterChange(text, Effort.MISTAKE, of_snapshot(edit), len(names))


def _meant_wish(case: Case) -> Iterator[ClusterChange]:
    """Yields one change that corrects misspelt names in the topology annotations of all gangs of the unit."""
    corrected: dict[GangRef, ObjectMeta] = {}
    texts = dict[str, None]()
    layers = [layer.name for layer in case.snapshot.tree.layers.chain]
    for gang in case.unit.gangs:
        meta = settings_of(case.snapshot, gang.ref)
        key = next((one for one in _TOPOLOGY if meta is not None and one in meta.annotations), "")
        if meta is None or not key:
            continue
        text, said = _corrected(meta.annotations[key], layers)
        if said:
            texts |= dict.fromkeys(said)
            corrected[gang.ref] = structs.replace(meta, annotations={**meta.annotations, key: text})
    if not corrected:
        return

    def edit(snapshot: Snapshot) -> Snapshot:
        for ref, meta in corrected.items():
            snapshot = with_meta(snapshot, ref, meta)
        return snapshot

    yield ClusterChange(", and ".join(texts), Effort.MISTAKE, of_snapshot(edit), len(texts))


def _existing(number: int) -> str:
    """Returns `1 member exists` or `2 members exist`."""
    return f"{count_noun(number, 'member')} exist{'s' if number == 1 else ''}"


def _corrected(text: str, layers: list[str]) -> tuple[str, list[str]]:
    """Returns (topology annotation with corrected names, one text per correction)."""
    said: list[str] = []
    for _ in range(ADVICE_CORRECTIONS):
        try:
            wish = parse_topology_wish(text)
        except UnreadableError as fault:
            found = _HINTED.match(str(fault))
            if found is None:
                return text, []
            path, unknown, right = found.groups()
            said.append(f"{path} were named {right}" if unknown else f"{path} were {right}")
            changed = _replaced(text, path, right, is_name=bool(unknown))
            if changed is None:
                return text, []
            text = changed
            continue
        for number, rule in enumerate(wish.gather):
            near = meant(rule.layer, layers) if rule.layer not in layers else ""
            path = f"gatherStrategy[{number}].layer"
            if near and (changed := _replaced(text, path, near, is_name=False)) is not None:
                said.append(f"{path} were {near}")
                text = changed
        return text, said
    return text, []


def _replaced(text: str, path: str, right: str, *, is_name: bool) -> str | None:
    """Returns JSON with the value at a path such as `gatherStrategy[0].layer` replaced by `right`.

    is_name: True to replace the name of the field instead of its value. Returns None if the path leads to no field,
    which happens if a key contains a dot, or if a field with the new name exists.
    """
    whole = json.loads(text)
    *steps, last = _STEP.findall(path)
    place: Any = whole
    for step in steps:
        if isinstance(place, list):
            place = place[int(step)] if step.isdecimal() and int(step) < len(place) else None
        else:
            place = place.get(step) if isinstance(place, dict) else None
    if not isinstance(place, dict) or last not in place or (is_name and right in place):
        return None
    place[right if is_name else last] = place.pop(last) if is_name else right
    return json.dumps(whole)


def _more_members(case: Case) -> Iterator[ClusterChange]:
    """Yields the creation of the members that are missing to the minimums: the unit only has to wait for them."""
    numbers = [(gang, gang.min_member - case.unit.present(gang)) for gang in case.unit.gangs if gang.pending]
    lacks = [(gang, number) for gang, number in numbers if number > 0]
    if not lacks or sum(number for _, number in lacks) > ADVICE_MEMBERS:
        return

    def grow(world: World) -> World:
        new = [copied_member(gang.pending[-1], n, world) for gang, number in lacks for n in range(1, number + 1)]
        return replace(world, snapshot=with_pods(world.snapshot, new))

    text = ", and ".join(
        f"{count_noun(number, 'more member')} of gang {gang.key} existed"
        f" (minMember is {gang.min_member}, {_existing(case.unit.present(gang))})"
        for gang, number in lacks
    )
    yield ClusterChange(text, Effort.NOTHING, grow, 1)
