# SPDX-License-Identifier: Apache-2.0
"""Warnings about labels and annotations of a workload that have no effect on the workload's object.

The key is misspelt, or belongs on the pod template. A warning says where to set the key; it never blocks pods. Source:
workloads.md 3 and 4.
"""

from collections.abc import Collection, Iterator

from koordpy.api import keys
from koordpy.api.field_faults import key_path
from koordpy.api.key_hints import LABEL, Holder, place_of, unread_keys
from koordpy.decoding.annotation_settings import forgotten_annotations
from koordpy.workloads.deployment_rollouts import ROLLED
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import Template


def unread_of(head: Head, templates: Collection[Template]) -> Iterator[str]:
    """Yields a warning for each label or annotation of a workload without effect. templates: the workload's pod
    templates."""
    yield from forgotten_annotations(head.annotations_given)
    misplaced = [key for key in head.labels if place_of(key) == LABEL]
    for key in misplaced:
        lacking = next((one for one in templates if one.labels.get(key) != head.labels[key]), None)
        if lacking is not None:
            path = key_path(f"{lacking.path}.metadata.labels", key)
            yield f"label {key} has no effect on a {head.kind}: set it on its pods, {path}"
    labels = {key: value for key, value in head.labels.items() if key not in misplaced}
    yield from unread_keys(Holder.WORKLOAD, labels, head.annotations)
    if head.kind in (*ROLLED, "Deployment"):
        yield from _asking(head, templates)


def _asking(head: Head, templates: Collection[Template]) -> Iterator[str]:
    """Yields warnings about annotations that make a gang of workloads of other kinds, but not of Deployments."""
    instead = f"does not make a gang of a {head.kind}: annotation {keys.GANG_MIN} on its pod template does"
    if any(one.get(keys.GANG_AUTO) == "on" for one in (head.annotations, *(one.annotations for one in templates))):
        yield f'annotation {keys.GANG_AUTO} "on" {instead}'
    if keys.GANG_MIN in head.annotations and not any(keys.GANG_MIN in one.annotations for one in templates):
        yield f"annotation {keys.GANG_MIN} {instead}"
