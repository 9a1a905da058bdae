"""Numbers with their nouns, as sentences have them."""


def counted(number: float, noun: str) -> str:
    """`1 pod`, `3 pods`; a number that is not whole as it is, in short."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
