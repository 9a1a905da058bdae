# SPDX-License-Identifier: Apache-2.0
"""Defines `ReflectorPolicy`: the limits and pauses of one reflector's lists and watches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReflectorPolicy:
    """Limits and pauses of a reflector. Fields with `seconds` in their name are in seconds."""

    page_limit: int = 500
    watch_seconds: int = 240
    """Seconds after which the server is to end a watch; up to half as much is added at random."""
    stall_grace_seconds: float = 30.0  # a watch that has not ended this long after `watch_seconds` counts as broken
    first_backoff_seconds: float = 0.1
    most_backoff_seconds: float = 20.0
    unserved_recheck_seconds: float = 30.0  # pause after a 404
    forbidden_recheck_seconds: float = 600.0  # pause after a 403 of an optional resource
    slice_seconds: float = 0.01
    """Maximum seconds of work before other tasks may run."""


DEFAULT_POLICY = ReflectorPolicy()
