# SPDX-License-Identifier: Apache-2.0
"""The chart's files agree with what they are made from: the definitions, the configuration, the version, the values."""

import json
import re
import tomllib
from typing import Any

import yaml

from koordpy import __version__
from koordpy.api.kubernetes_versions import OLDEST
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.configuration_file import read_config
from tests.charts.configuration_schema import SCHEMA, configuration_schema

CHART = SCHEMA.parent
ROOT = CHART.parents[1]
DEFINITIONS = ROOT / "crds"


def test_the_definitions_of_the_chart_are_those_of_the_repository() -> None:
    of_chart = {file.name: file.read_bytes() for file in (CHART / "crds").iterdir()}
    known = {file.name: file.read_bytes() for file in DEFINITIONS.iterdir()}
    assert of_chart == known, "run `cp crds/*.yaml charts/koordpy/crds/`"
    assert of_chart


def test_the_chart_has_no_symbolic_links() -> None:
    """Helm warns of each at every command, and a copy of the folder alone would lack what they lead to."""
    assert [file.name for file in (CHART, *CHART.rglob("*")) if file.is_symlink()] == []


def test_the_schema_of_config_is_the_one_of_the_configuration() -> None:
    written = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]["config"]
    assert written == configuration_schema(), "run `python -m tests.charts.configuration_schema`"


def test_the_chart_installs_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
LISTS = ("images", "links", "changes", "crds")
HUB = {
    name: yaml.safe_load(text) if name in LISTS else text
    for name, text in ((key.removeprefix("artifacthub.io/"), text) for key, text in METADATA["annotations"].items())
}
"""Annotations for Artifact Hub, the lists as lists."""


def test_the_metadata_of_the_chart_is_complete() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert METADATA["description"] == project["description"] and HUB["license"] == project["license"]
    assert METADATA["home"] in METADATA["sources"] and METADATA["maintainers"] and METADATA["keywords"]
    assert HUB["category"] == "ai-machine-learning" and HUB["images"]
    assert {one["name"] for one in HUB["links"]} >= {"documentation", "support"}
    kinds = {"added", "changed", "deprecated", "removed", "fixed", "security"}
    assert all(one["kind"] in kinds and one["description"] for one in HUB["changes"])
    assert HUB["prerelease"] == str("-" in METADATA["version"]).lower()


def test_the_addresses_of_the_chart_lead_to_files_of_the_repository() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (CHART / "Chart.yaml", CHART / "README.md")]
    pages = {path for text in texts for path in re.findall(r"koordpy/koordpy/blob/main/([^\s)]+)", text)}
    icon = METADATA["icon"].partition("/koordpy/koordpy/main/")[2]
    assert len(pages) >= 5 and icon.endswith(".svg")
    assert [path for path in (*pages, icon) if not (ROOT / path).is_file()] == []


def test_artifact_hub_shows_the_definitions_and_the_image_of_this_version() -> None:
    known = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in DEFINITIONS.iterdir()]
    expected = {
        (one["metadata"]["name"], one["spec"]["names"]["kind"], one["spec"]["versions"][-1]["name"]) for one in known
    }
    assert {(one["name"], one["kind"], one["version"]) for one in HUB["crds"]} == expected
    (image,) = HUB["images"]
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["image"]
    assert image["image"] == f"{values['repository']}:{__version__}"


def test_the_oldest_kubernetes_is_that_of_the_scheduler() -> None:
    assert METADATA["kubeVersion"] == f">={OLDEST[0]}.{OLDEST[1]}.0-0"
    page = (CHART / "README.md").read_text(encoding="utf-8")
    assert f"Kubernetes {OLDEST[0]}.{OLDEST[1]} or newer and Helm 3.14 or newer" in page


def test_every_value_has_a_default_and_every_default_a_schema() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    free = ("resources", "affinity", "config", "issuerRef")

    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        named = set(schema["properties"]) - {"global"}
        assert set(values) == named, path
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in schema["properties"][name] and name not in free:
                compare(value, schema["properties"][name], f"{path}.{name}")

    compare(defaults, schema, "values")


def test_the_default_configuration_is_koordpys() -> None:
    section = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["config"]
    assert read_config(json.dumps(section).encode(), name="values.json") == KoordpyConfiguration()
