"""Wire objects of owners of pods: services and controllers, for selectors of spread constraints, and workloads of any
kind.

As in `objects.py`, only fields that a decision may depend on are declared.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from collections.abc import Mapping
from typing import Any

import msgspec

from koordpy.api.objects import KubernetesObject, LabelSelector, Wire


class SelectorSpec(Wire, frozen=True):
    selector: dict[str, str] = {}


class Service(KubernetesObject, frozen=True):
    spec: SelectorSpec = SelectorSpec()


class ReplicationController(KubernetesObject, frozen=True):
    spec: SelectorSpec = SelectorSpec()


class WorkloadSpec(Wire, frozen=True):
    selector: LabelSelector | None = None


class ReplicaSet(KubernetesObject, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()


class StatefulSet(KubernetesObject, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()


OWNER_KINDS: tuple[type[Wire], ...] = (Service, ReplicationController, ReplicaSet, StatefulSet)
_NOTHING = msgspec.Raw(b"{}")


class WorkloadObject(KubernetesObject, frozen=True):
    """A Job, a JobSet or another workload: its metadata, and the JSON text of spec and status.

    The text is decoded by the reader of its kind, and takes a tenth of the memory of decoded values."""

    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


def read_part(raw: msgspec.Raw) -> Mapping[str, Any]:
    """Returns spec or status of a workload; empty if it is not a mapping."""
    found = msgspec.json.decode(raw)
    return found if isinstance(found, Mapping) else {}
