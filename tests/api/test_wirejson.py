# SPDX-License-Identifier: Apache-2.0
"""What an API server may print is read: null wherever Go prints it, fields and words of later versions, large numbers.

nulls.txt lists the fields that Go prints as null when nothing is in them, of every kind of Kubernetes that is watched:
a walk over the types of k8s.io/api 0.36.3 and 0.37.0 by reflection, which takes each slice, map, pointer and interface,
and each type whose zero is written as null, that has neither omitempty nor omitzero; also the elements of lists and
maps of these (`[]`, `{}`). Left out: managedFields and templates of pods.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect as types

from koordpy.api.objects import Node, Pod, Wire
from koordpy.decoding.wire_json import Undecodable, WireReader, read_plain
from koordpy.offline.read_kinds import _KINDS, Kind
from tests.api.test_every_field import Step, fields, holding

NULLS = [
    (kind, where)
    for line in (Path(__file__).parent / "nulls.txt").read_text(encoding="utf-8").splitlines()
    for kind, where in [line.split()]
]
KINDS = {kind.name: kind for kind in _KINDS.values()}.values()
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def wire_of(kind: str) -> type[Wire]:
    """The type that reads a kind of nulls.txt, `Kind` or `Kind.group/version`."""
    name, _, version = kind.partition(".")
    return _KINDS[next(key for key in _KINDS if key[1] == name and (key[0] in version or not version))].type


def steps(where: str) -> tuple[Step, ...]:
    """The way to a field of nulls.txt."""
    out: list[Step] = []
    for part in where.split("."):
        name = part.rstrip("[]{}")
        out += [name, *(0 if mark == "[" else "example.com/key" for mark in part[len(name) :: 2])]
    return tuple(out)


def without(way: tuple[Step, ...]) -> Any:
    """The smallest value around a field that is absent."""
    own = [i for i, step in enumerate(way) if isinstance(step, str)][-1]
    return holding(way[:own], {})


def pruned(obj: Any) -> Any:
    """What an object says, without nulls: where no type is known all is kept as it is printed."""
    if isinstance(obj, dict):
        return {key: value for key, old in obj.items() if (value := pruned(old)) not in (None, {})}
    return list(map(pruned, obj)) if isinstance(obj, list) else obj


@pytest.mark.parametrize(("kind", "where"), NULLS, ids=lambda value: value)
def test_null_where_an_api_server_prints_it_is_an_absent_field(kind: str, where: str) -> None:
    way, reader = steps(where), WireReader(wire_of(kind))
    read, expected = (
        msgspec.to_builtins(reader.read(json.dumps(raw).encode())) for raw in (holding(way, None), without(way))
    )
    assert pruned(read) == pruned(expected)


def test_the_list_has_what_real_clusters_were_seen_to_print() -> None:
    seen = {
        ("Node", "status.images[].names"),
        ("CSINode", "spec.drivers"),
        ("CSINode", "spec.drivers[].topologyKeys"),
        ("ResourceClaim", "spec.devices.requests"),
        ("Pod", "spec.containers"),
    }
    assert seen <= set(NULLS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_null_in_any_field_of_any_kind_is_an_absent_field(kind: Kind) -> None:
    reader = WireReader(kind.type)
    tried = 0
    for way, _ in fields(types.type_info(kind.type)):
        if not way or isinstance(way[-1], int):
            continue
        of_texts = way[-1] == "example.com/key" and way[-2] in (
            "labels",
            "annotations",
            "data",
            "nodeSelector",
            "parameters",
        )
        expected = holding(way, "") if of_texts or _selects(way) else holding(way[:-1], {})
        assert reader.read(json.dumps(holding(way, None)).encode()) == msgspec.convert(expected, kind.type), way
        assert read_plain(holding(way, None), kind.type) == msgspec.convert(expected, kind.type), way
        tried += 1
    assert tried >= 9


def _selects(way: tuple[Step, ...]) -> bool:
    """Whether it is a value of a selector, which is text: Go reads null as the empty one."""
    return way[-1] == "example.com/key" and way[-2] in ("matchLabels", "selector")


def leaves(info: types.Type, at: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], types.Type]]:
    """(way to a field, its type) of all texts and whole numbers, and of all objects."""
    if isinstance(info, types.Metadata):
        return
    if isinstance(info, types.UnionType):
        for part in info.types:
            yield from leaves(part, at)
    elif isinstance(info, types.StructType):
        yield at, info
        for field in info.fields:
            yield from leaves(field.type, (*at, field.encode_name))
    elif isinstance(info, types.ListType | types.VarTupleType):
        yield from leaves(info.item_type, (*at, 0))
    elif isinstance(info, types.DictType):
        yield from leaves(info.value_type, (*at, "example.com/key"))
    else:
        yield at, info


NEWS: dict[type[types.Type], tuple[Any, ...]] = {
    types.StrType: ("NewInALaterVersion", ""),
    types.IntType: (LARGEST, SMALLEST),
    types.StructType: ({"newInALaterVersion": {"a": [1, None]}},),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_fields_and_words_of_later_versions_and_the_largest_numbers_are_read(kind: Kind) -> None:
    reader = WireReader(kind.type)
    tried = 0
    for way, info in leaves(types.type_info(kind.type)):
        for value in NEWS.get(type(info), ()):
            raw = holding(way, value)
            assert isinstance(reader.read(json.dumps(raw).encode()), kind.type), way
            assert isinstance(reader.read(json.dumps({**raw, "kind": None}).encode()), kind.type), way
            # the slow way, which a null leads to, takes the same
            if way[:2] != ("metadata", "ownerReferences"):
                slow = {**raw, "metadata": {**raw.get("metadata", {}), "ownerReferences": None}}
                assert reader.read(json.dumps(slow).encode()) == reader.read(json.dumps(raw).encode()), way
            tried += 1
    assert tried >= 10


def test_what_cannot_be_read_is_named_and_the_rest_is_at_hand() -> None:
    raw = {"metadata": {"name": "n1"}, "spec": {"unschedulable": "yes"}, "status": {"images": [{"names": None}]}}
    with pytest.raises(
        Undecodable, match=r"^spec\.unschedulable: must be true or false, not the string 'yes'$"
    ) as caught:
        WireReader(Node).read(json.dumps(raw).encode())
    rest: Any = caught.value.rest
    assert rest.metadata.name == "n1" and len(rest.status.images) == 1
    for broken in (b"{", b"[]", b"null", b'{"metadata": {"name": "\xff"}}'):
        with pytest.raises(Undecodable):
            WireReader(Pod).read(broken)


def test_parameters_of_drivers_keep_their_nulls() -> None:
    claim = wire_of("ResourceClaim")
    config = [{"opaque": {"driver": "d", "parameters": {"a": None, "b": [None]}}}]
    raw = {"spec": {"devices": {"requests": None, "config": config}}}
    read = WireReader(claim).read(json.dumps(raw).encode())
    assert msgspec.to_builtins(read)["spec"]["devices"]["config"] == config
