# SPDX-License-Identifier: Apache-2.0
"""Checks the gates of a unit: reasons that block it before planning, such as a missing PodGroup or an invalid setting.

`gate` checks a unit in the order of gang-network.md 2.3. Each pending member gets the reason in its condition
PodScheduled. `wish_warnings` returns warnings about settings that have no effect, but do not block the unit.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.natural_order import natural_key
from koordpy.api.reading_limits import LINKED_GANGS, MEANT_AMONG, TIED_TERMS, too_many
from koordpy.api.spelling import hint
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.topology_gaps import bare_layer
from koordpy.gangs.broken_gangs import policy_warning
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus
from koordpy.pods.gang_refs import GangSource
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True)
class Gate:
    """The reason that blocks a unit. Each pending member of the unit reports it."""

    text: str
    """The reason, for the condition and events."""
    status: GangStatus
    """INCOMPLETE if objects or pods are missing; INVALID if a setting is invalid."""
    reason: Reason = Reason.NOT_READY
    plugins: tuple[str, ...] = ()
    """Filters that caused the reason: the unit is planned again after an event that may change their verdict. If empty,
    it is planned again only after a change of the unit itself."""


def gate(unit: Unit, groups: Groups) -> Gate | None:
    """Returns the first gate that blocks a unit, in the order of gang-network.md 2.3; None if it may be planned."""
    # 1. PodGroups that do not exist; each name is looked up once, because 1,000 gangs may name the same 1,000 gangs
    named = [groups.links.binding.get(gang.ref, ()) for gang in unit.gangs]
    refs = {key: groups.find(key) for key in set().union(*named)}
    lost = {key for key, linked in refs.items() if linked is None or not groups.gang(linked).exists}
    for gang, others in zip(unit.gangs, named, strict=True):
        if not gang.exists or not lost.isdisjoint(others):
            key = next(key for key in (gang.key, *others) if not gang.exists or key in lost)
            linked = f", listed in groups of gang {gang.key}" if key != gang.key else ""
            return Gate(f"gang {key}: PodGroup not found{linked}", GangStatus.INCOMPLETE)
    # 2. limits on the size of a unit, because the time of a round depends on it
    if fault := too_many(len(unit.gangs), LINKED_GANGS, "gangs"):
        return Gate(f"gang {unit.gangs[0].key}: its GangGroup has {fault}", GangStatus.INVALID)
    tied = {pod.shape: pod for pod in unit.pending if pod.ties or pod.pod.spec.topology_spread_constraints}
    terms = sum(map(_terms, tied.values()))
    if fault := too_many(terms, TIED_TERMS, "terms of affinity and spread of its kinds of pods"):
        return Gate(f"gang {unit.gangs[0].key}: {fault}", GangStatus.INVALID)
    # 3. unsupported upstream PodGroups; too few members
    if (found := _unserved(unit) or _mixed(unit) or _together(unit)) is not None:
        return found
    for gang in unit.gangs:
        if gang.workload_gang is not None and gang.workload_gang.halted and gang.pending:
            return Gate(f"gang {gang.key}: {gang.workload_gang.halted}", GangStatus.INCOMPLETE)
        if gang.by_workload and gang.bound:
            continue  # the gang runs: a missing member must not wait for a pod that its controller creates later
        if (have := unit.present(gang)) < gang.min_member:
            return Gate(gang.waits_for_members(have), GangStatus.INCOMPLETE)
        if len(gang.pending) < unit.need(gang):  # too few for any plan (2.4)
            return Gate(gang.waits_for_pending(unit.ended(gang)), GangStatus.INCOMPLETE)
    # 4. invalid settings, and unknown layers
    for gang in unit.gangs:
        if gang.fault:
            return Gate(f"gang {gang.key}: {gang.fault}", GangStatus.INVALID)
    return _unknown_layer(unit, groups.snapshot)


def lacks_members(unit: Unit) -> bool:
    """Returns True if a gang has fewer pending members than a plan must place (2.4). Such a unit has no plan."""
    return any(len(gang.pending) < unit.need(gang) for gang in unit.gangs)


def _terms(pod: PodInfo) -> int:
    """Returns the number of required affinity terms and spread constraints of a pod."""
    terms, spread = pod.ties.terms, pod.pod.spec.topology_spread_constraints
    return len(terms.affinity.required) + len(terms.anti_affinity.required) + len(spread)


def _together(unit: Unit) -> Gate | None:
    """Returns the gate for too few members of gangs with a common minimum: the tasks of one Volcano PodGroup
    (workloads.md 9). None if there are enough."""
    have: dict[tuple[str, int], int] = {}
    for gang in unit.gangs:
        if gang.workload_gang is not None and gang.workload_gang.total_minimum is not None:
            have[gang.workload_gang.total_minimum] = have.get(gang.workload_gang.total_minimum, 0) + unit.present(gang)
    for (key, least), number in have.items():
        if number < least:
            text = f"gang {key}: waiting for members, {number} of minMember {least} exist"
            return Gate(text, GangStatus.INCOMPLETE)
    return None


def _unserved(unit: Unit) -> Gate | None:
    """Returns the gate for an upstream PodGroup with an unsupported setting (kube-parity.md 6); None without one."""
    for gang in unit.gangs:
        if gang.unsupported_field:
            text = f"gang {gang.key}: unsupported: {gang.unsupported_field}"
            return Gate(text, GangStatus.INVALID, Reason.SCHEDULER_ERROR)
    return None


def _mixed(unit: Unit) -> Gate | None:
    """Returns the gate for an upstream PodGroup with pods of different schedulers or priorities (kube-parity.md 6);
    else None."""
    for gang in unit.gangs:
        if gang.ref.source is not GangSource.UPSTREAM:
            continue
        alive = [pod for pod in gang.pods if not pod.finished]
        for what, values in (
            ("schedulerName", {pod.pod.spec.scheduler_name for pod in alive}),
            ("priority", {str(pod.pod.spec.priority or 0) for pod in alive}),
        ):
            if len(values) > 1:
                listed = ", ".join(sorted(values, key=natural_key))
                text = f"gang {gang.key}: members differ in {what}: {listed}"
                return Gate(text, GangStatus.INVALID, Reason.SCHEDULER_ERROR)
    return None


def _unknown_layer(unit: Unit, snapshot: Snapshot) -> Gate | None:
    """Returns the gate for a required layer that the topology lacks; else None. A layer of PreferGather is required
    only if it has a multiple; otherwise it only causes a warning."""
    layers = snapshot.tree.layers
    for gang in unit.gangs:
        for rule in gang.wish.gather:
            if (rule.must or rule.multiple > 1) and layers.level(rule.layer) is None:
                text = layers.unknown(rule.layer)
                if snapshot.topology_fault:
                    text = _invalid(snapshot)
                elif not snapshot.tree.has_object:
                    text = f'unknown layer "{rule.layer}", no ClusterNetworkTopology'
                return Gate(f"gang {gang.key}: {text}", GangStatus.INVALID)
    return None


def _invalid(snapshot: Snapshot) -> str:
    return f"ClusterNetworkTopology {keys.TOPOLOGY_OBJECT} is invalid: {snapshot.topology_fault}"


def _misspelt_groups(own: str, listed: Collection[str], groups: Groups) -> list[str]:
    """Returns warnings about names in the annotation `groups` that no gang has, if a gang has a similar name.

    own: key of the gang with the annotation. listed: keys in the annotation. If there are too many gangs, names are not
    compared, to limit the cost.
    """
    if not listed or groups.existing.issuperset(listed):
        return []
    lost = [key for key in listed if key not in groups.existing]
    known = groups.existing - {own, *listed}
    near = known if len(known) <= MEANT_AMONG else set()
    told = [(key, text) for key in lost if (text := hint(key, near))]
    return [f"groups: no PodGroup {key}{text}" for key, text in told]


def wish_warnings(units: Iterable[Unit], groups: Groups) -> list[tuple[str, str]]:
    """Returns warnings about settings without effect: (object, text).

    They are about unknown layers of PreferGather or of a configured default, layers with a label that no node has,
    invalid values, and a product of data-parallel and pipeline-parallel size that is not the number of members.
    """
    out: list[tuple[str, str]] = []
    snapshot = groups.snapshot
    why = f": {_invalid(snapshot)}" if snapshot.topology_fault else ""
    near = snapshot.tree.layers.near
    unused = "of PreferGather is ignored"
    spaces: dict[str, None] = {}  # namespaces of units to which the configured default applies
    asked: dict[str, None] = {}  # layers in gather rules
    for unit in units:
        if unit.is_gang and not any(gang.has_wish for gang in unit.gangs):
            spaces.update(dict.fromkeys(gang.ref.namespace for gang in unit.gangs))
        for gang in unit.gangs:
            name = gang.subject
            asked |= dict.fromkeys(rule.layer for rule in gang.wish.gather)
            out += [(name, doubt) for doubt in (*gang.doubts, *groups.links.doubts.get(gang.ref, ()))]
            if doubt := policy_warning(gang, snapshot, groups.repair):
                out.append((name, doubt))
            out += [(name, text) for text in _misspelt_groups(gang.key, groups.links.binding.get(gang.ref, ()), groups)]
            out += [
                (name, f'networkTopologyAware: unknown layer "{rule.layer}" {unused}{why or near(rule.layer)}')
                for rule in gang.wish.gather
                if not rule.must and rule.multiple <= 1 and snapshot.tree.layers.level(rule.layer) is None
            ]
            product = (gang.wish.data or 0) * gang.wish.pipeline
            # while a gate blocks the unit, members may still be created, so their number is not final
            if gang.wish.data is not None and product != len(unit.members) and gate(unit, groups) is None:
                text = (
                    f"networkTopologyAware: data-parallel {gang.wish.data} x pipeline-parallel {gang.wish.pipeline}"
                    f" is {product}, the gang has {count_noun(len(unit.members), 'member')}"
                )
                out.append((name, text))
    rules = dict(rule for namespace in spaces for rule in groups.defaults.gather(namespace))
    out += [
        ("configuration", f'{path}.layer: unknown layer "{rule.layer}" is ignored{near(rule.layer)}')
        for path, rule in sorted(rules.items())
        if snapshot.tree.layers.level(rule.layer) is None
    ]
    bare = (bare_layer(snapshot, snapshot.tree.layers.level(layer) or 0) for layer in asked)
    out += [(f"ClusterNetworkTopology/{keys.TOPOLOGY_OBJECT}", text) for text in bare if text]
    return out
