# SPDX-License-Identifier: Apache-2.0
"""Answers admission reviews of ElasticQuotas from the scheduler's caches, and checks rejections on fresh objects.

The caches lag behind the API server, so they may lack a parent that was created just before its child. Before a change
is rejected, it is reviewed again with quotas that are listed from the API server. Rules: quota-fairness.md 7.
"""

import asyncio
from typing import Any

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_resources import ELASTIC_QUOTAS, ELASTIC_QUOTAS_X, PODS
from koordpy.engine.watching.feeds import Feeds
from koordpy.engine.watching.pod_intake import FINISHED
from koordpy.operator.gpu_injection import forbidden, reviewed
from koordpy.operator.quota_review import objection, read_change
from koordpy.quota.quota_reading import read_quotas

PAUSE_SECONDS = 0.2
"""Seconds to wait before a change is rejected, so that the watches can deliver recent changes."""


class QuotaHook:
    """Answers reviews of ElasticQuotas once the caches are in sync."""

    def __init__(self, client: ApiClient, feeds: Feeds, synced: asyncio.Event) -> None:
        self._client, self._feeds, self._synced = client, feeds, synced

    @property
    def ready(self) -> bool:
        """True if the caches are in sync, so that reviews can be answered."""
        return self._synced.is_set()

    async def answer(self, review: bytes) -> dict[str, Any]:
        """Returns the AdmissionReview that answers a review.

        Raises ReviewError, and ApiError or Unreachable if quotas cannot be listed from the API server.
        """
        uid, change = read_change(review)
        book = self._feeds.state.quotas
        text = await asyncio.to_thread(objection, change, dict(book.objects), self._pods, book.settings)
        if text:
            await asyncio.sleep(PAUSE_SECONDS)
            text = await asyncio.to_thread(objection, change, await self._stored(), self._pods, book.settings)
        return reviewed({"uid": uid, "allowed": True} | (forbidden(text) if text else {}))

    async def _stored(self) -> dict[str, ElasticQuota]:
        """Lists every ElasticQuota from the API server. Of two with one name, that of scheduling.sigs.k8s.io is
        returned."""
        out: dict[str, ElasticQuota] = {}
        for resource in (ELASTIC_QUOTAS_X, ELASTIC_QUOTAS):
            token = ""
            while True:
                try:
                    page = await self._client.list_page(resource.path(), type=ElasticQuota, continue_token=token)
                except ApiError as error:
                    if error.status == 404:
                        break  # this group is not served
                    raise
                out |= {f"{one.metadata.namespace}/{one.metadata.name}": one for one in page.items or ()}
                token = page.metadata.continue_
                if not token:
                    break
        return out

    def _pods(self, name: str) -> int:
        """Returns the number of pods in a quota that have not ended, including pending pods and pods of other
        schedulers."""
        state = self._feeds.state
        tree = read_quotas(dict(state.quotas.objects).values(), state.quotas.settings)
        found = 0
        for pod in self._feeds.objects(PODS):
            label, queue = pod.metadata.labels.get(keys.QUOTA_NAME, ""), state.workloads.queue_of(pod)
            if pod.status.phase not in FINISHED:
                found += tree.quota_of(pod.metadata.namespace, label, queue) == name
        return found
