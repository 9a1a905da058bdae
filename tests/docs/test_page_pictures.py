# SPDX-License-Identifier: Apache-2.0
"""The pictures of the page: they are there, in both themes, of the size that they are made in, and small."""

import struct
import zlib

import numpy as np
import pytest

from tests.docs.page_pictures import NAMES, pixels_of, small
from tests.docs.worked import ROOT


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_as_large_as_it_is_made(name: str) -> None:
    data = (ROOT / "docs" / name).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == NAMES[name]
    assert len(data) < 400_000
    assert name in (ROOT / "docs" / "view.md").read_text(encoding="utf-8")


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


@pytest.mark.parametrize("rule", [0, 1, 2, 3, 4])
def test_a_png_is_read_whatever_its_lines_are_filtered_by(rule: int) -> None:
    pixels = np.random.default_rng(rule).integers(0, 256, (5, 7, 3))
    padded = np.zeros((6, 8, 3), np.int64)
    padded[1:, 1:] = pixels
    here, left, up, corner = padded[1:, 1:], padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guess = left + up - corner
    off = np.abs(np.stack([guess - left, guess - up, guess - corner]))
    nearest = np.choose(off.argmin(axis=0), [left, up, corner])
    base = [np.zeros_like(here), left, up, (left + up) // 2, nearest][rule]
    lines = ((here - base) % 256).astype(np.uint8).reshape(5, 21)
    raw = np.concatenate([np.full((5, 1), rule, np.uint8), lines], axis=1).tobytes()
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 7, 5, 8, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    assert (pixels_of(data) == pixels).all()
    made = small(data)
    at = made.index(b"PLTE")
    colours = np.frombuffer(made[at + 4 : at + 4 + struct.unpack(">I", made[at - 4 : at])[0]], np.uint8).reshape(-1, 3)
    body = made.index(b"IDAT")
    packed = made[body + 4 : body + 4 + struct.unpack(">I", made[body - 4 : body])[0]]
    numbers = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(5, 8)[:, 1:]
    assert (colours[numbers] == pixels).all(), "with so few colours nothing is lost"
