# SPDX-License-Identifier: Apache-2.0
"""Input of the offline commands: manifests, a running cluster, or a cluster with manifests that replace its objects.

`cluster_reading.py` reads the cluster as the live scheduler does. Must not write to the cluster.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from koordpy.offline import offline_options

if TYPE_CHECKING:
    from koordpy.cli.cluster_reading import ReadCluster
    from koordpy.config.configuration import KoordpyConfiguration
    from koordpy.offline.preparing import ClusterInput, Offline

FAILED = 1
FROM_CLUSTER = "default: $KUBECONFIG, the service account, ~/.kube/config"


class ClusterUnreadableError(Exception):
    """The cluster could not be read: no credentials, no answer, or a request was rejected. The text is one line."""

    def __init__(self, text: str, *, is_forbidden: bool = False) -> None:
        super().__init__(text)
        self.is_forbidden = is_forbidden
        """True if the API server answered 403: the user lacks a right."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name a cluster to read."""
    parser.set_defaults(refuse=parser.error)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="plan on this cluster, plus the manifests of -f; nothing is written to it"
    )
    parser.add_argument(
        "--context", metavar="NAME", help=f"the same, by kubeconfig context (kubeconfig {FROM_CLUSTER})"
    )


def prepare(args: argparse.Namespace) -> "Offline":
    """Returns the input of simulate and explain. Raises InputFaultsError and ClusterUnreadableError."""
    if args.kubeconfig is None and args.context is None:
        if not args.paths:
            args.refuse("one of the arguments -f/--filename --kubeconfig --context is required")
        return offline_options.prepare(args)
    return offline_options.prepare(args, _objects(args))


def read(args: argparse.Namespace) -> "ReadCluster":
    """Reads the cluster that the options name. The configuration is that of --config, else that of the cluster."""
    from koordpy.cli.cluster_reading import read_cluster
    from koordpy.config.configuration_file import load_config
    from koordpy.offline.preparing import flags_of

    flags = flags_of(args)
    config = load_config(args.config, flags=flags) if args.config else None
    return read_cluster(
        args.kubeconfig, context=args.context, config=config, configuration=args.config or "", flags=flags
    )


def _objects(args: argparse.Namespace) -> "ClusterInput":
    with offline_options.nothing_collected():
        from datetime import UTC, datetime

        import msgspec

        from koordpy.engine.inspection import encode_list
        from koordpy.offline.preparing import ClusterInput

        cluster = read(args)
        items = msgspec.json.decode(encode_list(list(cluster.objects)))["items"]
        now = datetime.fromtimestamp(cluster.now, UTC)
        return ClusterInput(cluster.server, items, now, cluster.config, cluster.configuration, cluster.notes)


def tell_configuration(source: str, config: "KoordpyConfiguration") -> None:
    """Prints to stderr which configuration was used for a table."""
    spaces = ", ".join(config.quota.namespaces)
    print(f"configuration: {source}, quota.namespaces: [{spaces}]", file=sys.stderr)
