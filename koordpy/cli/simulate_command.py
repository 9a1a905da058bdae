# SPDX-License-Identifier: Apache-2.0
"""`koordpy simulate`: runs the planner on manifests or a cluster, in rounds and scenario steps (simulate.md 2)."""

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
    from koordpy.simulation.failing_nodes import NodeFailure
    from koordpy.simulation.simulated_rounds import Planner, SimulationResult

FIRST_STEP = "the input"


class _AddStep(argparse.Action):
    """Appends a scenario step; steps run in the order of their options."""

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
        help="manifests: the objects at the end of the run, as input for -f; html: a web page (default: table)",
    )
    add_rounds(parser)
    _add_steps(parser)
    parser.add_argument(
        "--fail",
        metavar="NODE@ROUND",
        action="append",
        default=[],
        help="remove the node and its pods before this round, counted from 1; repeatable",
    )
    parser.add_argument(
        "--fail-pending",
        action="store_true",
        help="exit 1 if a pod of koordpy is still pending at the end, or a workload has no pods",
    )
    parser.add_argument(
        "--fail-refused", action="store_true", help="exit 1 if an API server would reject an object of the input"
    )


def add_rounds(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a simulation in rounds."""
    parser.add_argument(
        "--rounds", metavar="N", type=COUNT, default=20, help="maximum number of rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--evicted",
        choices=("recreate", "drop"),
        default="recreate",
        help="recreate: evicted pods become pending again, as their controller would do (default); drop: they are gone",
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_argument_group(
        "scenario steps", "Run in the order of the options. Each step begins when the step before it is stable."
    )

    def add(kind: str, metavar: str, text: str, type: Any = str) -> None:
        steps.add_argument(
            f"--{kind}", metavar=metavar, dest="steps", action=_AddStep, const=kind, type=type, help=text
        )

    add("then", "FILE", "add these manifests; they replace objects of the same kind and name; repeatable")
    add("drain", "NODE", "cordon the node and evict its pods, as kubectl drain does; repeatable")
    add("fail-node", "NODE", "remove the node and its pods; repeatable")
    add("add-nodes", "COUNT", "add copies of the node that the following --like names; repeatable", COUNT)
    add("like", "NODE", "the node to copy, after --add-nodes")


def run(args: argparse.Namespace) -> int:
    try:
        ready = offline_inputs.prepare(args)  # before the slow import of the planner, to report bad input at once
    except offline_inputs.ClusterUnreadableError as fault:
        print(fault, file=sys.stderr)
        return offline_inputs.FAILED
    with offline_options.nothing_collected():
        from koordpy.api.natural_order import natural_key
        from koordpy.cli import output
        from koordpy.offline.makers import is_ours
        from koordpy.offline.resource_validation import REFUSES
        from koordpy.planner.planning_round import plan_round
        from koordpy.report.ignored_pods import find_ignored_reason

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
    asides = ((pod.key, find_ignored_reason(pod, served, ready.others)) for pod in known)
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
    """The runs of a simulation: one for the input, and one for each scenario step."""

    def __init__(self, args: argparse.Namespace, planner: "Planner") -> None:
        """Raises InputFaultsError if a step is incomplete."""
        self._args, self._planner = args, planner
        self._steps = _steps(args)
        self._told: list[dict[str, Any]] = []
        self._results: list[SimulationResult] = []
        self._workloads: dict[tuple[str, ...], dict[str, Any]] = {}
        self._later = 0
        self._failures: list[NodeFailure] = []
        self.warnings: list[str] = []

    @property
    def result(self) -> "SimulationResult":
        """The joined result of all runs."""
        from koordpy.simulation.simulated_rounds import joined

        return joined(self._results)

    def run(self, ready: "Offline") -> "Offline":
        """Runs the input and all steps. Returns the input of the last run, with the state at the run's end.

        Raises InputFaultsError for faults of a step.
        """
        from koordpy.offline.scenario_steps import load_steps, take_step
        from koordpy.simulation.failing_nodes import read_failures, unreached

        given = load_steps(self._steps, ready.input.loaded)
        self._failures = read_failures(self._args.fail, {node.name for node in ready.state.nodes})
        self._run(ready, FIRST_STEP, [])
        for step, loaded in zip(self._steps, given, strict=True):
            stepped = take_step(ready, step, loaded, evicted=self._args.evicted, later=self._later)
            ready, self._later = stepped.ready, stepped.later
            self._run(ready, step.text, stepped.gone)
        self.warnings += unreached(self._failures, sum(one.rounds for one in self._results))
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
            failures=self._failures,
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
        """Returns the SimulationResult; it has `steps` only if there are scenario steps."""
        from koordpy.simulation.result_fields import object_order

        workloads = sorted(
            self._workloads.values(),
            key=lambda one: (object_order(f"{one['namespace']}/{one['name']}"), one["kind"]),
        )
        document = self.result.document(workloads)
        return {**document, "steps": self._told} if self._steps else document


def _steps(args: argparse.Namespace) -> "list[Step]":
    """Returns the scenario steps in the order of the options. Raises InputFaultsError."""
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
