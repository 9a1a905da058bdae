# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: none asserts how long anything takes, so that a busy machine fails none."""

import os
import sys
from collections.abc import Generator, Iterator
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

# derandomize: False, because it would give every Python version the same examples
settings.register_profile("koordpy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=False)
settings.load_profile("koordpy")


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis reads the option
def pytest_configure(config: pytest.Config) -> None:
    """In CI, gives each Python version examples of its own, the same on each run. Elsewhere each run has new ones."""
    if os.environ.get("CI") and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = f"{sys.version_info[0]}{sys.version_info[1]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says how to run the examples of a failed property test again; without a seed Hypothesis does."""
    report = yield
    seed = item.config.option.hypothesis_seed
    if report.failed and seed is not None and hasattr(getattr(item, "obj", None), "hypothesis"):
        report.sections.append(("Same examples again", f"pytest '{item.nodeid}' --hypothesis-seed={seed}"))
    return report


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
