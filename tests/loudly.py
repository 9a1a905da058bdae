# SPDX-License-Identifier: Apache-2.0
"""Skips and second tries that are seen: pytest's own are a letter in a line, and neither must pass for a success."""

import sys
from typing import NoReturn

import pytest


def skip_loudly(request: pytest.FixtureRequest, what: str, reason: str) -> NoReturn:
    """Skips the test that asks, and says on stderr, whatever pytest captures, what is skipped and why."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{what} SKIPPED: {reason}", file=sys.stderr, flush=True)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the tests that got a second try, each with what it first waited for in vain (Makefile: SECOND_TRY)."""
    tried_again = terminalreporter.stats.get("rerun", [])
    if tried_again:
        terminalreporter.write_sep("=", "TRIED A SECOND TIME after waiting in vain", yellow=True, bold=True)
    for report in tried_again:
        message = getattr(getattr(report.longrepr, "reprcrash", None), "message", "").partition("\n")[0]
        terminalreporter.write_line(f"{report.nodeid}: {message}")
