# SPDX-License-Identifier: Apache-2.0
"""Defines the record of an object that cannot be read, because a field has a wrong type or value; and logs it."""

import logging
from dataclasses import dataclass

from koordpy.engine.client.api_resources import Resource
from koordpy.engine.watching.object_mirror import label_of
from koordpy.engine.watching.watch_lines import Names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that cannot be read."""

    resource: Resource
    names: Names
    """Name, namespace and uid of the object; each is empty if it cannot be read."""
    why: str
    """The reason: the field, and what is wrong with it."""
    meaning: str
    """The consequence for the object, as a clause: `it accepts no new pods`."""


def log_unreadable(found: Unreadable) -> None:
    """Logs an object that cannot be read as an error, with the reason and the consequence."""
    label = label_of(found.names)
    extra = {"object": label, "namespace": found.names.namespace}
    text = "%s: %s cannot be read: %s; %s"
    logger.error(text, found.resource.name, label, found.why, found.meaning, extra=extra)
