# SPDX-License-Identifier: Apache-2.0
"""Reads manifests into typed objects, or reports every fault of every file.

Rules: simulate.md 1 (kinds that are read), kube-parity.md 7 (faults and their lines).
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology
from koordpy.api.field_faults import Fault, kind_name, literal
from koordpy.api.object_names import OBJECT_NAME
from koordpy.decoding.manifest_documents import read_documents
from koordpy.decoding.strict_decoding import decode
from koordpy.offline.earlier_results import GROUP, KIND, read_result
from koordpy.offline.loaded_manifests import DocumentPlace, InputObject, Loaded, Manifest, identity_of
from koordpy.offline.read_kinds import (
    CLUSTER_SCOPED,
    MAKERS_UNREAD,
    SEVERAL_GROUPS,
    SILENTLY_IGNORED,
    Kind,
    find_kind,
    group_of,
    not_read,
)
from koordpy.topology.topology_layers import read_layers
from koordpy.workloads.kinds.kind_registry import KINDS
from koordpy.workloads.workload_manifest import Source

SUFFIXES = (".yaml", ".yml", ".json")


def load_manifests(paths: Sequence[str], over: Loaded | None = None, *, nodes: bool = True) -> Loaded:
    """Reads files, folders (their *.yaml, *.yml and *.json, sorted by name) and `-`, the standard input.

    over: existing objects, such as those of a cluster; a manifest replaces the object with the same kind and name.
    nodes: True if it is a fault that the input has no Node.
    """
    loaded = Loaded() if over is None else Loaded(order=over.order, generated=over.generated.copy())
    _load(paths, loaded)
    if over is not None:
        loaded = laid_over(over, loaded)
    if nodes and "Node" not in loaded.kinds_seen and not loaded.unreadable:
        for order, place, text in loaded.unread:
            if text.endswith("did you mean Node?"):
                loaded.fault(place, text, order)
        loaded.fault(", ".join(path or "''" for path in paths) or loaded.lenient, "no Node in the input")
    return loaded


def load_objects(objects: Iterable[dict[str, Any]], source: str) -> Loaded:
    """Reads objects of a running cluster. An object with a fault is left out, with a warning.

    source: name of the cluster, for warnings.
    """
    loaded = Loaded(lenient=source)
    for raw in objects:
        loaded.order += 1
        _take(raw, DocumentPlace(source, ""), loaded)
    return loaded


def _load(paths: Sequence[str], loaded: Loaded) -> None:
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


def laid_over(below: Loaded, above: Loaded) -> Loaded:
    """Returns the objects of `below`, where objects of `above` replace those with the same kind and name.

    As with `kubectl apply`, a new object without uid, creation time and status keeps those of the old object.
    """
    before = {identity_of(one): one for one in below.manifests}
    makers = {identity_of(one): one for one in below.workloads}
    fresh = [_succeeding(one, before.get(identity_of(one))) for one in above.manifests]
    made = [_adopted(one, makers.get(identity_of(one))) for one in above.workloads]
    taken = {identity_of(one) for one in (*above.manifests, *above.rests)}
    replaced = {identity_of(one) for one in above.workloads}
    kinds = {*below.faulty, *above.faulty}
    return Loaded(
        manifests=[*(one for one in below.manifests if identity_of(one) not in taken), *fresh],
        warnings=[*below.warnings, *above.warnings],
        makers=[*below.makers, *above.makers],
        strangers=[*below.strangers, *above.strangers],
        workloads=[*(one for one in below.workloads if identity_of(one) not in replaced), *made],
        faults=[*below.faults, *above.faults],
        unread=[*below.unread, *above.unread],
        kinds_seen=below.kinds_seen | above.kinds_seen,
        rests=[*below.rests, *above.rests],
        unreadable=below.unreadable or above.unreadable,
        results=[*below.results, *above.results],
        order=above.order,
        generated=above.generated,
        faulty={kind: below.faulty.get(kind, set()) | above.faulty.get(kind, set()) for kind in kinds},
        lenient=below.lenient or above.lenient,
    )


def _succeeding(one: Manifest, old: Manifest | None) -> Manifest:
    if old is None:
        return one
    meta, known = one.obj.metadata, old.obj.metadata
    changes: dict[str, Any] = {
        "metadata": replace(
            meta,
            uid=meta.uid or known.uid,
            creation_timestamp=meta.creation_timestamp or known.creation_timestamp,
        )
    }
    if "status" not in one.raw and hasattr(old.obj, "status"):
        changes["status"] = old.obj.status
    return changed(one, obj=replace(one.obj, **changes), raw=_kept_raw(one.raw, old.raw))


def _adopted(one: InputObject, old: InputObject | None) -> InputObject:
    return one if old is None else changed(one, raw=_kept_raw(one.raw, old.raw))


def _kept_raw(raw: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    meta, known = Source(raw).at("metadata").raw, Source(old).at("metadata").raw
    kept = {key: known[key] for key in ("uid", "creationTimestamp") if known.get(key) and not meta.get(key)}
    status = {"status": old["status"]} if "status" in old and "status" not in raw else {}
    return {**raw, "metadata": {**meta, **kept}, **status}


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
    """Returns the content of a file, a pipe, or `-`, the standard input.

    Raises OSError, also for a pipe without a writer, because reading it would block forever.
    """
    if path == "-":
        if sys.stdin is None:
            raise OSError("the standard input is closed")
        return sys.stdin.buffer.read()
    if not Path(path).is_fifo():
        return Path(path).read_bytes()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        begin = pipe.read(1)
        if begin == b"":
            raise OSError("a pipe without a writer")
        os.set_blocking(pipe.fileno(), True)
        return (begin or b"") + (pipe.readall() or b"")


def _items(value: Any, place: DocumentPlace, loaded: Loaded) -> Iterator[tuple[DocumentPlace, dict[str, Any]]]:
    """Yields the objects of a document: the document itself, or the items of a List. Items of a PodList need no
    kind."""
    todo: list[tuple[DocumentPlace, Any, dict[str, Any]]] = [(place, value, {})]
    while todo:
        at, raw, said = todo.pop()
        if not isinstance(raw, dict):
            loaded.fault(at, f"must be a mapping, not {kind_name(raw)}")
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
            loaded.fault(at, f"{name}: items: must be a list, not {kind_name(items)}")
            continue
        inner: dict[str, Any] = {}
        if name != "List":
            inner = {"kind": name.removesuffix("List")} | {key: raw[key] for key in ("apiVersion",) if key in raw}
        todo.extend(
            (DocumentPlace(at.path, f"{at.within}: items[{i}]"), items[i], inner) for i in reversed(range(len(items)))
        )


# -- objects ----------------------------------------------------------------------------------------------------------


def _text_field(raw: dict[str, Any], name: str, place: DocumentPlace, loaded: Loaded) -> str | None:
    """Returns a top-level string field; "" if absent. If it is not a string, records a fault and returns None."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    loaded.fault(place, f"{name}: must be a string, not {kind_name(value)}")
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
    elif key == (GROUP, KIND):
        places, faults = read_result(raw)
        for fault in faults:
            loaded.fault(found, fault)
        loaded.results.append((found, places))
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
        loaded.strangers.append(changed(found, warning=told))
        loaded.warn(place, told)
    if is_made and name:
        loaded.workloads.append(found)


def _take_known(found: InputObject, kind: Kind, loaded: Loaded) -> None:
    loaded.kinds_seen.add(kind.name)
    read = decode(found.raw, kind.type, own_closed=True)
    is_topology = kind.type is ClusterNetworkTopology
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
    """Returns (namespace, name) of an object; an unreadable namespace becomes "default", an unreadable name empty."""
    meta = Source(raw).at("metadata")
    return meta.text("namespace", "default") if namespaced else "", meta.text("name")


def _with_name(raw: dict[str, Any], kind: str, loaded: Loaded) -> dict[str, Any]:
    """Returns the object with a name. If it has only a generateName, a running number is added to that."""
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
"""API group -> the only version of it that an API server serves."""
_NAME = re.compile(OBJECT_NAME)


def _warn_of_refused(found: InputObject, loaded: Loaded) -> None:
    """Warns of an apiVersion and a name that an API server rejects."""
    api_version, kind, name = found.raw.get("apiVersion") or "", found.raw["kind"], found.name
    group, version = group_of(api_version), api_version.rpartition("/")[2]
    if not api_version and kind in SEVERAL_GROUPS:
        loaded.warn(found, "apiVersion: is missing: the API server would reject it")
    if _SERVED.get(group, version) != version:
        served = f"{group}/{_SERVED[group]}"
        loaded.warn(found, f"apiVersion: {api_version} is not served, use {served}: the API server would reject it")
    if name and "/" not in name and not (len(name) <= 253 and _NAME.fullmatch(name)):
        loaded.warn(found, f"metadata.name: {literal(name)} is not a valid object name: the API server would reject it")


def _name_faults(found: InputObject) -> list[Fault]:
    meta, name = found.raw.get("metadata"), found.name
    if meta is not None and not isinstance(meta, dict):
        return []
    if not name and (meta is None or meta.get("name") in (None, "")):
        return [Fault("metadata.name", "is missing")]
    if "/" in name:
        return [Fault("metadata.name", f"{name!r} contains a slash")]
    return []
