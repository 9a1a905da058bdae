# SPDX-License-Identifier: Apache-2.0
"""Wire objects of services and of controllers that own pods.

Two uses: the default topology spread selects the pods of a pod's services and controllers, so their selectors are read;
and gangs are derived from workloads of any kind. As in `objects.py`, only fields that a decision may depend on are
declared.
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
    """Returns spec or status of a workload; empty if it is not a mapping."""
    found = msgspec.json.decode(raw)
    return found if isinstance(found, Mapping) else {}
