# SPDX-License-Identifier: Apache-2.0
"""The filters say what the real kube-scheduler says (more by hand: `python -m tests.e2e.differential`).

Gangs with required affinity among members stand where it lets them (`python -m tests.e2e.gang_differential`).
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e import claim_differential, gang_differential, group_claim_differential
from tests.e2e.controlplane import ControlPlane
from tests.e2e.differential import plane_of, run
from tests.e2e.gang_api import kubernetes_version, minor_of


async def test_verdicts_and_words_are_kube_schedulers(assets: Path, tmp_path: Path) -> None:
    with plane_of(assets, tmp_path / "plane") as plane:
        outcome = await run(plane, pods=200, seed=1000)
    assert outcome.differences == []
    assert 20 < outcome.fitted < outcome.tried == 200


async def test_gangs_that_require_their_own_domain_stand_where_kube_scheduler_lets_them(
    assets: Path, tmp_path: Path
) -> None:
    with ControlPlane(assets, scheduler=True, unlimited=True, folder=tmp_path / "plane") as plane:
        outcome = await gang_differential.run(plane, gangs=25, seed=1)
    assert outcome.differences == []
    assert outcome.tried == 25
    assert outcome.both > 10
    assert outcome.late > 4


async def test_claims_get_the_devices_that_kube_scheduler_gives(assets: Path, tmp_path: Path) -> None:
    if minor_of(kubernetes_version(assets)) < (1, 37):
        return  # the rules of claims are those of 1.37
    with plane_of(assets, tmp_path / "plane") as plane:
        outcome = await claim_differential.run(plane, pods=60, seed=1000)
    assert outcome.differences == []
    assert 10 < outcome.fitted < outcome.tried == 60


async def test_claims_of_groups_are_allocated_as_kube_scheduler_does(assets: Path, tmp_path: Path) -> None:
    if minor_of(kubernetes_version(assets)) < (1, 37):
        return  # claims of PodGroups are beta since 1.37
    with group_claim_differential.plane_of(assets, tmp_path / "plane") as plane:
        outcome = await group_claim_differential.run(plane, pods=40, seed=1000)
    assert outcome.differences == []
    assert outcome.whole > 4
