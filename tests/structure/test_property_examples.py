# SPDX-License-Identifier: Apache-2.0
"""In CI each Python version has examples of its own for property tests, the same on each run."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_configure


def seed_of(given: str | None) -> str | None:
    """Returns the seed after the configuration of pytest. given: option of the command line."""
    config: Any = SimpleNamespace(option=SimpleNamespace(hypothesis_seed=given))
    pytest_configure(config)
    found: str | None = config.option.hypothesis_seed
    return found


@pytest.mark.parametrize(("version", "seed"), [((3, 11), "311"), ((3, 13), "313")])
def test_in_ci_the_python_version_is_the_seed(
    version: tuple[int, int], seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(sys, "version_info", version)
    assert (seed_of(None), seed_of("7")) == (seed, "7")


def test_elsewhere_each_run_has_new_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert seed_of(None) is None
