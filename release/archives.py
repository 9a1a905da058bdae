# SPDX-License-Identifier: Apache-2.0
"""Archives with the same bytes for the same content: sorted members, owner root, one time, modes 644 and 755."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Member:
    """A file, link or folder of an archive."""

    name: str
    path: Path
    """Where its content is."""


def members_below(folder: Path, prefix: str) -> list[Member]:
    """All files, links and folders below a folder, sorted by name; names begin with the prefix."""
    found = [Member(f"{prefix}{path.relative_to(folder).as_posix()}", path) for path in folder.rglob("*")]
    return sorted(found, key=lambda member: member.name)


def write_tar(out: IO[bytes], members: Iterable[Member], time: int) -> None:
    """Writes an uncompressed archive. An executable file has mode 755, any other 644."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            info, path = tarfile.TarInfo(member.name), member.path
            info.mtime, status = time, path.lstat()
            if stat.S_ISLNK(status.st_mode):
                info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, str(path.readlink())
                tar.addfile(info)
            elif stat.S_ISDIR(status.st_mode):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                info.size = status.st_size
                with path.open("rb") as content:
                    tar.addfile(info, content)


def write_tar_gz(file: Path, members: Iterable[Member], time: int, *, level: int = 9) -> Path:
    """Writes a compressed archive, without the name and time that gzip would add; the file."""
    out = io.BytesIO()
    write_tar(out, members, time)
    file.write_bytes(gzip.compress(out.getvalue(), level, mtime=0))
    return file
