# SPDX-License-Identifier: Apache-2.0
"""ElasticQuotas in a few words, for scenario tables."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota, ElasticQuotaSpec
from koordpy.api.objects import ObjectMeta

Amounts = Mapping[str, Any] | int
GPU = "nvidia.com/gpu"


def _listed(amounts: Amounts) -> dict[str, Any]:
    return {"cpu": amounts} if isinstance(amounts, int) else dict(amounts)


def quota(
    name: str,
    least: Amounts,
    most: Amounts,
    *,
    parent: str = "",
    inner: bool = False,
    lends: bool = True,
    forced: bool = False,
    weight: Mapping[str, Any] | str | None = None,
    total: Mapping[str, Any] | None = None,
    tree: str = "",
    namespaces: Sequence[str] | str | None = None,
    namespace: str = "default",
    created: int = 0,
) -> ElasticQuota:
    """An ElasticQuota; a number stands for cores of cpu."""
    labels = {
        keys.QUOTA_PARENT: parent,
        keys.QUOTA_IS_PARENT: "true" if inner else "",
        keys.QUOTA_LENDS: "" if lends else "false",
        keys.QUOTA_FORCE: "true" if forced else "",
        keys.QUOTA_TREE_ID: tree,
    }
    notes = {
        keys.QUOTA_WEIGHT: weight,
        keys.QUOTA_TOTAL: total,
        keys.QUOTA_NAMESPACES: namespaces,
    }
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        creation_timestamp=f"2025-12-31T00:{created:02}:00Z",
        labels={key: text for key, text in labels.items() if text},
        annotations={k: v if isinstance(v, str) else json.dumps(v) for k, v in notes.items() if v is not None},
    )
    return ElasticQuota(metadata=meta, spec=ElasticQuotaSpec(min=_listed(least), max=_listed(most)))


def belongs(name: str = "", *, user: str = "", rigid: bool = False) -> dict[str, str]:
    """Labels of a pod: its quota, its user, non-preemptible."""
    labels = {
        keys.QUOTA_NAME: name,
        keys.QUOTA_USER: user,
        keys.QUOTA_PREEMPTIBLE: "false" if rigid else "",
    }
    return {key: text for key, text in labels.items() if text}
