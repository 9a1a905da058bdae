"""What the live scheduler is told: the configuration's process part, with the constants of the protocol beside it."""

from dataclasses import dataclass, field

from koordpy.api.config import Fairness, Gangs, Gpu, KoordpyConfiguration, Quota, StaleGangs
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME
from koordpy.cluster.state import ClusterState
from koordpy.cluster.ties import spread_keys


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The Lease that one of several replicas holds, times in seconds."""

    namespace: str = "kube-system"
    name: str = "koordpy"
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Times are in seconds."""

    scheduler_names: tuple[str, ...] = (DEFAULT_SCHEDULER_NAME,)
    looked_for: frozenset[str] = frozenset()
    """Label keys that the configuration's selectors look at pods by."""
    reads_owners: bool = False
    """Services and controllers are watched, for default constraints of spread."""
    gpu: Gpu = field(default_factory=Gpu)
    """How GPUs are counted and their links are read."""
    quota: Quota = field(default_factory=Quota)
    gangs: Gangs = field(default_factory=Gangs)
    """How gangs are found that nobody names."""
    fairness: Fairness = field(default_factory=Fairness)
    stale_gangs: StaleGangs = field(default_factory=StaleGangs)
    lease: LeaseSettings | None = field(default_factory=LeaseSettings)
    """None: no leader election; this process is alone."""
    dry_run: bool = False
    """Plans, metrics and logs; writes nothing."""
    initial_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 10.0
    max_unschedulable_seconds: float = 300.0
    max_binds_in_flight: int = 64
    round_seconds: float = 0.5
    """What searches of one round may take, but for the one under way."""
    search_seconds: float = 2.0
    """How long room is kept from those behind a unit that has no answer yet; then it is told that it is looked for."""
    newcomer_seconds: float = 0.1
    """What a round may take before those that came meanwhile, and who is new in it, wait no longer for the others."""
    quiet_seconds: float = 0.004
    """A round starts once no pod came for this long ..."""
    max_gather_seconds: float = 0.05
    """... or this long after the first; a gang's members arrive one after the other."""
    newcomers_first: bool = True
    """Whether who is new goes before those that wait already, beside the room that they could use; with backfill that
    room is known only when all of them were planned."""
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
    volume_bind_seconds: float = 600.0
    """What the claims of a pod or gang may take until they are bound; then it is planned again."""
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


def engine_settings(config: KoordpyConfiguration, *, dry_run: bool = False) -> EngineSettings:
    """The settings in a configuration. A dry run takes part in no election: a Lease would be a write."""
    election = config.leader_election
    lease = LeaseSettings(
        namespace=election.resource_namespace,
        name=election.resource_name,
        lease_seconds=election.lease_duration,
        renew_seconds=election.renew_deadline,
        retry_seconds=election.retry_period,
    )
    return EngineSettings(
        scheduler_names=config.scheduler_names,
        looked_for=spread_keys(config.filters.pod_topology_spread.constraints),
        reads_owners=config.filters.pod_topology_spread.reads_owners,
        gpu=config.gpu,
        quota=config.quota,
        gangs=config.gangs,
        fairness=config.fairness,
        stale_gangs=config.stale_gangs,
        lease=lease if election.leader_elect and not dry_run else None,
        dry_run=dry_run,
        initial_backoff_seconds=config.pod_initial_backoff,
        max_backoff_seconds=config.pod_max_backoff,
        max_unschedulable_seconds=config.pod_max_in_unschedulable,
        round_seconds=config.planning.round_seconds,
        search_seconds=config.planning.search_seconds,
        newcomers_first=not config.queue.backfill,
        max_binds_in_flight=config.client_connection.max_binds_in_flight,
        volume_bind_seconds=config.filters.volume_binding.bind_timeout,
    )


def empty_state(settings: EngineSettings) -> ClusterState:
    """What a scheduler of these settings, live or offline, knows before it has seen anything."""
    state = ClusterState(
        scheduler_names=settings.scheduler_names,
        storage=True,
        devices=True,
        owners=settings.reads_owners,
        gpu=settings.gpu,
        quota=settings.quota,
        gangs=settings.gangs,
    )
    state.look_for(settings.looked_for)
    return state
