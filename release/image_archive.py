# SPDX-License-Identifier: Apache-2.0
"""Images as an OCI archive: layers, configuration, manifests, and one index for all platforms.

Format: github.com/opencontainers/image-spec, image-layout.md, image-index.md, config.md. The settings of the image
(user, environment, labels, entry point) are those of the last stage of the Dockerfile.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import re
import shlex
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OCI = "application/vnd.oci.image"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Blobs:
    """The folder of an OCI layout in which a file's name is its digest."""

    folder: Path

    def add(self, data: bytes, media: str) -> dict[str, Any]:
        """Writes a blob; its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / digest).write_bytes(data)
        return {"mediaType": f"{_OCI}.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    def add_json(self, content: Mapping[str, Any], media: str) -> dict[str, Any]:
        """Writes a document; its descriptor."""
        return self.add(json.dumps(content, sort_keys=True).encode(), media)


def image_settings(dockerfile: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """The section `config` of an image: what the last stage of a Dockerfile sets, with values for its arguments."""
    stage = re.split(r"^FROM ", dockerfile, flags=re.M)[-1]
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", stage, flags=re.M)).splitlines()[1:]
    config: dict[str, Any] = {"Env": [f"PATH={_PATH}"], "Labels": {}, "ExposedPorts": {}}
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        rest = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], rest)
        match word:
            case "ENV":
                config["Env"] += shlex.split(rest)
            case "LABEL":
                config["Labels"] |= dict(one.split("=", 1) for one in shlex.split(rest))
            case "USER":
                config["User"] = rest
            case "EXPOSE":
                config["ExposedPorts"] |= {f"{port}/tcp": {} for port in rest.split()}
            case "ENTRYPOINT":
                config["Entrypoint"] = json.loads(rest)
            case "CMD":
                config["Cmd"] = json.loads(rest)
            case "" | "COPY" | "ARG":
                pass
            case _:
                raise ValueError(f"the last stage of the Dockerfile has {word}, which a release does not know")
    return config


def add_image(blobs: Blobs, layers: list[Path], settings: Mapping[str, Any], arch: str, time: int) -> dict[str, Any]:
    """Writes an image with these layers (uncompressed archives); its descriptor with its platform."""
    descriptors, plain = [], []
    for layer in layers:
        data = layer.read_bytes()
        plain.append(f"sha256:{hashlib.sha256(data).hexdigest()}")
        descriptors.append(blobs.add(gzip.compress(data, 6, mtime=0), "layer.v1.tar+gzip"))
    config = {
        "architecture": arch,
        "os": "linux",
        "created": datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": plain},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blobs.add_json(config, "config.v1+json"),
        "layers": descriptors,
    }
    return blobs.add_json(manifest, "manifest.v1+json") | {"platform": {"architecture": arch, "os": "linux"}}


def write_archive(file: Path, name: str, images: list[dict[str, Any]], blobs: Blobs, time: int) -> None:
    """Writes the archive: one index of all images, under a name with a tag, and their blobs."""
    media = "index.v1+json"
    index = blobs.add_json({"schemaVersion": 2, "mediaType": f"{_OCI}.{media}", "manifests": images}, media)
    index["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    documents = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "mediaType": f"{_OCI}.{media}", "manifests": [index]},
    }
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in documents.items():
            data = json.dumps(content, sort_keys=True).encode()
            tar.addfile(_entry(member, len(data), time), io.BytesIO(data))
        for blob in sorted(blobs.folder.iterdir()):
            with blob.open("rb") as stream:
                tar.addfile(_entry(f"blobs/sha256/{blob.name}", blob.stat().st_size, time), stream)
    shutil.rmtree(blobs.folder)


def _entry(name: str, size: int, time: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, time, 0o644
    return entry
