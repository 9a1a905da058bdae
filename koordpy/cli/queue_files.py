# SPDX-License-Identifier: Apache-2.0
"""Reads the queue file of `koordpy fairshare` strictly: every fault is reported with its field.

Rules: simulate.md 6; quota-fairness.md 3 for the defaults of absent fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from graphlib import TopologicalSorter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from koordpy.api import keys
from koordpy.api.field_faults import Fault, FieldWalk, InputFaultsError, key_path, kind_name, one_line
from koordpy.api.natural_order import natural_key
from koordpy.api.quantity import parse_exact
from koordpy.api.scalars import Number
from koordpy.decoding.manifest_documents import read_documents
from koordpy.decoding.strict_decoding import decode
from koordpy.fairness.fair_shares import Claim, Rational, exact_and_whole_shares, kai_shares
from koordpy.offline.manifests import read_file

GPU = keys.GPU_RESOURCES[0]
"""Resource that a plain number means in a field that maps resources to amounts."""
_MILLI = Fraction(1, 1000)


def _amount(raw: Any, path: str, walk: FieldWalk, *, minus_one: bool = False) -> Rational:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float, Number)):
        walk.fault(path, f"must be a number, not {kind_name(raw)}")
        return 0
    try:
        value = parse_exact(str(raw))
    except ValueError as fault:
        walk.fault(path, str(fault))
        return 0
    if value < 0 and not (minus_one and value == -1):
        walk.fault(path, f"{raw!s} is negative" + (" (only -1 has a meaning)" if minus_one else ""))
    return int(value) if value.denominator == 1 else value


def _amounts(raw: Any, path: str, walk: FieldWalk, *, minus_one: bool = False) -> dict[str, Rational]:
    """Returns resource -> amount; a plain number is an amount of GPUs."""
    if not isinstance(raw, dict):
        return {GPU: _amount(raw, path, walk, minus_one=minus_one)}
    return {
        str(name): _amount(value, key_path(path, str(name)), walk, minus_one=minus_one)
        for name, value in raw.items()
        if value is not None
    }


def _limits(raw: Any, path: str, walk: FieldWalk) -> dict[str, Rational]:
    return _amounts(raw, path, walk, minus_one=True)


Amount = Annotated[Any, Meta(extra={"reader": _amount})]
Amounts = Annotated[dict[str, Any], Meta(extra={"reader": _amounts})]
"""Resource -> amount, in devices, cores or bytes."""
Limits = Annotated[dict[str, Any], Meta(extra={"reader": _limits})]
"""Resource -> limit, in devices, cores or bytes; -1 means unlimited."""
QueueName = Annotated[str, Meta(pattern="(?s)^.+$", extra={"noun": "name of a queue"})]


class FileQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of the file."""

    name: QueueName
    parent: str = ""
    quota: Limits = {}
    limit: Limits = {}
    weight: Amounts = {}
    priority: int = 100
    request: Amounts = {}
    usage: Amounts = {}


class QueueFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a queue file."""

    total: Amounts
    mode: Literal["exact", "kai", "gpu-count"] = "exact"
    k: Amount = 0
    queues: list[FileQueue]

    def shares(self) -> dict[str, dict[str, Rational]]:
        """Returns queue -> resource -> share, in devices, cores and bytes; queues in the file's order."""
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
            parent_of = {queue.name: queue.parent for queue in self.queues if queue.parent}
            below = TopologicalSorter({name: (parent,) for name, parent in parent_of.items()})
            for name in reversed(list(below.static_order())):
                if name in parent_of:  # the share of an inner queue is the sum of its children's shares
                    shares[position[parent_of[name]]] += shares[position[name]]
        return shares

    def _claim(self, queue: FileQueue, resource: str, position: Mapping[str, int], *, inner: bool) -> Claim:
        # the request of an inner queue is the sum of its children's; a request in the file is ignored, also by `_unit`
        request = 0 if inner else queue.request.get(resource, 0)
        if self.mode == "gpu-count":
            # in mode gpu-count queues are users: without quota, limit, parent and priority
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

    def _unit(self, resource: str, claims: list[Claim], total: Rational) -> Rational:
        """Returns the smallest amount that is distributed: a milli-core, a byte, or a device.

        For devices it is 1/1000 if the total, a quota, a limit or a request is not a whole number.
        """
        if resource == "cpu":
            return _MILLI
        if resource not in keys.ACCELERATORS:
            return 1
        said = [total, *(x for c in claims for x in (c.quota, c.limit, c.request) if x is not None)]
        return 1 if all(x.denominator == 1 for x in said) else _MILLI


def load_queues(path: str) -> QueueFile:
    """Reads a queue file. Raises InputFaultsError with every fault."""
    try:
        data = read_file(path)
    except OSError as fault:
        raise InputFaultsError([f"{path}: cannot be read: {fault.strerror or fault}"]) from None
    except ValueError as fault:
        raise InputFaultsError([f"{path!r}: cannot be read: {fault}"]) from None
    documents = list(read_documents(data, as_json=path.endswith(".json")))
    broken = [f"{path}: document {d.position}: {d.fault}" for d in documents if d.fault]
    if broken or len(documents) != 1:
        raise InputFaultsError(broken or [f"{path}: must have one document, not {len(documents)}"])
    read = decode(documents[0].value, QueueFile, closed=True)
    faults = read.faults if read.value is None else list(_tree_faults(read.value.queues))
    if read.value is None or faults:
        raise InputFaultsError([one_line(f"{path}: document 1: {fault}")[:2000] for fault in faults])
    return read.value


def _tree_faults(queues: Sequence[FileQueue]) -> Iterator[Fault]:
    """Yields a fault for each duplicate name, unknown parent and cycle."""
    parents = {queue.name: queue.parent for queue in queues}
    places: dict[str, int] = {}
    for i, queue in enumerate(queues):
        if (first := places.setdefault(queue.name, i)) != i:
            yield Fault(f"queues[{i}].name", f"duplicate queue {queue.name}, already defined in queues[{first}]")
        if queue.parent and queue.parent not in parents:
            yield Fault(f"queues[{i}].parent", f"queue {queue.name}: its parent {queue.parent} is not defined")
    clear: set[str] = {""}
    for i, queue in enumerate(queues):
        way: dict[str, None] = {}
        at = queue.name
        while at not in clear and at not in way and at in parents:
            way[at] = None
            at = parents[at]
        if at in way:
            circle = [*list(way)[list(way).index(at) :], at]
            yield Fault(f"queues[{i}].parent", f"parents form a cycle: {' -> '.join(circle)}")
        clear.update(way)
