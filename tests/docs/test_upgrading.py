# SPDX-License-Identifier: Apache-2.0
"""docs/upgrading.md has a section for each version, with its required actions."""

import re

from koordpy import __version__
from tests.docs.worked import ROOT

PAGE = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\d+\.\d+\.\d+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
RELEASED = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
SUBJECTS = ["required actions", "CRDs", "defaults", "deprecated, removed", "rollback"]


def test_this_version_and_every_released_one_have_a_section() -> None:
    assert {__version__, *RELEASED} == set(SECTIONS)


def test_the_newest_version_is_first() -> None:
    numbers = [tuple(map(int, version.split("."))) for version in SECTIONS]
    assert numbers == sorted(numbers, reverse=True)


def test_each_section_says_the_same_subjects() -> None:
    for version, text in SECTIONS.items():
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.M)
        assert [subject for subject, _ in rows] == ["subject", *SUBJECTS], version
        assert all(change.strip() for _, change in rows), version
