"""`koordpy view`: one page of a running scheduler, a cluster or manifests, on this machine alone (docs/view.md)."""

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from koordpy.api.counted import counted
from koordpy.api.faults import InputFaultsError
from koordpy.offline import options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from koordpy.api.config import KoordpyConfiguration
    from koordpy.cluster.snapshot import Snapshot
    from koordpy.offline.preparing import Offline
    from koordpy.planning.plan import RoundPlan
    from koordpy.view.live import Feed, Taken

FAILED = 1
HELPED = 10
"""Units of the queue of which a page without a server says what would help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--scheduler", metavar="HOST:PORT", help="a running scheduler, by its health address")
    source.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="a cluster, without asking its scheduler; default: $KUBECONFIG, the service account, ~/.kube/config",
    )
    options.add_arguments(parser, source)
    parser.add_argument("--token-file", metavar="FILE", help="with the bearer token that --scheduler wants to see")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="where to serve, on loopback (default: a free port)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command until Ctrl-C; the exit status."""
    if args.token_file and not args.scheduler:
        raise InputFaultsError(["--token-file: is for --scheduler"])
    ready = options.prepare(args) if args.paths else None
    for line in ready.warnings if ready is not None else ():
        print(f"warning: {line}", file=sys.stderr)
    address, token = _scheduler(args)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        return asyncio.run(_serve(args, ready, address, token))
    return 0


def _scheduler(args: argparse.Namespace) -> tuple[str, str]:
    """Address and token of a running scheduler; empty where none is asked for. Raises InputFaultsError."""
    if not args.scheduler:
        return "", ""
    from koordpy.api.names import split_address

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
    from koordpy.view.serve import Upstream, page_of

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    if ready is not None:
        opened: contextlib.AbstractAsyncContextManager[Feed | Upstream] = contextlib.nullcontext(feed_of(ready))
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
    """Manifests as they stand, and what a round would do."""
    from koordpy.view.live import Feed, Planned

    teller = Planned(ready.config, source="manifests, nothing carried out", warnings=tuple(ready.warnings))
    snapshot = ready.state.snapshot(ready.now.timestamp())
    return Feed(lambda: (snapshot, teller), ready.config)


class SimulationPage:
    """Listens to the rounds of a simulation, then writes the page of its end."""

    def __init__(self) -> None:
        from koordpy.observe.decisions import DecisionLog

        self._log, self._rounds = DecisionLog(), 0

    def plan(self, snapshot: "Snapshot", config: "KoordpyConfiguration") -> "RoundPlan":
        """A round of the planner, whose decisions are kept."""
        from koordpy.planning.round import plan_round

        plan = plan_round(snapshot, config)
        self._rounds += 1
        self._log.record(plan, number=self._rounds, at=snapshot.now)
        for unit in dict.fromkeys(eviction.unit for eviction in plan.evictions):
            self._log.evicts(plan, unit, dry_run=False)
        return plan

    def written(self, ready: "Offline") -> str:
        """One file that needs no network: the cluster as the last round left it."""
        import orjson

        from koordpy.view.document import LiveDocument
        from koordpy.view.live import help_of, told_by
        from koordpy.view.serve import page_with

        snapshot = ready.state.snapshot(ready.now.timestamp())
        scene = LiveDocument(ready.config)
        scene.update(snapshot, told_by(self._log, source=f"simulation, {counted(self._rounds, 'round')}"))
        document = scene.whole()
        first = [entry["unit"] for entry in document["queue"]["units"][:HELPED]]
        document["help"] = {unit: help_of(snapshot, ready.config, unit) for unit in first}
        return page_with(orjson.dumps(document))


@contextlib.asynccontextmanager
async def _cluster(args: argparse.Namespace) -> "AsyncIterator[Feed]":
    """A cluster as lists and watches tell, and what a round would do; nothing is written."""
    from koordpy.api.configfile import Flag, load_config
    from koordpy.engine.apiserver.client import ApiClient
    from koordpy.engine.apiserver.credentials import load_access
    from koordpy.engine.apiserver.kubeconfig import CredentialError
    from koordpy.engine.scheduler import Scheduler
    from koordpy.engine.settings import EngineSettings
    from koordpy.planning.round import plan_round
    from koordpy.view.live import Feed, Planned, taken_of

    named = [Flag("--scheduler-name", ("schedulerNames",), args.scheduler_names)] if args.scheduler_names else []
    config = load_config(args.config, flags=named)
    try:
        access = await load_access(args.kubeconfig)
    except CredentialError as fault:
        raise InputFaultsError([f"--kubeconfig: {fault}"]) from None
    async with ApiClient(access, qps=0) as client:
        # its parts that read: no round is run, nothing elected
        scheduler = Scheduler(
            client,
            lambda snapshot, only, patience: plan_round(snapshot, config, only=only, patience=patience),
            settings=EngineSettings(config, dry_run=True),
        )
        teller = Planned(config, source=f"cluster {access.server}, what a round would do")

        def take() -> "Taken":
            return taken_of(scheduler)[0], teller

        feeding = asyncio.create_task(scheduler.feeds.run(), name="feeds")
        try:
            yield Feed(take, config, pace=1.0)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
