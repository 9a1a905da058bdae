# SPDX-License-Identifier: Apache-2.0
"""`kubectl koordpy`: the kubectl plugin that shows pending gangs, the queue, free capacity and quotas of a cluster.

kubectl runs the program `kubectl-koordpy` in the PATH. If the user may list the cluster's pods and nodes, the plugin
reads the cluster (`cluster_reading.py`) and runs the planner itself. Otherwise `why`, `queue` and `slots` ask the
running scheduler about one namespace (`scheduler_queries.py`). The exit status is kubectl's: 0, or 1 with an error on
stderr. Must not write to the cluster.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from koordpy import __version__
from koordpy.cli.number_options import COUNT

if TYPE_CHECKING:
    from koordpy.cli.offline_inputs import ClusterUnreadableError

Text = Callable[[dict[str, Any], bool], str]
Found = tuple[dict[str, Any], dict[str, Any], Text]
"""(document, age and source of the data, function that formats the document as text)."""

FAILED = 1
INTERRUPTED = 130
WORDS = {
    "why": "explain why a pod, gang or workload is pending, and what would help",
    "queue": "list pending gangs and pods in queue order",
    "slots": "count how many gangs fit, per topology layer",
    "tree": "show the topology tree with the free capacity of each domain",
    "top": "show accelerator usage, quotas and fair shares",
}
"""Subcommand -> help text; `cluster_views.py` implements them."""


class _ArgumentsAsKubectl(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"error: {message}\nSee '{self.prog} --help' for usage.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the plugin and returns the exit status."""
    args = parser().parse_args(argv)
    from koordpy.api.field_faults import InputFaultsError
    from koordpy.cli.offline_inputs import ClusterUnreadableError

    try:
        try:
            document, as_of, text = _read(args)
        except ClusterUnreadableError as fault:
            if not fault.is_forbidden:
                raise
            document, as_of, text = _ask(args, fault)
        _show(args, document, as_of, text)
    except InputFaultsError as fault:
        print("\n".join(f"error: {line}" for line in fault.lines), file=sys.stderr)
        return FAILED
    except ClusterUnreadableError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _read(args: argparse.Namespace) -> Found:
    """Reads the whole cluster and returns the view of it."""
    from koordpy.cli.cluster_reading import read_cluster
    from koordpy.offline.offline_options import nothing_collected

    with nothing_collected():
        from koordpy.cli.cluster_views import VIEWS
        from koordpy.config.configuration_file import load_config

        make, text = VIEWS[args.view]
        config = load_config(args.config) if args.config else None
        cluster = read_cluster(args.kubeconfig, context=args.context, config=config)
    document = make(args, cluster)
    for note in cluster.notes:
        print(f"warning: {note}", file=sys.stderr)
    as_of = {
        "secondsAgo": round(cluster.age, 1),
        "resourceVersion": cluster.version,
        "server": cluster.server,
        "configuration": cluster.configuration,
        "quotaNamespaces": list(cluster.config.quota.namespaces),
    }
    return document, as_of, text


def _ask(args: argparse.Namespace, unreadable: "ClusterUnreadableError") -> Found:
    """Asks the running scheduler about one namespace and returns its answer."""
    from koordpy.cli.scheduler_queries import TEXTS, ask_scheduler

    answer = ask_scheduler(args, unreadable)
    as_of = {
        "secondsAgo": answer.document.get("secondsAgo", 0.0),
        "resourceVersion": None,
        "server": answer.server,
        "configuration": "the scheduler's own",
    }
    return answer.document, as_of, TEXTS[args.view]


def _show(args: argparse.Namespace, document: dict[str, Any], as_of: dict[str, Any], text: Text) -> None:
    from koordpy.cli import output

    if args.output == "json":
        output.say(output.text({**document, "asOf": as_of}, "json"))
    else:
        version = f", resourceVersion {as_of['resourceVersion']}" if as_of["resourceVersion"] else ""
        line = f"as of {as_of['secondsAgo']} s ago{version} of {as_of['server']}, "
        line += f"configuration: {as_of['configuration']}"
        if (spaces := as_of.get("quotaNamespaces")) is not None:
            line += f", quota.namespaces: [{', '.join(spaces)}]"
        output.say(f"{text(document, args.output == 'wide')}\n{line}\n")
    sys.stdout.flush()


def _common() -> _ArgumentsAsKubectl:
    """Returns a parser with the options of every subcommand.

    Each parser gets a separate copy without defaults, because a default after the subcommand would override an option
    before it.
    """
    common = _ArgumentsAsKubectl(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("-n", "--namespace", metavar="NAME", help="namespace of NAME; queue lists only this one")
    common.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    common.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the service account, ~/.kube/config"
    )
    common.add_argument(
        "--config", metavar="FILE", help="the scheduler's configuration (default: the chart's ConfigMap)"
    )
    common.add_argument("-o", "--output", choices=("wide", "json"), help="more columns, or the document as JSON")
    return common


def parser() -> argparse.ArgumentParser:
    """Returns the parser. Options are accepted before and after the subcommand, as by kubectl."""
    whole = _ArgumentsAsKubectl(
        prog="kubectl koordpy", description="Show what koordpy decides on a cluster, and why.", parents=[_common()]
    )
    whole.add_argument("--version", action="version", version=f"koordpy {__version__}")
    whole.set_defaults(**dict.fromkeys(("namespace", "context", "kubeconfig", "config", "output")))
    views = whole.add_subparsers(prog=whole.prog, dest="view", metavar="VIEW", required=True)
    for name, about in WORDS.items():
        one = views.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", parents=[_common()])
        if name == "why":
            one.add_argument(
                "name",
                metavar="NAME",
                help="a pod, gang or workload; also pod/NAME, podgroup/NAME, job/NAME, jobset/NAME, NAMESPACE/NAME",
            )
        if name == "slots":
            one.add_argument("--gpus", metavar="N", type=COUNT, default=1, help="GPUs per pod (default: %(default)s)")
            one.add_argument("--resource", metavar="NAME", help="resource to count instead, e.g. huawei.com/Ascend910")
    return whole


if __name__ == "__main__":
    sys.exit(main())
