# SPDX-License-Identifier: Apache-2.0
"""Reads StatefulSets, ReplicaSets, ReplicationControllers, DaemonSets, and Grove's PodGangs.

The first four kinds have one role with `replicas` pods. A PodGang has a role for each of its podgroups, and lists its
pods. Sources: workloads.md 4, 5.2 and 10.1.
"""

from typing import Any

from koordpy.api.objects import Pod
from koordpy.workloads.rank_indexes import position_by_labels, starts_of, with_first_ranks
from koordpy.workloads.workload_manifest import Head, Source, index_in
from koordpy.workloads.workload_model import (
    NO_TEMPLATE,
    Filling,
    JobPart,
    PodPosition,
    Role,
    SharedDomain,
    Slot,
    Template,
    Workload,
    claim_templates,
    own_claims,
)

# labels with the index of a pod, then Volcano's annotation with the minimum of a StatefulSet
POD_INDEX = "apps.kubernetes.io/pod-index"
GROVE_INDEX = "grove.io/podclique-pod-index"
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"


def _one_role(source: Source, head: Head, part: JobPart, **more: Any) -> Workload:
    """Returns a workload with one unnamed role. more: other fields of `Workload`."""
    spec = source.at("spec")
    return Workload(
        head=head,
        roles=(Role(name="", parts=(part,), template=Template.read(spec.at("template"))),),
        position=more.pop("position", None) or position_by_labels({"": 0}, lambda _: "", POD_INDEX),
        selector=spec.at("selector").strings("matchLabels") or spec.strings("selector"),
        **more,
    )


def read_stateful_set(source: Source, head: Head) -> Workload:
    """Reads a StatefulSet, with the claims of its templates.

    With OrderedReady, the default, its pods are created one after another, so they cannot start together.
    """
    spec = source.at("spec")
    number, start = spec.count("replicas", 1), spec.at("ordinals").count("start")
    claims = claim_templates(spec, "volumeClaimTemplates")

    def slot(i: int) -> Slot:
        name = f"{head.name}-{i}"
        labels = {POD_INDEX: str(i), "statefulset.kubernetes.io/pod-name": name}
        return Slot(name, labels, claims=own_claims(claims, name))

    ordered = spec.word("podManagementPolicy", "OrderedReady", "Parallel") == "OrderedReady"
    part = JobPart(number=number, slot=slot, span=range(start, start + number))
    return _one_role(source, head, part, ordered=ordered, total_keys=(GROUP_MIN_MEMBER,))


def read_replica_set(source: Source, head: Head) -> Workload:
    """Reads a ReplicaSet or ReplicationController. `deployment_rollouts.py` combines the ReplicaSets of one Deployment.

    The object's name is the key of the part, so that each pod is counted for its own ReplicaSet.
    """
    number = source.at("spec").count("replicas", 1)
    part = JobPart(number=number, slot=lambda i: Slot(f"{head.name}-{i}", {}), filling=Filling.COUNT, key=head.name)

    def position(pod: Pod) -> PodPosition:
        return PodPosition("", index_in(pod.metadata, POD_INDEX), part=head.name)

    return _one_role(source, head, part, caps_minimum=True, position=position)


def read_daemon_set(source: Source, head: Head) -> Workload:
    """Reads a DaemonSet, which is never a gang.

    It has 0 pods here, because the nodes determine their number when the pods are created offline.
    """
    return _one_role(source, head, JobPart(number=0, filling=Filling.NODE), is_kind=False)


def read_pod_gang(source: Source, head: Head) -> Workload:
    """Reads Grove's PodGang, which lists its pods and creates none. Each podgroup is a role.

    Its topology constraints become shared domains: of the whole PodGang, of sets of podgroups, and of single podgroups.
    """
    roles: list[Role] = []
    members: dict[str, str] = {}
    spec = source.at("spec")
    whole = [SharedDomain(label, must=must) for label, must in zip(_packed(spec), (True, False), strict=True) if label]
    apart: dict[str, list[SharedDomain]] = {}
    """Role -> shared domains: its own, and those of the topology groups that contain the role."""
    for i, one in enumerate(spec.list("topologyConstraintGroupConfigs")):
        label, _ = _packed(one)
        for name in dict.fromkeys(one.texts("podGroupNames")) if label else ():
            apart.setdefault(name, []).append(SharedDomain(label, part=f"group {i}"))
    for group in spec.list("podgroups"):
        name, least = group.text("name"), group.count("minReplicas")
        pods = [f"{ref.text('namespace', head.namespace)}/{ref.text('name')}" for ref in group.list("podReferences")]
        parts, (label, _) = (JobPart(number=max(len(pods), least)),), _packed(group)
        if label:
            apart.setdefault(name, []).append(SharedDomain(label, part=name))
        domains = (*whole, *apart.get(name, ()))
        roles.append(Role(name=name, parts=parts, template=NO_TEMPLATE, least=least, domains=domains))
        members |= dict.fromkeys(pods, name)
    return Workload(
        head=head,
        roles=with_first_ranks(roles, starts_of(roles)),
        position=position_by_labels(starts_of(roles), lambda pod: members.get(pod.key, ""), GROVE_INDEX),
        by_default=True,
        members=members,
    )


def _packed(source: Source) -> tuple[str, str]:
    """Returns (required, preferred) node label: all pods must share one domain of it, or preferably do; empty for
    none."""
    pack = source.at("topologyConstraint", "packConstraint")
    return pack.text("required"), pack.text("preferred")
