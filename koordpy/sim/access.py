"""How to reach an API server: an address, or the current context of a kubeconfig file."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import yaml


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an API server."""

    url: str
    token: str = ""
    tls: ssl.SSLContext | None = field(default=None, compare=False)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """The current context of a kubeconfig file: server, bearer token or client certificate, certificate authority.

        Raises OSError, KeyError or ValueError for files it cannot use.
        """
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        by_name = {
            kind: {item["name"]: item for item in config.get(kind) or ()} for kind in ("contexts", "clusters", "users")
        }
        context = by_name["contexts"][config["current-context"]]["context"]
        cluster = by_name["clusters"][context["cluster"]]["cluster"]
        user = by_name["users"][context["user"]].get("user") or {}
        tls: ssl.SSLContext | None = None
        if cluster["server"].startswith("https:"):
            tls = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
            if cluster.get("insecure-skip-tls-verify"):
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            if "client-certificate" in user:
                tls.load_cert_chain(user["client-certificate"], user.get("client-key"))
        return cls(cluster["server"], user.get("token", ""), tls)
