# SPDX-License-Identifier: Apache-2.0
"""One Chromium for all tests of the page; what is served is tried on both event loops."""

from collections.abc import Iterator

import pytest

from tests.loops import pytest_asyncio_loop_factories
from tests.loudly import skip_loudly
from tests.view.browser import Browser, found

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    if not found():
        skip_loudly(request, "the page in a browser", "no chromium is here (Debian's package chromium)")
    with Browser() as one:
        yield one
