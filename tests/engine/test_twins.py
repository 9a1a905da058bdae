# SPDX-License-Identifier: Apache-2.0
"""Objects of one key in two API groups: that of the first counts, and the other's again when it is gone."""

from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.objects import ObjectMeta
from koordpy.devices.family_registry import make_state
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.object_changes import ServedVersions, quota_changes
from koordpy.engine.client.api_resources import ELASTIC_QUOTAS, ELASTIC_QUOTAS_X
from koordpy.engine.scheduling_queue import UnitQueue


def quota(uid: str) -> ElasticQuota:
    return ElasticQuota(metadata=ObjectMeta(namespace="team", name="gpus", uid=uid))


class Cluster:
    """A state that two API groups write quotas into."""

    def __init__(self) -> None:
        self.state = make_state()
        changes = quota_changes(Hub(self.state, UnitQueue()))
        self.twins: ServedVersions[ElasticQuota] = ServedVersions(ELASTIC_QUOTAS, ELASTIC_QUOTAS_X, changes)
        self.first, self.second = self.twins.sinks().values()

    @property
    def counting(self) -> str:
        known = self.state.quotas.objects.get("team/gpus")
        return known.metadata.uid if known is not None else ""


def test_the_first_group_counts_whichever_comes_first() -> None:
    for order in ("first second", "second first"):
        cluster = Cluster()
        for name in order.split():
            getattr(cluster, name).upsert(quota(name), None)
        assert cluster.counting == "first", order
        assert cluster.twins.resources == {"team/gpus": ELASTIC_QUOTAS}, order


def test_the_second_counts_again_when_the_first_is_gone() -> None:
    cluster = Cluster()
    cluster.second.upsert(quota("second"), None)
    cluster.first.upsert(quota("first"), None)
    cluster.first.delete(quota("first"))
    assert cluster.counting == "second"
    assert cluster.twins.resources == {"team/gpus": ELASTIC_QUOTAS_X}
    cluster.second.delete(quota("second"))
    assert cluster.counting == ""
    assert not cluster.twins.resources


def test_the_end_of_one_that_does_not_count_changes_nothing() -> None:
    cluster = Cluster()
    cluster.first.upsert(quota("first"), None)
    cluster.second.upsert(quota("second"), None)
    cluster.second.delete(quota("second"))
    assert cluster.counting == "first"
    cluster.first.delete(quota("first"))
    assert cluster.counting == ""
