"""The gang's sentence: what a gang needs and what there is, short enough for lists, and whole with its additions.

Source: gang-network.md section 6. The message of a member begins with the short form, and ends with the whole one where
the short form leaves something out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from koordpy.plan.limits import LISTED_DOMAINS, SENTENCE_CHARACTERS


@dataclass(frozen=True, slots=True)
class Needed:
    """`needed K, available in LAYER: DOMAIN: SLOTS, ...; ADDITION; ...` in parts, without the gang's name.

    text: all before the list of domains. domains: `DOMAIN: SLOTS` in the order in which they are named; empty where
    the text says it all. additions: what else limits the gang, each said behind a semicolon.
    """

    text: str
    domains: tuple[str, ...] = ()
    additions: tuple[str, ...] = ()

    def adding(self, additions: Iterable[str]) -> "Needed":
        """The same with further additions behind its own."""
        return replace(self, additions=(*self.additions, *additions))

    def listing(self, number: int) -> str:
        """The text with at most so many domains and the count of the others, without additions."""
        more = len(self.domains) - number
        return self.text + ", ".join(self.domains[:number]) + (f", {more} more" if more > 0 else "")

    @property
    def whole(self) -> str:
        """All of it."""
        return "; ".join((self.listing(LISTED_DOMAINS), *self.additions))


@dataclass(frozen=True, slots=True)
class GangSentence:
    """What a message says of one gang.

    unit: id of the GangGroup as users write it. met: `gang NS/NAME: minMember 4 met, 2 more waiting for room; ` of a
    gang with its minimum, else empty. never: why the unit never fits, empty where it may; where the text of `needed`
    ends with it, it is said there alone.
    """

    unit: str
    needed: Needed
    met: str = ""
    never: str = ""

    @property
    def first(self) -> str:
        """The sentence that begins the message, at most `SENTENCE_CHARACTERS` long, with its full stop."""
        if self._begins_with_never:
            return _cut(self._never)
        if _fits(self._whole):
            return _ended(self._whole)
        for lead in dict.fromkeys((self.met + self._lead, self._lead)):  # its minimum stands in the last one, too
            for number in range(min(LISTED_DOMAINS, len(self.needed.domains)), 0, -1):
                if _fits(text := lead + self.needed.listing(number)):
                    return _ended(text)
        return _cut(self._lead + self.needed.listing(1))

    @property
    def last(self) -> tuple[str, ...]:
        """The sentences that end the message: each that the first one does not say, or not as a whole."""
        if self._begins_with_never:
            return (self._whole,) if _fits(self._never) else (self._never, self._whole)
        return () if _fits(self._whole) else (self._whole,)

    @property
    def _begins_with_never(self) -> bool:
        """Whether the unit never fits for a reason that the sentence on its need does not say itself."""
        return bool(self.never) and not self.needed.text.endswith(self.never)

    @property
    def _lead(self) -> str:
        return f"gang {self.unit}: "

    @property
    def _never(self) -> str:
        return f"{self._lead}never fits: {self.never}"

    @property
    def _whole(self) -> str:
        return self.met + self._lead + self.needed.whole


def joined(sentences: Iterable[str]) -> str:
    """A message of sentences, each with a full stop unless it is a question; empty ones are left out."""
    return " ".join(map(_ended, filter(None, sentences)))


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def _fits(text: str) -> bool:
    """Whether a sentence is short enough with its full stop."""
    return len(text) < SENTENCE_CHARACTERS


def _cut(text: str) -> str:
    """A sentence that is too long ends behind a word; within one that would leave too little of it."""
    if _fits(text):
        return _ended(text)
    longest = SENTENCE_CHARACTERS - 3
    words = text[: longest + 1].rpartition(" ")[0].rstrip(",:; ")
    return (words if 2 * len(words) > longest else text[:longest]) + "..."
