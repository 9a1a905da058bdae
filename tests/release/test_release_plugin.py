# SPDX-License-Identifier: Apache-2.0
"""Platforms, wheels and the krew manifest of the kubectl plugin."""

import hashlib
import json
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from koordpy import __version__
from release.build_state import PLUGIN_PLATFORMS
from release.checkout import Checkout
from release.locked_wheels import IMAGE_LOCK, Pin, read_lock
from release.platforms import PLATFORM_HERE, PYTHON_HERE, PYTHONS, Platform
from release.plugin import NOT_LOCKED, krew_manifest, needed
from tests.docs.worked import ROOT

LINUX, MAC = Platform("linux", "arm64", "3.13"), Platform("darwin", "arm64", "3.11")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("platform", "tags", "runs"),
    [
        (LINUX, "cp313-cp313-manylinux_2_27_aarch64.manylinux_2_28_aarch64", True),
        (LINUX, "cp39-abi3-manylinux2014_aarch64", True),
        (LINUX, "py3-none-any", True),
        (LINUX, "cp313-cp313-manylinux_2_34_aarch64", False),
        (LINUX, "cp313-cp313-manylinux_2_28_x86_64", False),
        (LINUX, "cp312-cp312-manylinux_2_28_aarch64", False),
        (LINUX, "cp313-cp313-musllinux_1_2_aarch64", False),
        (MAC, "cp311-cp311-macosx_11_0_arm64", True),
        (MAC, "cp311-cp311-macosx_10_9_universal2", True),
        (MAC, "cp311-cp311-macosx_10_15_x86_64", False),
        (MAC, "cp311-cp311-macosx_15_0_arm64", False),
    ],
)
def test_wheels_that_run_on_a_platform(platform: Platform, tags: str, runs: bool) -> None:
    wheel = parse_wheel_filename(f"a-1-{tags}.whl")[3]
    assert (not wheel.isdisjoint(platform.tags())) == runs


@pytest.mark.parametrize(
    ("marker", "fits"),
    [
        ("", True),
        ("python_full_version < '3.12'", False),
        ("python_full_version >= '3.12'", True),
        ("sys_platform != 'win32'", True),
        ("platform_machine == 'aarch64' and sys_platform == 'linux'", True),
        ("os_name == 'nt' or platform_system == 'Darwin'", False),
    ],
)
def test_markers_are_those_of_the_platform(marker: str, fits: bool) -> None:
    assert Pin("a", "1", marker, ()).fits(LINUX) == fits


def test_a_platform_describes_itself_to_pex() -> None:
    given = json.loads(LINUX.as_pex())
    assert given["marker_environment"]["platform_machine"] == "aarch64"
    assert given["compatible_tags"][0] == "cp313-cp313-manylinux_2_28_aarch64"


def test_tags_of_this_interpreter_are_those_of_its_platform() -> None:
    if PLATFORM_HERE not in ("linux/amd64", "linux/arm64"):
        pytest.skip("tags are compared on Linux on amd64 and arm64")
    old = re.compile(r"manylinux_2_(17|28)_")
    here = {str(tag) for tag in sys_tags() if old.search(str(tag))}
    platform = Platform(*PLATFORM_HERE.split("/"), PYTHON_HERE)
    assert here and here == {str(tag) for tag in platform.tags() if old.search(str(tag))}


def test_pythons_are_those_of_the_package() -> None:
    versions = SpecifierSet(PROJECT["requires-python"])
    assert tuple(f"3.{minor}" for minor in range(30) if f"3.{minor}" in versions) == PYTHONS


def test_the_lock_of_the_image_is_read_completely() -> None:
    text = (ROOT / IMAGE_LOCK).read_text()
    pins = read_lock(text)
    assert len(pins) == text.count("==") - text.count("== '") and all(len(pin.hashes) > 0 for pin in pins)
    for platform in (LINUX, MAC):
        names = [pin.name for pin in pins if pin.fits(platform)]
        assert len(names) == len(set(names)) and {"ortools", "numpy"} <= set(names)


def test_packages_that_the_lock_leaves_out_are_those_that_pex_leaves_out() -> None:
    (line,) = (one for one in (ROOT / "Makefile").read_text().splitlines() if one.startswith("NOT_IN_IMAGE"))
    assert sorted(line.split()[2:]) == sorted(NOT_LOCKED)


def wheel(folder: Path, name: str, *requires: str) -> Path:
    file = folder / f"{name.replace('-', '_')}-1-py3-none-any.whl"
    lines = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {one}" for one in requires)]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name.replace('-', '_')}-1.dist-info/METADATA", "\n".join(["Metadata-Version: 2.1", *lines]))
    return file


def test_only_wheels_that_are_asked_for_are_in_the_plugin(tmp_path: Path) -> None:
    made = [
        wheel(tmp_path, "A-b", "c>=1", "x; extra == 'all'", "y; sys_platform == 'win32'", "absent"),
        wheel(tmp_path, "c", "a.b"),
        *(wheel(tmp_path, name) for name in ("x", "y", "agent")),
    ]
    found = needed(["a_b>=1"], made, LINUX)
    assert [file.name for file in found] == ["A_b-1-py3-none-any.whl", "c-1-py3-none-any.whl"]


def test_the_krew_manifest_has_address_and_hash_of_each_archive(tmp_path: Path) -> None:
    checkout = Checkout(ROOT, "0" * 40, 0)
    archives = {}
    for name in PLUGIN_PLATFORMS:
        system, _, arch = name.partition("/")
        archives[system, arch] = tmp_path / f"plugin_{system}_{arch}.tar.gz"
        archives[system, arch].write_text(name)
    manifest = krew_manifest(checkout, archives)
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "koordpy")
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    spec = manifest["spec"]
    assert spec["version"] == f"v{__version__}"
    assert len(spec["shortDescription"]) <= 50 and not spec["shortDescription"].endswith(".")
    assert [one["selector"]["matchLabels"] for one in spec["platforms"]] == [
        {"os": "linux", "arch": "amd64"}, {"os": "linux", "arch": "arm64"}, {"os": "darwin", "arch": "arm64"},
    ]  # fmt: skip
    for one, file in zip(spec["platforms"], archives.values(), strict=True):
        assert one["uri"] == f"{checkout.repository}/releases/download/v{__version__}/{file.name}"
        assert one["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert one["bin"] in [entry["from"] for entry in one["files"]]
