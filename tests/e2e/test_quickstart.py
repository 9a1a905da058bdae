# SPDX-License-Identifier: Apache-2.0
"""docs/quickstart.md, followed to the letter on a real API server that knows nothing of koordpy yet.

Its files are written as they stand, its commands are given in their order, and what they print is what the page shows.
Section 2 plays the demo, which tests/demo hold.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.worked import blocks_of, matches
from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process
from tests.e2e.test_gpu_delivery import free_port
from tests.said import warnings_of

PAGE = REPOSITORY / "docs" / "quickstart.md"
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_BLOCK = re.compile(r"(?:^    .*\n)+", re.M)
_SETS = re.compile(r"^[A-Z]+=.*$", re.M)


@dataclass(frozen=True)
class Step:
    """A command, or several without output; `prints` is empty where the page does not say."""

    command: str
    prints: str = ""


def steps() -> list[Step]:
    """Those of all sections but the second."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition("\n## 2. ")
    text = before + after.partition("\n## 3. ")[2]
    found = []
    for block in _BLOCK.findall(_FENCED.sub("", text)):
        lines = [line[4:] for line in block.splitlines()]
        if not lines[0].startswith("$ "):
            found.append(Step("\n".join(lines)))
            continue
        for shown in re.split(r"^\$ ", "\n".join(lines), flags=re.M)[1:]:
            command, printed = re.fullmatch(r"((?:.*\\\n)*.*)\n?((?:.*\n?)*)", shown).groups()  # type: ignore[union-attr]
            found.append(Step(command, printed.strip("\n")))
    return found


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(assets, folder=tmp_path_factory.mktemp("quickstart"), controller_manager=True) as running:
        yield running


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    """Four nodes of the names that the page gives them."""
    async with plane.client() as client:
        room = {"cpu": "96", "memory": "1Ti", "pods": "20", "nvidia.com/gpu": "8"}
        await client.make_nodes(4, allocatable=room, name=lambda i: f"gpu-{i}")
        yield client
        await client.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clone with its .venv, and the files of the page."""
    for name in ("examples", "crds"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    for block in blocks_of(PAGE):
        (tmp_path / block.path).write_text(block.text, encoding="utf-8")
    return tmp_path


def test_the_page_has_the_steps_that_are_followed() -> None:
    text = "\n".join(step.command for step in steps())
    assert "examples/workloads/job.yaml" in steps()[1].command
    for part in (
        "crds/",
        "apply -f topology.yaml",
        "apply -f train.yaml",
        "koordpy run",
        "koordpy simulate -f cluster.json",
    ):
        assert part in text
    assert len([step for step in steps() if step.prints]) >= 3


@pytest.mark.usefixtures("api")
async def test_every_step_does_what_the_page_says(plane: ControlPlane, folder: Path) -> None:
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig()),
        "PATH": f"{plane.assets}:{os.environ['PATH']}",
        "HOME": str(folder),
    }
    port, so_far = free_port(), ""
    scheduler: Process | None = None
    try:
        for step in steps():
            # the page's own port may be taken here
            script = so_far + step.command.replace(":10259", f":{port}")
            if step.command == "koordpy run":
                serve = f'cd "{folder}"\n{so_far}exec koordpy run --bind-address 127.0.0.1:{port}'
                scheduler = Process("koordpy", ["sh", "-ec", serve], log=folder / "run.log", env=environment).start()
                continue
            done = await asyncio.to_thread(
                subprocess.run, ["sh", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{step.command}\n{done.stderr}"
            if "-f cluster.json" in step.command:
                assert warnings_of(done.stderr) == ""
            if step.prints:
                assert matches(done.stdout, step.prints), f"{step.command}\n{done.stdout}"
            so_far += "".join(f"{line}\n" for line in _SETS.findall(step.command))
        assert scheduler is not None
        scheduler.must_run()
    finally:
        if scheduler is not None:
            scheduler.stop()
