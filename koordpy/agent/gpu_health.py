"""Which GPUs may be given away: errors make them unhealthy, clean polls make them healthy again, a loss is for good.

Source: gpu-topology.md 9; the meaning of the codes: NVIDIA's list of Xid errors.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from koordpy.agent.gpu_facts import MachineGpu, XidEvent

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""A fault of the program that ran, or a stop by the user; the GPU is none the worse."""
NVLINK_XID = 74
LOST_XID = 79
"""The GPU has fallen off the bus: only a restart of the node brings it back."""
RECOVER_AFTER = 3


@dataclass(slots=True)
class _State:
    clean: int = 0
    why: str = ""
    lost: bool = False


@dataclass
class HealthBook:
    """The state of every GPU seen since the node started, by key.

    recover_after: polls without an event after which a GPU counts as healthy again.
    """

    recover_after: int = RECOVER_AFTER
    ignored: Collection[int] = APPLICATION_XIDS
    _sick: dict[str, _State] = field(default_factory=dict)
    _links: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, MachineGpu] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)

    def remember(self, gpus: Iterable[MachineGpu]) -> None:
        """GPUs that an earlier process of this boot reported: they count as vanished until they are seen."""
        for gpu in gpus:
            self._seen.setdefault(gpu.key, gpu)

    def poll(self, gpus: Sequence[MachineGpu] | None, events: Sequence[XidEvent] | None) -> None:
        """Takes in one poll. gpus: those that are there, None where the driver did not answer; events: None where the
        wait for them failed, which says nothing good of any GPU."""
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
        """The GPUs that this poll's events make unhealthy."""
        for key in list(self._links):
            self._links[key] += 1
            if self._links[key] > self.recover_after:
                del self._links[key]
        if events is None:
            return self._mark(self._seen, "health events cannot be had")
        hit: set[str] = set()
        for event in events:
            if event.xid in self.ignored:
                continue
            if event.uuid not in self._seen:
                hit |= self._mark(self._seen, f"Xid {event.xid} of a GPU that is not known ({event.uuid or 'no UUID'})")
            elif event.xid == NVLINK_XID:
                self._links[event.uuid] = 1
            else:
                hit |= self._mark([event.uuid], f"Xid {event.xid}", lost=event.xid == LOST_XID)
        return hit

    def _mark(self, keys: Iterable[str], why: str, *, lost: bool = False) -> set[str]:
        marked = set(keys)
        for key in marked:
            old = self._sick.get(key)
            self._sick[key] = _State(why=old.why if old and old.lost else why, lost=lost or bool(old and old.lost))
        return marked

    @property
    def gpus(self) -> list[MachineGpu]:
        """Every GPU of this boot, vanished ones included: their rows stay, so that matrices keep their size."""
        return list(self._seen.values())

    @property
    def present(self) -> list[MachineGpu]:
        return [gpu for gpu in self._seen.values() if gpu.key not in self._gone]

    @property
    def without_nvlink(self) -> frozenset[str]:
        """Keys of GPUs with NVLink errors."""
        return frozenset(self._links)

    def why_sick(self, key: str) -> str:
        """Why a GPU may not be given away; empty for a healthy one."""
        if key in self._gone:
            return "not there any more"
        state = self._sick.get(key)
        return state.why if state is not None else ""
