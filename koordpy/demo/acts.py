# SPDX-License-Identifier: Apache-2.0
"""Acts of the demo: each creates the objects of one manifest in examples/. `Forecaster` computes the expected results.

A forecast is the result of `koordpy simulate` for the same manifests in the same order; the live scheduler must reach
it. The reason shown for each gang is that of `koordpy explain` on the offline cluster just before the gang is placed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from koordpy.api.field_faults import InputFaultsError
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.api.times import parse_moment
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.decoding.shipped_files import shipped_folder
from koordpy.demo.demo_objects import Manifest, key_of
from koordpy.demo.demo_reasons import domain_of, gpus_text, short, why_domain, why_npus
from koordpy.demo.programme import TRAINING
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import Explanation, explain
from koordpy.offline.manifests import load_manifests
from koordpy.offline.named_owners import KnownByName
from koordpy.offline.offline_options import DEFAULT_NOW
from koordpy.offline.preparing import FilledInput
from koordpy.offline.workload_growth import Growth
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import SimulationResult, simulate

EXAMPLES = shipped_folder("examples")
"""Folder of the manifests."""


@dataclass(frozen=True, slots=True)
class Act:
    """One manifest of examples/, with its text for the picture."""

    name: str
    """Path below examples/, without `.yaml`."""
    title: str
    """First sentence of the comment in the manifest."""
    objects: tuple[Manifest, ...]

    @property
    def stem(self) -> str:
        """Name of the example without its folder."""
        return self.name.rpartition("/")[2]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all objects of the manifest, merged."""
        return {k: v for obj in self.objects for k, v in (obj["metadata"].get("labels") or {}).items()}

    @property
    def pods(self) -> tuple[str, ...]:
        """Keys (`namespace/name`) of the pods in the manifest, in its order."""
        return tuple(key_of(obj) for obj in self.objects if obj["kind"] == "Pod")


def read_acts(names: Sequence[str] = TRAINING.acts) -> list[Act]:
    """Reads the examples with these names. Raises OSError."""
    acts = []
    for name in names:
        text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
        comment = " ".join(line.lstrip("# ") for line in text.split("\n#\n", 1)[0].splitlines())
        title = comment.split(". ", 1)[0].rstrip(".")
        acts.append(Act(name, title, tuple(_documents(text))))
    return acts


def read_cluster(names: Sequence[str] = TRAINING.cluster) -> list[Manifest]:
    """Reads topology, nodes and ConfigMaps from files and folders below examples/. Raises OSError."""
    found: list[Manifest] = []
    for name in names:
        at = EXAMPLES / name
        for path in sorted(at.glob("*.yaml"), reverse=True) if at.is_dir() else [at]:
            for one in _documents(path.read_text(encoding="utf-8")):
                found += one["items"] if one["kind"] == "List" else [one]
    return found


def _documents(text: str) -> list[Manifest]:
    """Returns the non-empty documents of a YAML text."""
    return [one for one in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]


@dataclass(frozen=True, slots=True)
class GangForecast:
    """Expected state of one gang, or of one pod without a gang, at the end of its act."""

    name: str
    """`namespace/name` of the gang, or of the pod."""
    is_gang: bool
    members: tuple[str, ...]
    """Keys of its pods."""
    nodes: Mapping[str, str]
    """Pod key -> node, for placed members."""
    proof: str
    """`optimal`, `feasible`, `infeasible` or `unknown`."""
    why: str
    """Reason for the placement, or the reason why there is none; shown in the column WHY."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The planner's result for one act."""

    act: Act
    nodes: Mapping[str, str]
    """Pod key -> node, for bound pods."""
    annotations: Mapping[str, Mapping[str, str]]
    """Pod key -> annotations of its Binding, for bound pods."""
    pods: tuple[str, ...]
    """Keys of the act's pods, including pods that its workloads create."""
    pending: Mapping[str, str]
    """Pod key -> message, for pending pods."""
    gangs: tuple[GangForecast, ...]
    evicted: tuple[str, ...] = ()
    """Keys of pods of earlier acts that are evicted for this act."""


_Asked = tuple[list[str], Explanation, Snapshot]
"""(keys of the pods of a gang, or key of a single pod; its explanation; the snapshot before it was placed)."""


class Forecaster:
    """The cluster of the demo, offline.

    `forecast` places the pods of an act on it, so it must be called with the acts in their order.
    """

    def __init__(self, cluster: Sequence[str] = TRAINING.cluster) -> None:
        """cluster: files and folders below examples/ with topology and nodes. Raises InputFaultsError."""
        self._cluster, self._now = cluster, parse_moment(DEFAULT_NOW)
        self.state, self._config = make_state(), KoordpyConfiguration()
        self._plans: list[RoundPlan] = []  # of the current act, one for each round
        self._known = KnownByName(lambda _: None)
        self._read()

    def _read(self, *names: str) -> Growth:
        """Adds the objects of the cluster's files and of `names` that are new. Returns a `Growth` that creates their
        pods."""
        paths = [str(EXAMPLES / name) for name in (*self._cluster, *names)]
        given = FilledInput(load_manifests(paths), self._now)
        if given.loaded.fault_lines:
            raise InputFaultsError(given.loaded.fault_lines)
        for obj in given.objects:
            if not isinstance(obj, Pod) or self.state.pod(obj.key) is None:
                self.state.upsert(obj)
        for workload in given.read.known.all():
            self._known.put(workload)
        self.state.workloads.know(self._known, given.read.groups)
        return given.growth(self.state, frozenset(), self.state.upsert)

    def forecast(self, act: Act) -> Forecast:
        """Returns the forecast of an act, on the cluster with the pods of earlier acts."""
        growth = self._read(f"{act.name}.yaml")
        asked: list[_Asked] = []

        def ask(pods: Sequence[str]) -> None:
            """Explains each gang of new pods, before a round places it."""
            before = self.state.snapshot(self._now.timestamp())
            for head, members in self._heads(pods).items():
                asked.append((members, explain(before, self._config, head), before))

        def grow() -> Sequence[str]:
            """Creates the pods that begin after a round, as `simulate` calls it."""
            born = growth.begin()
            ask(born)
            return born

        ask([*act.pods, *growth.begin()])
        self._plans.clear()
        result = simulate(self.state, self._config, planner=self._plan, now=self._now, evicted="drop", grow=grow)
        pods = tuple(key for members, *_ in asked for key in members)
        own = set(pods)
        return Forecast(
            act,
            nodes={b.pod_key: b.node for b in result.bindings if b.pod_key in own},
            annotations={b.pod_key: b.annotations for b in result.bindings if b.pod_key in own},
            pods=pods,
            pending={p.pod_key: p.message for p in result.pending if p.pod_key in own},
            gangs=self._gangs(act, asked, result),
            evicted=tuple(one.eviction.pod_key for one in result.evictions),
        )

    def _plan(self, snapshot: Snapshot, config: KoordpyConfiguration | None) -> RoundPlan:
        """Plans a round and records the plan."""
        plan = plan_round(snapshot, config)
        self._plans.append(plan)
        return plan

    def _heads(self, keys_of_pods: Iterable[str]) -> dict[str, list[str]]:
        """Returns first pod of a gang -> all pods of the gang, in natural order. A pod without a gang forms its own
        entry."""
        gangs: dict[str, list[str]] = {}
        for key in keys_of_pods:
            info = self.state.pod(key)
            gangs.setdefault(info.gang.key if info is not None and info.gang is not None else f"pod {key}", []).append(
                key
            )
        return {pods[0]: sorted(pods, key=natural_key) for pods in gangs.values()}

    def _gangs(self, act: Act, asked: Sequence[_Asked], result: SimulationResult) -> tuple[GangForecast, ...]:
        """Returns the forecast of each gang of an act, with its reason in the words of the demo."""
        proofs = {report.name: proof for report, proof in result.gangs}
        origins = {report.name: report.origin for report, _ in result.gangs if report.workload is not None}
        notes = {b.pod_key: b.annotations for b in result.bindings}
        # gang -> text about the victims that made the gang's placement possible
        made = {benefit.beneficiary: benefit.message for plan in self._plans for benefit in plan.benefits}
        tree = self.state.nodes.tree
        layers = [level.layer for level in tree.levels]
        units = {key: unit for plan in reversed(self._plans) for unit in plan.units for key in unit.pod_keys}
        out: list[GangForecast] = []
        for members, told, before in asked:
            head = members[0]
            placed = {key: info.node for key in members if (info := self.state.pod(key)) is not None and info.node}
            proof = proofs.get(told.gang or "", "optimal" if placed else "infeasible")
            if told.gang is None:
                alone = told.feasible_nodes == 1
                why = "the only feasible node" if alone else "the node with the highest total score"
                why = why if placed else "no feasible node"
                if gpus := gpus_text(notes.get(head, {})) or why_npus(members, notes, act.labels):
                    why += f"; {gpus}"
            else:
                unit = [before.pods[key] for key in units[head].pod_keys]
                why = made.get(told.gang) or why_domain(told, layers, unit)
                if out and len({pod.gang for pod in unit}) > 1:
                    why = f"planned together with {out[-1].name}, all or none"
                npus = why_npus(members, notes, act.labels)
                if npus:
                    why = f"{made[told.gang]}; {npus}" if told.gang in made else npus
                crossings = units[head].pipeline_crossings
                if crossings:
                    whole = ", ".join(f"{number} in one {short(layer)} each" for layer, number in crossings.items())
                    why += f"; pipelines: {whole}"
                if placed and len(placed) < len(members):
                    layer, _, _ = domain_of(tree, placed.values()).partition(" ")
                    why += f"; {len(placed)} of {len(members)} placed, no {layer} has room for more"
            if told.gang in origins:
                at = domain_of(tree, placed.values()).partition(" ")[0]
                chosen_layer = next((short(domain.layer) for domain in told.domains if domain.chosen), at)
                # a common layer of the whole gang is no useful reason if a part of the gang shares a lower layer
                why = f"{origins[told.gang]}; {why}" if at == chosen_layer else origins[told.gang]
            out.append(GangForecast(told.gang or head, told.gang is not None, tuple(members), placed, proof, why))
        return tuple(out)
