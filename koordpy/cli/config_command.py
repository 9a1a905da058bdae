# SPDX-License-Identifier: Apache-2.0
"""`koordpy config check FILE`: validates a configuration file, and lists the ElasticQuotas that it would ignore."""

import argparse
import sys
from typing import TYPE_CHECKING

from koordpy.cli import offline_inputs
from koordpy.offline import offline_options

if TYPE_CHECKING:
    from koordpy.api.custom_objects import ElasticQuota
    from koordpy.config.configuration import KoordpyConfiguration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check", help="report all errors of a configuration file, and the ElasticQuotas that it would ignore"
    )
    check.add_argument("file", metavar="FILE", help="the configuration file, or - for the standard input")
    offline_options.add_paths(check)
    check.add_argument("--kubeconfig", metavar="FILE", help="also check the ElasticQuotas of this cluster")
    check.add_argument("--context", metavar="NAME", help="context of the kubeconfig that names the cluster")


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises InputFaultsError."""
    from koordpy.config.configuration_file import dangers, load_config, read_config

    config = read_config(sys.stdin.buffer.read(), name="-") if args.file == "-" else load_config(args.file)
    try:
        told = _uncounted(args, config)
    except offline_inputs.ClusterUnreadableError as fault:
        print(fault, file=sys.stderr)
        return offline_inputs.FAILED
    for line in (*dangers(config), *told):
        print(f"warning: {args.file}: {line}", file=sys.stderr)
    print(f"{args.file}: valid")
    return 0


def _uncounted(args: argparse.Namespace, config: "KoordpyConfiguration") -> list[str]:
    """Returns the warning about ElasticQuotas, in manifests and in the cluster, that the configuration ignores.

    The list is empty if there are none.
    """
    quotas: list[ElasticQuota] = []
    if args.paths:
        from koordpy.api.custom_objects import ElasticQuota as Quota
        from koordpy.api.field_faults import InputFaultsError
        from koordpy.offline.manifests import load_manifests

        loaded = load_manifests(args.paths, nodes=False)
        if loaded.fault_lines:
            raise InputFaultsError(loaded.fault_lines)
        quotas += [one.obj for one in loaded.manifests if isinstance(one.obj, Quota)]
    if args.kubeconfig is not None or args.context is not None:
        from koordpy.cli.cluster_reading import read_cluster

        cluster = read_cluster(args.kubeconfig, context=args.context, config=config)
        quotas += cluster.state.quotas.objects.values()
    from koordpy.quota.quota_owners import uncounted

    text = uncounted(quotas, config.quota)
    return [text] if text else []
