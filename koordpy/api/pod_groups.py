"""Groups of pods that are scheduled together: the coscheduling PodGroup, and Kubernetes' own (gang-network.md 2.1)."""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from typing import Any

import msgspec

from koordpy.api.objects import Condition, KubernetesObject, PodResourceClaim, Quantities, Time, Wire


class PodGroupSpec(Wire, frozen=True):
    """Spec of the coscheduling PodGroup (both published groups)."""

    min_member: int = 0
    min_resources: Quantities = {}
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(Wire, frozen=True):
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
    """Of the whole group, before that of its pods; an API server fills it in from the class."""
    disruption_mode: str | dict[str, Any] | None = None
    """`Pod` or `PodGroup` in v1alpha2, `{single: {}}` or `{all: {}}` later."""
    preemption_policy: str = ""
    """Of the whole group, before that of its pods; empty where it says none."""
    parent_composite_pod_group_name: str = ""
    """The CompositePodGroup above it, in its namespace; empty for none."""
    resource_claims: list[PodResourceClaim] = []
    """Claims of the group: a pod means one by an equal entry of its own."""
    workload_ref: dict[str, Any] | None = None
    """Not read, as the next one: what it was made from (v1alpha3 and later; v1alpha2)."""
    pod_group_template_ref: dict[str, Any] | None = None

    @property
    def topology_keys(self) -> tuple[str, ...]:
        """Node labels of which all its pods share a value."""
        constraints = self.scheduling_constraints
        return tuple(one.key for one in constraints.topology if one.key) if constraints is not None else ()

    @property
    def disrupted_as_one(self) -> bool:
        """Whether evicting one member means evicting all."""
        mode = self.disruption_mode
        return mode.get("all") is not None if isinstance(mode, dict) else mode in ("PodGroup", "All")


class UpstreamPodGroupStatus(Wire, frozen=True):
    conditions: list[Condition] = []


class UpstreamPodGroup(KubernetesObject, frozen=True):
    """scheduling.k8s.io PodGroup (v1alpha2 to v1beta1)."""

    spec: UpstreamPodGroupSpec = UpstreamPodGroupSpec()
    status: UpstreamPodGroupStatus = UpstreamPodGroupStatus()
