"""`koordpy config check FILE`: validates a configuration file."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="name every fault of a configuration file")
    check.add_argument("file", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status."""
    from koordpy.api.config import ConfigError, load_config
    from koordpy.cli.offline import InputFaultsError

    try:
        load_config(args.file)
    except ConfigError as fault:
        raise InputFaultsError(fault.lines) from None
    print(f"{args.file}: valid")
    return 0
