# SPDX-License-Identifier: Apache-2.0
"""Images made of this machine's busybox, as OCI archives: no registry is asked.

Format: github.com/opencontainers/image-spec, image-layout.md, config.md, manifest.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE, BUSYBOX = "registry.local/pause:1", "registry.local/busybox:1"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"
_COMMANDS = (
    "cat cp date dd echo env false grep hostname id kill ls mkdir mv nc ps rm sh sleep tail test touch true wget"
)
_PT_INTERP = 3


def static_busybox() -> Path | None:
    """A busybox that needs no library, None where there is none."""
    found = shutil.which("busybox")
    return Path(found) if found and not _needs_an_interpreter(Path(found)) else None


def _needs_an_interpreter(program: Path) -> bool:
    """Whether an ELF file of 64 bits has a program header that names a dynamic linker."""
    data = program.read_bytes()
    start, size, count = (int.from_bytes(data[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58)))
    kinds = (int.from_bytes(data[start + n * size :][:4], "little") for n in range(count))
    return _PT_INTERP in kinds


def write_images(folder: Path, busybox: Path) -> list[Path]:
    """The archives of the pods' sandbox and of busybox."""
    files = {"bin/busybox": busybox.read_bytes()}
    links = {f"bin/{name}": "busybox" for name in _COMMANDS.split()}
    layer = _layer(files, links)
    return [
        _write(folder / "pause.tar", PAUSE, layer, entrypoint=["/bin/sleep", "2147483647"]),
        _write(folder / "busybox.tar", BUSYBOX, layer, entrypoint=[]),
    ]


def _layer(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    """A tar archive owned by root, without times, so that the same content is the same image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("bin", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
        for name, target in sorted(links.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


def _write(file: Path, name: str, layer: bytes, *, entrypoint: Sequence[str]) -> Path:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, media: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"{_OCI}.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    layers = [blob(layer, "layer.v1.tar")]
    config = {
        "architecture": MACHINES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": list(entrypoint)},
        "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]},
    }
    media = "manifest.v1+json"
    content = {"schemaVersion": 2, "mediaType": f"{_OCI}.{media}", "layers": layers}
    content["config"] = blob(json.dumps(config).encode(), "config.v1+json")
    manifest = blob(json.dumps(content).encode(), media)
    manifest["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [manifest]}
    members = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    members |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with tarfile.open(file, "w") as tar:
        for member, data in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file
