# SPDX-License-Identifier: Apache-2.0
"""NUMA zones as a device family: connects the modules of this package with the interface `Family` (numa.md 5 to 10).

The kubelet chooses the zones. The family predicts its choice, counts each placed pod's requests against these zones,
and records the zones in the Binding, so that later plans know them before the next report.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from koordpy.api import keys
from koordpy.api.bounded_memory import cached
from koordpy.api.objects import Pod
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.device_family import Family
from koordpy.devices.family_round import FamilyRound, NodeFacts, Placed
from koordpy.devices.numa.admission import ZoneAdmission
from koordpy.devices.numa.aligned_node import report_state
from koordpy.devices.numa.claim_zone_sets import DraftZoneSets, planned_zone_sets
from koordpy.devices.numa.numa_book import NumaBook
from koordpy.devices.numa.numa_check import check_zones
from koordpy.devices.numa.numa_filter import PLUGIN, Alignment
from koordpy.devices.numa.numa_goals import ZoneScore, numa_limits
from koordpy.devices.numa.numa_nodes import ZoneTake, numa_nodes, zones_fit
from koordpy.devices.numa.numa_words import missing_in_zones, numa_facts
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk, numa_ask
from koordpy.devices.numa.zone_records import status_text
from koordpy.devices.numa.zone_state import ZoneState
from koordpy.framework.filter_protocol import Refusal, wrong_ask
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.soft_scores import SoftScore
from koordpy.pods.device_asks import AskReader
from koordpy.pods.family_books import FamilyBook
from koordpy.pods.late_books import LateBook
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts


class NumaAskReader(AskReader):
    """Reads the requests of a pod that a kubelet may align to zones.

    In clusters without NUMA data, only pods with a NUMA annotation are read.
    """

    family = NUMA
    annotations = frozenset((keys.NUMA_SPEC, keys.NUMA_SPEC_ALIAS))
    is_late = True

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Implements `AskReader.read`: returns a `NumaAsk`."""
        return numa_ask(pod) if self._enabled else None

    def shape(self, pod: Pod, ask: NumaAsk) -> Any:
        """Implements `AskReader.shape`."""
        return ask.containers, ask.whole, ask.held, ask.demand, ask.fault


class NumaZones(Family):
    """The NUMA zones of all nodes."""

    name, title, plugin = NUMA, "NUMA zones", PLUGIN
    counts_decide = False
    distinguishes_victims = True
    decides_first = True

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Implements `Family.reader`."""
        return NumaAskReader(enabled=config.numa.enabled)

    def book(self, config: KoordpyConfiguration) -> FamilyBook:
        """Implements `Family.book`: the book is created when the first report or labelled node appears."""
        state, fits = partial(report_state, config), partial(zones_fit, config)
        make = partial(NumaBook, numa_limits, DraftZoneSets, planned_zone_sets, state, fits)
        return LateBook(make, labels=frozenset((keys.NUMA_POLICY,)), kinds=NumaBook.kinds)

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Implements `Family.refusal`: a demand that cannot be read (numa.md 5)."""
        fault = pod.ask(NUMA).fault
        return wrong_ask(PLUGIN, fault) if fault else None

    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
        """Implements `Family.rules`."""
        yield Alignment(pod, numa_nodes(inputs))

    def scores(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[SoftScore]:
        """Implements `Family.scores`."""
        score = ZoneScore(pod, inputs)
        if score.concerns:
            yield score

    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Implements `Family.allocate`: admits the pods of each node one after the other (numa.md 7 and 9)."""
        numa, pods = numa_nodes(now.inputs), now.inputs.snapshot.pods
        states = numa.states_of(nodes.values())
        given: dict[str, ZoneTake] = {}
        notes: dict[str, dict[str, str]] = {}
        faults: list[str] = []
        for key, node in nodes.items():
            state, ask = states[node], pods[key].ask(NUMA)
            if not state.kind.has_data:
                continue
            found = _placed(state, ask)
            if found is None:
                faults.append(f"{key}: the zones of node {now.inputs.snapshot.nodes[node].name} cannot align the pod")
                continue
            admission, states[node], text = found
            given[key] = ZoneTake(state.kind.numbers, admission, state.kind.policy, numa.aligned(node).numa.report)
            if text:
                notes[key] = {keys.RESOURCE_STATUS: text}
        numa_limits(now.inputs).planned = now.inputs.draft.version, given
        return FamilyAllocation(given, notes, tuple(faults))

    def check(
        self, placed: Placed, given: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], now: FamilyRound
    ) -> Iterator[str]:
        """Implements `Family.check`."""
        return check_zones(placed, given, notes, now.inputs)

    def is_counted(self, pods: Iterable[PodInfo], inputs: FilterInputs) -> bool:
        """Implements `Family.is_counted`. Always False: whether pods fit depends on the zones, not on the sums of a
        node."""
        return False

    def node_facts(self, pod: PodInfo, inputs: FilterInputs) -> NodeFacts | None:
        """Implements `Family.node_facts`."""
        return numa_facts(pod, numa_nodes(inputs))

    def missing_amounts(
        self, pod: PodInfo, inputs: FilterInputs
    ) -> Iterator[tuple[int, str, Callable[[Snapshot], Snapshot]]]:
        """Implements `Family.missing_amounts`."""
        return missing_in_zones(pod, numa_nodes(inputs))

    def warnings(self, pod: PodInfo) -> Iterator[str]:
        """Implements `Family.warnings`."""
        ask: NumaAsk = pod.ask(NUMA)
        yield from ((ask.fault,) if ask.fault else ())
        yield from ask.ignored


@cached(1 << 12)
def _placed(state: ZoneState, ask: NumaAsk) -> tuple[ZoneAdmission, ZoneState, str] | None:
    """Returns (zones of a pod on a node, state with it, annotation of its Binding); None if the kubelet rejects it."""
    found = state.admit(ask)
    if not isinstance(found, ZoneAdmission):
        return None
    return found, state.after(found.taken), status_text(state.kind.numbers, found.taken)
