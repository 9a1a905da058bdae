"""Numbers with their nouns, as sentences have them."""


def counted(number: float, noun: str) -> str:
    """`1 pod`, `3 pods`, `0.5 pods`; large ones in full, too."""
    return f"{number:.15g} {noun}" if number == 1 else f"{number:.15g} {noun}s"
