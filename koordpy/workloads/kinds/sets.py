"""StatefulSet, ReplicaSet, ReplicationController, DaemonSet, and Grove's PodGang.

Sources: workloads.md 4, 5.2 and 10.1.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordpy.api.natural import number as number_of
from koordpy.api.objects import Pod
from koordpy.workloads.model import Filling, JobPart, PodSeat, Role, Slot, Template, Workload
from koordpy.workloads.source import Head, Source, index_of

POD_INDEX = "apps.kubernetes.io/pod-index"
GROVE_INDEX = "grove.io/podclique-pod-index"
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
MIN_REPLICAS = "minReplicas"


def _trailing(name: str) -> int | None:
    digits = name[len(name.rstrip("0123456789")) :]
    return number_of(digits) if digits else None


def _one_role(source: Source, head: Head, part: JobPart, **more: Any) -> Workload:
    def seat(pod: Pod) -> PodSeat:
        index = index_of(pod.metadata.labels.get(POD_INDEX, ""))
        return PodSeat("", _trailing(pod.metadata.name) if index is None else index, part.key)

    template = Template.of(source.at("spec", "template"))
    selector = source.at("spec", "selector")
    return Workload(
        head=head,
        roles=(Role(name="", parts=(part,), template=template),),
        seat=seat,
        selector=selector.strings("matchLabels") or source.at("spec").strings("selector"),
        source=source,
        **more,
    )


def read_stateful_set(source: Source, head: Head) -> Workload:
    """A StatefulSet, with the claims of its templates."""
    spec = source.at("spec")
    number, start = spec.count("replicas", 1), spec.at("ordinals").count("start")
    claims: list[tuple[str, Mapping[str, Any]]] = [
        (one.at("metadata").text("name"), one.at("spec").raw) for one in spec.list("volumeClaimTemplates")
    ]

    def slots() -> Iterator[Slot]:
        for i in range(start, start + number):
            name = f"{head.name}-{i}"
            yield Slot(name, {POD_INDEX: str(i), "statefulset.kubernetes.io/pod-name": name}, claims=tuple(claims))

    ordered = spec.word("podManagementPolicy", "OrderedReady", "Parallel") == "OrderedReady"
    return _one_role(
        source,
        head,
        JobPart(number=number, slots=slots, key=head.name),
        ordered=ordered,
        total_keys=(GROUP_MIN_MEMBER,),
    )


def read_replica_set(source: Source, head: Head) -> Workload:
    """A ReplicaSet or ReplicationController."""
    number = source.at("spec").count("replicas", 1)

    def slots() -> Iterator[Slot]:
        return (Slot(f"{head.name}-{i}", {}) for i in range(number))

    part = JobPart(number=number, slots=slots, key=head.name, filling=Filling.COUNT)
    return _one_role(source, head, part, counted=False)


def read_daemon_set(source: Source, head: Head) -> Workload:
    """A DaemonSet: which nodes it is for is known to whoever makes its pods."""
    part = JobPart(number=0, slots=lambda: iter(()), key=head.name)
    return _one_role(source, head, part, is_kind=False)


def read_pod_gang(source: Source, head: Head) -> Workload:
    """Grove's PodGang: it names its pods, and makes none."""
    roles: list[Role] = []
    members: dict[str, str] = {}
    offsets: dict[str, int] = {}
    before = 0
    groups = [
        (one.texts("podGroupNames"), label, f"group {i}")
        for i, one in enumerate(source.at("spec").list("topologyConstraintGroupConfigs"))
        if (label := _required(one))
    ]
    for group in source.at("spec").list("podgroups"):
        name, least = group.text("name"), group.count("minReplicas")
        pods = [f"{ref.text('namespace', head.namespace)}/{ref.text('name')}" for ref in group.list("podReferences")]
        number = max(len(pods), least)
        part = JobPart(number=number, slots=lambda: iter(()), key=name)
        packed = tuple((label, key) for names, label, key in groups if name in names)
        if label := _required(group):
            packed = (*packed, (label, name))
        roles.append(
            Role(name=name, parts=(part,), template=_NO_TEMPLATE, least=least, least_by=MIN_REPLICAS, packed=packed)
        )
        members |= dict.fromkeys(pods, name)
        offsets[name] = before
        before += number

    def seat(pod: Pod) -> PodSeat | None:
        name = members.get(pod.key)
        if name is None:
            return None
        index = index_of(pod.metadata.labels.get(GROVE_INDEX, ""))
        return PodSeat(name, None if index is None else offsets[name] + index, name)

    pack = source.at("spec", "topologyConstraint", "packConstraint")
    return Workload(
        head=head,
        roles=tuple(roles),
        seat=seat,
        by_default=True,
        members=members,
        packed=(pack.text("required"), pack.text("preferred")),
        source=source,
    )


def _required(source: Source) -> str:
    return source.at("topologyConstraint", "packConstraint").text("required")


_NO_TEMPLATE = Template({}, "", {}, {}, "")
