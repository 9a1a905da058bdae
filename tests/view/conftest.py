"""One Chromium for all tests of the page."""

from collections.abc import Iterator

import pytest

from tests.loudly import skip_loudly
from tests.view.browser import Browser, found


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    if not found():
        skip_loudly(request, "the page in a browser", "no chromium is here (Debian's package chromium)")
    with Browser() as one:
        yield one
