# SPDX-License-Identifier: Apache-2.0
"""What is missing is told with the commands that get it, and gotten on demand; apt-get is one that only writes down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.realnode import needs
from tests.realnode.__main__ import get

PACKAGES = ["containerd", "runc"]
INSTALL = "install --yes --no-install-recommends containerd runc"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What apt-get was told; it fails once `fail` lies beside."""
    program = tmp_path / "apt-get"
    program.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/calls\ntest ! -e {tmp_path}/fail\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "calls"


def test_a_fresh_machine_gets_the_lists_before_the_packages(calls: Path) -> None:
    get(PACKAGES)
    assert calls.read_text().splitlines() == ["update", INSTALL]


def test_what_cannot_be_gotten_is_told_without_a_trace(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.with_name("fail").touch()
    with pytest.raises(SystemExit, match=r"^containerd, runc cannot be installed: .*apt-get.*update"):
        get(PACKAGES)
    monkeypatch.setenv("PATH", str(calls.parent / "nothing"))
    with pytest.raises(SystemExit, match=r"^containerd, runc cannot be installed: .*apt-get"):
        get(PACKAGES)


@pytest.mark.skipif(os.geteuid() != 0, reason="root is asked for before packages are")
def test_the_obstacle_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "lacking_packages", lambda: PACKAGES)
    assert needs.obstacle() == f"apt-get update && apt-get {INSTALL}    (or make realnode INSTALL=1)"


@pytest.mark.skipif(os.geteuid() != 0 or needs.lacking_packages() != [], reason="other obstacles are told first")
@pytest.mark.parametrize("folder", ["/var/tmp", "/run"])
def test_folders_that_nodes_have_of_their_own_cannot_hold_them(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", folder)
    assert f"TMPDIR={folder} cannot hold nodes" in str(needs.obstacle())
