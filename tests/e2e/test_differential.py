"""The filters say what the real kube-scheduler says (more pods by hand: `python -m tests.e2e.differential`)."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.differential import plane_of, run


async def test_verdicts_and_words_are_kube_schedulers(assets: Path, tmp_path: Path) -> None:
    with plane_of(assets, tmp_path / "plane") as plane:
        outcome = await run(plane, pods=200, seed=1000)
    assert outcome.differences == []
    assert 20 < outcome.fitted < outcome.tried == 200
