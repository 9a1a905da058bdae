# SPDX-License-Identifier: Apache-2.0
"""The chart's files agree with what they are made from: the definitions, the configuration, the version, the values."""

import json
from typing import Any

import yaml

from koordpy import __version__
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.configuration_file import read_config
from tests.charts.configuration_schema import SCHEMA, configuration_schema

CHART = SCHEMA.parent
DEFINITIONS = CHART.parents[1] / "crds"


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
