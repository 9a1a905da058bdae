# SPDX-License-Identifier: Apache-2.0
"""Wire objects: objects of the Kubernetes core API as immutable records, such as pods, nodes and namespaces.

Only fields that decisions read are declared. The records are excluded from garbage collection (`gc=False`), because
they never form reference cycles. Source: Kubernetes 1.36, vocabulary.md 3.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from koordpy.api.key_hints import is_read
from koordpy.api.reading_limits import ANNOTATIONS

Quantity = Annotated[str | int | float, Meta(extra={"format": "quantity"})]  # the format selects the strict reader
Quantities = dict[str, Quantity]
Amount = Annotated[str | int | float, Meta(extra={"format": "amount"})]
"""A quantity of no resource: it may be a fraction, and below 0."""
IntOrString = Annotated[int | str, Meta(extra={"format": "int-or-string"})]
Time = Annotated[str, Meta(extra={"format": "time"})]
"""RFC 3339 text, as the API server writes it."""


class Wire(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel", omit_defaults=True):
    """Base class of all wire objects and their parts. JSON names are in camel case; unknown fields are dropped."""


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Wire, frozen=True, gc=True, weakref=True):
    """Metadata of an object. Weak references to it are possible, because `bounded_memory.once` needs them."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    annotations_given: int = 0
    """Number of annotations that the object had before some were dropped; 0 if none were. Not a field of the API."""

    @property
    def controller(self) -> OwnerReference | None:
        """The controlling owner; None if there is none."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    def __post_init__(self) -> None:
        """Above the limit of annotations, drops those that koordpy does not read, because they would use memory."""
        notes = self.annotations
        if len(notes) > ANNOTATIONS:
            first = islice((key for key in notes if not is_read(key)), ANNOTATIONS)
            kept = {*first, *(key for key in notes if is_read(key))}
            force_setattr(self, "annotations", {key: text for key, text in notes.items() if key in kept})
            force_setattr(self, "annotations_given", len(notes))


class KubernetesObject(Wire, frozen=True):
    """Base class of objects that have metadata and are stored by an API server."""

    metadata: ObjectMeta = ObjectMeta()


class Requirement(Wire, frozen=True):
    """One expression of a label or node selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(Wire, frozen=True):
    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredNodeTerm(Wire, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredNodeTerm] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default_factory=list
    )


class PodAffinityTerm(Wire, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Wire, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """podAffinity or podAntiAffinity: both have the same fields."""

    required: list[PodAffinityTerm] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default_factory=list
    )
    preferred: list[WeightedPodAffinityTerm] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default_factory=list
    )


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Wire, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class ResourceRequirements(Wire, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class ContainerPort(Wire, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class FieldRef(Wire, frozen=True):
    field_path: str = ""


class EnvVarSource(Wire, frozen=True):
    field_ref: FieldRef | None = None


class EnvVar(Wire, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class ContainerRestartRule(Wire, frozen=True):
    action: str = ""


class Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] = []
    restart_policy: str = ""
    restart_policy_rules: list[ContainerRestartRule] = []
    env: list[EnvVar] = []


class PersistentVolumeClaimSource(Wire, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class GceDisk(Wire, frozen=True):
    pd_name: str = ""
    read_only: bool = False


class AwsDisk(Wire, frozen=True):
    volume_id: str = msgspec.field(name="volumeID", default="")


class IscsiDisk(Wire, frozen=True):
    iqn: str = ""
    read_only: bool = False


class RbdImage(Wire, frozen=True):
    monitors: list[str] = []
    image: str = ""
    pool: str = "rbd"
    read_only: bool = False


class Volume(Wire, frozen=True):
    """A pod's volume. Sources that no filter reads are declared only to detect their presence."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    csi: dict[str, Any] | None = None
    gce_persistent_disk: GceDisk | None = None
    aws_elastic_block_store: AwsDisk | None = None
    iscsi: IscsiDisk | None = None
    rbd: RbdImage | None = None


class SchedulingGate(Wire, frozen=True):
    name: str = ""


class SchedulingGroup(Wire, frozen=True):
    pod_group_name: str = ""  # a PodGroup of scheduling.k8s.io in the namespace of the pod


class PodResourceClaim(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    restart_policy: str = ""
    scheduling_gates: list[SchedulingGate] = []
    scheduling_group: SchedulingGroup | None = None
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: Quantities = {}
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    volumes: list[Volume] = []
    resource_claims: list[PodResourceClaim] = []
    host_network: bool = False
    host_users: bool | None = None
    termination_grace_period_seconds: int | None = None


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Time | None = None
    observed_generation: int = 0


def condition_of(conditions: Iterable[Condition], type: str) -> Condition | None:
    """Returns the condition of a type; None if there is none."""
    return next((condition for condition in conditions if condition.type == type), None)


class ContainerStateTerminated(Wire, frozen=True):
    finished_at: Time | None = None


class ContainerState(Wire, frozen=True):
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Wire, frozen=True):
    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    allocated_resources: Quantities = {}
    resources: ResourceRequirements | None = None
    state: ContainerState | None = None


class PodResourceClaimStatus(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[Condition] = []
    start_time: Time | None = None
    nominated_node_name: str = ""
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    extended_resource_claim_status: dict[str, Any] | None = None
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    allocated_resources: Quantities = {}
    resources: ResourceRequirements | None = None


class Pod(KubernetesObject, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class Taint(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: Time | None = None


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] = []


class ContainerImage(Wire, frozen=True):
    names: list[str] = []
    size_bytes: int = 0


class NodeAddress(Wire, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(Wire, frozen=True):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    images: list[ContainerImage] = []
    addresses: list[NodeAddress] = []
    declared_features: list[str] = []
    conditions: list[Condition] = []


class Node(KubernetesObject, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(KubernetesObject, frozen=True):
    """A namespace; only its metadata is read."""


class PriorityClass(KubernetesObject, frozen=True):
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class PodDisruptionBudgetSpec(Wire, frozen=True):
    selector: LabelSelector | None = None
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None


class PodDisruptionBudgetStatus(Wire, frozen=True):
    disruptions_allowed: int | None = None
    disrupted_pods: dict[str, Any] = {}


class PodDisruptionBudget(KubernetesObject, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class ConfigMap(KubernetesObject, frozen=True):
    data: dict[str, str] = {}
