# SPDX-License-Identifier: Apache-2.0
"""Which regular expressions are searched: those whose worst text takes few steps, and all that people write."""

import re

import pytest

from koordpy.topology.bounded_patterns import PatternFault, read_pattern


@pytest.mark.parametrize(
    "text",
    [
        "^n[12]$", ".", "", "node-[0-9]+", r"^rack-\d+-.*-node-\d{1,3}$", "^(a|b)-(c|d)?$", r"(ab){3}", r"\(a+\)",
        "[(+]+x[*+]+[)]+",
        r"(?:spine|leaf)-\d+", "(?i)gpu", r"[]a+]+", r"a{3}b{2}", "|".join(f"n{i}" for i in range(200)),
        "^(gpu|cpu)-[a-z]+-[0-9]+-[0-9]+$", r"(r1|r2|r3)-n(\.a|\.b)?\d+?", "(?P<rack>r[0-9]+)-(?P=rack)",
    ],
)  # fmt: skip
def test_patterns_that_people_write_are_read_as_they_are(text: str) -> None:
    assert read_pattern(text) == re.compile(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a+)+$", "a repetition of a part that matches several texts is not supported"),
        ("(?:a|a)*$", "a repetition of a part that matches several texts is not supported"),
        ("((a?)b?){30}c", "a repetition of a part that matches several texts is not supported"),
        (r"(\w[)]*)+$", "a repetition of a part that matches several texts is not supported"),
        ("(x(a|aa)y)*", "a repetition of a part that matches several texts is not supported"),
        ("(?x)(a+ #)\n)+", "comments in a pattern are not supported"),
        ("(?#[)(a+)+]", "comments in a pattern are not supported"),
        ("a*a*a*a*b", "4 repetitions, at most 3 are read"),
        ("(a|a)" * 30 + "b", f"{2**30} combinations of alternatives, at most 4096 are tried"),
        ("a?" * 30 + "b", f"{2**30} combinations of alternatives, at most 4096 are tried"),
        ("((a|b)?c|d)?" * 12, f"{5**12} combinations of alternatives, at most 4096 are tried"),
        ("a*a*a*" + "(a|a)" * 7, "128 combinations of alternatives, at most 64 are tried"),
        ("a" * 1001, "1001 characters, at most 1000 are read"),
        ("n(", "missing ), unterminated subpattern at position 1"),
        ("a{99999999999}", "the repetition number is too large"),
    ],
)
def test_patterns_that_could_take_for_ever_are_refused(text: str, said: str) -> None:
    with pytest.raises(PatternFault, match=f"^{re.escape(said)}$"):
        read_pattern(text)
