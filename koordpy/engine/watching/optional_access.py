# SPDX-License-Identifier: Apache-2.0
"""Decides what happens if RBAC does not allow to list an optional resource: scheduling continues without it."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from koordpy.engine.changes.workload_changes import VolcanoChanges, WorkloadChanges, tell_access
from koordpy.engine.client import api_resources
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.watching.object_mirror import Sink

logger = logging.getLogger(__name__)


def access_handler(resource: Resource, sink: Sink[Any]) -> Callable[[bool, str], None] | None:
    """Returns the function to call with whether a resource may be listed. None if scheduling needs the resource, so
    that a 403 is an error."""
    if isinstance(sink, (WorkloadChanges, VolcanoChanges)):
        return partial(tell_access, sink)
    rules = api_resources.DEVICE_TAINT_RULES
    if (resource.group, resource.plural) == (rules.group, rules.plural):
        return partial(_warn_if_unread, resource.name)
    return None


def _warn_if_unread(name: str, allowed: bool, why: str) -> None:
    """Logs that a resource is ignored because it may not be listed (`on_access` of its reflector)."""
    if not allowed:
        logger.warning("no right to list and watch %s: they are ignored until it is granted: %s", name, why)
