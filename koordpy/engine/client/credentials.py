# SPDX-License-Identifier: Apache-2.0
"""Finds the API server and the credentials: from kubeconfig files, or from the service account of the pod.

This module reads tokens, token files, client certificates and basic auth. For exec plugins and OIDC it uses the loader
of kubernetes_asyncio, which is imported only if needed, because the import takes most of a second.
"""

import asyncio
import base64
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordpy.engine.client.kubeconfig import CredentialError, KubeconfigSection, merged
from koordpy.engine.client.server_trust import trusting

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_SECONDS = 60.0
"""Interval of reads of a token file: service account tokens are rotated on disk. client-go has the same interval."""

HeaderSource = Callable[[bool], Awaitable[Mapping[str, str]]]
"""Returns the auth headers of a request. The argument is True after a 401: cached credentials must be renewed."""


async def _anonymous(rejected: bool) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Address and credentials of one API server."""

    server: str
    """URL without a trailing slash."""
    ssl_context: ssl.SSLContext | None = None
    """Trusted authorities and client certificate; None if the server uses plain HTTP."""
    headers: HeaderSource = _anonymous
    namespace: str = "default"
    """Namespace of the context or of the service account."""
    proxy: str | None = None
    """URL of an http proxy; None for none."""
    server_hostname: str | None = None
    """Host name that the certificate must have; None for that of `server`."""
    source: str = ""
    """File or folder that the access was read from, for messages."""

    @property
    def host(self) -> str:
        """`host:port` of the server, as metrics name it."""
        return self.server.partition("://")[2].partition("/")[0]


async def load_access(kubeconfig: str | None = None, context: str | None = None) -> ClusterAccess:
    """Returns access to the cluster, from the first of these that is set: `kubeconfig`, $KUBECONFIG, the pod's service
    account, ~/.kube/config.

    context: name of a kubeconfig context; None for the current context. With a context the service account is skipped,
    because it has no contexts. Several files joined by ":" in $KUBECONFIG are merged as kubectl does: the first file
    that defines a name wins. Raises CredentialError.
    """
    if named := kubeconfig or os.environ.get("KUBECONFIG"):
        return await _from_kubeconfig(_present(named), context)
    if not context and os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    if own := _own():
        return await _from_kubeconfig([own], context)
    raise CredentialError(
        "no API server configured: use --kubeconfig or set KUBECONFIG"
        " (there is no service account and no ~/.kube/config)"
    )


def _own() -> Path | None:
    """Returns ~/.kube/config; None if it does not exist."""
    # for a user without a home directory, as in a container, expanduser returns the path unchanged
    own = Path(os.path.expanduser("~/.kube/config"))
    return own if own.exists() else None


def _present(named: str) -> list[Path]:
    """Returns the paths in a list joined by ":", without absent files. Raises CredentialError if all are absent."""
    paths = [Path(os.path.expanduser(part)) for part in named.split(os.pathsep) if part]
    # kubectl skips absent files of a list, but a single absent file is an error
    present = [path for path in paths if path.exists()] if len(paths) > 1 else paths
    if not present:
        raise CredentialError(f"{named}: none of these kubeconfig files exists")
    return present


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Returns access by the pod's service account. Its token is read every minute and after a 401.

    Raises CredentialError.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialError("KUBERNETES_SERVICE_HOST is not set: this is not a pod of a cluster")
    token = TokenFile(folder / "token")
    token.read()
    namespace_file = folder / "namespace"
    namespace = namespace_file.read_text(encoding="utf-8").strip() if namespace_file.exists() else "default"
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ssl_context=_ssl_context(folder / "ca.crt", None, None, where=str(folder)),
        headers=token.headers,
        namespace=namespace,
        source=str(folder),
    )


@dataclass(slots=True)
class TokenFile:
    """A bearer token in a file that another process rotates."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    _token: str = field(default="", init=False)
    _read_at: float = field(default=float("-inf"), init=False)

    def read(self) -> str:
        """Reads and returns the current token. Raises CredentialError."""
        try:
            token = self.path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialError(f"{self.path}: token cannot be read: {error}") from error
        if not token:
            raise CredentialError(f"{self.path}: the token file is empty")
        self._token, self._read_at = token, self.clock()
        return token

    async def headers(self, rejected: bool) -> Mapping[str, str]:
        """Returns the Authorization header (`HeaderSource`); reads the file again after a minute, and after a 401."""
        if rejected or self.clock() - self._read_at >= TOKEN_REREAD_SECONDS:
            try:
                self.read()
            except CredentialError:
                # a read may fail while the kubelet replaces the file; then the last token is usually still valid
                if not self._token:
                    raise
        return {"Authorization": f"Bearer {self._token}"}


async def _from_kubeconfig(paths: list[Path], named: str | None) -> ClusterAccess:
    """Returns access by merged kubeconfig files. named: context; None for the current one. Raises CredentialError."""
    # 1. the entries of context, cluster and user
    config = merged(paths)
    where = ", ".join(map(str, paths))
    wanted = named or config.current_context
    if not wanted:
        raise CredentialError(f"{where}: current-context: not set")
    context = config.entry("contexts", wanted)
    cluster = config.entry("clusters", context.text("cluster", required=True))
    user_name = context.text("user")
    user = config.entry("users", user_name) if user_name else KubeconfigSection({}, where, "users", paths[0].parent)

    server = cluster.text("server", required=True).rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise CredentialError(f"{cluster.at('server')}: {server!r} is not an http or https URL")
    # 2. credentials, by the first of the user's fields that is set; a client certificate may be set in addition
    headers: HeaderSource = _anonymous
    cert, key = user.file_or_data("client-certificate"), user.file_or_data("client-key")
    if (cert is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise CredentialError(f"{user.at(missing)}: client-certificate and client-key go together")
    if token := user.text("token"):
        headers = _constant(f"Bearer {token}")
    elif token_file := user.text("tokenFile"):
        source = TokenFile(user.resolve(token_file))
        source.read()
        headers = source.headers
    elif username := user.text("username"):
        pair = f"{username}:{user.text('password')}".encode()
        headers = _constant("Basic " + base64.b64encode(pair).decode())
    elif "exec" in user.fields or "auth-provider" in user.fields:
        plugin = _Plugin(config.as_mapping(), wanted, str(user.folder), user.at("exec"))
        await plugin.refresh()
        headers = plugin.headers
        if plugin.cert_file and plugin.key_file:
            cert, key = _read(plugin.cert_file), _read(plugin.key_file)
    # 3. TLS
    context_of_tls = None
    if server.startswith("https://"):
        context_of_tls = _ssl_context(
            cluster.file_or_data("certificate-authority"),
            cert,
            key,
            insecure=cluster.fields.get("insecure-skip-tls-verify") is True,
            where=cluster.at("certificate-authority"),
        )
    return ClusterAccess(
        server=server,
        ssl_context=context_of_tls,
        headers=headers,
        namespace=context.text("namespace") or "default",
        proxy=cluster.text("proxy-url") or None,
        server_hostname=cluster.text("tls-server-name") or None,
        source=f"{where} (context {wanted})",
    )


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _constant(authorization: str) -> HeaderSource:
    async def headers(rejected: bool) -> Mapping[str, str]:
        return {"Authorization": authorization}

    return headers


class _Plugin:
    """Credentials by an exec plugin or OIDC. The loader of kubernetes_asyncio runs the plugin, and caches a token until
    shortly before it expires."""

    def __init__(self, config: dict[str, Any], context: str, folder: str, where: str) -> None:
        """config: merged kubeconfig. folder: base of relative paths. where: location of the field, for messages."""
        self._config, self._context, self._folder, self._where = config, context, folder, where
        self._loader: Any = None
        self._lock = asyncio.Lock()
        self._refreshed_at = float("-inf")
        self._authorization = ""
        self.cert_file = self.key_file = ""

    async def refresh(self, *, again: bool = False) -> None:
        """Reads the current credentials. again: True to ignore the loader's cached token. Raises CredentialError."""
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config.kube_config import KubeConfigLoader

        if self._loader is None or again:
            self._loader = KubeConfigLoader(
                config_dict=self._config, active_context=self._context, config_base_path=self._folder
            )
        configuration = Configuration()
        try:
            await self._loader.load_and_set(configuration)
        except Exception as error:  # the loader passes on any exception of a plugin
            raise CredentialError(f"{self._where}: {error}") from error
        self._authorization = str(configuration.api_key.get("BearerToken", ""))
        self.cert_file, self.key_file = str(configuration.cert_file or ""), str(configuration.key_file or "")
        if not self._authorization and not self.cert_file:
            raise CredentialError(f"{self._where}: the plugin returned neither a token nor a certificate")
        self._refreshed_at = time.monotonic()

    async def headers(self, rejected: bool) -> Mapping[str, str]:
        """Returns the Authorization header (`HeaderSource`); asks the loader every minute, and after a 401."""
        if rejected or time.monotonic() - self._refreshed_at >= TOKEN_REREAD_SECONDS:
            asked_at = time.monotonic()
            async with self._lock:
                # one refresh serves all waiting requests
                if self._refreshed_at < asked_at:
                    await self.refresh(again=rejected)
        return {"Authorization": self._authorization} if self._authorization else {}


def _ssl_context(
    ca: bytes | Path | None, cert: bytes | None, key: bytes | None, *, insecure: bool = False, where: str
) -> ssl.SSLContext:
    """Returns a TLS context. Raises CredentialError.

    ca: authorities as PEM, or their file; None for those of the system. cert, key: client certificate as PEM; None for
    none. insecure: True to accept any server certificate. where: location of the field, for messages.
    """
    try:
        context = trusting(
            ca_file=str(ca) if isinstance(ca, Path) else None,
            ca_text=ca.decode("ascii") if isinstance(ca, bytes) else None,
        )
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        raise CredentialError(f"{where}: the certificate authority cannot be read: {error}") from error
    if cert is not None and key is not None:
        try:
            # the ssl module loads key pairs from files only
            with contextlib.ExitStack() as stack:
                names = []
                for content in (cert, key):
                    handle = stack.enter_context(tempfile.NamedTemporaryFile(prefix="koordpy-"))
                    handle.write(content)
                    handle.flush()
                    names.append(handle.name)
                context.load_cert_chain(names[0], names[1])
        except (OSError, ssl.SSLError) as error:
            raise CredentialError(f"{where}: client-certificate and client-key cannot be loaded: {error}") from error
    return context
