# SPDX-License-Identifier: Apache-2.0
"""Child processes of the tests: started with their output in a file, ended by their pid and in time, waited for.

A process that dies early is the usual cause of a test that waits in vain, so everything that waits here can be given
the processes it depends on, and shows the end of their logs when it gives up.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from tests.e2e.hesitation import stumble

T = TypeVar("T")
PATIENCE_S = 60.0
"""How long what must come is waited for; a busy machine takes 20 s for what else takes 2."""

# Children die with the tests even when those are killed: a stray API server holds 300 MB.
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    assert _libc is not None
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class ProcessDied(Exception):
    """A process ended that should be running; the text has the end of its log."""


class Process:
    """One command with stdout and stderr in a log file, in a session of its own (Ctrl-C reaches only the tests).

    Starting it again after it ended is allowed and appends to the log.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        self.command = [str(part) for part in command]
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        if self.running:
            raise RuntimeError(f"{self.name} runs already, as pid {self.pid}")
        # The kernel ties the child to the starting thread, not to the process: only the main thread lives long enough.
        tied = _libc is not None and threading.current_thread() is threading.main_thread()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
                preexec_fn=_die_with_parent if tied else None,
            )
        return self

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs or when it was never started; negative = ended by that signal."""
        return None if self._child is None else self._child.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to the process if it runs (SIGSTOP and SIGCONT make a scheduler lose its lease, say)."""
        if self._child is not None:
            self._child.send_signal(number)

    def stop(self, *, grace_s: float = 10.0) -> int | None:
        """SIGTERM, after grace_s seconds SIGKILL; the exit status, None when it was never started."""
        if self._child is None:
            return None
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
        return self._child.wait()

    def kill(self) -> int | None:
        """SIGKILL at once, as a crash or a lost machine would be; the exit status."""
        if self._child is None:
            return None
        if self._child.poll() is None:
            self._child.kill()
        return self._child.wait()

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def cpu_seconds(self) -> float:
        """User and system time so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def must_run(self) -> None:
        """Raises ProcessDied when it does not."""
        if not self.running:
            raise ProcessDied(
                f"{self.name} ended with exit status {self.exit_status}; the end of its log:\n{self.tail()}"
            )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else f"exit status {self.exit_status}"
        return f"<Process {self.name}: {state}>"


def koordpy_run(
    *flags: str,
    kubeconfig: Path,
    folder: Path,
    name: str = "koordpy",
    env: Mapping[str, str] | None = None,
) -> Process:
    """`koordpy run --kubeconfig KUBECONFIG FLAGS...`, not started yet, with its log in FOLDER/NAME.log.

    Unbuffered, so that the log is whole after a kill.
    """
    command: list[str | Path] = [sys.executable, "-m", "koordpy", "run", "--kubeconfig", kubeconfig, *flags]
    process = Process(name, command, log=folder / f"{name}.log", env={"PYTHONUNBUFFERED": "1", **(env or {})})
    stumble(process)
    return process


class WaitedInVain(AssertionError):
    """Something did not come in time: the one failure that gets a second try (Makefile)."""


def _gave_up(what: str, within_s: float, last: object, processes: Iterable[Process]) -> WaitedInVain:
    logs = "".join(f"\n--- {process!r}\n{process.tail()}" for process in processes)
    # a wait on the way out of another failure is no reason for a second try
    also = "" if sys.exception() is None else "then also "
    return WaitedInVain(f"{also}not within {within_s:g} s: {what}; last seen: {last!r}{logs}")


async def _result(check: Callable[[], Any]) -> Any:
    seen = check()
    return await seen if inspect.isawaitable(seen) else seen


@overload
async def eventually(
    check: Callable[[], Awaitable[T]],
    *,
    what: str,
    within_s: float = ...,
    every_s: float = ...,
    processes: Sequence[Process] = ...,
) -> T: ...


@overload
async def eventually(
    check: Callable[[], T],
    *,
    what: str,
    within_s: float = ...,
    every_s: float = ...,
    processes: Sequence[Process] = ...,
) -> T: ...


async def eventually(
    check: Callable[[], Any],
    *,
    what: str,
    within_s: float = PATIENCE_S,
    every_s: float = 0.1,
    processes: Sequence[Process] = (),
) -> Any:
    """Calls check (plain or async) until it returns something true, and returns that.

    Exceptions of check end the wait at once. WaitedInVain after within_s seconds, ProcessDied as soon as one of
    `processes` has ended; both show the logs of `processes`.
    """
    deadline = time.monotonic() + within_s
    while True:
        seen = await _result(check)
        if seen:
            return seen
        for process in processes:
            process.must_run()
        if time.monotonic() > deadline:
            raise _gave_up(what, within_s, seen, processes)
        await asyncio.sleep(every_s)


async def always(
    check: Callable[[], Any],
    *,
    what: str,
    for_s: float,
    every_s: float = 0.2,
    processes: Sequence[Process] = (),
) -> None:
    """Asserts that check stays true for for_s seconds (for "and nothing more happens")."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        seen = await _result(check)
        assert seen, f"no longer true: {what}" + "".join(f"\n--- {p!r}\n{p.tail()}" for p in processes)
        for process in processes:
            process.must_run()
        await asyncio.sleep(every_s)


def wait_until(
    check: Callable[[], T],
    *,
    what: str,
    within_s: float = PATIENCE_S,
    every_s: float = 0.05,
    processes: Sequence[Process] = (),
) -> T:
    """`eventually` for callers without an event loop."""
    deadline = time.monotonic() + within_s
    while not (seen := check()):
        for process in processes:
            process.must_run()
        if time.monotonic() > deadline:
            raise _gave_up(what, within_s, seen, processes)
        time.sleep(every_s)
    return seen
