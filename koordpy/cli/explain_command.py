# SPDX-License-Identifier: Apache-2.0
"""`koordpy explain`: explains one pod and its gang, on the simulated round that decided the pod (simulate.md 5)."""

import argparse
import sys

from koordpy.api.field_faults import InputFaultsError
from koordpy.cli import offline_inputs
from koordpy.cli.simulate_command import add_rounds
from koordpy.offline import offline_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    offline_options.add_arguments(parser)
    offline_inputs.add_cluster(parser)
    add_rounds(parser)
    parser.add_argument("--pod", metavar="NAMESPACE/NAME", required=True, help="the pod to explain")
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    try:
        ready = offline_inputs.prepare(args)
    except offline_inputs.ClusterUnreadableError as fault:
        print(fault, file=sys.stderr)
        return offline_inputs.FAILED
    from koordpy.api.spelling import hint

    key = args.pod if "/" in args.pod else f"default/{args.pod}"
    later = ready.growth.not_begun(key)  # a workload may create the pod in a later round
    if key not in ready.pods and not later:
        raise InputFaultsError([f"--pod {args.pod}: no such pod in the input{hint(key, ready.pods)}"])
    with offline_options.nothing_collected():
        from koordpy.cli import output
        from koordpy.explain.explanation import Explanation
        from koordpy.simulation.explained_round import NoSuchPodError, explain_simulated

    if ready.state.pod(key) is None and not later:  # the state forgets finished pods
        found = Explanation(key, None, 0, (), (), "pod is finished", ())
    else:
        try:
            found = explain_simulated(
                ready.state,
                ready.config,
                key,
                now=ready.now,
                rounds=args.rounds,
                evicted=args.evicted,
                grow=ready.growth.begin,
            )
        except NoSuchPodError:
            raise InputFaultsError([f"--pod {args.pod}: no round of the simulation has this pod{later}"]) from None
    told = output.warning_lines(sorted(found.warnings), ready.warnings)
    for line in (*(f"warning: {line}" for line in ready.warnings), *told):
        print(line, file=sys.stderr)
    if args.output == "table":
        offline_inputs.tell_configuration(ready.configuration, ready.config)
    document = output.explanation_document(found)
    output.say(output.explanation_table(document) if args.output == "table" else output.text(document, args.output))
    return 0
