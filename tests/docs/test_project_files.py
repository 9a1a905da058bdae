# SPDX-License-Identifier: Apache-2.0
"""The files of the project for contributors: owners of code, templates and policies name what exists."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.worked import ROOT

TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FORMS = [path for path in TEMPLATES if path.name != "config.yml"]
SOURCES = ("koordpy", "charts", "controlplane", "crds", "docs", "image", "release")
"""Folders of what a release contains, and of what builds it."""
FIELDS = {"input", "textarea", "dropdown", "checkboxes", "markdown"}
POLICIES = {
    "SUPPORT.md": ["Versions"],
    "GOVERNANCE.md": ["Roles", "Decisions"],
    "SECURITY.md": ["Report a vulnerability"],
    "RELEASING.md": ["Owner's settings", "Steps"],
    "CONTRIBUTING.md": ["Commits and changelog", "Tests"],
    "docs/compatibility.md": ["Versions", "Stable interfaces", "Deprecation", "Upgrades"],
}
"""Page -> sections that other pages and contributors rely on."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_owners_have_folders_that_exist() -> None:
    lines = [line.split() for line in read(".github/CODEOWNERS").splitlines() if line and not line.startswith("#")]
    owned = {path: owners for path, *owners in lines}
    assert owned["*"] and all(owner.startswith("@koordpy/") for owners in owned.values() for owner in owners)
    folders = [path for path in owned if path != "*"]
    assert [path for path in folders if not (ROOT / path.strip("/")).is_dir()] == []
    assert {folder.strip("/").partition("/")[0] for folder in folders} == set(SOURCES)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_of_issues_has_what_the_forge_requires(path: Path) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{path.name}"))
    assert form["name"] and form["description"] and form["labels"]
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names))
    assert all(field["type"] in FIELDS and field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_blank_issues_are_off_and_vulnerabilities_go_elsewhere() -> None:
    links = yaml.safe_load(read(".github/ISSUE_TEMPLATE/config.yml"))
    assert links["blank_issues_enabled"] is False and len(FORMS) == 2
    assert any(link["url"].endswith("/security/advisories/new") for link in links["contact_links"])


def test_the_list_for_pull_requests_names_files_and_targets_that_exist() -> None:
    text = read(".github/PULL_REQUEST_TEMPLATE.md")
    targets = set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.M))
    (named,) = re.findall(r"`make ([a-z -]+)`", text)
    assert set(named.split()) <= targets
    files = re.findall(r"\b(?:docs/[\w/.]+|[A-Z]+\.md)", text)
    assert {"CHANGELOG.md", "docs/upgrading.md", "docs/rules"} <= set(files)
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert "`git commit --signoff`" in text


@pytest.mark.parametrize("page", POLICIES)
def test_a_policy_has_its_sections(page: str) -> None:
    assert set(POLICIES[page]) <= set(re.findall(r"^## (.*)$", read(page), re.M))


def test_a_deprecation_lasts_two_minor_releases() -> None:
    text = " ".join(read("docs/compatibility.md").split())
    assert "removed at the earliest two minor releases after the release that deprecates it" in text
    subjects = ("custom resources", "labels and annotations", "configuration", "commands", "metrics")
    table = read("docs/compatibility.md").partition("## Stable interfaces")[2].partition("\n## ")[0]
    assert [subject for subject in subjects if f"[{subject}](" not in table] == []
