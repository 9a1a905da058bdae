"""What is said of settings that do nothing: InvalidAnnotation events live, lines on stderr offline."""

from collections.abc import Iterable, Sequence

from koordpy.api import keys
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
    "no gather goal: the network was not looked at "
    f"(annotation {keys.GANG_TOPOLOGY}, or gangs.defaults.gather in the configuration)"
)


def goal_remark(unit: Unit, figures: RoundState) -> str:
    """What is said of a gang that starts without a gather goal where there is a tree; empty of any other."""
    if unit.has_goal or unit.bound_any or not unit.is_gang or len(unit.members) < 2:
        return ""
    if not figures.snapshot.tree.has_object or any(gang.has_wish for gang in unit.gangs):
        return ""
    return "" if rules_decide(unit, figures) else NO_GOAL


def warnings_of(units: Sequence[Unit], groups: Groups) -> list[tuple[str, str]]:
    """(object such as PodGroup/default/g, text): settings that ask for what is not done, labels that name nothing."""
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
    """(object, resource) of the first pod that asks for each resource which is counted by number, though it may stand
    for a part of a device."""
    first: dict[str, str] = {}
    for pod in (pod for unit in units for pod in unit.pending if pod.asks):
        for family in families_of(pod):
            for resource in family.by_number(pod):
                first.setdefault(resource, f"Pod/{pod.key}")
    return [(about, resource) for resource, about in first.items()]


def counted_text(resource: str) -> str:
    """What is said of such a resource."""
    return f"{resource} is counted by number: its device plugin picks the device, and pods may share it"


def _quota_warnings(units: Iterable[Unit], snapshot: Snapshot) -> list[tuple[str, str]]:
    """(object, text) of pods whose label names a quota that nobody knows, of quotas that cannot be read."""
    quotas = snapshot.quotas
    tree = quotas.tree
    near = tree.quotas if len(tree.quotas) <= MEANT_AMONG else ()
    out = list(tree.warnings)
    for pod in (pod for unit in units for pod in unit.pending if pod.pod.metadata.labels):
        out += [(f"Pod/{pod.key}", text) for text in quotas.ignored(pod)]
        if name := quotas.unknown(pod):
            text = f"label {keys.QUOTA_NAME}: no ElasticQuota {name}: the pod counts in {quotas.quota_of(pod)}"
            out.append((f"Pod/{pod.key}", text + hint(name, near)))
    return out


def _holder(pod: PodInfo) -> Holder:
    if pod.gang is None:
        return Holder.PLAIN
    if pod.gang.source is GangSource.WORKLOAD:
        return Holder.DERIVED
    return Holder.MEMBER if pod.gang.source is GangSource.NAMED else Holder.GROUPED
