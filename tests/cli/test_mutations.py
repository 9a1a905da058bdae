# SPDX-License-Identifier: Apache-2.0
"""Examples with one thing wrong are answered, or refused with the place of the fault; never a traceback."""

import os
from pathlib import Path

import pytest

from tests.cli.mutations import EXAMPLES, Answer, Base, Mutant, answer, bases, judged, run

COUNT = int(os.environ.get("KOORDPY_MUTANTS", "100"))
"""Of each command."""
COMMANDS = sorted({base.words[0] for base in bases()})


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_is_wrong_with_an_example_it_is_answered_or_refused_with_its_place(command: str) -> None:
    among = [base for base in bases() if base.words[0] == command]
    assert run(COMMANDS.index(command) * 1_000_000, COUNT, among) == {}


def test_the_examples_as_they_are_are_answered(tmp_path: Path) -> None:
    for base in {base.files: base for base in bases()}.values():
        one = as_it_is(base)
        got = answer(one, tmp_path)
        assert (got.status, judged(one, got, tmp_path)) == (0, ""), base


def as_it_is(base: Base) -> Mutant:
    return Mutant(base.words, tuple((Path(name).name, (EXAMPLES / name).read_bytes()) for name in base.files), "")


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (Answer(-1, "", "", "Traceback"), "Traceback"),
        (Answer(1, "", "x", ""), "exit status 1"),
        (Answer(2, "", "", ""), "without a word"),
        (Answer(2, "out", "FOLDER/f: x", ""), "something on stdout"),
        (Answer(2, "", "x is wrong", ""), "a fault without its place"),
        (Answer(0, "{", "", ""), "no JSON"),
        (Answer(0, "{}", "oh", ""), "exit status 0, but"),
    ],
)
def test_a_bad_answer_is_found(got: Answer, said: str, tmp_path: Path) -> None:
    told = Answer(got.status, got.out, got.err.replace("FOLDER", str(tmp_path)), got.raised)
    assert said in judged(Mutant(("simulate", "-o", "json"), (), ""), told, tmp_path)
