"""`koordpy agent`: reports a node's GPUs and their links as the node's Device (gpu-topology.md 9)."""

import argparse
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from koordpy.api.names import split_address
from koordpy.cli.numbers import COUNT, figure

FAILED = 1
SECONDS = figure(float, lambda number: 0 < number < float("inf"), "number of seconds above 0")
DELIVERIES = ("foreign", "env", "device-plugin")
FILES_NODE = "node"
"""Of a file that is only shown: it may be from any machine, and the same file gives the same Device everywhere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="name of the node (default: $NODE_NAME)")
    parser.add_argument(
        "--backend",
        metavar="SOURCE",
        default="nvml",
        help="nvml (default), fake:FILE (YAML) or topo:FILE (text of nvidia-smi topo -m)",
    )
    parser.add_argument("--print", dest="show", action="store_true", help="write the Device to stdout, call no server")
    parser.add_argument("--once", action="store_true", help="report once and end")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the service account")
    parser.add_argument("--measurements", metavar="FILE", help="matrix of measured GB/s in the order of minors (YAML)")
    parser.add_argument("--delivery", choices=DELIVERIES, default="foreign", help="how containers get their GPUs")
    parser.add_argument("--resource", default="nvidia.com/gpu", help="what the device plugin offers to the kubelet")
    parser.add_argument(
        "--kubelet-folder", metavar="FOLDER", default="/var/lib/kubelet", help="with device-plugins and pod-resources"
    )
    parser.add_argument("--cdi", action="store_true", help="the device plugin also names CDI devices")
    parser.add_argument("--poll", metavar="SECONDS", type=SECONDS, default=10.0, help="longest time between looks")
    parser.add_argument(
        "--recover-after", metavar="N", type=COUNT, default=3, help="clean polls until a GPU is healthy again"
    )
    parser.add_argument(
        "--ignore-xid", metavar="N", type=int, action="append", help="error that is no harm to a GPU (repeatable)"
    )
    parser.add_argument("--bind-address", metavar="HOST:PORT", help="serve /livez and /readyz there (default: nowhere)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    import asyncio
    import os

    from koordpy.agent.backends import open_backend
    from koordpy.agent.health import APPLICATION_XIDS, HealthBook
    from koordpy.agent.machine import BackendError
    from koordpy.agent.watch import NodeAgent
    from koordpy.api.faults import InputFaultsError
    from koordpy.observe import logs

    node = args.node or os.environ.get("NODE_NAME", "")
    if not node and args.show and args.backend != "nvml":
        node = FILES_NODE
    if not node:
        raise InputFaultsError(["--node: no name is given, nor is NODE_NAME set"])
    if args.bind_address:
        try:
            split_address(args.bind_address)
        except ValueError as fault:
            raise InputFaultsError([f"--bind-address: {fault}"]) from None
    logs.configure(level=args.log_level, format=args.log_format)
    ignored = APPLICATION_XIDS if args.ignore_xid is None else frozenset(args.ignore_xid)
    book = HealthBook(recover_after=args.recover_after, ignored=ignored)
    _measured(args.measurements)
    try:
        agent = NodeAgent(
            node,
            open_backend(args.backend),
            book,
            delivery=args.delivery,
            measure=lambda: _measured(args.measurements, strict=False),
        )
        if args.show:
            return _show(agent)
        return asyncio.run(_serve(agent, args))
    except BackendError as fault:
        raise InputFaultsError([str(fault)]) from None


def _measured(path: str | None, *, strict: bool = True) -> Any:
    """Content of the measurement file; a file that is no YAML is a matrix that is malformed."""
    from koordpy.api.faults import InputFaultsError

    if not path:
        return None
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or ""
    except (OSError, ValueError, yaml.YAMLError) as fault:
        if strict:
            why = (fault.strerror if isinstance(fault, OSError) else None) or " ".join(str(fault).split())
            raise InputFaultsError([f"{path}: cannot be read: {why}"]) from None
        return ""


def _show(agent: Any) -> int:
    """The Device as YAML, its conditions as comments: a Device's status is not for others to write."""
    import yaml

    report = agent.look()
    print(yaml.safe_dump(dict(report.device), sort_keys=False, width=120), end="")
    for condition in report.conditions:
        print(f"# {condition.type}={condition.status} {condition.reason}: {condition.message}".rstrip(": "))
    return 0


async def _serve(agent: Any, args: argparse.Namespace) -> int:
    import asyncio
    import logging
    import signal

    from koordpy.agent.publisher import DevicePublisher
    from koordpy.engine.apiserver.client import ApiClient, ApiError, Unreachable
    from koordpy.engine.apiserver.credentials import load_access
    from koordpy.engine.apiserver.kubeconfig import CredentialError

    logger = logging.getLogger("koordpy.cli.agent")
    try:
        access = await load_access(args.kubeconfig or None)
        async with ApiClient(access) as client, contextlib.AsyncExitStack() as beside:
            if agent.delivery == "foreign":
                logger.info("delivery foreign: the kubelet's device plugin may choose other GPUs than the scheduler")
            if args.bind_address:
                await beside.enter_async_context(_health(agent, args.bind_address))
            if agent.delivery == "device-plugin" and not args.once:
                await beside.enter_async_context(_plugin(client, agent, args))
            task = asyncio.create_task(agent.run(DevicePublisher(client, agent.node), once=args.once, poll=args.poll))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await task
    except (CredentialError, ApiError, Unreachable, OSError) as fault:
        logger.error("%s", fault)
        return FAILED
    return 0


@contextlib.asynccontextmanager
async def _health(agent: Any, address: str) -> AsyncIterator[None]:
    """Ready once the Device is written and, with a device plugin, while the kubelet knows of it. Raises OSError."""
    from koordpy.observe.health import HealthServer

    ready = {"device": lambda: agent.unwritten, "device-plugin": lambda: agent.obstacle()}
    server = HealthServer(address, live={}, ready=ready)
    try:
        await server.start()
    except OSError as fault:
        raise OSError(f"--bind-address {address}: {fault}") from None
    try:
        yield
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _plugin(client: Any, agent: Any, args: argparse.Namespace) -> AsyncIterator[None]:
    """The device plugin beside the agent: it offers what the agent sees."""
    import asyncio
    from pathlib import Path

    from koordpy.agent.health import HealthBook
    from koordpy.agent.plugin.pods import NodePods
    from koordpy.agent.plugin.server import PluginOffer
    from koordpy.agent.plugin.service import PluginService

    folder = Path(args.kubelet_folder)
    pods = NodePods(client, agent.node, resource=args.resource, gpus=lambda: agent.book.gpus)
    service = PluginService(
        pods.read,
        pods.write,
        resource=args.resource,
        folder=folder / "device-plugins",
        pod_resources=folder / "pod-resources" / "kubelet.sock",
        cdi=args.cdi,
    )

    def offer(book: HealthBook) -> None:
        gpus = [gpu for gpu in book.gpus if not gpu.mig]
        service.server.offer([PluginOffer(gpu.key, not book.why_sick(gpu.key), gpu.numa) for gpu in gpus])

    agent.looked, agent.obstacle, service.changed = offer, lambda: service.obstacle, agent.stirred.set
    task = asyncio.create_task(service.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
