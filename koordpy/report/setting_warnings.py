# SPDX-License-Identifier: Apache-2.0
"""Returns warnings about settings without effect, such as a misspelt annotation or a label that names no quota.

On a live cluster each warning becomes an InvalidAnnotation event; offline commands print it on stderr.
"""

from collections.abc import Iterable, Sequence

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.key_hints import Holder
from koordpy.api.reading_limits import MEANT_AMONG
from koordpy.api.spelling import hint
from koordpy.cache.snapshot import Snapshot
from koordpy.decoding.annotation_settings import odd_settings
from koordpy.devices.family_registry import families_of, node_warnings
from koordpy.devices.rule_registry import rules_decide
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.gangs.unit_gates import wish_warnings
from koordpy.pods.gang_refs import GangSource
from koordpy.pods.pod_info import PodInfo

NO_GOAL = (
    "topology ignored: no gather goal set "
    f"(set annotation {keys.GANG_TOPOLOGY}, or gangs.defaults.gather in the configuration)"
)
"""Text that `goal_remark` returns."""


def goal_remark(unit: Unit, round_state: RoundState) -> str:
    """Returns a remark if a gang starts without a gather goal although the cluster has a topology; else empty.

    Empty also if a member is already bound, if a setting requests locality, or if device rules place the gang.
    """
    if unit.has_goal or unit.bound_any or not unit.is_gang or len(unit.members) < 2:
        return ""
    if not round_state.snapshot.tree.has_object or any(gang.has_wish for gang in unit.gangs):
        return ""
    return "" if rules_decide(unit, round_state) else NO_GOAL


def warnings_of(units: Sequence[Unit], groups: Groups) -> list[tuple[str, str]]:
    """Returns (object such as `PodGroup/default/g`, sentence) for each setting without effect.

    Settings are annotations and labels of the units' pods and gangs, of nodes, of quotas, and of the topology.
    """
    snapshot = groups.snapshot
    out = wish_warnings(units, groups) if any(unit.gangs for unit in units) else []
    out += _quota_warnings(units, snapshot)
    out += snapshot.topology_warnings
    out += snapshot.node_warnings
    for view in snapshot.families.values():
        out += view.warnings
    if asking := [pod for unit in units for pod in unit.pending if pod.asks]:
        out += node_warnings(asking, snapshot)
    for pod in (pod for unit in units for pod in unit.pending):
        if pod.pod.metadata.labels or pod.pod.metadata.annotations:
            out += [(f"Pod/{pod.key}", text) for text in odd_settings(_holder(pod), pod.pod.metadata)]
        if pod.asks:
            out += [(f"Pod/{pod.key}", text) for family in families_of(pod) for text in family.warnings(pod)]
    return out


def counted_parts(units: Iterable[Unit]) -> list[tuple[str, str]]:
    """Returns (object, resource) for each requested resource that means a part of a device, but is only counted.

    The object is the first pod that requests the resource (`Pod/NAMESPACE/NAME`).
    """
    first: dict[str, str] = {}
    for pod in (pod for unit in units for pod in unit.pending if pod.asks):
        for family in families_of(pod):
            for resource in family.counted_resources(pod):
                first.setdefault(resource, f"Pod/{pod.key}")
    return [(about, resource) for resource, about in first.items()]


def counted_text(resource: str) -> str:
    """Returns the warning on a resource of `counted_parts`."""
    return f"{resource} is counted by number: its device plugin picks the device, and pods may share it"


def _quota_warnings(units: Iterable[Unit], snapshot: Snapshot) -> list[tuple[str, str]]:
    """Returns (object, sentence) for quota labels that name no known quota or are ignored, and for invalid quotas.

    There is one sentence for all pods of a unit that name the same unknown quota; its object is the first of them.
    """
    quotas = snapshot.quotas
    tree = quotas.tree
    near = tree.quotas if len(tree.quotas) <= MEANT_AMONG else ()
    out = list(tree.warnings)
    for unit in units:
        unknown: dict[tuple[str, str], list[PodInfo]] = {}
        for pod in (pod for pod in unit.pending if pod.pod.metadata.labels):
            out += [(f"Pod/{pod.key}", text) for text in quotas.ignored(pod)]
            if name := quotas.unknown(pod):
                unknown.setdefault((name, quotas.quota_of(pod)), []).append(pod)
        for (name, counted), pods in unknown.items():
            more = f" and {count_noun(len(pods) - 1, 'more pod')} of its gang count" if len(pods) > 1 else " counts"
            meant = hint(name, near)
            text = f"label {keys.QUOTA_NAME}: there is no ElasticQuota {name}"
            text += f"{meant} This" if meant else ": this"
            out.append((f"Pod/{pods[0].key}", f"{text} pod{more} in quota {counted}"))
    return out


def _holder(pod: PodInfo) -> Holder:
    """Returns the kind of a pod. The kind determines which annotations have an effect on the pod."""
    if pod.gang is None:
        return Holder.PLAIN
    if pod.gang.source is GangSource.WORKLOAD:
        return Holder.DERIVED
    return Holder.MEMBER if pod.gang.source is GangSource.NAMED else Holder.GROUPED
