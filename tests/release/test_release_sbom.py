# SPDX-License-Identifier: Apache-2.0
"""The bill of materials: every locked package with its version, hashes, license and dependencies."""

import json
from email.message import Message
from email.parser import Parser
from typing import Any

import pytest

from koordpy import __version__
from release.checkout import Checkout
from release.locked_wheels import IMAGE_LOCK, Pin, read_lock
from release.platforms import Platform
from release.sbom import debian_component, sbom_text
from tests.docs.worked import ROOT

CHECKOUT = Checkout(ROOT, "1" * 40, 1_700_000_000)
PLATFORM = Platform("linux", "amd64", "3.13")
PINS = [Pin("aiohttp", "3", "", ("ab" * 32,)), Pin("yarl", "2", "", ("cd" * 32, "ef" * 32))]


def metadata(*lines: str) -> Message:
    return Parser().parsestr("\n".join(lines))


def document(*args: Any, **named: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom_text(CHECKOUT, "a.json", *args, **named))
    return found


def test_it_lists_the_packages_of_the_lock() -> None:
    pins = [pin for pin in read_lock((ROOT / IMAGE_LOCK).read_text()) if pin.fits(PLATFORM)]
    found = document(pins, {})
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert {one["purl"] for one in found["components"]} == {f"pkg:pypi/{pin.name}@{pin.version}" for pin in pins}
    about = found["metadata"]
    assert (about["component"]["name"], about["component"]["version"]) == ("koordpy", __version__)
    assert about["timestamp"] == "2023-11-14T22:13:20+00:00"
    asked = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}["koordpy"]
    assert {ref.partition("==")[0] for ref in asked} >= {"aiohttp", "ortools", "pyyaml"}


def test_hashes_and_dependencies_are_there() -> None:
    given = {"aiohttp": metadata("Requires-Dist: yarl>=1", "Requires-Dist: brotli; extra == 'speedups'")}
    found = document(PINS, given)
    one, two = found["components"]
    assert [(hash["alg"], hash["content"]) for hash in two["hashes"]] == [
        ("SHA-256", "cd" * 32),
        ("SHA-256", "ef" * 32),
    ]
    depends = {entry["ref"]: entry.get("dependsOn", []) for entry in found["dependencies"]}
    assert depends[one["bom-ref"]] == [two["bom-ref"]]


@pytest.mark.parametrize(
    ("lines", "license"),
    [
        (["License-Expression: MIT OR Apache-2.0", "License: x"], {"expression": "MIT OR Apache-2.0"}),
        (["License: BSD-3-Clause"], {"license": {"id": "BSD-3-Clause"}}),
        (
            ["Classifier: License :: OSI Approved :: MIT License", "License: long text\n   more"],
            {"license": {"name": "MIT License"}},
        ),
        (["License: My own\n        words"], {"license": {"name": "My own"}}),
    ],
)
def test_the_license_is_the_one_that_the_package_states(lines: list[str], license: dict[str, Any]) -> None:
    (component,) = document(PINS[:1], {"aiohttp": metadata(*lines)})["components"]
    (found,) = component["licenses"]
    assert {key: ({"id": v["id"]} if "id" in v else {"name": v["name"]}) if key == "license" else v
            for key, v in found.items() if key in license} == license  # fmt: skip


def test_a_package_without_a_license_has_none() -> None:
    assert "licenses" not in document(PINS[:1], {"aiohttp": metadata("Name: aiohttp")})["components"][0]


def test_packages_of_debian_have_their_architecture() -> None:
    package = debian_component({"Package": "libc6", "Version": "2.41-12", "Architecture": "arm64"})
    found = document(PINS, {}, debian=[package])["components"]
    (component,) = (one for one in found if one["purl"].startswith("pkg:deb"))
    assert component["purl"] == "pkg:deb/debian/libc6@2.41-12?arch=arm64"


def test_the_same_commit_gives_the_same_text() -> None:
    assert sbom_text(CHECKOUT, "a.json", PINS, {}) == sbom_text(CHECKOUT, "a.json", PINS[::-1], {})
    other = Checkout(ROOT, "2" * 40, 1_700_000_000)
    serials = {json.loads(sbom_text(one, "a.json", PINS, {}))["serialNumber"] for one in (CHECKOUT, other)}
    assert len(serials) == 2
