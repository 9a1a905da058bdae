# SPDX-License-Identifier: Apache-2.0
"""The tables of labels and annotations in docs/gangs.md name all that the code knows, with values that are read."""

import re
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.key_hints import READ, Holder
from tests.docs.test_gangs import group, pod, rows, simulated
from tests.docs.worked import ROOT

Json = dict[str, Any]

TABLE = [row for row in rows("All labels and annotations") if len(row) == 4]
TOLD = {row[0].strip("`"): row for row in TABLE}
SILENT = frozenset((*keys.KOORDINATOR_KEYS, *keys.LATER, *keys.PREFIXES))


def known_keys() -> set[str]:
    """What is read on any object, and every other name below the prefixes that the code has a word for."""
    named = {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)}
    below = (*keys.PREFIXES, "internal.scheduling.koordinator.sh/")
    read = {key for places in READ.values() for key in places}
    return read | {*keys.WRITTEN, *keys.WRITTEN_PREFIXES} | {one for one in named if one.startswith(below)} - SILENT


OTHERS = {
    keys.JOB_COMPLETION_INDEX, keys.ACCELERATOR_TYPE, keys.GSOC_PREFIX, keys.GPUSHARE_ASSIGNED,
    keys.GPUSHARE_ASSUME_TIME, keys.GPUSHARE_ID_PREFIX,
}  # fmt: skip
"""Of Kubernetes and of devices' makers, told because users meet them."""


def test_every_key_that_the_code_knows_is_told_and_every_one_told_is_known() -> None:
    assert set(TOLD) == known_keys() | OTHERS
    assert len(TABLE) == len(TOLD)


def test_the_vocabulary_has_every_key_and_no_other() -> None:
    """Below a prefix that a table has in common, a key stands without it."""
    words = re.findall(r"`([^`]+)`", (ROOT / "docs" / "rules" / "vocabulary.md").read_text(encoding="utf-8"))
    named = {re.sub("<.*", "", word).lstrip("/") for word in words}
    known = known_keys() | OTHERS
    assert {key for key in known if named.isdisjoint((key, key.rpartition("/")[2]))} == set()
    below = {word for word in named if word.startswith(keys.PREFIXES) and word not in keys.PREFIXES}
    assert below <= known | {keys.GPU_CUDA_VISIBLE_PREFIX + keys.INIT_PREFIX}


def test_a_key_stands_in_the_code_but_once() -> None:
    """Else one could be read that the table does not know of."""
    wanted = re.compile(
        r"[\"'](?:[a-z-]+\.)?scheduling\.(?:koordinator\.sh|sigs\.k8s\.io)/(?!v1)|[\"']node\.koordinator\.sh/"
    )
    found = {path.name for path in (ROOT / "koordpy").rglob("*.py") if wanted.search(path.read_text(encoding="utf-8"))}
    assert found == {"keys.py"}


HOLDERS = {
    "PodGroup": (Holder.GROUP,),
    "PodGroup; pod in no gang": (Holder.GROUP, Holder.PLAIN),
    "PodGroup or pod": (Holder.GROUP, Holder.PLAIN, Holder.GROUPED),
    "ElasticQuota": (Holder.QUOTA,),
    "Node": (Holder.NODE,),
    "Device": (Holder.DEVICE,),
}


ON_REQUESTS = (keys.PROVISIONING_FOR, keys.PROVISIONING_ATTEMPT)
"""Annotations of objects that koordpy creates."""


@pytest.mark.parametrize(
    "key",
    [key for key in TOLD if key not in (*keys.WRITTEN, *keys.WRITTEN_PREFIXES, *OTHERS, *ON_REQUESTS)],
)
def test_it_is_read_where_the_table_says(key: str) -> None:
    place, _, on = TOLD[key][1].partition(", ")
    for holder in HOLDERS.get(on, (Holder.MEMBER,)):
        assert READ[holder].get(key) == place
    if on in ("PodGroup", "PodGroup; pod in no gang"):
        assert READ[Holder.MEMBER].get(key) == place


def object_with(key: str, place: str, on: str, value: str) -> list[Json]:
    """Something that carries the key, of a cluster where it matters."""
    meta = {"labels": {key: value}} if place == "label" else {"annotations": {key: value}}
    labels, notes = meta.get("labels", {}), meta.get("annotations", {})
    if on.startswith("PodGroup"):
        members = [pod(f"g-{i}", labels={keys.LABEL_POD_GROUP: "g"}) for i in range(2)]
        return [group("g", 2, notes, labels), *members]
    if on == "ElasticQuota":
        kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota"}
        spec = {"max": {"nvidia.com/gpu": 64}, "min": {"nvidia.com/gpu": 1}}
        return [{**kind, "metadata": {"name": "org", **meta}, "spec": spec}, pod("p")]
    if on in ("Node", "Device"):
        told = {"Node": {}, "Device": {}, on: meta}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", **told["Node"]}}
        room = {"allocatable": {"cpu": "9", "pods": "9", "nvidia.com/gpu": "2"}}
        kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
        gpus = [{"type": "gpu", "minor": i, "health": True, "id": f"GPU-{i}"} for i in range(2)]
        return [
            {**node, "status": room},
            {**kind, "metadata": {"name": "n", **told["Device"]}, "spec": {"devices": gpus}},
            pod("p"),
        ]
    beside: dict[str, tuple[Json, Json]] = {
        keys.LABEL_GANG_NAME: ({keys.LABEL_GANG_MIN: "1"}, {}),
        keys.LABEL_GANG_MIN: ({keys.LABEL_GANG_NAME: "train"}, {}),
        keys.GANG_NAME: ({}, {keys.GANG_MIN: "1"}),
        keys.GANG_MIN: ({}, {keys.GANG_NAME: "train"}),
        keys.GPU_GROUP_NAME: ({keys.GPU_GROUP_REPLICA: "2"}, {}),
        keys.GPU_GROUP_REPLICA: ({keys.GPU_GROUP_NAME: "pair"}, {}),
    }
    more = beside.get(key, ({}, {}))
    org = object_with("", "", "ElasticQuota", "")[0] | {"metadata": {"name": "org"}}
    members = [pod(f"p-{i}", labels={**labels, **more[0]}, notes={**notes, **more[1]}) for i in range(4)]
    return [group("train", 1), org, *members]


@pytest.mark.parametrize(
    "key", [key for key, row in TOLD.items() if "bound pod" not in row[1] and key not in ON_REQUESTS]
)
def test_its_example_is_a_value_that_is_read(key: str, tmp_path: Path) -> None:
    """No warning, and nobody is held for a value that cannot be read."""
    place, _, on = TOLD[key][1].partition(", ")
    example = TOLD[key][2].strip("`")
    key += "0_1" if key.endswith("_") else ""
    answer, warned = simulated(object_with(key, place, on, example), tmp_path)
    texts = [warned, *(one["message"] for one in answer["pending"])]
    assert [text for text in texts if re.search(r"cannot be read|not read|is no |neither|unknown", text)] == []
