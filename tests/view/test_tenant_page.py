# SPDX-License-Identifier: Apache-2.0
"""The page for one tenant: own units in full, devices of others without names, and a source that asks for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.observe.decision_log import DecisionLog
from koordpy.planner.planning_round import plan_round
from koordpy.view import page_server
from koordpy.view.live_documents import WHOLE, NotReadyError, UnknownUnitError, told_by
from koordpy.view.page_server import SourceError, TenantView
from koordpy.view.tenant_page import CELLS, DEVICES, NODE, OTHERS, page_for
from koordpy.view.tenant_view import board_of
from koordpy.view.view_document import LiveDocument
from tests.view.two_tenants import OTHER, OWN, loaded, two_tenants


@pytest.mark.parametrize("seed", range(6))
def test_the_page_of_a_tenant_has_the_same_devices_and_own_rows(seed: int, tmp_path: Path) -> None:
    ready = loaded(two_tenants(seed), tmp_path)
    snapshot = ready.state.snapshot(ready.now.timestamp())
    log = DecisionLog()
    log.record(plan_round(snapshot, ready.config), number=1, at=snapshot.now)
    whole = LiveDocument(ready.config)
    whole.update(snapshot, told_by(log, source="s"))
    document = whole.whole()
    view = board_of(snapshot, ready.config, {})
    page = page_for(document, view.redactor(OWN))
    assert set(page) == {*document, "slots"} - {"planned", "plans"}
    names = dict(zip(document["tree"]["nodes"], page["tree"]["nodes"], strict=True))
    assert len(set(names.values())) == len(names)
    own = {key: row for key, row in document["pods"].items() if key.startswith(f"{OWN}/")}
    shown = {key: row for key, row in page["pods"].items() if not key.startswith(OTHERS)}
    assert shown.keys() == own.keys()
    assert all(names.get(own[key][NODE], "") == row[NODE] for key, row in shown.items())
    for old, new in names.items():
        assert new == old or not any(row[NODE] == old for row in own.values())
        held, seen = (
            [row for row in rows.values() if row[NODE] == name]
            for rows, name in ((document["pods"], old), (page["pods"], new))
        )
        assert sum(row[DEVICES] for row in held) == pytest.approx(sum(row[DEVICES] for row in seen))
        cells = ({cell for row in rows for cell in row[CELLS] or ()} for rows in (held, seen))
        assert next(cells) == next(cells)
    ids = [one["unit"] for one in document["queue"]["units"]]
    assert [one["unit"] for one in page["queue"]["units"]] == [one for one in ids if OTHER not in one]
    assert (page["queue"]["waiting"], page["queue"]["held"]) == (
        document["queue"]["waiting"],
        document["queue"]["held"],
    )


def test_a_field_that_the_filter_does_not_know_is_left_out(tmp_path: Path) -> None:
    ready = loaded(two_tenants(0), tmp_path)
    snapshot = ready.state.snapshot(ready.now.timestamp())
    whole = LiveDocument(ready.config)
    whole.update(snapshot, told_by(DecisionLog(), source="s"))
    document = {**whole.whole(), "running": [f"{OTHER}/secret"]}
    for one in document["queue"]["units"]:
        one["blockedBy"] = f"{OTHER}/secret"
    page = page_for(document, board_of(snapshot, ready.config, {}).redactor(OWN))
    assert "secret" not in json.dumps(page)


class Scripted:
    """The API for tenants: answers by resource, one after the other, the last for ever."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers, self.asked = answers, list[str]()

    async def get(self, path: str, *, type: Any) -> Any:
        self.asked.append(path)
        kind = path.split("/")[6]
        answers = self.answers[kind]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return {"report": found}


def view_of(**answers: list[Any]) -> tuple[TenantView, Scripted]:
    api = Scripted(**answers)
    return TenantView(api, "team a"), api  # type: ignore[arg-type]


async def test_whoever_listens_hears_of_a_page_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "ASK_SECONDS", 0.0)
    pages = [{"taken": 1, "a": 1}, {"taken": 2, "a": 1}, None, {"taken": 3, "a": 2}]
    view, api = view_of(pages=[{"page": page, "retryInSeconds": None} for page in pages])
    events = view.events()
    heard = [await anext(events) for _ in range(4)]
    await events.aclose()
    assert [name for name, _ in heard] == [WHOLE, "", "", WHOLE]
    assert json.loads(heard[-1][1])["a"] == 2
    assert api.asked[0] == "/apis/view.koordpy.io/v1alpha1/namespaces/team%20a/pages/current"


async def test_a_page_that_is_not_made_and_one_that_is_refused_are_faults_of_a_line() -> None:
    view, _ = view_of(pages=[{"page": None, "retryInSeconds": 3}])
    with pytest.raises(NotReadyError):
        await view.document()
    for fault, status in ((ApiError(403, "Forbidden", "may not"), 403), (Unreachable("no route"), 502)):
        view, _ = view_of(pages=[fault])
        with pytest.raises(SourceError) as said:
            await view.document()
        assert said.value.status == status


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("gang:team/train", "podgroup.train"),
        ("gang:team/a@workload,team/b", "podgroup.a"),
        ("team/p-0", "pod.p-0"),
    ],
)
async def test_help_is_asked_for_by_the_kind_of_the_unit(unit: str, name: str) -> None:
    explained = {"message": "m", "wouldFitIf": ["x"], "domains": [], "queue": {"held": {"g": "1"}, "share": {"g": "2"}}}
    view, api = view_of(explanations=[{"explanation": explained, "queue": {"place": 4}}])
    found = json.loads(await view.explain(unit))
    assert found == {"message": "m", "help": ["x"], "domains": [], "place": 4, "held": {"g": "1"}, "share": {"g": "2"}}
    assert api.asked[0].endswith(f"/explanations/{name}")
    view, _ = view_of(explanations=[ApiError(404, "NotFound", "no pod")])
    with pytest.raises(UnknownUnitError, match="no pod"):
        await view.explain(unit)
