# SPDX-License-Identifier: Apache-2.0
"""Every manifest and configuration that a page shows is one that the commands take, without a warning."""

import contextlib
import io
import re
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, NamedTuple

import pytest
import yaml

from koordpy.cli.main import main
from tests.docs.worked import ROOT, blocks_of
from tests.said import warnings_of

CLUSTER = str(ROOT / "examples" / "cluster")
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
_KEY = re.compile(r"[A-Za-z][\w./-]*:(?: +(?:\S+|[\[{\"'].*))?(?: *#.*)?\n")
"""A line with a key and at most one value, not a message with a colon."""
OTHERS = {
    "agent": "values of the chart",
    "env": "a part of a container",
    "gang.scheduling.koordinator.sh/networkTopologyAware": "an annotation",
    "gpus": "a machine of the agent's",
    "metadata": "a part of a quota",
    "podFailurePolicy": "a part of a Job",
    "schedulerName": "a part of a pod",
    "total": "queues of fairshare",
}
"""First key of what is neither -> what it is."""
TAUGHT = "extending.md"
"""Its inputs need what the page adds to the code, and are tried with it."""
EXPECTED = re.compile(r"koordpy does not create its pods|no gather goal|(Role of rbac\S+) is not read: ignored$")


class Shown(NamedTuple):
    """A block of YAML on a page."""

    page: str
    text: str
    objects: list[dict[str, Any]]

    def __str__(self) -> str:
        first = self.objects[0]
        return f"{self.page}: {first.get('kind') or next(iter(first))}"


def shown(page: Path) -> list[Shown]:
    """Its blocks of YAML, fenced or indented, that are mappings."""
    text = page.read_text(encoding="utf-8")
    found = [block.text for block in blocks_of(page) if block.language == "yaml"]
    found += [dedent(block) for block in _INDENTED.findall(_FENCED.sub("", text))]
    out = []
    for block in found:
        with contextlib.suppress(yaml.YAMLError):
            objects = list(yaml.safe_load_all(block))
            # a key with blanks is prose, as `Normal  GangScheduled  4 of 4 members bound; ...: ...`
            if all(isinstance(one, dict) and not any(" " in str(key) for key in one) for one in objects):
                out.append(Shown(page.name, block, objects))
    return out


def unreadable(page: Path) -> list[str]:
    """Its blocks that are not valid YAML, although they are fenced as YAML, or begin with a key."""
    text = page.read_text(encoding="utf-8")
    found = [block.text for block in blocks_of(page) if block.language == "yaml"]
    found += [one for block in _INDENTED.findall(_FENCED.sub("", text)) if _KEY.match(one := dedent(block))]
    out = []
    for block in found:
        try:
            list(yaml.safe_load_all(block))
        except yaml.YAMLError:
            out.append(block)
    return out


EVERYTHING = [one for page in PAGES if page.name != TAUGHT for one in shown(page)]
MANIFESTS = [one for one in EVERYTHING if one.objects[0].get("kind", "KoordpyConfiguration") != "KoordpyConfiguration"]
REST = [one for one in EVERYTHING if one not in MANIFESTS]
CONFIGURATIONS = [one for one in REST if next(iter(one.objects[0])) not in OTHERS]


def told(words: list[str]) -> tuple[int, str]:
    """Exit status and what is said on the standard error."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        return main(words), warnings_of(err.getvalue())


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").glob("*/*.md"))], ids=lambda page: page.name)
def test_blocks_of_yaml_can_be_read(page: Path) -> None:
    assert unreadable(page) == []


def test_blocks_that_cannot_be_read_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    wrong = "quota:\n        a: 1      # comment\n  b: 2\n"
    page.write_text(
        f"text\n\n{indent(wrong, '    ')}\nmore\n\n    preemption: 0/4 nodes are available: 1\n\n```yaml\n{wrong}```\n"
    )
    assert unreadable(page) == [wrong, wrong]


@pytest.mark.parametrize("one", MANIFESTS, ids=str)
def test_a_manifest_is_taken(one: Shown, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(one.text)
    own = any(item.get("kind") == "ClusterNetworkTopology" for item in one.objects)
    nodes = str(ROOT / "examples" / "cluster" / "nodes.yaml") if own else CLUSTER
    status, said = told(["simulate", "-f", nodes, "-f", str(tmp_path / "in.yaml")])
    assert (status, [line for line in said.splitlines() if not EXPECTED.search(line)]) == (0, [])


@pytest.mark.parametrize("one", CONFIGURATIONS, ids=str)
def test_a_configuration_is_valid(one: Shown, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(one.text)
    assert told(["config", "check", str(tmp_path / "config.yaml")]) == (0, "")


def test_there_are_some_of_both_and_nothing_else() -> None:
    assert len(MANIFESTS) >= 8 and len(CONFIGURATIONS) >= 6
    assert {next(iter(one.objects[0])) for one in REST if one not in CONFIGURATIONS} == set(OTHERS)
