"""A running cluster as the live scheduler sees it when it starts: listed once, page by page, and never written to.

The feeds of the live scheduler take it in, so that what is said of it is said of the same objects, read the same way:
stand-ins of what cannot be read, gangs that follow from workloads, kinds that are not served.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from koordpy.api.config import KoordpyConfiguration
from koordpy.api.configfile import read_config
from koordpy.api.faults import InputFaultsError
from koordpy.api.objects import ConfigMap
from koordpy.cluster.state import ClusterState
from koordpy.engine.apiserver.client import ApiClient, ApiError, Unreachable
from koordpy.engine.apiserver.credentials import load_access
from koordpy.engine.apiserver.kubeconfig import CredentialError
from koordpy.engine.apiserver.resources import PODS
from koordpy.engine.queue import UnitQueue
from koordpy.engine.settings import empty_state
from koordpy.engine.watching.feeds import Feeds

FAILED_TO_READ = "the cluster cannot be read"
OF_CHART = {"labelSelector": "app.kubernetes.io/name=koordpy"}
CONFIGURATION = "config.yaml"
"""Where the ConfigMap of a release has its configuration."""


class ClusterUnreadableError(Exception):
    """The cluster could not be read: no access, no answer, or a refusal. One line."""


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """What was read, and when."""

    state: ClusterState
    config: KoordpyConfiguration
    now: float
    """Seconds since the epoch at which reading began: nothing in it is older."""
    began: float
    """The same of a clock that never goes back."""
    version: str
    """resourceVersion of the list of pods."""
    server: str
    namespace: str
    """The context's."""
    configuration: str
    """Where the configuration comes from."""
    notes: list[str]
    """What had to be gone on without."""

    @property
    def age(self) -> float:
        """Seconds since it was read."""
        return time.monotonic() - self.began


def read_cluster(
    kubeconfig: str | None, *, context: str | None = None, config: KoordpyConfiguration | None = None
) -> ReadCluster:
    """Everything that the planner looks at of a cluster.

    kubeconfig: None for $KUBECONFIG, the service account, ~/.kube/config. config: None for that of the one release of
    the chart in the cluster, else the defaults. Raises ClusterUnreadableError.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what could not be read is said once, as notes
    try:
        return asyncio.run(_read(kubeconfig, context, config))
    except (ApiError, Unreachable, CredentialError) as fault:
        raise ClusterUnreadableError(f"{FAILED_TO_READ}: {' '.join(str(fault).split())}") from None
    finally:
        logging.disable(before)


async def _read(kubeconfig: str | None, context: str | None, config: KoordpyConfiguration | None) -> ReadCluster:
    access = await load_access(kubeconfig, context)
    notes: list[str] = []
    async with ApiClient(access, qps=0) as client:
        source = "as given"
        if config is None:
            config, source = await _installed(client, notes)
        state = empty_state(config)
        owners, workloads = config.filters.pod_topology_spread.reads_owners, config.gangs.watched
        feeds = Feeds(client, state, UnitQueue(), owners=owners, workloads=workloads)
        now, began = time.time(), time.monotonic()
        notes += [f"without {name}: {why}" for name, why in (await feeds.list_once()).items()]
        feeds.regroup(now)
        for one in feeds.unreadable():
            named = "/".join(filter(None, (one.names.namespace, one.names.name)))
            notes.append(f"{one.resource.kind} {named} cannot be read: {one.why}; {one.meaning}")
        version = feeds.version(PODS)
    return ReadCluster(state, config, now, began, version, access.server, access.namespace, source, notes)


async def _installed(client: ApiClient, notes: list[str]) -> tuple[KoordpyConfiguration, str]:
    """(configuration, where it stands) of the one release of the chart; the defaults where there is not one, with a
    note where that may be wrong."""
    default = KoordpyConfiguration(), "defaults"
    assumed = "the default configuration is assumed (--config)"
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
        return read_config(found[0].data[CONFIGURATION].encode(), name=names[0]), f"ConfigMap {names[0]}"
    except InputFaultsError as fault:
        notes.append(f"{assumed}: ConfigMap {fault.lines[0]}")
        return default
