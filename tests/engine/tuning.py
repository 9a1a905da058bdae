# SPDX-License-Identifier: Apache-2.0
"""Settings of a scheduler for tests: by one name each, whether the configuration says them or the protocol."""

from dataclasses import replace
from typing import Any

from msgspec import structs

from koordpy.config.configuration import LeaderElection
from koordpy.engine.engine_settings import EngineSettings

CONFIGURED: dict[str, tuple[str, ...]] = {
    "initial_backoff_seconds": ("pod_initial_backoff",),
    "max_backoff_seconds": ("pod_max_backoff",),
    "max_binds_in_flight": ("client_connection", "max_binds_in_flight"),
    "volume_bind_seconds": ("filters", "volume_binding", "bind_timeout"),
    "round_seconds": ("planning", "round_seconds"),
    "search_seconds": ("planning", "search_seconds"),
    "gangs": ("gangs",),
    "quota": ("quota",),
    "dra": ("dra",),
    "stale_gangs": ("stale_gangs",),
    "autoscaling": ("autoscaling",),
    "repair": ("repair",),
    "lease": ("leader_election",),
    "consolidation": ("consolidation",),
    "constraints": ("filters", "pod_topology_spread"),
}
"""Name -> where it stands in the configuration."""
NO_LEASE = LeaderElection(leader_elect=False)
QUICK_LEASE = LeaderElection(lease_duration=1.5, renew_deadline=1.0, retry_period=0.1)
"""Soon lost: for tests of that, and for virtual time."""
LONG_LEASE = LeaderElection(lease_duration=60.0, renew_deadline=40.0, retry_period=0.5)
"""Not lost by a machine that stands still for a second."""


def tuned(settings: EngineSettings, **changes: Any) -> EngineSettings:
    """The settings with other values."""
    config: Any = settings.config
    for name in changes.keys() & CONFIGURED.keys():
        config = _replaced(config, CONFIGURED[name], changes.pop(name))
    return replace(settings, config=config, **changes)


def _replaced(section: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    return structs.replace(section, **{name: _replaced(getattr(section, name), tuple(rest), value) if rest else value})


QUICK = tuned(
    EngineSettings(),
    lease=NO_LEASE,
    initial_backoff_seconds=0.05,
    max_backoff_seconds=0.2,
    not_ready_hold_seconds=0.1,
    decision_hold_seconds=0.1,
    group_status_seconds=0.1,
    unconfirmed_seconds=0.4,
    drain_seconds=2.0,
)
