# SPDX-License-Identifier: Apache-2.0
"""The gang's sentence in the message of a pending member: what the gang needs, and what is available where.

Example: `gang default/train: needed 8, available in block: b1: 5, b2: 3.` Lists such as `kubectl get events` show only
the beginning of a message. Therefore the message begins with a short form of the sentence, which has at most
`SENTENCE_CHARACTERS` characters. If the short form leaves something out, the message ends with the full form.
Source: gang-network.md section 6.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from koordpy.plan.limits import LISTED_DOMAINS, SENTENCE_CHARACTERS, UNIT_CHARACTERS


@dataclass(frozen=True, slots=True)
class GangNeed:
    """The parts of `needed K, available in LAYER: DOMAIN: SLOTS, ...; ADDITION; ...`, without the gang's name."""

    text: str
    """The sentence up to the list of domains."""
    domains: tuple[str, ...] = ()
    """`DOMAIN: SLOTS` in the order of the sentence; empty if the text needs no list."""
    additions: tuple[str, ...] = ()
    """Other limits of the gang, which follow the list; the sentence has a semicolon before each."""

    def with_additions(self, additions: Iterable[str]) -> "GangNeed":
        """Returns the sentence with further additions at the end."""
        return replace(self, additions=(*self.additions, *additions))

    def with_domains(self, number: int) -> str:
        """Returns the text with the first `number` domains and the count of the remaining ones, without additions."""
        more = len(self.domains) - number
        return self.text + ", ".join(self.domains[:number]) + (f", {more} more" if more > 0 else "")

    @property
    def whole(self) -> str:
        """The full sentence with additions."""
        return "; ".join((self.with_domains(LISTED_DOMAINS), *self.additions))


@dataclass(frozen=True, slots=True)
class GangSentence:
    """The part of a pod's message that is about its gang."""

    unit: str
    """Id of the GangGroup as users write it."""
    need: GangNeed
    minimum_met: str = ""
    """`gang NS/NAME: minMember 4 met, 2 more waiting for room; ` for a gang with its minimum met; else empty."""
    never: str = ""
    """Why the unit never fits; empty if it may fit. If it equals the text of `need`, the message has it only once."""

    @property
    def first(self) -> str:
        """The first sentence of the message, at most `SENTENCE_CHARACTERS` long, with its full stop."""
        if self._begins_with_never:
            return _cut(short_lead(self.unit, text := f"never fits: {self.never}") + text)
        if _fits(self._whole):
            return _ended(self._whole)
        for lead in dict.fromkeys(
            (self.minimum_met + self._lead, self._lead)
        ):  # if the minimum is left out here, the last sentence has it
            for number in range(min(LISTED_DOMAINS, len(self.need.domains)), 0, -1):
                if _fits(text := lead + self.need.with_domains(number)):
                    return _ended(text)
        text = self.need.with_domains(1)
        return _cut(short_lead(self.unit, text) + text)

    @property
    def last(self) -> tuple[str, ...]:
        """The last sentences of the message: everything that the first one omits or cuts; empty if nothing."""
        if self._begins_with_never:
            is_cut = self.first.endswith("...")
            return (f"{self._lead}never fits: {self.never}", self._whole) if is_cut else (self._whole,)
        return () if _fits(self._whole) else (self._whole,)

    @property
    def _begins_with_never(self) -> bool:
        """True if the unit never fits, for a reason that is not the text of `need`."""
        return bool(self.never) and self.need.text != self.never

    @property
    def _lead(self) -> str:
        return f"gang {self.unit}: "

    @property
    def _whole(self) -> str:
        return self.minimum_met + self._lead + self.need.whole


def short_lead(unit: str, text: str) -> str:
    """Returns `gang UNIT: `, the beginning of a message; `text` continues its first sentence.

    The id of the unit is cut so that the text fits, but not to fewer than `UNIT_CHARACTERS` characters.
    """
    space = max(UNIT_CHARACTERS, SENTENCE_CHARACTERS - len(f"gang : {text}."))
    return f"gang {unit if len(unit) <= space else unit[: space - 3] + '...'}: "


def join_sentences(sentences: Iterable[str]) -> str:
    """Returns a message of sentences, each with a full stop unless it is a question; empty ones are left out."""
    return " ".join(map(_ended, filter(None, sentences)))


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def _fits(text: str) -> bool:
    """Returns True if a sentence with its full stop is short enough."""
    return len(text) < SENTENCE_CHARACTERS


def _cut(text: str) -> str:
    """Returns a sentence that is short enough, cut after a word if it is too long.

    It is cut within a word if a cut after a word would remove more than half of it.
    """
    if _fits(text):
        return _ended(text)
    longest = SENTENCE_CHARACTERS - 3
    words = text[: longest + 1].rpartition(" ")[0].rstrip(",:; ")
    return (words if 2 * len(words) > longest else text[:longest]) + "..."
