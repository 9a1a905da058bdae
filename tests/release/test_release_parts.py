# SPDX-License-Identifier: Apache-2.0
"""The parts of a release that need no network: what they hold, and the same bytes from the same commit."""

import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from koordpy import __version__
from release.__main__ import build_release, checksums, main, table
from release.build_state import PLUGIN_PLATFORMS, BuildOptions, BuildState
from release.checkout import Checkout, ReleaseError, local_changes
from release.image import check_programs
from release.parts import PARTS, with_needs
from tests.docs.worked import ROOT
from tests.release.commits import TIME, checkout, git, repository

OFFLINE = ("python", "chart", "crds")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("source") / "repository")


def build(source: Path, folder: Path, parts: tuple[str, ...] = OFFLINE) -> BuildState:
    out = folder / "out"
    state = BuildState(checkout(source, folder / "tree"), out, folder)
    out.mkdir()
    for name in parts:
        state.made[name] = PARTS[name].build(state)
    return state


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildState:
    return build(source, tmp_path_factory.mktemp("first"))


def files(state: BuildState) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for made in state.made.values() for file in made}


def test_a_commit_gives_the_same_bytes_in_another_folder_with_another_umask(
    source: Path, built: BuildState, tmp_path: Path
) -> None:
    (source / "untracked.yaml").write_text("a: 1")
    readme = source / "README.md"
    before = readme.read_text()
    readme.write_text("changed")
    assert len(local_changes(source)) == 2
    with umask(0o077):
        again = build(source, tmp_path / "a-longer-name")
    readme.write_text(before)
    (source / "untracked.yaml").unlink()
    first, second = files(built), files(again)
    assert [name for name in first if first[name] != second[name]] == [] and len(first) == 4


def test_the_files_are_named_by_the_version(built: BuildState) -> None:
    assert {name: [file.name for file in made] for name, made in built.made.items()} == {
        "python": [f"koordpy-{__version__}.tar.gz", f"koordpy-{__version__}-py3-none-any.whl"],
        "chart": [f"koordpy-{__version__}.tgz"],
        "crds": [f"koordpy-crds-{__version__}.yaml"],
    }


def test_the_chart_has_every_file_of_the_folder_with_the_time_of_the_commit(built: BuildState) -> None:
    with tarfile.open(built.made["chart"][0]) as tar:
        members = {member.name: member for member in tar}
        values = tar.extractfile("koordpy/values.yaml")
        assert values is not None and values.read() == (ROOT / "charts/koordpy/values.yaml").read_bytes()
    here = {path.relative_to(ROOT / "charts").as_posix() for path in (ROOT / "charts").rglob("*") if path.is_file()}
    assert set(members) == here and all(member.isfile() for member in members.values())
    assert {(one.mtime, one.mode, one.uid, one.uname) for one in members.values()} == {(TIME, 0o644, 0, "")}


def test_the_definitions_are_all_in_one_file(built: BuildState) -> None:
    together = list(yaml.safe_load_all(built.made["crds"][0].read_text()))
    alone = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert together == alone and len(together) >= 5


def test_the_wheel_has_the_package_its_data_and_nothing_else(built: BuildState) -> None:
    with zipfile.ZipFile(built.wheel()) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"koordpy", f"koordpy-{__version__}.dist-info"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "koordpy").rglob("*.py")}
    assert modules <= set(names)
    for folder in ("crds", "examples"):
        there = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {f"koordpy/data/{name}" for name in there if "__pycache__" not in name} <= set(names)


def test_the_sdist_has_what_the_wheel_is_built_from(built: BuildState) -> None:
    with tarfile.open(built.made["python"][0]) as tar:
        tops = {name.split("/")[1] for name in tar.getnames()}
    assert {"koordpy", "crds", "examples", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= tops
    assert not tops & {"tests", "docs", "bench", "release", "charts"}


def test_a_chart_of_another_version_is_refused(source: Path, tmp_path: Path) -> None:
    other = repository(tmp_path / "other")
    chart = other / "charts/koordpy/Chart.yaml"
    chart.write_text(chart.read_text().replace(__version__, "9.9.9"))
    git(other, "commit", "--quiet", "--all", "--message", "chart")
    with pytest.raises(ReleaseError, match=r"appVersion is 9\.9\.9, koordpy is"):
        build(other, tmp_path / "build", ("chart",))


def test_the_release_follows_the_owners_settings(source: Path, tmp_path: Path) -> None:
    other = repository(tmp_path / "other")
    for name, old, new in (
        ("charts/koordpy/values.yaml", "repository: ghcr.io/koordpy/koordpy", "repository: registry.example.com/a/b"),
        ("pyproject.toml", "https://github.com/koordpy/koordpy", "https://forge.example.com/a/b"),
    ):
        text = (other / name).read_text()
        assert old in text
        (other / name).write_text(text.replace(old, new))
    git(other, "commit", "--quiet", "--all", "--message", "owner")
    one: Checkout = checkout(other, tmp_path / "tree")
    assert one.image == f"registry.example.com/a/b:{__version__}"
    assert one.download("x") == f"https://forge.example.com/a/b/releases/download/v{__version__}/x"


def test_parts_bring_what_they_need_in_order() -> None:
    assert with_needs(["krew"]) == ["python", "plugin", "krew"]
    assert with_needs(["crds", "chart"]) == ["chart", "crds"]
    assert with_needs(PARTS) == list(PARTS)
    assert all(set(part.needs) <= set(PARTS) for part in PARTS.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "chart", "rpm"], f"unknown part: rpm; choose from {', '.join(PARTS)}"),
        (
            ["--plugin-platforms", "here", "windows/amd64"],
            f"unknown platform of the plugin: windows/amd64; choose from {', '.join(PLUGIN_PLATFORMS)}",
        ),
        (
            ["--plugin-pythons", "3.10", "4"],
            "unknown Python version of the plugin: 3.10, 4; choose from 3.11, 3.12, 3.13",
        ),
        (["--image-platforms", "amd64"], "unknown platform of the image: amd64; choose from linux/amd64, linux/arm64"),
        (
            ["--image-platforms", "darwin/arm64"],
            "unknown platform of the image: darwin/arm64; choose from linux/amd64, linux/arm64",
        ),
    ],
)
def test_an_unknown_choice_is_named_with_the_known_ones(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path / "dist"), *words]) == 2
    assert capsys.readouterr().err == f"release: {said}\n"
    assert not (tmp_path / "dist").exists()


def program(folder: Path, name: str, line: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{line}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({}, "the image needs mmdebstrap"),
        ({"mmdebstrap": "exit 0", "arch-test": '[ "$1" = amd64 ]'}, "this machine runs no programs of linux/arm64"),
        ({"mmdebstrap": "exit 0", "arch-test": "exit 0"}, ""),
        ({"mmdebstrap": "exit 0"}, ""),
    ],
)
def test_a_missing_program_is_named_before_anything_is_built(
    programs: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        program(tmp_path / "bin", name, line)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "earlier").touch()
    if not said:
        check_programs(BuildOptions())
        return
    with pytest.raises(ReleaseError, match=rf"^{said}"):
        build_release(dist, ["image"], BuildOptions())
    assert [file.name for file in dist.iterdir()] == ["earlier"]


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    for name, text in (("b", ""), ("a", "abc")):
        (tmp_path / name).write_text(text)
    assert checksums([tmp_path / "b", tmp_path / "a"]) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n"
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n"
    )


def test_the_table_lists_every_file_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2_500_000))
    (tmp_path / "sums").write_bytes(bytes(10))
    lines = table({"image": [tmp_path / "large"]}, tmp_path / "sums").splitlines()
    assert [line.split() for line in lines] == [
        ["part", "file", "MB"], ["image", "large", "2.5"], ["checksums", "sums", "0.1"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/install.md"])
def test_pages_name_the_image_of_the_chart(name: str) -> None:
    named = set(re.findall(r"ghcr\.io/[\w/-]+", (ROOT / name).read_text(encoding="utf-8")))
    image = Checkout(ROOT, "", 0).image.partition(":")[0]
    chart = f"{image.rpartition('/')[0]}/charts/koordpy"
    assert image in named <= {image, chart}
