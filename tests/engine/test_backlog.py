# SPDX-License-Identifier: Apache-2.0
"""The order in which lines of a watch are handled, and that every one is."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpy.engine.watching import backlog as module
from koordpy.engine.watching.backlog import Backlog


def line(namespace: str, name: str, kind: str = "ADDED", *, node: str = "", text: str = "", stem: str = "") -> bytes:
    made = f'"generateName":"{stem}",' if stem else ""
    meta = f'{{"name":"{name}",{made}"namespace":"{namespace}","uid":"u","annotations":{{"a":"{text}"}}}}'
    spec = f'{{"nodeName":"{node}"}}' if node else "{}"
    return f'{{"type":"{kind}","object":{{"kind":"Pod","apiVersion":"v1","metadata":{meta},"spec":{spec}}}}}'.encode()


def taken(backlog: Backlog) -> list[tuple[bytes, bool]]:
    """All lines that are there, in order, and whether they went ahead."""
    out = []
    while (one := backlog.take()) is not None:
        out.append(one)
    backlog.done()
    return out


def of(*known: str) -> Backlog:
    return Backlog(lambda key: key in known)


def test_a_new_pod_goes_ahead_of_what_another_namespace_wrote_before() -> None:
    flood = [line("evil", f"e{i}", "MODIFIED") for i in range(500)] + [line("evil", f"n{i}") for i in range(500)]
    backlog = of()
    backlog.put([*flood, line("honest", "p", stem="p-")])
    order = [one for one, _ in taken(backlog)]
    assert order.index(line("honest", "p", stem="p-")) <= 2
    assert sorted(order) == sorted([*flood, line("honest", "p", stem="p-")])


def test_who_goes_on_making_pods_holds_up_no_news_of_others() -> None:
    backlog = of()
    gone = [line("honest", f"p{i}", "DELETED") for i in range(100)]
    backlog.put([*gone, *(line("evil", f"e{i}") for i in range(100))])
    order = [one for one, _ in taken(backlog)]
    assert all(order.index(one) <= 2 * i + 2 for i, one in enumerate(gone))


@pytest.mark.parametrize(
    "own",
    [
        line("honest", "p", node="n1"),
        line("honest", "p", "MODIFIED"),
        line("honest", "p", "DELETED"),
        line("honest", "known"),
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}',
        b'{"type":"ADDED","object":{}}',
        b"",
    ],
)
def test_all_other_lines_stay_in_their_order(own: bytes) -> None:
    backlog = of("honest/known")
    backlog.put([line("evil", "e", "MODIFIED"), own, line("evil", "e", "DELETED")])
    expected = [line("evil", "e", "MODIFIED"), own, line("evil", "e", "DELETED")]
    assert taken(backlog) == [(one, False) for one in expected if one]


def test_a_pod_that_is_made_anew_under_its_name_comes_after_the_end_of_the_other() -> None:
    backlog = of()
    life = [line("a", "p"), line("a", "p", "MODIFIED"), line("a", "p", "DELETED"), line("a", "p", text="anew")]
    backlog.put([line("b", "q", "MODIFIED"), *life[:3]])
    backlog.put(life[3:])
    order = [one for one, _ in (*taken(backlog), *taken(backlog))]
    assert [one for one in order if b'"namespace":"a"' in one] == life


def test_without_word_of_what_is_known_every_line_stays_in_its_order() -> None:
    backlog = Backlog()
    lines = [line("a", "p", "MODIFIED"), line("b", "q")]
    backlog.put(lines)
    assert taken(backlog) == [(one, False) for one in lines]


PODS = [f"{namespace}/{name}" for namespace in "ab" for name in "pqr"]
steps = st.lists(st.tuples(st.sampled_from(PODS), st.booleans()), max_size=40)


@given(st.lists(steps, max_size=5), st.sets(st.sampled_from(PODS)), st.integers(1, 9))
def test_lines_of_one_pod_keep_their_order_and_none_is_lost(
    batches: list[list[tuple[str, bool]]], there: set[str], pace: int
) -> None:
    lives: dict[str, list[bytes]] = {key: [] for key in PODS}
    got: dict[str, list[bytes]] = {key: [] for key in PODS}
    about: dict[bytes, str] = {}
    known, alive = set(there), set(there)
    backlog = Backlog(known.__contains__)

    def handle(count: int) -> None:
        for _ in range(count):
            if not backlog._batches:
                return
            if (one := backlog.take()) is None:
                backlog.done()
                continue
            key = about[one[0]]
            got[key].append(one[0])
            (known.discard if b"DELETED" in one[0] else known.add)(key)

    for batch in batches:
        lines = []
        for key, ends in batch:
            namespace, _, name = key.partition("/")
            kind = "ADDED" if key not in alive else "DELETED" if ends else "MODIFIED"
            (alive.discard if kind == "DELETED" else alive.add)(key)
            one = line(namespace, name, kind, text=str(len(about)))
            about[one] = key
            lives[key].append(one)
            lines.append(one)
        backlog.put(lines)
        handle(pace)
    handle(10_000)
    assert got == lives


async def test_no_more_is_read_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    read = 0

    async def watch() -> AsyncGenerator[list[bytes], None]:
        nonlocal read
        for _ in range(10):
            read += 1
            yield [b"x" * 600]

    backlog = Backlog()
    reading = asyncio.create_task(backlog.read(watch()))
    count = 0
    while await backlog.wait():
        assert read <= count + 2
        count += len(taken(backlog))
        await asyncio.sleep(0)
    await reading
    assert count == read == 10
