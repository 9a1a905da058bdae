# SPDX-License-Identifier: Apache-2.0
"""What the golden run plans: families of random clusters, numbered by seeds, and scenarios by name.

A family gives a text for each seed, a scenario one text; the text is all that is hashed. Random clusters are planned by
`plan_round` over some rounds, each carried out before the next; scenarios of the command line are run by it, and their
text is what they print.
"""

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

from msgspec.structs import replace

from koordpy.api.objects import Pod, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.cli.main import main as koordpy
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.cli import random_manifests
from tests.golden.clusters import CLUSTERS, Cluster
from tests.golden.documents import plan_document, text_of
from tests.numa.zone_lives import Life
from tests.planning import victims_at_size
from tests.scenarios.turmoil import Turmoil

ROOT = Path(__file__).parents[2]
EPOCH = 1767225600.0
"""2026-01-01T00:00:00Z, when the pods of the random clusters are created."""
ROUNDS = 3
"""Of each random cluster, unless a round changes nothing before."""


@dataclass(frozen=True, slots=True)
class Family:
    """Seeds 0 to count - 1; text: of a seed. quick: how many seeds, spread evenly, the quick run takes."""

    count: int
    quick: int
    text: Callable[[int], str]

    def seeds(self, *, quick: bool) -> range:
        """The seeds of a run."""
        return range(0, self.count, self.count // self.quick) if quick else range(self.count)


def rounds_text(objects: list[object], config: KoordpyConfiguration, random: Random, *, rounds: int = ROUNDS) -> str:
    """The plans of several rounds. Half of the clusters have victims that take until the next round to end."""
    state = make_state(gpu=config.gpu)
    for one in objects:
        state.upsert(one)
    lingers, plans = random.random() < 0.5, []
    for number in range(rounds):
        now = EPOCH + 5400.0 + 60.0 * number
        for info in list(state.pods()):
            if info.pod.metadata.deletion_timestamp and number:
                state.delete(Pod, info.key)
        plan = plan_round(state.snapshot(now), config)
        plans.append(plan_document(plan))
        if not plan.placements and not plan.evictions:
            break
        _carry_out(state, plan, lingers=lingers)
    return text_of(plans)


def _carry_out(state: ClusterState, plan: RoundPlan, *, lingers: bool) -> None:
    for eviction in plan.evictions:
        info = state.pod(eviction.pod_key)
        if info is None:
            continue
        if lingers:
            meta = replace(info.pod.metadata, deletion_timestamp="2026-01-01T01:31:00Z")
            state.upsert(replace(info.pod, metadata=meta))
        else:
            state.delete(Pod, eviction.pod_key)
    for place in plan.placements:
        state.bind(place.pod_key, place.node, dict(place.annotations), place.claims, place.devices)
    for nominated in plan.nominations:
        info = state.pod(nominated.pod_key)
        if info is not None and info.pending:
            status = replace(info.pod.status, nominated_node_name=nominated.node)
            state.upsert(replace(info.pod, status=status))


def _of_cluster(make: Callable[[int], Cluster], seed: int) -> str:
    objects, config = make(seed)
    return rounds_text(objects, config, Random(seed))


def _of_turmoil(seed: int) -> str:
    made = Turmoil(Random(seed))
    return rounds_text(made.objects, made.config, Random(seed))


def _of_manifests(seed: int) -> str:
    """What `koordpy simulate` prints of a random input, and what it says of the first pod that waits."""
    one = random_manifests.cluster(seed)
    with tempfile.TemporaryDirectory() as folder:
        said = random_manifests.answer(one, Path(folder))
    return text_of(said)


def _of_zones(seed: int) -> str:
    """The plans of nodes with NUMA zones that change between rounds."""
    life, plans = Life(seed), []
    for _ in range(ROUNDS):
        plan = plan_round(life.world.snapshot(), KoordpyConfiguration())
        plans.append(plan_document(plan))
        life.change(plan)
    return text_of(plans)


def _of_victims(seed: int) -> str:
    """One round of 60 or 120 nodes that are nearly full."""
    random = Random(seed)
    rich, npus = seed % 3 > 0, seed % 4 == 3
    snapshot = victims_at_size.cluster(random, random.choice([60, 120]), rich=rich, npus=npus).snapshot()
    return text_of(plan_document(plan_round(snapshot, victims_at_size.config(random, rich=rich))))


FAMILIES: dict[str, Family] = {
    "manifests": Family(300, 15, _of_manifests),
    "turmoil": Family(300, 15, _of_turmoil),
    "victims": Family(120, 6, _of_victims),
    "zones": Family(300, 30, _of_zones),
    **{name: Family(300, 30, partial(_of_cluster, make)) for name, make in CLUSTERS.items()},
}


def command_text(arguments: list[str], folder: Path) -> str:
    """What the command line prints and returns, run in a folder."""
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status: object = koordpy(arguments)
            except SystemExit as stopped:
                status = stopped.code
    finally:
        os.chdir(before)
    try:
        printed: object = json.loads(out.getvalue())
    except ValueError:
        printed = out.getvalue().splitlines()
    told = {"arguments": arguments, "printed": printed, "errors": err.getvalue().splitlines(), "status": str(status)}
    return text_of(told)


def _examples() -> Iterator[tuple[str, Callable[[], str]]]:
    """Every command that a comment of the examples names."""
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        for found in re.findall(r"^#.*?koordpy ((?:simulate|explain|fairshare) .*)$", path.read_text(), re.M):
            arguments = [*shlex.split(found), "-o", "json"]
            name = f"{path.relative_to(ROOT / 'examples').with_suffix('')} {arguments[0]}"
            yield name, partial(command_text, arguments, ROOT)


def _demo() -> Iterator[tuple[str, Callable[[], str]]]:
    """The acts of the demo, one programme after the other."""
    from koordpy.demo.acts import Forecaster, read_acts
    from koordpy.demo.programme import PROGRAMMES

    def told(name: str) -> str:
        programme = PROGRAMMES[name]
        forecaster = Forecaster(programme.cluster)
        return text_of([asdict(forecaster.forecast(act)) for act in read_acts(programme.acts)])

    for name in PROGRAMMES:
        yield f"demo {name}", partial(told, name)


def _tested() -> Iterator[tuple[str, Callable[[], str]]]:
    """Manifests of the tests."""
    for path in sorted((ROOT / "tests").rglob("*.yaml")):
        arguments = ["simulate", "-f", str(path.relative_to(ROOT)), "-f", "examples/cluster/nodes.yaml", "-o", "json"]
        yield path.stem, partial(command_text, arguments, ROOT)


def _benchmarks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Cases of the planner's benchmarks on up to 5,000 nodes: one round each."""
    from bench import ascend, planner, victims

    def planned(state: Callable[[], ClusterState], config: KoordpyConfiguration | None) -> str:
        return text_of(plan_document(plan_round(state().snapshot(0.0), config)))

    def state_of(objects: Iterable[Wire]) -> ClusterState:
        state = make_state()
        for one in objects:
            state.upsert(one)
        return state

    for planned_case in planner.cases():
        if planned_case.nodes <= 5000:
            yield f"planner: {planned_case.name}", partial(planned, planned_case.state, None)
    for npu_case in ascend.cases():
        if "5,000" not in npu_case.name:
            yield f"ascend: {npu_case.name}", partial(planned, partial(state_of, npu_case.objects), npu_case.config)
    for victim_case in victims.cases():
        yield f"victims: {victim_case.name}", partial(planned, victim_case.state, None)


def scenarios() -> Mapping[str, Mapping[str, Callable[[], str]]]:
    """Group -> scenario -> its text."""
    return {"examples": dict([*_examples(), *_demo(), *_tested()]), "benchmarks": dict(_benchmarks())}


def scenarios_of(path: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Scenarios outside of the repository: each `*.arguments.json` below a folder is a list of the command line's
    arguments, run in that file's folder; each YAML file by itself is simulated, where the folder has no such lists."""
    listed = sorted(path.rglob("*.arguments.json")) if path.is_dir() else []
    for one in listed:
        name = str(one.relative_to(path)).removesuffix(".arguments.json")
        yield name, partial(command_text, json.loads(one.read_text()), one.parent)
    if not listed:
        for one in sorted(path.rglob("*.yaml")) if path.is_dir() else [path]:
            name = str(one.relative_to(path.parent))
            yield name, partial(command_text, ["simulate", "-f", one.name, "-o", "json"], one.parent)
