"""Leader election on a coordination.k8s.io Lease (kube-parity.md 4.8).

Clocks of different machines are never compared: another's lease is held to run from the moment we saw its record
change, ours from the moment before we sent the last renewal that succeeded. Both err to the safe side. The clock is
monotonic and counts the time a machine sleeps, where the system has such a clock.
"""

import asyncio
import contextlib
import logging
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from koordpy.api.times import micro_time
from koordpy.config.configuration import RETRY_JITTER, LeaderElection
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import LEASES
from koordpy.engine.client.complaints import AGAIN_SECONDS

logger = logging.getLogger(__name__)

NOT_FOUND, CONFLICT = 404, 409
NO_NAME = (400, 405, 422)


def boot_clock() -> float:
    """Seconds that never go back and, unlike `time.monotonic` on Linux, also count while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaderElector:
    """One candidate. `run()` waits for the lease, keeps it, and returns when it is lost; the process then ends.

    `acquired` and `lost` are set once. Before each batch of writes ask `may_write()`.
    """

    def __init__(
        self,
        client: ApiClient,
        election: LeaderElection,
        *,
        identity: str = "",
        clock: Callable[[], float] = boot_clock,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`now` gives the times that are written. Lease > renew > retry with its jitter
        (`config/configuration_file.py`)."""
        # another one for each process, so that a restarted one does not take its old term for its own
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self.acquired, self.lost = asyncio.Event(), asyncio.Event()
        self._client, self._clock, self._now, self._sleep = client, clock, now, sleep
        self._namespace, self._name = election.resource_namespace, election.resource_name
        self._lease_seconds, self._renew_seconds = election.lease_duration, election.renew_deadline
        self._retry_seconds = election.retry_period
        self._path = LEASES.path(self._namespace, self._name)
        self._lease: dict[str, Any] | None = None
        self._record: tuple[object, ...] | None = None
        self._observed_at = 0.0
        self._renewed_at = float("-inf")
        self._leading = False
        self.quiet_seconds = 0.0
        """How long, when our term began, the leader before us had sent nothing new: it stops at its renew deadline."""
        self.epoch = self._seen_transitions = -1
        """leaseTransitions of our term: the fencing number in every Binding. -1 before the first term."""
        self._told: dict[str, float] = {}
        """What a candidate has said -> when."""

    @property
    def leader(self) -> str:
        """Identity of the holder as last seen; empty when nobody holds the lease."""
        return str(self._spec().get("holderIdentity") or "")

    @property
    def uid(self) -> str:
        """Of the Lease as last seen."""
        return str(((self._lease or {}).get("metadata") or {}).get("uid") or "")

    def time_left(self) -> float:
        """Seconds until others may take the lease, at the worst; 0 when not leading."""
        return max(0.0, self._renewed_at + self._lease_seconds - self._clock()) if self._leading else 0.0

    def may_write(self) -> bool:
        """True while leading and before the renew deadline; the rest of the lease is for what is under way."""
        return self._leading and self._clock() - self._renewed_at < self._renew_seconds

    async def run(self) -> None:
        """Waits for the lease, then renews it until that fails for the renew deadline or another holds it.

        Sets `acquired`, later `lost`. Errors of the API server are tries that failed, never raised. To step down,
        cancel it, then call `release()`.
        """
        while not await self._try(self._retry_seconds * 5):
            if (leader := self.leader) and self._is_news(f"held by {leader}"):
                logger.info("waiting for lease %s/%s, held by %s", self._namespace, self._name, leader)
            await self._pause()
        self._leading = True
        logger.info("leading since now: lease %s/%s, epoch %d", self._namespace, self._name, self.epoch)
        self.acquired.set()
        try:
            while self.may_write():
                await self._pause()
                left = self._renewed_at + self._renew_seconds - self._clock()
                if left <= 0:
                    break
                if not await self._try(left) and self.leader not in (self.identity, ""):
                    logger.error("the lease %s/%s was taken by %s", self._namespace, self._name, self.leader)
                    return
            logger.error("the lease %s/%s was not renewed in %g s", self._namespace, self._name, self._renew_seconds)
        finally:
            self._leading = False
            self.lost.set()

    async def release(self) -> None:
        """Gives the lease back (holderIdentity ""), so that a standby need not wait for its end. Best effort."""
        self._leading = False
        with contextlib.suppress(ApiError, Unreachable, TimeoutError):
            async with asyncio.timeout(self._retry_seconds):
                # read, not remembered: a renewal that was cut off may have been carried out
                await self._read()
                if self.leader != self.identity:
                    return
                now, empty = micro_time(self._now()), {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._write({**self._spec(), **empty, "renewTime": now, "acquireTime": now})
                logger.info("lease %s/%s given back", self._namespace, self._name)

    # one try

    async def _try(self, seconds: float) -> bool:
        """One try to take or renew the lease; True when it is ours afterwards."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                return await self._take_or_renew()
        except (ApiError, Unreachable, TimeoutError) as error:
            self._complain(error)
            # what we hold in hand may be stale now: read before the next write
            self._lease = None
            return False

    def _complain(self, error: ApiError | Unreachable | TimeoutError) -> None:
        """Says each failure of a leader, of a candidate one of each kind."""
        lease, kind, advice = f"{self._namespace}/{self._name}", type(error).__name__, ""
        if self._client.complained(error, "get, create and update", f"the Lease {lease}"):
            return
        if isinstance(error, ApiError):
            kind = str(error.status)
            if error.status in NO_NAME:
                advice = "; see leaderElection.resourceNamespace and resourceName"
            elif error.status == NOT_FOUND:
                advice = "; see leaderElection.resourceNamespace"
        news = self._leading or (kind != str(CONFLICT) and self._is_news(kind))
        level = logging.WARNING if news else logging.DEBUG
        logger.log(level, "lease %s: %s%s", lease, str(error) or kind, advice)

    def _is_news(self, text: str) -> bool:
        """Whether this was not said lately."""
        now = self._clock()
        if now - self._told.get(text, float("-inf")) < AGAIN_SECONDS:
            return False
        self._told[text] = now
        return True

    async def _take_or_renew(self) -> bool:
        if self._lease is None or not self._leading:
            await self._read()
        if self._lease is None:
            return await self._create()
        spec = self._spec()
        holder = spec.get("holderIdentity") or ""
        ours = holder == self.identity
        if holder and not ours and self._left() > 0:
            return False
        if not ours and self._leading:
            # gone empty or run out under us: a new term needs a new epoch, which is for a new process to have
            return False
        began, transitions = self._clock(), int(spec.get("leaseTransitions") or 0) + (not ours)
        term = self._term(transitions)
        await self._write({**spec, **term, "acquireTime": spec.get("acquireTime") if ours else term["acquireTime"]})
        self._renewed_at, self.epoch = began, transitions
        if holder and not ours:
            self.quiet_seconds = self._lease_seconds - self._renew_seconds
        return True

    async def _create(self) -> bool:
        # one that was deleted took the count of terms with it; going on from there keeps the epochs apart
        began, transitions = self._clock(), self._seen_transitions + 1
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._term(transitions),
        }
        self._observe(await self._client.post(LEASES.path(self._namespace), body, type=dict[str, Any]))
        self._renewed_at, self.epoch = began, transitions
        return True

    def _term(self, transitions: int) -> dict[str, Any]:
        """What the Lease says of a term of ours that begins now."""
        now = micro_time(self._now())
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._lease_seconds)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    async def _read(self) -> None:
        self._observe(await self._client.get_or_none(self._path, type=dict[str, Any]))

    async def _write(self, spec: dict[str, Any]) -> None:
        assert self._lease is not None
        self._observe(await self._client.put(self._path, {**self._lease, "spec": spec}, type=dict[str, Any]))

    def _observe(self, lease: dict[str, Any] | None) -> None:
        self._lease = lease
        spec = self._spec()
        self._seen_transitions = max(self._seen_transitions, int(spec.get("leaseTransitions") or 0) if spec else -1)
        fields = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")
        record = tuple(spec.get(name) for name in fields)
        if record != self._record:
            self._record, self._observed_at = record, self._clock()

    def _left(self) -> float:
        """Seconds that the lease that was read is still in force, counted from when we first saw it so."""
        seconds = self._spec().get("leaseDurationSeconds")
        return self._observed_at + float(seconds if seconds is not None else self._lease_seconds) - self._clock()

    def _spec(self) -> dict[str, Any]:
        return (self._lease or {}).get("spec") or {}

    async def _pause(self) -> None:
        """Before the next try, which for a candidate is no later than the end of the lease that it waits for."""
        seconds, left = self._retry_seconds * random.uniform(1.0, RETRY_JITTER), self._left()
        await self._sleep(seconds if self._leading or left <= 0 else min(seconds, left))
