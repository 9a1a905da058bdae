"""Skips that are seen: pytest's own are a letter in a line, and a skip must not pass for a success."""

import sys
from typing import NoReturn

import pytest


def skip_loudly(request: pytest.FixtureRequest, what: str, reason: str) -> NoReturn:
    """Skips the test that asks, and says on stderr, whatever pytest captures, what is skipped and why."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{what} SKIPPED: {reason}", file=sys.stderr, flush=True)
    pytest.skip(reason)
