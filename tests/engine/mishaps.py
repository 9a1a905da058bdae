# SPDX-License-Identifier: Apache-2.0
"""What befalls a plan after it was made: machines are suspended, GPUs fall sick, others come first.

It has dice of its own, so that schedules without mishaps stay as they are.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from koordpy.api import keys
from koordpy.plan.round_plan import Placement
from tests.engine.machines import Machines
from tests.engine.manifests import DEVICES
from tests.engine.replica import Replica
from tests.engine.stage import Stage, device
from tests.given_devices import numbers_of

LATER_SECONDS = 0.03
"""What an answer of the planner takes longer, so that word of a mishap may come before it."""
ACTIONS = ("sick", "taken", "cordoned", "gone")
CLAIMS = ("*/persistentvolume*", "*/resourceclaims/*")


@dataclass
class Mishaps:
    """Those of one schedule."""

    stage: Stage
    machines: Machines
    replicas: Sequence[Replica]
    acted: Callable[[], None]
    """Hears that somebody did something."""

    def __post_init__(self) -> None:
        self._dice = random.Random(str(self.stage.dice.getstate()[1][:8]))
        self._suspends = "replicas" in self.stage.traits and self._dice.random() < 0.4
        self._befall = self._dice.random() < 0.3
        self._made = 0
        self._given: list[Placement] = []
        """What was placed last with GPUs by name."""

    def over(self) -> None:
        """Nothing more goes wrong."""
        self._suspends = self._befall = False

    async def suspend(self) -> None:
        """Machines of replicas are suspended now and then."""
        for _ in range(self._dice.choice((1, 2, 4))):
            await asyncio.sleep(self._dice.random() * self._dice.choice((0.1, 0.5, 2.0)))
            if self._suspends:
                self._dice.choice(self.replicas).doze(self._dice.choice((0.3, 1.2, 5.0)))
                self.stage.tally["suspended"] += 1

    def planned(self, placements: Sequence[Placement]) -> float:
        """A plan is made; seconds that its answer takes longer."""
        if not self._befall or not placements:
            return 0.0
        self._given = [one for one in placements if keys.GPU_ALLOCATION in one.annotations] or self._given
        if self._dice.random() < 0.7:
            return 0.0
        placed = self._dice.choice(placements)
        action = self._dice.choice(ACTIONS)
        if action == "sick" and placed in self._given:
            self._sicken(placed.node, numbers_of(placed)[0])
        elif action == "taken" and placed in self._given:
            self._take(placed)
        elif action == "cordoned" and placed.node in self._names("nodes"):
            self.machines.close(placed.node, closed=True)
        elif action == "gone" and placed.pod_key.partition("/")[2] in self.stage.cluster.pods():
            self.stage.cluster.delete(placed.pod_key.partition("/")[2])
        else:
            return 0.0
        self._happened(f"planned: {action}")
        return LATER_SECONDS

    def requested(self, replica: Replica, method: str, path: str, moment: str) -> None:
        """A request is at the API server: while claims are bound, a GPU may fall sick that waits for them."""
        if not self._befall or method != "PATCH" or moment != "before" or replica.scheduler is None:
            return
        if not any(fnmatchcase(path, pattern) for pattern in CLAIMS) or self._dice.random() < 0.5:
            return
        for placed in self._given:
            if replica.scheduler.state.assumed_node(placed.pod_key) == placed.node:
                self._sicken(placed.node, numbers_of(placed)[0])
                self._happened("assumed: sick")
                return

    def _happened(self, what: str) -> None:
        self.stage.tally[what] += 1
        self.acted()

    def _names(self, shelf: str) -> set[str]:
        return {obj["metadata"]["name"] for obj in self.stage.cluster.server.store.list(shelf)}

    def _sicken(self, node: str, minor: int) -> None:
        if node in self._names(DEVICES):
            spec = device(node, sick=(minor,))["spec"]
            self.stage.cluster.server.store.update(DEVICES, node, lambda obj: {**obj, "spec": spec})

    def _take(self, placed: Placement) -> None:
        """Another scheduler binds a pod with the same GPUs."""
        self._made += 1
        name = f"rival-{self._made}"
        self.stage.cluster.pod(name, cpu="0", gpus=len(numbers_of(placed)), scheduler_name="another")
        self.stage.cluster.bind(name, placed.node, {keys.GPU_ALLOCATION: placed.annotations[keys.GPU_ALLOCATION]})
