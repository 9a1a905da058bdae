"""`koordpy run`: the live scheduler. A flag given beats the file (kube-parity.md section 5)."""

import argparse
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordpy.api.config import KoordpyConfiguration
    from koordpy.operator.webhook import Webhook

FAILED = 1
SWITCH_SECONDS = 0.002


def _truth(text: str) -> bool:
    """A flag's value as Go programs take it: true, false, 1, 0, t, f."""
    known = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="KoordpyConfiguration; flags beat it")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the service account, ~/.kube/config"
    )
    parser.add_argument("--scheduler-name", metavar="NAME", action="append", help="served schedulerName (repeatable)")
    parser.add_argument(
        "--leader-elect",
        metavar="BOOL",
        type=_truth,
        nargs="?",
        const=True,
        default=None,
        help="hold a Lease while scheduling; =false schedules at once",
    )
    parser.add_argument("--no-leader-elect", dest="leader_elect", action="store_false", help="the same as =false")
    parser.add_argument("--leader-elect-resource-name", metavar="NAME", help="name of the Lease")
    parser.add_argument("--leader-elect-resource-namespace", metavar="NAME", help="namespace of the Lease")
    parser.add_argument("--bind-address", metavar="HOST:PORT", help="health and metrics (default :10259)")
    parser.add_argument("--kube-api-qps", metavar="N", type=float, help="requests a second; 0 = no limit")
    parser.add_argument("--kube-api-burst", metavar="N", type=int, help="requests at once")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--webhook-address", metavar="HOST:PORT", help="serve the admission webhook there (off)")
    parser.add_argument("--webhook-certificates", metavar="FOLDER", help="with tls.crt and tls.key of the webhook")
    parser.add_argument("--no-view", dest="view", action="store_false", help="serve no /debug/view (koordpy view)")
    parser.add_argument("--dry-run", action="store_true", help="plan, count and log, but write nothing")


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status. Raises InputFaultsError."""
    from koordpy.api.configfile import dangers
    from koordpy.observe import logs

    logs.configure(level=args.log_level, format=args.log_format)
    config = configuration(args)
    import asyncio
    import gc
    import logging
    from collections.abc import Callable

    for line in dangers(config):
        logging.getLogger(__name__).warning("%s", line)
    gc.disable()  # until the caches are in sync: OperatorHost
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        webhook = webhook_of(args, config)
        return runner.run(_serve(config, webhook, dry_run=args.dry_run, view=args.view))


def webhook_of(args: argparse.Namespace, config: "KoordpyConfiguration") -> "Webhook | None":
    """The admission webhook that the flags ask for. Raises InputFaultsError."""
    from pathlib import Path

    from koordpy.api.faults import InputFaultsError

    if args.webhook_address is None and args.webhook_certificates:
        raise InputFaultsError(["--webhook-address: is needed with --webhook-certificates"])
    if args.webhook_address is None:
        return None
    if not args.webhook_certificates:
        raise InputFaultsError(["--webhook-certificates: is needed with --webhook-address"])
    from koordpy.api.names import split_address
    from koordpy.operator.webhook import Webhook

    folder = Path(args.webhook_certificates)
    try:
        own = split_address(args.webhook_address)[1]
        if own and own == split_address(config.bind_address)[1]:
            raise InputFaultsError([f"--webhook-address: {own} is the port of bindAddress, {config.bind_address}, too"])
        webhook = Webhook(args.webhook_address, folder, resources=config.gpu.resources)
        webhook.reload()
    except ValueError as fault:
        raise InputFaultsError([f"--webhook-address: {fault}"]) from None
    except OSError as fault:
        what = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
        raise InputFaultsError([f"--webhook-certificates: {what}"]) from None
    return webhook


FLAGS = {
    "scheduler_name": ("schedulerNames",),
    "leader_elect": ("leaderElection", "leaderElect"),
    "leader_elect_resource_name": ("leaderElection", "resourceName"),
    "leader_elect_resource_namespace": ("leaderElection", "resourceNamespace"),
    "bind_address": ("bindAddress",),
    "kubeconfig": ("clientConnection", "kubeconfig"),
    "kube_api_qps": ("clientConnection", "qps"),
    "kube_api_burst": ("clientConnection", "burst"),
}
"""Argument -> the field that it takes the place of."""


def configuration(args: argparse.Namespace) -> "KoordpyConfiguration":
    """The file's configuration with the flags on top. Raises InputFaultsError, for faults of the flags, too."""
    from koordpy.api.configfile import Flag, load_config

    given = {argument: getattr(args, argument) for argument in FLAGS}
    flags = [
        Flag(f"--{argument.replace('_', '-')}", FLAGS[argument], value)
        for argument, value in given.items()
        if value is not None
    ]
    return load_config(args.config, flags=flags)


async def _serve(config: "KoordpyConfiguration", webhook: "Webhook | None", *, dry_run: bool, view: bool) -> int:
    import logging
    import sys

    from koordpy.engine.apiserver.client import ApiClient
    from koordpy.engine.apiserver.credentials import load_access
    from koordpy.engine.apiserver.kubeconfig import CredentialError
    from koordpy.engine.settings import EngineSettings
    from koordpy.operator.host import OperatorHost
    from koordpy.planning.round import PlannerCache, plan_round

    logger = logging.getLogger("koordpy.cli.run")
    connection = config.client_connection
    try:
        access = await load_access(connection.kubeconfig or None)
    except CredentialError as fault:
        logger.error("%s", fault)
        return FAILED
    # the planner's thread hands the interpreter over sooner, so that Bindings go on while it works
    sys.setswitchinterval(SWITCH_SECONDS)
    cache = PlannerCache()
    async with ApiClient(access, qps=connection.qps, burst=connection.burst) as client:
        host = OperatorHost(
            client,
            lambda snapshot, only, patience: plan_round(
                snapshot, config, only=only, planner_cache=cache, patience=patience
            ),
            settings=EngineSettings(config, dry_run),
            config=config,
            webhook=webhook,
            view=view,
        )
        logger.info("scheduling for %s on %s", ", ".join(config.scheduler_names), access.server)
        try:
            return await host.run()
        except OSError as fault:
            logger.error("%s", fault)
            return FAILED
