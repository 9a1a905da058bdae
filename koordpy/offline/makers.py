# SPDX-License-Identifier: Apache-2.0
"""Warnings about pods that should be in the input but are not, and about a misplaced schedulerName.

Pods are missing if koordpy does not read the kind of object that creates them. A schedulerName is misplaced if it is
outside of a pod's spec, where no controller reads it. Rules: simulate.md 1.2 and 4, workloads.md 10.6.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from koordpy.api.field_faults import key_path
from koordpy.api.objects import Pod
from koordpy.config.configuration_file import KUBE_SCHEDULER_NAME
from koordpy.offline.loaded_manifests import InputObject, Loaded
from koordpy.offline.read_kinds import UNMADE
from koordpy.offline.workload_manifests import Read
from koordpy.report.ignored_pods import misspelt, of_another
from koordpy.workloads.workload_manifest import Source, conditions
from koordpy.workloads.workload_model import Template

SCHEDULER_NAME = "schedulerName"


def unmade_pods(loaded: Loaded, served: Sequence[str], others: Collection[str]) -> list[InputObject]:
    """Returns objects that should have pods, but have none in the input, so that their pods are not planned.

    These are objects of kinds that are known to create pods. Objects of other kinds that koordpy does not read are
    included if their spec names a scheduler of koordpy.
    """
    pods: dict[str, list[Pod]] = {}
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            pods.setdefault(manifest.obj.metadata.namespace, []).append(manifest.obj)
    makers = [*loaded.makers, *(one for one in loaded.strangers if _names_ours(one, served, others))]
    makers.sort(key=lambda one: one.order)
    return [maker for maker in makers if _asks(maker.raw) and not _has_pods(maker, pods)]


def _names_ours(maker: InputObject, served: Sequence[str], others: Collection[str]) -> bool:
    specs = _pod_specs(maker.raw.get("spec"))
    return any(_is_ours(one.get(SCHEDULER_NAME), served, others) for one in specs)


def _is_ours(name: Any, served: Sequence[str], others: Collection[str]) -> bool:
    return isinstance(name, str) and (name in served or misspelt(name, served, others))


def of_unmade(maker: InputObject, served: Sequence[str], others: Collection[str]) -> str:
    """Returns the warning about an object without pods.

    served: scheduler names of koordpy. others: names that are known to belong to other schedulers.
    """
    strange = [name for name in _schedulers(maker.raw) if name not in served]
    scheduler = f"; they would have {of_another(strange[0], served, others)}" if strange else ""
    kind = f"{maker.warning.replace(': ignored', '', 1)}; " if maker.warning else ""
    return f"{maker}: {kind}{UNMADE}{scheduler}"


def is_ours(maker: InputObject, served: Sequence[str], others: Collection[str]) -> bool:
    """Returns True if the object's pods are for koordpy, or if no scheduler is named."""
    names = _schedulers(maker.raw)
    return not names or any(_is_ours(name, served, others) for name in names)


def _has_pods(maker: InputObject, pods: Mapping[str, Sequence[Pod]]) -> bool:
    """Returns True if the input has pods of an object of an unread kind. They are found by owner or by name.

    The owner of a pod may be a child of the object; the child's name begins with the object's name. A pod written by
    hand has no owner, but its name begins with the object's name.
    """
    return any(
        name == maker.name or name.startswith(f"{maker.name}-")
        for pod in pods.get(maker.namespace, ())
        for name in (pod.metadata.name, *(owner.name for owner in pod.metadata.owner_references))
    )


_NONE_OF = ("replicas", "parallelism", "completions")
_OVER = ("Complete", "Completed", "Succeeded", "Failed")
"""Conditions or phases of a workload that will not create pods any more."""


def _asks(raw: Mapping[str, Any]) -> bool:
    """Returns True if the object should have pods now: it is not suspended, not finished, and wants at least one."""
    source = Source(raw)
    spec = source.at("spec")
    held = spec.flag("suspend") or spec.at("runPolicy").flag("suspend")
    held = held or source.at("status").text("phase") in _OVER
    return not (held or conditions(source, *_OVER) or any(spec.raw.get(name) == 0 for name in _NONE_OF))


def _schedulers(raw: Mapping[str, Any]) -> list[str]:
    """Returns the scheduler names of the object's pod templates."""
    names = (spec.get("schedulerName") or KUBE_SCHEDULER_NAME for spec in _pod_specs(raw))
    return [name for name in names if isinstance(name, str)]


def _pod_specs(raw: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the specs of pod templates at any depth. A mapping with a schedulerName counts as one and is not
    searched."""
    todo = [raw]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += reversed(one)
        elif isinstance(one, dict):
            if isinstance(one.get("containers"), list) or "schedulerName" in one:
                yield one
            else:
                todo += reversed(one.values())


# -- a schedulerName outside of the pod template -----------------------------------------------------------------------


def of_misplaced(
    loaded: Loaded, read: Read, served: Sequence[str], others: Collection[str]
) -> Iterator[tuple[str, bool]]:
    """Yields (warning, blocks) for each schedulerName outside of a pod's spec.

    blocks: True if another scheduler gets pods that were meant for koordpy.
    """
    for part in read.parts:
        templates = part.workload.templates() if part.workload is not None else ()
        strange = not templates or any(one.scheduler not in served for one in templates)
        for path, name in _misplaced(part.maker.raw, {f"{one.path}.spec" for one in templates}):
            there = f"{_nearest(path, templates)}.spec"
            yield _said(part.maker, path, there), strange and _is_ours(name, served, others)
    for manifest in loaded.manifests:
        if isinstance(manifest.obj, Pod):
            strange = manifest.obj.spec.scheduler_name not in served
            for path, name in _misplaced(manifest.raw, ("spec",)):
                yield _said(manifest, path, "spec"), strange and _is_ours(name, served, others)


def _said(maker: InputObject, path: str, there: str) -> str:
    return f"{maker}: {path}: is ignored there: set {there}.{SCHEDULER_NAME}"


def _nearest(path: str, templates: Collection[Template]) -> str:
    """Returns the path of the template below the mapping that has the field, or else of the first template."""
    paths = [one.path for one in templates]
    above = path.rpartition(".")[0]
    return next((one for one in paths if one.startswith(above)), paths[0] if paths else "spec.template")


def _misplaced(raw: Mapping[str, Any], pods: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yields (path, value) of each schedulerName outside of a pod's spec. pods: paths of known pod specs."""
    todo: list[tuple[str, Any]] = [("", {key: value for key, value in raw.items() if key != "status"})]
    while todo:
        path, one = todo.pop()
        if isinstance(one, list):
            todo += [(f"{path}[{i}]", one[i]) for i in reversed(range(len(one)))]
        elif isinstance(one, dict):
            if SCHEDULER_NAME in one and path not in pods and not isinstance(one.get("containers"), list):
                yield key_path(path, SCHEDULER_NAME), one[SCHEDULER_NAME]
            todo += [(key_path(path, str(key)), one[key]) for key in reversed(one)]
