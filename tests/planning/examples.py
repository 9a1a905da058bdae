# SPDX-License-Identifier: Apache-2.0
"""The worked examples of gang-network.md section 5 as problems with their answers."""

from dataclasses import dataclass

from koordpy.placement.problem import Problem
from tests.planning.oracle import Place, problem_of


@dataclass(frozen=True)
class Example:
    name: str
    problem: Problem
    answer: dict[int, str]
    small: bool = True
    """Small enough for plain enumeration."""


def _places(text: str, only: str | None = None) -> list[Place]:
    """`s1/b1: n1 n2=3; ...`: nodes with one slot, or as many as said; `only` keeps the named ones."""
    keep = None if only is None else only.split()
    out = []
    for part in text.split(";"):
        path, nodes = part.split(":")
        for node in nodes.split():
            name, _, room = node.partition("=")
            if keep is None or name in keep:
                out.append(Place((*path.strip().split("/"), name), (int(room or 1),)))
    return out


def _answer(text: str) -> dict[int, str]:
    return {rank: name for rank, name in enumerate(text.split()) if name != "-"}


F = "s1/b1: node-1 node-8; s1/b2: node-2 node-7; s2/b3: node-3 node-6; s2/b4: node-4 node-5"
F2 = "s1/b1: node-1=2 node-8=2; s1/b2: node-2=2 node-7=2; s2/b3: node-3=2 node-6=2; s2/b4: node-4=2 node-5=2"
G = "s0/b0: n1 n2 n3 n4; s0/b1: n5 n6 n7; s1/b2: n8 n9 n10 n11; s1/b3: n12 n13 n14 n15"
D = "s0/b0: N0 N1 N2; s0/b1: N3 N4; s1/b2: N5 N6 N7; s1/b3: N8 N9 N10 N11"
E = "s0/b0: N0 N1 N2; s0/b1: N3 N4; s1/b2: N5 N6; s1/b3: N7 N8; s2/b4: N9 N10 N11; s2/b5: N12"
TURNED = "s0/b0: a1=2 a2; s0/b1: a3=2; s1/b2: c1=2 c2=2; s1/b3: c3"


def _plain(name: str, text: str, count: int, answer: str, **settings: object) -> Example:
    only = settings.pop("only", None)
    need = settings.pop("need", count)
    small = bool(settings.pop("small", True))
    places = _places(text, only)  # type: ignore[arg-type]
    problem = problem_of(places, [(1,)], [(0, 0, None)] * count, needs=[need], **settings)  # type: ignore[list-item,arg-type]
    return Example(name, problem, _answer(answer), small)


def _late(name: str, text: str, bound: list[str | None], answer: dict[int, str], **settings: object) -> Example:
    """Members in rank order, None = pending."""
    problem = problem_of(_places(text), [(1,)], [(0, 0, node) for node in bound], **settings)  # type: ignore[arg-type]
    return Example(name, problem, answer)


FIVE = "a1 a1 a2 a3 a3"

EXAMPLES = [
    _plain("1 all blocks tie, path first", F, 2, "node-1 node-8", hard=2),
    _plain("2 one node is the lowest domain", F2, 2, "node-1 node-1"),
    _plain("3 the block with fewest slots", G, 3, "n5 n6 n7"),
    _plain("4 two blocks, larger first", G, 5, "n1 n2 n3 n4 n5", small=False),
    _plain("5 larger node first", "b1: n1 n2=3 n3=2", 4, "n2 n2 n2 n3"),
    _plain(
        "6 three nodes do",
        "b1: n1=5 n2=7; b2: n3=6 n4=4",
        15,
        "n1 n1 n1 n1 n1 n2 n2 n2 n2 n2 n2 n2 n3 n3 n3",
        small=False,
    ),
    _plain(
        "7 usable slots with a multiple",
        "b1: n1=5 n2=7; b2: n3=6 n4=4",
        8,
        "n3 n3 n3 n3 n3 n3 n4 n4",
        multiples={1: 4},
        small=False,
    ),
    _plain("8 one block for both groups", D, 4, "N8 N9 N10 N11", pipeline=2, small=False),
    _plain("9 whole groups in blocks", D, 4, "N0 N1 N3 N4", pipeline=2, only="N0 N1 N2 N3 N4 N5 N6 N7", small=False),
    _plain(
        "10 the spine before whole groups", D, 4, "N0 N1 N2 N3", pipeline=2, only="N0 N1 N2 N3 N5 N6 N7", small=False
    ),
    _plain("11 a spine that splits no group", E, 4, "N5 N6 N7 N8", pipeline=2, small=False),
    _plain(
        "12 no block holds a group",
        "s0/b0: n1 n2 n3; s0/b1: n4 n5 n6; s0/b2: n7 n8",
        8,
        "n1 n2 n3 n4 n5 n6 n7 n8",
        pipeline=4,
        small=False,
    ),
    _plain("13 private accelerators", "b0/-: a; b0/-: d; b1/v1: c1 c2", 2, "c1 c2", hard=2),
    _plain("13 private accelerators, hard block", "b0/-: a; b0/-: d; b1/v1: c1 c2", 2, "c1 c2", hard=1),
    Example(
        "14 the only split",
        problem_of(
            [Place(("b", "a"), (8,)), Place(("b", "c"), (8,))],
            [(3,), (4,), (5,)],
            [(0, 0, None), (0, 1, None), (0, 1, None), (0, 2, None)],
            hard=1,
        ),
        {0: "a", 1: "c", 2: "c", 3: "a"},
    ),
    _plain(
        "15 five beat four", "b0: a1 a2 a3 a4; b1: c1 c2 c3 c4 c5", 6, "c1 c2 c3 c4 c5 -", need=4, hard=1, small=False
    ),
    _late(
        "16 two siblings against one",
        "s/b0: x0=0 y0; s/b1: x1=0 x2=0 y1",
        ["x0", "x1", "x2", None],
        {3: "y1"},
    ),
    _plain(
        "17 three blocks of three",
        "s/b0: n1 n2 n3 n4; s/b1: n5 n6 n7 n8; s/b2: n9 n10 n11 n12",
        9,
        "n1 n2 n3 n5 n6 n7 n9 n10 n11",
        multiples={2: 3},
        small=False,
    ),
    _plain("turned: as it stands", TURNED, 5, FIVE),
    _plain("turned: attracted", TURNED, 5, "c1 c1 c2 c2 c3", attract={"c3": 1}),
    _plain("turned: two nodes do", TURNED.replace("a3=2", "a3=3"), 5, "a1 a1 a3 a3 a3"),
    _plain("turned: the tighter spine", TURNED.replace("a2;", "a2=2;"), 5, "c1 c1 c2 c2 c3"),
    _plain("turned: one spine left", TURNED.replace("; s1/b3: c3", ""), 5, FIVE),
    _plain("turned: four in the hard block", TURNED, 5, "c1 c1 c2 c2 -", need=3, hard=2),
    _plain("turned: no block", TURNED, 5, "", hard=2),
    _plain(
        "short last group: nothing is split",
        "s/b0: n1 n2 n3; s/b1: n4 n5",
        5,
        "n1 n2 n4 n5 n3",
        pipeline=2,
    ),
    _late(
        "re-created rank 3 belongs with rank 2",
        "s/b0: x0=0 x1=0 y0; s/b1: x2=0 y1",
        ["x0", "x1", "x2", None],
        {3: "y0"},
        pipeline=2,
    ),
    _late(
        "re-created rank 3 joins rank 2 where the blocks attract alike",
        "s/b0: x0=0 x1=0 y0; s/b1: x2=0 x4=0 y1",
        ["x0", "x1", "x2", None, "x4"],
        {3: "y1"},
        pipeline=2,
    ),
    Example(
        "a larger number wins over a lower rank",
        problem_of(
            [Place(("n1",), (5,))],
            [(1,), (4,), (2,)],
            [(0, 0, None), (0, 1, None), (0, 2, None), (0, 2, None)],
            needs=[1],
        ),
        {0: "n1", 2: "n1", 3: "n1"},
    ),
    Example(
        "the core keeps its master",
        problem_of(
            [Place(("b0", "n1"), (4,)), Place(("b1", "n2"), (3,)), Place(("b1", "n3"), (3,))],
            [(4,), (1,)],
            [(0, 0, None), (1, 1, None), (1, 1, None), (1, 1, None)],
            needs=[1, 2],
        ),
        {0: "n1", 1: "n2", 2: "n2", 3: "n2"},
    ),
    Example(
        "another core where the first has no room",
        problem_of(
            [Place(("b0", "n1"), (4,)), Place(("b1", "n2"), (3,))],
            [(5,), (2,)],
            [(0, 0, None), (0, 1, None), (0, 1, None), (0, 1, None)],
            needs=[2],
            hard=1,
        ),
        {1: "n1", 2: "n1"},
    ),
]
