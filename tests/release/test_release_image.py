# SPDX-License-Identifier: Apache-2.0
"""The image without a builder: settings from the Dockerfile, packages from wheels, and the archive."""

import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from koordpy import __version__
from release.archives import members_below, write_tar
from release.checkout import ReleaseError
from release.image import dpkg_status
from release.image_archive import Blobs, add_image, image_settings, write_archive
from release.image_tree import HOME, make_environment, site_packages, trim, unpack_wheels, write_scripts
from tests.docs.worked import ROOT

TIME = 1_700_000_000


def test_settings_are_those_of_the_dockerfile() -> None:
    settings = image_settings((ROOT / "Dockerfile").read_text(), {"SOURCE": "https://a.example.com", "REVISION": "abc"})
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in settings["Labels"].items()}
    assert (labels["version"], labels["source"], labels["revision"]) == (__version__, "https://a.example.com", "abc")
    assert (settings["User"], settings["Entrypoint"], settings["Cmd"]) == (
        "65532:65532", ["/opt/koordpy/bin/koordpy"], ["run"],
    )  # fmt: skip
    environment = dict(one.split("=", 1) for one in settings["Env"])
    assert environment["PYTHONMALLOC"] == "malloc" and "/usr/bin" in environment["PATH"].split(":")
    assert settings["ExposedPorts"] == {"10259/tcp": {}}


def test_only_the_last_stage_counts_and_unknown_instructions_are_refused() -> None:
    text = 'FROM a AS one\nENV X=1\nUSER 0\nFROM b\n# a comment\nENV A="b c" \\\n    D=e\nCOPY x y\n'
    settings = image_settings(text, {})
    assert settings["Env"][1:] == ["A=b c", "D=e"] and "User" not in settings
    with pytest.raises(ValueError, match="has RUN"):
        image_settings("FROM b\nRUN true\n", {})


def wheel(folder: Path, files: dict[str, str]) -> Path:
    file = folder / "a_b-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file


def test_a_wheel_is_unpacked_without_its_scripts(tmp_path: Path) -> None:
    files = {"a_b/__init__.py": "X = 1", "a_b-1.data/purelib/c.py": "Y = 2", "a_b-1.data/scripts/run": "#!python"}
    unpack_wheels([wheel(tmp_path, files)], tmp_path / "root", "3.13")
    site = site_packages(tmp_path / "root", "3.13")
    found = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert found == {"a_b/__init__.py", "c.py"}


def test_files_without_a_place_in_the_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="has files for data"):
        unpack_wheels([wheel(tmp_path, {"a_b-1.data/data/etc/x": ""})], tmp_path / "root", "3.13")


def test_scripts_run_the_environments_python(tmp_path: Path) -> None:
    entries = "[console_scripts]\nsay = a_b.c:main\n"
    files = {
        "a_b/__init__.py": "",
        "a_b/c.py": "def main(): print('said')",
        "a_b-1.dist-info/entry_points.txt": entries,
    }
    unpack_wheels([wheel(tmp_path, files)], tmp_path / "root", "3.13")
    make_environment(tmp_path / "root", "3.13")
    write_scripts(tmp_path / "root", "3.13", "a_b")
    script = tmp_path / "root" / HOME / "bin/say"
    assert script.read_text().startswith(f"#!/{HOME}/bin/python\n") and script.stat().st_mode & stat.S_IXOTH
    assert os.readlink(script.parent / "python") == "/usr/bin/python3.13"
    environment = {"PYTHONPATH": str(site_packages(tmp_path / "root", "3.13"))}
    assert subprocess.run([sys.executable, script], env=environment, capture_output=True).stdout == b"said\n"


def test_trim_removes_what_koordpy_never_reads(tmp_path: Path) -> None:
    site = site_packages(tmp_path, "3.13")
    gone = ("a/tests/x.py", "a/b.pyi", "a/c.h", "bazel-project/d.py", "kubernetes_asyncio/e/__pycache__/f.pyc")
    stay = ("a/g.py", "a/tests.py", "kubernetes_asyncio/e/f.py", "a/__pycache__/g.pyc")
    for name in (*gone, *stay):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    trim(ROOT, tmp_path)
    assert {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()} == set(stay)


def archive(folder: Path, archs: tuple[str, ...]) -> Path:
    """An archive with an image of one layer for each architecture."""
    blobs = Blobs(folder / "blobs")
    blobs.folder.mkdir(parents=True)
    images = []
    for arch in archs:
        (folder / arch).mkdir()
        (folder / arch / "file").write_text(arch)
        layer = folder / f"{arch}.tar"
        with layer.open("wb") as out:
            write_tar(out, members_below(folder / arch, ""), TIME)
        images.append(add_image(blobs, [layer], {"User": "1"}, arch, TIME))
    file = folder / "image.tar"
    write_archive(file, "registry.example.com:5000/a/b:1.2.3", images, blobs, TIME)
    return file


def test_an_archive_has_one_index_with_every_platform(tmp_path: Path) -> None:
    with tarfile.open(archive(tmp_path, ("amd64", "arm64"))) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]

    def blob(descriptor: dict[str, Any]) -> bytes:
        data = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert descriptor["size"] == len(data)
        return data

    (top,) = json.loads(files["index.json"])["manifests"]
    assert top["annotations"]["io.containerd.image.name"] == "registry.example.com:5000/a/b:1.2.3"
    assert top["annotations"]["org.opencontainers.image.ref.name"] == "1.2.3"
    images = json.loads(blob(top))["manifests"]
    assert [image["platform"] for image in images] == [
        {"architecture": arch, "os": "linux"} for arch in ("amd64", "arm64")
    ]
    for image in images:
        manifest = json.loads(blob(image))
        config = json.loads(blob(manifest["config"]))
        assert config["architecture"] == image["platform"]["architecture"] and config["config"] == {"User": "1"}
        (layer,) = manifest["layers"]
        plain = gzip.decompress(blob(layer))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
        with tarfile.open(fileobj=io.BytesIO(plain)) as inner:
            assert inner.extractfile("file").read().decode() == config["architecture"]  # type: ignore[union-attr]


def test_the_same_layers_give_the_same_archive(tmp_path: Path) -> None:
    one, two = (archive(tmp_path / name, ("amd64",)) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_packages_of_debian_are_read_from_dpkgs_status(tmp_path: Path) -> None:
    text = "Package: a\nArchitecture: all\nVersion: 1:2-3\nDescription: x\n more: y\n\nPackage: b\nVersion: 4\n\n"
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as tar:
        entry = tarfile.TarInfo("./var/lib/dpkg/status")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    first, second = dpkg_status(base)
    assert (first["Package"], first["Version"], first["Architecture"]) == ("a", "1:2-3", "all")
    assert "more" not in first and second["Version"] == "4"
