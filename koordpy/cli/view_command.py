# SPDX-License-Identifier: Apache-2.0
"""`koordpy view`: serves the web UI of a running scheduler, a cluster or manifests, on loopback only (docs/view.md)."""

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from koordpy.api.counted_nouns import count_noun
from koordpy.api.field_faults import InputFaultsError
from koordpy.cli import offline_inputs
from koordpy.offline import offline_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from koordpy.cache.snapshot import Snapshot
    from koordpy.config.configuration import KoordpyConfiguration
    from koordpy.offline.preparing import Offline
    from koordpy.plan.round_plan import RoundPlan
    from koordpy.view.document_rows import PlannedPlace
    from koordpy.view.live_documents import Feed, Taken
    from koordpy.view.page_server import TenantView

FAILED = 1
HELPED = 10
"""Number of units at the head of the queue for which a page in one file shows changes that would help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--scheduler", metavar="HOST:PORT", help="show a running scheduler (its health address)")
    source.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="show a cluster, and what a round would do; default: $KUBECONFIG, the service account, ~/.kube/config",
    )
    offline_options.add_arguments(parser, source)
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help="show one namespace, with rights in that namespace only (API view.koordpy.io)",
    )
    parser.add_argument("--token-file", metavar="FILE", help="bearer token to send to --scheduler")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="loopback address to serve on (default: a free port)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command until Ctrl-C and returns the exit status. Raises InputFaultsError."""
    if args.token_file and not args.scheduler:
        raise InputFaultsError(["--token-file: requires --scheduler"])
    if args.namespace and (args.scheduler or args.paths):
        raise InputFaultsError(["--namespace: cannot be used with --scheduler or -f"])
    ready = offline_options.prepare(args) if args.paths else None
    for line in ready.warnings if ready is not None else ():
        print(f"warning: {line}", file=sys.stderr)
    address, token = _scheduler(args)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        return asyncio.run(_serve(args, ready, address, token))
    return 0


def _scheduler(args: argparse.Namespace) -> tuple[str, str]:
    """Returns (address, token) of a running scheduler; both are empty without --scheduler. Raises InputFaultsError."""
    if not args.scheduler:
        return "", ""
    from koordpy.api.object_names import split_address

    try:
        host, port = split_address(args.scheduler)
    except ValueError as fault:
        raise InputFaultsError([f"--scheduler: {fault}"]) from None
    try:
        token = Path(args.token_file).read_text(encoding="utf-8").strip() if args.token_file else ""
    except (OSError, ValueError) as fault:
        raise InputFaultsError([f"--token-file {args.token_file}: {fault}"]) from None
    host = host or "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", token


async def _serve(args: argparse.Namespace, ready: "Offline | None", address: str, token: str) -> int:
    from koordpy.view.page_server import Source, Upstream, page_of

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    if ready is not None:
        opened: contextlib.AbstractAsyncContextManager[Source] = contextlib.nullcontext(feed_of(ready))
    elif args.namespace:
        opened = _tenant(args)
    else:
        opened = Upstream(address, token=token) if address else _cluster(args)
    async with opened as source:
        try:
            async with page_of(source, args.address) as url:
                print(url, flush=True)
                await asyncio.Event().wait()
        except ValueError as fault:
            raise InputFaultsError([f"--address: {fault}"]) from None
        except OSError as fault:
            print(f"--address {args.address}: {fault}", file=sys.stderr)
            return FAILED
    return 0


def feed_of(ready: "Offline") -> "Feed":
    """Returns the feed (source of documents) of a page that shows manifests, and the decisions of one planned round."""
    from koordpy.view.live_documents import Feed, Planned

    teller = Planned(ready.config, source="offline: manifests, no changes are made", warnings=tuple(ready.warnings))
    snapshot = ready.state.snapshot(ready.now.timestamp())
    return Feed(lambda: (snapshot, teller), ready.config)


class SimulationPage:
    """Records the rounds of a simulation, then writes a page with the cluster at its end."""

    def __init__(self) -> None:
        from koordpy.observe.decision_log import DecisionLog

        self._log, self._rounds = DecisionLog(), 0
        self._placed: dict[str, PlannedPlace] = {}
        self._settled = True
        """True if the last round changed nothing; a further round would change nothing either."""

    def plan(self, snapshot: "Snapshot", config: "KoordpyConfiguration") -> "RoundPlan":
        """Plans a round and records its decisions."""
        from koordpy.planner.planning_round import plan_round
        from koordpy.view.document_rows import PlannedPlace

        plan = plan_round(snapshot, config)
        self._rounds += 1
        self._log.record(plan, number=self._rounds, at=snapshot.now)
        gone = {one.pod_key for one in plan.evictions}
        self._placed = {key: place for key, place in self._placed.items() if key not in gone}
        self._placed |= {one.pod_key: PlannedPlace(one.node, one.devices) for one in plan.placements}
        self._settled = not plan.placements and not plan.evictions
        for unit in dict.fromkeys(eviction.unit for eviction in plan.evictions):
            self._log.evicts(plan, unit, dry_run=False)
        return plan

    def written(self, ready: "Offline") -> str:
        """Returns a page in one HTML file, which needs no network. It shows the cluster after the last round."""
        import orjson

        from koordpy.planner.planning_round import plan_round
        from koordpy.view.live_documents import help_of, planned_by, told_by
        from koordpy.view.page_server import page_with
        from koordpy.view.view_document import LiveDocument

        snapshot = ready.state.snapshot(ready.now.timestamp())
        scene = LiveDocument(ready.config)
        planned = self._placed
        if not self._settled:  # --rounds ended the simulation
            planned = planned | planned_by(plan_round(snapshot, ready.config))
        source = f"simulation, {count_noun(self._rounds, 'round')}"
        scene.update(snapshot, told_by(self._log, source=source, planned=planned))
        document = scene.whole()
        first = [entry["unit"] for entry in document["queue"]["units"][:HELPED]]
        document["help"] = {unit: help_of(snapshot, ready.config, unit) for unit in first}
        return page_with(orjson.dumps(document))


@contextlib.asynccontextmanager
async def _tenant(args: argparse.Namespace) -> "AsyncIterator[TenantView]":
    """Opens the view of one namespace, which the cluster's scheduler serves. Raises InputFaultsError."""
    from koordpy.engine.client.api_client import ApiClient
    from koordpy.engine.client.credentials import load_access
    from koordpy.engine.client.kubeconfig import CredentialError
    from koordpy.view.page_server import TenantView

    try:
        access = await load_access(args.kubeconfig)
    except CredentialError as fault:
        raise InputFaultsError([f"--kubeconfig: {fault}"]) from None
    async with ApiClient(access, qps=0) as client:
        yield TenantView(client, args.namespace)


@contextlib.asynccontextmanager
async def _cluster(args: argparse.Namespace) -> "AsyncIterator[Feed]":
    """Opens the view of a cluster: its objects from lists and watches, and the decisions of one planned round.

    Nothing is written to the cluster. Raises InputFaultsError.
    """
    from koordpy.cli.cluster_reading import installed
    from koordpy.config.configuration_file import load_config
    from koordpy.engine.client.api_client import ApiClient
    from koordpy.engine.client.api_errors import ApiError, Unreachable
    from koordpy.engine.client.credentials import load_access
    from koordpy.engine.client.kubeconfig import CredentialError
    from koordpy.engine.engine_settings import EngineSettings
    from koordpy.engine.scheduler import Scheduler
    from koordpy.offline.preparing import DEFAULTS, flags_of
    from koordpy.planner.planning_round import plan_round
    from koordpy.view.live_documents import Feed, Planned, taken_of

    flags, notes = flags_of(args), list[str]()
    given = load_config(args.config, flags=flags) if args.config else None
    try:
        access = await load_access(args.kubeconfig)
    except CredentialError as fault:
        raise InputFaultsError([f"--kubeconfig: {fault}"]) from None
    async with ApiClient(access, qps=0) as client:
        try:
            config, source = (given, args.config) if given is not None else await installed(client, notes, flags)
        except (ApiError, Unreachable):  # the feeds report the error and retry
            config, source = load_config(None, flags=flags), DEFAULTS
        for note in notes:
            print(f"warning: {note}", file=sys.stderr)
        offline_inputs.tell_configuration(source, config)
        # only its feeds run: no rounds and no leader election
        scheduler = Scheduler(
            client,
            lambda snapshot, only, budget: plan_round(snapshot, config, only=only, budget=budget),
            settings=EngineSettings(config, dry_run=True),
        )
        teller = Planned(config, source=f"cluster {access.server}, and what a round would do")

        def take() -> "Taken":
            return taken_of(scheduler)[0], teller

        feeding = asyncio.create_task(scheduler.feeds.run(), name="feeds")
        try:
            yield Feed(take, config, pace=1.0)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
