"""`koordpy simulate`: the planner on manifests, round by round (simulate.md 2)."""

import argparse
import sys

from koordpy.cli.numbers import COUNT
from koordpy.offline import options

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "yaml", "html"),
        default="table",
        help="html: a page (default: table)",
    )
    parser.add_argument("--rounds", metavar="N", type=COUNT, default=20, help="rounds at most (default: %(default)s)")
    parser.add_argument(
        "--evicted",
        choices=("recreate", "drop"),
        default="recreate",
        help="whether evicted pods come back pending, as their owner would make them again (default), or are gone",
    )

    parser.add_argument(
        "--fail-pending",
        action="store_true",
        help="exit status 1 where a pod meant for koordpy has no node at the end, or a workload has no pods",
    )


def run(args: argparse.Namespace) -> int:
    ready = options.prepare(args)  # before the planner is imported: bad input is told at once
    with options.nothing_collected():
        from koordpy.api.natural import natural_key
        from koordpy.cli import output
        from koordpy.offline.doubtful import is_ours
        from koordpy.planning.round import plan_round
        from koordpy.planning.words.ignored_pods import aside
        from koordpy.sim.rounds import simulate

    page = None
    if args.output == "html":
        from koordpy.cli.view import SimulationPage

        page = SimulationPage()
    result = simulate(
        ready.state,
        ready.config,
        planner=plan_round if page is None else page.plan,
        now=ready.now,
        rounds=args.rounds,
        evicted=args.evicted,
        grow=ready.growth.begin,
    )
    for line in ready.warnings:
        print(f"warning: {line}", file=sys.stderr)
    for line in output.warning_lines(result.warnings, ready.warnings):
        print(line, file=sys.stderr)
    document = result.document(ready.growth.document())
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
        output.say(output.simulation_table(document, {key: found.why for key, found in left.items()}))
    else:
        output.say(output.text(document, args.output))
    unmade = [one for one in ready.unmade if is_ours(one, served, ready.others)]
    return FAILED if args.fail_pending and (result.pending or waiting or unmade or ready.stuck) else 0
