# SPDX-License-Identifier: Apache-2.0
"""`koordpy agent`: reports a node's GPUs and their links as the node's Device (gpu-topology.md 9)."""

import argparse
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from koordpy.api.object_names import split_address
from koordpy.cli.number_options import COUNT, figure

FAILED = 1
SECONDS = figure(float, lambda number: 0 < number < float("inf"), "number of seconds above 0")
DELIVERIES = ("foreign", "env", "device-plugin")
PUBLISH_SECONDS = 5.0
"""Seconds that an ending agent spends on writing the last state to the Device."""
FILES_NODE = "node"
"""Default node name for --print with a file, so that the same file gives the same Device on every machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="name of the node (default: $NODE_NAME)")
    parser.add_argument(
        "--backend",
        metavar="SOURCE",
        default="nvml",
        help="nvml (default), fake:FILE (YAML) or topo:FILE (text of nvidia-smi topo -m)",
    )
    parser.add_argument("--print", dest="show", action="store_true", help="print the Device, call no server")
    parser.add_argument("--once", action="store_true", help="report once and exit")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the service account")
    parser.add_argument(
        "--measurements", metavar="FILE", help="YAML matrix of measured bandwidths in GB/s, GPUs in the order of minors"
    )
    parser.add_argument(
        "--gsoc-annotations",
        action="store_true",
        help="also write the links as annotations GSOC_ID_<a>_<b> of the Node",
    )
    parser.add_argument("--delivery", choices=DELIVERIES, default="foreign", help="how containers get their GPUs")
    parser.add_argument("--resource", default="nvidia.com/gpu", help="resource that the device plugin registers")
    parser.add_argument(
        "--kubelet-folder",
        metavar="FOLDER",
        default="/var/lib/kubelet",
        help="folder with the kubelet's device-plugins and pod-resources",
    )
    parser.add_argument(
        "--control-groups", metavar="FOLDER", default="/sys/fs/cgroup", help="mount point of the node's control groups"
    )
    parser.add_argument("--cdi", action="store_true", help="the device plugin also returns CDI device names")
    parser.add_argument(
        "--poll", metavar="SECONDS", type=SECONDS, default=10.0, help="maximum poll interval (default: %(default)s)"
    )
    parser.add_argument(
        "--recover-after",
        metavar="N",
        type=COUNT,
        default=3,
        help="healthy polls required to mark a GPU recovered (default: %(default)s)",
    )
    parser.add_argument("--ignore-xid", metavar="N", type=int, action="append", help="Xid error to ignore (repeatable)")
    parser.add_argument("--bind-address", metavar="HOST:PORT", help="serve /livez and /readyz there (default: off)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    import asyncio
    import os

    from koordpy.agent.agent_loop import NodeAgent
    from koordpy.agent.backends import open_backend
    from koordpy.agent.gpu_facts import BackendError
    from koordpy.agent.gpu_health import APPLICATION_XIDS, HealthBook
    from koordpy.api.field_faults import InputFaultsError
    from koordpy.observe import log_lines

    node = args.node or os.environ.get("NODE_NAME", "")
    if not node and args.show and args.backend != "nvml":
        node = FILES_NODE
    if not node:
        raise InputFaultsError(["--node: is required, because NODE_NAME is not set"])
    if args.bind_address:
        try:
            split_address(args.bind_address)
        except ValueError as fault:
            raise InputFaultsError([f"--bind-address: {fault}"]) from None
    log_lines.configure(level=args.log_level, format=args.log_format)
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
            return _show(agent, gsoc=args.gsoc_annotations)
        return asyncio.run(_serve(agent, args))
    except BackendError as fault:
        raise InputFaultsError([str(fault)]) from None


def _measured(path: str | None, *, strict: bool = True) -> Any:
    """Returns the content of the measurement file; None if no file is given.

    Raises InputFaultsError if the file cannot be read. If `strict` is False, returns "" instead, which the report then
    treats as an invalid matrix.
    """
    from koordpy.api.field_faults import InputFaultsError

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


def _show(agent: Any, *, gsoc: bool) -> int:
    """Prints the Device as YAML. Its conditions are printed as comments, because only the agent writes its status.

    gsoc: True to print the Node with its annotations as a second document.
    """
    import yaml

    from koordpy.agent.device_report import node_annotations

    report = agent.look()
    print(yaml.safe_dump(dict(report.device), sort_keys=False, width=120), end="")
    for condition in report.conditions:
        print(f"# {condition.type}={condition.status} {condition.reason}: {condition.message}".rstrip(": "))
    if gsoc:
        node = node_annotations(agent.node, report.described)
        print("---\n" + yaml.safe_dump(node, sort_keys=False, width=120), end="")
    return 0


async def _serve(agent: Any, args: argparse.Namespace) -> int:
    import asyncio
    import logging
    import signal

    from koordpy.agent.publisher import DevicePublisher
    from koordpy.engine.client.api_client import ApiClient
    from koordpy.engine.client.api_errors import ApiError, Unreachable
    from koordpy.engine.client.credentials import load_access
    from koordpy.engine.client.kubeconfig import CredentialError

    logger = logging.getLogger("koordpy.cli.agent_command")
    try:
        access = await load_access(args.kubeconfig or None)
        async with ApiClient(access) as client, contextlib.AsyncExitStack() as services:
            if agent.delivery == "foreign":
                logger.info("delivery foreign: the kubelet's device plugin may choose other GPUs than the scheduler")
            if args.bind_address:
                await services.enter_async_context(_health(agent, args.bind_address))
            plugin: Any = None
            if agent.delivery == "device-plugin" and not args.once:
                plugin = await services.enter_async_context(_plugin(client, agent, args))
            publisher = DevicePublisher(client, agent.node, gsoc=args.gsoc_annotations)
            task = asyncio.create_task(agent.run(publisher, once=args.once, poll=args.poll))
            leaving: list[asyncio.Task[None]] = []

            def leave() -> None:
                """Ends the agent. After the first signal the plugin still serves bound pods; a second signal ends it at
                once."""
                if plugin is None or leaving:
                    task.cancel()
                else:
                    leaving.append(asyncio.create_task(_leave(agent, plugin, task)))

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, leave)
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for one in leaving:
                one.cancel()
    except (CredentialError, ApiError, Unreachable, OSError) as fault:
        logger.error("%s", fault)
        return FAILED
    return 0


async def _leave(agent: Any, plugin: Any, task: Any) -> None:
    """Ends the agent once the Device says that the plugin is ending, and all bound pods have been admitted."""
    import asyncio

    plugin.retire()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(agent.wait_until_reported(plugin.obstacle), PUBLISH_SECONDS)
    await plugin.drain()
    task.cancel()


@contextlib.asynccontextmanager
async def _health(agent: Any, address: str) -> AsyncIterator[None]:
    """Serves /livez and /readyz. Raises OSError if the address cannot be used.

    The agent is ready if the Device is written and, with a device plugin, if the kubelet has registered the plugin.
    """
    from koordpy.observe.health_endpoints import HealthServer

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
async def _plugin(client: Any, agent: Any, args: argparse.Namespace) -> AsyncIterator[Any]:
    """Runs the device plugin beside the agent. The plugin offers the GPUs that the agent reports."""
    import asyncio
    from pathlib import Path

    from koordpy.agent.gpu_health import HealthBook
    from koordpy.agent.plugin.control_groups import ControlGroups
    from koordpy.agent.plugin.node_pods import NodePods
    from koordpy.agent.plugin.orphans import Orphans
    from koordpy.agent.plugin.plugin_server import PluginOffer
    from koordpy.agent.plugin.plugin_service import PluginService

    folder = Path(args.kubelet_folder)
    pods = NodePods(client, agent.node, resource=args.resource, gpus=lambda: agent.book.gpus)
    service = PluginService(
        pods.read,
        pods.write,
        resource=args.resource,
        folder=folder / "device-plugins",
        pod_resources=folder / "pod-resources" / "kubelet.sock",
        orphans=Orphans(ControlGroups(Path(args.control_groups)).has_processes),
        cdi=args.cdi,
        confirm=pods.confirm,
    )

    def offer(book: HealthBook) -> None:
        gpus = [gpu for gpu in book.gpus if not gpu.mig]
        service.server.offer([PluginOffer(gpu.key, not book.why_sick(gpu.key), gpu.numa) for gpu in gpus])

    agent.looked, agent.obstacle, service.changed = offer, lambda: service.obstacle, agent.look_requested.set
    agent.unavailable = lambda: service.allocator.unavailable
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
