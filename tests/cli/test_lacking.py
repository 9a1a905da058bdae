# SPDX-License-Identifier: Apache-2.0
"""What the input lacks is told: groups and quotas that running pods name, pods that nobody wrote down."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from koordpy.cli.main import main
from tests.cli.test_manifests import NODE
from tests.said import warnings_of

APPS = "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec: {spec}\n"
MATCHING = "{selector: {matchLabels: {app: web}}}"


def running(name: str, more: str = "", labels: dict[str, str] | None = None) -> str:
    """A pod on node n1."""
    meta = f"{{name: {name}, labels: {labels or {}}{more}}}"
    return f"kind: Pod\nmetadata: {meta}\nspec: {{nodeName: n1, containers: [{{name: c}}]}}\n"


def warned(folder: Path, capsys: pytest.CaptureFixture[str], *texts: str, command: tuple[str, ...] = ()) -> list[str]:
    path = folder / "in.yaml"
    path.write_text("---\n".join((NODE, *texts)))
    assert main([*(command or ("simulate",)), "-f", str(path)]) == 0
    return warnings_of(capsys.readouterr().err).replace(f"{path}: ", "").splitlines()


def test_groups_and_quotas_that_running_pods_name_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_gang = [running(f"p{i}", labels={keys.LABEL_POD_GROUP: f"g{i // 2}"}) for i in range(12)]
    of_quota = running("q", labels={keys.QUOTA_NAME: "team"})
    built_in = running("d", labels={keys.QUOTA_NAME: keys.BUILT_IN_QUOTAS[0]})
    own = running("o", labels={keys.LABEL_GANG_NAME: "own", keys.LABEL_GANG_MIN: "1"})
    texts = (*of_gang, of_quota, built_in, own)
    for command in (("simulate",), ("explain", "--pod", "q")):
        assert warned(tmp_path, capsys, *texts, command=command) == [
            "warning: 6 PodGroups that running pods name are not in the input: default/g0, default/g1, default/g2, "
            "default/g3 and 2 more (if this is a dump, add podgroups to kubectl get)",
            "warning: 1 ElasticQuota that running pods name is not in the input: team"
            " (if this is a dump, add elasticquotas to kubectl get)",
        ]
    groups = [
        yaml.safe_dump(
            {"apiVersion": f"{keys.GROUP_SIGS}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {}}
        )
        for kind, name in (*(("PodGroup", f"g{i}") for i in range(6)), ("ElasticQuota", "team"))
    ]
    assert warned(tmp_path, capsys, *texts, *groups) == []


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet"])
def test_a_controller_whose_pods_nobody_wrote_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    controller = APPS.format(kind=kind, spec=MATCHING)
    told = f"warning: document 2: {kind} default/web: koordpy does not create its pods (add them to the input)"
    assert warned(tmp_path, capsys, controller) == [told]
    assert warned(tmp_path, capsys, controller, running("other", labels={"app": "other"})) == [told]
    assert warned(tmp_path, capsys, controller, running("web-0", labels={"app": "web"})) == []
    owner = f", ownerReferences: [{{apiVersion: apps/v1, kind: {kind}, name: web, uid: u, controller: true}}]"
    assert warned(tmp_path, capsys, controller, running("web-0", owner)) == []
    assert warned(tmp_path, capsys, APPS.format(kind=kind, spec="{replicas: 0}")) == []


def test_pending_pods_fail_the_command_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = ("kind: Pod\nmetadata: {name: %s}\nspec: {schedulerName: koord-scheduler, containers: [%s]}\n",) * 2
    path = tmp_path / "in.yaml"
    path.write_text("---\n".join((NODE, small % ("p", "{name: c}"))))
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == 0
    path.write_text(path.read_text() + "---\n" + large % ("q", "{name: c, resources: {requests: {cpu: 1000}}}"))
    assert main(["simulate", "-f", str(path)]) == 0
    assert "default/q: NeverFits" in capsys.readouterr().out
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == 1
    assert "default/q: NeverFits" in capsys.readouterr().out


JOB = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: train}\n"
OWNED = """kind: Pod
metadata: {name: p, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: %s, uid: u, controller: true}]}
spec: {nodeName: n1, containers: [{name: c}]}
"""


@pytest.mark.parametrize(
    ("objects", "status"),
    [
        ([JOB], 1),
        ([JOB, OWNED % "train"], 0),
        ([JOB, OWNED % "other"], 1),
        ([JOB, "kind: Pod\nmetadata: {name: train-0}\nspec: {nodeName: n1, containers: [{name: c}]}\n"], 0),
        ([APPS.format(kind="StatefulSet", spec=MATCHING)], 1),
        (["apiVersion: sparkoperator.k8s.io/v1beta2\nkind: SparkApplication\nmetadata: {name: train}\n"], 1),
    ],
)
def test_what_makes_pods_that_nobody_wrote_fails_it_too(objects: list[str], status: int, tmp_path: Path) -> None:
    path = tmp_path / "in.yaml"
    path.write_text("---\n".join((NODE, *objects)))
    assert main(["simulate", "-f", str(path)]) == 0
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == status


@pytest.mark.parametrize("spec", ["", "spec: 1", "spec: {template: []}"])
def test_a_template_that_cannot_be_read_is_of_no_gang(tmp_path: Path, spec: str) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(f"{NODE}---\n{JOB}{spec}\n")
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == 1


def job(schedulerName: str = "koord-scheduler", kind: str = "Job", status: Any = None, **spec: Any) -> str:
    """A Job whose pods nobody wrote."""
    template = {"spec": {"schedulerName": schedulerName, "containers": [{"name": "c"}]}}
    raw = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": kind, "metadata": {"name": "train"}, "status": status}
    return yaml.safe_dump({**raw, "spec": {"template": template, **spec}})


def ended(kind: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status}]}


@pytest.mark.parametrize(
    ("maker", "status"),
    [
        (job(), 1),
        (job(suspend=False, completions=2), 1),
        (job(suspend=True), 0),
        (job(status=ended("Complete")), 0),
        (job(status=ended("Failed")), 0),
        (job(status=ended("Complete", "False")), 1),
        (job(status=ended("Suspended")), 1),
        (job(parallelism=0), 0),
        (job(completions=0), 0),
        (job("default-scheduler"), 0),
        (job(""), 0),
        (job("volcano"), 0),
        (job("koord-schedular"), 1),
        (job("default-scheduler", template={"spec": {"template": {"spec": {"containers": []}}}}), 0),
        (job(template={"spec": {"template": {"spec": {"containers": [], "schedulerName": "koord-scheduler"}}}}), 1),
        (
            "apiVersion: batch.volcano.sh/v1\nkind: Job\nmetadata: {name: t}\nspec: {schedulerName: koord-scheduler,"
            " tasks: [{template: {spec: {containers: []}}}]}\n",
            1,
        ),
    ],
)
def test_workloads_without_pods_fail_it_where_koordpy_would_place_pods_now(
    maker: str, status: int, tmp_path: Path
) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(f"{NODE}---\n{maker}")
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == status


def test_it_is_said_whose_the_pods_that_nobody_wrote_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "warning: document 2: Job default/train: koordpy does not create its pods (add them to the input)"
    assert warned(tmp_path, capsys, job()) == [told]
    serves = "koordpy handles koord-scheduler"
    assert warned(tmp_path, capsys, job("")) == [f"{told}; they would have schedulerName default-scheduler, {serves}"]
    slip = f"{told}; they would have schedulerName koord-schedular, {serves}, did you mean koord-scheduler?"
    assert warned(tmp_path, capsys, job("koord-schedular")) == [slip]
    assert warned(tmp_path, capsys, job(suspend=True)) == []
    assert warned(tmp_path, capsys, job(), OWNED % "train") == []


def waiting(**spec: Any) -> str:
    raw = {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}], **spec}
    return yaml.safe_dump({"kind": "Pod", "metadata": {"name": "w"}, "spec": raw})


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (
            waiting(schedulerName="koord-schedular"),
            "pod has schedulerName koord-schedular, koordpy handles koord-scheduler, did you mean koord-scheduler?",
        ),
        (waiting(schedulingGates=[{"name": "x/held"}]), "pod has scheduling gates: x/held"),
    ],
)
def test_pods_left_alone_that_are_meant_for_koordpy_fail_it(
    pod: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(f"{NODE}---\n{pod}")
    assert main(["simulate", "-f", str(path)]) == 0
    out, err = capsys.readouterr()
    assert f"Ignored\n  default/w: {why}\n" in out and not warnings_of(err)
    assert main(["simulate", "-f", str(path), "--fail-pending", "-o", "json"]) == 1
    assert warnings_of(capsys.readouterr().err) == f"warning: default/w: {why}\n"


def test_a_scheduler_of_which_pods_run_is_no_misspelt_one(tmp_path: Path) -> None:
    path = tmp_path / "in.yaml"
    runs = running("r").replace("nodeName", "schedulerName: koord-scheduler-b, nodeName")
    path.write_text("---\n".join((NODE, waiting(schedulerName="koord-scheduler-b"), job("koord-scheduler-b"))))
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == 1
    path.write_text(f"{path.read_text()}---\n{runs}")
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == 0


def test_pods_of_others_that_wait_do_not_fail_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(NODE + "---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    assert main(["simulate", "-f", str(path), "--fail-pending"]) == 0
    assert "Ignored" in capsys.readouterr().out


def test_the_table_proves_nothing_of_a_gang_that_ran_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = {keys.LABEL_POD_GROUP: "g"}
    group = f"apiVersion: {keys.GROUP_SIGS}/v1alpha1\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {{minMember: 2}}\n"
    assert warned(tmp_path, capsys, group, *(running(f"p{i}", labels=label) for i in range(2))) == []
    path = str(tmp_path / "in.yaml")
    assert main(["simulate", "-f", path]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if "default/g" in line)
    assert row[:4] == ["default/g", "Scheduled", "2/2", "2"] and row[-1] == "-"
    assert main(["simulate", "-f", path, "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["gangs"][0]["proof"] == "unknown"
