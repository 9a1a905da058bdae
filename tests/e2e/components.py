# SPDX-License-Identifier: Apache-2.0
"""The command lines of the control plane's programs: every flag that makes them small, quick and loopback only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.gang_api import GangApi

LOOPBACK = "127.0.0.1"
# Jobs, PDB status, finalizers, deleted namespaces and orphans. No node-lifecycle: nodes here send no heartbeats.
CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "job-controller",
    "replicaset-controller",
    "deployment-controller",
    "statefulset-controller",
    "disruption-controller",
    "serviceaccount-controller",
    "resourcequota-controller",
    "resourceclaim-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "ttl-after-finished-controller",
)


@dataclass(frozen=True)
class ForNodes:
    """What kubelets and pods ask of a control plane, and fake nodes do without."""

    address: str
    """Of the API server, as nodes reach it."""
    services: str
    """CIDR of the Services; the first of it is the API server's own, which it serves where the port is 443."""
    kubelet_client: Path
    """A certificate and its key in one PEM file, by which the API server asks kubelets for logs."""


FRONT_PROXY = "front-proxy-client"
"""Common name of the certificate by which the API server shows that it hands a request on."""


@dataclass(frozen=True)
class FrontProxyFiles:
    """That certificate, its key and the authority that has signed it, as PEM."""

    authority: Path
    certificate: Path
    key: Path


def _gates(gangs: GangApi | None, more: Sequence[str] = ()) -> list[str]:
    gates = [f"{gate}=true" for gate in (*(gangs.gates if gangs else ()), *more)]
    return [f"--feature-gates={','.join(gates)}"] if gates else []


def etcd(program: Path, *, data: Path, client_url: str, peer_url: str) -> list[str]:
    """One member; nothing is synced to disk, so that the measured speed is the control plane's and not the disk's."""
    return [
        str(program),
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        f"--quota-backend-bytes={8 * 2**30}",
        "--log-level=warn",
    ]


def kube_apiserver(
    program: Path,
    *,
    port: int,
    etcd_url: str,
    certificates: Path,
    tokens: Path,
    service_account_key: Path,
    gangs: GangApi | None,
    unlimited: bool,
    gates: Sequence[str] = (),
    for_nodes: ForNodes | None = None,
    audit: Path | None = None,
    front_proxy: FrontProxyFiles | None = None,
) -> list[str]:
    """tokens: CSV of token, user, uid, groups. The server makes its own certificate in `certificates`. audit: the
    policy of an audit log beside it. front_proxy: with it the server hands requests on to aggregated APIs.

    Unless it is for nodes, pods need no service account, and nobody writes the endpoints of service kubernetes.
    """
    runtime = [f"--runtime-config={gangs.group_version}=true"] if gangs else []
    limits = ["--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false"]
    return [
        str(program),
        f"--secure-port={port}",
        f"--etcd-servers={etcd_url}",
        f"--cert-dir={certificates}",
        # The certificate that the server makes for itself is for this address.
        f"--advertise-address={for_nodes.address if for_nodes else LOOPBACK}",
        f"--token-auth-file={tokens}",
        *(_serving_nodes(for_nodes) if for_nodes else SERVING_NOBODY),
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={service_account_key}",
        f"--service-account-signing-key-file={service_account_key}",
        *runtime,
        *_gates(gangs, gates),
        *(limits if unlimited else []),
        *([f"--audit-policy-file={audit}", f"--audit-log-path={audit.with_suffix('.log')}"] if audit else []),
        *(_aggregating(front_proxy) if front_proxy else []),
    ]


def _aggregating(files: FrontProxyFiles) -> list[str]:
    return [
        f"--requestheader-client-ca-file={files.authority}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={files.certificate}",
        f"--proxy-client-key-file={files.key}",
        # Services are reached at their endpoints: nothing here serves the addresses of Services.
        "--enable-aggregator-routing=true",
    ]


def audit_policy(namespace: str) -> dict[str, object]:
    """Tells when pods and Bindings of a namespace were made, and nothing else."""
    made = {"resources": [{"group": "", "resources": ["pods", "pods/binding"]}], "verbs": ["create"]}
    rules = [{"level": "Metadata", "namespaces": [namespace], **made}, {"level": "None"}]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}


SERVING_NOBODY = (
    f"--bind-address={LOOPBACK}",
    "--endpoint-reconciler-type=none",
    "--authorization-mode=RBAC",
    "--service-cluster-ip-range=10.0.0.0/24",
    "--disable-admission-plugins=ServiceAccount",
    "--enable-admission-plugins=NodeRestriction",
)


def _serving_nodes(nodes: ForNodes) -> list[str]:
    return [
        "--bind-address=0.0.0.0",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={nodes.services}",
        f"--kubelet-client-certificate={nodes.kubelet_client}",
        f"--kubelet-client-key={nodes.kubelet_client}",
        "--kubelet-preferred-address-types=InternalIP",
        # Webhooks are called at their pods: where the API server runs nobody serves the addresses of Services.
        "--enable-aggregator-routing=true",
        "--allow-privileged=true",
    ]


def kube_controller_manager(
    program: Path,
    *,
    kubeconfig: Path,
    service_account_key: Path,
    gangs: GangApi | None,
    root_ca: Path | None = None,
    gates: Sequence[str] = (),
) -> list[str]:
    """The controllers of CONTROLLERS under one user, which therefore needs the rights of all of them.

    With root_ca, which is given to all pods, nodes are real: every controller runs, each with rights of its own.
    """
    # Upstream's PodGroups have a finalizer that this controller takes away.
    controllers = [*CONTROLLERS, *(["podgroup-protection-controller"] if gangs else [])]
    # A kubelet that is away is noticed twice as soon as by default, so that tests wait half as long.
    nodes = [f"--root-ca-file={root_ca}", "--allocate-node-cidrs=false", "--node-monitor-grace-period=25s"]
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={'*' if root_ca else ','.join(controllers)}",
        f"--use-service-account-credentials={'true' if root_ca else 'false'}",
        *(nodes if root_ca else []),
        f"--service-account-private-key-file={service_account_key}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        *_gates(gangs, gates),
    ]


def kube_scheduler(
    program: Path, *, configuration: Path, gangs: GangApi | None = None, gates: Sequence[str] = ()
) -> list[str]:
    """`configuration` holds scheduler_configuration()."""
    return [str(program), f"--config={configuration}", "--secure-port=0", *_gates(gangs, gates)]


def scheduler_configuration(kubeconfig: Path, profiles: Sequence[Mapping[str, object]] = ()) -> dict[str, object]:
    """kube-scheduler with its own limit on requests lifted, alone and therefore without a lease."""
    return {
        **({"profiles": list(profiles)} if profiles else {}),
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100_000, "burst": 100_000},
        "leaderElection": {"leaderElect": False},
    }
