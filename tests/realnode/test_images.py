# SPDX-License-Identifier: Apache-2.0
"""The images of the nodes: complete OCI archives, the same whenever they are made, and busybox without libraries."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from pathlib import Path

from tests.realnode.images import BUSYBOX, PAUSE, _needs_an_interpreter, write_images


def test_every_blob_is_what_its_digest_says(tmp_path: Path) -> None:
    program = tmp_path / "busybox"
    program.write_bytes(b"program")
    for archive, name in zip(write_images(tmp_path, program), (PAUSE, BUSYBOX), strict=True):
        with tarfile.open(archive) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
        (manifest,) = json.loads(files["index.json"])["manifests"]
        assert manifest["annotations"]["io.containerd.image.name"] == name
        content = json.loads(files[path_of(manifest)])
        for blob in (manifest, content["config"], *content["layers"]):
            data = files[path_of(blob)]
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (
                blob["digest"].removeprefix("sha256:"),
                blob["size"],
            )
        first = archive.read_bytes()
        write_images(tmp_path, program)
        assert archive.read_bytes() == first


def path_of(blob: dict[str, str]) -> str:
    return "blobs/" + blob["digest"].replace(":", "/")


def test_a_program_with_libraries_is_told(tmp_path: Path) -> None:
    assert _needs_an_interpreter(Path(sys.executable))
    header = bytearray(64)
    header[32:40] = (64).to_bytes(8, "little")
    header[54:56] = (56).to_bytes(2, "little")
    (tmp_path / "static").write_bytes(bytes(header))
    assert not _needs_an_interpreter(tmp_path / "static")
