# SPDX-License-Identifier: Apache-2.0
"""`koordpy config check FILE`: validates a configuration file, and reports its effects on quotas and claims."""

import argparse
import sys
from typing import TYPE_CHECKING

from koordpy.cli import offline_inputs
from koordpy.offline import offline_options

if TYPE_CHECKING:
    from koordpy.api.objects import Wire
    from koordpy.config.configuration import KoordpyConfiguration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check", help="report all errors of a configuration file, the ElasticQuotas that it would ignore, and claims"
    )
    check.add_argument("file", metavar="FILE", help="the configuration file, or - for the standard input")
    offline_options.add_paths(check)
    check.add_argument("--kubeconfig", metavar="FILE", help="also check the ElasticQuotas and claims of this cluster")
    check.add_argument("--context", metavar="NAME", help="context of the kubeconfig that names the cluster")


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises InputFaultsError."""
    from koordpy.config.configuration_file import dangers, load_config, read_config

    config = read_config(sys.stdin.buffer.read(), name="-") if args.file == "-" else load_config(args.file)
    try:
        objects = _objects(args, config)
    except offline_inputs.ClusterUnreadableError as fault:
        print(fault, file=sys.stderr)
        return offline_inputs.FAILED
    for line in (*dangers(config), *_uncounted(objects, config)):
        print(f"warning: {args.file}: {line}", file=sys.stderr)
    for line in _notes(objects, config):
        print(f"note: {args.file}: {line}", file=sys.stderr)
    print(f"{args.file}: valid")
    return 0


def _objects(args: argparse.Namespace, config: "KoordpyConfiguration") -> list["Wire"]:
    """Returns the objects of the manifests and of the cluster that the arguments name; empty if they name none."""
    objects: list[Wire] = []
    if args.paths:
        from koordpy.api.field_faults import InputFaultsError
        from koordpy.offline.manifests import load_manifests

        loaded = load_manifests(args.paths, nodes=False)
        if loaded.fault_lines:
            raise InputFaultsError(loaded.fault_lines)
        objects += [one.obj for one in loaded.manifests]
    if args.kubeconfig is not None or args.context is not None:
        from koordpy.cli.cluster_reading import read_cluster

        cluster = read_cluster(args.kubeconfig, context=args.context, config=config)
        objects += [obj for _, obj in cluster.objects]
    return objects


def _uncounted(objects: list["Wire"], config: "KoordpyConfiguration") -> list[str]:
    """Returns the warning about ElasticQuotas that the configuration ignores; empty if there are none."""
    if not objects:
        return []
    from koordpy.api.custom_objects import ElasticQuota
    from koordpy.quota.quota_owners import uncounted

    text = uncounted([one for one in objects if isinstance(one, ElasticQuota)], config.quota)
    return [text] if text else []


def _notes(objects: list["Wire"], config: "KoordpyConfiguration") -> list[str]:
    """Returns notes on the effects that the device settings have on the objects."""
    if not objects:
        return []
    from koordpy.devices.family_registry import setting_notes

    return setting_notes(objects, config)
