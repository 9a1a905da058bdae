# SPDX-License-Identifier: Apache-2.0
"""A part of the scheduler by itself: what it shares with the others, as far as it asks for it."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from koordpy.engine.engine_settings import EngineSettings


def a_context(*, clock: Callable[[], float] = lambda: 0.0, **given: Any) -> Any:
    """A `Context` with these parts, and what follows from `feeds`; it leads."""
    feeds = given.get("feeds")
    known = {"state": feeds.state, "queue": getattr(feeds, "queue", None)} if feeds is not None else {}
    default: dict[str, Any] = {
        "settings": EngineSettings(),
        "may_write": lambda: True,
        "clock": clock,
        "now": time.time,
        "absent": lambda resource: frozenset(),
    }
    return SimpleNamespace(**{**default, **known, **given})
