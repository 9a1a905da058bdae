# SPDX-License-Identifier: Apache-2.0
"""Defines the metrics of gangs that have lost members, and of their repair (repair.md 4)."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

DEGRADED_NAMED = 100
"""Maximum number of degraded gangs that are label values at a time."""
_REPAIR_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)


class RepairOutcome(StrEnum):
    """How the repair of a gang ended (repair.md 4.3)."""

    REPLACED = "replaced"
    """The missing members were bound to free nodes."""
    EVICTED = "evicted"
    """The missing members were bound after other pods were evicted for them."""
    MOVED = "moved"
    """Members were evicted to start again on other nodes: the whole gang, or members with unhealthy devices."""
    GAVE_UP = "gaveup"
    """The remaining members were evicted, because the missing ones found no nodes in time."""


class RepairMetrics:
    """The metrics of one scheduler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.degraded = Gauge(
            "koordpy_gang_degraded",
            f"Number of members that a half-bound gang lacks to its minimum; at most {DEGRADED_NAMED} gangs at a time.",
            ["gang", "workload"],
            registry=registry,
        )
        self.degraded_seconds = Gauge(
            "koordpy_gang_degraded_seconds", "Time since a gang lost its members.", ["gang"], registry=registry
        )
        self.degraded_accelerators = Gauge(
            "koordpy_gang_degraded_accelerators",
            "Accelerators of the bound members of a degraded gang.",
            ["gang"],
            registry=registry,
        )
        self.degraded_unnamed = Gauge(
            "koordpy_gangs_degraded_unnamed",
            "Half-bound gangs beyond those that koordpy_gang_degraded names.",
            registry=registry,
        )
        self.seats = Gauge(
            "koordpy_seats", "Missing members of broken gangs for which capacity is kept.", registry=registry
        )
        self.repairs = Counter(
            "koordpy_repairs_total",
            "Repairs of gangs that had lost members, by the step that ended them.",
            ["outcome"],
            registry=registry,
        )
        self.repair_seconds = Histogram(
            "koordpy_gang_repair_seconds",
            "Seconds from the loss of members until a gang was whole again.",
            buckets=_REPAIR_SECONDS,
            registry=registry,
        )
        for outcome in RepairOutcome:
            self.repairs.labels(outcome.value)
