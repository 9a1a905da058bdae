# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: none asserts how long anything takes, so that a busy machine fails none."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tests.loudly import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

if yaml.__with_libyaml__:  # in C, as koordpy itself reads: a fifth of the time, and a definition takes seconds
    yaml.SafeLoader, yaml.SafeDumper = yaml.CSafeLoader, yaml.CSafeDumper

LONG = [f"tests/engine/test_{name}.py" for name in ("storms", "lives", "workload_lives", "deaths")]
"""Modules of tests that take tens of seconds each: one that began last would be waited for alone."""

ONCE = (
    "tests/docs/test_labels.py",
    "tests/docs/test_language.py",
    "tests/docs/test_names.py",
    "tests/docs/test_rules.py",
    "tests/docs/test_site.py",
    "tests/golden/test_golden.py",
    "tests/structure/test_public_names.py",
    "tests/view/test_page.py",
)
"""Modules that test texts, recorded plans and the page in a browser, which no Python version changes. `make test` runs
them, `make test-pythons` leaves them out and says so."""

# CI tries the same examples each time: what fails there fails at every desk with CI=true. Elsewhere they are new ones.
settings.register_profile(
    "koordpy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("koordpy")


@pytest.hookimpl(tryfirst=True)  # the mark must be there before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the modules of ONCE, and puts long ones first."""
    for item in items:
        if item.nodeid.partition("::")[0] in ONCE:
            item.add_marker("once")
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONG)


@pytest.fixture(scope="session", autouse=True)
def solves_end_by_their_own_clock() -> Iterator[None]:
    """On a busy machine the watchdog of the wall ends solves that their deterministic time lets prove their answer. One
    of less than a second is a test's own."""
    from koordpy.placement.solver.time_budget import TimeBudget

    known = TimeBudget.__init__

    def patient(self: TimeBudget, deterministic_time: float, **options: Any) -> None:
        own = options.get("watchdog_seconds", 3600.0)
        known(self, deterministic_time, **{**options, "watchdog_seconds": own if own < 1.0 else 3600.0})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimeBudget, "__init__", patient)
        yield
