"""Queues in a file, for `koordpy fairshare`: read strictly, every fault named.

Source: simulate.md 6; quota-fairness.md 3 for what a queue's fields mean when absent.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from koordpy.api import keys
from koordpy.api.documents import read_documents
from koordpy.api.faults import Fault, key_path, kind_name, literal
from koordpy.api.natural import natural_key
from koordpy.api.quantity import parse_exact
from koordpy.api.scalars import Number
from koordpy.offline.manifests import read_file
from koordpy.planning.quota.shares import Claim, Rational, exact_and_whole_shares, kai_shares

GPU = keys.GPU_RESOURCES[0]
"""What a number in place of a resource map means."""
MODES = ("exact", "kai", "gpu-count")
DEFAULT_PRIORITY = 100
_FIELDS = ("name", "parent", "quota", "limit", "weight", "priority", "request", "usage")
_MILLI = Fraction(1, 1000)

Numbers = Mapping[str, Rational]


@dataclass(frozen=True, slots=True)
class FileQueue:
    """One queue as the file has it, in GPUs, cores and bytes; -1 stays -1."""

    name: str
    parent: str
    quota: Numbers
    limit: Numbers
    weight: Numbers
    priority: int
    request: Numbers
    usage: Numbers


@dataclass(frozen=True, slots=True)
class QueueFile:
    """What one file asks for."""

    total: Numbers
    mode: str
    k: Rational
    queues: tuple[FileQueue, ...]

    def shares(self) -> dict[str, dict[str, Rational]]:
        """Queue, in the file's order -> resource -> share in GPUs, cores, bytes."""
        out: dict[str, dict[str, Rational]] = {queue.name: {} for queue in self.queues}
        for resource in self._resources():
            for queue, share in zip(self.queues, self._of(resource), strict=True):
                out[queue.name][resource] = share
        return out

    def _resources(self) -> list[str]:
        named = {name for q in self.queues for part in (q.quota, q.limit, q.request) for name in part}
        every = sorted({*self.total, *named}, key=natural_key)
        return [name for name in every if name in keys.ACCELERATORS] if self.mode == "gpu-count" else every

    def _of(self, resource: str) -> list[Rational]:
        total = self.total.get(resource, 0)
        position = {queue.name: i for i, queue in enumerate(self.queues)}
        parents = {queue.parent for queue in self.queues}
        claims = [self._claim(queue, resource, position, inner=queue.name in parents) for queue in self.queues]
        unit = self._unit(resource, claims, total)
        if self.mode == "kai":
            return kai_shares(total, claims, k=self.k, unit=1 if resource in keys.ACCELERATORS else unit)
        _, shares = exact_and_whole_shares(total, claims, k=self.k, unit=unit)
        if self.mode == "gpu-count" and parents != {""}:
            for i in reversed(self._downwards(position)):
                parent = self.queues[i].parent
                if parent:  # inner queues, which claim nothing, are the sum of what is below them
                    shares[position[parent]] += shares[i]
        return shares

    def _claim(self, queue: FileQueue, resource: str, position: Mapping[str, int], *, inner: bool) -> Claim:
        # what an inner queue asks is the sum below it; a value given there counts nowhere, not for the unit either
        request = 0 if inner else queue.request.get(resource, 0)
        if self.mode == "gpu-count":
            # users know no quota, limit, tree or priority; of equals the older one is first, then the name
            usage = queue.usage.get(resource, 0) if self.k else 0
            return Claim(request=request, weight=queue.weight.get(resource, 1), usage=usage)
        quota, limit = queue.quota.get(resource, 0), queue.limit.get(resource, -1)
        return Claim(
            request=request,
            quota=None if quota == -1 else quota,
            limit=None if limit == -1 else limit,
            weight=queue.weight.get(resource, 1),
            priority=queue.priority,
            usage=queue.usage.get(resource, 0),
            parent=position[queue.parent] if queue.parent else -1,
        )

    def _downwards(self, position: Mapping[str, int]) -> list[int]:
        children: dict[str, list[int]] = {}
        for i, queue in enumerate(self.queues):
            children.setdefault(queue.parent, []).append(i)
        out = list(children.get("", ()))
        for i in out:
            out += children.get(self.queues[i].name, ())
        return out

    def _unit(self, resource: str, claims: list[Claim], total: Rational) -> Rational:
        """One byte, one milli-core; of devices one where everything that is asked of them is whole, else 1/1000."""
        if resource == "cpu":
            return _MILLI
        if resource not in keys.ACCELERATORS:
            return 1
        said = [total, *(x for c in claims for x in (c.quota, c.limit, c.request) if x is not None)]
        return 1 if all(x.denominator == 1 for x in said) else _MILLI


def load_queues(path: str) -> tuple[QueueFile | None, list[str]]:
    """(queues, no faults) or (None, one line a fault)."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else read_file(path)
    except OSError as fault:
        return None, [f"{path}: cannot be read: {fault.strerror or fault}"]
    except ValueError as fault:
        return None, [f"{path!r}: cannot be read: {fault}"]
    documents = list(read_documents(data, as_json=path.endswith(".json")))
    broken = [f"{path}: document {d.position}: {d.fault}" for d in documents if d.fault]
    if broken or len(documents) != 1:
        return None, broken or [f"{path}: {len(documents)} documents in place of one"]
    reading = _QueueReading()
    found = reading.file(documents[0].value)
    lines = [" ".join(f"{path}: document 1: {fault}".splitlines())[:2000] for fault in reading.faults]
    return (None, lines) if lines else (found, [])


@dataclass(slots=True)
class _QueueReading:
    faults: list[Fault] = field(default_factory=list)

    def file(self, raw: Any) -> QueueFile:
        if not isinstance(raw, dict):
            self._fault("", f"{kind_name(raw)} in place of a mapping")
            return QueueFile({}, "exact", 0, ())
        self._known("", raw, ("total", "mode", "k", "queues"))
        if raw.get("total") is None:
            self._fault("total", "is missing")
        total = self._amounts("total", raw.get("total"))
        mode = raw.get("mode")
        if mode is None:
            mode = "exact"
        elif mode not in MODES:
            self._fault("mode", f"{literal(mode)} is none of {', '.join(MODES)}")
        k = self._amount("k", 0 if raw.get("k") is None else raw["k"])
        queues = tuple(self._queues(raw.get("queues")))
        if not self.faults:
            self._tree(queues)
        return QueueFile(total, str(mode), k, queues)

    def _fault(self, path: str, text: str) -> None:
        self.faults.append(Fault(path, text))

    def _known(self, path: str, raw: Mapping[Any, Any], names: tuple[str, ...]) -> None:
        for name in raw:
            if name not in names:
                self._fault(key_path(path, str(name)), f"unknown field (there are {', '.join(names)})")

    def _queues(self, raw: Any) -> Iterator[FileQueue]:
        if not isinstance(raw, list):
            self._fault("queues", "is missing" if raw is None else f"{kind_name(raw)} in place of a list")
            return
        seen: dict[str, int] = {}
        for i, entry in enumerate(raw):
            path = f"queues[{i}]"
            if not isinstance(entry, dict):
                self._fault(path, f"{kind_name(entry)} in place of a mapping")
                continue
            self._known(path, entry, _FIELDS)
            name, parent = self._text(f"{path}.name", entry.get("name")), ""
            if not name:
                self._fault(f"{path}.name", "is missing")
            elif name in seen:
                self._fault(f"{path}.name", f"queue {name} stands in queues[{seen[name]}] already")
            seen.setdefault(name, i)
            if entry.get("parent") is not None:
                parent = self._text(f"{path}.parent", entry["parent"])
            yield FileQueue(
                name=name,
                parent=parent,
                quota=self._amounts(f"{path}.quota", entry.get("quota"), minus_one=True),
                limit=self._amounts(f"{path}.limit", entry.get("limit"), minus_one=True),
                weight=self._amounts(f"{path}.weight", entry.get("weight")),
                priority=self._priority(f"{path}.priority", entry.get("priority")),
                request=self._amounts(f"{path}.request", entry.get("request")),
                usage=self._amounts(f"{path}.usage", entry.get("usage")),
            )

    def _text(self, path: str, raw: Any) -> str:
        if raw is None or isinstance(raw, str):
            return raw or ""
        self._fault(path, f"{kind_name(raw)} in place of text")
        return "?"

    def _priority(self, path: str, raw: Any) -> int:
        if raw is None:
            return DEFAULT_PRIORITY
        value = self._amount(path, raw)
        if value.denominator != 1:
            self._fault(path, f"{raw!s} is no whole number")
        return int(value)

    def _amounts(self, path: str, raw: Any, *, minus_one: bool = False) -> dict[str, Rational]:
        """Resource -> amount; a number stands for GPUs."""
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            return {GPU: self._amount(path, raw, minus_one=minus_one)}
        return {
            str(name): self._amount(key_path(path, str(name)), value, minus_one=minus_one)
            for name, value in raw.items()
            if value is not None
        }

    def _amount(self, path: str, raw: Any, *, minus_one: bool = False) -> Rational:
        if isinstance(raw, bool) or not isinstance(raw, (str, int, float, Number)):
            self._fault(path, f"{kind_name(raw)} in place of a number")
            return 0
        try:
            value = parse_exact(str(raw))
        except ValueError as fault:
            self._fault(path, str(fault))
            return 0
        if value < 0 and not (minus_one and value == -1):
            self._fault(path, f"{raw!s} is negative" + (" (only -1 has a meaning)" if minus_one else ""))
            return 0
        return int(value) if value.denominator == 1 else value

    def _tree(self, queues: tuple[FileQueue, ...]) -> None:
        """Unknown parents and cycles."""
        parents = {queue.name: queue.parent for queue in queues}
        for i, queue in enumerate(queues):
            if queue.parent and queue.parent not in parents:
                self._fault(f"queues[{i}].parent", f"queue {queue.name}: no queue {queue.parent}")
        clear: set[str] = {""}
        for i, queue in enumerate(queues):
            way: dict[str, None] = {}
            at = queue.name
            while at not in clear and at not in way and at in parents:
                way[at] = None
                at = parents[at]
            if at in way:
                circle = [*list(way)[list(way).index(at) :], at]
                self._fault(f"queues[{i}].parent", f"parents form a cycle: {' -> '.join(circle)}")
            clear.update(way)
