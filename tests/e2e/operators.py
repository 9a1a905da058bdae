# SPDX-License-Identifier: Apache-2.0
"""The controllers of JobSets, LeaderWorkerSets, Ray and Kubeflow's jobs beside a control plane, with their definitions
and webhooks.

They run as processes on loopback with the administrator's rights, their webhooks with a certificate that is made here.
Binaries and manifests come from `controlplane/build.sh`. mpi-operator and Trainer are not among them: the jobs of the
one are as training-operator's MPIJobs, those of the other are JobSets.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, Json
from tests.e2e.controlplane import ControlPlane, free_port
from tests.e2e.process import Process, eventually
from tests.loudly import skip_loudly

LOOPBACK = "127.0.0.1"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
SECRETS = "/api/v1/namespaces/default/secrets"
EXAMPLES = REPOSITORY / "examples"


@dataclass(frozen=True)
class Kind:
    """One controller."""

    program: str
    definitions: str
    """Folder of its manifests."""
    hooks: str = ""
    """Another; empty where it has no webhooks."""
    config: str = ""
    """API version of its configuration; empty where flags are all it has."""
    pods: str = ""
    """Label of the pods that its webhooks look at."""
    flags: tuple[str, ...] = ()
    secret: str = ""
    """Where it keeps a certificate of its own, which nobody here asks for."""
    last: str = ""
    """What its log names when its webhooks answer; empty where they do when it listens."""


JOBSET = Kind(
    "jobset-controller",
    "config/components/crd/bases",
    "config/components/webhook",
    "config.jobset.x-k8s.io/v1alpha1",
    "jobset.sigs.k8s.io/jobset-name",
)
LWS = Kind(
    "lws-controller",
    "config/crd/bases",
    "config/webhook",
    "config.lws.x-k8s.io/v1alpha1",
    "leaderworkerset.sigs.k8s.io/name",
)
RAY = Kind("kuberay-operator", "config/crd/bases", flags=("--metrics-addr=0", "--enable-leader-election=false"))
TRAINING = Kind(
    "training-operator",
    "manifests/base/crds",
    "manifests/base/webhook",
    flags=("--metrics-bind-address=0", "--enable-scheme=pytorchjob", "--enable-scheme=mpijob"),
    secret="training-operator-webhook-cert",
    last="mpijob-controller",
)
MOUNTED = Path("/tmp/k8s-webhook-server/serving-certs/tls.crt")
"""Where training-operator looks whether its secret is mounted, whatever TMPDIR says: that it is there is enough."""


class Operators:
    """Starts what is asked for, each once; `stop` ends all."""

    def __init__(self, plane: ControlPlane, request: pytest.FixtureRequest) -> None:
        self._plane, self._request = plane, request
        self.running: dict[Kind, Process] = {}

    async def start(self, api: Client, *kinds: Kind) -> None:
        """Returns when they can be used."""
        for kind in kinds:
            if kind not in self.running:
                if not (self._plane.assets / kind.program).exists():
                    skip_loudly(self._request, "tests of the controllers of workloads", f"no {kind.program}")
                await self._start(api, kind)

    def stop(self) -> None:
        """Ends all."""
        for process in self.running.values():
            self._plane.processes.remove(process)
            process.stop()
        self.running.clear()

    async def _start(self, api: Client, kind: Kind) -> None:
        folder, manifests = self._plane.folder / kind.program, self._plane.assets / "operators" / kind.program
        folder.mkdir(exist_ok=True)
        await api.apply_crds(manifests / kind.definitions)
        webhook, health = free_port(), free_port()
        command = [
            str(self._plane.assets / kind.program),
            f"--health-probe-bind-address={LOOPBACK}:{health}",
            *kind.flags,
        ]
        environment = {"KUBECONFIG": str(self._plane.kubeconfig())}
        certificates = folder / "k8s-webhook-server" / "serving-certs"
        if kind.hooks:
            _certificate(certificates)
        if kind.config:
            file = folder / "config.json"
            file.write_text(json.dumps(_config(kind, webhook, certificates)))
            command += [f"--config={file}", "--metrics-bind-address=0", "--leader-elect=false"]
        if kind.secret:
            await api.apply(
                f"{SECRETS}/{kind.secret}", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": kind.secret}}
            )
            command += [f"--webhook-server-port={webhook}"]
            environment |= {"TMPDIR": str(folder), "MY_POD_NAMESPACE": "default"}
            _mount()
        process = Process(kind.program, command, log=folder / "log", env=environment)
        self._plane.processes.append(process)
        self.running[kind] = process.start()
        port = webhook if kind.hooks else health
        await eventually(
            lambda: _listens(port) and kind.last in process.log.read_text(),
            what=f"{kind.program} is ready",
            processes=[process],
        )
        for hook in _hooks(kind, manifests, webhook, certificates):
            await api.apply(f"{HOOKS}/{hook['kind'].lower()}s/{hook['metadata']['name']}", hook)


def _config(kind: Kind, port: int, folder: Path) -> Json:
    return {
        "apiVersion": kind.config,
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": LOOPBACK, "port": port, "certDir": str(folder)},
    }


def _mount() -> None:
    MOUNTED.parent.mkdir(parents=True, exist_ok=True)
    MOUNTED.touch()


def _certificate(folder: Path) -> None:
    openssl = shutil.which("openssl")
    assert openssl is not None
    folder.mkdir(parents=True, exist_ok=True)
    subject = ["-subj", "/CN=webhooks", "-addext", f"subjectAltName=IP:{LOOPBACK}"]
    files = ["-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _hooks(kind: Kind, manifests: Path, port: int, folder: Path) -> Iterator[Json]:
    """The configurations of its webhooks, at the address where they are here."""
    if not kind.hooks:
        return
    authority = base64.b64encode((folder / "tls.crt").read_bytes()).decode()
    for manifest in yaml.safe_load_all((manifests / kind.hooks / "manifests.yaml").read_text()):
        hooks = []
        for one in manifest["webhooks"]:
            path = one["clientConfig"]["service"]["path"]
            made = {**one, "clientConfig": {"url": f"https://{LOOPBACK}:{port}{path}", "caBundle": authority}}
            if any("pods" in rule["resources"] for rule in one["rules"]):
                made["objectSelector"] = {"matchExpressions": [{"key": kind.pods, "operator": "Exists"}]}
            hooks.append(made)
        name = f"{kind.program}-{manifest['metadata']['name']}"
        yield {**manifest, "metadata": {"name": name}, "webhooks": hooks}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


@pytest.fixture(scope="module")
def operators(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Operators]:
    """The controllers of workloads, which a test starts."""
    made = Operators(plane, request)
    yield made
    made.stop()


def example(name: str) -> Json:
    """The workload of examples/workloads/NAME.yaml."""
    found: Json = yaml.safe_load((EXAMPLES / "workloads" / f"{name}.yaml").read_text())
    return found
