# SPDX-License-Identifier: Apache-2.0
"""`koordpy demo`: example gangs arrive on an embedded cluster, and the live scheduler places them."""

import argparse
import sys

from koordpy.cli.number_options import figure
from koordpy.demo.programme import PROGRAMMES, TRAINING

SPEED = figure(float, lambda number: 0.1 <= number <= 100, "number from 0.1 to 100")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--headless", action="store_true", help="print plain lines; exit 1 if a placement differs from the expected one"
    )
    parser.add_argument(
        "--cluster",
        choices=tuple(PROGRAMMES),
        default=TRAINING.name,
        help="; ".join(f"{name}: {one.about}" for name, one in PROGRAMMES.items()) + " (default: %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the cluster running until Ctrl-C, for kubectl")
    parser.add_argument(
        "--speed", metavar="FACTOR", type=SPEED, default=1.0, help="speed factor, 0.1 to 100 (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    from koordpy.demo.demo_cluster import StageError
    from koordpy.demo.demo_run import play

    try:
        return asyncio.run(play(PROGRAMMES[args.cluster], headless=args.headless, keep=args.keep, speed=args.speed))
    except StageError as error:
        print(f"koordpy demo: {error}", file=sys.stderr)
        return 1
