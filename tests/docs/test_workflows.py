# SPDX-License-Identifier: Apache-2.0
"""The workflows of the forge run make targets that exist, with pinned actions and no more rights than they need."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api.kubernetes_versions import NEWEST, OLDEST
from koordpy.cli import python_version
from tests.docs.worked import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
INSTALLS = ("sudo apt-get ", "sudo sysctl ")
COMMAND = re.compile(
    r"make (?:-s )?([a-z0-9 -]+?)(?: [A-Z]+=(?:\"[^\"]*\"|[^\s\"]+))*(?: \| tail -n 1 >> \"\$GITHUB_(?:ENV|OUTPUT)\")?"
)
"""Targets of make; the last line of the output may be an output of the step."""
PINNED = re.compile(r"(?P<action>[\w.-]+/[\w./-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+")
WRITERS = {("release", "publish"), ("release", "docs")}
"""Jobs with more than the right to read the repository."""


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    """The steps of all jobs; a job that calls another workflow has none."""
    return [step for job in read(path)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_make_targets_only(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    for command in commands:
        if command.startswith(INSTALLS):
            continue
        found = COMMAND.fullmatch(command)
        assert found, command
        assert set(found.group(1).split()) <= TARGETS, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_failed_command_in_front_of_a_pipe_fails_the_step(path: Path) -> None:
    """The forge runs this shell with pipefail, and its default shell without."""
    assert read(path)["defaults"]["run"] == {"shell": "bash"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_commit_with_its_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used
    assert [one for one in used if not one.startswith("./") and not PINNED.fullmatch(one)] == []
    assert all((ROOT / one).is_file() for one in used if one.startswith("./"))


def test_an_action_has_one_pin_in_all_workflows() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for found in PINNED.finditer(path.read_text(encoding="utf-8")):
            pins.setdefault(found["action"], set()).add(found[0])
    assert len(pins) >= 8
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_only_the_release_may_write(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    writers = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
    assert {(path.stem, name) for name in writers} == {one for one in WRITERS if one[0] == path.stem}
    assert all("environment" in workflow["jobs"][name] for name in writers)
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_no_command_contains_an_expression() -> None:
    """The forge inserts expressions as text, so that a name of a branch could be a command; variables are safe."""
    commands = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    assert [command for command in commands if "${{" in command] == []


def test_the_end_to_end_tests_run_on_every_supported_python_and_kubernetes() -> None:
    matrix = read(FOLDER / "test.yml")["jobs"]["controlplane"]["strategy"]["matrix"]
    pythons = [f"3.{minor}" for minor in range(python_version.OLDEST, python_version.NEWEST + 1)]
    assert matrix["python"] == read(FOLDER / "test.yml")["jobs"]["unit"]["strategy"]["matrix"]["python"] == pythons
    assert matrix["kubernetes"] == [f"1.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    assert all((ROOT / "controlplane/kubernetes" / version / "go.mod").is_file() for version in matrix["kubernetes"])


def test_a_release_is_tested_before_it_is_published() -> None:
    jobs = read(FOLDER / "release.yml")["jobs"]
    assert jobs["test"] == {"needs": "check", "uses": "./.github/workflows/test.yml"}
    assert (jobs["publish"]["needs"], jobs["docs"]["needs"]) == ("test", "publish")
    commands = [step["run"] for step in jobs["publish"]["steps"] if "run" in step]
    made = [command for command in commands if not command.startswith(INSTALLS)]
    order = [COMMAND.fullmatch(command).group(1) for command in made]  # type: ignore[union-attr]
    assert order == ["dist", "dist-check", "publish-image", "publish-chart", "publish-files"]
