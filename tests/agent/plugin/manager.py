# SPDX-License-Identifier: Apache-2.0
"""A kubelet's device manager: which ids it books for the containers of the pods that it admits, one pod after another.

After pkg/kubelet/cm/devicemanager/manager.go and pkg/kubelet/kubelet.go of Kubernetes 1.36: containers in order, ids of
init containers that run once taken again first, those of restartable ones never; the plugin is asked what it prefers
only where new ids are needed, and only among these; what is booked outlives a restart, what may be taken again not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

ONCE, SIDE, MAIN = "once", "side", "main"


@dataclass(frozen=True)
class PodAsk:
    """containers: (name, kind, ids) of those with any, init containers first."""

    uid: str
    name: str
    containers: tuple[tuple[str, str, int], ...]
    created: float = 0.0


class RefusedError(Exception):
    """The pod is not admitted (UnexpectedAdmissionError)."""


class CrashError(Exception):
    """The kubelet ends here."""


class Plugin(Protocol):
    def prefer(self, available: Sequence[str], required: Sequence[str], size: int) -> Sequence[str]: ...

    def allocate(self, ids: Sequence[str]) -> Sequence[str]:
        """What the container sees. Raises RefusedError."""
        ...


@dataclass
class DeviceManager:
    """dice: stands for the order of Go's maps. between, answered: called after each container, and when the plugin has
    answered and nothing is booked yet; may raise."""

    healthy: set[str]
    plugin: Plugin
    dice: Random
    between: Callable[[], None] = lambda: None
    answered: Callable[[], None] = lambda: None
    lists_refused: bool = False
    """Whether pods that were refused stay in the list until they are deleted: kubelets before 1.34."""
    pods: dict[str, PodAsk] = field(default_factory=dict)
    refused: dict[str, PodAsk] = field(default_factory=dict)
    booked: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    sees: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """(uid, container) -> GPUs that it was given: its cached answer."""
    _in_use: set[str] = field(default_factory=set)
    _again: dict[str, set[str]] = field(default_factory=dict)

    def admit(self, pod: PodAsk) -> None:
        """Raises RefusedError, and whatever `between` raises."""
        self.pods[pod.uid] = pod
        try:
            for name, kind, size in pod.containers:
                self._again = {pod.uid: self._again.get(pod.uid, set())}
                self._allocate(pod, name, size)
                own = self.booked[pod.uid][name]
                again = self._again[pod.uid]
                self._again[pod.uid] = again | own if kind == ONCE else again - own
                self.between()
        except RefusedError:
            self.refused[pod.uid] = self.pods.pop(pod.uid)
            raise

    def _allocate(self, pod: PodAsk, name: str, size: int) -> None:
        # ids of pods that are gone are free from here on
        if gone := self.booked.keys() - self.pods.keys():
            for uid in gone:
                del self.booked[uid]
            self._in_use = self._all_booked()
        if name in self.booked.get(pod.uid, {}):
            return
        taken = self._some(self._again[pod.uid], size)
        if len(taken) < size:
            available = self.healthy - self._in_use
            if len(available) < size - len(taken):
                raise RefusedError("requested number of devices unavailable")
            preferred = self.plugin.prefer(sorted(available | taken), sorted(taken), size)
            taken |= self._some(set(preferred) & available, size - len(taken))
            taken |= self._some(available - taken, size - len(taken))
        self._in_use |= taken
        try:
            seen = self.plugin.allocate(self.dice.sample(sorted(taken), size))
        except RefusedError:
            self._in_use = self._all_booked()
            raise
        self.answered()
        self.booked.setdefault(pod.uid, {})[name] = taken
        self.sees[pod.uid, name] = tuple(seen)

    def _some(self, ids: set[str], most: int) -> set[str]:
        return set(self.dice.sample(sorted(ids), min(most, len(ids))))

    def _all_booked(self) -> set[str]:
        return {one for own in self.booked.values() for ids in own.values() for one in ids}

    def forget(self, uid: str) -> None:
        """The pod has ended and is deleted."""
        self.pods.pop(uid, None)
        self.refused.pop(uid, None)
        self.sees = {slot: gpus for slot, gpus in self.sees.items() if slot[0] != uid}

    def restart(self) -> None:
        """What is booked is on the disk."""
        self._again, self._in_use = {}, self._all_booked()

    def listed(self) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
        """PodResources: init containers that run once are left out."""
        known = {**self.pods, **(self.refused if self.lists_refused else {})}
        return {
            ("default", pod.name): {
                name: tuple(self.booked[uid][name])
                for name, kind, _ in pod.containers
                if kind != ONCE and name in self.booked.get(uid, {})
            }
            for uid, pod in known.items()
        }
