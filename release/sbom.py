# SPDX-License-Identifier: Apache-2.0
"""Bills of materials in CycloneDX: koordpy with the packages of a lock file, and Debian's packages for an image.

Licenses and dependencies come from the metadata of the wheels, hashes from the lock file. The serial number follows
from the document's name and the commit, and the time is the commit's, so that the same commit gives the same bytes.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterable, Mapping
from email.message import Message
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.build_state import BuildState
from release.checkout import Checkout
from release.locked_wheels import IMAGE_LOCK, Pin, read_lock, read_metadata
from release.platforms import IMAGE_PYTHON, Platform

_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""For addresses: RFC 9562, appendix A."""
_CLASSIFIER = re.compile(r"License :: .*?([^:]+)$")


def build_sbom(build: BuildState) -> list[Path]:
    """Writes the bill of materials of koordpy and its locked packages; needs the package index."""
    platform = Platform("linux", "amd64", IMAGE_PYTHON)
    metadata = read_metadata(build.wheels(platform))
    pins = [pin for pin in read_lock(build.checkout.read(IMAGE_LOCK)) if pin.fits(platform)]
    file = build.folder / f"koordpy-{build.checkout.version}.cdx.json"
    file.write_text(sbom_text(build.checkout, file.name, pins, metadata), encoding="utf-8")
    return [file]


def sbom_text(
    checkout: Checkout,
    name: str,
    pins: Iterable[Pin],
    metadata: Mapping[str, Message],
    debian: Iterable[Component] = (),
) -> str:
    """The document as JSON: koordpy, its locked packages, and Debian's packages for an image."""
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"{checkout.download(name)}#{checkout.commit}"))
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(checkout.time, datetime.UTC)
    koordpy = Component(
        name="koordpy",
        version=checkout.version,
        type=ComponentType.APPLICATION,
        bom_ref="koordpy",
        purl=PackageURL("pypi", name="koordpy", version=checkout.version),
        licenses=[LicenseFactory().make_from_string(str(checkout.project["license"]))],
        external_references=[ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(checkout.repository))],
    )
    bom.metadata.component = koordpy
    components = {pin.name: _component(pin, metadata.get(pin.name)) for pin in pins}
    for component in [*components.values(), *debian]:
        bom.components.add(component)
    asked = {"koordpy": [Requirement(text) for text in checkout.project["dependencies"]]}
    asked |= {name: _requirements(metadata[name]) for name in components if name in metadata}
    for name, requirements in asked.items():
        known = {canonicalize_name(one.name) for one in requirements} & components.keys()
        bom.register_dependency(components.get(name, koordpy), [components[one] for one in sorted(known)])
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def debian_component(fields: Mapping[str, str]) -> Component:
    """A package of Debian, from its paragraph of dpkg's status file."""
    name, version, arch = fields["Package"], fields["Version"], fields["Architecture"]
    purl = PackageURL("deb", "debian", name, version, {"arch": arch})
    return Component(name=name, version=version, type=ComponentType.LIBRARY, bom_ref=f"debian/{name}:{arch}", purl=purl)


def _component(pin: Pin, metadata: Message | None) -> Component:
    license = _license(metadata) if metadata else ""
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{pin.name}=={pin.version}",
        purl=PackageURL("pypi", name=pin.name, version=pin.version),
        licenses=[LicenseFactory().make_from_string(license)] if license else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in pin.hashes],
    )


def _license(metadata: Message) -> str:
    """The license expression; else the classifiers; else the first line of the free text."""
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = [_CLASSIFIER.fullmatch(text) for text in metadata.get_all("Classifier", ())]
    if names := [match[1].strip() for match in classifiers if match]:
        return ", ".join(names)
    return str(metadata["License"] or "").strip().partition("\n")[0]


def _requirements(metadata: Message) -> list[Requirement]:
    """Dependencies without those of extras."""
    found = [Requirement(str(text)) for text in metadata.get_all("Requires-Dist", ())]
    return [one for one in found if one.marker is None or "extra" not in str(one.marker)]
