# SPDX-License-Identifier: Apache-2.0
"""Bad input of the offline commands: exit status 2, nothing on stdout, one line for every fault (kube-parity.md 7)."""

import io
import os
import threading
from pathlib import Path

import pytest

from koordpy.cli.main import main
from koordpy.offline.loaded_manifests import Loaded
from koordpy.offline.manifests import load_manifests

NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: '4', memory: 8Gi, pods: '110'}}\n"
POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {schedulerName: koord-scheduler, containers: [{name: c}]}\n"
)
TOPOLOGY = "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: ClusterNetworkTopology\nmetadata: {name: default}\n"


def written(folder: Path, text: str | bytes, name: str = "in.yaml") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def loaded(folder: Path, text: str) -> Loaded:
    found = load_manifests([written(folder, text)])
    assert found.fault_lines == []
    return found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("- a\n", ["document 2: must be a mapping, not a list"]),
        ("just words\n", ["document 2: must be a mapping, not a string"]),
        (POD.replace("kind: Pod\n", ""), ["document 2: kind: is missing"]),
        (POD.replace("kind: Pod", "kind: 5"), ["document 2: kind: must be a string, not a number"]),
        (POD.replace("{name: p}", "{}"), ["document 2: Pod: metadata.name: is missing"]),
        (POD.replace("{name: p}", "null"), ["document 2: Pod: metadata.name: is missing"]),
        (POD.replace("{name: p}", "[]"), ["document 2: Pod: metadata: must be a mapping, not a list"]),
        (POD.replace("name: p}", "name: 5}"), ["document 2: Pod: metadata.name: must be a string, not the number 5"]),
        (POD.replace("name: p}", "name: a/b}"), ["document 2: Pod default/a/b: metadata.name: 'a/b' contains a slash"]),
        (
            POD.replace("name: p}", "name: p, name: q}"),
            ["document 2: line 8, column 21: the key 'name' is given twice"],
        ),
        (
            POD.replace("name: p}", "name: p, namespace: prod, labels: {a.b/c: 1, d: true}}"),
            [
                "document 2: Pod prod/p: metadata.labels[a.b/c]: must be a string, not the number 1",
                "document 2: Pod prod/p: metadata.labels.d: must be a string, not the boolean true",
            ],
        ),
        (
            "---\n# empty, not counted\n---\n" + POD.replace("[{name: c}]", "none"),
            ["document 2: Pod default/p: spec.containers: must be a list, not the string 'none'"],
        ),
        (
            "kind: List\nitems:\n- 5\n- kind: Pod\n- kind: PodList\n  items: [{metadata: {name: 1}}]\n",
            [
                "document 2: items[0]: must be a mapping, not a number",
                "document 2: items[1]: Pod: metadata.name: is missing",
                "document 2: items[2]: items[0]: Pod: metadata.name: must be a string, not the number 1",
            ],
        ),
        ("kind: List\nitems: {a: b}\n", ["document 2: List: items: must be a list, not a mapping"]),
        (
            NODE,
            ["document 2: Node/n1: metadata.name: duplicate object, already defined in PATH: document 1"],
        ),
        (
            POD + "---\n" + POD.replace("name: p}", "name: p, namespace: default}"),
            ["document 3: Pod default/p: metadata.name: duplicate object, already defined in PATH: document 2"],
        ),
        (
            TOPOLOGY + "spec: {hierarchy: [{layerName: a, labelKey: a, parentTopologyLayer: zz}]}",
            [
                "document 2: ClusterNetworkTopology/default: spec.hierarchy[0].parentTopologyLayer:"
                " unknown layer 'zz' above a"
            ],
        ),
        (
            POD.replace("schedulerName", "priorityClassName: high, schedulerName"),
            ["document 2: Pod default/p: spec.priorityClassName: no PriorityClass high in the input"],
        ),
        (
            "apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: g}\n"
            "spec: {priorityClassName: high}\n",
            ["document 2: PodGroup default/g: spec.priorityClassName: no PriorityClass high in the input"],
        ),
        (
            "kind: null\n---\n" + POD.replace("schedulerName", "priorityClassName: a, schedulerName") + "---\n- x\n",
            [
                "document 2: kind: is missing",
                "document 3: Pod default/p: spec.priorityClassName: no PriorityClass a in the input",
                "document 4: must be a mapping, not a list",
            ],
        ),
    ],
)
def test_every_fault_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, lines: list[str]
) -> None:
    path = written(tmp_path, NODE + "---\n" + text)
    assert main(["simulate", "-f", path, "-o", "json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"{path}: {line.replace('PATH', path)}" for line in lines]


def test_the_faults_of_all_files_and_of_the_configuration_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = written(tmp_path, NODE + "---\n- a\n", "a.yaml")
    second = written(tmp_path, '{"kind": "Node", ', "b.json")
    third = written(tmp_path, NODE.encode() + b"---\nkind: \xff\n", "c.yaml")
    config = written(tmp_path, "nonsense: 1\n", "config.yaml")
    missing = str(tmp_path / "none")
    arguments = ["simulate", "-f", first, "-f", missing, "-f", second, "-f", third, "--config", config]
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{config}: nonsense: unknown field",
        f"{first}: document 2: must be a mapping, not a list",
        f"{missing}: cannot be read: No such file or directory",
        f"{second}: document 1: line 1, column 18: invalid JSON: Expecting property name enclosed in double quotes",
        f"{third}: document 1: Node/n1: metadata.name: duplicate object, already defined in {first}: document 1",
        f"{third}: document 2: line 6: invalid UTF-8 (byte 0xff)",
    ]


def test_a_file_given_twice_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = "".join("---\n" + POD.replace("{name: p}", f"{{name: p{i}}}") for i in range(4))
    first, second = written(tmp_path, NODE + pods, "a.yaml"), written(tmp_path, NODE + pods, "b.yaml")
    same = f"document 1: Node/n1: metadata.name: duplicate object, already defined in {first}: document 1"
    assert main(["simulate", "-f", first, "-f", first, "-f", second]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{first}: 5 objects are defined twice in it; the first: {same}",
        f"{second}: 5 objects are also defined in {first}; the first: {same}",
    ]


def test_a_missing_file_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none")
    assert main(["simulate", "-f", missing, "-f", written(tmp_path, POD)]) == 2
    assert capsys.readouterr().err == f"{missing}: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("text", ["", "---\n---\n# nothing\n", POD])
def test_an_input_without_a_node_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = written(tmp_path, text)
    assert main(["simulate", "-f", path]) == 2
    assert capsys.readouterr().err == f"{path}: no Node in the input\n"


@pytest.mark.parametrize("name", ["other/nobody", "nobody", "kube-system/p"])
def test_a_pod_that_is_not_in_the_input_cannot_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = written(tmp_path, NODE + "---\n" + POD)
    assert main(["explain", "-f", path, "--pod", name]) == 2
    assert capsys.readouterr().err == f"--pod {name}: no such pod in the input\n"


@pytest.mark.parametrize("now", ["soon", "2026-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], now: str) -> None:
    assert main(["simulate", "-f", written(tmp_path, NODE), "--now", now]) == 2
    assert capsys.readouterr().err == f"--now: {now!r} is no time (as in 2026-01-01T00:00:00Z)\n"


def test_the_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(b"- a\n")

    monkeypatch.setattr("sys.stdin", Input())
    assert main(["simulate", "-f", "-"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "-: document 1: must be a mapping, not a list"


def test_a_folder_gives_its_manifests_in_order_of_name(tmp_path: Path) -> None:
    written(tmp_path, POD.replace("name: p}", "name: second}"), "b.yml")
    written(tmp_path, NODE, "a.yaml")
    written(tmp_path, '{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "third"}}', "c.json")
    written(tmp_path, "no manifest", "d.txt")
    (tmp_path / "deeper.yaml").mkdir()
    found = load_manifests([str(tmp_path)])
    assert found.fault_lines == []
    assert [manifest.title for manifest in found.manifests] == ["Node/n1", "Pod default/second", "Pod default/third"]
    assert [Path(manifest.place.path).name for manifest in found.manifests] == ["a.yaml", "b.yml", "c.json"]


def test_what_is_no_part_of_a_placement_is_ignored_with_a_warning(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        NODE
        + "---\nkind: Ingress\napiVersion: networking.k8s.io/v1\nmetadata: {name: s}\n"
        + "---\nkind: ResourceQuota\napiVersion: v1\nmetadata: {name: q}\n"
        + "---\nkind: Queue\napiVersion: scheduling.volcano.sh/v1beta1\nmetadata: {name: g}\n",
    )
    path = str(tmp_path / "in.yaml")
    assert found.warnings == [
        f"{path}: document 2: Ingress of networking.k8s.io/v1 is not read: ignored",
        f"{path}: document 4: Queue of scheduling.volcano.sh/v1beta1 is not read: ignored",
    ]
    assert [manifest.title for manifest in found.manifests] == ["Node/n1"]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + NODE.replace("\n", "\r\n"),
        NODE.replace("metadata:", "spec: null\nmetadata:"),
        NODE.replace("{name: n1}", "{name: n1, creationTimestamp: 2026-01-01T00:00:00Z, finalizers: null}"),
        "kind: List\napiVersion: v1\nmetadata: {resourceVersion: ''}\nitems:\n- kind: Node\n  metadata: {name: n1}\n",
        NODE + "---\nkind: List\nitems: null\n",
        "kind: Node\nmetadata: &m {name: n1}\nextra: {<<: *m}\n",
    ],
)
def test_what_is_unusual_but_right_passes(tmp_path: Path, text: str) -> None:
    assert [manifest.title for manifest in loaded(tmp_path, text).manifests] == ["Node/n1"]


def test_groups_of_one_custom_resource_are_one_kind_and_those_of_others_are_not(tmp_path: Path) -> None:
    group = "kind: PodGroup\napiVersion: {}/v1alpha1\nmetadata: {{name: g}}\n"
    ours, theirs = group.format("scheduling.sigs.k8s.io"), group.format("scheduling.k8s.io")
    assert len(loaded(tmp_path, "---\n".join([NODE, ours, theirs])).manifests) == 3
    again = group.format("scheduling.x-k8s.io")
    (line,) = load_manifests([written(tmp_path, "---\n".join([NODE, ours, again]))]).fault_lines
    assert "document 3: PodGroup default/g: metadata.name: duplicate object" in line


def test_a_pipe_is_read_and_one_that_nobody_writes_to_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "in.yaml"
    os.mkfifo(pipe)
    assert load_manifests([str(pipe)]).fault_lines[0] == f"{pipe}: cannot be read: a pipe without a writer"
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, NODE.encode())
    threading.Timer(0.2, os.close, [writer]).start()
    assert [one.title for one in load_manifests([str(pipe)]).manifests] == ["Node/n1"]
