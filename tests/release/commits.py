# SPDX-License-Identifier: Apache-2.0
"""Commits to build from: the working tree's files as a commit, so that a test builds what it stands beside."""

import shutil
import subprocess
from pathlib import Path

from release.checkout import Checkout, export
from tests.docs.worked import ROOT

FILES = (
    "koordpy",
    "crds",
    "examples",
    "charts",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    ".gitignore",
)
TIME = 1_700_000_001


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    environment |= dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{TIME} +0000")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def repository(folder: Path) -> Path:
    """A repository in a new folder with the release's sources as its only commit."""
    folder.mkdir()
    for name in FILES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


def checkout(repository: Path, folder: Path) -> Checkout:
    folder.mkdir(parents=True)
    return export(repository, folder)
