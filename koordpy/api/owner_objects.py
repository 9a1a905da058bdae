"""Wire objects of what pods belong to: services and the controllers whose selectors spreading reads, and workloads of
any kind.

As in `koordpy.api.objects` only what a decision may depend on is named.
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
    """A Job, a JobSet and the like: who it is, and the rest as it was sent, to be read where its kind is known. As text
    it takes a tenth of the room."""

    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


def read_part(raw: msgspec.Raw) -> Mapping[str, Any]:
    """Spec or status of a workload; empty where it is no mapping."""
    found = msgspec.json.decode(raw)
    return found if isinstance(found, Mapping) else {}
