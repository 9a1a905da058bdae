# SPDX-License-Identifier: Apache-2.0
"""Decides on the health of the GPUs from the errors that the driver reports.

An error makes a GPU unhealthy; `RECOVER_AFTER` polls without an error make it healthy again. A GPU that fell off the
bus stays unhealthy until the node reboots. An Xid is an error code of NVIDIA's driver; the codes are those of NVIDIA's
list of Xid errors. Rules: gpu-topology.md 9.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from koordpy.agent.gpu_facts import MachineGpu, XidEvent

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids caused by the application or by a stop of the user; they do not make a GPU unhealthy."""
NVLINK_XID = 74
"""Xid of an NVLink error."""
LOST_XID = 79
"""Xid of a GPU that has fallen off the bus; only a reboot of the node restores it."""
RECOVER_AFTER = 3
"""Number of clean polls after which a GPU is healthy again."""


@dataclass(slots=True)
class _State:
    """State of one unhealthy GPU."""

    clean: int = 0
    """Number of polls without an event since the last error."""
    why: str = ""
    """Reason why the GPU is unhealthy."""
    lost: bool = False
    """True if the GPU has fallen off the bus, so that only a reboot restores it."""


@dataclass
class HealthBook:
    """Health of every GPU that was seen since the node booted."""

    recover_after: int = RECOVER_AFTER
    """Number of polls without an event after which a GPU counts as healthy again."""
    ignored: Collection[int] = APPLICATION_XIDS
    """Xids that do not make a GPU unhealthy."""
    _sick: dict[str, _State] = field(default_factory=dict)
    """Key of an unhealthy GPU -> its state."""
    _links: dict[str, int] = field(default_factory=dict)
    """Key of a GPU with an NVLink error -> number of polls since the error."""
    _seen: dict[str, MachineGpu] = field(default_factory=dict)
    """Key -> GPU, of every GPU seen since the node started."""
    _gone: set[str] = field(default_factory=set)
    """Keys of GPUs that were seen before and that the last poll did not list."""

    def remember(self, gpus: Iterable[MachineGpu]) -> None:
        """Adds GPUs that an earlier agent reported since the node's boot; until a poll lists them they count as
        vanished."""
        for gpu in gpus:
            self._seen.setdefault(gpu.key, gpu)

    def poll(self, gpus: Sequence[MachineGpu] | None, events: Sequence[XidEvent] | None) -> None:
        """Updates the health from one poll.

        gpus: existing GPUs; None if the driver did not answer. events: errors since the last poll; None if waiting for
        events failed. In both cases of None all GPUs count as unhealthy.
        """
        if gpus is not None:
            self._seen.update((gpu.key, gpu) for gpu in gpus)
            self._gone = set(self._seen) - {gpu.key for gpu in gpus}
        hit = self._take(events)
        if gpus is None:
            hit |= self._mark(self._seen, "the driver does not answer")
        for key in list(self._sick):
            state = self._sick[key]
            if key in hit or state.lost or key in self._gone:
                continue
            state.clean += 1
            if state.clean >= self.recover_after:
                del self._sick[key]

    def _take(self, events: Sequence[XidEvent] | None) -> set[str]:
        """Returns the keys of the GPUs that the events of this poll make unhealthy."""
        for key in list(self._links):
            self._links[key] += 1
            if self._links[key] > self.recover_after:
                del self._links[key]
        if events is None:
            return self._mark(self._seen, "health events are not available")
        hit: set[str] = set()
        for event in events:
            if event.xid in self.ignored:
                continue
            if event.uuid not in self._seen:
                hit |= self._mark(self._seen, f"Xid {event.xid} of an unknown GPU ({event.uuid or 'no UUID'})")
            elif event.xid == NVLINK_XID:
                self._links[event.uuid] = 1
            else:
                hit |= self._mark([event.uuid], f"Xid {event.xid}", lost=event.xid == LOST_XID)
        return hit

    def _mark(self, keys: Iterable[str], why: str, *, lost: bool = False) -> set[str]:
        """Makes GPUs (keys) unhealthy and returns them. The reason of a lost GPU does not change."""
        marked = set(keys)
        for key in marked:
            old = self._sick.get(key)
            self._sick[key] = _State(why=old.why if old and old.lost else why, lost=lost or bool(old and old.lost))
        return marked

    @property
    def gpus(self) -> list[MachineGpu]:
        """Every GPU seen since the node booted, including vanished GPUs, so that link matrices keep their size."""
        return list(self._seen.values())

    @property
    def present(self) -> list[MachineGpu]:
        """The GPUs that the driver knows now."""
        return [gpu for gpu in self._seen.values() if gpu.key not in self._gone]

    @property
    def without_nvlink(self) -> frozenset[str]:
        """Keys of the GPUs with NVLinks that are not used, because of a recent NVLink error."""
        return frozenset(self._links)

    def why_sick(self, key: str) -> str:
        """Returns why a GPU is unhealthy; empty if it is healthy."""
        if key in self._gone:
            return "vanished"
        state = self._sick.get(key)
        return state.why if state is not None else ""
