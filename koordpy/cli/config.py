"""`koordpy config check FILE`: validates a configuration file."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="name every fault of a configuration file")
    check.add_argument("file", metavar="FILE", help="the file, or - for the standard input")


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status. Raises InputFaultsError."""
    from koordpy.api.configfile import dangers, load_config, read_config

    config = read_config(sys.stdin.buffer.read(), name="-") if args.file == "-" else load_config(args.file)
    for line in dangers(config):
        print(f"warning: {args.file}: {line}", file=sys.stderr)
    print(f"{args.file}: valid")
    return 0
