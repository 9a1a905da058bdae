# SPDX-License-Identifier: Apache-2.0
"""No field of the Kubernetes API counts as a misspelt one of those that are read; slips of the pen do."""

import inspect
from collections.abc import Iterator
from typing import Any

import kubernetes_asyncio.client.models as models
import pytest
from msgspec import inspect as types

from koordpy.api.field_faults import MAX_DOUBTS
from koordpy.api.objects import Container, Node, Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.api.scalars import Number
from koordpy.api.spelling import meant
from koordpy.decoding.strict_decoding import decode
from koordpy.offline.read_kinds import _KINDS

OTHERS = {("DeviceAttribute", field) for field in ("strings", "ints", "bools", "versions")} | {
    ("TaintTarget", "devices")
}
"""Left out of the look for slips."""
ALIKE = 0.6
"""Share of a struct's fields that a model of the API has where both are of the same thing."""


def structs(info: Any, seen: set[type]) -> Iterator[types.StructType]:
    if isinstance(info, types.StructType):
        if info.cls not in seen:
            seen.add(info.cls)
            yield info
            for part in info.fields:
                yield from structs(part.type, seen)
    else:
        within = [getattr(info, name, None) for name in ("type", "item_type", "value_type")]
        for inner in (*within, *getattr(info, "types", ())):
            if inner is not None:
                yield from structs(inner, seen)


def test_no_field_of_the_api_counts_as_misspelt() -> None:
    seen: set[type] = set()
    ours = [info for kind in _KINDS.values() for info in structs(types.type_info(kind.type), seen)]
    theirs = [one for _, one in inspect.getmembers(models, inspect.isclass) if hasattr(one, "attribute_map")]
    compared, found = 0, set()
    for info in ours:
        names = tuple(part.encode_name for part in info.fields)
        for model in theirs:
            fields = set(model.attribute_map.values())
            if len(fields.intersection(names)) < max(1, ALIKE * len(names)):
                continue
            compared += 1
            found |= {(info.cls.__name__, field) for field in fields if meant(field, names)}
    assert compared > 100
    # a toleration has a `value`, and looks like an expression of a selector otherwise
    assert found - OTHERS == {("Requirement", "value")}


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (
            Pod,
            {
                "metadata": {"finalizers": [], "managedFields": [{}], "selfLink": ""},
                "spec": {"serviceAccount": "a", "containers": [{"name": "c"}]},
            },
        ),
        (Pod, {"spec": {"tolerations": [{"operator": "Exists", "effect": ""}], "containers": 5, "volumes": 5}}),
        (Node, {"spec": {"podCIDR": "", "podCIDRs": [], "taints": "none"}, "status": {"nodeInfo": {}, "phase": "x"}}),
        (Pod, None),
        (Pod, []),
    ],
)
def test_what_is_right_or_a_fault_is_no_doubt(kind: type, raw: Any) -> None:
    assert decode(raw, kind).doubts == []


def test_a_number_is_looked_at_by_its_value() -> None:
    (found,) = decode({"spec": {"minMember": Number("-0x1")}}, PodGroup).doubts
    assert str(found) == "spec.minMember: -0x1 is less than 0: the API server would reject it"


def test_the_doubts_of_one_object_have_an_end() -> None:
    assert len(decode({"ports": [{"hostport": 1}] * 100_000}, Container).doubts) == MAX_DOUBTS
