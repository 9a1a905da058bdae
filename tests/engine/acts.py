# SPDX-License-Identifier: Apache-2.0
"""One act after another: what users, controllers, other schedulers, machines and the network do in a storm."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.engine.failures import Failures
from tests.engine.machines import Machines
from tests.engine.network import Network
from tests.engine.replica import Replica
from tests.engine.stage import Stage
from tests.engine.users import Users
from tests.engine.virtual import VirtualLoop
from tests.engine.zone_scenes import ZoneActs

TRAITS = {
    "devices": 0.5,
    "npus": 0.25,
    "quotas": 0.4,
    "budget": 0.3,
    "topology": 0.4,
    "volumes": 0.3,
    "claims": 0.3,
    "priorities": 0.6,
    "foreign": 0.3,
    "machines": 0.4,
    "replicas": 0.25,
    "kills": 0.5,
    "cuts": 0.3,
    "ambushes": 0.5,
    "slow": 0.15,
}
"""What there is in a schedule, and how often."""


@dataclass
class Acts:
    """Everybody who acts on one stage."""

    stage: Stage
    replicas: list[Replica]
    failures: Failures
    users: Users = field(init=False)
    machines: Machines = field(init=False)
    zones: ZoneActs = field(init=False)
    network: Network = field(init=False)

    def __post_init__(self) -> None:
        self.users, self.machines = Users(self.stage, self.failures.set_up), Machines(self.stage)
        self.zones = ZoneActs(self.stage, self.users.submit, self.users.create_gang)
        self.network = Network(self.stage, self.users, self.machines, self.replicas)

    def prepare(self) -> None:
        """Gangs that are to run before anything goes wrong, where they are repaired; zones of nodes."""
        if "zones" in self.stage.traits:
            self.zones.prepare()
        for _ in range(2 if "repairs" in self.stage.traits else 0):
            self.stage.made += 1
            self.users.gang()

    def chances(self) -> dict[str, float]:
        """Act -> how likely it is, in proportion."""
        traits = self.stage.traits
        several = {
            "npus": {"npus": 3.0, "npu_gang": 2.0},
            "volumes": {"volume": 3.0},
            "claims": {"claimed": 3.0},
            "cards": {"card": 5.0, "card_gang": 3.0},
            "zones": {"zoned": 5.0, "zoned_card": 2.0, "zoned_cpu": 3.0, "zoned_gang": 3.0, "zone_report": 2.0},
            "foreign": {"foreign": 2.0},
            "devices": {"sick": 1.0},
            "topology": {"topology": 0.4, "relabel": 0.6},
            "quotas": {"quota": 0.8},
            "budget": {"budget": 0.7, "veto": 0.7},
            "machines": {"shrink": 0.6, "lose": 0.5, "find": 0.8},
            "kills": {"kill": 1.0},
            "cuts": {"cut": 1.0},
            "replicas": {"retire": 0.7, "unrenewed": 0.7},
            "ambushes": {"ambush": 3.0},
            "repairs": {
                "gpus": 2.0,
                "cpu": 1.0,
                "gang": 2.5,
                "lose": 2.0,
                "find": 2.0,
                "breaks": 3.0,
                "mends": 2.0,
                "sick": 2.0,
            },
        }
        out = {"gpus": 6.0, "cpu": 2.0, "gang": 4.0, "pair": 1.0, "join": 0.7, "delete": 3.0, "again": 1.0}
        out |= {"watch": 1.0, "cordon": 0.5}
        for trait, acts in several.items():
            if trait in traits:
                out |= acts
        if {"volumes", "claims"} <= traits:
            out["both"] = 2.0
        if not isinstance(asyncio.get_running_loop(), VirtualLoop):
            out.pop("ambush", None)
        return out

    def act(self) -> None:
        """One of them."""
        chances = self.chances()
        self.stage.made += 1
        name = self.stage.dice.choices(list(chances), list(chances.values()))[0]
        self.stage.tally[f"act {name}"] += 1
        self._does(name)()

    def _does(self, name: str) -> Callable[[], None]:
        who = next(
            who for who in (self.users, self.machines, self.network, self.failures, self.zones) if hasattr(who, name)
        )
        does: Callable[[], None] = getattr(who, name)
        return does

    def lie_in_wait(self, route: str, moment: str, count: int, action: Callable[[Replica, str], None]) -> None:
        """`action(replica, pod)` happens at a request, when so many of its route have passed."""
        self.network.lie_in_wait(route, moment, count, action)
