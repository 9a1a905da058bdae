# SPDX-License-Identifier: Apache-2.0
"""Leader election on a coordination.k8s.io Lease, as client-go's leaderelection (kube-parity.md 4.8).

Only the leader writes to the cluster. Clocks of different machines are never compared. The lease of another process
expires its duration after this process saw the Lease change. This process's lease expires its duration after the moment
before its last successful renewal was sent. Both times are on the safe side, so that two processes do not lead at the
same time. The clock is monotonic and also runs while the machine is suspended, if the system has such a clock.
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
"""HTTP statuses of an invalid name or namespace of the Lease."""


def boot_clock() -> float:
    """Seconds that never go back and, unlike `time.monotonic` on Linux, also count while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaderElector:
    """One candidate. `run()` waits for the lease, renews it, and returns when it is lost; then the process exits.

    The events `acquired` and `lost` are set once. Call `may_write()` before each batch of writes.
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
        """now: returns seconds since 1970, for the times in the Lease. Must hold, and `config/configuration_file.py`
        checks it: lease duration > renew deadline > retry period with its jitter."""
        # unique per process, so that a restarted process does not continue the term of its predecessor
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self.acquired, self.lost = asyncio.Event(), asyncio.Event()
        self._client, self._clock, self._now, self._sleep = client, clock, now, sleep
        self._namespace, self._name = election.resource_namespace, election.resource_name
        self._lease_seconds, self._renew_seconds = election.lease_duration, election.renew_deadline
        self._retry_seconds = election.retry_period
        self._path = LEASES.path(self._namespace, self._name)
        self._lease: dict[str, Any] | None = None
        """The Lease as last read or written; None if it does not exist, or must be read before the next write."""
        self._record: tuple[object, ...] | None = None
        """The fields of the spec that a renewal changes, as last seen; None before the first read."""
        self._observed_at = 0.0
        """Clock time at which `_record` was first seen."""
        self._renewed_at = float("-inf")
        """Clock time just before the last successful renewal was sent."""
        self._leading = False
        self.quiet_seconds = 0.0
        """Seconds since the previous leader's last possible write when this term began. A leader stops writing at its
        renew deadline."""
        self.epoch = self._seen_transitions = -1
        """leaseTransitions of this term, written as fencing number into every Binding. -1 before the first term."""
        self._told: dict[str, float] = {}
        """Text that was logged -> clock time of its last line."""

    @property
    def leader(self) -> str:
        """Identity of the holder as last seen; empty if the lease is free."""
        return str(self._spec().get("holderIdentity") or "")

    @property
    def uid(self) -> str:
        """uid of the Lease as last seen; empty if unknown."""
        return str(((self._lease or {}).get("metadata") or {}).get("uid") or "")

    def time_left(self) -> float:
        """Returns the seconds until another process may take the lease; 0 if this process does not lead."""
        return max(0.0, self._renewed_at + self._lease_seconds - self._clock()) if self._leading else 0.0

    def may_write(self) -> bool:
        """Returns True while this process leads and its renew deadline has not passed. Writes in flight have the time
        between renew deadline and lease duration to end."""
        return self._leading and self._clock() - self._renewed_at < self._renew_seconds

    async def run(self) -> None:
        """Waits for the lease, then renews it. Ends if renewals fail for the renew deadline, or another process holds
        the lease.

        Sets `acquired`, later `lost`. Errors of the API server count as failed tries and are not raised. To step down,
        cancel it, then call `release()`.
        """
        # candidate
        while not await self._try(self._retry_seconds * 5):
            if (leader := self.leader) and self._is_news(f"held by {leader}"):
                logger.info("waiting for lease %s/%s, held by %s", self._namespace, self._name, leader)
            await self._pause()
        # leader
        self._leading = True
        logger.info("became leader: lease %s/%s, epoch %d", self._namespace, self._name, self.epoch)
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
        """Releases the lease (holderIdentity ""), so that a standby can lead at once. Errors are only logged."""
        self._leading = False
        with contextlib.suppress(ApiError, Unreachable, TimeoutError):
            async with asyncio.timeout(self._retry_seconds):
                # read again, because a renewal without a reply may have taken effect
                await self._read()
                if self.leader != self.identity:
                    return
                now, empty = micro_time(self._now()), {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._write({**self._spec(), **empty, "renewTime": now, "acquireTime": now})
                logger.info("lease %s/%s released", self._namespace, self._name)

    # -- one try ------------------------------------------------------------------------------------------------------

    async def _try(self, seconds: float) -> bool:
        """Tries to take or renew the lease. Returns True if this process holds it afterwards."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                return await self._take_or_renew()
        except (ApiError, Unreachable, TimeoutError) as error:
            self._complain(error)
            # the known Lease may be stale: read it before the next write
            self._lease = None
            return False

    def _complain(self, error: ApiError | Unreachable | TimeoutError) -> None:
        """Logs a failed try. For a candidate, failures of one kind (an HTTP status or an exception) are logged at most
        every `AGAIN_SECONDS`."""
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
        """Returns True if a text was not logged recently."""
        now = self._clock()
        if now - self._told.get(text, float("-inf")) < AGAIN_SECONDS:
            return False
        self._told[text] = now
        return True

    async def _take_or_renew(self) -> bool:
        """Makes one try. Returns True if this process holds the lease afterwards.

        Takes the lease if it is free or expired, or renews it if this process holds it. If a leader finds that its
        lease was released or taken in between, the method returns False, which ends the leader's term.
        """
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
            # the lease was released or expired: a new term needs a new epoch, which only a new process gets
            return False
        began, transitions = self._clock(), int(spec.get("leaseTransitions") or 0) + (not ours)
        term = self._term(transitions)
        await self._write({**spec, **term, "acquireTime": spec.get("acquireTime") if ours else term["acquireTime"]})
        self._renewed_at, self.epoch = began, transitions
        if holder and not ours:
            self.quiet_seconds = self._lease_seconds - self._renew_seconds
        return True

    async def _create(self) -> bool:
        """Creates the Lease with this process as its holder. Raises ApiError if another process was faster."""
        # a deleted Lease has lost the count of terms; the count seen before is continued, so that epochs stay distinct
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
        """Returns the spec of the Lease for a term of this process that begins now."""
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
        """Stores the Lease as read or written, and the time at which its record changed."""
        self._lease = lease
        spec = self._spec()
        self._seen_transitions = max(self._seen_transitions, int(spec.get("leaseTransitions") or 0) if spec else -1)
        fields = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")
        record = tuple(spec.get(name) for name in fields)
        if record != self._record:
            self._record, self._observed_at = record, self._clock()

    def _left(self) -> float:
        """Returns the seconds until the lease as read expires, counted from the first read of this record."""
        seconds = self._spec().get("leaseDurationSeconds")
        return self._observed_at + float(seconds if seconds is not None else self._lease_seconds) - self._clock()

    def _spec(self) -> dict[str, Any]:
        return (self._lease or {}).get("spec") or {}

    async def _pause(self) -> None:
        """Waits before the next try; a candidate waits at most until the lease expires."""
        seconds, left = self._retry_seconds * random.uniform(1.0, RETRY_JITTER), self._left()
        await self._sleep(seconds if self._leading or left <= 0 else min(seconds, left))
