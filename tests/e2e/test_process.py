"""The harness's own promises: a waiting test learns why it waits in vain, and nothing it started outlives it."""

from __future__ import annotations

import itertools
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.process import Process, ProcessDied, always, eventually, koordpy_run, wait_until


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

        with pytest.raises(AssertionError, match=r"(?s)not within 0.3 s: a verdict; last seen: \[\].*still thinking"):
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
