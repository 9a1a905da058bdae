# SPDX-License-Identifier: Apache-2.0
"""Draws the demo as text: the tree of network domains with the pods on each node, and a table of gangs.

A node is a bar with one character for each GPU. A pod covers as many characters as it uses GPUs, and is marked with the
letter of its gang and its rank. Colours repeat the letters. If the terminal has too few lines for the whole tree,
blocks (the layer above the lowest switches) are drawn as one line, first those that changed longest ago.
"""

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from koordpy.api.natural_order import natural_key
from koordpy.demo.demo_scene import DemoScene, DrawnPod, Row

# colours of gangs, by their letters
PALETTE = (
    "bright_cyan",
    "bright_green",
    "bright_yellow",
    "bright_red",
    "orange1",
    "medium_purple1",
    "deep_pink2",
    "dodger_blue1",
    "khaki1",
    "aquamarine1",
    "salmon1",
    "thistle1",
)


_NAME = 8
"""Minimum columns for a node's name if the terminal is wide enough, so that bars are aligned."""
_WIDEST = 100
"""Maximum columns of the tree on a terminal of any width."""


@dataclass(frozen=True, slots=True)
class Style:
    """Properties of the terminal that decide how the picture is drawn."""

    colour: bool
    unicode: bool

    @classmethod
    def for_console(cls, console: Console) -> "Style":
        """Returns the style for a console, from its colour system, NO_COLOR and its encoding."""
        colour = console.color_system is not None and not console.no_color
        return cls(colour, "utf" in (console.encoding or "").lower())

    def hue(self, letter: str) -> str:
        """Returns the colour of a gang's letter."""
        return PALETTE[(ord(letter) - ord("A")) % len(PALETTE)]

    def chip(self, letter: str) -> Text:
        """Returns the letter of a gang in its colour."""
        return Text(letter, style=f"bold black on {self.hue(letter)}" if self.colour else "bold")

    def guide(self, *, last: bool) -> str:
        """Returns the branch of the tree before a domain. last: True for the last child."""
        if self.unicode:
            return "└─ " if last else "├─ "
        return "`- " if last else "|- "

    def rail(self, *, last: bool) -> str:
        """Returns the vertical line of the tree next to the children of a domain. last: True for the last child."""
        return "   " if last else "│  " if self.unicode else "|  "

    @property
    def free(self) -> str:
        """Character of a free GPU."""
        return "·" if self.unicode else "."


class Picture:
    """Draws a scene."""

    def __init__(self, scene: DemoScene, style: Style) -> None:
        self.scene, self.style, self.tree = scene, style, scene.tree
        self._block = max(1, scene.tree.depth - 2)
        """Level of the domains that may be drawn as one line."""
        self._width = _WIDEST
        self._folded: set[int] = set()
        """Domains of the block layer that are drawn as one line now."""

    def render(self, *, seconds: float, width: int, height: int, status: str) -> RenderableType:
        """Returns the whole picture with at most `height` lines; long lines are cut."""
        rows = gang_lines(self.scene.rows, self.style)
        tail = self._newest(width)
        # number of lines beside the tree: title, blank lines, headings, gangs, and the latest act
        other_lines = 2 + (rows.row_count + 2) + len(tail)
        tree = self.lines(width)
        if len(tree) + other_lines > height:
            hint = Text(f"(a terminal of {len(tree) + other_lines} lines shows the whole tree)", style="dim")
            newest = max(1, height - len(tail) - 8)  # 8: title, headings, blank lines and three lines of the tree
            if newest < rows.row_count:
                rows = gang_lines(self.scene.rows[-newest:], self.style)
                other_lines = 2 + (rows.row_count + 2) + len(tail)
            tree = [*self.lines(width, height - other_lines - 1), hint]
        return Group(self._title(seconds, status), Text(), *tree, Text(), rows, *tail)

    def _title(self, seconds: float, status: str) -> Text:
        """Returns the first line of the picture."""
        nodes = self.tree.node_names
        line = Text("koordpy demo", style="bold")
        line.append(f"   {seconds:5.1f} s   {len(nodes)} nodes, ", style="not bold")
        line.append(
            f"{self.scene.used(nodes)} of {self.scene.total(nodes)} {self.scene.devices} in use", style="not bold"
        )
        line.append(f"   {status}", style="not bold dim")
        return line

    def _newest(self, width: int) -> list[Text]:
        """Returns the latest act with the reason for its placement."""
        if not self.scene.rows:
            return []
        lines = [Text(), *(Text(line, style="bold") for line in _wrapped(self.scene.headline, width, ""))]
        row = self.scene.newest
        for text in (row.why if row.bound else "", row.message):
            lines += [Text(line, style="red" if text is row.message else "") for line in _wrapped(text, width)]
        return lines

    # The tree

    def lines(self, width: int, budget: int | None = None) -> list[Text]:
        """Returns the lines of the tree, from the top layer down.

        Blocks are drawn as one line, first those that changed longest ago, until the tree has at most `budget` lines.
        None: no limit.
        """
        self._width, self._folded = min(width, _WIDEST), set()
        lines = list(self._children(0, 0, ""))
        if budget is None:
            return lines
        for block in self._by_quiet():
            if len(lines) <= budget:
                break
            self._folded.add(block)
            lines = list(self._children(0, 0, ""))
        return lines[: max(budget, 3)]

    def _by_quiet(self) -> list[int]:
        """Returns the domains of the block layer that have pods, the domain that changed longest ago first."""
        level = self.tree.levels[self._block]
        found = []
        for d in range(len(level)):
            seen = [self.scene.changed.get(node, 0) for node in self._nodes(self._block, d)]
            if any(seen):
                found.append((max(seen), d))
        return [d for _, d in sorted(found)]

    def _nodes(self, level: int, domain: int) -> tuple[str, ...]:
        """Returns the names of the nodes in a domain."""
        at = self.tree.levels[level]
        return self.tree.node_names[int(at.start[domain]) : int(at.end[domain])]

    def _empty(self, level: int, domain: int) -> bool:
        """Returns True if no pod is on the nodes of a domain."""
        return not any(self.scene.drawn_pods.get(node) for node in self._nodes(level, domain))

    def _children(self, level: int, domain: int, indent: str) -> Iterator[Text]:
        """Yields the lines below a domain. Consecutive empty children are drawn as one line. indent: of their lines."""
        children = list(self.tree.children(level, domain))
        runs: list[list[int]] = []
        for empty, alike in groupby(children, key=lambda child: self._empty(level + 1, child)):
            group = list(alike)
            runs += [group] if empty else [[child] for child in group]
        for run in runs:
            last = run[-1] == children[-1]
            guide = Text().append(indent + (self.style.guide(last=last) if level else ""), style="dim")
            rail = indent + (self.style.rail(last=last) if level else "")
            yield from self._domain(level + 1, run, guide, rail)

    def _domain(self, level: int, run: list[int], guide: Text, rail: str) -> Iterator[Text]:
        """Yields the lines of a domain and of everything below it.

        run: the domain, or several consecutive empty domains. guide: begin of the first line. rail: begin of further
        lines. There are three cases: empty domains, the lowest layer (bars of nodes), and all others (a heading and the
        children).
        """
        names = self.tree.levels[level].names
        first = run[0]
        nodes = [node for d in run for node in self._nodes(level, d)]
        free = self.scene.total(nodes) - self.scene.used(nodes)
        if self._empty(level, first):
            label = names[first] if len(run) == 1 else f"{names[first]} ... {names[run[-1]]}"
            guide.append(f"{label}  ")
            yield guide.append(f"{len(nodes)} nodes, {free} {self.scene.devices}, all free", style="dim")
        elif level == self.tree.depth - 1:
            # put as many nodes in a line as fit, in columns of equal width
            column = max(map(len, names))
            guide.append(f"{names[first]:<{column}}")
            has_cpu_pods = any(not pod.gpus for drawn in self.scene.drawn_pods.values() for pod in drawn)
            widest = max(self.scene.gpus[node] for node in nodes) + 3 * has_cpu_pods
            name = max(len(node) for node in nodes) + 1
            room = self._width - len(guide)
            at_once = max(1, room // (1 + name + widest))
            if room // (1 + _NAME + widest) >= min(at_once, len(nodes)):
                name = max(name, _NAME)
            for start in range(0, len(nodes), at_once):
                line, gap = guide if not start else Text(f"{rail}{'':<{column}}", style="dim"), 0
                for node in nodes[start : start + at_once]:
                    bar = self.bar(node)
                    line.append(f"{'':<{gap}} {node:<{name}}").append_text(bar)
                    gap = max(0, widest - len(bar))
                yield line
        else:
            text = f"{names[first]}  " if level < self._block else f"{names[first]:<9} "
            guide.append(text, style="bold")
            guide.append(f"{free} of {self.scene.total(nodes)} {self.scene.devices} free", style="dim")
            if level == self._block and first in self._folded:
                yield guide.append_text(self._summary(nodes))
            else:
                yield guide
                yield from self._children(level, first, rail)

    def _summary(self, nodes: list[str]) -> Text:
        """Returns the number of pods of each gang on nodes, for a block that is drawn as one line."""
        counts = Counter(pod.letter for node in nodes for pod in self.scene.drawn_pods.get(node, ()))
        line = Text("   ")
        for letter in sorted(counts):
            line.append_text(self.style.chip(letter)).append(
                f" {counts[letter]} pod{'s' if counts[letter] > 1 else ''}   "
            )
        return line

    def bar(self, node: str) -> Text:
        """Returns the bar of a node: its GPUs, one character each, then after a `+` each pod without GPUs."""
        bar, taken, cpu_pods = Text(), 0, []
        for pod in self.scene.drawn_pods.get(node, ()):
            if pod.gpus:
                bar.append_text(self._pod_text(pod))
                taken += pod.gpus
            else:
                cpu_pods.append(pod)
        bar.append(self.style.free * (self.scene.gpus[node] - taken), style="dim")
        for pod in cpu_pods:
            bar.append("+").append_text(self._pod_text(pod))
        return bar

    def _pod_text(self, pod: DrawnPod) -> Text:
        """Returns the text of one pod: letter and rank, as wide as its GPUs; only the letter if the rank does not
        fit."""
        label = f"{pod.letter}{pod.rank}"
        width = pod.gpus or len(label)
        fill = " " if self.style.colour else "=" if pod.running else "-"
        style = ""
        if self.style.colour:
            hue = self.style.hue(pod.letter)
            style = f"black on {hue}" if pod.running else f"{hue} reverse dim"
        return Text((label if len(label) <= width else pod.letter).ljust(width, fill), style=style)


# The gangs


def _brief(row: Row) -> str:
    """Returns the most specific part of a gang's reason. For a pending gang, its message without the gang's name."""
    if row.bound:
        return row.why.split("; ", 1)[-1]
    return row.message.removeprefix(f"gang {row.forecast.name}: ")


def state_of(row: Row) -> str:
    """Returns the state of a gang as one word."""
    if not row.arrived:
        return "evicted" if row.evicted else "arriving"
    if row.bound == row.members:
        return "running" if row.running == row.members else "bound"
    return "partly" if row.bound else "pending"


def gang_lines(rows: list[Row], style: Style) -> Table:
    """Returns a table with one line per gang, cut at the width of the terminal."""
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, heading in enumerate(("", "GANG", "BOUND", "STATE", "DOMAIN", "PROOF", "WHY")):
        table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1 if number == 6 else None)
    for row in sorted(rows, key=lambda row: natural_key(row.letter)):
        settled = row.bound or row.message
        table.add_row(
            style.chip(row.letter),
            row.name,
            f"{row.bound}/{row.members}",
            Text(state_of(row), style="red" if state_of(row) == "pending" else ""),
            _last_of(row.place),
            row.forecast.proof if settled else "",
            Text(_brief(row), style="dim"),
        )
    return table


def summary(rows: list[Row], style: Style, *, width: int) -> Group:
    """Returns every gang with its complete reason, for the end of the demo."""
    names = max((len(row.name) for row in rows), default=0)
    parts: list[RenderableType] = []
    for row in rows:
        line = style.chip(row.letter)
        line.append(f"  {row.name:<{names}}  ", style="default on default not bold")
        line.append(f"{row.bound}/{row.members} bound".ljust(13), style="default on default not bold")
        line.append(f"{row.forecast.proof:<10}  {row.place or state_of(row)}", style="default on default not bold")
        parts.append(line)
        texts = ([row.why] if row.bound or row.evicted else []) + ([row.message] if row.message else [])
        for text in texts:
            parts += [Text(line, style="dim" if row.bound else "") for line in _wrapped(text, width)]
    return Group(*parts)


def _wrapped(text: str, width: int, indent: str = "   ") -> list[str]:
    """Returns a text in lines of at most `width` columns; words are not broken."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _last_of(place: str) -> str:
    """Returns the last part of a domain's path, because names of domains are unique in the demo's cluster."""
    return place.rpartition(" ")[2].rpartition("/")[2]
