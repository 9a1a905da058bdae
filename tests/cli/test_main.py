# SPDX-License-Identifier: Apache-2.0
"""The commands as a user calls them: status, output, and what is imported for it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy import __version__
from koordpy.cli.main import main
from tests.said import warnings_of

EXAMPLES = Path(__file__).parents[2] / "examples"
NODES = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {disk: ssd}}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
spec: {taints: [{key: k, value: v, effect: NoSchedule}]}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
"""


def pod(name: str, cpu: str, more: str = "") -> str:
    return (
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  schedulerName: koord-scheduler\n{more}"
        f"  containers: [{{name: c, image: img, resources: {{requests: {{cpu: {cpu}}}}}}}]\n"
    )


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    path = tmp_path / "in.yaml"
    path.write_text(
        NODES + pod("small", "0.50") + pod("large", "8") + pod("else", "1", "  nodeSelector: {disk: hdd}\n")
    )
    return str(path)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_simulate_prints_the_contract_as_json(manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(output(capsys, "simulate", "-f", manifests, "-o", "json"))
    assert (result["kind"], result["rounds"], result["stable"]) == ("SimulationResult", 2, True)
    assert [(b["pod"], b["node"], b["round"]) for b in result["bindings"]] == [("small", "n1", 1)]
    assert [p["pod"] for p in result["pending"]] == ["else", "large"]
    assert result["final"] == [{"namespace": "default", "pod": "small", "node": "n1"}]
    assert "Insufficient cpu" in result["pending"][1]["message"]


def test_yaml_says_the_same_as_json(manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    as_json = output(capsys, "simulate", "-f", manifests, "-o", "json")
    assert yaml.safe_load(output(capsys, "simulate", "-f", manifests, "-o", "yaml")) == json.loads(as_json)


def test_the_table_names_bindings_and_reasons(manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "simulate", "-f", manifests).splitlines()
    assert lines[0] == "2 rounds, stable: 1 bound, 2 pending, 0 evicted"
    assert "  default/small  n1    1" in lines
    assert "  default/large: NeverFits" in lines
    assert any(line.startswith("      0/2 nodes are available:") for line in lines)


def turned(value: Any) -> Any:
    """The same with the keys of every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", [("simulate",), ("explain", "--pod", "default/large")])
def test_the_order_of_keys_changes_no_byte(
    manifests: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    documents = list(yaml.safe_load_all(Path(manifests).read_text()))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"items": [turned(document) for document in documents], "kind": "List"}))
    expected = output(capsys, *command, "-f", manifests, "-o", "json")
    assert output(capsys, *command, "-f", str(other), "-o", "json") == expected


def test_explain_gives_each_node_its_verdict(manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(output(capsys, "explain", "-f", manifests, "--pod", "default/small", "-o", "json"))
    assert list(found) == [
        "pod",
        "gang",
        "origin",
        "round",
        "node",
        "reason",
        "feasibleNodes",
        "nodes",
        "domains",
        "numa",
        "message",
        "wouldFitIf",
        "evictions",
        "method",
        "queue",
    ]
    assert (found["pod"], found["gang"], found["feasibleNodes"]) == ("default/small", None, 1)
    first, second = found["nodes"]
    assert (first["node"], first["feasible"], first["reasons"]) == ("n1", True, [])
    assert (second["node"], second["feasible"]) == ("n2", False)
    assert second["reasons"] == [
        {
            "plugin": "TaintToleration",
            "code": "UnschedulableAndUnresolvable",
            "message": "node(s) had untolerated taint(s)",
        }
    ]


def test_explain_is_readable_as_a_table(manifests: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "explain", "-f", manifests, "--pod", "small").splitlines()
    assert lines[0] == "default/small: fits on 1 of 2 nodes"
    assert any(line.split()[:2] == ["n1", "yes"] for line in lines)
    assert any("untolerated taint" in line for line in lines)


def test_explain_says_that_a_finished_pod_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(NODES + pod("done", "1") + "status: {phase: Succeeded}\n")
    found = json.loads(output(capsys, "explain", "-f", str(path), "--pod", "default/done", "-o", "json"))
    assert (found["message"], found["nodes"]) == ("pod is finished", [])


@pytest.mark.parametrize(
    ("scheduler", "spec", "said"),
    [
        ("koord-scheduler", "  nodeName: n1\n", "pod is bound to n1"),
        ("koord-scheduler", "  schedulingGates: [{name: a}, {name: b}]\n", "pod has scheduling gates: a, b"),
        ("other", "", "pod has schedulerName other, koordpy handles koord-scheduler"),
    ],
)
def test_explain_says_why_a_pod_is_not_to_be_placed(
    scheduler: str, spec: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(NODES + pod("p", "1", spec).replace("koord-scheduler", scheduler))
    found = json.loads(output(capsys, "explain", "-f", str(path), "--pod", "default/p", "-o", "json"))
    assert (found["message"], found["nodes"]) == (said, [])


def test_a_scheduler_name_given_replaces_the_configured_ones(
    manifests: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("schedulerNames: [other]\n")
    common = ("simulate", "-f", manifests, "-o", "json", "--config", str(config))
    assert json.loads(output(capsys, *common))["bindings"] == []
    again = json.loads(output(capsys, *common, "--scheduler-name", "koord-scheduler"))
    assert len(again["bindings"]) == 1


def test_an_ignored_object_is_warned_of_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(NODES + "---\nkind: Ingress\napiVersion: networking.k8s.io/v1\nmetadata: {name: s}\n")
    assert main(["simulate", "-f", str(path), "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"warning: {path}: document 3: Ingress of networking.k8s.io/v1 is not read: ignored\n"
    assert json.loads(out)["stable"] is True


@pytest.mark.parametrize("settings", ["{}\n", "filters: {podTopologySpread: {defaultingType: System}}\n"])
def test_services_are_taken_without_a_word(settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, config = tmp_path / "in.yaml", tmp_path / "config.yaml"
    path.write_text(NODES + "---\nkind: Service\napiVersion: v1\nmetadata: {name: s}\n")
    config.write_text(settings)
    assert main(["simulate", "-f", str(path), "-o", "json", "--config", str(config)]) == 0
    assert capsys.readouterr().err == ""


def test_config_check_names_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("fairness: {mode: best}\nx: 1\n")
    assert main(["config", "check", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: fairness.mode: must be one of exact, gpu-count, kai, off, not 'best'",
        f"{path}: x: unknown field",
    ]
    path.write_text("fairness: {mode: exact}\n")
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: valid\n"


def test_config_check_reads_the_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fairness: {mode: best}")))
    assert main(["config", "check", "-"]) == 2
    assert capsys.readouterr().err.startswith("-: fairness.mode: must be one of ")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fairness: {mode: exact}")))
    assert main(["config", "check", "-"]) == 0
    assert capsys.readouterr().out == "-: valid\n"


def test_config_check_warns_of_the_name_that_kube_scheduler_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("schedulerNames: [default-scheduler]\n")
    assert main(["config", "check", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{path}: valid\n" and err.startswith(f"warning: {path}: schedulerNames: kube-scheduler also")


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "version") == f"koordpy {__version__}\n"


def leave(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    """(status, output, errors) of a call that argparse ends."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code, *capsys.readouterr()


def test_who_asks_for_help_or_the_version_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = leave(capsys, "--help")
    assert (status, err) == (0, "") and "simulate" in out
    for words in ((), ("help",)):
        assert leave(capsys, *words) == (0, out, "")
    assert leave(capsys, "help", "simulate") == leave(capsys, "simulate", "--help")
    assert leave(capsys, "--version") == (0, f"koordpy {__version__}\n", "")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("simulat", "unknown command 'simulat', did you mean simulate?"),
        ("nonsense", "unknown command 'nonsense', koordpy help names them"),
    ],
)
def test_an_unknown_command_is_named_with_what_was_meant(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((word, "-f", "x"), ("help", word)):
        status, _, err = leave(capsys, *words)
        assert status == 2 and said in err


@pytest.mark.parametrize("arguments", [("nonsense",), ("simulate",), ("simulate", "-f", "x", "--rounds", "0")])
def test_a_wrong_call_ends_with_status_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: koordpy")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "ortools", "networkx", "kopf", "aiohttp", "yaml", "rich", "msgspec", "kubernetes_asyncio")
    script = (
        "import sys\nfrom koordpy.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert "simulate" in done.stdout
    assert done.stderr == "[]\n"


def test_a_small_cluster_with_a_topology_waits_for_nothing_heavy() -> None:
    heavy = ("ortools", "networkx", "kopf", "aiohttp", "rich", "kubernetes_asyncio", "asyncio", "cel_expr_python")
    words = ["simulate", "-f", str(EXAMPLES / "cluster"), "-f", str(EXAMPLES / "must-gather.yaml")]
    script = (
        f"import sys\nfrom koordpy.cli.main import main\nmain({words!r})\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert "Scheduled" in done.stdout
    assert warnings_of(done.stderr) == "[]\n"


def test_a_reader_that_leaves_early_is_no_fault(manifests: str) -> None:
    command = [sys.executable, "-m", "koordpy", "simulate", "-f", manifests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert warnings_of(process.stderr.read().decode()) == ""
        assert process.wait(timeout=300) == 0


def test_the_output_is_the_same_whatever_the_locale(tmp_path: Path) -> None:
    """A name that ASCII lacks, and the lines of a tree."""
    manifests = tmp_path / "in.yaml"
    manifests.write_text(NODES.replace("{name: n1,", "{name: n\u00f61,"), encoding="utf-8")
    commands = (["simulate", "-o", "json"], ["topology", "--nodes", "-o", "tree"])
    both = f"from koordpy.cli.main import main; [main([*words, '-f', {str(manifests)!r}]) for words in {commands!r}]"
    said = [
        subprocess.run(
            [sys.executable, "-c", both],
            env={**os.environ, "PYTHONIOENCODING": coding},
            capture_output=True,
            timeout=300,
            check=True,
        ).stdout.decode()
        for coding in ("ascii", "utf-8", "latin-1")
    ]
    assert said[0] == said[1] == said[2]
    assert '"kind": "SimulationResult"' in said[0] and "n\u00f61" in said[0].partition("\n}\n")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (("simulate", "-f", "x", "--rounds", text), "is not a whole number of 1 or more")
            for text in ("0", "x", "1.5")
        ),
        (("demo", "--speed", "abc"), "is not a number from 0.1 to 100"),
        (("demo", "--speed", "0"), "is not a number from 0.1 to 100"),
        (("agent", "--poll", "inf"), "is not a number of seconds above 0"),
        (("agent", "--recover-after", "0"), "is not a whole number of 1 or more"),
    ],
)
def test_a_wrong_number_is_told_with_its_option(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = leave(capsys, *words)
    assert status == 2 and f"argument {words[-2]}: {words[-1]!r} {said}\n" in err


@pytest.mark.parametrize("name", ["koordscheduler", "koordpy"])
def test_the_table_says_of_pods_that_wait_for_somebody_else_that_they_do(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.yaml"
    strange = "\n---\n".join(pod(f"p{i}", "1").replace("koord-scheduler", name) for i in range(6))
    assert name in strange
    path.write_text(f"{NODES}\n---\n{strange}")
    assert main(["simulate", "-f", str(path)]) == 0
    assert capsys.readouterr().out.endswith(
        "Ignored\n  default/p0, default/p1, default/p2, default/p3 and 2 more: "
        f"pod has schedulerName {name}, koordpy handles koord-scheduler, did you mean koord-scheduler?\n"
    )
