# SPDX-License-Identifier: Apache-2.0
"""Reads the settings of a gang: minMember, network locality, linked gangs, waiting time. The result is a `Gang`.

A gang has one source of settings (`GangRef.source`): a PodGroup, an upstream PodGroup (scheduling.k8s.io), the labels
or annotations of its oldest pod, or a workload such as a Job (`WorkloadGang`). `read_gang` reads it. An invalid setting
becomes `Gang.fault`, which blocks the gang; a setting without effect becomes a warning. `with_default` applies the
defaults of the configuration afterwards. Source: gang-network.md sections 2 and 4.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from koordpy.api import keys
from koordpy.api.bounded_memory import once
from koordpy.api.counted_nouns import count_noun
from koordpy.api.durations import parse_duration
from koordpy.api.field_faults import UnreadableError, kind_name, literal
from koordpy.api.json_text import read_json
from koordpy.api.key_hints import Holder, misspelt_setting
from koordpy.api.objects import ObjectMeta
from koordpy.api.pod_groups import UpstreamPodGroupSpec
from koordpy.api.reading_limits import LINKED_GANGS, MIN_RESOURCES, too_many
from koordpy.cache.gang_history import NO_PAST, EndedMember
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Gangs
from koordpy.config.gang_topology import GatherRule, TopologyWish, parse_topology_wish
from koordpy.decoding.annotation_settings import OF_GANGS, odd_settings, odd_values, whole_number
from koordpy.decoding.wire_json import unreadable
from koordpy.gangs.gang_links import Named
from koordpy.gangs.gang_settings import DEFAULT_WAITING_SECONDS, Gang, is_labelled, oldest_pod, with_device_rules
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo, preemption_policy
from koordpy.pods.resource_amounts import Amounts, amounts
from koordpy.topology.topology_layers import Layers
from koordpy.workloads.workload_gangs import WorkloadGang
from koordpy.workloads.workload_model import SharedDomain


@once
def _settings(namespace: str, meta: ObjectMeta) -> tuple[TopologyWish, Named, float | None, str]:
    """Returns (requested locality, linked gangs, waiting-time, fault) from an object's annotations. waiting-time: in
    seconds, None if absent. fault: text about an invalid annotation; empty without one."""
    notes = meta.annotations
    wish, fault = TopologyWish(), ""
    links = Named()
    key = keys.GANG_TOPOLOGY if keys.GANG_TOPOLOGY in notes else keys.GANG_TOPOLOGY_ALIAS
    if key in notes:
        try:
            wish = parse_topology_wish(notes[key])
        except UnreadableError as what:
            fault = f"annotation {key} cannot be read: {what}"
    if keys.GANG_GROUPS in notes:
        try:
            links = _parse_links(notes[keys.GANG_GROUPS], namespace)
        except UnreadableError as what:
            fault = fault or f"annotation {keys.GANG_GROUPS} cannot be read: {what}"
    return wish, links, _waiting_seconds(notes.get(keys.GANG_WAITING_TIME)), fault or misspelt_setting(notes)


def _parse_links(text: str, namespace: str) -> Named:
    """Returns the gangs in a `groups` annotation. Raises `UnreadableError`."""
    raw = read_json(text)
    if not isinstance(raw, list):
        raise UnreadableError(f"must be a list of gang names, not {kind_name(raw)}")
    if number := too_many(len(raw), LINKED_GANGS, "gangs"):
        raise UnreadableError(number)
    for i, name in enumerate(raw):
        if not isinstance(name, str):
            raise UnreadableError(f"[{i}]: {literal(name)} is not a gang name")
    return Named.from_names(namespace, raw)


def _waiting_seconds(text: str | None) -> float | None:
    """Returns waiting-time in seconds; None if absent. An invalid, zero or negative value means the default
    (gang-network.md 2.9)."""
    if text is None:
        return None
    try:
        value = parse_duration(text)
    except ValueError:
        value = -1.0
    return value if value > 0 else DEFAULT_WAITING_SECONDS


def _warnings(ref: GangRef, meta: ObjectMeta, wish: TopologyWish) -> tuple[str, ...]:
    """Returns warnings about settings that have no effect, or an effect that users may not expect."""
    if ref.source is GangSource.NAMED:  # all other labels and annotations of its pods are checked for each pod
        odd = tuple(odd_values(OF_GANGS, meta.labels, meta.annotations))
    else:
        odd = odd_settings(Holder.GROUP, meta)
    return (*odd, *(f"networkTopologyAware: {doubt}" for doubt in wish.doubts))


def _annotation_of(key: str, meta: ObjectMeta, pods: tuple[PodInfo, ...]) -> str | None:
    """Returns an annotation of the gang's object, else of the first pod that has it; None if absent."""
    if key in meta.annotations:
        return meta.annotations[key]
    return next((pod.pod.metadata.annotations[key] for pod in pods if key in pod.pod.metadata.annotations), None)


def links_named(snapshot: Snapshot, ref: GangRef) -> Named:
    """Returns the gangs in the `groups` annotation of a gang's object, or of its oldest pod."""
    meta = settings_of(snapshot, ref)
    return _settings(ref.namespace, meta)[1] if meta is not None else Named()


def settings_of(snapshot: Snapshot, ref: GangRef) -> ObjectMeta | None:
    """Returns the metadata of the object with a gang's settings: PodGroup, workload or oldest pod. None if this object
    does not exist."""
    if ref.source is GangSource.GROUP:
        group = snapshot.pod_groups.get(ref.key)
        return group.metadata if group is not None else None
    if ref.source is GangSource.UPSTREAM:
        upstream = snapshot.upstream_groups.get(ref.key)
        return upstream.metadata if upstream is not None else None
    if (derived := snapshot.workload_gangs.get(ref)) is not None:
        return derived.meta
    pods = snapshot.members.get(ref, ())
    return oldest_pod(pods).pod.metadata if pods else None


class DerivedGang(Gang):
    """A gang that is derived from a workload. Pods that are being deleted are not members, and the minimum does not
    include Succeeded pods (workloads.md 5.4)."""

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """Bound and pending pods that are not being deleted. Pods on lost nodes are not members (repair.md 4.1)."""
        found = (pod for pod in self.pods if (pod.bound and not pod.lost) or pod.pending)
        return tuple(pod for pod in found if not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def ended(self) -> tuple[EndedMember, ...]:
        """Always empty: Succeeded pods must not count, because the minimum of a derived gang does not include them."""
        return ()


def _layer_of(domain: SharedDomain, layers: Layers) -> str:
    """Returns the name of the layer of a shared domain; empty if the tree has no such layer. For a tier n of Volcano it
    is the layer of the HyperNodes with this tier, or without HyperNodes the n-th layer above the nodes."""
    if domain.layer:
        return domain.layer
    if domain.label:
        return next((one.name for one in layers.chain if domain.label in one.label_keys), "")
    above = layers.chain[:-1]
    by_number = {layer.tier or len(above) - i: layer.name for i, layer in enumerate(above)}
    return by_number.get(domain.tier, "")


def _annotated(snapshot: Snapshot, ref: GangRef, meta: ObjectMeta, kind: type[Gang] = Gang) -> Gang:
    """Returns a gang with the settings in the annotations of its object (`meta`). kind: class of the gang."""
    notes = meta.annotations
    wish, links, waiting, fault = _settings(ref.namespace, meta)
    expected = whole_number(notes[keys.GANG_TOTAL]) if keys.GANG_TOTAL in notes else None
    return kind(
        ref=ref,
        match_policy=notes.get(keys.GANG_MATCH_POLICY, ""),
        strict=notes.get(keys.GANG_MODE) != "NonStrict",
        waiting_seconds=DEFAULT_WAITING_SECONDS if waiting is None else waiting,
        links=links.every,
        wish=wish,
        has_wish=keys.GANG_TOPOLOGY in notes or keys.GANG_TOPOLOGY_ALIAS in notes,
        fault=fault,
        pods=snapshot.members.get(ref, ()),
        past=snapshot.pasts.get(ref, NO_PAST),
        announced_members=expected if expected is not None and expected > 0 else None,
    )


def _derived_gang(snapshot: Snapshot, ref: GangRef, derived: WorkloadGang) -> Gang:
    """Returns a gang that is derived from a workload, with the settings in its annotations and the required domains in
    its manifest."""
    notes = derived.meta.annotations
    said = _annotated(snapshot, ref, derived.meta, DerivedGang if derived.by_workload else Gang)
    wish = with_device_rules(said.wish, notes.get, snapshot)
    doubts = [
        *odd_values(OF_GANGS, {}, notes),
        *(f"networkTopologyAware: {doubt}" for doubt in wish.doubts),
        *derived.doubts,
    ]
    rules: list[GatherRule] = []  # rules for the whole gang
    parted: list[SharedDomain] = []  # required domains of parts of the gang
    hard: list[str] = []  # node labels that must have one value for the whole gang
    wrong, layers = "", snapshot.tree.layers
    # required domains in the manifest apply only if no annotation sets the locality
    for one in () if said.has_wish else derived.domains:
        layer, of_part = _layer_of(one, layers), "subGroupPolicy: " if one.part else ""
        if one.part:
            parted.append(replace(one, layer=layer))
        if one.label and one.must:
            hard += [one.label] if not one.part else []
        elif one.label and not layer:
            doubts.append(f"packConstraint.preferred: no topology layer has the label {one.label}, so it is ignored")
        elif not layer and one.must:
            there = f"the tree has {count_noun(len(layers.chain) - 1, 'layer')} above the nodes"
            wrong = wrong or f"{of_part}networkTopology.highestTierAllowed {one.tier}, {there}"
        elif one.part and layers.level(layer) is None:
            wrong = wrong or f"subGroupPolicy: {layers.unknown(layer)}"
        elif layer and not one.part:
            rules.append(GatherRule(layer, one.must))
    if rules:
        wish = replace(wish, gather=tuple(rules))
    resources: Amounts = {}
    try:
        resources = amounts(dict(derived.resources))
    except ValueError as what:
        wrong = wrong or f"spec.minResources cannot be read: {what}"
    return replace(
        said,
        exists=not derived.missing,
        min_member=derived.min_member,
        links=(),
        wish=wish,
        has_wish=bool(wish.gather or hard or parted) or said.has_wish,
        hard_keys=tuple(hard),
        shared_domains=tuple(parted),
        min_resources=resources,
        fault=derived.fault or said.fault or wrong,
        past=NO_PAST if derived.by_workload else said.past,
        doubts=tuple(doubts),
        workload_gang=derived,
    )


def read_from(snapshot: Snapshot, ref: GangRef) -> tuple[object, ...]:
    """Returns all objects of the snapshot that `read_gang` reads. If they are identical in two snapshots, `read_gang`
    returns equal gangs; `GangCache` relies on this."""
    return (
        snapshot.workload_gangs.get(ref),
        snapshot.members.get(ref),
        snapshot.pod_groups.get(ref.key) if ref.source is GangSource.GROUP else None,
        snapshot.upstream_groups.get(ref.key) if ref.source is GangSource.UPSTREAM else None,
        snapshot.tree,
        snapshot.pasts.get(ref),
        ref in snapshot.unknown_steps,
        snapshot.made_groups.get(ref),
    )


def read_gang(snapshot: Snapshot, ref: GangRef) -> Gang:
    """Returns a gang of the snapshot with all settings. Topology keys and disruption mode are added from a PodGroup
    that a controller created by default, or else from the Job's spec.scheduling (workloads.md 2)."""
    gang, groups = _read_own(snapshot, ref), snapshot.made_groups.get(ref, ())
    hard, one_victim = gang.hard_keys, gang.one_victim
    if groups:
        hard += tuple(key for group in groups for key in group.spec.topology_keys)
        one_victim = one_victim or any(group.spec.disrupted_as_one for group in groups)
    elif gang.workload_gang is not None:
        hard += gang.workload_gang.hard_keys
        one_victim = one_victim or gang.workload_gang.one_victim
    if (hard, one_victim) == (gang.hard_keys, gang.one_victim):
        return gang
    hard = tuple(dict.fromkeys(hard))
    return replace(gang, hard_keys=hard, one_victim=one_victim, has_wish=gang.has_wish or bool(hard))


def _read_own(snapshot: Snapshot, ref: GangRef) -> Gang:
    """Returns a gang as `read_gang` does, without the settings of a PodGroup that was created by default, and without
    those of the Job's spec.scheduling."""
    if (derived := snapshot.workload_gangs.get(ref)) is not None:
        return _derived_gang(snapshot, ref, derived)
    pods = snapshot.members.get(ref, ())
    min_member, exists, fault = 0, True, ""
    timeout = 0  # scheduleTimeoutSeconds of a PodGroup; 0 if absent
    hard: tuple[str, ...] = ()
    resources: Amounts = {}
    one_victim = False
    unsupported, later = "", ""
    doubts: tuple[str, ...] = ()
    meta = ObjectMeta(namespace=ref.namespace, name=ref.name)
    if ref.source is GangSource.GROUP:  # a PodGroup of scheduling.sigs.k8s.io
        group = snapshot.pod_groups.get(ref.key)
        exists = group is not None
        if group is not None:
            meta, min_member = group.metadata, group.spec.min_member
            if min_member < 1:
                doubts = (f"spec.minMember is {min_member}: its pods start one by one",)
            timeout = group.spec.schedule_timeout_seconds or 0
            owner = meta.controller
            if owner is not None and ref in snapshot.unknown_steps:
                later = f", TrainJob {owner.name} makes its steps one after the other"
            least = group.spec.min_resources
            try:
                if number := too_many(len(least), MIN_RESOURCES, "resources"):
                    raise UnreadableError(number)
                resources = amounts(least)
            except ValueError as what:
                fault = f"spec.minResources cannot be read: {what}"
    elif ref.source is GangSource.UPSTREAM:  # a PodGroup of scheduling.k8s.io
        upstream = snapshot.upstream_groups.get(ref.key)
        exists = upstream is not None
        if upstream is not None:
            meta = upstream.metadata
            least_of = upstream.spec.scheduling_policy.gang
            min_member = least_of.min_count if least_of is not None else 0
            one_victim = upstream.spec.disrupted_as_one
            unsupported = _unsupported(upstream.spec, pods)
            hard = upstream.spec.topology_keys
    elif pods:  # labels or annotations of the oldest pod
        meta = oldest_pod(pods).pod.metadata
        labelled = is_labelled(meta)
        where = f"label {keys.LABEL_GANG_MIN}" if labelled else f"annotation {keys.GANG_MIN}"
        text = meta.labels[keys.LABEL_GANG_MIN] if labelled else meta.annotations.get(keys.GANG_MIN, "")
        count = whole_number(text)
        if count is None:
            fault = f"{where} cannot be read: {text!r} is no whole number"
        min_member = count or 0
    if wrong := unreadable(meta):
        fault, doubts = f"PodGroup cannot be read: {wrong}", ()
    said = _annotated(snapshot, ref, meta)
    by_timeout = timeout > 0 and keys.GANG_WAITING_TIME not in meta.annotations
    wish = with_device_rules(said.wish, lambda key: _annotation_of(key, meta, pods), snapshot)
    return replace(
        said,
        exists=exists,
        min_member=min_member,
        waiting_seconds=float(timeout) if by_timeout else said.waiting_seconds,
        wish=wish,
        has_wish=bool(wish.gather or hard) or said.has_wish,
        hard_keys=hard,
        min_resources=resources,
        fault=fault or said.fault,
        one_victim=one_victim,
        unsupported_field=unsupported,
        doubts=(*doubts, *_warnings(ref, meta, wish)),
        later=later,
    )


def _unsupported(spec: UpstreamPodGroupSpec, pods: Sequence[PodInfo]) -> str:
    """Returns the first unsupported field of an upstream PodGroup, which blocks its pods (kube-parity.md 6); else
    empty."""
    if spec.parent_composite_pod_group_name:
        return "spec.parentCompositePodGroupName"
    differs = any(pod.pending and preemption_policy(pod.pod) != spec.preemption_policy for pod in pods)
    return "spec.preemptionPolicy" if spec.preemption_policy and differs else ""


def with_default(gangs: tuple[Gang, ...], config: Gangs, layers: Layers) -> tuple[Gang, ...]:
    """Returns the gangs of a GangGroup. If none of them has a setting of locality, they get the configured gather
    rules. A configured rule is ignored if the tree lacks its layer, because a default must not block a gang."""
    if any(gang.has_wish for gang in gangs):
        return gangs
    rules = [[rule for _, rule in config.gather(gang.ref.namespace)] for gang in gangs]
    known = [tuple(rule for rule in own if layers.level(rule.layer) is not None) for own in rules]
    return tuple(
        replace(gang, wish=TopologyWish(gather=own)) if own else gang for gang, own in zip(gangs, known, strict=True)
    )
