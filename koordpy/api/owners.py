"""Wire objects of what pods belong to: services and the controllers whose selectors spreading reads.

As in `koordpy.api.objects` only what a decision may depend on is named.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from koordpy.api.objects import LabelSelector, ObjectMeta, Wire


class ServiceSpec(Wire, frozen=True):
    selector: dict[str, str] = {}


class Service(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class ReplicationControllerSpec(Wire, frozen=True):
    selector: dict[str, str] = {}


class ReplicationController(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class WorkloadSpec(Wire, frozen=True):
    selector: LabelSelector | None = None


class ReplicaSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()


class StatefulSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()


OWNER_KINDS: tuple[type[Wire], ...] = (Service, ReplicationController, ReplicaSet, StatefulSet)
