"""Which of many random histories a run plays: of those that are always played each Python plays every other batch, so
that the two that CI tries play all of them; a variable asks for more, which one Python then plays alone."""

import os
import sys


def batches(variable: str, most: int, batch: int) -> list[int]:
    """First seeds of the batches; of as many histories as the environment says, which counts from 0, or a part of
    `most`."""
    asked = int(os.environ.get(variable, "0"))
    return list(range(0, asked, batch)) or list(range(0, most, batch))[sys.version_info.minor // 2 % 2 :: 2]
