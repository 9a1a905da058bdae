"""Which of many random histories a run plays: of those that are always played each Python plays every other batch, so
that the two that CI tries play all of them; a variable asks for more, which one Python then plays alone."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable

from tests.engine.virtual import one_after_the_other


def batches(variable: str, most: int, batch: int) -> list[int]:
    """First seeds of the batches; of as many histories as the environment says, which counts from 0, or a part of
    `most`; a lone batch is every Python's."""
    asked, always = int(os.environ.get(variable, "0")), list(range(0, most, batch))
    return list(range(0, asked, batch)) or always[sys.version_info.minor // 2 % 2 :: 2] or always


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
