# SPDX-License-Identifier: Apache-2.0
"""`koordpy demo` as a user starts it: a process that ends well, leaves nothing behind, and says what it saw."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordpy.cli.main import main

DEMO = [sys.executable, "-m", "koordpy", "demo"]
LONGEST_SECONDS = 300


def of_group(group: int) -> list[str]:
    """Processes of a process group that still live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgid = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(pgid) == group and state != "Z":
                found.append(entry.name)
    return found


@contextlib.contextmanager
def demo(folder: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The demo as a process of a session of its own, with `more` in its environment, ended after LONGEST_SECONDS."""
    process = subprocess.Popen(
        [*DEMO, *words],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    guard = threading.Timer(LONGEST_SECONDS, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "number", "told"),
    [
        ([], 15, "gang default/does-not-fit: needed 12, available in blockLayer: "),
        (["--cluster", "ascend"], 8, "JobValidateFailed: huawei.com/Ascend910 request 3 is illegal for 910-module"),
    ],
    ids=["training", "ascend"],
)
def test_headless_keeps_every_promise_and_leaves_nothing(
    words: list[str], number: int, told: str, tmp_path: Path
) -> None:
    with demo(tmp_path, "--headless", *words) as process:
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert err == ""
    lines = out.splitlines()
    verdict = [line for line in lines if line.startswith(("ok  ", "FAILED"))]
    assert len(verdict) == number
    assert f"{len(verdict)} of {len(verdict)} checks passed" in lines[-1]
    assert any(told in line for line in lines)
    assert all(any(goal in line for line in lines) for goal in ("networkTopologyAware", "gangs.defaults.gather"))
    assert list(tmp_path.iterdir()) == []
    if Path("/proc").is_dir():
        assert of_group(process.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_keep_says_how_to_look_around_and_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "a shell must be told"
    folder.mkdir()
    with demo(folder, "--keep", FORCE_COLOR="1", COLUMNS="40") as process:
        assert process.stdout is not None
        kubeconfigs = []
        for line in process.stdout:
            if "export KUBECONFIG=" in line:
                (said,) = shlex.split(line.strip().removeprefix("export KUBECONFIG="))
                kubeconfigs.append(Path(said).is_file())
            if "scheduler.log" in line:
                break
        process.send_signal(number)
        _, err = process.communicate()
    assert kubeconfigs == [True]
    assert (process.returncode, err) == (0, "")
    assert list(folder.iterdir()) == []


def test_where_nothing_can_be_written_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert main(["demo", "--headless"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("koordpy demo: no temporary folder: ") and "set TMPDIR" in err


def test_ctrl_c_in_the_middle_is_no_traceback(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    assert out.endswith("\ninterrupted: the cluster is deleted\n")
    assert list(tmp_path.iterdir()) == []
