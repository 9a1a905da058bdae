# SPDX-License-Identifier: Apache-2.0
"""`make dco` names each commit that its author has not signed off."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.structure.license_headers import ROOT

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("make")), reason="needs git and make")

IDENTITY = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
ANN = "Signed-off-by: Ann Lee <ann@example.com>"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "koordpy").mkdir()  # the Makefile lists its modules
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "start")
    git(tmp_path, "tag", "start")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, **IDENTITY})


def commit(folder: Path, message: str, email: str = "ann@example.com") -> None:
    """Adds an empty commit by that author."""
    names = ("-c", "user.name=Ann Lee", "-c", f"user.email={email}", "-c", "commit.gpgsign=false")
    git(folder, *names, "commit", "--quiet", "--allow-empty", "--message", message)


def checked(folder: Path, since: str = "start") -> subprocess.CompletedProcess[str]:
    """The outcome of `make dco` in a repository."""
    command = ["make", "--silent", "-f", str(ROOT / "Makefile"), "dco", f"SINCE={since}", "PYTHON=python3"]
    environment = {**os.environ, **IDENTITY}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("message", "email", "is_signed"),
    [
        (f"a\n\n{ANN}", "ann@example.com", True),
        (f"a\n\nwhy\n\nSigned-off-by: Bo <bo@example.com>\n{ANN}", "ann@example.com", True),
        (f"a\n\n{ANN}", "Ann@Example.com", True),
        ("a", "ann@example.com", False),
        (f"a\n\n{ANN}", "bo@example.com", False),
        (f"a\n\n{ANN}\n\nnot the last paragraph", "ann@example.com", False),
        ("<ann@example.com>\t<ann@example.com>\n\nSigned-off-by: Ann Lee", "ann@example.com", False),
    ],
)
def test_a_commit_needs_the_sign_off_of_its_author(repository: Path, message: str, email: str, is_signed: bool) -> None:
    commit(repository, f"good\n\n{ANN}")
    commit(repository, message, email)
    done = checked(repository)
    assert (done.returncode == 0) == is_signed, done.stderr
    if not is_signed:
        lines = done.stderr.splitlines()
        assert f"no Signed-off-by with <{email}>" in lines[0]
        assert "git rebase --signoff" in lines[1]


def test_a_merge_needs_no_sign_off_and_an_unknown_revision_fails(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "-b", "side", "start")
    commit(repository, f"one\n\n{ANN}")
    git(repository, "checkout", "--quiet", "-b", "other", "start")
    commit(repository, f"two\n\n{ANN}")
    git(repository, "-c", "user.name=Bo", "-c", "user.email=bo@example.com", "merge", "--quiet", "--no-ff", "side")
    assert checked(repository).returncode == 0
    failed = checked(repository, since="nothing")
    assert failed.returncode != 0
    assert "dco: there is no commit nothing: set SINCE" in failed.stderr
