# SPDX-License-Identifier: Apache-2.0
"""A sample of the golden run: plans are those that were recorded, or the commit records anew and says why."""

import pytest

from tests.golden.__main__ import RECORDED, differences, hashes, read
from tests.golden.documents import hash_of, text_of
from tests.golden.families import FAMILIES, scenarios

GROUPS = ("examples", "gpus", "npus", "reserved", "claims", "filters")
"""Groups and families of which a sample takes a second or two."""


@pytest.mark.parametrize("group", GROUPS)
def test_plans_are_the_recorded_ones(group: str) -> None:
    now = hashes(quick=True, jobs=1, only=group)[group]
    assert not differences(now, read(RECORDED / f"{group}.json")), "see `make golden`"


def test_everything_that_is_planned_is_recorded() -> None:
    for name, family in FAMILIES.items():
        assert set(read(RECORDED / f"{name}.json")) == set(map(str, family.seeds(quick=False)))
    for group, found in scenarios().items():
        assert set(read(RECORDED / f"{group}.json")) == set(found)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"message": "no node has capacity"}, {"message": "every node is full"}, True),
        ({"message": "no node has capacity"}, {"message": ""}, False),
        ({"pods": ["a", "b"]}, {"pods": ["a", "c"]}, False),
        ({"domain": "dc-0/block-1"}, {"domain": "dc-0/block-2"}, False),
        ({"warnings": ["it is ignored here"]}, {"warnings": ["it is ignored here", "and it is ignored there"]}, False),
    ],
)
def test_a_hash_is_of_the_plan_and_not_of_its_wording(one: object, other: object, equal: bool) -> None:
    assert (hash_of(text_of(one)) == hash_of(text_of(other))) == equal
