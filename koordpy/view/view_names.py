"""The names of the aggregated API `view.koordpy.io`, which the server and the plugin share."""

from koordpy.view.subjects import WORDS

GROUP, VERSION = "view.koordpy.io", "v1alpha1"
RESOURCES = {"explanations": "Explanation", "queues": "Queue", "slots": "Slots", "pages": "Page"}
"""Resource -> kind. All are namespaced and are only read: `get`."""
WITH_NAMES = frozenset(("explanations",))
"""Resources that have many names; the others have one, `current`."""
ANY_KIND = "any"


def name_of(kind_word: str, name: str) -> str:
    """The name of an Explanation: `KIND.NAME`; kind_word: empty for any kind."""
    return f"{kind_word.lower() or ANY_KIND}.{name}"


def name_in_path(text: str) -> str | None:
    """`KIND/NAME` or `NAME` of the name of an Explanation; None where it is none. A kind has no dot, so the first ends
    it."""
    word, dot, name = text.partition(".")
    if not dot or not name:
        return None
    if word == ANY_KIND:
        return name
    return f"{word}/{name}" if word in WORDS else None


def path_of(namespace: str, resource: str, name: str = "current") -> str:
    """Path of a question; the name is to be quoted by the caller."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{resource}/{name}"
