"""`koordpy simulate`: the planner on manifests, or on a cluster, round by round and step by step (simulate.md 2)."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from koordpy.api.field_faults import InputFaultsError
from koordpy.cli import offline_inputs
from koordpy.cli.number_options import COUNT
from koordpy.offline import offline_options

if TYPE_CHECKING:
    from koordpy.offline.preparing import Offline
    from koordpy.offline.scenario_steps import Step
    from koordpy.simulation.simulated_rounds import Planner, SimulationResult

FIRST_STEP = "the input"


class _AddStep(argparse.Action):
    """Takes a step; the order of the options is that of the steps."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.steps = [*(namespace.steps or ()), (self.const, str(values))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    offline_options.add_arguments(parser)
    offline_inputs.add_cluster(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "yaml", "manifests", "html"),
        default="table",
        help="manifests: the objects as the run leaves them, for the next -f; html: a page (default: table)",
    )
    add_rounds(parser)
    _add_steps(parser)
    parser.add_argument(
        "--fail-pending",
        action="store_true",
        help="exit status 1 where a pod meant for koordpy has no node at the end, or a workload has no pods",
    )
    parser.add_argument(
        "--fail-refused", action="store_true", help="exit status 1 where an API server refuses an object of the input"
    )


def add_rounds(parser: argparse.ArgumentParser) -> None:
    """The options of a run in rounds."""
    parser.add_argument("--rounds", metavar="N", type=COUNT, default=20, help="rounds at most (default: %(default)s)")
    parser.add_argument(
        "--evicted",
        choices=("recreate", "drop"),
        default="recreate",
        help="whether evicted pods come back pending, as their owner would make them again (default), or are gone",
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_argument_group(
        "steps", "Each begins when the run before it is at rest. The order of the options is that of the steps."
    )

    def add(kind: str, metavar: str, text: str, type: Any = str) -> None:
        steps.add_argument(
            f"--{kind}", metavar=metavar, dest="steps", action=_AddStep, const=kind, type=type, help=text
        )

    add("then", "FILE", "manifests that come, or take the place of objects of the same kind and name; repeatable")
    add("drain", "NODE", "cordon the node and evict its pods, as kubectl drain does; repeatable")
    add("fail-node", "NODE", "the node and its pods vanish; repeatable")
    add("add-nodes", "COUNT", "add nodes like that of --like, which follows; repeatable", COUNT)
    add("like", "NODE", "the node that the new ones are copies of")


def run(args: argparse.Namespace) -> int:
    try:
        ready = offline_inputs.prepare(args)  # before the planner is imported: bad input is told at once
    except offline_inputs.ClusterUnreadableError as fault:
        print(fault, file=sys.stderr)
        return offline_inputs.FAILED
    with offline_options.nothing_collected():
        from koordpy.api.natural_order import natural_key
        from koordpy.cli import output
        from koordpy.offline.makers import is_ours
        from koordpy.offline.resource_validation import REFUSES
        from koordpy.planner.planning_round import plan_round
        from koordpy.report.ignored_pods import aside

    page = None
    if args.output == "html":
        from koordpy.cli.view_command import SimulationPage

        page = SimulationPage()
    scenario = Scenario(args, plan_round if page is None else page.plan)
    ready = scenario.run(ready)
    result = scenario.result
    for line in scenario.warnings:
        print(f"warning: {line}", file=sys.stderr)
    for line in output.warning_lines(result.warnings, scenario.warnings):
        print(line, file=sys.stderr)
    document = scenario.document()
    served = ready.config.scheduler_names
    known = sorted(ready.state.pods(), key=lambda pod: natural_key(pod.key))
    asides = ((pod.key, aside(pod, served, ready.others)) for pod in known)
    left = {key: found for key, found in asides if found is not None}
    waiting = [(key, found.why) for key, found in left.items() if found.ours]
    if args.fail_pending:
        for line in output.warning_lines(waiting):
            print(line, file=sys.stderr)
    if page is not None:
        output.say(page.written(ready))
    elif args.output == "table":
        offline_inputs.tell_configuration(ready.configuration, ready.config)
        output.say(output.simulation_table(document, {key: found.why for key, found in left.items()}))
    elif args.output == "manifests":
        from koordpy.offline.scenario_steps import manifests_left

        output.say(output.manifests(manifests_left(ready)))
    else:
        output.say(output.text(document, args.output))
    unmade = [one for one in ready.unmade if is_ours(one, served, ready.others)]
    waits = args.fail_pending and bool(result.pending or waiting or unmade or ready.stuck)
    refused = args.fail_refused and any(line.endswith(REFUSES) for line in scenario.warnings)
    return offline_inputs.FAILED if waits or refused else 0


class Scenario:
    """The runs of a simulation: that of the input, and one for each step."""

    def __init__(self, args: argparse.Namespace, planner: "Planner") -> None:
        """Raises InputFaultsError where steps are incomplete."""
        self._args, self._planner = args, planner
        self._steps = _steps(args)
        self._told: list[dict[str, Any]] = []
        self._results: list[SimulationResult] = []
        self._workloads: dict[tuple[str, ...], dict[str, Any]] = {}
        self._later = 0
        self.warnings: list[str] = []

    @property
    def result(self) -> "SimulationResult":
        """What came of all runs."""
        from koordpy.simulation.simulated_rounds import joined

        return joined(self._results)

    def run(self, ready: "Offline") -> "Offline":
        """Runs all; the input of the last run, as that has left it. Raises InputFaultsError for faults of a step."""
        from koordpy.offline.scenario_steps import load_steps, take_step

        given = load_steps(self._steps, ready.given.loaded)
        self._run(ready, FIRST_STEP, [])
        for step, loaded in zip(self._steps, given, strict=True):
            stepped = take_step(ready, step, loaded, evicted=self._args.evicted, later=self._later)
            ready, self._later = stepped.ready, stepped.later
            self._run(ready, step.text, stepped.gone)
        return ready

    def _run(self, ready: "Offline", text: str, gone: list[str]) -> None:
        from koordpy.simulation.simulated_rounds import simulate

        before = sum(one.rounds for one in self._results)
        self._later = max(self._later, ready.later)
        result = simulate(
            ready.state,
            ready.config,
            planner=self._planner,
            now=ready.now,
            rounds=self._args.rounds,
            evicted=self._args.evicted,
            grow=ready.growth.begin,
            after=before,
            recreated=self._later,
        )
        self._later = max(result.recreated, ready.growth.later)
        self._results.append(result)
        self.warnings += [line for line in ready.warnings if line not in self.warnings]
        self._told.append(
            {
                "step": text,
                "firstRound": before + 1,
                "rounds": result.rounds,
                "stable": result.stable,
                "bound": len(result.bindings),
                "evicted": len(result.evictions),
                "gone": gone,
                "pending": [one.pod_key for one in result.pending],
            }
        )
        for one in ready.growth.document():
            key = one["kind"], one["namespace"], one["name"]
            first = self._workloads.get(key)
            if first is not None:
                one["made"], one["present"] = first["made"] + one["made"], first["present"]
            self._workloads[key] = one

    def document(self) -> dict[str, Any]:
        """The SimulationResult; `steps` only where there are any."""
        from koordpy.simulation.simulated_rounds import object_order

        workloads = sorted(
            self._workloads.values(),
            key=lambda one: (object_order(f"{one['namespace']}/{one['name']}"), one["kind"]),
        )
        document = self.result.document(workloads)
        return {**document, "steps": self._told} if self._steps else document


def _steps(args: argparse.Namespace) -> "list[Step]":
    """The steps in their order. Raises InputFaultsError."""
    from koordpy.offline.scenario_steps import Step

    found: list[Step] = []
    for kind, value in args.steps or ():
        if kind != "like":
            found.append(Step(kind, value))
        elif not found or found[-1].kind != "add-nodes" or found[-1].like:
            raise InputFaultsError([f"--like {value}: does not follow --add-nodes COUNT"])
        else:
            found[-1].like = value
    return found
