"""Resource versions as an order: whether a watch is past a write (KEP-5504)."""


def is_older(version: str, than: str) -> bool:
    """Whether a resource version is known to come before another."""
    numbers = all(text.isascii() and text.isdigit() for text in (version, than))
    return numbers and int(version) < int(than)


def reached(version: str, wanted: str) -> bool:
    """Whether a resource version is at least another; they count up (KEP-5504), and equal ones are equal anyhow.

    Nothing is wanted by an empty one.
    """
    if not wanted:
        return True
    if version.isascii() and version.isdigit() and wanted.isascii() and wanted.isdigit():
        return int(version) >= int(wanted)
    return version == wanted
