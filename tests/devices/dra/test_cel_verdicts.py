# SPDX-License-Identifier: Apache-2.0
"""Verdicts of 500 selectors on six devices, against those of Kubernetes (cel_verdicts.json).

`make cel-differential` asks Kubernetes' own package again, with 20,000 random expressions more.
"""

import json

import pytest

from tests.devices.dra.cel_differential import VERDICTS, corpus, facts_of, our_verdicts, reason, short
from tests.devices.dra.random_selectors import SelectorMaker

DEVICES, SUBJECTS, DIFFERS = corpus()
KUBERNETES = json.loads(VERDICTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_verdicts_are_those_of_kubernetes(subject: str) -> None:
    devices = [facts_of(device) for device in DEVICES]
    ours = {expression: short(our_verdicts(expression, devices)) for expression in SUBJECTS[subject]}
    assert ours == {expression: KUBERNETES[expression] for expression in SUBJECTS[subject]}


@pytest.mark.parametrize(("expression", "why"), DIFFERS.items())
def test_the_few_that_differ_have_their_reason(expression: str, why: str) -> None:
    ours = our_verdicts(expression, [facts_of(device) for device in DEVICES])
    assert short(ours) != KUBERNETES[expression]
    # the texts of Kubernetes are not recorded: what they would have to be
    word = KUBERNETES[expression]
    text = "found no matching overload" if word == "C" else "no such overload"
    theirs = ["compile", text] if word == "C" else [{"T": True, "F": False}.get(one, text) for one in word]
    assert str(reason(expression, theirs, ours)).startswith(why)


def test_the_corpus_covers_what_it_should() -> None:
    expressions = [one for group in SUBJECTS.values() for one in group]
    assert len(expressions) == len(set(expressions)) >= 300
    assert {*expressions, *DIFFERS} == set(KUBERNETES)
    assert len({KUBERNETES[one] for one in expressions}) > 20


def test_random_selectors_are_the_same_for_a_seed_and_mostly_compile() -> None:
    made = [SelectorMaker(seed).selector() for seed in range(300)]
    assert made == [SelectorMaker(seed).selector() for seed in range(300)]
    assert len(set(made)) > 250
    devices = [facts_of(device) for device in DEVICES]
    assert sum(short(our_verdicts(one, devices)) not in ("C", "U") for one in made) > 150
