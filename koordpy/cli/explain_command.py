"""`koordpy explain`: one pod, or its whole gang, against the same input, nothing placed (simulate.md 5)."""

import argparse
import sys

from koordpy.api.faults import InputFaultsError
from koordpy.offline import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument("--pod", metavar="NAMESPACE/NAME", required=True, help="the pod to explain")
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    ready = options.prepare(args)
    from koordpy.api.spelling import hint

    key = args.pod if "/" in args.pod else f"default/{args.pod}"
    if key not in ready.pods:
        why = ready.growth.not_begun(key) or hint(key, ready.pods)
        raise InputFaultsError([f"--pod {args.pod}: no such pod in the input{why}"])
    with options.nothing_collected():
        from koordpy.cli import output
        from koordpy.planning.explain import Explanation, explain

    if ready.state.pod(key) is None:  # the state forgets finished pods
        found = Explanation(key, None, 0, (), (), "pod is finished", ())
    else:
        snapshot = ready.state.snapshot(ready.now.timestamp())
        found = explain(snapshot, ready.config, key)
    told = output.warning_lines(sorted(found.warnings), ready.warnings)
    for line in (*(f"warning: {line}" for line in ready.warnings), *told):
        print(line, file=sys.stderr)
    document = output.explanation_document(found)
    output.say(output.explanation_table(document) if args.output == "table" else output.text(document, args.output))
    return 0
