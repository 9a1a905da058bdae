# SPDX-License-Identifier: Apache-2.0
"""Settings of the live scheduler: the users' configuration, and constants that only tests change, such as intervals."""

from dataclasses import dataclass, field

from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration, LeaderElection
from koordpy.devices.family_registry import device_families
from koordpy.pods.pod_ties import spread_keys


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one scheduler process. Times are in seconds."""

    config: KoordpyConfiguration = field(default_factory=KoordpyConfiguration)
    dry_run: bool = False
    """True: plan, count and log, but write nothing."""
    newcomer_seconds: float = 0.1
    """Planning time after which a newly created pod ends the round. Units that are not decided by then are planned in
    the next round, together with the new pod."""
    quiet_seconds: float = 0.004
    """A round starts when no pod was created for this long."""
    max_gather_seconds: float = 0.05
    """A round starts at the latest this long after the first new pod: members of a gang are created one by one."""
    least_light_pods: int = 64
    """Minimum of the limit of light pods in a round, however long the last round took. Light pods are plain pods that
    request no accelerator."""
    first_light_pods: int = 256
    """Maximum number of light pods in a round while no Binding is in flight. Small, so that Bindings start early."""
    most_light_pods: int = 1024
    """Maximum number of light pods in a round that is planned while Bindings are in flight."""
    settle_seconds: float = 2.0
    """How long a write with a lost reply may still take effect. If a read after this time does not show the write,
    it counts as failed. If it takes effect even later, the next write gets a conflict."""
    sweep_seconds: float = 30.0
    """Interval of the sweep that releases resource claims of deleted pods (`claim_releases.py`)."""
    unconfirmed_seconds: float = 30.0
    """An assumed pod that the watch has not confirmed for this long is read by GET (kube-parity.md 4.2)."""
    wobble_hold_seconds: float = 30.0
    """Delay of a status write if its message differs from the last one only in numbers, such as `1/3 nodes` and
    `2/3 nodes` (kube-parity.md 4.5)."""
    not_ready_hold_seconds: float = 5.0
    """Delay of a status write with the reason NotReadyForScheduling: most gangs have all members by then
    (repair.md 1.4)."""
    decision_hold_seconds: float = 1.0
    """Delay of the log line about a decision on a gang that lacks members: more members may be created."""
    nomination_extra_seconds: float = 60.0
    """A nomination lasts this long beyond the longest grace period of the victims (preemption.md 4)."""
    drain_seconds: float = 10.0
    """Time for writes in flight after SIGTERM (kube-parity.md 4.9)."""
    group_status_seconds: float = 1.0
    """Minimum interval between two status writes of one PodGroup or ElasticQuota."""
    rediscovery_seconds: float = 600.0
    """Interval of the discovery of optional resources that the API server did not serve before (`feeds.py`)."""
    event_qps: float = 50.0
    """Events per second of each scheduler name. Low, as in kube-scheduler, because events would slow Bindings down."""
    event_burst: int = 100
    """Events that may be sent at once before `event_qps` limits them."""

    @property
    def election(self) -> LeaderElection | None:
        """Settings of leader election; None without it. `--dry-run` takes no part in it, because it writes nothing."""
        election = self.config.leader_election
        return election if election.leader_elect and not self.dry_run else None


def empty_state(config: KoordpyConfiguration, *, live: bool = False) -> ClusterState:
    """Returns an empty cache for this configuration. live: False for the offline commands, which read manifests."""
    spread = config.filters.pod_topology_spread
    state = ClusterState(
        device_families(config),
        scheduler_names=config.scheduler_names,
        owners=spread.reads_owners,
        quota=config.quota,
        gangs=config.gangs,
        repair=config.repair,
        live=live,
    )
    state.look_for(spread_keys(spread.constraints))
    return state
