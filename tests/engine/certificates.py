# SPDX-License-Identifier: Apache-2.0
"""Certificates of all kinds, made by openssl: authorities and servers, with or without what newer rules ask of them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

AUTHORITY = "basicConstraints=critical,CA:TRUE\n"
KEY_USAGE = "keyUsage=critical,digitalSignature,keyCertSign\nsubjectKeyIdentifier=hash\n"
BARE = "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
ISSUER = "authorityKeyIdentifier=keyid:always\n"
PAST, FUTURE = ("20200101000000Z", "20200201000000Z"), ("20900101000000Z", "20910101000000Z")
NOW = (PAST[0], FUTURE[1])
_CONFIG = """
[req]
distinguished_name = names
[names]
[ca]
default_ca = own
[own]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
unique_subject = no
policy = names_of
[names_of]
commonName = supplied
"""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Maker:
    """Makes them in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._config = folder, folder / "openssl.cnf"
        self._config.write_text(_CONFIG.format(folder=folder))
        (folder / "index.txt").touch()

    def pair(
        self, file: str, name: str, extensions: str, *, by: Pair | None = None, valid: tuple[str, str] = NOW
    ) -> Pair:
        """One for a name, signed by another or by itself."""
        made = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        request, more = self._folder / f"{file}.csr", self._folder / f"{file}.ext"
        more.write_text(extensions)
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", made.key)
        self._openssl("req", "-new", *key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-selfsign", "-keyfile", made.key) if by is None else ("-cert", by.certificate, "-keyfile", by.key)
        dates = ("-startdate", valid[0], "-enddate", valid[1])
        self._openssl(
            "ca", "-batch", "-notext", *signer, *dates, "-in", request, "-out", made.certificate, "-extfile", more
        )
        return made

    def _openssl(self, command: str, *arguments: str | Path) -> None:
        subprocess.run(
            ["openssl", command, "-config", self._config, *arguments], check=True, capture_output=True, timeout=60
        )
