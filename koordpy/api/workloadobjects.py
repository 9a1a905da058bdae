"""Wire object of a workload of any kind: who it is, and the rest as it was sent, to be read where its kind is known."""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordpy.api.objects import ObjectMeta, Wire

_NOTHING = msgspec.Raw(b"{}")


class WorkloadObject(Wire, frozen=True):
    """A Job, a JobSet and the like. As text it takes a tenth of the room."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


def read_part(raw: msgspec.Raw) -> Mapping[str, Any]:
    """Its spec or status; empty where it is no mapping."""
    found = msgspec.json.decode(raw)
    return found if isinstance(found, Mapping) else {}
