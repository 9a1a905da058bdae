# SPDX-License-Identifier: Apache-2.0
"""The configuration file is read strictly; without it the defaults hold."""

from pathlib import Path

import msgspec
import pytest

from koordpy.api.field_faults import InputFaultsError
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.configuration_file import dangers, load_config, plain, read_config


def read(text: str) -> KoordpyConfiguration:
    return read_config(text.encode(), name="c.yaml")


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "{}", "apiVersion: koordpy.io/v1alpha1\nkind: KoordpyConfiguration\n"]
)
def test_what_is_left_out_has_its_default(text: str) -> None:
    assert read(text) == KoordpyConfiguration()


def test_the_defaults_are_those_of_the_specification() -> None:
    config = KoordpyConfiguration()
    assert config.scheduler_names == ("koord-scheduler",)
    connection = config.client_connection
    assert (connection.qps, connection.burst, connection.max_binds_in_flight) == (200, 400, 64)
    lease = config.leader_election
    assert (lease.lease_duration, lease.renew_deadline, lease.retry_period) == (15, 10, 2)
    assert (config.pod_initial_backoff, config.pod_max_backoff, config.pod_max_in_unschedulable) == (1, 10, 300)
    assert (config.solver.deterministic_time, config.solver.wall_time_watchdog) == (2, 10)
    assert (config.fairness.mode, config.fairness.reclaim, config.fairness.starvation_after) == (
        "gpu-count",
        "quotas",
        3600,
    )
    assert (config.preemption.across_quotas, config.stale_gangs.grace) == ("overMin", 60)
    assert config.preemption.across_users == "overShare"
    assert (config.preemption.surplus_victims, config.quota.no_quota_yields) == ("pods", "lowerPriority")
    harm = config.protection.max_harm
    assert (harm.priority, harm.quota, harm.fair_share, harm.consolidation) == (None, None, None, 1)
    assert config.scores.weight("TaintToleration") == 3
    assert config.scores.weight("NodeResourcesBalancedAllocation") == 0


def test_what_is_given_counts() -> None:
    config = read(
        "schedulerNames: [a, b]\nclientConnection: {qps: 0}\nstaleGangs: {grace: 1h30m}\n"
        "fairness: {mode: exact, weights: {alice: 2, bob: 0.5}, starvationAfter: 0s}\n"
        "scores: {weights: {NodeAffinity: 0}, nodeResourcesFit: {strategy: LeastAllocated, resources: [{name: cpu}]}}\n"
    )
    assert config.scheduler_names == ("a", "b")
    assert config.client_connection.qps == 0
    assert config.stale_gangs.grace == 5400
    assert config.fairness.weights == {"alice": 2, "bob": 0.5}
    assert config.fairness.starvation_after == 0
    assert config.scores.weight("NodeAffinity") == 0
    assert config.scores.node_resources_fit.resources[0].weight == 1


@pytest.mark.parametrize("word", ["off", "'off'", "false", "no"])
def test_a_bare_off_is_read_as_off(word: str) -> None:
    config = read(f"fairness: {{mode: {word}, reclaim: {word}}}")
    assert (config.fairness.mode, config.fairness.reclaim) == ("off", "off")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("kind: Pod", ["kind: must be KoordpyConfiguration, not 'Pod'"]),
        ("apiVersion: v1", ["apiVersion: must be koordpy.io/v1alpha1, not 'v1'"]),
        ("nonsense: 1", ["nonsense: unknown field"]),
        (
            "filters: {nodeResourcesFit: {ignoredResources: [1], x: 2}}",
            [
                "filters.nodeResourcesFit.ignoredResources[0]: must be a string, not the number 1",
                "filters.nodeResourcesFit.x: unknown",
            ],
        ),
        (
            "preemption: {acrossUsers: overMin}",
            ["preemption.acrossUsers: must be one of any, never, overShare, not 'overMin'"],
        ),
        (
            "{preemption: {acrossUsers: any}, fairness: {reclaim: all}}",
            ["preemption.acrossUsers: any cannot be combined with fairness.reclaim: all"],
        ),
        ("fairness: {mode: best}", ["fairness.mode: must be one of exact, gpu-count, kai, off, not 'best'"]),
        ("fairness: {mode: true}", ["fairness.mode: must be one of "]),
        ("gpu: {parts: {aliases: [hami, hammi]}}", ["gpu.parts.aliases[1]: must be one of "]),
        (
            "gpu: {parts: {byNumber: [not a name!]}}",
            ["gpu.parts.byNumber[0]: 'not a name!' is not a valid name of a resource"],
        ),
        ("gpu: {parts: {policy: pack}}", ["gpu.parts.policy: unknown field"]),
        ("gpu: {delivery: dra}", ["gpu.delivery: must be one of device-plugin, env, foreign, not 'dra'"]),
        ("gpu: {linkBandwidth: {PIX: 1, FOO: 2}}", ["gpu.linkBandwidth.FOO: 'FOO' is not a valid link class"]),
        ("podInitialBackoff: 1 s", ["podInitialBackoff: '1 s' is no duration"]),
        ("podInitialBackoff: 1", ["podInitialBackoff: must be a duration (as in 30s, 1h30m), not the number 1"]),
        ("podInitialBackoff: -1s", ["podInitialBackoff: '-1s' is negative"]),
        ("podInitialBackoff: 20s", ["podMaxBackoff: must not be shorter"]),
        (
            "scores: {weights: {NodeAffinity: -1, Foo: 2}}",
            ["scores.weights.NodeAffinity: -1 is less", "scores.weights.Foo"],
        ),
        (
            "scores: {nodeResourcesFit: {resources: [{weight: 1}]}}",
            ["scores.nodeResourcesFit.resources[0].name: is missing"],
        ),
        ("solver: {deterministicTime: 0}", ["solver.deterministicTime: 0 is not above 0"]),
        ("solver: {deterministicTime: .inf}", ["solver.deterministicTime: .inf is out of range"]),
        ("clientConnection: {maxBindsInFlight: 65}", ["clientConnection.maxBindsInFlight: 65 is more than 64"]),
        (
            "ascend: {nslbVersion: '3.0', sharedTorNum: 3}",
            [
                "ascend.nslbVersion: must be one of 1.0, 2.0, not '3.0'",
                "ascend.sharedTorNum: must be one of 1, 2, not 3",
            ],
        ),
        ("ascend: {superPodOrder: code}", ["ascend.superPodOrder: must be seed, not 'code'"]),
        ("leaderElection: {leaseDuration: 5s}", ["leaderElection.leaseDuration: must be longer"]),
        ("schedulerNames: []", ["schedulerNames: an empty list"]),
        ("schedulerNames: koord-scheduler", ["schedulerNames: must be a list, not the string 'koord-scheduler'"]),
        ("preemption: [enabled]", ["preemption: must be a mapping, not a list"]),
        ("- a", ["must be a mapping, not a list"]),
        ("queue: {backfill: 'true'}", ["queue.backfill: must be true or false, not the string 'true'"]),
        (
            "gangs: {auto: label, kinds: [Jobs],"
            " defaults: {gather: [{layer: a, strategy: preferGather}, {strategy: MustGather}]}}",
            [
                "gangs.auto: must be one of labels, off, workloads, not 'label'",
                "gangs.kinds[0]: must be one of JAXJob, Job, JobSet, LeaderWorkerSet, MPIJob, PaddleJob,"
                " PodGang, PyTorchJob, RayCluster, StatefulSet, TFJob, TrainJob, XGBoostJob, not 'Jobs'",
                "gangs.defaults.gather[0].strategy: must be one of MustGather, PreferGather, not 'preferGather'",
                "gangs.defaults.gather[1].layer: is missing",
            ],
        ),
        (
            "gangs: {namespaces: {a: {gather: [{layer: b, strategy: MustGather, podCountMultiple: -1, sope: gang}]}}}",
            [
                "gangs.namespaces.a.gather[0].podCountMultiple: -1 is less than 0",
                "gangs.namespaces.a.gather[0].sope: unknown field",
            ],
        ),
        (
            "gangs: {defaults: {gather: [{layer: a, strategy: PreferGather, scope: gang},"
            " {layer: a, strategy: MustGather, scope: pod}]}}",
            [
                "gangs.defaults.gather[1].scope: must be one of gang, group, replica, not 'pod'",
                'gangs.defaults.gather[0].scope: "gang" needs MustGather',
            ],
        ),
        (
            "gangs: {namespaces: {a: {gather: [{layer: b, strategy: PreferGather, scope: replica}]}}}",
            ['gangs.namespaces.a.gather[0].scope: "replica" needs MustGather'],
        ),
        # what fields say together is told beside the faults of others, and not of fields that are at fault themselves
        (
            "queu: {}\nleaderElection: {leaseDuration: 5s}\npodInitialBackoff: 20s\nschedulerNames: [a, a]",
            [
                "queu: unknown field, did you mean queue?",
                "schedulerNames[1]: 'a' is given twice",
                "leaderElection.leaseDuration: must be longer",
                "podMaxBackoff: must not be shorter",
            ],
        ),
        ("leaderElection: {leaseDuration: 1 h, renewDeadline: 20s}", ["leaderElection.leaseDuration: '1 h' is no dur"]),
        ("leaderElection: {leaseDurations: 1h, renewDeadline: 20s}", ["leaderElection.leaseDurations: unknown field"]),
        (
            "leaderElection: []\npodInitialBackoff: 20s",
            ["leaderElection: must be a mapping, not a list", "podMaxBackoff: must not"],
        ),
        ("schedulerNames: [a, 1, a]", ["schedulerNames[1]: must be a string, not the number 1"]),
        ("a: 1\na: 2", ["line 2, column 1: the key 'a' is given twice"]),
        ("queue: {}\n---\nqueue: {}", ["expected one document, got 2"]),
    ],
)
def test_every_fault_is_listed_with_file_and_path(text: str, faults: list[str]) -> None:
    with pytest.raises(InputFaultsError) as caught:
        read(text)
    assert len(caught.value.lines) == len(faults)
    for line, start in zip(caught.value.lines, faults, strict=True):
        assert line.startswith(f"c.yaml: {start}")


AFFINITY = "filters: {nodeAffinity: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: %s}}}"
AT = "filters.nodeAffinity.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
SPREAD = "filters: {podTopologySpread: {defaultingType: List, defaultConstraints: [%s]}}"
CONSTRAINT = "filters.podTopologySpread.defaultConstraints[0]"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("bindAddress: localhost", ["bindAddress: 'localhost' is not a valid listen address"]),
        ("bindAddress: ':99999'", ["bindAddress: ':99999' is not a valid listen address"]),
        ("bindAddress: ''", ["bindAddress: '' is not a valid listen address"]),
        ("bindAddress: http://here:80", ["bindAddress: 'http://here:80' is not a valid listen address"]),
        ("clientConnection: {qps: -1}", ["clientConnection.qps: -1 is less than 0"]),
        ("dra: {searchLimit: 0}", ["dra.searchLimit: must be at least 1, not 0"]),
        (
            "leaderElection: {resourceName: Bad_Name}",
            ["leaderElection.resourceName: 'Bad_Name' is not a valid name of an"],
        ),
        (
            "leaderElection: {resourceNamespace: ''}",
            ["leaderElection.resourceNamespace: '' is not a valid name of a names"],
        ),
        (
            "leaderElection: {leaseDuration: 10s, renewDeadline: 10s}",
            ["leaderElection.leaseDuration: must be longer than renewDeadline"],
        ),
        (
            "leaderElection: {renewDeadline: 2300ms, retryPeriod: 2s}",
            ["leaderElection.renewDeadline: must be longer than 1.2 times retryPeriod"],
        ),
        ("leaderElection: {retryPeriod: 0s}", ["leaderElection.retryPeriod: '0s' is not longer than 0s"]),
        (
            "gangs: {defaults: {gather: [{layer: '', strategy: MustGather}]}, namespaces: {Bad_Name: {}}}",
            [
                "gangs.defaults.gather[0].layer: '' is not a valid name of a layer",
                "gangs.namespaces.Bad_Name: 'Bad_Name' is not a valid name of a names",
            ],
        ),
        (
            "schedulerNames: [Bad Name!, ok]",
            ["schedulerNames[0]: 'Bad Name!' is not a valid name of a scheduler"],
        ),
        ("schedulerNames: [a, b, a]", ["schedulerNames[2]: 'a' is given twice"]),
        ("schedulerNames: ['']", ["schedulerNames[0]: '' is not a valid name"]),
        (
            "gpu: {resources: [not a resource!!, gpu]}",
            [
                "gpu.resources[0]: 'not a resource!!' is not a valid name of an extended resource",
                "gpu.resources[1]: 'gpu' is not a valid",
            ],
        ),
        (
            "filters: {nodeResourcesFit: {ignoredResources: [a b], ignoredResourceGroups: [a.b/c]}}",
            ["filters.nodeResourcesFit.ignoredResources[0]", "filters.nodeResourcesFit.ignoredResourceGroups[0]"],
        ),
        (
            "solver: {deterministicTime: 1e9, wallTimeWatchdog: 0s}",
            ["solver.deterministicTime: 1000000000.0 is more than 600", "solver.wallTimeWatchdog: '0s' is not longer"],
        ),
        ("preemption: {timeLimit: 601}", ["preemption.timeLimit: 601 is more than 600"]),
        ("podInitialBackoff: 0s", ["podInitialBackoff: '0s' is not longer"]),
        ("podMaxInUnschedulable: 0s", ["podMaxInUnschedulable: '0s' is not longer"]),
        (
            AFFINITY % "{nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Inn, values: [a]}]}]}",
            [f"{AT}[0].matchExpressions[0].operator: 'Inn' is none of In"],
        ),
        (
            AFFINITY % "{nodeSelectorTerms: [{matchExpressions: [{operator: In}]}, {}]}",
            [
                f"{AT}[0].matchExpressions[0].key: is missing",
                f"{AT}[0].matchExpressions[0].values: In",
                f"{AT}[1]: an empty",
            ],
        ),
        (
            AFFINITY % "{nodeSelectorTerms: [{matchExpressions: [{key: n, operator: Gt, values: [many]}]}]}",
            [f"{AT}[0].matchExpressions[0].values: Gt takes one whole number"],
        ),
        (AFFINITY % "{}", [f"{AT}: is missing"]),
        (
            SPREAD % "{maxSkew: 0, topologyKey: zone, whenUnsatisfiable: Maybe}",
            [f"{CONSTRAINT}.maxSkew: 0 is less than 1", f"{CONSTRAINT}.whenUnsatisfiable: 'Maybe' is none of"],
        ),
        (SPREAD % "{maxSkew: 2}", [f"{CONSTRAINT}.topologyKey: is missing"]),
    ],
)
def test_what_the_process_or_the_api_would_refuse_later_is_refused(text: str, faults: list[str]) -> None:
    test_every_fault_is_listed_with_file_and_path(text, faults)


FULL = """
schedulerNames: [a, b.example.com/c]
clientConnection: {kubeconfig: here, qps: 12.5, burst: 1, maxBindsInFlight: 8}
leaderElection: {leaderElect: false, resourceName: a.b, leaseDuration: 1h30m, renewDeadline: 2.5s, retryPeriod: 1ms}
bindAddress: '[::1]:80'
podInitialBackoff: 1ns
podMaxBackoff: 277h46m40.125s
filters:
  nodeAffinity:
    addedAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]
  nodeResourcesFit: {ignoredResources: [a.b/c], ignoredResourceGroups: [d.e]}
  podTopologySpread:
    defaultingType: List
    defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]
  volumeBinding: {bindTimeout: 0s}
scores:
  weights: {NodeAffinity: 7}
  nodeResourcesFit: {strategy: RequestedToCapacityRatio, shape: [{utilization: 0, score: 10}, {utilization: 100}]}
solver: {deterministicTime: 0.25, wallTimeWatchdog: 100ms}
fairness: {mode: off, reclaim: off, weights: {alice: 2.5}, starvationAfter: 0s}
gpu: {linkBandwidth: {NV18: 450, NV: 25.5}, resources: [example.com/gpu]}
"""


@pytest.mark.parametrize("text", ["", FULL])
def test_what_is_written_is_read_as_the_same(text: str) -> None:
    config = read(text)
    assert read_config(msgspec.json.encode(plain(config)), name="configz.json") == config


def test_the_name_that_every_pod_has_is_a_danger_and_no_fault() -> None:
    assert dangers(read("")) == []
    assert dangers(read("quota: {namespaces: [a, b], trustedNamespaces: [b]}")) == []
    (told,) = dangers(read("quota: {namespaces: [a], trustedNamespaces: [b]}"))
    assert told.startswith("quota.trustedNamespaces: none of them is in quota.namespaces")
    (told,) = dangers(read("schedulerNames: [a, default-scheduler]"))
    assert told.startswith("schedulerNames: kube-scheduler also serves default-scheduler")


def test_a_resource_that_can_not_be_ignored_is_told_and_no_fault() -> None:
    (told,) = dangers(read("filters: {nodeResourcesFit: {ignoredResources: [hugepages-2Mi, example.com/a]}}"))
    assert told == (
        "filters.nodeResourcesFit.ignoredResources: hugepages-2Mi is not an extended resource: "
        "the filter checks it anyway"
    )


def test_a_strategy_by_ratio_has_a_shape_of_its_own() -> None:
    score = read("scores: {nodeResourcesFit: {strategy: RequestedToCapacityRatio}}").scores.node_resources_fit
    assert (score.strategy, score.shape) == ("RequestedToCapacityRatio", ())


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(InputFaultsError, match=r"none\.yaml: cannot be read"):
        load_config(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("size", [0, -1, 1])
def test_a_superpod_size_below_one_is_read_for_the_jobs_to_be_told(size: int) -> None:
    """ascend.md 5: it makes jobs illegal, not the file."""
    found = read_config(f"ascend: {{superPodSize: {size}}}".encode(), name="c.yaml")
    assert found.ascend.super_pod_size == size


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("protection: {maxHarm: {consolidation: -1}}", "protection.maxHarm.consolidation: -1 is less than 0"),
        ("protection: {maxHarm: {priority: -0.5}}", "protection.maxHarm.priority: -0.5 is less than 0"),
        (
            "protection: {maxHarm: {fairShare: '1'}}",
            "protection.maxHarm.fairShare: must be a number, not the string '1'",
        ),
        ("protection: {maxHarm: {quota: .inf}}", "protection.maxHarm.quota: .inf is out of range"),
        ("protection: {maxHarm: {staleGang: 1}}", "protection.maxHarm.staleGang: unknown field"),
        ("protection: {minRuntime: {priority: 1h}}", "protection.minRuntime: unknown field"),
        (
            "preemption: {surplusVictims: gangs}",
            "preemption.surplusVictims: must be one of any, pods, not 'gangs'",
        ),
        (
            "quota: {noQuotaYields: sometimes}",
            "quota.noQuotaYields: must be one of always, lowerPriority, never, not 'sometimes'",
        ),
    ],
)
def test_limits_on_a_plan_are_read_strictly(text: str, fault: str) -> None:
    with pytest.raises(InputFaultsError) as raised:
        read(text)
    assert fault in str(raised.value)


def test_a_limit_may_be_null_and_is_a_number_otherwise() -> None:
    harm = read("protection: {maxHarm: {consolidation: null, priority: 0, quota: 1.5}}").protection.max_harm
    assert (harm.priority, harm.quota, harm.fair_share, harm.consolidation) == (0, 1.5, None, None)
