# SPDX-License-Identifier: Apache-2.0
"""Warnings about the input of offline commands: misspelt fields and values, and objects that are missing in it.

Missing objects are PodGroups, quotas and claim templates that pods name, and workloads that own pods. None of this is a
fault (workloads.md 10.6): an unknown field may be of another version, and a dump without PodGroups or quotas can be
planned, although the result differs from the cluster's.
"""

from collections.abc import Collection, Iterator, Mapping

from koordpy.api import keys
from koordpy.api.claim_objects import ResourceClaimTemplate
from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.field_faults import Fault, key_path
from koordpy.api.objects import PodSpec
from koordpy.api.reading_limits import some
from koordpy.api.spelling import hint, meant
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration_file import KUBE_SCHEDULER_NAME
from koordpy.offline.workload_manifests import Read
from koordpy.pods.gang_refs import GangSource
from koordpy.workloads.deployment_rollouts import ROLLED
from koordpy.workloads.kinds.kind_registry import GANG_KINDS
from koordpy.workloads.workload_hints import unread_of
from koordpy.workloads.workload_manifest import ReadFields
from koordpy.workloads.workload_model import Role

_PREFIX_LETTERS = 8
"""Minimum length, in letters, of a prefix that counts as a misspelling of a longer name."""


def of_manifests(read: Read) -> Iterator[str]:
    """Yields a warning for each doubtful field, key and value in the manifests of workloads."""
    for part in read.parts:
        asked = part.source.read_fields
        fields = (f"{fault.path}: {fault.text}" for fault in (_doubts(asked) if asked is not None else ()))
        words = unread_of(part.head, part.workload.templates() if part.workload is not None else ())
        yield from (f"{part.maker}: {text}" for text in (*some(fields), *some(words)))


def _doubts(asked: ReadFields) -> Iterator[Fault]:
    """Yields fields outside of the status that look like misspelt known fields, and values that an API server
    rejects."""
    for path, (raw, names) in asked.names.items():
        for key in raw if path.partition(".")[0] != "status" else ():
            if isinstance(key, str) and key not in names:
                near = hint(key, names) or _begun(key, names)
                if near:
                    yield Fault(key_path(path, key), f"unknown field, not read{near}")
    yield from asked.refused


def _begun(key: str, names: set[str]) -> str:
    folded = key.casefold()
    found = next((one for one in sorted(names) if one.casefold().startswith(folded)), "")
    return f", did you mean {found}?" if found and len(key) >= _PREFIX_LETTERS else ""


def of_schedulers(read: Read, served: Collection[str]) -> Iterator[str]:
    """Yields a warning for each workload with some roles for koordpy and some for another scheduler."""
    for top in read.tops:
        roles: tuple[Role, ...] = top.workload.roles if top.workload is not None else ()
        found: dict[str, str] = {}
        for role in roles:
            for template in role.templates:
                if template.raw:
                    name = role.name or template.path.rpartition(".")[2]
                    found.setdefault(name, template.scheduler or KUBE_SCHEDULER_NAME)
        if len({name in served for name in found.values()}) > 1:
            said = ", ".join(f"role {role} has schedulerName {scheduler}" for role, scheduler in found.items())
            yield f"{top.head.kind} {top.head.key}: {said}: the roles will not start together"


def of_ordered(read: Read, state: ClusterState) -> Iterator[str]:
    """Yields a warning for each StatefulSet that creates pods one by one although its gang needs several to start."""
    ordered = {one.head.uid: one for one in read.known.all() if one.ordered}
    told: dict[str, None] = {}
    for info in state.pods() if ordered else ():
        owner = info.pod.metadata.controller
        workload = ordered.get(owner.uid) if owner is not None else None
        if workload is None or info.gang is None or info.bound:
            continue
        least = state.gangs.minimum(info.gang) or 0
        if least > 1:
            told[
                f"StatefulSet {workload.head.key}: podManagementPolicy OrderedReady makes pods one by one: gang "
                f"{info.gang.key} needs {least} members and never starts (use podManagementPolicy: Parallel)"
            ] = None
    yield from told


def of_namesakes(read: Read, state: ClusterState) -> Iterator[str]:
    """Yields a warning for each PodGroup without pods that has the name of a workload with pods in another gang."""
    used = {info.gang.key for info in state.pods() if info.gang is not None and info.gang.source is GangSource.GROUP}
    groups = state.gangs.groups.keys() - used
    for top in read.tops:
        if top.head.key in groups and top.workload is not None:
            yield (
                f"PodGroup {top.head.key}: no pod references it. Is the label {keys.LABEL_POD_GROUP}: {top.head.name} "
                f"missing in the pod template of {top.head}?"
            )


def of_owners(read: Read, state: ClusterState, served: Collection[str]) -> Iterator[str]:
    """Yields a warning for each kind of workload that owns pods and would make them a gang, but is not in the input."""
    kinds = GANG_KINDS - {*ROLLED, "StatefulSet"}
    lost: dict[str, dict[str, None]] = {}
    for info in state.pods():
        owner, meta = info.pod.metadata.controller, info.pod.metadata
        if info.gang is not None or owner is None or owner.kind not in kinds:
            continue
        if owner.kind == "Job" and keys.JOB_COMPLETION_INDEX not in (*meta.labels, *meta.annotations):
            continue
        if info.pod.spec.scheduler_name in served and read.known.find(owner, meta.namespace) is None:
            lost.setdefault(owner.kind, {})[f"{meta.namespace}/{owner.name}"] = None
    for kind, names in sorted(lost.items()):
        yield _lacking(kind, "that pods belong to", names, ", so their pods are scheduled one by one, not as gangs")


def _lacking(kind: str, relation: str, names: Mapping[str, None], effect: str = "") -> str:
    """Returns the warning about objects of a kind that are not in the input."""
    there = "is" if len(names) == 1 else "are"
    said = f"{count_noun(len(names), kind)} {relation} {there} not in the input: {name_first(list(names))}{effect}"
    return f"{said} (if this is a dump, add {kind.lower()}s to kubectl get)"


# -- objects that are not in the input ---------------------------------------------------------------------------------


def missing_objects(state: ClusterState) -> Iterator[str]:
    """Yields a warning for each kind of object that pods name and the input lacks.

    PodGroups and ElasticQuotas are checked only for running pods, because the planner reports them for pending pods.
    """
    quotas, known = state.quota_view(), {**state.gangs.groups, **state.gangs.upstream}
    lost: dict[str, dict[str, None]] = {"PodGroup": {}, "ElasticQuota": {}}
    for pod in state.pods():
        if pod.bound:
            if pod.gang is not None and pod.gang.source in _OF_OBJECTS and pod.gang.key not in known:
                lost["PodGroup"][pod.gang.key] = None
            if name := quotas.unknown(pod):
                lost["ElasticQuota"][name] = None
    for kind, names in lost.items():
        if names:
            yield _lacking(kind, "that running pods name", names)
    if templates := dict.fromkeys(_lost_templates(state)):
        kind = "ResourceClaimTemplate"
        yield _lacking(
            kind,
            "that pods name",
            templates,
            ", so no ResourceClaims are created from " + ("it" if len(templates) == 1 else "them"),
        )


def _near_label(key: str, known: Collection[str]) -> str:
    """Returns `, did you mean KEY?` for a label key with a misspelt prefix or name; empty if both differ."""
    prefix, _, name = key.rpartition("/")
    parts = [(one, *one.rpartition("/")[::2]) for one in sorted(known)]
    similar = {its: one for one, its_prefix, its in parts if its_prefix == prefix}
    if near := meant(name, similar, closed=bool(prefix)):
        return f", did you mean {similar[near]}?"
    return hint(key, [one for one, _, its in parts if its == name])


_NEEDS_LABEL = ("In", "Exists", "Gt", "Lt")
"""Operators of a node affinity that match only nodes with the label."""


def _label_keys(spec: PodSpec) -> Iterator[tuple[str, str]]:
    """Yields (field, label key) for each node label that the placement of a pod depends on."""
    yield from (("nodeSelector", key) for key in spec.node_selector)
    yield from (("topologySpreadConstraints", one.topology_key) for one in spec.topology_spread_constraints)
    affinity = spec.affinity
    if affinity is None:
        return
    nodes = affinity.node_affinity
    terms = nodes.required.node_selector_terms if nodes is not None and nodes.required is not None else []
    wanted = [one for term in terms for one in term.match_expressions if one.operator in _NEEDS_LABEL]
    yield from (("nodeAffinity", one.key) for one in wanted)
    for field, pods in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        yield from ((field, one.topology_key) for one in (pods.required if pods is not None else ()))


def of_selectors(state: ClusterState, served: Collection[str]) -> Iterator[str]:
    """Yields a warning for each label key in a field of pending pods if no node has it, but nodes have a similar
    key."""
    known = {key for node in state.nodes for key in node.labels}
    asking: dict[tuple[str, str], list[str]] = {}
    for info in state.pods():
        if info.pending and info.pod.spec.scheduler_name in served:
            for field, key in dict.fromkeys(_label_keys(info.pod.spec)):
                if key not in known:
                    asking.setdefault((field, key), []).append(info.key)
    for (field, key), pods in asking.items():
        if near := _near_label(key, known):
            yield f"{name_first(pods)}: {field}: no node has the label {key}{near}"


def _lost_templates(state: ClusterState) -> Iterator[str]:
    """Yields `namespace/name` of each ResourceClaimTemplate that an unbound pod needs and the input lacks."""
    for info in state.pods():
        if info.bound or info.pod.metadata.deletion_timestamp:
            continue
        known = {one.name for one in info.pod.status.resource_claim_statuses}
        for entry in info.pod.spec.resource_claims:
            name = entry.resource_claim_template_name
            key = f"{info.namespace}/{name}"
            if name is not None and entry.name not in known and state.get(ResourceClaimTemplate, key) is None:
                yield key


_OF_OBJECTS = (GangSource.GROUP, GangSource.UPSTREAM)
