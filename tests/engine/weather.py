# SPDX-License-Identifier: Apache-2.0
"""The API server in a storm: requests of some routes that it refuses, fails, or carries out without a word."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.faults import Faults, InjectedFault

ROUTES = (
    ("POST", "*/binding"),
    ("POST", "*/binding"),
    ("POST", "*/eviction"),
    ("POST", "*/events"),
    ("DELETE", "*/pods/*"),
    ("PATCH", "*/pods/*/status"),
    ("PATCH", "*/podgroups/*"),
    ("PATCH", "*/persistentvolume*"),
    ("PATCH", "*/resourceclaims/*"),
    ("PUT", "*/leases/*"),
    ("GET", "/api/v1/namespaces/*/pods/*"),
    ("GET", "*/resourceclaims/*"),
    ("GET", "/api/v1/pods"),
    ("WATCH", "/api/v1/pods"),
    ("WATCH", "*.k8s.io/*"),
)
EFFECTS = (429, 429, 500, 500, 503, 504, 409, "drop", "timeout")


@dataclass
class Weather:
    """That of one schedule. `tally` counts what it did."""

    faults: Faults
    dice: random.Random
    tally: Counter[str]
    _rules: list[InjectedFault] = field(default_factory=list)

    def comes(self) -> None:
        """Some faults that last until they are cleared."""
        faults, dice = self.faults, self.dice
        faults.seed(dice.randrange(1 << 30))
        for _ in range(dice.randrange(0, 5)):
            method, path = dice.choice(ROUTES)
            effect: Any = dice.choice(EFFECTS)
            if effect == 409 and method in ("GET", "WATCH"):
                effect = 410 if path == "/api/v1/pods" or method == "WATCH" else 503
            after = effect in (500, 504, "drop", "timeout") and method != "WATCH" and dice.random() < 0.5
            share = dice.choice([0.1, 0.3, 0.6])
            self._rules.append(faults.fail(effect, method=method, path=path, share=share, after=after, retry_after=0))

    def clears(self) -> None:
        """It is good from now on."""
        for fault in self._rules:
            self.tally[f"{fault.effect} {'after' if fault.after else 'before'}"] += fault.hits
            self.tally[f"fault of {fault.method} {fault.path}"] += fault.hits
        self._rules.clear()
        self.faults.clear()
