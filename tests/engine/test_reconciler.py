# SPDX-License-Identifier: Apache-2.0
"""What statuses of every kind have in common: failed writes are tried again, rights that are missing are said once."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from koordpy.api.objects import ObjectMeta
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import POD_GROUPS, Resource
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.status.reconciler import RETRY_SECONDS, TRUSTED_SECONDS, StatusWriter
from tests.engine.parts import a_context


@dataclass
class Kind:
    """An object whose status is one word."""

    metadata: ObjectMeta = field(default_factory=lambda: ObjectMeta(name="a", namespace="d", uid="u"))
    status: str = ""


class Words(StatusWriter[Kind, str]):
    """Writes `word`. The next writes end as `answers` say: True, False (gone) or an error."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.object: Kind | None = Kind()
        self.word, self.writes = "new", [""]
        self.answers: list[Any] = []
        self.known: list[str | None] = []
        """The status that each write was compared with; None: every field is written."""

    def _find(self, key: str) -> tuple[Kind, Resource] | None:
        return (self.object, POD_GROUPS) if self.object is not None else None

    def _read(self, obj: Kind) -> str:
        return obj.status

    def _render(self, key: str, obj: Kind, there: str) -> str:
        return self.word

    def _differ_in_numbers_only(self, said: str, wanted: str) -> bool:
        return said.rstrip("0123456789") == wanted.rstrip("0123456789")

    async def _send(self, obj: Kind, resource: Resource, wanted: str, there: str | None) -> bool:
        self.writes.append(wanted)
        self.known.append(there)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)


@dataclass
class Desk:
    """The writer, on a clock that the test moves."""

    now: float = 100.0
    leads: bool = True
    complaints: list[str] = field(default_factory=list)
    words: Words = field(init=False)

    def __post_init__(self) -> None:
        self.words = Words(a_context(client=self, may_write=lambda: self.leads, clock=lambda: self.now))
        self.words.mark("d/a")

    def complained(self, error: Exception, verbs: str, resource: str) -> bool:
        self.complaints.append(f"{verbs} {resource}")
        return isinstance(error, ApiError) and error.status == 403

    async def after(self, seconds: float) -> list[str]:
        """What has been written by then."""
        self.now += seconds
        await self.words.flush()
        return self.words.writes[1:]


@pytest.mark.parametrize("error", [Unreachable("no route"), ApiError(500, "no"), ApiError(403, "forbidden")])
async def test_what_failed_is_tried_again_later_and_with_the_next_change_at_once(error: Exception) -> None:
    desk = Desk()
    desk.words.answers = [error, error]
    assert await desk.after(0) == ["new"]
    assert await desk.after(RETRY_SECONDS / 2) == ["new"]
    assert await desk.after(RETRY_SECONDS / 2) == ["new", "new"]
    desk.words.mark("d/a")
    assert await desk.after(0) == ["new"] * 3 and desk.words.sent == 1
    assert desk.complaints == ["patch podgroups.scheduling.sigs.k8s.io/status"] * 2


@pytest.mark.parametrize(("error", "lines"), [(ApiError(403, "forbidden"), 0), (ApiError(500, "no"), 1)])
async def test_a_right_that_is_missing_is_told_by_the_complaints_alone(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.words.answers = [error]
    await desk.after(0)
    assert len(caplog.messages) == lines


async def test_a_write_counts_until_the_watch_must_have_brought_it() -> None:
    desk = Desk()
    assert await desk.after(0) == ["new"]
    assert await desk.after(TRUSTED_SECONDS / 2) == ["new"], "the watch is late"
    desk.words.mark("d/a")
    assert await desk.after(TRUSTED_SECONDS) == ["new", "new"], "undone by others"
    assert desk.words.object is not None
    desk.words.object.status = "new"
    assert await desk.after(1) == ["new", "new"]
    desk.words.word = "newer"
    assert await desk.after(TRUSTED_SECONDS) == ["new", "new"], "nothing says that it changed"


@pytest.mark.parametrize(
    "is_shown", [pytest.param(True, id="the-watch-shows-it"), pytest.param(False, id="it-does-not")]
)
async def test_after_a_write_of_unknown_outcome_every_field_is_written(is_shown: bool) -> None:
    desk = Desk()
    assert await desk.after(0) == ["new"]
    desk.words.word, desk.words.answers = "broken", [Unreachable("no answer")]
    desk.words.mark("d/a")
    await desk.after(0)
    assert desk.words.object is not None
    desk.words.object.status = "broken" if is_shown else "new"
    desk.words.word = "new"
    desk.words.mark("d/a")
    assert await desk.after(0) == ["new", "broken", "new"]
    assert desk.words.known == ["", "new", None]


async def test_counts_wait_and_news_does_not() -> None:
    desk = Desk()
    desk.words.word = "room 1"
    await desk.after(0)
    desk.words.word = "room 2"
    desk.words.mark("d/a")
    assert await desk.after(1) == ["room 1"]
    assert await desk.after(EngineSettings().wobble_hold_seconds) == ["room 1", "room 2"]
    desk.words.word = "none"
    desk.words.mark("d/a")
    assert await desk.after(0) == ["room 1", "room 2", "none"]


@pytest.mark.parametrize("gone", [True, False])
async def test_who_does_not_lead_writes_nothing_and_of_what_is_gone_nothing_is_kept(gone: bool) -> None:
    desk = Desk(leads=False)
    assert await desk.after(0) == []
    desk.leads = True
    desk.words.object = None if gone else desk.words.object
    desk.words.answers = [False]
    assert await desk.after(0) == ([] if gone else ["new"])
    assert await desk.after(0) == ([] if gone else ["new", "new"]), "until the watch says what is there"


async def test_what_is_written_of_thousands_in_one_namespace_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordpy.engine.status.reconciler.Reconciler.most_at_a_time", 1)
    words, order = Desk().words, list[str]()

    async def look(key: str) -> bool:
        order.append(key)
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(words, "_look", look)
    for i in range(5):
        words.mark(f"evil/{i}")
    first = asyncio.create_task(words.flush())
    await asyncio.sleep(0)
    words.mark("honest/a")
    await asyncio.gather(first, words.flush())
    assert order.index("honest/a") <= 3


async def test_thousands_that_are_looked_at_are_few_tasks_and_none_stays_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, begun = Desk().words, asyncio.Event()

    async def look(key: str) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(words, "_look", look)
    before = len(asyncio.all_tasks())
    for i in range(1000):
        words.mark(f"d/{i}")
    flush = asyncio.create_task(words.flush())
    await begun.wait()
    assert len(asyncio.all_tasks()) - before <= 1 + words.most_at_a_time
    assert len(words.under_way) >= 1000
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    assert not words.under_way
