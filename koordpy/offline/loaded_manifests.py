"""What was read of manifests: objects with the place where each stands, faults and warnings."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.field_faults import Fault, one_line
from koordpy.api.objects import KubernetesObject
from koordpy.offline.earlier_results import FinalPlaces
from koordpy.offline.read_kinds import (
    Kind,
    group_of,
)

MOST_REPEATS = 4
"""Objects told one by one that stand in the same two files."""


MAX_LINE = 2000
"""Characters of a fault's line; values in the input may be of any length."""


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """Where an object stands: `PATH: document N` or `PATH: document N: items[i]`."""

    path: str
    within: str

    def __str__(self) -> str:
        return f"{self.path}: {self.within}" if self.within else self.path


@dataclass(frozen=True, slots=True)
class InputObject:
    """One object of the input. `title` is `KIND NAMESPACE/NAME`, or `KIND/NAME` of a cluster-scoped one."""

    place: DocumentPlace
    title: str
    namespace: str
    name: str
    raw: dict[str, Any]
    order: int
    """Its number among everything that was read, so that a later fault finds its place."""
    told: str = field(default="", kw_only=True)
    """What is said of its kind, where that is not read."""

    def __str__(self) -> str:
        return f"{self.place}: {self.title}"


@dataclass(frozen=True, slots=True)
class Manifest(InputObject):
    """An object of a kind that is read."""

    kind: Kind
    obj: KubernetesObject


@dataclass(slots=True)
class Loaded:
    """What the paths hold. Faults are (order in the input, line), so that later ones find their place among them."""

    manifests: list[Manifest] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    makers: list[InputObject] = field(default_factory=list)
    """Those that make pods and are not read."""
    strangers: list[InputObject] = field(default_factory=list)
    """Those of kinds that are not read, which may make pods."""
    workloads: list[InputObject] = field(default_factory=list)
    """Those whose pods are made, and what they are made of."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    unread: list[tuple[int, DocumentPlace, str]] = field(default_factory=list)
    """(order, place, what was said) of objects of kinds that are not read."""
    kinds_seen: set[str] = field(default_factory=set)
    """Names of the kinds that documents named, those of faulty documents included."""
    results: list[tuple[InputObject, FinalPlaces]] = field(default_factory=list)
    """SimulationResults."""
    rests: list[Manifest] = field(default_factory=list)
    """Those that cannot be read as a whole, without their faulty parts."""
    repeats: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    """(path, path that has the same objects) -> the faults that say so."""
    unreadable: bool = False
    """Whether one of the files cannot be read: what the rest lacks may stand there."""
    order: int = 0
    """Of what is being read."""
    generated: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, generateName) -> objects that were named by it."""
    faulty: dict[str, set[str]] = field(default_factory=dict)
    """Kind -> names of the objects that are left out for their faults."""
    lenient: str = ""
    """Path whose faulty objects are left out with a warning, as the live scheduler goes on without them."""
    _named: dict[tuple[str, str, str], DocumentPlace] = field(default_factory=dict)

    def fault(self, where: object, fault: Fault | str, order: int | None = None) -> None:
        """Takes down a fault of an object (default: the one that is being read)."""
        if self.lenient and f"{where}: ".startswith(f"{self.lenient}: "):
            self.warn(where, fault)
            return
        self.faults.append((self.order if order is None else order, _one_line(f"{where}: {fault}")))

    def cannot_read(self, path: str, why: str) -> None:
        """Takes down that a file or folder cannot be read."""
        self.fault(path, f"cannot be read: {why}")
        self.unreadable = True

    def fold_repeats(self) -> None:
        """One line in place of many for two files that have the same objects, as one file given twice."""
        for (path, first), lines in self.repeats.items():
            if len(lines) > MOST_REPEATS:
                told = set(lines[1:])
                self.faults = [fault for fault in self.faults if fault not in told]
                at = self.faults.index(lines[0])
                rest = lines[0][1].removeprefix(f"{path}: ")
                more = "objects stand there twice" if path == first else f"objects stand in {first}, too"
                self.faults[at] = (lines[0][0], f"{path}: {len(lines)} {more}; the first: {rest}")

    def fault_of(self, found: InputObject, fault: Fault | str) -> None:
        self.fault(found, fault, found.order)

    def warn(self, where: object, text: object) -> None:
        self.warnings.append(_one_line(f"{where}: {text}"))

    def is_repeated(self, kind: str, found: InputObject) -> bool:
        """Whether an object of the kind and name was read before, which is taken down."""
        first = self._named.setdefault((kind, found.namespace, found.name), found.place)
        if not found.name or first is found.place:
            return False
        self.fault(found, f"metadata.name: the same object stands in {first}")
        if found.place.path != self.lenient:
            self.repeats.setdefault((found.place.path, first.path), []).append(self.faults[-1])
        return True

    def is_faulty(self, kind: str, name: str) -> bool:
        """Whether the object of a kind and name may be one of those with a fault; one without a name may be any."""
        found = self.faulty.get(kind, ())
        return name in found or "" in found

    @property
    def fault_lines(self) -> list[str]:
        """Every fault, one a line, in the order of the input."""
        return [line for _, line in sorted(self.faults, key=lambda fault: fault[0])]


def _one_line(text: str) -> str:
    text = one_line(text)
    return f"{text[:MAX_LINE]}..." if len(text) > MAX_LINE else text


Identity = tuple[str, str, str, str]


def identity_of(found: InputObject) -> Identity:
    """(group, kind, namespace, name) of an object; both groups of one custom resource are one kind."""
    if isinstance(found, Manifest):
        return "", found.kind.name, found.namespace, found.name
    return group_of(str(found.raw.get("apiVersion") or "")), str(found.raw["kind"]), found.namespace, found.name
