"""A workload's manifest as it is read: by fields, with every fault of them, and never trusted.

Sources: workloads.md 4 and 10.6.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.faults import Fault, key_path, kind_name, literal, shown
from koordpy.api.limits import WORKLOAD_PODS
from koordpy.api.objects import OwnerReference
from koordpy.api.spelling import hint

_PREFIX_LETTERS = 8
"""Letters of a name that may stand for a longer one that begins with it."""


class AskedFields:
    """What the readers of a manifest have asked for, so that names beside these can be told of."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[Mapping[str, Any], set[str]]] = {}
        """Path of a mapping -> (it, the names of its fields that are known)."""
        self._refused: list[Fault] = []

    def know(self, path: str, raw: Mapping[str, Any], *names: str) -> None:
        """Takes down that fields of a mapping are known."""
        self._names.setdefault(path, (raw, set()))[1].update(names)

    def refuse(self, fault: Fault) -> None:
        """Takes down a value that an API server would refuse."""
        if fault not in self._refused:
            self._refused.append(fault)

    def doubts(self) -> Iterator[Fault]:
        """Fields that look like misspelt known ones, but for those of the status, and values that are refused."""
        for path, (raw, names) in self._names.items():
            for key in raw if path.partition(".")[0] != "status" else ():
                if isinstance(key, str) and key not in names:
                    near = hint(key, names) or _begun(key, names)
                    if near:
                        yield Fault(key_path(path, key), f"unknown field, not read{near}")
        yield from self._refused


def _begun(key: str, names: set[str]) -> str:
    folded = key.casefold()
    found = next((one for one in sorted(names) if one.casefold().startswith(folded)), "")
    return f", did you mean {found}?" if found and len(key) >= _PREFIX_LETTERS else ""


@dataclass(slots=True)
class Source:
    """A part of a manifest, and where it stands in it."""

    raw: Mapping[str, Any]
    path: str = ""
    faults: list[Fault] = field(default_factory=list)
    """Of the whole manifest: all its parts share them."""
    asked: AskedFields | None = None
    """The same, where somebody wants to know."""

    def _get(self, name: str) -> Any:
        self.knows(name)
        return self.raw.get(name)

    def knows(self, *names: str) -> None:
        """Takes down that fields are known, whether they are read or not."""
        if self.asked is not None:
            self.asked.know(self.path, self.raw, *names)

    def where(self, name: str) -> str:
        """Path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def fault(self, name: str, text: str) -> None:
        """Takes down what is wrong with a field."""
        fault = Fault(self.where(name), text)
        if fault not in self.faults:
            self.faults.append(fault)

    def has(self, name: str) -> bool:
        """Whether a field is given."""
        return self._get(name) is not None

    def at(self, *names: str) -> "Source":
        """The mapping at a path; an empty one where there is none."""
        found = self
        for name in names:
            value = found._get(name)
            if value is not None and not isinstance(value, Mapping):
                found.fault(name, f"{kind_name(value)} in place of a mapping")
                value = None
            found = Source(value or {}, found.where(name), found.faults, found.asked)
        return found

    def list(self, name: str) -> "list[Source]":
        """The mappings of a list; an empty one where there is none."""
        value = self._get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault(name, f"{kind_name(value)} in place of a list")
            return []
        found = []
        for i, item in enumerate(value):
            if isinstance(item, Mapping):
                found.append(Source(item, self.where(f"{name}[{i}]"), self.faults, self.asked))
            else:
                self.fault(f"{name}[{i}]", f"{kind_name(item)} in place of a mapping")
        return found

    def maybe(self, name: str) -> int | None:
        """A count; None where it is absent, or cannot be read."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.fault(name, f"{kind_name(value)} in place of a whole number")
            return None
        if value < 0:
            self.fault(name, f"{value} is negative")
            return None
        return value

    def count(self, name: str, default: int = 0) -> int:
        """A count, or its default."""
        found = self.maybe(name)
        return default if found is None else found

    def text(self, name: str, default: str = "") -> str:
        """A text, or its default."""
        value = self._get(name)
        if value is not None and not isinstance(value, str):
            self.fault(name, f"{literal(value)} is no text")
            return default
        return value or default

    def word(self, name: str, *words: str) -> str:
        """One of several words, of which the first is the default; any other one counts as itself."""
        found = self.text(name, words[0])
        if found not in words and self.asked is not None:
            text = f"{literal(found)} is none of {', '.join(words)}: an API server refuses it"
            self.asked.refuse(Fault(self.where(name), text))
        return found

    def flag(self, name: str) -> bool:
        """Whether a field says true."""
        return self._get(name) is True

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; an empty one where there is none."""
        value = self._get(name)
        if value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            return tuple(value or ())
        self.fault(name, f"{kind_name(value)} in place of a list of texts")
        return ()

    def strings(self, name: str, *, told: bool = True) -> dict[str, str]:
        """Labels, annotations and the like: texts by key. told: whether it takes down what is none."""
        found = self.at(name).raw
        for key, value in found.items() if told else ():
            if not isinstance(value, str) and value is not None:
                self.fault(key_path(name, str(key)), f"{shown(value)} in place of text")
        return {key: value for key, value in found.items() if isinstance(value, str)}


@dataclass(frozen=True, slots=True)
class Head:
    """Who a workload is."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    """As the manifest says; made up where it says none."""
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: OwnerReference | None = None
    has_uid: bool = True

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def title(self) -> str:
        """`Job train`."""
        return f"{self.kind} {self.name}"


def _owner(source: Source) -> OwnerReference:
    api_version, kind, name, uid = (source.text(name) for name in ("apiVersion", "kind", "name", "uid"))
    return OwnerReference(api_version=api_version, kind=kind, name=name, uid=uid, controller=True)


def head_of(source: Source, *, uid: str = "", created: str = "") -> Head:
    """uid, created: what holds where the manifest says none."""
    meta = source.at("metadata")
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
        annotations=meta.strings("annotations"),
        owner=_owner(owner) if owner is not None else None,
        has_uid=bool(said),
    )


def owned_object(head: Head, api_version: str, kind: str, meta: Source, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The object of its own name that another makes; meta: what its labels and annotations are taken from."""
    owner = {"apiVersion": head.api_version, "kind": head.kind, "name": head.name, "uid": head.uid, "controller": True}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": head.name,
            "namespace": head.namespace,
            "uid": f"{head.uid}/{head.name}",
            "labels": meta.strings("labels"),
            "annotations": meta.strings("annotations"),
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def can_make(spec: Source, name: str, number: int) -> bool:
    """Whether a workload makes no more pods than are made offline; a fault of the field where it does."""
    if number > WORKLOAD_PODS:
        spec.fault(name, f"makes {number} pods, {WORKLOAD_PODS} at most")
    return number <= WORKLOAD_PODS


def index_of(text: str) -> int | None:
    """A number that a label, an annotation or a name holds, of 18 digits at most; None where it is none."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdecimal() else None


def conditions(source: Source, *types: str) -> bool:
    """Whether the status has one of the conditions."""
    found = source.at("status").raw.get("conditions")
    entries = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    return any(one.get("status") == "True" and one.get("type") in types for one in entries)


def note_of(source: Source, complete: str, where: Source) -> str:
    """`suspended`, `finished` or nothing. complete: the condition of who has ended well; where: what says suspend."""
    if conditions(source, complete, "Failed"):
        return "finished"
    return "suspended" if where.flag("suspend") else ""
