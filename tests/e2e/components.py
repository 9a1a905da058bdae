"""The command lines of the control plane's programs: every flag that makes them small, quick and loopback only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

UPSTREAM_GANG_GATES = (
    "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true"
)
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


def _gates(upstream_gangs: bool, more: Sequence[str] = ()) -> list[str]:
    gates = [*([UPSTREAM_GANG_GATES] if upstream_gangs else []), *(f"{gate}=true" for gate in more)]
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
    upstream_gangs: bool,
    unlimited: bool,
    gates: Sequence[str] = (),
) -> list[str]:
    """tokens: CSV of token, user, uid, groups. The server makes its own certificate in `certificates`.

    Pods need no service account, and nobody writes the endpoints of service kubernetes.
    """
    runtime = ["--runtime-config=scheduling.k8s.io/v1alpha2=true"] if upstream_gangs else []
    limits = ["--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false"]
    return [
        str(program),
        f"--secure-port={port}",
        f"--etcd-servers={etcd_url}",
        f"--cert-dir={certificates}",
        "--bind-address=127.0.0.1",
        # The certificate that the server makes for itself is for this address.
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        f"--token-auth-file={tokens}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={service_account_key}",
        f"--service-account-signing-key-file={service_account_key}",
        *runtime,
        *_gates(upstream_gangs, gates),
        *(limits if unlimited else []),
    ]


def kube_controller_manager(
    program: Path, *, kubeconfig: Path, service_account_key: Path, upstream_gangs: bool
) -> list[str]:
    """The controllers of CONTROLLERS under one user, which therefore needs the rights of all of them."""
    # Upstream's PodGroups have a finalizer that this controller takes away.
    controllers = [*CONTROLLERS, *(["podgroup-protection-controller"] if upstream_gangs else [])]
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--use-service-account-credentials=false",
        f"--service-account-private-key-file={service_account_key}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        *_gates(upstream_gangs),
    ]


def kube_scheduler(program: Path, *, configuration: Path, upstream_gangs: bool, gates: Sequence[str] = ()) -> list[str]:
    """`configuration` holds scheduler_configuration()."""
    return [str(program), f"--config={configuration}", "--secure-port=0", *_gates(upstream_gangs, gates)]


def scheduler_configuration(kubeconfig: Path, profiles: Sequence[Mapping[str, object]] = ()) -> dict[str, object]:
    """kube-scheduler with its own limit on requests lifted, alone and therefore without a lease."""
    return {
        **({"profiles": list(profiles)} if profiles else {}),
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100_000, "burst": 100_000},
        "leaderElection": {"leaderElect": False},
    }
