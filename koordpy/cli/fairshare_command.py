# SPDX-License-Identifier: Apache-2.0
"""`koordpy fairshare`: computes fair shares of the queues in a file (simulate.md 6, quota-fairness.md 3)."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koordpy.fairness.fair_shares import Rational


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--filename", dest="path", metavar="FILE", required=True, help="YAML or JSON with total, mode and queues"
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises InputFaultsError with every fault of the file."""
    from koordpy.cli import output
    from koordpy.cli.queue_files import load_queues

    shares = load_queues(args.path).shares()
    if args.output == "table":
        columns = sorted({resource for amounts in shares.values() for resource in amounts})
        rows = [(name, *(str(_number(amounts[r])) for r in columns)) for name, amounts in shares.items()]
        lines = output.table(("QUEUE", *columns), rows)
        output.say("\n".join(lines) + "\n" if lines else "no queues\n")
        return 0
    document: dict[str, Any] = {
        "shares": {name: {r: _number(amount) for r, amount in amounts.items()} for name, amounts in shares.items()}
    }
    output.say(output.text(document, args.output))
    return 0


def _number(amount: "Rational") -> int | float:
    """Returns a share as an integer, or as a float if it has thousandths, because a float prints thousandths
    exactly."""
    return int(amount) if amount.denominator == 1 else float(amount)
