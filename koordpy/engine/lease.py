"""Leader election on a Lease (kube-parity.md 4.8). [signatures; body follows]"""

import asyncio
from collections.abc import Awaitable, Callable

from koordpy.engine.client import ApiClient


class LeaderElector:
    acquired: asyncio.Event
    lost: asyncio.Event
    identity: str

    def __init__(
        self,
        client: ApiClient,
        *,
        identity: str = "",
        namespace: str = "kube-system",
        name: str = "koordpy",
        lease_seconds: float = 15.0,
        renew_seconds: float = 10.0,
        retry_seconds: float = 2.0,
        clock: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None: ...

    @property
    def epoch(self) -> int:
        """leaseTransitions of our term."""
        raise NotImplementedError

    def time_left(self) -> float:
        """Seconds until others may take the lease, at the worst; 0 when not leading."""
        raise NotImplementedError

    def may_write(self) -> bool:
        """True while leading and within the renew deadline: the check before each batch of Bindings."""
        raise NotImplementedError

    async def run(self) -> None:
        """Waits for the lease, keeps it, returns when it is lost (`lost` is set) or after `stop()`."""
        raise NotImplementedError

    async def release(self) -> None:
        """Gives the lease back (holderIdentity ""), best effort; at shutdown, after the last write."""
        raise NotImplementedError
