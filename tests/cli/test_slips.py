# SPDX-License-Identifier: Apache-2.0
"""Slips of the pen that are no faults are warned of, with what was meant; all faults of an object are told."""

import sys
from pathlib import Path

import pytest

from koordpy.api import keys
from koordpy.cli.main import main
from tests.cli.test_manifests import NODE, POD, written
from tests.said import warnings_of

QUOTA = "quota.scheduling.koordinator.sh"


def told(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, *, status: int, name: str = "in.yaml"
) -> list[str]:
    """Lines on stderr of `simulate` with a node and more, without the file's name."""
    path = written(folder, text if name.endswith(".json") else NODE + "---\n" + text, name)
    assert main(["simulate", "-f", path, "-o", "json"]) == status
    out, err = capsys.readouterr()
    assert bool(out) is (status == 0)
    return [line.replace(f"{path}: ", "") for line in err.splitlines()]


def spec(more: str) -> str:
    return POD.replace("schedulerName", f"{more}, schedulerName")


SPREAD = "topologySpreadConstraints: [{topologyKey: a, %s}]"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANTI_AFFINITY = (
    f"affinity: {{podAntiAffinity: {{{REQUIRED}: [{{topologyKey: a, labelSelector: {{matchExpressions: [%s]}}}}]}}}}"
)
EXPRESSIONS = f"spec.affinity.podAntiAffinity.{REQUIRED}[0].labelSelector.matchExpressions"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (POD.replace("metadata", "metadatas"), None),
        (spec("tolerance: []"), []),
        (spec("toleration: []"), ["spec.toleration: unknown field, not read, did you mean tolerations?"]),
        (spec("NodeSelector: {a: b}"), ["spec.NodeSelector: unknown field, not read, did you mean nodeSelector?"]),
        (
            POD.replace("{name: p}", "{name: p, label: {}}"),
            ["metadata.label: unknown field, not read, did you mean labels?"],
        ),
        (
            spec(SPREAD % "maxSkew: 0"),
            ["spec.topologySpreadConstraints[0].maxSkew: 0 is less than 1: the API server would rej"],
        ),
        (
            spec(SPREAD % "minDomains: 0"),
            ["spec.topologySpreadConstraints[0].minDomains: 0 is less than 1: the API server"],
        ),
        (
            spec(SPREAD % "whenUnsatisfiable: Never"),
            ["spec.topologySpreadConstraints[0].whenUnsatisfiable: 'Never' is "],
        ),
        (
            spec(ANTI_AFFINITY % "{key: a, operator: In}, {operator: Exists, values: [b]}"),
            [
                f"{EXPRESSIONS}[0].values: In needs some: the API server would reject it",
                f"{EXPRESSIONS}[1].key: is missing: the API server would reject it",
                f"{EXPRESSIONS}[1].values: Exists takes none: the API server would reject it",
            ],
        ),
        (
            spec(SPREAD % "whenUnsatisfiable: ScheduleAnyway, minDomains: 2"),
            ["spec.topologySpreadConstraints[0].minDomains: needs whenUnsatisfiable DoNotSchedule: the API server"],
        ),
        (spec("tolerations: [{key: a, operator: exists}], preemptionPolicy: never"), []),
        (spec("hostNetwork: false"), []),
        (spec("securityContext: {}, serviceAccountName: a, volumes: [{name: v, projected: {sources: []}}]"), []),
    ],
)
def test_slips_of_a_pod_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, lines: list[str] | None
) -> None:
    if lines is None:
        assert told(tmp_path, capsys, text, status=2) == ["document 2: Pod: metadata.name: is missing"]
        return
    found = told(tmp_path, capsys, text, status=0)
    starts = [f"warning: document 2: Pod default/p: {line}" for line in lines]
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == starts


GROUP = "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: Device\nmetadata: {name: n1}\n"
            "spec: {devices: [{type: GPU, minor: 0}]}\n",
            "Device/n1: spec.devices[0].type: 'GPU' is not read, did you mean gpu?",
        ),
        ("kind: pod\nmetadata: {name: p}\n", "pod of no apiVersion is not read: ignored, did you mean Pod?"),
        ("apiVersion: v1\nkind: Nodes\nmetadata: {name: p}\n", "Nodes of v1 is not read: ignored, did you mean Node?"),
        (
            "apiVersion: v1\nkind: PodGroup\nmetadata: {name: p}\n",
            "PodGroup of v1 is not read: ignored, did you mean a version of scheduling.sigs.k8s.io?",
        ),
        (
            "apiVersion: scheduling.koordinater.sh/v1alpha1\nkind: Device\nmetadata: {name: p}\n",
            "Device of scheduling.koordinater.sh/v1alpha1 is not read: ignored, did you mean a version of"
            " scheduling.koordinator.sh?",
        ),
        (
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: p}\n",
            "Job default/p: koordpy does not create its pods (add them to the input)",
        ),
    ],
)
def test_slips_of_other_objects_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    assert told(tmp_path, capsys, text, status=0) == [f"warning: document 2: {line}"]


def test_keys_that_nobody_reads_are_warned_of_on_every_kind_of_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = POD.replace("{name: p}", "{name: m, labels: {pod-group.scheduling.sigs.k8s.io: g}}")
    texts = [
        NODE.replace("{name: n1}", "{name: n2, labels: {koordpy.io/maintenance-window: later}}"),
        "kind: Device\nmetadata: {name: n1, annotations: {scheduling.koordinator.sh/gpu-partition: '{}'}}\nspec: {}\n",
        "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\n"
        f"metadata: {{name: q, labels: {{{QUOTA}/ignore-default-tree: 'true'}}}}\nspec: {{}}\n",
        GROUP.replace("{name: g}", "{name: g, annotations: {gang.scheduling.koordinator.sh/topology: '{}'}}")
        + "{minMember: 1}\n",
        member,
        POD.replace("{name: p}", "{name: p, annotations: {yunikorn.apache.org/task-group-name: g}}"),
    ]
    assert told(tmp_path, capsys, "---\n".join(texts), status=0) == [
        "warning: Device/n1: annotation scheduling.koordinator.sh/gpu-partition is not read, did you mean annotation"
        " scheduling.koordinator.sh/gpu-partitions?",
        f"warning: ElasticQuota/default/q: label {QUOTA}/ignore-default-tree is not read by koordpy",
        "warning: Node/n2: label koordpy.io/maintenance-window is not read yet",
        "warning: Pod/default/p: annotation yunikorn.apache.org/task-group-name is YuniKorn's key and ignored: "
        "the pod is in no gang;"
        f" {keys.READ_GROUP}",
        "warning: PodGroup/default/g: annotation gang.scheduling.koordinator.sh/topology is not read, did you mean"
        " annotation gang.scheduling.koordinator.sh/networkTopologyAware?",
    ]


def test_what_many_pods_say_in_vain_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = "---\n".join(
        POD.replace("{name: p}", f"{{name: p-{i}, labels: {{{QUOTA}/preemptible: 'no'}}}}") for i in range(500)
    )
    what = f"label {QUOTA}/preemptible cannot be read: 'no' is neither true nor false: true holds"
    named = ", ".join(f"Pod/default/p-{i}" for i in range(4))
    (line,) = told(tmp_path, capsys, pods, status=0)
    assert line.startswith("warning: Pod/default/p-") and line.endswith(f" and 496 more: {what}"), named


def test_a_misspelt_kind_of_all_nodes_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, NODE.replace("kind: Node", "kind: node"))
    assert main(["simulate", "-f", path]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: document 1: node of v1 is not read: ignored, did you mean Node?",
        f"{path}: no Node in the input",
    ]


ELASTIC = "kind: ElasticQuota\nmetadata: {name: %s, labels: {%s}}\nspec: {min: {%s}, max: {%s}}\n"


def test_all_faults_of_an_object_are_told_though_one_field_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [
        spec("priorityClassName: absent, priority: high"),
        ELASTIC % ("a", "", "cpu: 1K, memory: 4, nvidia.com/gpu: 3, x: 1", "cpu: 1, memory: 5, nvidia.com/gpu: 2"),
        ELASTIC % ("b", f"{QUOTA}/parent: a", "cpu: 3", "cpu: 2"),
        ELASTIC % ("c", f"{QUOTA}/parent: nobody", "", "cpu: 2"),
        "kind: ElasticQuota\nmetadata: {name: d}\nspec: {min: {cpu: 1}, max: [cpu]}\n",
        spec("priorityClassName: low").replace("{name: p}", "{name: q}"),
        "kind: PriorityClass\nmetadata: {name: low}\nvalue: little\n",
    ]
    parent = f"metadata.labels[{QUOTA}/parent]"
    assert told(tmp_path, capsys, "---\n".join(texts), status=2) == [
        "document 2: Pod default/p: spec.priority: must be a whole number, not the string 'high'",
        "document 2: Pod default/p: spec.priorityClassName: no PriorityClass absent in the input",
        "document 3: ElasticQuota default/a: spec.min.cpu: '1K' is no quantity (as in 2, 500m, 16Gi)",
        "document 3: ElasticQuota default/a: spec.min[nvidia.com/gpu]: min nvidia.com/gpu 3 > max 2",
        "document 3: ElasticQuota default/a: spec.min.x: min names x, max does not",
        "document 4: ElasticQuota default/b: spec.min.cpu: min cpu 3 > max 2",
        f"document 5: ElasticQuota default/c: {parent}: parent nobody not found",
        "document 6: ElasticQuota default/d: spec.max: must be a mapping, not a list",
        "document 8: PriorityClass/low: value: must be a whole number, not the string 'little'",
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.json", b'{"kind": "Node" // why\n}', "no comments"),
        ("c.json", b'{"kind": "Node", # why\n"metadata": {}}', "no comments"),
        ("c.json", b'{"kind": "Node",}', "comma"),
        ("c.json", b"{'kind': 'Node'}", "JSON has double quotes only"),
        ("c.json", b'\xef\xbb\xbf{"kind": "Node"', "invalid JSON"),
        ("c.yaml", b"kind: Node\nmetadata:\n\tname: n1\n", "(a tab: YAML is indented with spaces)"),
        ("c.yaml", "kind: Node\n".encode("utf-16"), "invalid UTF-8, it is UTF-16 (byte 0xff)"),
        ("c.yaml", b"kind: Node\nmetadata: {name: *who}\n", "the alias *who has no anchor"),
        ("c.yaml", b"kind: Node\nmetadata: &a {name: *a}\n", "the alias *a refers to itself"),
    ],
)
def test_text_that_cannot_be_read_says_where_and_what_is_unusual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: bytes, said: str
) -> None:
    path = written(tmp_path, text, name)
    assert main(["simulate", "-f", path]) == 2
    line, end = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: document 1: line ") and said in line
    assert end == f"{path}: no Node in the input"


@pytest.mark.parametrize("name", ["in.yaml", "in.yml", "in.json"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_marks_line_ends_and_empty_documents_of_other_editors_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, ends: str, start: str
) -> None:
    node = '{"kind": "Node",\n "metadata": {"name": "n1"}}\n'
    text = node if name.endswith(".json") else f"---\n# nothing\n---\n{node}---\n---\n{POD}---\n"
    path = written(tmp_path, (start + text).replace("\n", ends), name)
    assert main(["simulate", "-f", path]) == 0
    assert warnings_of(capsys.readouterr().err) == ""


def test_a_folder_with_links_that_lead_nowhere_names_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, NODE, "a.yaml")
    (tmp_path / "b.yaml").symlink_to("b.yaml")
    (tmp_path / "c.yaml").symlink_to("nowhere")
    (tmp_path / "d.yaml").symlink_to(tmp_path, target_is_directory=True)
    assert main(["simulate", "-f", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/b.yaml: cannot be read: Too many levels of symbolic links",
        f"{tmp_path}/c.yaml: cannot be read: No such file or directory",
    ]


def test_an_empty_name_of_a_file_is_not_the_folder_one_stands_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, NODE, "a.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "-f", ""]) == 2
    assert capsys.readouterr().err == "'': cannot be read: the name is empty\n"


def test_a_closed_standard_input_is_a_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["simulate", "-f", "-"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "-: cannot be read: the standard input is closed"


def test_a_closed_standard_output_is_nobody_to_talk_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    path = written(tmp_path, NODE + "---\n" + spec("toleration: []"))
    assert main(["simulate", "-f", path]) == 0
    assert main(["simulate", "-f", path + "x"]) == 2


def test_wrong_options_are_told_beside_the_faults_of_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, NODE + "---\n- x\n")
    assert main(["simulate", "-f", path, "--now", "soon", "--scheduler-name", ""]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--now: 'soon' is no time (as in 2026-01-01T00:00:00Z)",
        "--scheduler-name: '' is not a valid name of a scheduler (as in koord-scheduler)",
        f"{path}: document 2: must be a mapping, not a list",
    ]


def test_explain_of_a_misspelt_pod_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, NODE + "---\n" + POD.replace("{name: p}", "{name: trainer-0}"))
    assert main(["explain", "-f", path, "--pod", "trianer-0"]) == 2
    said = "--pod trianer-0: no such pod in the input, did you mean default/trainer-0?\n"
    assert warnings_of(capsys.readouterr().err) == said


def gang(name: str, minimum: int, members: int) -> str:
    label = f"labels: {{pod-group.scheduling.sigs.k8s.io: {name}}}"
    pods = [POD.replace("{name: p}", f"{{name: {name}-{i}, {label}}}") for i in range(members)]
    group = GROUP.replace("{name: g}", f"{{name: {name}}}") + f"{{minMember: {minimum}}}\n"
    return "---\n".join([group, *pods])


def nodes(count: int, pods: int) -> str:
    made = [NODE.replace("n1", f"n{i}").replace("'110'", f"'{pods}'") for i in range(count)]
    return "---\n".join(made) + "---\n"


def shown(folder: Path, capsys: pytest.CaptureFixture[str], text: str, *words: str) -> list[str]:
    assert main([words[0], "-f", written(folder, text), *words[1:]]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_gang_without_members_says_in_the_table_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(tmp_path, capsys, nodes(1, 9) + gang("g", 3, 0), "simulate")
    assert "  gang default/g: waiting for members, 0 of minMember 3 exist" in lines


def test_the_table_of_a_large_gang_has_a_line_for_a_node_and_not_for_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(tmp_path, capsys, nodes(8, 10) + gang("g", 80, 80), "simulate")
    rows = [line.split("  ") for line in lines[lines.index("Bindings") + 2 :]]
    assert len(rows) == 8
    first = "default/g-0, default/g-1, default/g-2, default/g-3 and 6 more n0 1"
    assert " ".join(lines[lines.index("Bindings") + 2].split()) == first


def test_explain_has_one_line_for_nodes_that_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = shown(tmp_path, capsys, nodes(50, 10) + gang("g", 2, 2), "explain", "--pod", "g-0")
    many = shown(tmp_path, capsys, nodes(51, 10) + gang("g", 2, 2), "explain", "--pod", "g-0")
    assert sum(line.startswith("  n") for line in few) == 50 + len(["nodeLayer"])
    line, _ = [line for line in many if line.startswith("  n")]
    assert line.startswith("  n0, n1, n2, n3 and 47 more  yes ")


def test_a_misspelt_field_of_the_configuration_names_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, "schedulerName: [a]\ngpu: {objectiv: sum}\nnonsense: 1\n", "config.yaml")
    assert main(["config", "check", config]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{config}: schedulerName: unknown field, did you mean schedulerNames?",
        f"{config}: gpu.objectiv: unknown field, did you mean objective?",
        f"{config}: nonsense: unknown field",
    ]


def test_what_a_terminal_would_obey_is_shown_and_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = (
        "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: ClusterNetworkTopology\nmetadata: {name: default}\n"
    )
    layers = 'spec: {hierarchy: [{layerName: "\\e[31mred", labelKey: a}, {layerName: b, labelKey: b}]}\n'
    (line,) = told(tmp_path, capsys, topology + layers, status=2)
    assert line.endswith(": b and \\x1b[31mred both have no layer below; the layers must form one chain")
    odd = "kind: Pod\nmetadata: {name: p, annotations: {gang.scheduling.koordinator.sh/name: g,\n"
    odd += '  gang.scheduling.koordinator.sh/min-available: "1", gang.scheduling.koordinator.sh/mode: "a\\nb\\x07"}}\n'
    odd += "spec: {schedulerName: koord-scheduler, containers: [{name: c}]}\n"
    (line,) = told(tmp_path, capsys, odd, status=0)
    assert "cannot be read: 'a\\nb\\x07' is neither Strict nor NonStrict" in line
    named = odd.replace("name: g,", 'name: "g\\n\\e[31m",').replace("mode: ", "made: ")
    assert main(["simulate", "-f", written(tmp_path, f"{NODE}---\n{named}", "named.yaml")]) == 0
    table = capsys.readouterr().out
    assert "default/g \\x1b[31m" in table and table.replace("\n", "").isprintable()
    (line,) = told(tmp_path, capsys, 'apiVersion: v1\nkind: "a\\e]0;x\\x07"\nmetadata: {name: p}\n', status=0)
    assert line == "warning: document 2: a\\x1b]0;x\\x07 of v1 is not read: ignored"


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  parallelism: 2
  template:
    spec: {schedulerName: koord-scheduler, containers: [{name: c, image: i}]}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("template:", "templat:", "spec.templat: did you mean template?"),
        (
            "containers:",
            "container:",
            "spec.template.spec.container: unknown field, not read, did you mean containers?",
        ),
        ("spec: {", "spc: {", "spec.template.spc: did you mean spec?"),
        ("spec:\n", "spc:\n", "spc: did you mean spec?"),
        ("template:", "podFailurePolicy:", "spec.podFailurePolicy: not read"),
    ],
)
def test_a_slip_that_takes_a_required_part_away_is_named_in_place_of_it(
    right: str, wrong: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(tmp_path, capsys, JOB.replace(right, wrong, 1), status=2)
    said = said.replace(": did", ": unknown field, not read, did")
    lacking = ["document 2: Job default/j: spec.template.spec.containers: required"]
    assert lines == [f"document 2: Job default/j: {said}", *(lacking if "did you mean" not in said else [])]


def bare(spec: str, meta: str = "name: p") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{{meta}}}\nspec: {{schedulerName: koord-scheduler, {spec}}}\n"


ONE = "containers: [{name: c, image: i}]"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (bare("hostNetwork: false"), "spec.containers"),
        (bare("containers: []"), "spec.containers"),
        (bare("containers: [{image: i}]"), "spec.containers[0].name"),
        (bare("containers: [{name: C_1, image: i}]"), "spec.containers[0].name"),
        (bare("containers: [{name: c, image: i}, {name: c, image: i}]"), "spec.containers[1].name"),
        (bare(f"{ONE}, nodeSelector: {{a: x y}}"), "spec.nodeSelector.a"),
        (bare(f"{ONE}, schedulingGates: [{{name: a}}, {{name: a}}]"), "spec.schedulingGates[1].name"),
        (bare(f"{ONE}, schedulingGates: [{{name: a b}}]"), "spec.schedulingGates[0].name"),
        (bare(f"{ONE}, volumes: [{{name: a}}, {{name: a}}]"), "spec.volumes[1].name"),
        (bare(ONE, "name: p, labels: {a: x y}"), "metadata.labels.a"),
        (bare(ONE, f"name: p, labels: {{a: {'x' * 64}}}"), "metadata.labels.a"),
        (bare(ONE, "name: p, labels: {a b: x}"), "metadata.labels[a b]"),
        (bare(ONE, "name: p, labels: {A.com/b: x}"), "metadata.labels[A.com/b]"),
        (bare(ONE, "name: p, annotations: {a b: x}"), "metadata.annotations[a b]"),
        (
            bare(f"{ONE}, affinity: {{podAntiAffinity: {{{REQUIRED}: [{{labelSelector: {{}}}}]}}}}"),
            f"spec.affinity.podAntiAffinity.{REQUIRED}[0].topologyKey",
        ),
        (bare(ONE, "name: My_Pod"), "metadata.name"),
        (bare(ONE), ""),
        (bare(ONE, "name: p, annotations: {A.com/b: x y, c: ''}, labels: {a: '', b.c/d_E.f: x-1}"), ""),
        (bare(f"{ONE}, tolerations: [{{operator: Exists}}, {{key: a, value: b}}]"), ""),
    ],
)
def test_what_an_api_server_refuses_is_simulated_and_told_and_fails_where_that_is_asked_for(
    text: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(tmp_path, capsys, text, status=0)
    assert [line.partition(": metadata" if field.startswith("meta") else ": spec")[0] for line in lines if field] == (
        [f"warning: document 2: Pod default/{'My_Pod' if field == 'metadata.name' else 'p'}"] if field else []
    )
    assert all(f": {field}: " in line and line.endswith(": the API server would reject it") for line in lines)
    assert bool(lines) is bool(field)
    path = written(tmp_path, NODE + "---\n" + text, "again.yaml")
    assert main(["simulate", "-f", path, "--fail-refused"]) == (1 if field else 0)
