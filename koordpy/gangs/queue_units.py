# SPDX-License-Identifier: Apache-2.0
"""Defines units, which the queue contains and a plan places as a whole: a plain pod, or all gangs of one GangGroup.

`Groups` reads the gangs of a snapshot, joins linked gangs to GangGroups, and creates the units. The result depends only
on the snapshot and the configuration. `GangCache` stores gangs of earlier rounds, so that unchanged objects are not
read again. Numbers in parentheses are sections of docs/rules/gang-network.md.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import is_, itemgetter

from msgspec import structs

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.reading_limits import LINKED_GANGS
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Gangs, StaleGangs
from koordpy.config.node_failures import Repair
from koordpy.gangs.broken_gangs import in_kept_order, kept_ranks, with_distinct_shapes
from koordpy.gangs.gang_links import Links, Named, links_of
from koordpy.gangs.gang_reading import links_named, read_from, read_gang, with_default
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.stale_grace import stale_minimum
from koordpy.pods.gang_refs import GangRef, GangSource, GroupKey
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.topology.topology_tree import Tree
from koordpy.workloads.workload_gangs import WorkloadGang


@dataclass(frozen=True)
class Unit:
    """A unit of the queue: a plain pod, or the gangs of a GangGroup."""

    id: str
    """Unique id in the queue: the key of a plain pod, or `gang:` or `gpus:` followed by names."""
    gangs: tuple[Gang, ...]
    plain: PodInfo | None = None  # the plain pod; None for gangs

    @cached_property
    def group_id(self) -> str:
        """Names of the unit's gangs in natural order, joined by `,`; empty for a plain pod."""
        return ",".join(gang.key for gang in self.gangs)

    @property
    def title(self) -> str:
        """Name of the unit in messages: `pod ns/name`, or `gang` and its id."""
        return f"pod {self.plain.key}" if self.plain is not None else f"gang {self.group_id}"

    @cached_property
    def priority(self) -> int:
        """Highest priority of its pending pods."""
        return self.plain.priority if self.plain is not None else max(pod.priority for pod in self.pending)

    @property
    def namespace(self) -> str:
        """Namespace of its first pod."""
        return (self.plain or self.members[0]).namespace

    @property
    def is_gang(self) -> bool:
        """True for a unit of gangs. False for a plain pod, and for pods of a GPU group that are in no gang."""
        return self.plain is None and not any(gang.ref.source is GangSource.GPUS for gang in self.gangs)

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """All members in rank order (2.5)."""
        if self.plain is not None:
            return (self.plain,)
        ranked = [pair for gang in self.gangs for pair in _ranked(gang)]
        ranked.sort(key=itemgetter(0))
        return in_kept_order(self.gangs, tuple(member for _, member in ranked))

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        """Members without a node, in rank order."""
        return tuple(member for member in self.members if member.pending)

    @cached_property
    def kinds(self) -> tuple[tuple[PodInfo, int], ...]:
        """For each combination of shape and owner of the pending members: (one of the pods, number of pods)."""
        counts: Counter[tuple[bytes, Owner]] = Counter()
        first: dict[tuple[bytes, Owner], PodInfo] = {}
        for pod in self.pending:
            kind = pod.shape, pod.owner
            counts[kind] += 1
            first.setdefault(kind, pod)
        return tuple((pod, counts[kind]) for kind, pod in first.items())

    @cached_property
    def age(self) -> float:
        """Creation time of its oldest member, in seconds since 1970."""
        return min(member.created for member in self.members)

    @cached_property
    def waits_since(self) -> float:
        """Creation time of its oldest pending member, in seconds since 1970."""
        return min(member.created for member in self.pending)

    @cached_property
    def bound_any(self) -> bool:
        """True if any gang has bound members."""
        return any(gang.bound for gang in self.gangs)

    def with_changes(self, change: Callable[[PodInfo], PodInfo | None]) -> "Unit":
        """Returns the unit with changed members; members for which `change` returns None are left out."""
        if self.plain is not None:
            return replace(self, plain=change(self.plain))
        gangs = (replace(gang, pods=tuple(filter(None, map(change, gang.pods)))) for gang in self.gangs)
        return Unit(id=self.id, gangs=tuple(gangs))

    def with_bound(self, nodes: Mapping[str, str], gone: Collection[str] = ()) -> "Unit":
        """Returns the unit as if pods were bound (`nodes`: pod key -> node name), and others removed (`gone`: their
        keys). A plain pod is returned unchanged."""
        if self.plain is not None or not any(pod.key in nodes or pod.key in gone for pod in self.members):
            return self

        def moved(pod: PodInfo) -> PodInfo | None:
            if pod.key in gone:
                return None
            return structs.replace(pod, node=nodes[pod.key], pending=False) if pod.key in nodes else pod

        return self.with_changes(moved)

    def need(self, gang: Gang) -> int:
        """Returns the number of pending members of a gang that one plan must place (2.4), depending on match-policy.
        Terminating members do not count, because a gang that is created again needs its whole minimum."""
        if gang.min_member < 1:
            return 0
        if gang.by_workload and not gang.match_policy:
            return max(0, min(gang.min_member, len(gang.members)) - len(gang.bound))
        if gang.match_policy == "only-waiting":
            return max(0, gang.min_member - self.ended(gang))
        if gang.match_policy == "waiting-and-running":
            return max(0, gang.min_member - len(gang.live) - self.ended(gang))
        return gang.stale_minimum if self._started else gang.min_member

    def present(self, gang: Gang) -> int:
        """Returns the number of members of a gang that exist or have Succeeded (2.3)."""
        return len(gang.members) + self.ended(gang)

    def ended(self, gang: Gang) -> int:
        """Returns the number of Succeeded members that count for the minimum of a gang (2.4)."""
        return gang.succeeded if self._started and not gang.pending else gang.done

    def ranks(self) -> dict[str, int]:
        """Returns pod key -> rank of each member (2.5): the position in `members`. While pods of a workload's later
        steps do not exist yet, the rank is the pod's index, because these pods will get ranks in between."""
        if (kept := kept_ranks(self.gangs, self.members)) is not None:
            return kept
        indexes = [pod.index for pod in self.members]
        if any(gang.workload_gang is not None and gang.workload_gang.steps for gang in self.gangs):
            known = [index for index in indexes if index is not None]
            if len({*known}) == len(indexes):
                return {pod.key: index for pod, index in zip(self.members, known, strict=True)}
        return {pod.key: rank for rank, pod in enumerate(self.members)}

    @cached_property
    def _started(self) -> bool:
        """True if a member of any gang is live or has Succeeded, so that the unit has started before."""
        return any(gang.live or gang.done or gang.had_success for gang in self.gangs)

    @cached_property
    def has_goal(self) -> bool:
        """True if a gang of the unit has a gather goal (4)."""
        return any(gang.wish.has_goal or gang.hard_keys or gang.has_parts for gang in self.gangs)

    @cached_property
    def pipeline(self) -> int:
        """Pipeline-parallel size of the first gang in natural order that has a parallelModel; 1 if none has one."""
        return next((gang.wish.pipeline for gang in self.gangs if gang.wish.has_parallel), 1)


def _ranked(gang: Gang) -> Iterator[tuple[tuple[object, ...], PodInfo]]:
    """Yields (sort key, member). The sort key is (index, gang name, pod name), with names in natural order."""
    names = natural_key(gang.ref.name), natural_key(gang.ref.namespace)
    for pod in gang.members:
        index, name = pod.order
        yield (index, *names, name), pod


@dataclass
class GangCache:
    """Caches gangs and units between rounds. An entry is used while the objects that it was read from are unchanged, so
    that a round for one pod does not read a hundred pending gangs again."""

    gangs: dict[GangRef, tuple[tuple[object, ...], Gang]] = field(default_factory=dict)
    """Gang -> (the objects that it was read from, the gang)."""
    units: dict[GangRef, tuple[tuple[Gang, ...], Tree, Unit]] = field(default_factory=dict)
    """First gang of a GangGroup -> (its gangs without defaults, the tree, the unit)."""

    def at(self, snapshot: Snapshot) -> "GangCache":
        """Removes gangs without pods in the snapshot; returns the cache."""
        for known in (self.gangs, self.units):
            for ref in known.keys() - snapshot.members.keys():
                del known[ref]
        return self

    def gang(self, snapshot: Snapshot, ref: GangRef) -> Gang:
        """Returns a gang as `read_gang` reads it."""
        source = read_from(snapshot, ref)
        known = self.gangs.get(ref)
        if known is not None and all(map(is_, known[0], source)):
            return known[1]
        found = read_gang(snapshot, ref)
        self.gangs[ref] = source, found
        return found

    def unit(self, own: tuple[Gang, ...], snapshot: Snapshot, make: Callable[[], Unit]) -> Unit:
        """Returns the unit of the gangs `own`. make: creates the unit; called if the gangs or the tree changed."""
        known = self.units.get(own[0].ref)
        is_known = known is not None and known[1] is snapshot.tree and len(known[0]) == len(own)
        if known is not None and is_known and all(map(is_, known[0], own)):
            return known[2]
        found = make()
        self.units[own[0].ref] = own, snapshot.tree, found
        return found


class Groups:
    """The gangs of a snapshot, joined to GangGroups by the transitive closure of their links. A gang is read on first
    use, because most gangs are running, and a round does not need them."""

    def __init__(
        self,
        snapshot: Snapshot,
        defaults: Gangs | None = None,
        stale: StaleGangs | None = None,
        cache: GangCache | None = None,
        repair: Repair | None = None,
    ) -> None:
        """defaults, stale, repair: configuration; None: the defaults. cache: gangs that were read with `defaults`."""
        self.snapshot, self.defaults, self.stale = snapshot, defaults or Gangs(), stale or StaleGangs()
        self.repair = repair or Repair()
        self._cache = (cache or GangCache()).at(snapshot)
        self._gangs: dict[GangRef, Gang] = {}
        self._units: dict[GangRef, Unit] = {}
        self._ids: dict[GangRef, str] = {}
        """First gang of a GangGroup -> id of the unit."""

    def gang(self, ref: GangRef) -> Gang:
        """Returns a gang with its own settings, without configured defaults."""
        if (found := self._gangs.get(ref)) is None:
            found = self._cache.gang(self.snapshot, ref)
            if together := stale_minimum(found, self.snapshot, self.stale, self.repair):
                found = replace(found, stale_minimum=together)
            self._gangs[ref] = found
        return found

    def named_by(self, ref: GangRef) -> Named:
        """Returns the gangs that a gang links to. The name of a workload means all its gangs. A gang that is derived
        from a workload also links to the first gang of its run, so that all roles of the run are one GangGroup."""
        named, meant = links_named(self.snapshot, ref), self.snapshot.meant
        derived = self.snapshot.workload_gangs.get(ref)
        if derived is None and meant.keys().isdisjoint(named.every):
            return named
        others = (other for key in named.every for other in meant.get(key, (key,)))
        every = list(islice(others, LINKED_GANGS + 1))  # one above the limit is enough for a gate to block the gang
        if derived is not None and _joins(derived):
            every += [key for key in self._runs[derived.run][:1] if key != ref.key]
        return named if every == list(named.every) else Named.from_names(ref.namespace, every)

    @cached_property
    def _runs(self) -> dict[tuple[str, ...], list[str]]:
        """Run of a workload -> keys of its gangs that are planned together."""
        out: dict[tuple[str, ...], list[str]] = {}
        for derived in self.snapshot.workload_gangs.values():
            if _joins(derived):
                out.setdefault(derived.run, []).append(derived.key)
        return out

    def _linkers(self) -> tuple[GangRef, ...]:
        """Returns the gangs that name other gangs. Only these can cause links, so `links` reads no other gangs."""
        derived = self.snapshot.workload_gangs.items()
        more = (
            ref
            for ref, one in derived
            if keys.GANG_GROUPS in one.meta.annotations or (_joins(one) and len(self._runs[one.run]) > 1)
        )
        return tuple(dict.fromkeys((*self.snapshot.linkers, *more)))

    def find(self, key: str) -> GangRef | None:
        """Returns the gang with a key `namespace/name`; None if there is none. If gangs of several sources have the
        key, the first in the order of `GangSource` is returned, such as a PodGroup before a gang named by pods."""
        return self._named.get(key)

    @cached_property
    def _named(self) -> dict[str, GangRef]:
        """`namespace/name` -> gang. If gangs of two sources have one name, the first in the order of `GangSource`."""
        first = {source: number for number, source in enumerate(GangSource)}
        return {ref.key: ref for ref in sorted(self.every(), key=lambda ref: first[ref.source], reverse=True)}

    @cached_property
    def existing(self) -> frozenset[str]:
        """Keys of gangs that exist. A gang that only `groups` annotations name does not exist."""
        return frozenset(key for key, ref in self._named.items() if self.gang(ref).exists)

    def every(self) -> list[GangRef]:
        """Returns all gangs: with pods, derived, and PodGroups without pods, unless they were created by default."""
        refs = dict.fromkeys((*self.snapshot.members, *self.snapshot.workload_gangs))
        for source, objects in (
            (GangSource.GROUP, self.snapshot.pod_groups),
            (GangSource.UPSTREAM, self.snapshot.upstream_groups),
        ):
            for key in objects:
                if source is GangSource.UPSTREAM and key in self.snapshot.passed_groups:
                    continue
                namespace, _, name = key.partition("/")
                refs.setdefault(GangRef(namespace, name, source))
        return list(refs)

    @cached_property
    def links(self) -> Links:
        """The links between gangs, and the resulting GangGroups; computed once for each snapshot."""
        known = self.snapshot.memo.get(Links)
        if not isinstance(known, Links):
            linkers = self._linkers()
            known = links_of(linkers, self.named_by, self._named) if linkers else Links({}, {})
            self.snapshot.memo[Links] = known
        return known

    def id_of(self, ref: GangRef) -> str:
        """Returns the id of the unit that contains a gang."""
        if (group := self.links.groups.get(ref)) is None:
            return f"gang:{ref.id}"
        if group[0] not in self._ids:
            self._ids[group[0]] = "gang:" + ",".join(one.id for one in group)
        return self._ids[group[0]]

    def unit(self, ref: GangRef) -> Unit:
        """Returns the unit that contains a gang: the same object for all gangs of a GangGroup."""
        group = self.links.groups.get(ref, (ref,))
        if (found := self._units.get(group[0])) is None:
            own = tuple(self.gang(one) for one in group)

            def made() -> Unit:
                gangs = with_default(own, self.defaults, self.snapshot.tree.layers)
                return Unit(id=self.id_of(ref), gangs=gangs)

            found = self._cache.unit(own, self.snapshot, made)
            if self.snapshot.keeps_spares and (gangs := with_distinct_shapes(found.gangs)) is not found.gangs:
                found = Unit(found.id, gangs)
            self._units[group[0]] = found
        return found

    def unit_of(self, pod: PodInfo) -> Unit:
        """Returns the unit in which a pending pod is planned."""
        if pod.gang is not None:
            return self.unit(pod.gang)
        group = pod.group
        return Unit(id=pod.key, gangs=(), plain=pod) if group is None else self.group_unit(group)

    def group_unit(self, group: GroupKey) -> Unit:
        """Returns the unit of a GPU group's pending pods that are in no gang. As many of them are placed as fit."""
        ref = GangRef(group[0], f"{group[1]}/{group[2]}", GangSource.GPUS)
        gang = Gang(ref=ref, strict=False, pods=self._grouped.get(group, ()))
        return Unit(id=group_unit_id(group), gangs=(gang,))

    @cached_property
    def _grouped(self) -> dict[GroupKey, tuple[PodInfo, ...]]:
        """GPU group -> its pending pods that are in no gang."""
        out: dict[GroupKey, list[PodInfo]] = {}
        for pod in self.snapshot.pending:
            if pod.gang is None and (group := pod.group) is not None:
                out.setdefault(group, []).append(pod)
        return {group: tuple(pods) for group, pods in out.items()}

    def units(self, only: frozenset[str] | None = None) -> list[Unit]:
        """Returns the units with a pending member, in no particular order. only: ids of units; None for all units."""
        out: list[Unit] = []
        seen: set[GangRef] = set()
        groups: set[GroupKey] = set()
        for pod in self.snapshot.pending:
            if pod.gang is None and (group := pod.group) is not None:
                if group not in groups:
                    groups.add(group)
                    if only is None or group_unit_id(group) in only:
                        out.append(self.group_unit(group))
            elif pod.gang is None:
                if only is None or pod.key in only:
                    out.append(Unit(id=pod.key, gangs=(), plain=pod))
            elif pod.gang not in seen:
                seen.update(self.links.groups.get(pod.gang, (pod.gang,)))
                if only is None or self.id_of(pod.gang) in only:
                    out.append(self.unit(pod.gang))
        return out


def _joins(gang: WorkloadGang) -> bool:
    """Returns True if a gang is planned together with the other gangs of its workload's run."""
    return gang.is_planned_jointly and not gang.is_planned_alone


def group_unit_id(group: GroupKey) -> str:
    """Returns the id of the unit of a GPU group's pods that are in no gang."""
    return "gpus:" + "/".join(group)
