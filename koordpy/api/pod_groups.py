# SPDX-License-Identifier: Apache-2.0
"""Wire objects (typed records) of the two kinds of PodGroup that define gangs (gang-network.md 2.1).

One is the PodGroup of coscheduling (scheduling.sigs.k8s.io and scheduling.x-k8s.io). The other is the PodGroup of
Kubernetes (scheduling.k8s.io), called "upstream".
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from typing import Any

import msgspec

from koordpy.api.objects import (
    Condition,
    KubernetesObject,
    PodResourceClaim,
    PodResourceClaimStatus,
    Quantities,
    Time,
    Wire,
)


class PodGroupSpec(Wire, frozen=True):
    """Spec of the coscheduling PodGroup (both published API groups)."""

    min_member: int = 0
    min_resources: Quantities = {}
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(Wire, frozen=True):
    """Status that koordpy writes: numbers of members by state. departed: Succeeded members with deleted pods."""

    phase: str = ""
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    departed: int = 0
    failed: int = 0
    schedule_start_time: Time | None = None
    occupied_by: str = ""
    occupied_by_uid: str = msgspec.field(name="occupiedByUID", default="")
    conditions: list[Condition] = []


class PodGroup(KubernetesObject, frozen=True):
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class UpstreamGang(Wire, frozen=True):
    min_count: int = 0


class UpstreamPolicy(Wire, frozen=True):
    """Exactly one is set: `gang` (pods start together) or `basic` (each pod starts alone)."""

    gang: UpstreamGang | None = None
    basic: dict[str, Any] | None = None


class UpstreamTopologyConstraint(Wire, frozen=True):
    key: str = ""


class UpstreamConstraints(Wire, frozen=True):
    topology: list[UpstreamTopologyConstraint] = []


class UpstreamPodGroupSpec(Wire, frozen=True):
    scheduling_policy: UpstreamPolicy = UpstreamPolicy()
    scheduling_constraints: UpstreamConstraints | None = None
    priority_class_name: str = ""
    priority: int | None = None
    """Priority of the group, which replaces that of its pods. The API server sets it from the class. None if not
    set."""
    disruption_mode: str | dict[str, Any] | None = None
    """`Pod` or `PodGroup` in v1alpha2; `{single: {}}` or `{all: {}}` in later versions."""
    preemption_policy: str = ""
    """preemptionPolicy of the group, which replaces that of its pods; empty if not set."""
    parent_composite_pod_group_name: str = ""
    """Name of the CompositePodGroup above the group, in its namespace; empty for none."""
    resource_claims: list[PodResourceClaim] = []
    """Resource claims of the group; a pod uses a claim if its own spec has an equal entry."""
    workload_ref: dict[str, Any] | None = None
    """The object that the group was created from (v1alpha3 and later). Not read."""
    pod_group_template_ref: dict[str, Any] | None = None
    """The object that the group was created from (v1alpha2). Not read."""

    @property
    def topology_keys(self) -> tuple[str, ...]:
        """Keys of node labels: all pods of the group must be on nodes with the same values."""
        constraints = self.scheduling_constraints
        return tuple(one.key for one in constraints.topology if one.key) if constraints is not None else ()

    @property
    def disrupted_as_one(self) -> bool:
        """True if all members are evicted together."""
        mode = self.disruption_mode
        return mode.get("all") is not None if isinstance(mode, dict) else mode in ("PodGroup", "All")


class UpstreamPodGroupStatus(Wire, frozen=True):
    conditions: list[Condition] = []
    resource_claim_statuses: list[PodResourceClaimStatus] = []


class UpstreamPodGroup(KubernetesObject, frozen=True):
    """scheduling.k8s.io PodGroup (v1alpha2 to v1beta1)."""

    spec: UpstreamPodGroupSpec = UpstreamPodGroupSpec()
    status: UpstreamPodGroupStatus = UpstreamPodGroupStatus()
