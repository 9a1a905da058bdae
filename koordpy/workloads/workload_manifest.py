# SPDX-License-Identifier: Apache-2.0
"""Reads single fields from the manifest of a workload, such as a Job.

The manifest is not trusted, because it may come from a file, or from a CRD without a schema. A value of the wrong type
is recorded as a fault, and treated as absent. `Source` is one mapping of the manifest with its path; the readers in
`kinds` use it to go through a manifest.

Sources: workloads.md 4 and 10.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from koordpy.api.field_faults import Fault, UnreadableError, key_path, literal, shown
from koordpy.api.objects import ObjectMeta, OwnerReference
from koordpy.api.reading_limits import FAULTS, WORKLOAD_PARTS, WORKLOAD_PODS
from koordpy.decoding.annotation_settings import index_of

T = TypeVar("T")


class ReadFields:
    """The fields of one manifest that a reader knows, and the values that an API server would reject.

    Collected only if pods are created from the manifest offline (`simulate`), for warnings about unknown fields.
    """

    def __init__(self) -> None:
        self.names: dict[str, tuple[Mapping[str, Any], set[str]]] = {}
        """Path of a mapping -> (the mapping, names of its known fields)."""
        self.refused: dict[Fault, None] = {}
        """Values that an API server would reject, as faults."""

    def know(self, path: str, raw: Mapping[str, Any], *names: str) -> None:
        """Records the names of known fields of the mapping at a path."""
        self.names.setdefault(path, (raw, set()))[1].update(names)


@dataclass(slots=True)
class Source:
    """A mapping inside a manifest, with its path and the faults of the whole manifest."""

    raw: Mapping[str, Any]
    path: str = ""
    """Path from the root of the manifest, such as `spec.template`; empty for the root."""
    faults: list[Fault] = field(default_factory=list)
    """Faults of the whole manifest: all its parts share the list."""
    read_fields: ReadFields | None = None
    """Known fields and rejected values of the whole manifest; None if no pods are created from the manifest."""
    spec_path: str = "spec"
    """Path of the object's spec. It is longer for an object that is defined inside another object's manifest."""

    def _typed(self, name: str, kind: type[T], said: str) -> T | None:
        """Returns the value of a field; None if it is absent or has another type, which is then recorded as a fault.

        A boolean does not count as a number. said: the expected type, for the text of the fault.
        """
        self.knows(name)
        value = self.raw.get(name)
        if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        self.fault(name, f"must be {said}, not {shown(value)}")
        return None

    def knows(self, *names: str) -> None:
        """Records fields as known, including fields that are not read."""
        if self.read_fields is not None:
            self.read_fields.know(self.path, self.raw, *names)

    def where(self, name: str) -> str:
        """Returns the path of a field from the root of the manifest."""
        if self.path:
            return f"{self.path}.{name}"
        return self.spec_path if name == "spec" else name

    def fault(self, name: str, text: str) -> None:
        """Records a fault of a field, unless it was recorded before, or the manifest has `FAULTS` faults already."""
        fault = Fault(self.where(name), text)
        if len(self.faults) < FAULTS and fault not in self.faults:
            self.faults.append(fault)

    def has(self, name: str) -> bool:
        """Returns True if a field is present and not null."""
        self.knows(name)
        return self.raw.get(name) is not None

    def at(self, *names: str) -> "Source":
        """Returns the mapping at a path; an empty mapping if it is absent."""
        found = self
        for name in names:
            inner: Mapping[str, Any] = found._typed(name, dict, "a mapping") or {}
            found = Source(inner, found.where(name), found.faults, found.read_fields)
        return found

    def list(self, name: str) -> "list[Source]":
        """Returns the mappings in a list; empty if the list is absent."""
        found = []
        for i, item in enumerate(self._typed(name, list, "a list") or ()):
            if isinstance(item, dict):
                found.append(Source(item, self.where(f"{name}[{i}]"), self.faults, self.read_fields))
            else:
                self.fault(f"{name}[{i}]", f"must be a mapping, not {shown(item)}")
        return found

    def maybe(self, name: str) -> int | None:
        """Returns a number of at least 0; None if absent or invalid."""
        value = self._typed(name, int, "a whole number")
        if value is None or value >= 0:
            return value
        self.fault(name, f"{value} is negative")
        return None

    def count(self, name: str, default: int = 0) -> int:
        """Returns a number of at least 0; the default if absent or invalid."""
        found = self.maybe(name)
        return default if found is None else found

    def text(self, name: str, default: str = "") -> str:
        """Returns a string; the default if absent or invalid."""
        return self._typed(name, str, "a string") or default

    def word(self, name: str, *words: str) -> str:
        """Returns a field that must have one of the given words; the first word if it is absent.

        Any other word is also returned, and recorded as a value that an API server would reject.
        """
        found = self.text(name, words[0])
        if found not in words and self.read_fields is not None:
            text = f"{literal(found)} is none of {', '.join(words)}: the API server would reject it"
            self.read_fields.refused[Fault(self.where(name), text)] = None
        return found

    def flag(self, name: str) -> bool:
        """Returns True if a boolean field is true. A value of another type is recorded as a fault."""
        self.knows(name)
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            self.fault(name, f"must be true or false, not {shown(value)}")
        return value is True

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of strings; empty if absent. Items of another type are left out and recorded as faults."""
        given = self._typed(name, list, "a list") or ()
        return tuple(one for i, one in enumerate(given) if self._is_text(f"{name}[{i}]", one))

    def strings(self, name: str) -> dict[str, str]:
        """Returns a mapping of strings, such as labels or annotations.

        Values of another type are left out and recorded as faults.
        """
        given = [(str(key), one) for key, one in self.at(name).raw.items() if one is not None]
        return {key: one for key, one in given if self._is_text(key_path(name, key), one)}

    def _is_text(self, name: str, value: Any) -> bool:
        """Returns True if a value is a string; otherwise records a fault."""
        if not isinstance(value, str):
            self.fault(name, f"must be a string, not {shown(value)}")
        return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class Head:
    """Identity and metadata of a workload, or of any other object."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    """uid in the manifest, or a generated uid."""
    created: str = ""
    """creationTimestamp as text; empty if the manifest has none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    annotations_given: int = 0
    """Number of annotations of the object. If it is above the limit `ANNOTATIONS`, `annotations` has only those that
    koordpy reads."""
    owner: OwnerReference | None = None
    """The controlling owner; None if there is none."""
    has_uid: bool = True
    """False if `uid` is generated."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        """Returns kind and name, such as `Job train`."""
        return f"{self.kind} {self.name}"

    @property
    def reference(self) -> OwnerReference:
        """The ownerReference that objects have which this object controls."""
        return controlling(self.api_version, self.kind, self.name, self.uid)


def controlling(api_version: str, kind: str, name: str, uid: str) -> OwnerReference:
    """Returns a controlling ownerReference."""
    return OwnerReference(api_version=api_version, kind=kind, name=name, uid=uid, controller=True)


def head_of(source: Source, *, uid: str = "", created: str = "", annotations_given: int = 0) -> Head:
    """Reads the identity and metadata of an object. uid, created: used if the manifest has none.

    annotations_given: number of annotations of the object if the source has fewer; 0 if all are in the source.
    """
    meta = source.at("metadata")
    notes = meta.strings("annotations")
    owner = next((one for one in meta.list("ownerReferences") if one.flag("controller")), None)
    said = meta.text("uid")
    return Head(
        api_version=source.text("apiVersion"),
        kind=source.text("kind"),
        namespace=meta.text("namespace", "default"),
        name=meta.text("name"),
        uid=said or uid,
        created=meta.text("creationTimestamp") or created,
        labels=meta.strings("labels"),
        annotations=notes,
        annotations_given=annotations_given or len(notes),
        owner=controlling(*map(owner.text, ("apiVersion", "kind", "name", "uid"))) if owner is not None else None,
        has_uid=bool(said),
    )


def can_make(spec: Source, name: str, number: int, parts: int = 0, of: str = "") -> bool:
    """Returns True if a workload creates at most the supported number of pods, and of parts (Jobs, groups).

    Otherwise the manifest is rejected, because it would fill the memory: a fault of the field is recorded if pods are
    created from the manifest, else `UnreadableError` is raised. name: the field. of: plural noun of the parts, for the
    text.
    """
    if number > WORKLOAD_PODS:
        text = f"makes {number} pods, {WORKLOAD_PODS} at most"
    elif parts > WORKLOAD_PARTS:
        text = f"makes {parts} {of}, {WORKLOAD_PARTS} at most"
    else:
        return True
    if spec.read_fields is None:
        raise UnreadableError(f"{spec.where(name)}: {text}")
    spec.fault(name, text)
    return False


def index_in(meta: ObjectMeta, key: str) -> int | None:
    """Returns the number in a label, else in an annotation, of a pod; None if there is none."""
    return index_of(meta.labels.get(key) or meta.annotations.get(key, ""))


def conditions(source: Source, *types: str) -> bool:
    """Returns True if the status has a condition of one of the types with the status True."""
    listed = source.at("status").list("conditions")
    return any(one.text("type") in types and one.text("status") == "True" for one in listed)


def note_of(source: Source, complete: str, where: Source) -> str:
    """Returns `suspended`, `finished` or an empty string. complete: type of the condition for success. where: the
    mapping with the field suspend.
    """
    if conditions(source, complete, "Failed"):
        return "finished"
    return "suspended" if where.flag("suspend") else ""
