"""Objects of the input whose pods nobody makes here, and the schedulers that manifests name: objects of kinds that are
not read, and a schedulerName that stands beside the pod template.

Sources: simulate.md 1.2 and 4, workloads.md 10.6.
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
    """What ought to have pods and has none in the input, so that nothing can be said of these.

    Objects of kinds that are known to make pods, and those of any other kind that is not read and that names a
    scheduler of koordpy in its spec.
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
    """The warning of one; served: the scheduler names that are koordpy's, others: those that are known to be
    another's."""
    strange = [name for name in _schedulers(maker.raw) if name not in served]
    whose = f"; they would be {of_another(strange[0], served, others)}" if strange else ""
    kind = f"{maker.told.replace(': ignored', '', 1)}; " if maker.told else ""
    return f"{maker}: {kind}{UNMADE}{whose}"


def is_ours(maker: InputObject, served: Sequence[str], others: Collection[str]) -> bool:
    """Whether koordpy is meant to place its pods, or may be."""
    names = _schedulers(maker.raw)
    return not names or any(_is_ours(name, served, others) for name in names)


def _has_pods(maker: InputObject, pods: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether the input has pods of an object that is not read.

    The pods of a Deployment are those of its ReplicaSet, those of a CronJob its Jobs'. Whoever writes pods by hand
    gives them their names, and no owner.
    """
    return any(
        name == maker.name or name.startswith(f"{maker.name}-")
        for pod in pods.get(maker.namespace, ())
        for name in (pod.metadata.name, *(owner.name for owner in pod.metadata.owner_references))
    )


_NONE_OF = ("replicas", "parallelism", "completions")
_OVER = ("Complete", "Completed", "Succeeded", "Failed")
"""Conditions, or phases, of a workload that makes no more pods."""


def _asks(raw: Mapping[str, Any]) -> bool:
    """Whether it ought to have pods now: not where it is suspended, has ended or asks for none."""
    source = Source(raw)
    spec = source.at("spec")
    held = spec.flag("suspend") or spec.at("runPolicy").flag("suspend")
    held = held or source.at("status").text("phase") in _OVER
    return not (held or conditions(source, *_OVER) or any(spec.raw.get(name) == 0 for name in _NONE_OF))


def _schedulers(raw: Mapping[str, Any]) -> list[str]:
    """The schedulers of its templates."""
    names = (spec.get("schedulerName") or KUBE_SCHEDULER_NAME for spec in _pod_specs(raw))
    return [name for name in names if isinstance(name, str)]


def _pod_specs(raw: Any) -> Iterator[Mapping[str, Any]]:
    """The pod templates' specs, wherever a kind has them. What names a scheduler names it for all below it."""
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


# -- a schedulerName beside the template -------------------------------------------------------------------------------


def of_misplaced(
    loaded: Loaded, read: Read, served: Sequence[str], others: Collection[str]
) -> Iterator[tuple[str, bool]]:
    """(what is said of a schedulerName that stands where nobody reads it, whether pods that were meant for koordpy are
    another scheduler's for it)."""
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
    return f"{maker}: {path}: is not read there: {there}.{SCHEDULER_NAME} is"


def _nearest(path: str, templates: Collection[Template]) -> str:
    """The path of the template below a field's mapping, else of the first."""
    paths = [one.path for one in templates]
    above = path.rpartition(".")[0]
    return next((one for one in paths if one.startswith(above)), paths[0] if paths else "spec.template")


def _misplaced(raw: Mapping[str, Any], pods: Collection[str]) -> Iterator[tuple[str, Any]]:
    """(path, value) of each schedulerName that is not in the spec of a pod. pods: paths of known specs of pods."""
    todo: list[tuple[str, Any]] = [("", {key: value for key, value in raw.items() if key != "status"})]
    while todo:
        path, one = todo.pop()
        if isinstance(one, list):
            todo += [(f"{path}[{i}]", one[i]) for i in reversed(range(len(one)))]
        elif isinstance(one, dict):
            if SCHEDULER_NAME in one and path not in pods and not isinstance(one.get("containers"), list):
                yield key_path(path, SCHEDULER_NAME), one[SCHEDULER_NAME]
            todo += [(key_path(path, str(key)), one[key]) for key in reversed(one)]
