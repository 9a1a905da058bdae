"""Objects that cannot be read: the object, the reason, and the consequence."""

import logging
from dataclasses import dataclass

from koordpy.engine.client.api_resources import Resource
from koordpy.engine.watching.object_mirror import label_of
from koordpy.engine.watching.watch_lines import Names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that cannot be read, the reason (`why`), and the consequence (`meaning`)."""

    resource: Resource
    names: Names
    why: str
    meaning: str


def log_unreadable(found: Unreadable) -> None:
    """Logs an object that cannot be read as an error, with the reason and the consequence."""
    label = label_of(found.names)
    extra = {"object": label, "namespace": found.names.namespace}
    text = "%s: %s cannot be read: %s; %s"
    logger.error(text, found.resource.name, label, found.why, found.meaning, extra=extra)
