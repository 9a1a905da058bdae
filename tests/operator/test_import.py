# SPDX-License-Identifier: Apache-2.0
"""kopf is imported without kubernetes_asyncio in one thread, while others can import it."""

import importlib
import sys
import threading

import pytest

from koordpy.operator.kopf_handlers import _Absent

UNUSED = "colorsys"
"""A module of the standard library that koordpy does not use."""


def test_a_module_is_absent_in_one_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, UNUSED, raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Absent(UNUSED), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=UNUSED):
        importlib.import_module(UNUSED)
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(importlib.import_module(UNUSED).__name__))
    other.start()
    other.join()
    assert found == [UNUSED]
    importlib.import_module(UNUSED)  # what is imported already stays
