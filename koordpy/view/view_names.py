# SPDX-License-Identifier: Apache-2.0
"""Names and paths of the aggregated API `view.koordpy.io`, shared by the server and the kubectl plugin."""

from koordpy.view.subjects import WORDS

GROUP, VERSION = "view.koordpy.io", "v1alpha1"
RESOURCES = {"explanations": "Explanation", "queues": "Queue", "slots": "Slots", "pages": "Page"}
"""Resource -> kind. All are namespaced, and only `get` is served."""
WITH_NAMES = frozenset(("explanations",))
"""Resources with named objects; any other resource has one object with the name `current`."""
ANY_KIND = "any"
"""First part of the name of an Explanation if the kind is not stated."""


def name_of(kind_word: str, name: str) -> str:
    """Returns the name of an Explanation, `KIND.NAME`. kind_word: empty for any kind."""
    return f"{kind_word.lower() or ANY_KIND}.{name}"


def name_in_path(text: str) -> str | None:
    """Parses the name of an Explanation into `KIND/NAME` or `NAME`; None if it is invalid.

    The first dot ends the kind, because a kind has no dot.
    """
    word, dot, name = text.partition(".")
    if not dot or not name:
        return None
    if word == ANY_KIND:
        return name
    return f"{word}/{name}" if word in WORDS else None


def path_of(namespace: str, resource: str, name: str = "current") -> str:
    """Returns the path of a resource. The caller must have quoted the name."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{resource}/{name}"
