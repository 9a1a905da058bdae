# SPDX-License-Identifier: Apache-2.0
"""The API server takes each object, in a dry run, of all values that the pages show, and of those of other tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.assets import REPOSITORY
from tests.e2e.chart import CHART, Helm
from tests.e2e.client import APPLY, Client, Refused
from tests.e2e.installed import path_of
from tests.e2e.test_chart import SEVERAL

Values = dict[str, Any]
KNOWN = yaml.safe_load((CHART / "values.yaml").read_text())
OF_OTHERS = {"monitoring.coreos.com/v1", "cert-manager.io/v1"}
"""Definitions that are somebody else's; an API server of tests has none of them."""
DRY = "dryRun=All&fieldManager=tests&force=true"
TEXTS = {"REGISTRY": "registry.example.com"}
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def settings(text: str) -> list[tuple[str, str]]:
    """(path, value) of every --set and --set-string."""
    return re.findall(r"--set(?:-string)?[ =]([\w.\\/]+)=(\S+)", text)


def put(values: Values, path: str, value: str) -> Values:
    head, _, rest = path.partition(".")
    inner = put(values.get(head) or {}, rest, value) if rest else yaml.safe_load(value)
    return {**values, head: inner}


def shown(text: str) -> Iterator[Values]:
    """The values of a page: of commands of helm, of blocks of YAML, and between backquotes as in a=b."""
    for command in re.findall(r"^ +(?:\$ )?helm \w+ koordpy charts/koordpy(?:.*\\\n)*.*$", text, re.M):
        values: Values = {}
        for path, value in settings(command):
            values = put(values, path, value)
        yield values
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M):
        read = loaded(re.sub("^    ", "", block, flags=re.M))
        if isinstance(read, dict) and read and set(read) <= set(KNOWN):
            yield read
    for path, value in re.findall(r"`([a-z]\w*(?:\.\w+)+)=([^`\s.]+)`", text):
        if path.partition(".")[0] in KNOWN:
            yield put({}, path, value)


def loaded(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def cases() -> Iterator[Any]:
    yield from (pytest.param(values, id=name) for name, values in SEVERAL.items())
    yield pytest.param({"agent": {"delivery": "device-plugin", "cdi": True}}, id="device plugin")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for word, stands_for in TEXTS.items():
            text = text.replace(word, stands_for)
        known: list[Values] = []
        for values in shown(text):
            if values not in known and "podMaxBackof" not in str(values):  # shown because it is refused
                known.append(values)
                yield pytest.param(values, id=f"{page.name}-{len(known)}")


BESIDE: dict[str, Values] = {
    "webhook": {"webhook": {"enabled": True}},
    "agent": {"agent": {"enabled": True}},
    "serviceMonitor": {"serviceMonitor": {"enabled": True}},
    "prometheusRule": {"prometheusRule": {"enabled": True}},
}
"""What a value alone would not show."""


@pytest.mark.parametrize("values", list(cases()))
async def test_an_api_server_takes_what_is_documented(
    values: Values, api: Client, crds: list[str], helm: Helm, namespace: str
) -> None:
    for name, beside in BESIDE.items():
        if name in values:
            values = {**values, name: {**beside[name], **values[name]}}
    release = helm.render(values, "--include-crds=false", namespace=namespace)
    assert {"Deployment", "Job"} <= {one["kind"] for one in release.objects} or values.get("dryRun")
    for manifest in release.objects:
        if manifest["apiVersion"] not in OF_OTHERS:
            try:
                await api.patch(f"{path_of(manifest)}?{DRY}", manifest, content=APPLY)
            except Refused as refused:
                pytest.fail(f"{manifest['kind']} {manifest['metadata']['name']}: {refused}")


def test_the_pages_show_values() -> None:
    found = [case.values[0] for case in cases()]
    assert len(found) > 10
    assert {"dryRun", "webhook", "agent", "serviceMonitor"} <= {name for values in found for name in values}
