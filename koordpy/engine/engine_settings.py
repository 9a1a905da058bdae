"""What the live scheduler is told: the configuration's process part, with the constants of the protocol beside it."""

from dataclasses import dataclass, field

from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration, LeaderElection
from koordpy.devices.family_registry import device_families
from koordpy.pods.pod_ties import spread_keys


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Times are in seconds."""

    config: KoordpyConfiguration = field(default_factory=KoordpyConfiguration)
    dry_run: bool = False
    """Plans, metrics and logs; writes nothing."""
    newcomer_seconds: float = 0.1
    """What a round may take before those that came meanwhile, and who is new in it, wait no longer for the others."""
    quiet_seconds: float = 0.004
    """A round starts once no pod came for this long ..."""
    max_gather_seconds: float = 0.05
    """... or this long after the first; a gang's members arrive one after the other."""
    least_light_pods: int = 64
    """Plain pods of a round at least, however long the last one took ..."""
    first_light_pods: int = 256
    """Plain pods of the first round of a burst, so that Bindings start early ..."""
    most_light_pods: int = 1024
    """... and of later ones, which are planned while those are under way."""
    settle_seconds: float = 2.0
    """A write whose reply was lost may still be carried out for this long; only then what is not there counts as not
    written. Should it be carried out later still, our next write meets a conflict that tells."""
    sweep_seconds: float = 30.0
    """How often resource claims are looked through for reservations of pods that are gone."""
    unconfirmed_seconds: float = 30.0
    """An assumed pod that the watch has not confirmed for so long is read by GET (kube-parity.md 4.2)."""
    wobble_hold_seconds: float = 30.0
    """A condition whose message differs in counts only waits this long (4.5)."""
    gated_hold_seconds: float = 1.0
    """A gang that still waits for members says so after this long: most are complete by then."""
    nomination_extra_seconds: float = 60.0
    """What room is kept for a unit beyond the longest grace period of its victims (preemption.md 4)."""
    drain_seconds: float = 10.0
    """What SIGTERM leaves for the batch in flight (4.9)."""
    group_status_seconds: float = 1.0
    """A PodGroup's status, or an ElasticQuota's, is written at most this often."""
    rediscovery_seconds: float = 600.0
    event_qps: float = 50.0
    event_burst: int = 100
    """Events are best effort: more would take API server time away from Bindings; kube-scheduler sends as many."""

    @property
    def election(self) -> LeaderElection | None:
        """None: no leader election; this process is alone. A dry run takes part in none: a Lease would be a write."""
        election = self.config.leader_election
        return election if election.leader_elect and not self.dry_run else None


def empty_state(config: KoordpyConfiguration, *, live: bool = False) -> ClusterState:
    """What a scheduler of this configuration, live or offline, knows before it has seen anything."""
    spread = config.filters.pod_topology_spread
    state = ClusterState(
        device_families(config),
        scheduler_names=config.scheduler_names,
        owners=spread.reads_owners,
        quota=config.quota,
        gangs=config.gangs,
        live=live,
    )
    state.look_for(spread_keys(spread.constraints))
    return state
