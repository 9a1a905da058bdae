# SPDX-License-Identifier: Apache-2.0
"""The workflows of the forge run make targets that exist; nothing is scripted there that cannot be run at a desk."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.worked import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
INSTALLS = ("sudo apt-get ",)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_make_targets_only(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        if command.startswith(INSTALLS):
            continue
        found = re.fullmatch(
            r"make (?:-s )?([a-z0-9 -]+?)(?: [A-Z]+=\S+)*(?: \| tail -n 1 >> \"\$GITHUB_ENV\")?", command
        )
        assert found, command
        assert set(found.group(1).split()) <= TARGETS, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_states_its_permissions(path: Path) -> None:
    assert "permissions" in yaml.safe_load(path.read_text(encoding="utf-8"))
