"""`koordpy config check FILE`: validates a configuration file."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="name every fault of a configuration file")
    check.add_argument("file", metavar="FILE", help="the file, or - for the standard input")


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status."""
    from koordpy.api.configfile import ConfigError, dangers, load_config, read_config
    from koordpy.offline.preparing import InputFaultsError

    try:
        config = read_config(sys.stdin.buffer.read(), name="-") if args.file == "-" else load_config(args.file)
    except ConfigError as fault:
        raise InputFaultsError(fault.lines) from None
    for line in dangers(config):
        print(f"warning: {args.file}: {line}", file=sys.stderr)
    print(f"{args.file}: valid")
    return 0
