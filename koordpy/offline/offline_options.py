# SPDX-License-Identifier: Apache-2.0
"""Command-line options that simulate, explain, topology and view share.

Must not import the manifest parser at module level, so that `--help` answers at once.
"""

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordpy.offline.preparing import ClusterInput, Offline

DEFAULT_NOW = "2026-01-01T00:00:00Z"
"""Default time of a run on manifests. It is fixed, so that equal manifests give equal output."""


def add_arguments(parser: argparse.ArgumentParser, among: "argparse._MutuallyExclusiveGroup | None" = None) -> None:
    """Adds the options of simulate, explain and view. among: group of exclusive input sources, to which -f is added."""
    add_paths(parser if among is None else among)
    parser.add_argument(
        "--now",
        metavar="RFC3339",
        help=f"time of the run; give the current time with a dump of a live cluster, because ages and deadlines count "
        f"from it (default for manifests: {DEFAULT_NOW}; for a cluster: the time of reading)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="a KoordpyConfiguration (default for a cluster: the chart's ConfigMap)"
    )
    parser.add_argument(
        "--scheduler-name",
        dest="scheduler_names",
        metavar="NAME",
        action="append",
        help="override the configured scheduler names; repeatable",
    )
    add_started(parser)


def add_paths(to: "argparse.ArgumentParser | argparse._MutuallyExclusiveGroup") -> None:
    """Adds the option -f, which names manifests."""
    to.add_argument(
        "-f",
        "--filename",
        dest="paths",
        metavar="PATH",
        action="append",
        help="manifests: a file, a folder (its *.yaml, *.yml and *.json) or - for the standard input; repeatable",
    )


def add_started(parser: argparse.ArgumentParser) -> None:
    """Adds the option --started, which names roles of workloads that have begun."""
    parser.add_argument(
        "--started",
        metavar="[NAMESPACE/][NAME:]ROLE",
        action="append",
        default=[],
        help="assume that this role of a workload has begun, and that the roles before it have ended; repeatable",
    )


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Disables the garbage collector while modules and input are loaded, then sets a high threshold.

    The input is a few hundred thousand values without cycles; collecting garbage would take as long as reading them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # the input is not scanned again
        # Collect rarely, as in `process_host`: planning creates few reference cycles.
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def prepare(args: argparse.Namespace, cluster: "ClusterInput | None" = None) -> "Offline":
    """Reads the configuration and the manifests; manifests replace objects of the cluster with the same kind and name.

    Raises InputFaultsError with the faults of both.
    """
    with nothing_collected():
        from koordpy.offline.preparing import prepared

        return prepared(args, cluster)
