"""`koordpy version`."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(args: argparse.Namespace) -> int:
    """Prints the version."""
    from koordpy import __version__

    print(f"koordpy {__version__}")
    return 0
