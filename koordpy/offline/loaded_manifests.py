# SPDX-License-Identifier: Apache-2.0
"""The result of reading manifests: objects with their place in a file, faults and warnings."""

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
"""If two files have more duplicate objects than this number, one line reports all of them."""


MAX_LINE = 2000
"""Maximum length of a line about a fault, in characters, because it may quote a value of any length."""


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """Place of an object in the input, printed as `PATH: document N` or `PATH: document N: items[i]`."""

    path: str
    within: str
    """Place within the file, such as `document 2`; empty for an object of a cluster."""

    def __str__(self) -> str:
        return f"{self.path}: {self.within}" if self.within else self.path


@dataclass(frozen=True, slots=True)
class InputObject:
    """One object of the input."""

    place: DocumentPlace
    title: str
    """`KIND NAMESPACE/NAME`, or `KIND/NAME` for a cluster-scoped object."""
    namespace: str
    name: str
    raw: dict[str, Any]
    order: int
    """Position in the input, by which messages are sorted."""
    warning: str = field(default="", kw_only=True)
    """Warning that its kind is not read; empty if the kind is read."""

    def __str__(self) -> str:
        return f"{self.place}: {self.title}"


@dataclass(frozen=True, slots=True)
class Manifest(InputObject):
    """An object of a kind that is read."""

    kind: Kind
    obj: KubernetesObject


@dataclass(slots=True)
class Loaded:
    """Everything that was read from the given paths, with faults and warnings."""

    manifests: list[Manifest] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    makers: list[InputObject] = field(default_factory=list)
    """Objects that create pods, of kinds that koordpy does not read."""
    strangers: list[InputObject] = field(default_factory=list)
    """Objects of unknown kinds, which may create pods."""
    workloads: list[InputObject] = field(default_factory=list)
    """Workloads that create pods, and the runtimes and PodGroups that their pods depend on."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    """(order in the input, line) of every fault."""
    unread: list[tuple[int, DocumentPlace, str]] = field(default_factory=list)
    """(order, place, warning) of objects of kinds that are not read."""
    kinds_seen: set[str] = field(default_factory=set)
    """Names of the known kinds in the input, including those of faulty documents."""
    results: list[tuple[InputObject, FinalPlaces]] = field(default_factory=list)
    """SimulationResults, with the final state of their pods."""
    rests: list[Manifest] = field(default_factory=list)
    """Objects with faults, as they are without their faulty fields."""
    repeats: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    """(path, path with the same objects) -> the faults about these duplicates."""
    unreadable: bool = False
    """True if a file could not be read. Then objects that seem to be missing may be in that file."""
    order: int = 0
    """Order of the object that is being read."""
    generated: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, generateName) -> number of objects that got a name from it."""
    faulty: dict[str, set[str]] = field(default_factory=dict)
    """Kind -> names of objects that are left out because of faults."""
    lenient: str = ""
    """Path from which faulty objects are left out with a warning, as by the live scheduler; empty for none."""
    _named: dict[tuple[str, str, str], DocumentPlace] = field(default_factory=dict)

    def fault(self, where: object, fault: Fault | str, order: int | None = None) -> None:
        """Records a fault of an object. order: the object's position in the input; None for the object being read."""
        if self.lenient and f"{where}: ".startswith(f"{self.lenient}: "):
            self.warn(where, fault)
            return
        self.faults.append((self.order if order is None else order, _one_line(f"{where}: {fault}")))

    def cannot_read(self, path: str, why: str) -> None:
        """Records that a file or folder cannot be read."""
        self.fault(path, f"cannot be read: {why}")
        self.unreadable = True

    def fold_repeats(self) -> None:
        """Replaces the faults about two files with the same objects by one fault, as when a file is given twice."""
        for (path, first), lines in self.repeats.items():
            if len(lines) > MOST_REPEATS:
                told = set(lines[1:])
                self.faults = [fault for fault in self.faults if fault not in told]
                at = self.faults.index(lines[0])
                rest = lines[0][1].removeprefix(f"{path}: ")
                more = "are defined twice in it" if path == first else f"are also defined in {first}"
                self.faults[at] = (lines[0][0], f"{path}: {len(lines)} objects {more}; the first: {rest}")

    def fault_of(self, found: InputObject, fault: Fault | str) -> None:
        self.fault(found, fault, found.order)

    def warn(self, where: object, text: object) -> None:
        self.warnings.append(_one_line(f"{where}: {text}"))

    def is_repeated(self, kind: str, found: InputObject) -> bool:
        """Returns True, and records a fault, if an object of the same kind and name was read before."""
        first = self._named.setdefault((kind, found.namespace, found.name), found.place)
        if not found.name or first is found.place:
            return False
        self.fault(found, f"metadata.name: duplicate object, already defined in {first}")
        if found.place.path != self.lenient:
            self.repeats.setdefault((found.place.path, first.path), []).append(self.faults[-1])
        return True

    def is_faulty(self, kind: str, name: str) -> bool:
        """Returns True if the object is left out because of a fault. A faulty object without a name may be any
        object."""
        found = self.faulty.get(kind, ())
        return name in found or "" in found

    @property
    def fault_lines(self) -> list[str]:
        """Returns one line for every fault, in the order of the input."""
        return [line for _, line in sorted(self.faults, key=lambda fault: fault[0])]


def _one_line(text: str) -> str:
    text = one_line(text)
    return f"{text[:MAX_LINE]}..." if len(text) > MAX_LINE else text


Identity = tuple[str, str, str, str]


def identity_of(found: InputObject) -> Identity:
    """Returns (group, kind, namespace, name) of an object. Both API groups of a custom resource are the same kind."""
    if isinstance(found, Manifest):
        return "", found.kind.name, found.namespace, found.name
    return group_of(str(found.raw.get("apiVersion") or "")), str(found.raw["kind"]), found.namespace, found.name
