# SPDX-License-Identifier: Apache-2.0
"""What the release workflow publishes: the commands of each step, in order, by programs that record their arguments."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from koordpy import __version__
from release.checkout import ReleaseError
from release.publishing import NO_DIGEST, Publisher, main
from tests.docs.worked import ROOT

IMAGE = "ghcr.io/koordpy/koordpy"
PUSHED = "sha256:" + "a" * 64
RECORDER = """#!/usr/bin/env python3
import json, os, sys
name = os.path.basename(sys.argv[0])
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == os.environ.get("BROKEN"):
    sys.exit(3)
if "--digestfile" in sys.argv:
    open(sys.argv[sys.argv.index("--digestfile") + 1], "w").write("@DIGEST@")
if name == "helm":
    print("Pushed: x", file=sys.stderr)
    print("Digest: @DIGEST@", file=sys.stderr)
""".replace("@DIGEST@", PUSHED)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with what `make dist` writes, and a changelog with this version."""
    for name in ("koordpy/__init__.py", "charts/koordpy/Chart.yaml", "charts/koordpy/values.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    built = [f"koordpy-{__version__}.{suffix}" for suffix in ("tgz", "cdx.json", "tar.gz")]
    built += [f"koordpy-image-{__version__}{rest}" for rest in (".oci.tar", "-amd64.cdx.json", "-arm64.cdx.json")]
    for name in ("dist/checksums.txt", *(f"dist/{one}" for one in built)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    sections = f"## [{__version__}] - 2026-01-02\n\n### Added\n\n- A line.\n\n## [0.0.1] - 2025-01-02\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{sections}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/upgrading.md").write_text(f"# Upgrade notes\n\n## {__version__}\n\nNone.\n")
    return tmp_path


@pytest.fixture
def record(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the command lines of the programs, which are first on the PATH."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("skopeo", "cosign", "helm", "gh"):
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(folder / "record"))
    return folder / "record"


def commands(record: Path) -> list[list[str]]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_the_image_is_pushed_then_signed_and_attested_by_its_digest(root: Path, record: Path) -> None:
    assert Publisher(root).publish_image() == PUSHED
    push, sign, *attest = commands(record)
    assert push[:2] == ["skopeo", "copy"]
    assert push[-2:] == [
        f"oci-archive:{root}/dist/koordpy-image-{__version__}.oci.tar",
        f"docker://{IMAGE}:{__version__}",
    ]
    assert sign == ["cosign", "sign", "--yes", "--recursive", f"{IMAGE}@{PUSHED}"]
    sboms = [f"{root}/dist/koordpy-image-{__version__}-{arch}.cdx.json" for arch in ("amd64", "arm64")]
    assert attest == [
        ["cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", sbom, f"{IMAGE}@{PUSHED}"] for sbom in sboms
    ]


def test_the_chart_is_pushed_beside_the_image_and_signed(root: Path, record: Path) -> None:
    assert Publisher(root).publish_chart() == PUSHED
    assert commands(record) == [
        ["helm", "push", f"{root}/dist/koordpy-{__version__}.tgz", "oci://ghcr.io/koordpy/charts"],
        ["cosign", "sign", "--yes", f"ghcr.io/koordpy/charts/koordpy@{PUSHED}"],
    ]
    pages = [ROOT / "charts/koordpy/README.md", ROOT / "docs/install.md"]
    assert all("oci://ghcr.io/koordpy/charts/koordpy" in page.read_text(encoding="utf-8") for page in pages)


def test_the_release_has_all_files_and_the_section_of_the_changelog(root: Path, record: Path) -> None:
    Publisher(root).publish_files()
    sign, create = commands(record)
    bundle = f"{root}/dist/checksums.txt.sigstore.json"
    assert sign == ["cosign", "sign-blob", "--yes", "--bundle", bundle, f"{root}/dist/checksums.txt"]
    assert create[:5] == ["gh", "release", "create", f"v{__version__}", "--verify-tag"]
    assert "--prerelease" not in create
    assert {Path(word).name for word in create if word.startswith(f"{root}/dist/")} == {
        "checksums.txt", "checksums.txt.sigstore.json", *(file.name for file in (root / "dist").iterdir())
    }  # fmt: skip
    notes = Path(create[create.index("--notes-file") + 1]).read_text()
    assert notes == "### Added\n\n- A line.\n"


def test_a_candidate_is_a_prerelease(root: Path, record: Path) -> None:
    (root / "koordpy/__init__.py").write_text('__version__ = "7.8.9-rc.1"\n')
    Publisher(root).publish_files()
    assert {"v7.8.9-rc.1", "--prerelease"} <= set(commands(record)[-1])


@pytest.mark.parametrize("step", ["publish_image", "publish_chart", "publish_files"])
def test_a_dry_run_runs_no_program(step: str, root: Path, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(Publisher(root, is_dry=True), step)() in (NO_DIGEST, None)
    assert not record.exists()
    assert "+ cosign " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "step", "said"),
    [
        ("skopeo", "publish_image", "skopeo ended with exit status 3"),
        ("cosign", "publish_image", "cosign ended with exit status 3"),
        ("helm", "publish_chart", "helm ended with exit status 3"),
        ("gh", "publish_files", "gh ended with exit status 3"),
    ],
)
def test_a_step_ends_at_the_first_failure(
    broken: str, step: str, said: str, root: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", broken)
    with pytest.raises(ReleaseError, match=said):
        getattr(Publisher(root), step)()
    assert commands(record)[-1][0] == broken


@pytest.mark.parametrize(
    ("name", "step", "said"),
    [
        (f"dist/koordpy-image-{__version__}.oci.tar", "publish_image", r"there is no dist/koordpy-image.*: make dist"),
        (f"dist/koordpy-{__version__}.tgz", "publish_chart", "make dist"),
        ("dist/checksums.txt", "publish_files", "there is no dist/checksums.txt: make dist"),
    ],
)
def test_nothing_is_published_that_was_not_built(name: str, step: str, said: str, root: Path, record: Path) -> None:
    (root / name).unlink()
    with pytest.raises(ReleaseError, match=said):
        getattr(Publisher(root), step)()
    assert not record.exists()


def test_the_tag_and_all_files_name_one_version(root: Path) -> None:
    Publisher(root).check(f"v{__version__}")
    chart = root / "charts/koordpy/Chart.yaml"
    chart.write_text(yaml.safe_dump({**yaml.safe_load(chart.read_text()), "version": "9.9.9"}))
    (root / "CHANGELOG.md").write_text("## [Unreleased]\n")
    (root / "docs/upgrading.md").write_text("## 0.0.9\n")
    with pytest.raises(ReleaseError) as caught:
        Publisher(root).check("v9.9.9")
    assert str(caught.value).splitlines() == [
        f"the tag is v9.9.9, koordpy is {__version__}: tag v{__version__}",
        f"charts/koordpy/Chart.yaml: version is 9.9.9, koordpy is {__version__}",
        f"CHANGELOG.md: no text below a heading ## [{__version__}] - YYYY-MM-DD",
        f"docs/upgrading.md: no section {__version__}",
    ]


def test_a_missing_tag_is_named(root: Path) -> None:
    with pytest.raises(ReleaseError, match=rf"^TAG is not set, koordpy is {__version__}: tag v{__version__}$"):
        Publisher(root).check("")


@pytest.mark.parametrize(
    "heading", ["[Unreleased]", f"[{__version__}]", f"[{__version__}] - soon", "[9.9.9] - 2026-01-02"]
)
def test_a_release_needs_its_date_in_the_changelog(heading: str, root: Path) -> None:
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n- A line.\n")
    with pytest.raises(ReleaseError, match=r"^CHANGELOG\.md: no text below a heading ## \["):
        Publisher(root).check(f"v{__version__}")


@pytest.mark.parametrize("words", [[], ["image", "x"], ["check"], ["everything"]])
def test_other_words_are_no_step(words: list[str]) -> None:
    assert main(words) == 2
