"""`kubectl koordpy`: what the scheduler knows of a running cluster, asked of the API server and never written to.

kubectl runs the `kubectl-koordpy` of the PATH. Each word is the view of a command that there is: `why` of explain and
of a round of simulate, `queue` of simulate's pending, `slots` and `tree` of topology, `top` of quotas and shares. Exit
status as kubectl's: 0, or 1 with one line on the standard error.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from koordpy import __version__
from koordpy.cli.numbers import COUNT

FAILED = 1
INTERRUPTED = 130
WORDS = {
    "why": "say why a pod or gang waits, in the scheduler's own words, and what would help",
    "queue": "list who waits, in the order of their turns",
    "slots": "count the gangs that there is room for, layer by layer",
    "tree": "draw the tree of the network with what each domain has free",
    "top": "show accelerators, quotas and shares: what is used, asked for and deserved",
}
"""What each word shows: `clusterviews` has the views."""


class _ArgumentsAsKubectl(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"error: {message}\nSee '{self.prog} --help' for usage.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the plugin; the exit status."""
    args = parser().parse_args(argv)
    from koordpy.api.faults import InputFaultsError
    from koordpy.cli import output
    from koordpy.cli.reading import ClusterUnreadableError, read_cluster
    from koordpy.offline.options import nothing_collected

    try:
        with nothing_collected():
            from koordpy.api.configfile import load_config
            from koordpy.cli.clusterviews import VIEWS

            make, text = VIEWS[args.view]
            config = load_config(args.config) if args.config else None
            cluster = read_cluster(args.kubeconfig, context=args.context, config=config)
        document = make(args, cluster)
        for note in cluster.notes:
            print(f"warning: {note}", file=sys.stderr)
        seconds = round(cluster.age, 1)
        if args.output == "json":
            as_of = {
                "secondsAgo": seconds,
                "resourceVersion": cluster.version,
                "server": cluster.server,
                "configuration": cluster.configuration,
            }
            output.say(output.text({**document, "asOf": as_of}, "json"))
        else:
            as_of_text = f"as of {seconds} s ago, resourceVersion {cluster.version} of {cluster.server}, "
            as_of_text += f"configuration: {cluster.configuration}"
            output.say(f"{text(document, args.output == 'wide')}\n{as_of_text}\n")
        sys.stdout.flush()
    except InputFaultsError as fault:
        print("\n".join(f"error: {line}" for line in fault.lines), file=sys.stderr)
        return FAILED
    except ClusterUnreadableError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def parser() -> argparse.ArgumentParser:
    """Options may stand before and after the word, as kubectl's do."""
    common = _ArgumentsAsKubectl(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("-n", "--namespace", metavar="NAME", help="of what is named, and of what queue lists")
    common.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    common.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the service account, ~/.kube/config"
    )
    common.add_argument(
        "--config", metavar="FILE", help="the scheduler's configuration; default: the chart's ConfigMap"
    )
    common.add_argument("-o", "--output", choices=("wide", "json"), help="more columns, or the document as JSON")
    whole = _ArgumentsAsKubectl(
        prog="kubectl koordpy", description="What koordpy knows of a cluster.", parents=[common]
    )
    whole.add_argument("--version", action="version", version=f"koordpy {__version__}")
    whole.set_defaults(**dict.fromkeys(("namespace", "context", "kubeconfig", "config", "output")))
    views = whole.add_subparsers(prog=whole.prog, dest="view", metavar="VIEW", required=True)
    for name, about in WORDS.items():
        one = views.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", parents=[common])
        if name == "why":
            one.add_argument("name", metavar="POD|PODGROUP", help="a name, or pod/NAME, podgroup/NAME, NAMESPACE/NAME")
        if name == "slots":
            one.add_argument("--gpus", metavar="N", type=COUNT, default=1, help="GPUs of a pod (default: %(default)s)")
            one.add_argument("--resource", metavar="NAME", help="counted in place of GPUs, as huawei.com/Ascend910")
    return whole


if __name__ == "__main__":
    sys.exit(main())
