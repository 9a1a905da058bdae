# SPDX-License-Identifier: Apache-2.0
"""Warnings about nodes with NPUs and a wrong label `accelerator-type`, which states the product (ascend.md 2).

Two faults are found: a value that is no known product, and a key that looks like a misspelling of this label. A node
without the label is treated as product `module`.
"""

from collections.abc import Iterator

from koordpy.api import keys
from koordpy.api.field_faults import literal
from koordpy.api.spelling import hint, meant
from koordpy.cache.snapshot import Snapshot
from koordpy.devices.ascend.tables.npu_book import npu_resource
from koordpy.devices.ascend.tables.npu_presets import BY_LABEL


def odd_npu_labels(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yields (object, text) of each fault of a node's product label. O(nodes)."""
    label = keys.ACCELERATOR_TYPE
    for node in snapshot.nodes:
        if npu_resource(node.allocatable) is None:
            continue
        value = node.labels.get(label, "")
        if value and value not in BY_LABEL:
            yield f"Node/{node.name}", f"label {label}: {literal(value)} is not a known product{hint(value, BY_LABEL)}"
        if label in node.labels:
            continue
        for place, own in (("label", node.labels), ("annotation", node.node.metadata.annotations)):
            for key in own:
                if key == label or meant(key, (label,)):
                    text = f"{place} {key} is not read, did you mean label {label}? The node counts as product module"
                    yield f"Node/{node.name}", text
