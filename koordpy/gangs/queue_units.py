"""GangGroups and the units of the queue: who is planned together.

Source: gang-network.md 2, and 4 for defaults. Everything follows from the objects of the snapshot and
the configuration; what is remembered of earlier rounds (`GangCache`) saves reading the same objects again.
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
from koordpy.gangs.gang_links import Links, Named, links_of
from koordpy.gangs.gang_reading import links_named, read_from, read_gang, with_default
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.stale_grace import owed
from koordpy.pods.gang_refs import GangRef, GangSource, GroupKey
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.topology.topology_tree import Tree
from koordpy.workloads.workload_gangs import Derived


@dataclass(frozen=True)
class Unit:
    """One unit of the queue: a plain pod, or the gangs of a GangGroup."""

    id: str
    gangs: tuple[Gang, ...]
    plain: PodInfo | None = None

    @cached_property
    def group_id(self) -> str:
        """Names of its gangs in natural order joined by `,`; empty for a plain pod."""
        return ",".join(gang.key for gang in self.gangs)

    @property
    def title(self) -> str:
        """As messages call it: `pod ns/name`, or `gang` and its id."""
        return f"pod {self.plain.key}" if self.plain is not None else f"gang {self.group_id}"

    @cached_property
    def priority(self) -> int:
        """The highest of its pending pods."""
        return self.plain.priority if self.plain is not None else max(pod.priority for pod in self.pending)

    @property
    def namespace(self) -> str:
        """That of its first pod."""
        return (self.plain or self.members[0]).namespace

    @property
    def is_gang(self) -> bool:
        """Whether it is of gangs: no plain pod, and no GPU group outside any gang."""
        return self.plain is None and not any(gang.ref.source is GangSource.GPUS for gang in self.gangs)

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """All members in rank order (2.5)."""
        if self.plain is not None:
            return (self.plain,)
        ranked = [pair for gang in self.gangs for pair in _ranked(gang)]
        ranked.sort(key=itemgetter(0))
        return tuple(member for _, member in ranked)

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        return tuple(member for member in self.members if member.pending)

    @cached_property
    def kinds(self) -> tuple[tuple[PodInfo, int], ...]:
        """The pending members told apart by shape and by whom they count for: one of each kind, and how many it stands
        for."""
        counts: Counter[tuple[bytes, Owner]] = Counter()
        first: dict[tuple[bytes, Owner], PodInfo] = {}
        for pod in self.pending:
            kind = pod.shape, pod.owner
            counts[kind] += 1
            first.setdefault(kind, pod)
        return tuple((pod, counts[kind]) for kind, pod in first.items())

    @cached_property
    def age(self) -> float:
        """When the oldest of its members was created, in seconds since the epoch."""
        return min(member.created for member in self.members)

    @cached_property
    def waits_since(self) -> float:
        """When the oldest of its pending members was created, in seconds since the epoch."""
        return min(member.created for member in self.pending)

    @cached_property
    def bound_any(self) -> bool:
        return any(gang.bound for gang in self.gangs)

    def changed(self, change: Callable[[PodInfo], PodInfo | None]) -> "Unit":
        """The unit with its members changed; those for which there is None are left out."""
        if self.plain is not None:
            return replace(self, plain=change(self.plain))
        gangs = (replace(gang, pods=tuple(filter(None, map(change, gang.pods)))) for gang in self.gangs)
        return Unit(id=self.id, gangs=tuple(gangs))

    def after(self, nodes: Mapping[str, str], gone: Collection[str] = ()) -> "Unit":
        """The unit with some pods in place (pod key -> name of the node), and others gone; a plain pod as it is."""
        if self.plain is not None or not any(pod.key in nodes or pod.key in gone for pod in self.members):
            return self

        def moved(pod: PodInfo) -> PodInfo | None:
            if pod.key in gone:
                return None
            return structs.replace(pod, node=nodes[pod.key], pending=False) if pod.key in nodes else pod

        return self.changed(moved)

    def need(self, gang: Gang) -> int:
        """Pending members of a gang that one plan must place (2.4).

        Members that are being deleted prove nothing: a gang that is made again as a whole needs its minimum.
        """
        if gang.min_member < 1:
            return 0
        if gang.by_workload and not gang.match_policy:
            return max(0, min(gang.min_member, len(gang.members)) - len(gang.bound))
        if gang.match_policy == "only-waiting":
            return max(0, gang.min_member - gang.done)
        if gang.match_policy == "waiting-and-running":
            return max(0, gang.min_member - len(gang.standing) - gang.done)
        return gang.owed if self._started else gang.min_member

    def present(self, gang: Gang) -> int:
        """Members of a gang that exist, or that have Succeeded (2.3)."""
        ended = gang.succeeded if self._started and not gang.pending else gang.done
        return len(gang.members) + ended

    def ranks(self) -> dict[str, int]:
        """Each member's rank (2.5): its place, and while steps of its workload are to come its index, for those take
        places between the others'."""
        indexes = [pod.index for pod in self.members]
        if any(gang.derived is not None and gang.derived.steps for gang in self.gangs):
            known = [index for index in indexes if index is not None]
            if len({*known}) == len(indexes):
                return {pod.key: index for pod, index in zip(self.members, known, strict=True)}
        return {pod.key: rank for rank, pod in enumerate(self.members)}

    @cached_property
    def _started(self) -> bool:
        """Whether a member stands or has Succeeded: the group was placed before."""
        return any(gang.standing or gang.done or gang.had_success for gang in self.gangs)

    @cached_property
    def has_goal(self) -> bool:
        """Whether any gang gives the unit a gather goal (section 4)."""
        return any(gang.wish.has_goal or gang.hard_keys or gang.has_parts for gang in self.gangs)

    @cached_property
    def pipeline(self) -> int:
        """PP of the first gang in natural order that has a parallelModel."""
        return next((gang.wish.pipeline for gang in self.gangs if gang.wish.has_parallel), 1)


def _ranked(gang: Gang) -> Iterator[tuple[tuple[object, ...], PodInfo]]:
    """Members with their place in rank order: index, gang name natural, pod name natural."""
    names = natural_key(gang.ref.name), natural_key(gang.ref.namespace)
    for pod in gang.members:
        index, name = pod.order
        yield (index, *names, name), pod


@dataclass
class GangCache:
    """Gangs and units of earlier rounds, kept for as long as all that they were read from stays: a round for one pod
    beside a hundred gangs that wait reads none of these anew."""

    gangs: dict[GangRef, tuple[tuple[object, ...], Gang]] = field(default_factory=dict)
    """With the objects that each was read from."""
    units: dict[GangRef, tuple[tuple[Gang, ...], Tree, Unit]] = field(default_factory=dict)
    """By the first gang of the group, with all of its gangs as they are on their own, and the tree."""

    def at(self, snapshot: Snapshot) -> "GangCache":
        """Without gangs of which the snapshot has no pod."""
        for known in (self.gangs, self.units):
            for ref in known.keys() - snapshot.members.keys():
                del known[ref]
        return self

    def gang(self, snapshot: Snapshot, ref: GangRef) -> Gang:
        """A gang as `read_gang` reads it."""
        source = read_from(snapshot, ref)
        known = self.gangs.get(ref)
        if known is not None and all(map(is_, known[0], source)):
            return known[1]
        found = read_gang(snapshot, ref)
        self.gangs[ref] = source, found
        return found

    def unit(self, own: tuple[Gang, ...], snapshot: Snapshot, make: Callable[[], Unit]) -> Unit:
        """The unit of these gangs; make: makes it of them and of the tree."""
        known = self.units.get(own[0].ref)
        if (
            known is not None
            and known[1] is snapshot.tree
            and len(known[0]) == len(own)
            and all(map(is_, known[0], own))
        ):
            return known[2]
        found = make()
        self.units[own[0].ref] = own, snapshot.tree, found
        return found


class Groups:
    """The gangs of a snapshot, joined to GangGroups by their links, transitively.

    Gangs are read when they are asked for: a cluster holds thousands that run and are of no concern to a round.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        defaults: Gangs | None = None,
        stale: StaleGangs | None = None,
        cache: GangCache | None = None,
    ) -> None:
        """`defaults`, `stale`: what is configured for gangs that say nothing themselves. cache: of earlier snapshots,
        with the same defaults."""
        self.snapshot, self.defaults, self.stale = snapshot, defaults or Gangs(), stale or StaleGangs()
        self._cache = (cache or GangCache()).at(snapshot)
        self._gangs: dict[GangRef, Gang] = {}
        self._units: dict[GangRef, Unit] = {}
        self._ids: dict[GangRef, str] = {}
        """By the first gang of the group."""

    def gang(self, ref: GangRef) -> Gang:
        """A gang with its own settings."""
        found = self._gangs.get(ref)
        if found is None:
            found = self._cache.gang(self.snapshot, ref)
            if together := owed(found, self.snapshot, self.stale):
                found = replace(found, owed=together)
            self._gangs[ref] = found
        return found

    def named_by(self, ref: GangRef) -> Named:
        """The gangs that a gang names, and the first of those of its workload that are planned together."""
        named, meant = links_named(self.snapshot, ref), self.snapshot.meant
        derived = self.snapshot.derived.get(ref)
        if derived is None and meant.keys().isdisjoint(named.every):
            return named
        others = (other for key in named.every for other in meant.get(key, (key,)))
        every = list(islice(others, LINKED_GANGS + 1))  # with these it is refused
        if derived is not None and _joins(derived):
            every += [key for key in self._runs[derived.run][:1] if key != ref.key]  # which names the others to it
        return named if every == list(named.every) else Named.of(ref.namespace, every)

    @cached_property
    def _runs(self) -> dict[tuple[str, ...], list[str]]:
        """Run of a workload -> its gangs that are planned together."""
        out: dict[tuple[str, ...], list[str]] = {}
        for derived in self.snapshot.derived.values():
            if _joins(derived):
                out.setdefault(derived.run, []).append(derived.key)
        return out

    def _linkers(self) -> tuple[GangRef, ...]:
        """The gangs that name others."""
        derived = self.snapshot.derived.items()
        more = (
            ref
            for ref, one in derived
            if keys.GANG_GROUPS in one.meta.annotations or (_joins(one) and len(self._runs[one.run]) > 1)
        )
        return tuple(dict.fromkeys((*self.snapshot.linkers, *more)))

    def find(self, key: str) -> GangRef | None:
        """The gang that a `namespace/name` means: one of a PodGroup first, then upstream's, then one by name."""
        return self._named.get(key)

    @cached_property
    def _named(self) -> dict[str, GangRef]:
        first = {source: number for number, source in enumerate(GangSource)}
        return {ref.key: ref for ref in sorted(self.every(), key=lambda ref: first[ref.source], reverse=True)}

    @cached_property
    def existing(self) -> frozenset[str]:
        """Keys of the gangs that are there, and not only named."""
        return frozenset(key for key, ref in self._named.items() if self.gang(ref).exists)

    def every(self) -> list[GangRef]:
        """Every gang that an object or a pod names."""
        refs = dict.fromkeys((*self.snapshot.members, *self.snapshot.derived))
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
        """Which gangs are planned together: the loop, the planner and its figures ask of one snapshot."""
        known = self.snapshot.memo.get(Links)
        if not isinstance(known, Links):
            linkers = self._linkers()
            known = links_of(linkers, self.named_by, self._named) if linkers else Links({}, {})
            self.snapshot.memo[Links] = known
        return known

    def id_of(self, ref: GangRef) -> str:
        """Id of the unit a gang belongs to."""
        group = self.links.groups.get(ref)
        if group is None:
            return f"gang:{ref.id}"
        if group[0] not in self._ids:
            self._ids[group[0]] = "gang:" + ",".join(one.id for one in group)
        return self._ids[group[0]]

    def unit(self, ref: GangRef) -> Unit:
        """The unit a gang belongs to: one and the same for all gangs of a GangGroup."""
        group = self.links.groups.get(ref, (ref,))
        found = self._units.get(group[0])
        if found is None:
            own = tuple(self.gang(one) for one in group)

            def made() -> Unit:
                gangs = with_default(own, self.defaults, self.snapshot.tree.layers)
                return Unit(id=self.id_of(ref), gangs=gangs)

            found = self._units[group[0]] = self._cache.unit(own, self.snapshot, made)
        return found

    def unit_of(self, pod: PodInfo) -> Unit:
        """The unit that a pending pod is planned in."""
        if pod.gang is not None:
            return self.unit(pod.gang)
        group = pod.group
        return Unit(id=pod.key, gangs=(), plain=pod) if group is None else self.group_unit(group)

    def group_unit(self, group: GroupKey) -> Unit:
        """The pending members of a GPU group that are in no gang: planned together, as far as they fit."""
        ref = GangRef(group[0], f"{group[1]}/{group[2]}", GangSource.GPUS)
        gang = Gang(ref=ref, strict=False, pods=self._grouped.get(group, ()))
        return Unit(id=group_unit_id(group), gangs=(gang,))

    @cached_property
    def _grouped(self) -> dict[GroupKey, tuple[PodInfo, ...]]:
        out: dict[GroupKey, list[PodInfo]] = {}
        for pod in self.snapshot.pending:
            if pod.gang is None and (group := pod.group) is not None:
                out.setdefault(group, []).append(pod)
        return {group: tuple(pods) for group, pods in out.items()}

    def units(self, only: frozenset[str] | None = None) -> list[Unit]:
        """Every unit with a pending member (or those of `only`, by unit id), in no particular order."""
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


def _joins(gang: Derived) -> bool:
    """Whether it is planned together with the other gangs of its run."""
    return gang.joined and not gang.apart


def group_unit_id(group: GroupKey) -> str:
    """Id of the unit of a GPU group's members that are in no gang."""
    return "gpus:" + "/".join(group)
