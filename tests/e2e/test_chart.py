# SPDX-License-Identifier: Apache-2.0
"""The Helm chart as helm sees it: linted, rendered for several values, and values that it refuses."""

from __future__ import annotations

import base64
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordpy.api.field_faults import InputFaultsError
from koordpy.config.config_values import GANG_KINDS
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.configuration_file import read_config
from koordpy.workloads.kinds.kind_registry import watched
from release.chart_package import build_chart
from release.checkout import Checkout
from tests.e2e.assets import REPOSITORY
from tests.e2e.chart import CHART, EVERYBODY, Denied, Helm, Release

Values = dict[str, Any]

SPREAD = {"config": {"filters": {"podTopologySpread": {"defaultingType": "System"}}}}


def listed(more: dict[str, Any]) -> dict[str, Any]:
    """Values with one default constraint of spread."""
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **more}
    return {
        "config": {"filters": {"podTopologySpread": {"defaultingType": "List", "defaultConstraints": [constraint]}}}
    }


EVERYTHING: Values = {
    "commonLabels": {"team": "ml"},
    "commonAnnotations": {"contact": "ml@example.com"},
    "agent": {"enabled": True, "delivery": "env"},
    "webhook": {"enabled": True},
    "tenants": {"enabled": True, "renderCertificate": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "flowControl": {"enabled": True},
    "replicaCount": 3,
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
    "rbac": {"watchDefinitions": True},
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "podLabels": {"team": "platform"},
    "podAnnotations": {"note": "x"},
    "serviceAccount": {"annotations": {"note": "x"}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ],
    **SPREAD,
}
ALONE: Values = {"replicaCount": 1, "config": {"leaderElection": {"leaderElect": False}}}
NO_RIGHTS: Values = {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "theirs"}}
SEVERAL: dict[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "one without a lease": ALONE,
    "dry run": {"dryRun": True},
    "rights made elsewhere": NO_RIGHTS,
}


def of_release(config: Values, *, port: int = 10259) -> KoordpyConfiguration:
    """A configuration with what the chart adds to it for release koordpy in namespace scheduling."""
    given = read_config(msgspec.json.encode(config), name="config.json")
    lease = msgspec.structs.replace(given.leader_election, resource_name="koordpy", resource_namespace="scheduling")
    return msgspec.structs.replace(given, bind_address=f":{port}", leader_election=lease)


@pytest.mark.parametrize("name", SEVERAL)
def test_the_chart_is_without_fault_for(name: str, helm: Helm) -> None:
    said = helm.call("lint", "--strict", CHART, values=SEVERAL[name])
    assert "[ERROR]" not in said and "[WARNING]" not in said, said


def test_the_packed_chart_holds_the_definitions(helm: Helm, tmp_path: Path) -> None:
    helm.call("package", CHART, "--destination", tmp_path)
    (packed,) = tmp_path.glob("*.tgz")
    with tarfile.open(packed) as archive:
        definitions = {
            Path(entry.name).name: archive.extractfile(entry).read()  # type: ignore[union-attr]
            for entry in archive.getmembers()
            if entry.name.startswith("koordpy/crds/")
        }
    assert definitions == {file.name: file.read_bytes() for file in (REPOSITORY / "crds").iterdir()}


def test_the_package_of_a_release_is_that_of_helm(helm: Helm, tmp_path: Path) -> None:
    def content(archive: Path) -> dict[str, bytes]:
        with tarfile.open(archive) as tar:
            return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # type: ignore[union-attr]

    helm.call("package", CHART, "--destination", tmp_path / "helm")
    (helms,) = tmp_path.glob("helm/*.tgz")
    (ours,) = build_chart(Checkout(REPOSITORY, "", 0), tmp_path)
    packed, own = content(helms), content(ours)
    # helm writes this file from what it has read, without comments
    read = [yaml.safe_load(files.pop("koordpy/Chart.yaml")) for files in (packed, own)]
    assert read[0] == read[1] and packed == own
    assert helm.call("template", "x", ours) == helm.call("template", "x", CHART)


@pytest.mark.parametrize(
    ("name", "more", "less"),
    [
        ("defaults", {"PodDisruptionBudget", "Role", "ClusterRole"}, {"ServiceMonitor", "NetworkPolicy", "FlowSchema"}),
        ("everything", {"ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget", "FlowSchema"}, set()),
        ("one without a lease", {"ClusterRole"}, {"PodDisruptionBudget", "Role"}),
        ("dry run", {"ClusterRole"}, {"Role"}),
        ("rights made elsewhere", {"Deployment"}, {"ClusterRole", "ClusterRoleBinding", "Role", "ServiceAccount"}),
    ],
)
def test_what_is_rendered_for(name: str, more: set[str], less: set[str], helm: Helm) -> None:
    kinds = helm.render(SEVERAL[name]).kinds()
    assert more <= kinds and not less & kinds
    assert {"Deployment", "ConfigMap", "Service"} <= kinds


def test_the_api_server_serves_the_account_of_the_release_as_it_serves_kube_scheduler(helm: Helm) -> None:
    account = {"create": False, "name": "theirs"}
    rendered = helm.render({"flowControl": {"enabled": True}, "serviceAccount": account})
    schemas = [one["spec"] for one in rendered.objects if one["kind"] == "FlowSchema"]
    who = {"kind": "ServiceAccount", "serviceAccount": {"name": "theirs", "namespace": "scheduling"}}
    assert [spec["rules"][0]["subjects"] for spec in schemas] == [[who], [who]]
    levels = {spec["priorityLevelConfiguration"]["name"]: spec["matchingPrecedence"] for spec in schemas}
    # before those of service accounts, behind those of the cluster's own parts
    assert levels == {"workload-high": 850, "leader-election": 150}


@pytest.mark.parametrize("name", SEVERAL)
def test_no_rule_holds_a_wildcard_a_secret_or_a_write_to_nodes(name: str, helm: Helm) -> None:
    rights = helm.render(SEVERAL[name]).rights()
    assert not [right for right in rights if "*" in "".join(right) or right[1].startswith("secrets")]
    reads = {"get", "list", "watch"}
    assert not [right for right in rights if right[1].split("/")[0] == "nodes" and right[3] not in reads]


def test_a_dry_run_has_the_right_to_read_and_no_other(helm: Helm) -> None:
    reading = helm.render({"dryRun": True}).rights()
    assert {verb for *_, verb in reading} == {"get", "list", "watch"}
    assert reading < helm.render().rights()


@pytest.mark.parametrize(("values", "served"), [({}, False), ({"view": {"enabled": True}}, True)])
def test_the_page_is_served_only_where_the_values_say_so(values: Values, served: bool, helm: Helm) -> None:
    arguments = helm.render(values).pod["containers"][0]["args"]
    assert ("--no-view" not in arguments) == served


def test_owners_are_read_only_where_pods_are_spread_by_them(helm: Helm) -> None:
    # StatefulSets, ReplicaSets and ReplicationControllers are read in any case: gangs follow from them
    owners = {("", "services")}
    for values, read in (
        (SPREAD, owners),
        (listed({}), owners),
        (listed({"labelSelector": {"matchLabels": {"app": "web"}}}), set()),
    ):
        more = helm.render(values).rights() - helm.render().rights()
        assert {(group, resource) for group, resource, _, _ in more} == read


WORKLOADS = {
    "jobs", "statefulsets", "jobsets", "leaderworkersets", "pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs",
    "jaxjobs", "mpijobs", "trainjobs", "rayclusters", "podgangs", "replicasets", "replicationcontrollers",
}  # fmt: skip
ROLLED = {"replicasets", "replicationcontrollers"}


@pytest.mark.parametrize(
    ("gangs", "read"),
    [
        ({}, WORKLOADS),
        ({"auto": "labels"}, set()),
        ({"auto": False}, set()),
        ({"auto": "labels", "namespaces": {"ml": {"auto": "workloads"}}}, WORKLOADS),
        ({"kinds": ["PyTorchJob"]}, {"pytorchjobs", *ROLLED}),
        ({"kinds": []}, set()),
        (
            {"kinds": ["LeaderWorkerSet", "TrainJob"]},
            {"leaderworkersets", "statefulsets", "trainjobs", "jobsets", "jobs", *ROLLED},
        ),
    ],
)
def test_workloads_are_read_as_the_configuration_says(helm: Helm, gangs: dict[str, object], read: set[str]) -> None:
    found = {(resource, verb) for _, resource, _, verb in helm.render({"config": {"gangs": gangs}}).rights()}
    assert {one for one, _ in found} & WORKLOADS == read
    assert {verb for one, verb in found if one in read} == ({"get", "list", "watch"} if read else set())


@pytest.mark.parametrize("kind", GANG_KINDS)
def test_of_each_kind_no_more_and_no_less_is_read_than_is_watched(helm: Helm, kind: str) -> None:
    found = helm.render({"config": {"gangs": {"kinds": [kind]}}}).rights()
    read = {(group, resource) for group, resource, _, _ in found if resource in WORKLOADS}
    assert read == {(one.group, one.plural) for one in watched([kind])}


@pytest.mark.parametrize(
    ("values", "verbs"),
    [
        ({}, {"get", "list", "watch", "patch"}),
        ({"dryRun": True}, {"get", "list", "watch"}),
        ({"config": {"gangs": {"volcano": "take", "auto": "labels"}}}, {"get", "list", "watch", "patch"}),
        ({"config": {"gangs": {"volcano": False}}}, set()),
    ],
)
def test_groups_of_volcano_are_read_and_told_as_the_configuration_says(
    helm: Helm, values: dict[str, object], verbs: set[str]
) -> None:
    found = {(res, verb) for group, res, _, verb in helm.render(values).rights() if group == "scheduling.volcano.sh"}
    assert {verb for _, verb in found} == verbs
    assert {resource for resource, verb in found if verb == "patch"} <= {"podgroups/status"}


def test_the_right_to_the_lease_follows_the_configuration(helm: Helm) -> None:
    lease = {"resourceName": "training", "resourceNamespace": "kube-system"}
    release = helm.render({"config": {"leaderElection": lease}}, release="blue")
    assert release.of("Role")["metadata"]["namespace"] == "kube-system"
    assert release.of("RoleBinding")["metadata"]["namespace"] == "kube-system"
    assert release.of("RoleBinding")["subjects"][0]["namespace"] == "scheduling"
    named = {(name, verb) for _, resource, name, verb in release.rights() if resource == "leases"}
    assert named == {("", "create"), ("training", "get"), ("training", "update")}


def test_two_releases_have_leases_of_their_own(helm: Helm) -> None:
    configurations = [helm.render(release=name).configuration for name in ("blue", "green")]
    leases = [read_config(text.encode(), name="config.yaml").leader_election for text in configurations]
    assert [(lease.resource_namespace, lease.resource_name) for lease in leases] == [
        ("scheduling", "blue-koordpy"),
        ("scheduling", "green-koordpy"),
    ]


def test_two_releases_are_watched_each_by_its_own_lease(helm: Helm) -> None:
    book = {"enabled": True, "runbooks": "https://docs.example.com/alerts.html"}
    found = {}
    for name, more in (("blue", {}), ("green", {}), ("dry", {"dryRun": True})):
        rendered = helm.render({"prometheusRule": book, **more}, release=name).of("PrometheusRule")
        rules = {rule["alert"]: rule for group in rendered["spec"]["groups"] for rule in group["rules"]}
        found[name] = set(re.findall(r'lease="([^"]*)"', rules["KoordpyHasNoLeader"]["expr"]))
        urls = [rule["annotations"]["runbook_url"] for rule in rules.values()]
        assert urls == [f"https://docs.example.com/alerts.html#{alert.lower()}" for alert in rules]
    assert found == {"blue": {"scheduling/blue-koordpy"}, "green": {"scheduling/green-koordpy"}, "dry": {""}}


def test_koordpy_reads_the_rendered_configuration(helm: Helm) -> None:
    given = {
        "schedulerNames": ["a", "b"],
        "clientConnection": {"qps": 1000000, "burst": 2000000},
        "leaderElection": {"leaseDuration": "30s"},
        "solver": {"deterministicTime": 0.25},
        "fairness": {"mode": "off", "weights": {"alice": 2}},
        "scores": {"weights": {"NodeAffinity": 0}},
    }
    rendered = helm.render({"config": given, "port": 12345}).configuration
    assert read_config(rendered.encode(), name="config.yaml") == of_release(given, port=12345)


def test_the_pods_are_hardened_probed_and_given_time_to_drain(helm: Helm) -> None:
    pod = helm.render().pod
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert pod["terminationGracePeriodSeconds"] >= 20
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["affinity"]["podAntiAffinity"]


def test_a_change_of_the_configuration_replaces_the_pods(helm: Helm) -> None:
    def checksum(values: Values) -> str:
        template = helm.render(values).of("Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({"replicaCount": 3}) != checksum({"config": {"queue": {"backfill": True}}})


@pytest.mark.parametrize("webhook", [False, True])
def test_the_network_policy_lets_in_to_the_ports_of_the_replicas_and_is_of_no_other_pods(
    webhook: bool, helm: Helm
) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    tenants = {"enabled": webhook, "renderCertificate": True}
    values = {"networkPolicy": {"enabled": True, "from": peers}, "webhook": {"enabled": webhook}, "port": 10300}
    values["tenants"] = tenants
    release = helm.render({**values, "agent": {"enabled": True}}, "--include-crds=false")
    policy = release.of("NetworkPolicy")["spec"]
    selected = policy["podSelector"]["matchLabels"].items()
    pods = {one["kind"]: one["spec"]["template"] for one in release.objects if "template" in one.get("spec", {})}
    assert set(pods) == {"Deployment", "DaemonSet", "Job"}
    assert {kind for kind, pod in pods.items() if selected <= pod["metadata"]["labels"].items()} == {"Deployment"}
    numbers = {one["name"]: one["containerPort"] for one in release.pod["containers"][0]["ports"]}
    let_in = {numbers[port["port"]]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    assert let_in == {10300: peers, **({9443: None, 9444: None} if webhook else {})}
    args = " ".join(release.pod["containers"][0]["args"])
    assert (":9443" in args) == webhook and "bindAddress: :10300" in release.configuration
    let_out = {(port["port"], port["protocol"]) for rule in policy["egress"] for port in rule["ports"]}
    assert let_out == {(53, "UDP"), (53, "TCP"), (443, "TCP"), (6443, "TCP")}


def test_a_digest_takes_the_place_of_the_tag(helm: Helm) -> None:
    digest = "sha256:" + "a" * 64
    images = [
        helm.render({"image": image}).pod["containers"][0]["image"]
        for image in ({}, {"tag": "edge"}, {"tag": "edge", "digest": digest}, {"registry": "r.example.com/"})
    ]
    default = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    version = REPOSITORY.joinpath("koordpy", "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]
    assert images == [
        f"{default}:{version}", f"{default}:edge", f"{default}@{digest}", f"r.example.com/{default}:{version}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 3}, "replicas"),
        ({"replicaCount": "two"}, "replicaCount"),
        ({"image": {"name": "koordpy"}}, "image"),
        ({"image": {"digest": "sha256:1"}}, "digest"),
        ({"port": 80}, "port"),
        ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds"),
        ({"log": {"level": "trace"}}, "level"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is needed"),
        ({"config": {"leaderElection": {"leaderElect": False}}}, "two would bind the same pods"),
        ({"config": {"bindAddress": ":1"}}, "bindAddress"),
        ({"config": {"clientConnection": {"kubeconfig": "x"}}}, "kubeconfig"),
        ({"image": {"repository": ""}}, "image.repository is required: the name under which the image was pushed"),
        ({"image": {"repository": "a b"}}, "repository"),
        ({"startupProbe": {"exec": {}}}, "startupProbe"),
        ({"extraArgs": "--kube-api-qps=9"}, "extraArgs"),
        ({"resources": {"limits": {"cpu": "abc"}}}, "cpu"),
        ({"agent": {"dnsPolicy": "Mine"}}, "dnsPolicy"),
        ({"commonLabels": {"a/b/c": "x"}}, "a/b/c"),
        ({"podLabels": {"team": "two words"}}, "/podLabels/team"),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "/podLabels/app.kubernetes.io~1name"),
        ({"agent": {"podLabels": {"app.kubernetes.io/instance": "x"}}}, "app.kubernetes.io~1instance"),
        ({"dashboards": {"labels": {"helm.sh/chart": "x"}}}, "helm.sh~1chart"),
        ({"nodeSelector": {"a b": "x"}}, "a b"),
        ({"podAnnotations": {"a b": "x"}}, "a b"),
        ({"networkPolicy": {"egress": []}}, "egress"),
        ({"webhook": {"enabled": True, "renderCertificate": False}}, "every rendering would generate another one"),
        ({"webhook": {"enabled": True, "existingSecret": "a", "certManager": {"enabled": True}}}, "not both"),
        (
            {"agent": {"enabled": True, "delivery": "env"}, "webhook": {"enabled": True, "gpuVariables": False}},
            "needs webhook.enabled and webhook.gpuVariables",
        ),
        ({"webhook": {"enabled": True, "port": 10259}}, "webhook.port: 10259 is already used by"),
        (
            {"tenants": {"enabled": True, "renderCertificate": False}},
            "tenants: without access to the cluster the certificate cannot be reused",
        ),
        (
            {"tenants": {"enabled": True, "existingSecret": "a", "certManager": {"enabled": True}}},
            "tenants: .* not both",
        ),
        ({"tenants": {"enabled": True, "port": 10259}}, "tenants.port: 10259 is already used by"),
        (
            {"tenants": {"enabled": True, "port": 9443}, "webhook": {"enabled": True}},
            "tenants.port: 9443 is already used by webhook.port",
        ),
        ({"tenants": {"groups": [""]}}, "/tenants/groups/0"),
        (
            {"webhook": {"enabled": True}, "config": {"gpu": {"resources": ["nvidia.com/gpu", "cpu"]}}},
            "/config/gpu/resources/1",
        ),
    ],
)
def test_helm_refuses(values: Values, said: str, helm: Helm) -> None:
    with pytest.raises(Denied, match=said):
        helm.render(values)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"schedulerName": "x"}, "schedulerName"),
        ({"schedulerNames": []}, "schedulerNames"),
        ({"schedulerNames": "x"}, "schedulerNames"),
        ({"clientConnection": {"maxBindsInFlight": 65}}, "maxBindsInFlight"),
        ({"leaderElection": {"leaseDuration": "15"}}, "leaseDuration"),
        ({"podMaxBackoff": 10}, "podMaxBackoff"),
        ({"scores": {"weights": {"NodeFit": 1}}}, "NodeFit"),
        ({"scores": {"weights": {"NodeAffinity": -1}}}, "NodeAffinity"),
        ({"scores": {"nodeResourcesFit": {"resources": [{"weight": 1}]}}}, "resources"),
        ({"fairness": {"mode": "fair"}}, "mode"),
        ({"solver": {"deterministicTime": 0}}, "deterministicTime"),
        ({"ascend": {"sharedTorNum": 3}}, "sharedTorNum"),
        ({"schedulerNames": ["a", ""]}, "schedulerNames"),
        ({"gpu": {"linkBandwidth": {"NVLINK": 450}}}, "linkBandwidth"),
        ({"gpu": {"linkBandwidth": {"NV18+PCIe": 450}}}, "linkBandwidth"),
        ({"gpu": {"linkBandwidth": {"PIX": -1}}}, "PIX"),
        ({"filters": {"podTopologySpread": {"defaultConstraints": [{"topologyKey": "zone"}]}}}, "podTopologySpread"),
        ({"scores": {"nodeResourcesFit": {"shape": [{"utilization": 101}]}}}, "utilization"),
    ],
)
def test_what_koordpy_would_refuse_helm_refuses_first(config: Values, said: str, helm: Helm) -> None:
    with pytest.raises(InputFaultsError, match=said):
        read_config(msgspec.json.encode(config), name="config.json")
    with pytest.raises(Denied, match=said):
        helm.render({"config": config})


@pytest.mark.parametrize(
    "config",
    [
        {"fairness": {"mode": False}},
        {"leaderElection": {"leaseDuration": "1m30s", "renewDeadline": "1m"}},
        {"filters": {"nodeAffinity": {"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}},
        {"gpu": {"linkBandwidth": {"NV18": 450, "NV": 25, "SYS": 9.5, "HOSTPIX": 1}}},
        {"scores": {"nodeResourcesFit": {"strategy": "RequestedToCapacityRatio"}}},
        {"scores": {"nodeResourcesFit": {"strategy": "RequestedToCapacityRatio", "shape": [{"utilization": 0}]}}},
        {"scores": msgspec.to_builtins(KoordpyConfiguration().scores)},
    ],
)
def test_what_koordpy_takes_helm_takes(config: Values, helm: Helm) -> None:
    rendered = helm.render({"config": config}).configuration
    assert read_config(rendered.encode(), name="config.yaml") == of_release(config)


@pytest.mark.parametrize(
    ("quota", "differs"),
    [
        ({}, {}),
        ({"monitorAllQuotas": True}, {"monitor_all_quotas": True}),
        ({"namespaces": ["b", "a"]}, {"namespaces": ("b", "a")}),
        ({"trustedNamespaces": ["a"], "labelNamespaces": []}, {"trusted_namespaces": ("a",), "label_namespaces": ()}),
        ({"podLabels": "listed"}, {"pod_labels": "listed"}),
    ],
)
def test_quotas_of_all_namespaces_count_unless_the_values_restrict_them(
    quota: Values, differs: Values, helm: Helm
) -> None:
    found = read_config(helm.render({"config": {"quota": quota}}).configuration.encode(), name="c.yaml").quota
    assert found == msgspec.structs.replace(KoordpyConfiguration().quota, **differs)


@pytest.mark.parametrize("quota", [{}, EVERYBODY])
def test_quotas_that_are_open_to_all_have_no_policy_of_namespaces_and_labels(quota: Values, helm: Helm) -> None:
    release = helm.render({"config": {"quota": quota}})
    names = {one["metadata"]["name"] for one in release.objects if one["kind"] == "ValidatingAdmissionPolicy"}
    assert "koordpy-quotas" in names and "koordpy-quota-labels" not in names
    assert "only honoured in namespace" not in str(release.objects)


def test_a_configuration_that_is_null_is_the_default(helm: Helm) -> None:
    assert read_config(helm.render({"config": None}).configuration.encode(), name="c.yaml") == of_release({})


def test_common_labels_and_annotations_are_on_every_object_and_never_in_a_selector(helm: Helm) -> None:
    release = helm.render(EVERYTHING)
    for one in release.objects:
        meta = one["metadata"]
        assert meta["labels"]["team"] == "ml" and meta["annotations"]["contact"] == "ml@example.com", meta["name"]
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert "team" not in str(one["spec"].get("selector", "")) if isinstance(one.get("spec"), dict) else True
    for kind, component in (("Deployment", None), ("DaemonSet", "agent")):
        template = release.of(kind, component=component)["spec"]["template"]
        assert template["metadata"]["labels"]["team"] == ("platform" if kind == "Deployment" else "ml")


def namespaces(value: Any) -> Iterator[str]:
    """What stands under the key `namespace`, anywhere."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from namespaces(inner)
    if isinstance(value, dict) and isinstance(value.get("namespace"), str):
        yield value["namespace"]


def test_everything_is_in_the_namespace_that_takes_the_place_of_the_releases(helm: Helm) -> None:
    release = helm.render({**EVERYTHING, "namespaceOverride": "elsewhere"})
    assert set(namespaces(release.objects)) == {"elsewhere", "kube-system"}
    assert release.of("ServiceMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["elsewhere"]}
    assert "resourceNamespace: elsewhere" in release.configuration
    text = str(release.objects)
    assert "system:serviceaccount:elsewhere:koordpy" in text and "system:serviceaccount:scheduling" not in text


EXTRAS: Values = {
    "extraArgs": ["--more"],
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "podSecurityContext": {"runAsUser": None, "fsGroup": 7},
    "securityContext": {"readOnlyRootFilesystem": False},
    "hostNetwork": True,
    "podLabels": {"a": "b"},
    "podAnnotations": {"c": "d"},
    "affinity": {"nodeAffinity": {}},
}


@pytest.mark.parametrize(("kind", "component"), [("Deployment", None), ("DaemonSet", "agent")])
def test_the_scheduler_and_the_agent_take_the_same_extras(kind: str, component: str | None, helm: Helm) -> None:
    agent = {"enabled": True, **(EXTRAS if component else {})}
    values = {**({} if component else EXTRAS), "agent": agent, "revisionHistoryLimit": 3}
    workload = helm.render(values).of(kind, component=component)["spec"]
    meta, spec = workload["template"]["metadata"], workload["template"]["spec"]
    (container,) = spec["containers"]
    assert workload["revisionHistoryLimit"] == 3
    assert (meta["labels"]["a"], meta["annotations"]["c"]) == ("b", "d")
    assert container["args"][-1] == "--more" and len(container["args"]) > 3
    assert container["env"][-1] == {"name": "A", "value": "b"}
    assert container["volumeMounts"][-1]["mountPath"] == "/more" and spec["volumes"][-1]["name"] == "more"
    assert spec["securityContext"].get("runAsUser") is None and spec["securityContext"]["fsGroup"] == 7
    assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert spec["affinity"] == {"nodeAffinity": {}}


def hooks(release: Release) -> list[Any]:
    """Configurations of webhooks."""
    return [one for one in release.objects if one["kind"].endswith("WebhookConfiguration")]


def mounted(release: Release) -> str:
    """Name of the Secret that the replicas take their certificate from."""
    (volume,) = (one for one in release.pod["volumes"] if one["name"] == "webhook")
    return str(volume["secret"]["secretName"])


AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("given", [AUTHORITY, base64.b64encode(AUTHORITY.encode()).decode()])
def test_a_certificate_of_a_secret_that_is_there_is_taken_as_it_is(given: str, helm: Helm) -> None:
    values = {"enabled": True, "existingSecret": "theirs", "caBundle": given, "renderCertificate": False}
    release = helm.render({"webhook": values})
    assert mounted(release) == "theirs" and "Secret" not in release.kinds()
    trusted = {hook["clientConfig"]["caBundle"] for one in hooks(release) for hook in one["webhooks"]}
    assert {base64.b64decode(text).decode() for text in trusted} == {AUTHORITY}
    bare = helm.render({"webhook": {**values, "caBundle": ""}})
    assert not any("caBundle" in hook["clientConfig"] for one in hooks(bare) for hook in one["webhooks"])


def test_cert_manager_makes_the_certificate_and_tells_whom_to_trust(helm: Helm) -> None:
    values = {
        "enabled": True,
        "certManager": {"enabled": True},
        "renderCertificate": False,
        "url": "https://10.0.0.1:9443",
    }
    release = helm.render({"webhook": {**values, "annotations": {"more": "x"}}})
    certificate = release.of("Certificate")
    assert mounted(release) == certificate["spec"]["secretName"] == "koordpy-webhook"
    assert certificate["spec"]["dnsNames"] == ["koordpy-webhook.scheduling.svc", "koordpy-webhook.scheduling"]
    assert certificate["spec"]["ipAddresses"] == ["10.0.0.1"]
    assert certificate["spec"]["issuerRef"]["name"] == release.of("Issuer")["metadata"]["name"]
    assert "Secret" not in release.kinds() and len(hooks(release)) == 2
    for one in hooks(release):
        notes = one["metadata"]["annotations"]
        assert notes == {"cert-manager.io/inject-ca-from": "scheduling/koordpy-webhook", "more": "x"}
        assert not any("caBundle" in hook["clientConfig"] for hook in one["webhooks"])
    issuer = {"name": "ours", "kind": "ClusterIssuer"}
    other = helm.render({"webhook": {**values, "certManager": {"enabled": True, "issuerRef": issuer}}})
    assert "Issuer" not in other.kinds() and other.of("Certificate")["spec"]["issuerRef"] == issuer


def test_the_webhook_of_quotas_does_without_that_of_variables(helm: Helm) -> None:
    release = helm.render({"webhook": {"enabled": True, "gpuVariables": False}})
    assert [one["kind"] for one in hooks(release)] == ["ValidatingWebhookConfiguration"]


TENANTS: Values = {"tenants": {"enabled": True, "renderCertificate": True}}


def test_the_api_for_tenants_is_reached_by_a_service_of_its_own_with_a_certificate_that_is_trusted(helm: Helm) -> None:
    release = helm.render(TENANTS)
    api, secret = (release.of(kind, component="tenants") for kind in ("APIService", "Secret"))
    assert api["metadata"]["name"] == f"{api['spec']['version']}.{api['spec']['group']}" == "v1alpha1.view.koordpy.io"
    assert api["spec"]["caBundle"] == secret["data"]["ca.crt"] and "insecureSkipTLSVerify" not in api["spec"]
    service = release.of("Service", component="tenants")
    assert api["spec"]["service"] == {"name": service["metadata"]["name"], "namespace": "scheduling", "port": 443}
    # a replica that is still filling its caches, or that is not ready for another reason, is not asked
    assert "publishNotReadyAddresses" not in service["spec"]
    labels = release.of("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = release.pod["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports[service["spec"]["ports"][0]["targetPort"]] == 9444 and "--tenants-address=:9444" in container["args"]
    (volume,) = (one for one in release.pod["volumes"] if one["name"] == "tenants")
    assert volume["secret"]["secretName"] == secret["metadata"]["name"] == "koordpy-tenants"
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "tenants")
    assert f"--tenants-certificates={mount['mountPath']}" in container["args"] and mount["readOnly"]
    assert "tenants" not in " ".join(helm.render().pod["containers"][0]["args"])


def test_the_api_for_tenants_adds_the_right_to_review_and_to_ask_and_no_other(helm: Helm) -> None:
    more = helm.render(TENANTS).rights() - helm.render().rights()
    questions = {("view.koordpy.io", name, "", "get") for name in ("explanations", "queues", "slots", "pages")}
    assert more == {*questions, ("authorization.k8s.io", "subjectaccessreviews", "", "create")}
    release = helm.render(TENANTS)
    binding = release.of("ClusterRoleBinding", component="tenants")
    assert [one["name"] for one in binding["subjects"]] == ["system:authenticated"]
    role = release.of("ClusterRole", component="tenants")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    reader = release.of("RoleBinding", component="tenants")
    assert reader["metadata"]["namespace"] == "kube-system"
    assert reader["roleRef"]["name"] == "extension-apiserver-authentication-reader"
    nobody = helm.render({"tenants": {**TENANTS["tenants"], "groups": []}})
    kinds = [one["kind"] for one in nobody.objects if one["metadata"]["name"] == "koordpy-tenants"]
    assert "ClusterRole" in kinds and "ClusterRoleBinding" not in kinds


def test_the_api_for_tenants_takes_the_certificate_of_a_secret_or_of_cert_manager(helm: Helm) -> None:
    theirs = helm.render({"tenants": {"enabled": True, "existingSecret": "theirs", "caBundle": AUTHORITY}})
    (volume,) = (one for one in theirs.pod["volumes"] if one["name"] == "tenants")
    assert volume["secret"]["secretName"] == "theirs"
    api = theirs.of("APIService", component="tenants")
    assert base64.b64decode(api["spec"]["caBundle"]).decode() == AUTHORITY
    managed = helm.render({"tenants": {"enabled": True, "certManager": {"enabled": True}}})
    certificate = managed.of("Certificate", component="tenants")
    assert certificate["spec"]["dnsNames"] == ["koordpy-tenants.scheduling.svc", "koordpy-tenants.scheduling"]
    notes = managed.of("APIService", component="tenants")["metadata"]["annotations"]
    assert notes == {"cert-manager.io/inject-ca-from": "scheduling/koordpy-tenants"}
