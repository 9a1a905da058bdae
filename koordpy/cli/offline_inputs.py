"""Where the offline commands take their input from: manifests, a running cluster, or manifests over a cluster; and one
line about the configuration that they use.

A cluster is read as the live scheduler reads it (`cluster_reading.py`), and nothing is written to it.
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
    """The cluster could not be read: no access, no answer, or a refusal. One line. is_forbidden: the user lacks a
    right."""

    def __init__(self, text: str, *, is_forbidden: bool = False) -> None:
        super().__init__(text)
        self.is_forbidden = is_forbidden


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The options that name a cluster, for a command that reads one where it has no manifests alone."""
    parser.set_defaults(refuse=parser.error)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="plan on this cluster, with the manifests of -f on top; nothing is written"
    )
    parser.add_argument("--context", metavar="NAME", help=f"likewise, by a context of the kubeconfig ({FROM_CLUSTER})")


def prepare(args: argparse.Namespace) -> "Offline":
    """The input of simulate and explain. Raises InputFaultsError and ClusterUnreadableError."""
    if args.kubeconfig is None and args.context is None:
        if not args.paths:
            args.refuse("one of the arguments -f/--filename --kubeconfig --context is required")
        return offline_options.prepare(args)
    return offline_options.prepare(args, _objects(args))


def read(args: argparse.Namespace) -> "ReadCluster":
    """The cluster that the options name, with the configuration of --config, else that of the cluster."""
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
    """Says on the standard error which configuration a table rests on."""
    spaces = ", ".join(config.quota.namespaces)
    print(f"configuration: {source}, quota.namespaces: [{spaces}]", file=sys.stderr)
