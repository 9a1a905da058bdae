# SPDX-License-Identifier: Apache-2.0
"""A real control plane on loopback: etcd and kube-apiserver, on wish kube-controller-manager and kube-scheduler.

For the end-to-end tests, and as a command for people and benchmarks:

    python -m tests.e2e.controlplane --upstream-gangs --unlimited --controller-manager --scheduler

There are no kubelets and no cloud: nodes are objects that somebody makes (Client.make_nodes), and pods run when the
fake kubelet says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.e2e import components
from tests.e2e.assets import AssetsMissing, BuildFailed, find_assets
from tests.e2e.client import Client
from tests.e2e.gang_api import GangApi, gang_api, kubernetes_version
from tests.e2e.hesitation import stumble
from tests.e2e.process import Process, ProcessDied, wait_until
from tests.engine.certificates import AUTHORITY, ISSUER, KEY_USAGE, Maker

MASTERS = "system:masters"
START_TIMEOUT_S = 90.0
# A port seen free can be gone when the server asks for it; then another is tried.
PORT_TRIES = 3
CLIENT = f"extendedKeyUsage=clientAuth\nsubjectKeyIdentifier=hash\n{ISSUER}"


class ControlPlane:
    """`with ControlPlane(find_assets()) as plane:` starts everything and waits for /readyz; leaving ends everything.

    upstream_gangs: serve PodGroups of scheduling.k8s.io, with their feature gates (gang_api.py); not before 1.36.
    unlimited: no limit on requests in flight, no priority and fairness (for measurements).
    scheduler_profiles: of kube-scheduler's configuration; its default one when empty.
    gates: features to turn on in the API server, the controller manager and the scheduler.
    users: user name -> groups; each gets a token (`tokens`) and can have a kubeconfig. "admin" is always there.
    folder: where data, logs and kubeconfig files go; a temporary one that is removed when None.
    port: of the API server; a free one when None.
    aggregated: hand requests on to aggregated APIs, at the endpoints of their Services (`front_proxy`).
    audited: a namespace of which FOLDER/audit.log tells when pods and Bindings were made; none when empty.
    for_nodes: what real kubelets need of it (tests/realnode); without it all is on loopback.
    """

    def __init__(
        self,
        assets: Path,
        *,
        upstream_gangs: bool = False,
        unlimited: bool = False,
        controller_manager: bool = False,
        scheduler: bool = False,
        scheduler_profiles: Sequence[Mapping[str, object]] = (),
        gates: Sequence[str] = (),
        users: Mapping[str, Sequence[str]] | None = None,
        folder: Path | None = None,
        port: int | None = None,
        for_nodes: components.ForNodes | None = None,
        audited: str = "",
        aggregated: bool = False,
    ) -> None:
        self.assets = assets
        self._aggregated = aggregated
        self.front_proxy: components.FrontProxyFiles | None = None
        """Where `aggregated`, once it runs: as whom the API server shows itself."""
        self._for_nodes, self._audited = for_nodes, audited
        self._scheduler_profiles, self._gates = scheduler_profiles, gates
        self.unlimited = unlimited
        self.gangs: GangApi | None = gang_api(assets) if upstream_gangs else None
        """The API of PodGroups that is served; None for none."""
        if upstream_gangs and self.gangs is None:
            version = kubernetes_version(assets)
            raise FileNotFoundError(f"Kubernetes {version} has no PodGroups of scheduling.k8s.io: 1.36 has them")
        self._with_controller_manager, self._with_scheduler = controller_manager, scheduler
        self._groups = {
            "admin": (MASTERS,),
            "system:kube-controller-manager": (MASTERS,),
            "system:kube-scheduler": (),
            **(users or {}),
        }
        self.tokens = {user: secrets.token_urlsafe(24) for user in self._groups}
        self._given_folder, self._given_port = folder, port
        self.folder = Path()
        self.port = 0
        self.processes: list[Process] = []

    # What callers need

    @property
    def audit(self) -> Path:
        """The audit log, of JSON a line."""
        return self.folder / "audit.log"

    @property
    def url(self) -> str:
        return f"https://{self._for_nodes.address if self._for_nodes else components.LOOPBACK}:{self.port}"

    @property
    def pids(self) -> list[int]:
        """Of everything that it runs."""
        return [process.pid for process in self.processes]

    @property
    def admin_token(self) -> str:
        return self.tokens["admin"]

    @property
    def ca(self) -> Path:
        """The server's self-signed certificate, PEM."""
        return self.folder / "certificates" / "apiserver.crt"

    def client(self, user: str = "admin") -> Client:
        """A client with the user's token, to be entered with `async with`."""
        return Client(self.url, token=self.tokens[user], ca=self.ca, gangs=self.gangs)

    def kubeconfig(self, user: str = "admin", *, token: str | None = None) -> Path:
        """Writes and returns FOLDER/USER.kubeconfig; another token than the user's own may be given."""
        # JSON is YAML, and needs no library to be read back by anything.
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "loopback",
            "clusters": [{"name": "loopback", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"token": token or self.tokens[user]}}],
            "contexts": [{"name": "loopback", "context": {"cluster": "loopback", "user": user}}],
        }
        file = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        whole = self.folder / f"{file.name}.new"
        whole.touch(mode=0o600)
        whole.write_text(json.dumps(config, indent=1) + "\n")
        # Programs that start at this moment read the file of an earlier call: never half of it.
        return whole.replace(file)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Runs kubectl as admin; its stdout. CalledProcessError (with stderr) when it fails."""
        command = [str(self.assets / "kubectl"), "--kubeconfig", str(self.kubeconfig()), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, arguments, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout

    def scheduler_command(self) -> list[str]:
        """kube-scheduler's command line (it runs in the foreground), its limit on requests lifted."""
        configuration = components.scheduler_configuration(
            self.kubeconfig("system:kube-scheduler"), self._scheduler_profiles
        )
        file = self.folder / "kube-scheduler.yaml"
        file.write_text(json.dumps(configuration, indent=1) + "\n")
        return components.kube_scheduler(
            self.assets / "kube-scheduler", configuration=file, gangs=self.gangs, gates=self._gates
        )

    def start_scheduler(self) -> Process:
        """Starts kube-scheduler; it ends with the control plane, or earlier by stop() of what is returned."""
        return self._start("kube-scheduler", self.scheduler_command())

    # Life cycle

    def __enter__(self) -> Self:
        if self._given_folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="koordpy-controlplane-"))
        else:
            self.folder = self._given_folder
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._write_credentials()
            self._start_etcd()
            self._start_api_server()
            if self._with_controller_manager:
                self._start_controller_manager()
            if self._with_scheduler:
                self.start_scheduler()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        # In this thread on purpose: the children are tied to the thread that starts them (see process.py).
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends everything in reverse order of start: an API server without its etcd does not end on SIGTERM."""
        for process in reversed(self.processes):
            process.stop()
        if self._given_folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def must_run(self) -> None:
        """Raises ProcessDied, with the end of its log, when a process has ended by itself."""
        for process in self.processes:
            process.must_run()

    # The parts

    def _start(self, name: str, command: Sequence[str | Path]) -> Process:
        if not Path(command[0]).exists():
            raise FileNotFoundError(f"{name} is not in {self.assets}")
        process = Process(name, command, log=self.folder / f"{name}.log")
        self.processes.append(process)
        stumble(process)
        return process.start()

    def _write_credentials(self) -> None:
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        with tokens.open("w", newline="") as file:
            for user, groups in self._groups.items():
                csv.writer(file).writerow([self.tokens[user], user, f"uid-{user}", ",".join(groups)])
        openssl = shutil.which("openssl")
        if openssl is None:
            raise FileNotFoundError("the command openssl, which makes the key of the service accounts, is not on PATH")
        key = self.folder / "service-accounts.key"
        subprocess.run([openssl, "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=60)
        if self._aggregated:
            folder = self.folder / "front-proxy"
            folder.mkdir(mode=0o700, exist_ok=True)
            maker = Maker(folder)
            authority = maker.pair("authority", "front-proxy-ca", AUTHORITY + KEY_USAGE)
            pair = maker.pair("client", components.FRONT_PROXY, CLIENT, by=authority)
            self.front_proxy = components.FrontProxyFiles(authority.certificate, pair.certificate, pair.key)

    def _start_etcd(self) -> None:
        data = self.folder / "etcd"
        data.mkdir(mode=0o700, exist_ok=True)
        for attempt in range(PORT_TRIES):
            client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            self._etcd_url = client
            command = components.etcd(self.assets / "etcd", data=data, client_url=client, peer_url=peer)
            etcd = self._start("etcd", command)
            if self._ready(etcd, f"{client}/readyz", last=attempt == PORT_TRIES - 1):
                return

    def _start_api_server(self) -> None:
        audit = self.folder / "audit.json" if self._audited else None
        if audit is not None:
            audit.write_text(json.dumps(components.audit_policy(self._audited)))
        for attempt in range(PORT_TRIES):
            self.port = self._given_port or free_port()
            command = components.kube_apiserver(
                self.assets / "kube-apiserver",
                port=self.port,
                etcd_url=self._etcd_url,
                certificates=self.folder / "certificates",
                tokens=self.folder / "tokens.csv",
                service_account_key=self.folder / "service-accounts.key",
                gangs=self.gangs,
                unlimited=self.unlimited,
                gates=self._gates,
                for_nodes=self._for_nodes,
                audit=audit,
                front_proxy=self.front_proxy,
            )
            server = self._start("kube-apiserver", command)
            last = self._given_port is not None or attempt == PORT_TRIES - 1
            if self._ready(server, f"{self.url}/readyz", last=last):
                break
        # Made by a loop of the server shortly after it is ready; without it no pod can be created.
        wait_until(
            lambda: self._answers(f"{self.url}/api/v1/namespaces/default"),
            what="namespace default",
            within_s=START_TIMEOUT_S,
            processes=[server],
        )

    def _start_controller_manager(self) -> None:
        command = components.kube_controller_manager(
            self.assets / "kube-controller-manager",
            kubeconfig=self.kubeconfig("system:kube-controller-manager"),
            service_account_key=self.folder / "service-accounts.key",
            gangs=self.gangs,
            root_ca=self.ca if self._for_nodes else None,
            gates=self._gates,
        )
        self._start("kube-controller-manager", command)

    def _ready(self, process: Process, url: str, *, last: bool) -> bool:
        """Waits until url answers 200. False when the process lost its port to another and that may be tried again."""
        try:
            wait_until(
                lambda: self._answers(url),
                what=f"{process.name} is ready",
                within_s=START_TIMEOUT_S,
                processes=[process],
            )
        except ProcessDied:
            if last or "address already in use" not in process.tail():
                raise
            self.processes.remove(process)
            return False
        # Somebody else may answer at this port while ours has just failed to get it.
        process.must_run()
        return True

    def _answers(self, url: str) -> bool:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.admin_token}"})
        try:
            # the API server may be about to write the file: an empty one is an error, too
            tls = ssl.create_default_context(cafile=str(self.ca)) if url.startswith("https:") else None
            with urllib.request.urlopen(request, timeout=5, context=tls) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _serve(arguments: argparse.Namespace) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    plane = ControlPlane(
        find_assets(),
        upstream_gangs=arguments.upstream_gangs,
        unlimited=arguments.unlimited,
        controller_manager=arguments.controller_manager,
        scheduler=arguments.scheduler,
        folder=arguments.folder,
        port=arguments.port,
    )
    with plane:
        scheduler = shlex.join(plane.scheduler_command())
        print(f"server      {plane.url}")
        print(f"token       {plane.admin_token}")
        print(f"kubeconfig  {plane.kubeconfig()}")
        print(f"folder      {plane.folder}")
        print(f"processes   {', '.join(f'{p.name} {p.pid}' for p in plane.processes)}")
        if not arguments.scheduler:
            print(f"scheduler   {scheduler}")
        print("ready; ends on SIGINT or SIGTERM", flush=True)
        while not ended.is_set():
            plane.must_run()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.controlplane", description="Runs a real control plane on loopback until it is ended."
    )
    parser.add_argument("--upstream-gangs", action="store_true", help="serve PodGroups of scheduling.k8s.io")
    parser.add_argument("--unlimited", action="store_true", help="no limit on requests in flight (for measurements)")
    parser.add_argument("--controller-manager", action="store_true", help="run kube-controller-manager, too")
    parser.add_argument("--scheduler", action="store_true", help="run kube-scheduler, too")
    parser.add_argument("--port", type=int, help="port of the API server (default: a free one)")
    parser.add_argument(
        "--folder", type=Path, help="for data, logs and kubeconfig (default: temporary, removed at the end)"
    )
    arguments = parser.parse_args()
    try:
        asyncio.run(_serve(arguments))
    except (AssetsMissing, BuildFailed, ProcessDied, FileNotFoundError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
