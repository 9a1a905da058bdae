# SPDX-License-Identifier: Apache-2.0
"""Entry point of `koordpy`: parses the command's name, imports that command's module and runs it.

Must not import the planner, the operator or the manifest parser, so that `koordpy --help` answers at once.
"""

import argparse
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from koordpy import __version__
from koordpy.api.spelling import hint

COMMANDS = {
    "simulate": "dry-run the scheduler on manifests, or on a cluster that is read and not changed",
    "explain": "explain where a pod fits, why other nodes are rejected, and what would help",
    "fairshare": "compute fair shares of queues from a file",
    "topology": "show the topology tree, the free capacity of each domain, and label mistakes",
    "view": "serve the web UI: GPUs by network location, the queue, quotas and decisions",
    "config": "validate a configuration file",
    "run": "run the scheduler on a cluster",
    "agent": "report the GPUs of this node and their links",
    "demo": "run the demo: gangs arrive on a temporary embedded cluster",
    "version": "print the version",
}
"""Command -> help text. The module `koordpy.cli.NAME_command` defines the options in `add_arguments`; its `run` returns
the exit status."""
BAD_INPUT = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status.

    0: done. 1: failed. 2: invalid input (every fault is on stderr). 130: interrupted.
    """
    _open_closed()
    words = list(sys.argv[1:] if argv is None else argv) or ["help"]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    wanted = words[0] if words[0] in COMMANDS else None
    parser = argparse.ArgumentParser(
        prog="koordpy", description="A Kubernetes scheduler for gangs and network topology on clusters of accelerators."
    )
    parser.add_argument("--version", action="version", version=f"koordpy {__version__}")
    # prog is passed explicitly, because argparse would derive it with a formatter that imports compression libraries
    commands = parser.add_subparsers(prog=parser.prog, dest="command", metavar="COMMAND", required=True)
    module: Any = None
    chosen: argparse.ArgumentParser | None = None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == wanted:
            chosen = command
        if name == wanted and name != "version":
            module = importlib.import_module(f"koordpy.cli.{name}_command")
            module.add_arguments(command)
    if wanted is None and not words[0].startswith("-"):
        parser.error(f"unknown command {words[0]!r}{hint(words[0], COMMANDS) or ', koordpy help names them'}")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", chosen.format_help()) if chosen is not None else []
        near = next((found for word in unknown if (found := hint(word.partition("=")[0], options))), "")
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    if module is None:
        print(f"koordpy {__version__}")
        return 0
    return _run(module, args)


def _open_closed() -> None:
    """Replaces standard output or standard error with a discarded buffer if it was closed when the process started."""
    if sys.stdout is None:
        sys.stdout = io.StringIO()
    if sys.stderr is None:
        sys.stderr = io.StringIO()


def _run(module: Any, args: argparse.Namespace) -> int:
    from koordpy.api.field_faults import InputFaultsError

    try:
        status = int(module.run(args))
        sys.stdout.flush()
    except InputFaultsError as fault:
        for line in fault.lines:
            print(line, file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        # The reader closed the pipe. The rest of the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
