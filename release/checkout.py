# SPDX-License-Identifier: Apache-2.0
"""The source of a release: the files of one commit in a folder, with the commit's hash and time.

`git archive` gives the files, so that untracked files, local changes, the umask and file times do not matter.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

CHART = "charts/koordpy"


class ReleaseError(Exception):
    """A part cannot be built; the text says why and what would help."""


@dataclass(frozen=True)
class Checkout:
    """The files of a commit."""

    tree: Path
    """Folder with the files, and nothing else."""
    commit: str
    """Hash of the commit, 40 digits."""
    time: int
    """Time of the commit, in seconds since 1970. All archives have it as the time of their members."""

    @cached_property
    def version(self) -> str:
        """`__version__` of koordpy/__init__.py."""
        return version_of(self.tree)

    @cached_property
    def project(self) -> dict[str, Any]:
        """The table `project` of pyproject.toml."""
        project: dict[str, Any] = tomllib.loads(self.read("pyproject.toml"))["project"]
        return project

    @cached_property
    def repository(self) -> str:
        """Address of the source code: `project.urls.Source` of pyproject.toml."""
        return str(self.project["urls"]["Source"]).rstrip("/")

    @cached_property
    def image(self) -> str:
        """Name of the image with its tag, as the chart's default values give it."""
        image = yaml.safe_load(self.read(f"{CHART}/values.yaml"))["image"]
        registry = f"{image['registry'].rstrip('/')}/" if image["registry"] else ""
        return f"{registry}{image['repository']}:{self.version}"

    def read(self, name: str) -> str:
        """Text of a file of the tree."""
        return (self.tree / name).read_text(encoding="utf-8")

    def download(self, file: str) -> str:
        """Address from which users download a file of the release."""
        return f"{self.repository}/releases/download/v{self.version}/{file}"


def version_of(tree: Path) -> str:
    """The version of koordpy in a folder with its files."""
    found = re.search(r'^__version__ = "(.+)"$', (tree / "koordpy/__init__.py").read_text(encoding="utf-8"), re.M)
    if found is None:
        raise ReleaseError("koordpy/__init__.py has no __version__")
    return found[1]


def export(repository: Path, folder: Path, revision: str = "HEAD") -> Checkout:
    """Writes the files of a revision of a git repository into an empty folder."""
    commit, time = _git(repository, "show", "--no-patch", "--format=%H %ct", f"{revision}^{{commit}}").split()
    # without the tar format's own metadata, which has the umask of `tar.umask`
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=repository, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return Checkout(folder, commit, int(time))


def local_changes(repository: Path) -> list[str]:
    """Files that differ from the commit, or are not in it; a release has none of these changes."""
    return _git(repository, "status", "--porcelain").splitlines()


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout
