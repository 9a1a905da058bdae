# SPDX-License-Identifier: Apache-2.0
"""Wire objects (typed records) of services and of controllers that own pods.

They have two uses. The default topology spread constraints select the pods of a pod's services and controllers, so
their selectors are read. And gangs are derived from workloads of any kind. As in `objects.py`, only fields that a
decision may depend on are declared.
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
    """A Job, a JobSet or another workload: metadata, and spec and status as JSON text.

    The text takes a tenth of the memory of decoded values. The reader of the kind (`workloads.kinds`) decodes it."""

    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


def read_part(raw: msgspec.Raw) -> Mapping[str, Any]:
    """Returns the spec or status of a workload as a mapping; empty if it is not a mapping."""
    found = msgspec.json.decode(raw)
    return found if isinstance(found, Mapping) else {}
