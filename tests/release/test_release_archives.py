# SPDX-License-Identifier: Apache-2.0
"""Archives depend on names and content only."""

import os
import tarfile
from pathlib import Path

from release.archives import members_below, write_tar_gz


def make(folder: Path, names: list[str], mode: int, time: int) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        file.chmod(mode)
    (folder / "link").symlink_to("a")
    for path in folder.rglob("*"):
        os.utime(path, (time, time), follow_symlinks=False)
    return folder


def test_times_modes_and_the_order_of_files_do_not_matter(tmp_path: Path) -> None:
    one = make(tmp_path / "one", ["a", "b/c", "b/d"], 0o600, 1)
    two = make(tmp_path / "two", ["b/d", "a", "b/c"], 0o664, 2_000_000_000)
    archives = [write_tar_gz(tmp_path / f"{one.name}.tgz", members_below(one, "x/"), 7) for one in (one, two)]
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        found = [(member.name, member.mode, member.mtime, member.linkname) for member in tar]
    assert found == [
        ("x/a", 0o644, 7, ""), ("x/b", 0o755, 7, ""), ("x/b/c", 0o644, 7, ""), ("x/b/d", 0o644, 7, ""),
        ("x/link", 0o777, 7, "a"),
    ]  # fmt: skip


def test_a_program_stays_executable(tmp_path: Path) -> None:
    folder = make(tmp_path / "one", ["program"], 0o700, 1)
    with tarfile.open(write_tar_gz(tmp_path / "x.tgz", members_below(folder, ""), 7)) as tar:
        assert tar.getmember("program").mode == 0o755
