# SPDX-License-Identifier: Apache-2.0
"""Reads a running cluster as the live scheduler does at its start: every kind is listed once, page by page.

The live scheduler's feeds (list and watch of each kind) decode the objects. So unreadable objects, gangs derived from
workloads, and kinds that the cluster does not serve are treated as the scheduler treats them. Must not write to the
cluster.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from koordpy.api.field_faults import InputFaultsError
from koordpy.api.objects import ConfigMap, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.cli.offline_inputs import ClusterUnreadableError
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.configuration_file import Flag, load_config, read_config
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import PODS, Resource
from koordpy.engine.client.credentials import load_access
from koordpy.engine.client.kubeconfig import CredentialError
from koordpy.engine.engine_settings import empty_state
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.watching.feeds import Feeds
from koordpy.quota.quota_owners import uncounted

FAILED_TO_READ = "the cluster cannot be read"
OF_CHART = {"labelSelector": "app.kubernetes.io/name=koordpy"}
CONFIGURATION = "config.yaml"
"""Key of the configuration in the ConfigMap of a release of the chart."""


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """A cluster, as it was read by one list of each kind."""

    state: ClusterState
    config: KoordpyConfiguration
    now: float
    """Time at which reading began, in seconds since the epoch. Every object was read later."""
    began: float
    """Time at which reading began, on the monotonic clock, in seconds."""
    version: str
    """resourceVersion of the list of pods."""
    server: str
    namespace: str
    """Default namespace of the kubeconfig context."""
    configuration: str
    """Source of the configuration: a file, a ConfigMap or the defaults."""
    notes: list[str]
    """Warnings: kinds and objects that could not be read, and quotas that are ignored."""
    objects: tuple[tuple[Resource, Wire], ...] = ()
    """Every object that was read, as the scheduler decodes it."""

    @property
    def age(self) -> float:
        """Seconds since reading began."""
        return time.monotonic() - self.began


def read_cluster(
    kubeconfig: str | None,
    *,
    context: str | None = None,
    config: KoordpyConfiguration | None = None,
    configuration: str = "as given",
    flags: Sequence[Flag] = (),
) -> ReadCluster:
    """Reads every object of a cluster that the planner uses.

    kubeconfig: path; None for $KUBECONFIG, else the service account, else ~/.kube/config. config: the configuration;
    None for that of the chart's release in the cluster (or the defaults if there is not exactly one release); `flags`
    override both. configuration: source of `config`, for messages. Raises ClusterUnreadableError, and InputFaultsError
    for faults of the flags.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # notes report what could not be read, once
    try:
        return asyncio.run(_read(kubeconfig, context, config, configuration, flags))
    except (ApiError, Unreachable, CredentialError) as fault:
        text = f"{FAILED_TO_READ}: {' '.join(str(fault).split())}"
        is_forbidden = isinstance(fault, ApiError) and fault.status == 403
        raise ClusterUnreadableError(text, is_forbidden=is_forbidden) from None
    finally:
        logging.disable(before)


async def _read(
    kubeconfig: str | None,
    context: str | None,
    config: KoordpyConfiguration | None,
    source: str,
    flags: Sequence[Flag],
) -> ReadCluster:
    access = await load_access(kubeconfig, context)
    notes: list[str] = []
    async with ApiClient(access, qps=0) as client:
        if config is None:
            config, source = await installed(client, notes, flags)
        state = empty_state(config)
        owners, workloads = config.filters.pod_topology_spread.reads_owners, config.gangs.watched
        feeds = Feeds(client, state, UnitQueue(), owners=owners, workloads=workloads)
        now, began = time.time(), time.monotonic()
        notes += [f"without {name}: {why}" for name, why in (await feeds.list_once()).items()]
        feeds.regroup(now)
        for one in feeds.unreadable():
            named = "/".join(filter(None, (one.names.namespace, one.names.name)))
            notes.append(f"{one.resource.kind} {named} cannot be read: {one.why}; {one.meaning}")
        version, objects = feeds.version(PODS), tuple(feeds.everything())
    if text := uncounted(state.quotas.objects.values(), config.quota):
        notes.append(text)
    return ReadCluster(state, config, now, began, version, access.server, access.namespace, source, notes, objects)


async def installed(client: ApiClient, notes: list[str], flags: Sequence[Flag]) -> tuple[KoordpyConfiguration, str]:
    """Returns (configuration, its source) of the chart's release in the cluster.

    Returns the defaults if there is not exactly one release with a valid configuration that the user may read. If
    another configuration may be in use then, a note is appended to `notes`.
    """
    default = load_config(None, flags=flags), "defaults"
    assumed = "the default configuration is assumed (use --config to name another)"
    try:
        page = await client.list_page("/api/v1/configmaps", type=ConfigMap, params=OF_CHART)
    except ApiError as fault:
        if fault.status != 403:
            raise
        notes.append(f"{assumed}: {fault.message}")
        return default
    found = [one for one in page.items or () if CONFIGURATION in one.data]
    names = [f"{one.metadata.namespace}/{one.metadata.name}" for one in found]
    if len(found) > 1:
        notes.append(f"{assumed}: there are several releases, {', '.join(names)}")
    if len(found) != 1:
        return default
    try:
        text = found[0].data[CONFIGURATION].encode()
        return read_config(text, name=names[0], flags=flags), f"ConfigMap {names[0]}"
    except InputFaultsError as fault:
        notes.append(f"{assumed}: ConfigMap {fault.lines[0]}")
        return default
