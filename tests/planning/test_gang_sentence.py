# SPDX-License-Identifier: Apache-2.0
"""The gang's sentence: at most 120 characters in front, and whole at the end where something was left out."""

import pytest

from koordpy.report.gang_sentence import GangNeed, GangSentence, join_sentences

FIVE = tuple(f"s{i}/block-{i}: {9 - i}" for i in range(5))
LONG = tuple(f"spine-{i}/block-{i}/rack-{i}: {9 - i}" for i in range(7))
MULTIPLE = "podCountMultiple blockLayer=8"
SPREAD = "spread over topology.kubernetes.io/zone"
MET = "gang team/train: minMember 4 met, 2 more waiting for room; "
UNIT = "team/train"
OFFER = "needed 16, available in rackLayer: "

CASES: dict[str, tuple[GangSentence, str, tuple[str, ...]]] = {
    "short": (
        GangSentence(UNIT, GangNeed(OFFER, ("r1: 4", "r2: 3"))),
        "gang team/train: needed 16, available in rackLayer: r1: 4, r2: 3.",
        (),
    ),
    "short with additions": (
        GangSentence(UNIT, GangNeed("needed 9, available in the cluster: ", ("6",), (MULTIPLE,))),
        f"gang team/train: needed 9, available in the cluster: 6; {MULTIPLE}.",
        (),
    ),
    "additions that do not fit": (
        GangSentence(UNIT, GangNeed(OFFER, ("r1: 4", "r2: 3"), (MULTIPLE, SPREAD))),
        "gang team/train: needed 16, available in rackLayer: r1: 4, r2: 3.",
        (f"gang team/train: {OFFER}r1: 4, r2: 3; {MULTIPLE}; {SPREAD}",),
    ),
    "as many domains as fit": (
        GangSentence(UNIT, GangNeed(OFFER, FIVE)),
        f"gang team/train: {OFFER}s0/block-0: 9, s1/block-1: 8, s2/block-2: 7, s3/block-3: 6, 1 more.",
        (f"gang team/train: {OFFER}{', '.join(FIVE)}",),
    ),
    "domains beyond the fifth are counted with them": (
        GangSentence(UNIT, GangNeed(OFFER, LONG)),
        f"gang team/train: {OFFER}{LONG[0]}, {LONG[1]}, 5 more.",
        (f"gang team/train: {OFFER}{', '.join(LONG[:5])}, 2 more",),
    ),
    "a minimum that is met": (
        GangSentence(UNIT, GangNeed("needed 1, available in rackLayer: ", ("r1: 0",)), minimum_met=MET),
        f"{MET}gang team/train: needed 1, available in rackLayer: r1: 0.",
        (),
    ),
    "what is still too long is cut": (
        GangSentence(UNIT, GangNeed(OFFER, ("s" * 90 + ": 4",))),
        f"gang {UNIT}: {OFFER}{'s' * 65}...",
        (f"gang {UNIT}: {OFFER}{'s' * 90}: 4",),
    ),
    "a long id leaves space for the cause": (
        GangSentence("n" * 60, GangNeed(OFFER, LONG)),
        f"gang {'n' * 41}...: {OFFER}{LONG[0]}, 6 more.",
        (f"gang {'n' * 60}: {OFFER}{', '.join(LONG[:5])}, 2 more",),
    ),
    "a long id is not cut below its minimum": (
        GangSentence("n" * 60, GangNeed("y" * 100)),
        f"gang {'n' * 29}...: {'y' * 78}...",
        (f"gang {'n' * 60}: {'y' * 100}",),
    ),
    "a long id before never": (
        GangSentence("n" * 90, GangNeed(OFFER, ("r1: 4",)), never="the largest rackLayer has room for 4 members"),
        f"gang {'n' * 53}...: never fits: the largest rackLayer has room for 4 members.",
        (f"gang {'n' * 90}: {OFFER}r1: 4",),
    ),
    "never that the need continues with": (
        GangSentence(UNIT, GangNeed("needed 4, no node has the label a"), never="no node has the label a"),
        f"gang {UNIT}: never fits: no node has the label a.",
        (f"gang {UNIT}: needed 4, no node has the label a",),
    ),
    "a minimum that is met stands in the last one where both are too much": (
        GangSentence(UNIT, GangNeed("needed 1, available in rackLayer: ", ("spine-1/rack-001: 0",)), minimum_met=MET),
        "gang team/train: needed 1, available in rackLayer: spine-1/rack-001: 0.",
        (f"{MET}gang team/train: needed 1, available in rackLayer: spine-1/rack-001: 0",),
    ),
    "a cut leaves out no part of a word": (
        GangSentence(UNIT, GangNeed(OFFER, ("r1: 4",)), never="the words of it, " * 9 + "end"),
        f"gang team/train: never fits: {'the words of it, ' * 5}the...",
        (f"gang team/train: never fits: {'the words of it, ' * 9}end", f"gang team/train: {OFFER}r1: 4"),
    ),
    "never that the need says itself": (
        GangSentence(
            UNIT,
            GangNeed("bound members are in two domains of rackLayer: r0, r1"),
            never="bound members are in two domains of rackLayer: r0, r1",
        ),
        "gang team/train: bound members are in two domains of rackLayer: r0, r1.",
        (),
    ),
    "a question has no full stop": (
        GangSentence(UNIT, GangNeed("needed 4, no node has the label a, did you mean b?")),
        "gang team/train: needed 4, no node has the label a, did you mean b?",
        (),
    ),
    "never": (
        GangSentence(UNIT, GangNeed(OFFER, ("r1: 4",)), never="the largest rackLayer has room for 4 members"),
        "gang team/train: never fits: the largest rackLayer has room for 4 members.",
        (f"gang team/train: {OFFER}r1: 4",),
    ),
    "never in front of a minimum that is met": (
        GangSentence(UNIT, GangNeed("needed 1", ()), minimum_met=MET, never="why"),
        "gang team/train: never fits: why.",
        (f"{MET}gang team/train: needed 1",),
    ),
    "never that is cut": (
        GangSentence(UNIT, GangNeed(OFFER, ("r1: 4",)), never="y" * 100),
        f"gang team/train: never fits: {'y' * 88}...",
        (f"gang team/train: never fits: {'y' * 100}", f"gang team/train: {OFFER}r1: 4"),
    ),
}


@pytest.mark.parametrize(("sentence", "first", "last"), CASES.values(), ids=CASES)
def test_the_first_sentence_is_short_and_the_last_ones_whole(
    sentence: GangSentence, first: str, last: tuple[str, ...]
) -> None:
    assert sentence.first == first and len(first) <= 120
    assert sentence.last == last


@pytest.mark.parametrize("length", range(100, 130))
def test_the_full_stop_counts(length: int) -> None:
    lead = "gang g: "
    text = "x" * (length - len(lead) - 1)
    sentence = GangSentence("g", GangNeed(text))
    whole = f"{lead}{text}."
    assert len(whole) == length
    assert sentence.first == (whole if length <= 120 else whole[:117] + "...")
    assert sentence.last == (() if length <= 120 else (whole[:-1],))


def test_each_sentence_of_a_message_has_a_full_stop() -> None:
    assert join_sentences(["one", "two.", "", "cut..."]) == "one. two. cut..."
