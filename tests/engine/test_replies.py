# SPDX-License-Identifier: Apache-2.0
"""Replies to our own writes of claims, and the watch: whichever comes last, the newest is known."""

import pytest

from koordpy.api.claim_objects import ResourceClaim
from koordpy.api.objects import ObjectMeta
from koordpy.devices.family_registry import make_state
from koordpy.engine.binding.claim_calls import take_reply


def claim(version: str) -> ResourceClaim:
    return ResourceClaim(metadata=ObjectMeta(name="c", namespace="default", uid="u", resource_version=version))


@pytest.mark.parametrize(
    ("known", "reply", "after"),
    [("7", "9", "9"), ("9", "7", "9"), ("9", "10", "10"), ("7", "7", "7"), ("", "7", "")],
    ids=["the reply is newer", "the watch was first", "versions are numbers", "the same", "the claim is gone"],
)
def test_the_newest_counts_and_what_is_gone_stays_gone(known: str, reply: str, after: str) -> None:
    state = make_state()
    if known:
        state.upsert(claim(known))
    take_reply(state, claim(reply))
    found = state.get(ResourceClaim, "default/c")
    assert (found.metadata.resource_version if isinstance(found, ResourceClaim) else "") == after
