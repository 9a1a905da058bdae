"""The pictures of the page: they are there, in both themes, of the size that they are made in, and small."""

import struct

import pytest

from tests.docs.page_pictures import HEIGHT, NAMES, WIDTH
from tests.docs.worked import ROOT


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_as_large_as_it_is_made(name: str) -> None:
    data = (ROOT / "docs" / name).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (WIDTH, HEIGHT)
    assert len(data) < 300_000
    assert name in (ROOT / "docs" / "view.md").read_text(encoding="utf-8")
