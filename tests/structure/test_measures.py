# SPDX-License-Identifier: Apache-2.0
"""Figures of the package's structure that must stay as they are (measures.py)."""

import pytest

from tests.structure.measures import equal_names, large_folders, long_modules

MOVED = True
"""Whether the rooms are in their final folders; the tests below hold from then on."""
pytestmark = pytest.mark.skipif(not MOVED, reason="the rooms are not moved yet")


def test_a_module_name_exists_once() -> None:
    assert equal_names() == {}


def test_no_module_is_longer_than_it_can_be_read() -> None:
    assert long_modules() == {}


def test_no_folder_holds_more_modules_than_can_be_listed() -> None:
    assert large_folders() == {}
