# SPDX-License-Identifier: Apache-2.0
"""The colours of the page, by number: contrast to their grounds, and differences with each kind of colour blindness.

Contrast is WCAG 2's ratio. Differences are CIEDE2000, colour blindness is Machado, Oliveira and Fernandes (2009) at
severity 1. Both are written here from their papers and held to published values first.
"""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import koordpy.view

PAGE = Path(koordpy.view.__file__).with_name("page.html").read_text(encoding="utf-8")
THEMES = ("light", "dark")
APART, APART_BLIND = 18.0, 11.0
"""Least CIEDE2000 of two colours of the palette: as most people see them, and as colour-blind people do. Two is the
least difference that a person notices side by side, ten is seen at a glance."""
Colour = np.ndarray[Any, np.dtype[np.float64]]

XYZ = np.array([
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
])  # fmt: skip
BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]
    ],
}  # fmt: skip


def palettes(name: str) -> dict[str, list[str]]:
    """A table of colours of the page's script, by theme."""
    body = re.search(rf"const {name} = {{(.*?)}};", PAGE, re.DOTALL)
    assert body is not None
    found = {
        theme: json.loads(colours) for theme, colours in re.findall(r"(light|dark): (\[.*?\])", body[1], re.DOTALL)
    }
    assert found.keys() == set(THEMES)
    return found


def variables(theme: str) -> dict[str, str]:
    """The page's CSS variables that are colours."""
    head = ":root {" if theme == "light" else ':root[data-theme="dark"] {'
    block = PAGE.partition(head)[2].partition("}")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))


def linear(text: str) -> Colour:
    """[red, green, blue] of light."""
    steps = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.asarray(np.where(steps <= 0.04045, steps / 12.92, ((steps + 0.055) / 1.055) ** 2.4))


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((float(linear(text) @ XYZ[1]) for text in (one, other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def lab(light: Colour) -> Colour:
    ratio = XYZ @ light / np.array([0.95047, 1.0, 1.08883])
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one: Colour, other: Colour) -> float:
    """Sharma, Wu and Dalal (2005), with every weight 1."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25.0**7)))
    c1, c2 = np.hypot(a1 * (1 + g), b1), np.hypot(a2 * (1 + g), b2)
    h1, h2 = (np.degrees(np.arctan2(b, a * (1 + g))) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn, hues = h2 - h1, h1 + h2
    if c1 * c2 == 0:
        turn, hue = 0.0, hues
    else:
        turn += 360 if turn < -180 else -360 if turn > 180 else 0
        hue = hues / 2 if abs(h1 - h2) <= 180 else (hues + 360) / 2 if hues < 360 else (hues - 360) / 2
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * np.cos(np.radians(hue - 30)) + 0.24 * np.cos(np.radians(2 * hue))
    t += 0.32 * np.cos(np.radians(3 * hue + 6)) - 0.20 * np.cos(np.radians(4 * hue - 63))
    sl = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    bend = np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    rt = -bend * 2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    dl, dc, dh = (l2 - l1) / sl, (c2 - c1) / sc, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / sh
    return float(np.sqrt(dl**2 + dc**2 + dh**2 + rt * dc * dh))


@pytest.mark.parametrize(("one", "other", "apart"), [
    ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
    ((50.0, 3.1571, -77.2803), (50.0, 0.0, -82.7485), 2.8615),
    ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0000),
    ((50.0, 2.5, 0.0), (50.0, 0.0, -2.5), 4.3065),
    ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
    ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
])  # fmt: skip
def test_the_measure_has_the_published_values(one: Any, other: Any, apart: float) -> None:
    assert round(ciede2000(np.array(one), np.array(other)), 4) == apart
    assert round(ciede2000(np.array(other), np.array(one)), 4) == apart


@pytest.mark.parametrize(("one", "other", "ratio"), [
    ("#000000", "#ffffff", 21.0),
    ("#777777", "#ffffff", 4.48),
    ("#767676", "#ffffff", 4.54),
    ("#ff0000", "#ffffff", 4.0),
])  # fmt: skip
def test_the_contrast_has_the_published_values(one: str, other: str, ratio: float) -> None:
    assert contrast(one, other) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["PALETTES", "RAMPS"])
def test_cells_stand_out_from_their_ground(theme: str, name: str) -> None:
    grounds = [variables(theme)[one] for one in ("panel", "raise", "lit")]
    for colour in palettes(name)[theme]:
        assert min(contrast(colour, one) for one in grounds) >= 3, colour
        assert max(contrast(colour, text) for text in ("#000000", "#ffffff")) >= 4.5, "the rank is read"


@pytest.mark.parametrize("theme", THEMES)
def test_free_and_sick_cells_stand_out_too(theme: str) -> None:
    of = variables(theme)
    assert min(contrast(of[one], of[ground]) for one in ("cell", "bad") for ground in ("panel", "raise")) >= 3


@pytest.mark.parametrize("theme", THEMES)
def test_texts_are_read_on_their_ground(theme: str) -> None:
    of = variables(theme)
    pairs = [(ink, ground) for ink in ("ink", "faint", "accent") for ground in ("panel", "raise", "ground", "mark")]
    pairs += [("bad", "badground"), ("good", "goodground"), ("warn", "warnground"), ("bad", "panel"), ("warn", "panel")]
    weak = {(ink, ground): contrast(of[ink], of[ground]) for ink, ground in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


def _seen(name: str) -> Callable[[Colour], Colour]:
    matrix = np.array(BLINDNESS[name])
    return lambda light: np.clip(matrix @ light, 0, 1)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("eyes", "least"), [(None, APART), *((name, APART_BLIND) for name in BLINDNESS)])
def test_twelve_colours_are_told_apart(theme: str, eyes: str | None, least: float) -> None:
    see = _seen(eyes) if eyes else lambda light: light
    colours = palettes("PALETTES")[theme]
    assert len(set(colours)) >= 12
    found = {text: lab(see(linear(text))) for text in colours}
    near = {(a, b): ciede2000(found[a], found[b]) for a, b in itertools.combinations(colours, 2)}
    assert {pair: apart for pair, apart in near.items() if apart < least} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_priorities_grow_in_lightness(theme: str) -> None:
    """An order is seen by lightness alone, so that colour blindness does not change it."""
    light = [float(lab(linear(text))[0]) for text in palettes("RAMPS")[theme]]
    steps = np.diff(light) * (1 if theme == "dark" else -1)
    assert steps.min() >= 7
