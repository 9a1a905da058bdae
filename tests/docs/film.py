# SPDX-License-Identifier: Apache-2.0
"""A film of a terminal as one SVG: frames of styled lines, each line written once for as long as it stands.

It plays in a browser by CSS alone; where nothing moves (printed, or by the reader's wish) the last frame is shown. Text
is text: it can be searched and selected. Equal frames give equal bytes.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import MONOKAI, TerminalTheme

Frame = Sequence[Sequence[Segment]]
"""Lines of styled runs of text."""

THEME: TerminalTheme = MONOKAI
_WORDS = re.compile(r"\S+(?: \S+)*")
"""What stands together; wider gaps are left out, since not every reader of SVG keeps them."""
_COLUMN, _LINE, _MARGIN, _SIZE = 7.8, 17, 14, 13
"""Pixels: of a character, a line, around all, and of the font."""


def frame_of(picture: RenderableType, *, width: int) -> Frame:
    """What a terminal of some columns shows of a picture."""
    console = Console(width=width, color_system="truecolor", force_terminal=True, legacy_windows=False)
    lines = console.render_lines(picture, pad=False)
    return [tuple(Segment.simplify(line)) for line in lines]


def film(frames: Sequence[Frame], *, title: str, width: int, seconds: float, last_seconds: float) -> str:
    """The SVG. seconds: how long a frame stands; last_seconds: the last one, before it begins anew."""
    length = seconds * (len(frames) - 1) + last_seconds
    height = max(len(frame) for frame in frames)
    spans: dict[tuple[int, int], list[str]] = {}
    for at in range(height):
        for first, end, line in _standing(frames, at):
            drawn = "".join(_runs(line, at))
            if drawn:
                spans.setdefault((first, end), []).append(drawn)
    rules, groups = [], []
    for (first, end), drawn_lines in sorted(spans.items()):
        name = f"f{first}-{end}"
        groups.append(f'<g class="{name}{" last" if end == len(frames) else ""}">{"".join(drawn_lines)}</g>')
        if (first, end) != (0, len(frames)):
            rules.append(_rule(name, first * seconds / length, end * seconds / length if end < len(frames) else 1.0))
    wide, high = width * _COLUMN + 2 * _MARGIN, height * _LINE + 2 * _MARGIN
    still = "g{visibility:hidden}g.last{visibility:visible}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(wide)} {high}" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>text{{font:{_SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}}"
        f".b{{font-weight:bold}}{still}"
        f"@media screen and (prefers-reduced-motion:no-preference){{g{{animation:{_number(length)}s step-end infinite}}"
        f"{''.join(rules)}}}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{THEME.background_color.hex}"/>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def _standing(frames: Sequence[Frame], at: int) -> Iterable[tuple[int, int, Sequence[Segment]]]:
    """(first frame, frame after the last, line) for every stretch in which the line at a height stays."""
    lines = [tuple(frame[at]) if at < len(frame) else () for frame in frames]
    first = 0
    for end in range(1, len(lines) + 1):
        if end == len(lines) or lines[end] != lines[first]:
            yield first, end, lines[first]
            first = end


def _rule(name: str, begin: float, end: float) -> str:
    """Visible from one part of the film to another."""
    stops = [(0.0, begin == 0), (begin, True), (end, False)]
    written = {_number(part * 100): shown for part, shown in stops if part < 1}
    steps = "".join(f"{part}%{{visibility:{'visible' if shown else 'hidden'}}}" for part, shown in written.items())
    return f"@keyframes {name}{{{steps}}}.{name}{{animation-name:{name}}}"


def _runs(line: Sequence[Segment], at: int) -> Iterable[str]:
    column, top = 0, _MARGIN + at * _LINE
    for text, style, control in line:
        if control:
            continue
        left, wide = _number(_MARGIN + column * _COLUMN), _number(len(text) * _COLUMN)
        colour, behind, bold = _look(style)
        if behind:
            yield f'<rect x="{left}" y="{top}" width="{wide}" height="{_LINE}" fill="{behind}"/>'
        weight = ' class="b"' if bold else ""
        for word in _WORDS.finditer(text):
            left = _number(_MARGIN + (column + word.start()) * _COLUMN)
            wide, written = _number(len(word[0]) * _COLUMN), escape(word[0], quote=False)
            yield f'<text x="{left}" y="{top + 13}" textLength="{wide}" fill="{colour}"{weight}>{written}</text>'
        column += len(text)


def _look(style: Style | None) -> tuple[str, str, bool]:
    """(colour of the text, colour behind it or nothing, whether it is bold)."""
    if style is None:
        return THEME.foreground_color.hex, "", False
    front, back = style.color, style.bgcolor
    colour = front.get_truecolor(THEME) if front is not None and not front.is_default else THEME.foreground_color
    behind = back.get_truecolor(THEME, foreground=False) if back is not None and not back.is_default else None
    if style.reverse:
        colour, behind = behind or THEME.background_color, colour
    if style.dim and behind is None:
        parts = zip(colour, THEME.background_color, strict=True)
        red, green, blue = (int(mine * 0.62 + under * 0.38) for mine, under in parts)
        return f"#{red:02x}{green:02x}{blue:02x}", "", bool(style.bold)
    return colour.hex, behind.hex if behind is not None else "", bool(style.bold)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
