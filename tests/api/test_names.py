# SPDX-License-Identifier: Apache-2.0
"""Names and addresses that an API server, or the operating system, would take."""

import pytest

from koordpy.api.object_names import split_address


@pytest.mark.parametrize(
    ("text", "address"),
    [(":10259", (None, 10259)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("host:1", ("host", 1))],
)
def test_bind_addresses(text: str, address: tuple[str | None, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "10259", "host:", ":70000", ":-1", ":x"])
def test_what_is_no_bind_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid listen address"):
        split_address(text)
