"""Manifests in, typed objects out, or every fault of every file.

Source: simulate.md 1 (what is read) and kube-parity.md section 7 (what is a fault, and how its line looks).
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom import ClusterNetworkTopology
from koordpy.api.documents import read_documents
from koordpy.api.faults import Fault, kind_name, literal, one_line
from koordpy.api.names import OBJECT_NAME
from koordpy.api.objects import KubernetesObject
from koordpy.api.strict import decode
from koordpy.cluster.topology import read_layers
from koordpy.offline.kinds import (
    CLUSTER_SCOPED,
    MAKERS_UNREAD,
    SEVERAL_GROUPS,
    SILENTLY_IGNORED,
    Kind,
    find_kind,
    group_of,
    not_read,
)
from koordpy.workloads.kinds.registry import KINDS
from koordpy.workloads.source import Source

SUFFIXES = (".yaml", ".yml", ".json")
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
    workloads: list[InputObject] = field(default_factory=list)
    """Those whose pods are made, and what they are made of."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    unread: list[tuple[int, DocumentPlace, str]] = field(default_factory=list)
    """(order, place, what was said) of objects of kinds that are not read."""
    kinds_seen: set[str] = field(default_factory=set)
    """Names of the kinds that documents named, those of faulty documents included."""
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
    _named: dict[tuple[str, str, str], DocumentPlace] = field(default_factory=dict)

    def fault(self, where: object, fault: Fault | str, order: int | None = None) -> None:
        """Takes down a fault of an object (default: the one that is being read)."""
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


def load_manifests(paths: Sequence[str]) -> Loaded:
    """Reads files, folders (their *.yaml, *.yml and *.json, sorted) and `-`, the standard input."""
    loaded = Loaded()
    for path, data in _files(paths, loaded):
        for document in read_documents(data, as_json=path.endswith(".json")):
            loaded.order += 1
            place = DocumentPlace(path, f"document {document.position}")
            if document.fault is not None:
                loaded.fault(place, document.fault)
                continue
            for item_place, raw in _items(document.value, place, loaded):
                loaded.order += 1
                _take(raw, item_place, loaded)
    loaded.fold_repeats()
    if "Node" not in loaded.kinds_seen and not loaded.unreadable:
        for order, place, text in loaded.unread:
            if text.endswith("did you mean Node?"):
                loaded.fault(place, text, order)
        loaded.fault(", ".join(path or "''" for path in paths), "no Node in the input")
    return loaded


# -- files ------------------------------------------------------------------------------------------------------------


def _files(paths: Iterable[str], loaded: Loaded) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        try:
            if not path:
                raise OSError("the name is empty")
            if path != "-" and Path(path).is_dir():
                names = sorted(entry.name for entry in Path(path).iterdir() if entry.suffix in SUFFIXES)
                inner = [str(Path(path) / name) for name in names if not (Path(path) / name).is_dir()]
                yield from _files(inner, loaded)
                continue
            data = read_file(path)
        except OSError as fault:
            loaded.cannot_read(path or "''", fault.strerror or str(fault))
        except ValueError as fault:
            loaded.cannot_read(repr(path), str(fault))
        else:
            yield path, data


def read_file(path: str) -> bytes:
    """A file, `-` for the standard input, or what a pipe says. Raises OSError, also for a pipe that nobody writes to,
    which would be waited for without end."""
    if path == "-":
        if sys.stdin is None:
            raise OSError("the standard input is closed")
        return sys.stdin.buffer.read()
    if not Path(path).is_fifo():
        return Path(path).read_bytes()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        begin = pipe.read(1)
        if begin == b"":
            raise OSError("a pipe that nobody writes to")
        os.set_blocking(pipe.fileno(), True)
        return (begin or b"") + (pipe.readall() or b"")


def _items(value: Any, place: DocumentPlace, loaded: Loaded) -> Iterator[tuple[DocumentPlace, dict[str, Any]]]:
    """The objects of a document: itself, or the items of a List. Those of a PodList need not say what they are."""
    todo: list[tuple[DocumentPlace, Any, dict[str, Any]]] = [(place, value, {})]
    while todo:
        at, raw, said = todo.pop()
        if not isinstance(raw, dict):
            loaded.fault(at, f"{kind_name(raw)} in place of a mapping")
            continue
        if "kind" not in raw:
            raw = {**said, **raw}
        name = raw.get("kind")
        if not isinstance(name, str) or not name.endswith("List") or (name != "List" and "items" not in raw):
            yield at, raw
            continue
        items = raw.get("items")
        if items is None:
            continue
        if not isinstance(items, list):
            loaded.fault(at, f"{name}: items: {kind_name(items)} in place of a list")
            continue
        inner: dict[str, Any] = {}
        if name != "List":
            inner = {"kind": name.removesuffix("List")} | {key: raw[key] for key in ("apiVersion",) if key in raw}
        todo.extend(
            (DocumentPlace(at.path, f"{at.within}: items[{i}]"), items[i], inner) for i in reversed(range(len(items)))
        )


# -- objects ----------------------------------------------------------------------------------------------------------


def _text_field(raw: dict[str, Any], name: str, place: DocumentPlace, loaded: Loaded) -> str | None:
    """A top-level text; empty where it is absent, None where it is no text (which is taken down)."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    loaded.fault(place, f"{name}: {kind_name(value)} in place of text")
    return None


def _take(raw: dict[str, Any], place: DocumentPlace, loaded: Loaded) -> None:
    kind_text, api_version = _text_field(raw, "kind", place, loaded), _text_field(raw, "apiVersion", place, loaded)
    if kind_text == "":
        loaded.fault(place, "kind: is missing")
    if not kind_text or api_version is None:
        return
    raw = _with_name(raw, kind_text, loaded)
    key = group_of(api_version), kind_text
    kind, is_made = find_kind(api_version, kind_text), key in KINDS
    namespaced = kind.namespaced if kind is not None else kind_text not in CLUSTER_SCOPED
    namespace, name = _identity(raw, namespaced)
    title = f"{kind_text} {namespace}/{name}" if namespaced else f"{kind_text}/{name}"
    found = InputObject(place, title if name else kind_text, namespace, name, raw, loaded.order)
    if kind is not None:
        _take_known(found, kind, loaded)
    elif key in MAKERS_UNREAD:
        loaded.makers.append(found)
    elif is_made:
        loaded.kinds_seen.add(kind_text)
        _warn_of_refused(found, loaded)
        for fault in _name_faults(found):
            loaded.fault(found, fault)
        is_made = not loaded.is_repeated(f"{kind_text} of workloads", found)
    elif key not in SILENTLY_IGNORED:
        told = not_read(api_version, kind_text)
        loaded.unread.append((loaded.order, place, told))
        loaded.warn(place, told)
    if is_made and name:
        loaded.workloads.append(found)


def _take_known(found: InputObject, kind: Kind, loaded: Loaded) -> None:
    loaded.kinds_seen.add(kind.name)
    read, is_topology = decode(found.raw, kind.type), kind.type is ClusterNetworkTopology
    for doubt in read.doubts:
        loaded.warn(found, doubt)
    _warn_of_refused(found, loaded)
    if is_topology and found.name != keys.TOPOLOGY_OBJECT:
        loaded.warn(found, f"only the object named {keys.TOPOLOGY_OBJECT} is used")
    before = len(loaded.faults)
    for fault in (*read.faults, *_name_faults(found)):
        loaded.fault(found, fault)
    loaded.is_repeated(kind.name, found)
    if isinstance(read.value, ClusterNetworkTopology) and found.name == keys.TOPOLOGY_OBJECT:
        for wrong in read_layers(read.value)[1]:
            loaded.fault(found, f"{wrong.field}: {wrong.text}")
    faulty = read.rest is None or len(loaded.faults) > before
    if faulty:
        loaded.faulty.setdefault(kind.name, set()).add(found.name)
    if read.rest is not None:
        obj = replace(read.rest, metadata=replace(read.rest.metadata, namespace=found.namespace))
        manifest = Manifest(found.place, found.title, found.namespace, found.name, found.raw, found.order, kind, obj)
        (loaded.rests if faulty else loaded.manifests).append(manifest)


def _identity(raw: dict[str, Any], namespaced: bool) -> tuple[str, str]:
    """(namespace, name) as far as they can be read."""
    meta = Source(raw).at("metadata")
    return meta.text("namespace", "default") if namespaced else "", meta.text("name")


def _with_name(raw: dict[str, Any], kind: str, loaded: Loaded) -> dict[str, Any]:
    """The object with a name, where it has only the beginning of one: numbers, as pods that are made have."""
    meta = Source(raw).at("metadata")
    prefix = meta.text("generateName")
    if not prefix or meta.raw.get("name"):
        return raw
    number = loaded.generated[kind, prefix]
    loaded.generated[kind, prefix] += 1
    return {**raw, "metadata": {**meta.raw, "name": f"{prefix}{number}"}}


_SERVED = {
    keys.GROUP_SIGS: "v1alpha1",
    keys.GROUP_X: "v1alpha1",
    keys.GROUP_KOORDINATOR: "v1alpha1",
    "apps": "v1",
    "batch": "v1",
}
"""API group -> its one version: our definitions', and what Kubernetes serves."""
_NAME = re.compile(OBJECT_NAME)


def _warn_of_refused(found: InputObject, loaded: Loaded) -> None:
    """Words for what an API server refuses of any object."""
    api_version, kind, name = found.raw.get("apiVersion") or "", found.raw["kind"], found.name
    group, version = group_of(api_version), api_version.rpartition("/")[2]
    if not api_version and kind in SEVERAL_GROUPS:
        loaded.warn(found, "apiVersion: is missing: an API server refuses it")
    if _SERVED.get(group, version) != version:
        served = f"{group}/{_SERVED[group]}"
        loaded.warn(found, f"apiVersion: {api_version} is not served, {served} is: an API server refuses it")
    if name and "/" not in name and not (len(name) <= 253 and _NAME.fullmatch(name)):
        loaded.warn(found, f"metadata.name: {literal(name)} is no name of an object: an API server refuses it")


def _name_faults(found: InputObject) -> list[Fault]:
    meta, name = found.raw.get("metadata"), found.name
    if meta is not None and not isinstance(meta, dict):
        return []
    if not name and (meta is None or meta.get("name") in (None, "")):
        return [Fault("metadata.name", "is missing")]
    if "/" in name:
        return [Fault("metadata.name", f"{name!r} holds a slash")]
    return []
