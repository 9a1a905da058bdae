"""Events of events.k8s.io/v1, best effort (kube-parity.md 4.6). [signatures; body follows]"""

from dataclasses import dataclass
from typing import Literal

from koordpy.engine.client import ApiClient


@dataclass(frozen=True, slots=True)
class ObjectReference:
    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class EventRecorder:
    dropped: int

    def __init__(self, client: ApiClient, *, controller: str, host: str = "") -> None: ...

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: Literal["Normal", "Warning"],
        reason: str,
        action: str,
        note: str,
        related: ObjectReference | None = None,
    ) -> None:
        """Never blocks, never raises."""
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError

    async def drain(self, seconds: float) -> None:
        """Waits at most `seconds` for the queue to empty, at shutdown."""
        raise NotImplementedError
