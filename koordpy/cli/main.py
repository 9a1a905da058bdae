"""The command line: one light module a command, imported when that command is asked for.

`koordpy --help` answers at once because nothing here imports the planner, the operator or a parser of manifests.
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
    "simulate": "place the pods of manifests as the scheduler would",
    "explain": "say where a pod of manifests fits, and why it does not elsewhere",
    "fairshare": "compute fair shares of queues in a file",
    "topology": "show the tree of a cluster, or of manifests, and what each domain has free",
    "view": "serve one page: the tree, the queue, quotas, what was decided",
    "config": "check a configuration file",
    "run": "run the scheduler on a cluster",
    "agent": "report the GPUs of a node and their links",
    "demo": "watch gangs being placed on a cluster of its own",
    "version": "print the version",
}
"""What each does: `koordpy.cli.NAME_command` has `add_arguments`, its options, and `run`, which gives the exit
status."""
BAD_INPUT = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit status: 0 done, 1 failed, 2 bad input (every fault on stderr), 130 interrupted."""
    _open_closed()
    words = list(sys.argv[1:] if argv is None else argv) or ["help"]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    wanted = words[0] if words[0] in COMMANDS else None
    parser = argparse.ArgumentParser(
        prog="koordpy", description="A Kubernetes scheduler for gangs and network topology on clusters of accelerators."
    )
    parser.add_argument("--version", action="version", version=f"koordpy {__version__}")
    # its name is given, or argparse would work it out with a formatter, which imports compression libraries
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
    """Gives a process that was started with a closed output one that nobody reads."""
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
        # The reader has left; what is still in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
