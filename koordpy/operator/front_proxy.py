# SPDX-License-Identifier: Apache-2.0
"""Accepts the API server as a front proxy that has authenticated the user, as every aggregated API server does.

The ConfigMap kube-system/extension-apiserver-authentication has the CA of the front proxy's client certificates, their
allowed names, and the names of the headers with user and groups. These headers are used only on a connection with such
a certificate. The ConfigMap is read repeatedly, so that a new CA needs no restart.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDictProxy

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
AUTHORITY, CLIENT_AUTHORITY = "requestheader-client-ca-file", "client-ca-file"
ALLOWED = "requestheader-allowed-names"
USER_HEADERS, GROUP_HEADERS = "requestheader-username-headers", "requestheader-group-headers"
UID_HEADERS, EXTRA_PREFIXES = "requestheader-uid-headers", "requestheader-extra-headers-prefix"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_ACCOUNT = "system:serviceaccount:"


class NoTrustError(Exception):
    """The ConfigMap describes no front proxy, or one that any user could impersonate. The message is one line."""


@dataclass(frozen=True)
class User:
    """The user of a request, as authenticated by the API server."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def tenant(self) -> str:
        """Name under which the user's requests are counted for limits.

        All service accounts of a namespace have one name here, because a tenant can create any number of them.
        """
        if self.name.startswith(_ACCOUNT):
            return self.name.rpartition(":")[0]
        return self.name


@dataclass(frozen=True)
class FrontProxy:
    """The front proxy, as described by the ConfigMap."""

    authority: str
    """CA certificates in PEM."""
    names: frozenset[str]
    """Allowed common names of the client certificate; empty: any name is allowed."""
    user_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    uid_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()

    def is_proxy(self, certificate: Mapping[str, Any] | None) -> bool:
        """Returns True if a verified client certificate is the front proxy's. None or empty: no certificate."""
        if not certificate:
            return False
        if not self.names:
            return True
        parts = (pair for part in certificate.get("subject", ()) for pair in part)
        return any(key == "commonName" and value in self.names for key, value in parts)

    def user(self, headers: CIMultiDictProxy[str]) -> User | None:
        """Returns the user in the headers; None if the headers name none, or are not valid UTF-8."""
        name = next((headers[one] for one in self.user_headers if headers.get(one)), "")
        groups = tuple(value for one in self.group_headers for value in headers.getall(one, ()))
        uid = next((headers[one] for one in self.uid_headers if headers.get(one)), "")
        extra: dict[str, list[str]] = {}
        for key, value in headers.items():
            for prefix in self.extra_prefixes:
                if len(key) > len(prefix) and key.lower().startswith(prefix.lower()):
                    extra.setdefault(unquote(key[len(prefix) :].lower()), []).append(value)
        found = User(name, groups, uid, tuple((key, tuple(values)) for key, values in sorted(extra.items())))
        try:
            msgspec.json.encode([found.name, found.groups, found.uid, found.extra])
        except UnicodeEncodeError:
            return None
        return found if name else None


def read_front_proxy(data: Mapping[str, str]) -> FrontProxy:
    """Reads the ConfigMap's data. Raises NoTrustError."""
    authority = data.get(AUTHORITY, "")
    if not _CERTIFICATE.search(authority):
        raise NoTrustError(f"{AUTHORITY} is empty: the API server is not set up for aggregated APIs")
    names = _listed(data, ALLOWED)
    shared = set(_CERTIFICATE.findall(authority)) & set(_CERTIFICATE.findall(data.get(CLIENT_AUTHORITY, "")))
    if shared and not names:
        raise NoTrustError(
            f"{AUTHORITY} also signs the certificates of users, and {ALLOWED} is empty: "
            "any user could act as another user"
        )
    users = _listed(data, USER_HEADERS)
    if not users:
        raise NoTrustError(f"{USER_HEADERS} names no header")
    return FrontProxy(
        authority=authority,
        names=frozenset(names),
        user_headers=users,
        group_headers=_listed(data, GROUP_HEADERS),
        uid_headers=_listed(data, UID_HEADERS),
        extra_prefixes=tuple(one for one in _listed(data, EXTRA_PREFIXES) if one),
    )


def _listed(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(data.get(key) or "[]", type=list[str]))
    except msgspec.MsgspecError as fault:
        raise NoTrustError(f"{key}: {fault}") from None


def context_for(proxy: FrontProxy | None, certificate: str, key: str) -> ssl.SSLContext:
    """Returns the TLS context of a server that accepts only the front proxy as client.

    proxy: None if no front proxy is known; then every handshake fails. Raises OSError and NoTrustError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as fault:
        raise OSError(f"{certificate} and {key} cannot be used: {fault}") from None
    if proxy is not None:
        try:
            context.load_verify_locations(cadata=proxy.authority)
        except ssl.SSLError as fault:
            raise NoTrustError(f"{AUTHORITY} cannot be used: {fault}") from None
    return context
