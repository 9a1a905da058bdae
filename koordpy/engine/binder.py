"""Bindings: one POST a pod, and certainty about its outcome (kube-parity.md 4.4). [signatures; body follows]"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from koordpy.engine.client import ApiClient


class BindResult(enum.StrEnum):
    BOUND = "bound"
    GONE = "gone"  # 404, or another uid under the name
    CONFLICT = "conflict"  # on another node: `node` says which
    TERMINATING = "terminating"
    GATED = "gated"
    REFUSED = "refused"  # not bound, may be planned again (after retry_after)
    UNKNOWN = "unknown"  # leadership ended before the outcome was known
    NOT_SENT = "not_sent"  # may_send said no


@dataclass(frozen=True, slots=True)
class Binding:
    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindOutcome:
    binding: Binding
    result: BindResult
    message: str = ""
    node: str = ""
    retry_after: float | None = None
    resolved: bool = False  # the reply was lost or unclear; a GET told
    seconds: float = 0.0


class Binder:
    def __init__(self, client: ApiClient, *, max_in_flight: int = 64) -> None: ...

    @property
    def in_flight(self) -> int:
        raise NotImplementedError

    async def bind(self, binding: Binding, *, may_send: Callable[[], bool] = lambda: True) -> BindOutcome:
        raise NotImplementedError

    async def bind_all(
        self,
        bindings: Sequence[Binding],
        *,
        may_send: Callable[[], bool],
        on_outcome: Callable[[BindOutcome], None] | None = None,
    ) -> list[BindOutcome]:
        """In the order given (rank order for a gang); outcomes in the same order."""
        raise NotImplementedError
