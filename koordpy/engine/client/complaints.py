# SPDX-License-Identifier: Apache-2.0
"""Logs problems that many calls have in common: the certificate, credentials (401) and permissions (403).

If permissions are missing, every list and every renewal of the Lease is refused, again and again. Instead of a log line
per call, one line lists all missing permissions, at once and then every ten minutes while the problem lasts.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordpy.engine.client.api_errors import ApiError
    from koordpy.engine.client.credentials import ClusterAccess

logger = logging.getLogger(__name__)

UNAUTHORIZED, FORBIDDEN = 401, 403
GATHER_SECONDS = 1.0
"""Refusals within this time are reported in one line."""
AGAIN_SECONDS = 600.0
"""Seconds after which a problem that lasts is logged again."""


class Complaints:
    """Logs the problems with certificate, credentials and permissions of one client. Owned by the event loop."""

    def __init__(self, access: "ClusterAccess", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access, self._clock = access, clock
        # clock times of the last line about credentials, and about permissions
        self._rejected_at = self._told_at = float("-inf")
        self._missing: dict[tuple[str, str], str] = {}
        """(verbs, resource) of a refused call -> the API server's message; cleared when the line is logged."""
        self._told: set[tuple[str, str]] = set()
        """(verbs, resource) that were reported before."""
        self._gathering = False
        """True while refusals are collected for the next line."""
        self._distrust = "", float("-inf")
        """The last reason why the certificate was not trusted, and the clock time of its log line."""

    def distrust(self, why: str) -> None:
        """Reports that the API server's certificate is not trusted."""
        told, at = self._distrust
        now = self._clock()
        if why != told or now - at >= AGAIN_SECONDS:
            self._distrust = why, now
            logger.error("%s; nothing can be read or written; retrying", why)

    def take(self, error: "ApiError", verbs: str, resource: str) -> bool:
        """Reports a refused call. Returns True if the error is about credentials or permissions; if it returns False,
        the caller must log the error. verbs, resource: of the refused call, as in a Role.
        """
        now = self._clock()
        if error.status == UNAUTHORIZED:
            if now - self._rejected_at >= AGAIN_SECONDS:
                self._rejected_at = now
                logger.error(
                    "credentials rejected by %s (%s): nothing can be read or written; source: %s; retrying",
                    self._access.server, error, self._access.source or "the caller",
                )  # fmt: skip
            return True
        if error.status != FORBIDDEN:
            return False
        self._missing[verbs, resource] = error.message
        news = (verbs, resource) not in self._told or now - self._told_at >= AGAIN_SECONDS
        if news and not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)
        return True

    def _tell(self) -> None:
        """Logs the missing permissions in one line."""
        by_verbs: dict[str, list[str]] = {}
        for verbs, resource in self._missing:
            by_verbs.setdefault(verbs, []).append(resource)
        rights = "; ".join(f"{verbs} {', '.join(sorted(resources))}" for verbs, resources in by_verbs.items())
        logger.error(
            "no right to %s: grant it (docs/install.md, section 6); without it nothing is scheduled; retrying. %s",
            rights, next(iter(self._missing.values())),
        )  # fmt: skip
        self._told |= self._missing.keys()
        self._missing, self._told_at, self._gathering = {}, self._clock(), False
