# SPDX-License-Identifier: Apache-2.0
"""Which of many random histories a run plays.

Each Python plays half of the batches that are always played, so that the two that CI tries play all of them
(`tests/halves.py`). A variable asks for more, which one Python then plays alone.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable

from tests.engine.virtual import one_after_the_other
from tests.halves import own_half


def batches(variable: str, most: int, batch: int) -> list[int]:
    """Returns the first seed of each batch: of as many histories as the environment variable says, or this Python's
    half of `most`."""
    asked = int(os.environ.get(variable, "0"))
    return list(range(0, asked, batch)) or list(own_half(range(0, most, batch)))


def played(seeds: Iterable[int], play: Callable[[int], Counter[str]]) -> tuple[Counter[str], dict[int, str]]:
    """What these histories turned, as `play` counts it, and what went wrong in which."""
    tally: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    with one_after_the_other():
        for seed in seeds:
            try:
                tally += play(seed)
            except AssertionError as error:
                wrong[seed] = str(error)
    return tally, wrong
