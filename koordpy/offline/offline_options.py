"""What simulate, explain and view share: their options, which cost no import of what reads manifests."""

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordpy.offline.preparing import ClusterInput, Offline

DEFAULT_NOW = "2026-01-01T00:00:00Z"


def add_arguments(parser: argparse.ArgumentParser, among: "argparse._MutuallyExclusiveGroup | None" = None) -> None:
    """The options that these commands have. among: sources of which manifests are one; else they are required."""
    add_paths(parser if among is None else among)
    parser.add_argument(
        "--now",
        metavar="RFC3339",
        help=f"time of the run (default: {DEFAULT_NOW}, of a cluster the time at which it is read)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="a KoordpyConfiguration; default: of a cluster that of its ConfigMap"
    )
    parser.add_argument(
        "--scheduler-name",
        dest="scheduler_names",
        metavar="NAME",
        action="append",
        help="scheduler name to serve, in place of the configured ones; repeatable",
    )
    add_started(parser)


def add_paths(to: "argparse.ArgumentParser | argparse._MutuallyExclusiveGroup") -> None:
    """The option that names manifests."""
    to.add_argument(
        "-f",
        "--filename",
        dest="paths",
        metavar="PATH",
        action="append",
        help="manifests: a file, a folder (its *.yaml, *.yml and *.json) or - for the standard input; repeatable",
    )


def add_started(parser: argparse.ArgumentParser) -> None:
    """The option that says which steps of workloads have begun."""
    parser.add_argument(
        "--started",
        metavar="[NAMESPACE/][NAME:]ROLE",
        action="append",
        default=[],
        help="a role of a workload that has begun, in place of those that it follows; repeatable",
    )


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Modules and input are a few hundred thousand values without cycles: looking for garbage among them takes as long
    as reading them. Afterwards it is looked for as seldom as in a live scheduler: a plan makes values, few cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def prepare(args: argparse.Namespace, cluster: "ClusterInput | None" = None) -> "Offline":
    """Reads configuration and manifests, which are laid over the objects of a cluster. Raises InputFaultsError with the
    faults of both."""
    with nothing_collected():
        from koordpy.offline.preparing import prepared

        return prepared(args, cluster)
