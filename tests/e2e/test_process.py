# SPDX-License-Identifier: Apache-2.0
"""The harness's own promises: a waiting test learns why it waits in vain, and nothing it started outlives it."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.assets import REPOSITORY
from tests.e2e.process import Process, ProcessDied, WaitedInVain, always, eventually, koordpy_run, wait_until


def shell(script: str, folder: Path) -> Process:
    return Process("shell", ["sh", "-c", script], log=folder / "shell.log")


async def test_who_waits_for_a_program_that_ended_is_shown_its_log(tmp_path: Path) -> None:
    with (
        shell("echo no such flag >&2; exit 3", tmp_path) as broken,
        pytest.raises(ProcessDied, match=r"(?s)exit status 3.*no such flag"),
    ):
        await eventually(lambda: False, what="never", processes=[broken])


async def test_who_waits_too_long_is_told_what_was_seen_last(tmp_path: Path) -> None:
    with shell("echo still thinking; exec sleep 60", tmp_path) as slow:
        await eventually(lambda: "thinking" in slow.tail(), what="its first words", processes=[slow])

        with pytest.raises(WaitedInVain, match=r"(?s)^not within 0.3 s: a verdict; last seen: \[\].*still thinking"):
            await eventually(list, what="a verdict", within_s=0.3, processes=[slow])


async def test_waiting_answers_with_what_it_waited_for() -> None:
    numbers = itertools.count()

    async def third() -> int:
        return next(numbers) // 3

    assert await eventually(third, what="the fourth try", every_s=0) == 1
    assert wait_until(lambda: next(numbers), what="a number") == 4


async def test_what_must_stay_true_is_checked_again_and_again() -> None:
    numbers = itertools.count()
    with pytest.raises(AssertionError, match="no longer true: few"):
        await always(lambda: next(numbers) < 3, what="few", for_s=10, every_s=0)


TRIALS = """
import pytest
from tests.e2e.process import eventually, wait_until

tries = []

@pytest.fixture
async def slow_at_first(request):
    tries.append(request.node.name)
    return tries.count(request.node.name) == 2

async def test_waits(slow_at_first):
    await eventually(lambda: slow_at_first, what="a second try", within_s=0.1)

def test_is_wrong(slow_at_first):
    assert slow_at_first, "not within a second"

async def test_is_wrong_and_then_waits(slow_at_first):
    try:
        assert slow_at_first, "wrong"
    finally:
        wait_until(lambda: slow_at_first, what="an end", within_s=0.1)
"""


@pytest.mark.parametrize("target", ["e2e", "e2e-realnode"])
def test_only_who_waited_in_vain_is_tried_a_second_time(tmp_path: Path, target: str) -> None:
    commands = subprocess.run(
        ["make", "--dry-run", target], cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    (command,) = (shlex.split(line) for line in commands.splitlines() if f"tests/{target.removeprefix('e2e-')}" in line)
    options = command[command.index(f"tests/{target.removeprefix('e2e-')}") + 1 :]
    file = tmp_path / "test_trials.py"
    file.write_text(TRIALS)
    config = ["-c", str(REPOSITORY / "pyproject.toml"), "-p", "tests.loudly", "-p", "no:cacheprovider"]
    trial = [sys.executable, "-m", "pytest", *config, *options, "-rA", str(file)]
    said = subprocess.run(trial, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False).stdout
    _, _, summary = said.partition("TRIED A SECOND TIME")
    assert "WaitedInVain: not within 0.1 s: a second try" in summary.splitlines()[1]
    assert re.search("^PASSED .*::test_waits$", summary, re.MULTILINE)
    assert "2 failed, 1 passed, 1 rerun" in summary


async def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with shell("trap '' TERM; echo ready; while :; do sleep 0.1; done", tmp_path) as stubborn:
        await eventually(lambda: "ready" in stubborn.tail(), what="its trap is set", processes=[stubborn])

        assert stubborn.stop(grace_s=0.3) == -signal.SIGKILL
        assert not stubborn.running


async def test_a_killed_program_can_be_started_again_and_its_log_goes_on(tmp_path: Path) -> None:
    with shell("echo life; exec sleep 60", tmp_path) as cat:
        await eventually(lambda: cat.tail().count("life") == 1, what="first life", processes=[cat])
        first = cat.pid
        assert cat.kill() == -signal.SIGKILL

        cat.start()

        await eventually(lambda: cat.tail().count("life") == 2, what="second life", processes=[cat])
        assert cat.pid != first
        with pytest.raises(RuntimeError, match="runs already"):
            cat.start()
    assert cat.exit_status == -signal.SIGTERM


def test_koordpy_is_run_by_the_interpreter_of_the_tests(tmp_path: Path) -> None:
    koordpy = koordpy_run("--leader-elect", kubeconfig=tmp_path / "kubeconfig", folder=tmp_path, name="a")

    program, *flags = koordpy.command
    assert program == sys.executable
    assert flags == ["-m", "koordpy", "run", "--kubeconfig", str(tmp_path / "kubeconfig"), "--leader-elect"]
    assert koordpy.log == tmp_path / "a.log"
    assert not koordpy.running
