# SPDX-License-Identifier: Apache-2.0
"""`koordpy run`: runs the live scheduler. Command-line flags override the configuration file (kube-parity.md 5)."""

import argparse
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from koordpy.config.configuration import KoordpyConfiguration
    from koordpy.engine.client.api_client import ApiClient
    from koordpy.operator.tenant_api import TenantApi
    from koordpy.operator.webhook import Webhook

FAILED = 1
SWITCH_SECONDS = 0.002
"""Switch interval of the Python interpreter, in seconds: a thread may run for so long before another gets its turn."""


def _truth(text: str) -> bool:
    """Parses a boolean flag as Go programs do: true, false, 1, 0, t, f."""
    known = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return known[text.lower()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="KoordpyConfiguration file; flags override it")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the service account, ~/.kube/config"
    )
    parser.add_argument("--scheduler-name", metavar="NAME", action="append", help="schedulerName to serve (repeatable)")
    parser.add_argument(
        "--leader-elect",
        metavar="BOOL",
        type=_truth,
        nargs="?",
        const=True,
        default=None,
        help="schedule only while holding the leader-election Lease; =false: schedule without it",
    )
    parser.add_argument(
        "--no-leader-elect", dest="leader_elect", action="store_false", help="the same as --leader-elect=false"
    )
    parser.add_argument("--leader-elect-resource-name", metavar="NAME", help="name of the Lease")
    parser.add_argument("--leader-elect-resource-namespace", metavar="NAME", help="namespace of the Lease")
    parser.add_argument("--bind-address", metavar="HOST:PORT", help="serve health checks and metrics there (:10259)")
    parser.add_argument("--kube-api-qps", metavar="N", type=float, help="API requests per second; 0: no limit")
    parser.add_argument("--kube-api-burst", metavar="N", type=int, help="API requests in one burst")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--webhook-address", metavar="HOST:PORT", help="serve the admission webhook there (default: off)"
    )
    parser.add_argument("--webhook-certificates", metavar="FOLDER", help="tls.crt and tls.key of the webhook")
    parser.add_argument("--tenants-address", metavar="HOST:PORT", help="serve the API view.koordpy.io (default: off)")
    parser.add_argument("--tenants-certificates", metavar="FOLDER", help="tls.crt and tls.key of that API")
    parser.add_argument("--no-view", dest="view", action="store_false", help="disable the web UI (/debug/view)")
    parser.add_argument("--dry-run", action="store_true", help="plan, log and serve metrics, but write nothing")


def run(args: argparse.Namespace) -> int:
    """Runs the scheduler until it ends and returns the exit status. Raises InputFaultsError."""
    from koordpy.config.configuration_file import dangers
    from koordpy.observe import log_lines

    log_lines.configure(level=args.log_level, format=args.log_format)
    config = configuration(args)
    import asyncio
    import gc
    import logging
    from collections.abc import Callable

    for line in dangers(config):
        logging.getLogger(__name__).warning("%s", line)
    gc.disable()  # OperatorHost enables it once the caches are in sync
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        webhook, tenants = webhook_of(args, config), tenants_of(args, config)
        return runner.run(_serve(config, webhook, tenants, dry_run=args.dry_run, view=args.view))


def webhook_of(args: argparse.Namespace, config: "KoordpyConfiguration") -> "Webhook | None":
    """Returns the admission webhook that the flags configure; None if they configure none. Raises InputFaultsError."""
    given = _server_flags(args, "webhook", {"bindAddress": config.bind_address})
    if given is None:
        return None
    from koordpy.operator.webhook import Webhook

    with _faults_of("webhook"):
        webhook = Webhook(*given, resources=config.gpu.resources)
        webhook.reload()
    return webhook


def tenants_of(args: argparse.Namespace, config: "KoordpyConfiguration") -> "Callable[[ApiClient], TenantApi] | None":
    """Returns a factory of the tenant API, which takes the scheduler's client; None if no flag configures this API.

    Raises InputFaultsError.
    """
    others = {"bindAddress": config.bind_address, "--webhook-address": args.webhook_address or ""}
    given = _server_flags(args, "tenants", others)
    if given is None:
        return None
    from koordpy.operator.front_proxy import context_for
    from koordpy.operator.tenant_api import CERTIFICATE, KEY, TenantApi

    address, folder = given
    with _faults_of("tenants"):
        context_for(None, str(folder / CERTIFICATE), str(folder / KEY))
    return lambda client: TenantApi(address, folder, client=client)


def _server_flags(args: argparse.Namespace, server: str, others: "Mapping[str, str]") -> "tuple[str, Path] | None":
    """Returns (address, folder of the certificate) of a server; None if its address is not given.

    others: flag or field of another server -> its address; two servers must not use the same port. Raises
    InputFaultsError.
    """
    from pathlib import Path

    from koordpy.api.field_faults import InputFaultsError
    from koordpy.api.object_names import split_address

    address, folder = getattr(args, f"{server}_address"), getattr(args, f"{server}_certificates")
    if address is None and folder:
        raise InputFaultsError([f"--{server}-address: is required with --{server}-certificates"])
    if address is None:
        return None
    if not folder:
        raise InputFaultsError([f"--{server}-certificates: is required with --{server}-address"])
    with _faults_of(server):
        own = split_address(address)[1]
        for where, other in others.items():
            if own and other and own == split_address(other)[1]:
                raise InputFaultsError([f"--{server}-address: port {own} is already used by {where} ({other})"])
    return address, Path(folder)


@contextlib.contextmanager
def _faults_of(server: str) -> "Iterator[None]":
    """Raises faults of a server's flags as InputFaultsError."""
    from koordpy.api.field_faults import InputFaultsError

    try:
        yield
    except ValueError as fault:
        raise InputFaultsError([f"--{server}-address: {fault}"]) from None
    except OSError as fault:
        what = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
        raise InputFaultsError([f"--{server}-certificates: {what}"]) from None


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
"""Argument -> path of the configuration field that it overrides."""


def configuration(args: argparse.Namespace) -> "KoordpyConfiguration":
    """Returns the file's configuration with the flags on top. Raises InputFaultsError with faults of both."""
    from koordpy.config.configuration_file import Flag, load_config

    given = {argument: getattr(args, argument) for argument in FLAGS}
    flags = [
        Flag(f"--{argument.replace('_', '-')}", FLAGS[argument], value)
        for argument, value in given.items()
        if value is not None
    ]
    return load_config(args.config, flags=flags)


async def _serve(
    config: "KoordpyConfiguration",
    webhook: "Webhook | None",
    tenants: "Callable[[ApiClient], TenantApi] | None",
    *,
    dry_run: bool,
    view: bool,
) -> int:
    import logging
    import sys

    from koordpy.engine.client.api_client import ApiClient
    from koordpy.engine.client.credentials import load_access
    from koordpy.engine.client.kubeconfig import CredentialError
    from koordpy.engine.engine_settings import EngineSettings
    from koordpy.operator.process_host import OperatorHost
    from koordpy.planner.planning_round import PlannerCache, plan_round

    logger = logging.getLogger("koordpy.cli.run_command")
    connection = config.client_connection
    try:
        access = await load_access(connection.kubeconfig or None)
    except CredentialError as fault:
        logger.error("%s", fault)
        return FAILED
    # the planner's thread gives up the interpreter sooner, so that Bindings are sent while it plans
    sys.setswitchinterval(SWITCH_SECONDS)
    caches = {searches: PlannerCache() for searches in (False, True)}  # rounds and victim searches plan concurrently
    async with ApiClient(access, qps=connection.qps, burst=connection.burst) as client:
        host = OperatorHost(
            client,
            lambda snapshot, only, budget: plan_round(
                snapshot, config, only=only, planner_cache=caches[budget.searches], budget=budget
            ),
            settings=EngineSettings(config, dry_run),
            config=config,
            webhook=webhook,
            tenants=tenants(client) if tenants is not None else None,
            view=view,
        )
        if dry_run:
            logger.info("dry run: koordpy plans and logs, and writes nothing to the cluster")
        logger.info("scheduling pods with schedulerName %s on %s", ", ".join(config.scheduler_names), access.server)
        try:
            return await host.run()
        except OSError as fault:
            logger.error("%s", fault)
            return FAILED
