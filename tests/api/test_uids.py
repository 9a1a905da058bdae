# SPDX-License-Identifier: Apache-2.0
"""Made-up uids are version 5 UUIDs, as the standard library makes them."""

from uuid import UUID, uuid5

from koordpy.api.uids import made_up_uid

SPACE = UUID("7b0e4c52-2f4c-5d0b-9d2a-6c2f3d1f8e10")


def test_made_up_uids_are_version_5_uuids_of_their_parts() -> None:
    for i in range(1000):
        assert made_up_uid("Job", "default", f"train-{i}") == str(uuid5(SPACE, f"Job/default/train-{i}"))
