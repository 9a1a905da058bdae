# SPDX-License-Identifier: Apache-2.0
"""Reasons of pending units (repair.md 1.2, 1.3): each gate and each cause has its row."""

import ast
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

import koordpy
from koordpy.api.keys import GPU_MIN_BANDWIDTH, GPU_PARTITION_SPEC
from koordpy.api.label_selectors import expression_matches
from koordpy.api.objects import Requirement
from koordpy.cli.main import main
from koordpy.config.configuration import KoordpyConfiguration, Solver
from koordpy.planner.planning_round import plan_round
from koordpy.plugins.node_independent import contradicted_keys
from tests.scenarios.cluster import World, group, node
from tests.scenarios.cluster import pod as scenario_pod

ROOT = Path(koordpy.__file__).parent

GATES = {
    "gangs/unit_gates.py": {
        "gate": {"NOT_READY"},
        "_together": {"NOT_READY"},
        "_unserved": {"SCHEDULER_ERROR"},
        "_mixed": {"SCHEDULER_ERROR"},
        "_unknown_layer": {"NOT_READY"},
    },
    "attempts/filter_errors.py": {"find_error": {"SCHEDULER_ERROR"}},
    "attempts/resources_gate.py": {"check_min_resources": {"UNSCHEDULABLE"}},
    "attempts/unit_attempt.py": {
        "find_gate": {"NOT_READY"},
        "place_members": {"NOT_READY"},
        "protect_nominations": {"HELD_BACK"},
    },
    "devices/ascend/jobs/npu_unit_planner.py": {"NPU": {"JOB_VALIDATE_FAILED", "NOT_READY"}},
}
"""Module -> function -> reasons of its gates. A new gate needs a row, here and in docs/rules/repair.md."""


def gates_of(path: Path) -> dict[str, set[str]]:
    """Returns function -> reasons of the gates that a module creates; NOT_READY if the call names none."""
    found: dict[str, set[str]] = {}
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Gate":
                given = [*call.args[2:3], *(word.value for word in call.keywords if word.arg == "reason")]
                reason = given[0].attr if given and isinstance(given[0], ast.Attribute) else "NOT_READY"
                found.setdefault(function.name, set()).add(reason)
    return found


def test_every_gate_has_a_row() -> None:
    found = {str(path.relative_to(ROOT)): gates_of(path) for path in ROOT.rglob("*.py")}
    made = {name: gates for name, gates in found.items() if gates}
    assert set(made) == set(GATES)
    for name, gates in made.items():
        if "npu" not in name:
            assert gates == GATES[name]
    assert set().union(*made["devices/ascend/jobs/npu_unit_planner.py"].values()) == {
        "JOB_VALIDATE_FAILED",
        "NOT_READY",
    }


@pytest.mark.parametrize(
    ("requirements", "keys"),
    [
        ([("a", "In", ["1"]), ("a", "In", ["2"])], ["a"]),
        ([("a", "In", ["1", "2"]), ("a", "In", ["2"])], []),
        ([("a", "In", ["1"]), ("a", "NotIn", ["1", "2"])], ["a"]),
        ([("a", "In", ["1", "3"]), ("a", "NotIn", ["1", "2"])], []),
        ([("a", "DoesNotExist", []), ("a", "Exists", [])], ["a"]),
        ([("a", "DoesNotExist", []), ("a", "In", ["1"])], ["a"]),
        ([("a", "DoesNotExist", []), ("a", "NotIn", ["1"])], []),
        ([("a", "Gt", ["4"]), ("a", "Lt", ["5"])], ["a"]),
        ([("a", "Gt", ["4"]), ("a", "Lt", ["6"])], []),
        ([("a", "In", ["3", "x"]), ("a", "Gt", ["3"])], ["a"]),
        ([("a", "In", ["3", "4"]), ("a", "Gt", ["3"])], []),
        ([("a", "In", ["1"]), ("b", "In", ["2"])], []),
    ],
)
def test_requirements_that_exclude_each_other(requirements: list[Any], keys: list[str]) -> None:
    made = [Requirement(key, operator, tuple(values)) for key, operator, values in requirements]
    assert contradicted_keys(made) == contradicted_keys(made[::-1]) == keys


def test_contradictions_are_those_of_an_enumeration() -> None:
    """Every pair of small requirements excludes each other exactly if no value, and no absent label, meets both."""
    some = [Requirement("a", "Exists"), Requirement("a", "DoesNotExist")]
    some += [Requirement("a", operator, (str(n),)) for operator in ("Gt", "Lt") for n in range(4)]
    some += [
        Requirement("a", operator, tuple(values))
        for operator in ("In", "NotIn")
        for values in (["0"], ["1"], ["0", "2"], ["1", "3"], ["x"])
    ]
    labels: list[dict[str, str]] = [{}, *({"a": str(n)} for n in range(-2, 7)), {"a": "x"}, {"a": "y"}]
    for one, other in product(some, some):
        if one is other:
            continue
        met = any(expression_matches(one, each) and expression_matches(other, each) for each in labels)
        assert contradicted_keys([one, other]) == ([] if met else ["a"]), (one, other)


NODES = "".join(
    f"{{kind: Node, apiVersion: v1, metadata: {{name: n{i}, labels: {{kubernetes.io/hostname: n{i}}}}},"
    " status: {allocatable: {cpu: '4', pods: '9'}}}\n---\n"
    for i in (1, 2)
)
QUOTA = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: q, namespace: default}
spec: {min: {cpu: 1}, max: {cpu: MAX}}
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default, annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec: {volumeName: disk, accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Gi}}}
status: {phase: Bound}
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOncePod]
  claimRef: {namespace: default, name: data}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [gone]}]}]}
"""
MOUNT = "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"
AFFINITY = (
    "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: KEY,"
    " labelSelector: {matchLabels: {app: db}}}]}}"
)


def pod(name: str, more: str = "", *, cpu: int = 1, labels: str = "", annotations: str = "") -> str:
    return (
        f"{{kind: Pod, apiVersion: v1, metadata: {{name: {name}, namespace: default, labels: {{{labels}}},"
        f" annotations: {{{annotations}}}}},"
        f" spec: {{schedulerName: koord-scheduler, {more + ',' if more else ''}"
        f" containers: [{{name: c, image: i, resources: {{requests: {{cpu: {cpu}}}}}}}]}}}}\n"
    )


def noted(name: str, key: str, value: str, gpus: int = 0, more: str = "") -> str:
    """A pod with an annotation. gpus: requested GPUs."""
    listed = ", ".join(filter(None, ("cpu: 1", f"nvidia.com/gpu: {gpus}" if gpus else "", more)))
    made = pod(name, annotations=f"{key}: '{value}'")
    return made.replace("requests: {cpu: 1}", f"requests: {{{listed}}}, limits: {{{listed}}}")


def node_affinity(*terms: str) -> str:
    listed = ", ".join(terms)
    return (
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:"
        f" {{nodeSelectorTerms: [{listed}]}}}}}}"
    )


def named(*values: str, field: str = "matchFields", key: str = "metadata.name") -> str:
    return f"{{{field}: [{{key: {key}, operator: In, values: [{', '.join(values)}]}}]}}"


def quota(most: int) -> str:
    return QUOTA.replace("MAX", str(most))


FULL = pod("r", "nodeName: n1", cpu=4, labels="app: db")
IN_QUOTA = "quota.scheduling.koordinator.sh/name: q"
HELPLESS = "no new node would help: "
TABLE: list[tuple[str, list[str], str, str]] = [
    ("a node is too small", [pod("p", cpu=8)], "NeverFits", ""),
    ("a label that no node has", [pod("p", "nodeSelector: {gpu: h200}")], "NeverFits", ""),
    ("a claim is missing", [pod("p", MOUNT)], "NotReadyForScheduling", 'persistentvolumeclaim "data" not found'),
    (
        "a NUMA demand that cannot be read",
        [pod("p", annotations='scheduling.koordinator.sh/numa-topology-spec: \'{"numaTopologyPolicy": "Strict"}\'')],
        "NotReadyForScheduling",
        "cannot be read: 'Strict' is none of SingleNUMANode, Restricted, BestEffort",
    ),
    (
        "its alias",
        [pod("p", annotations="volcano.sh/numa-topology-policy: x")],
        "NotReadyForScheduling",
        "cannot be read: 'x' is none of single-numa-node, restricted, best-effort, none",
    ),
    ("max of its quota", [quota(1), pod("p", cpu=2, labels=IN_QUOTA)], "QuotaExceeded", "Insufficient quotas"),
    ("named by label", [pod("p", "nodeSelector: {kubernetes.io/hostname: n3}")], "NodesCannotHelp", "nodes by name"),
    ("named in each term", [pod("p", node_affinity(named("x"), named("y")))], "NodesCannotHelp", "nodes by name"),
    (
        "named in one of two terms",
        [pod("p", node_affinity(named("x"), named("h200", field="matchExpressions", key="gpu")))],
        "NeverFits",
        "",
    ),
    (
        "a contradiction",
        [pod("p", "nodeSelector: {zone: a}, " + node_affinity(named("b", field="matchExpressions", key="zone")))],
        "NodesCannotHelp",
        "contradict each other on zone",
    ),
    ("an empty term", [pod("p", node_affinity("{}"))], "NodesCannotHelp", "required node affinity matches nothing"),
    ("a fixed volume", [CLAIM, VOLUME, pod("p", MOUNT)], "NodesCannotHelp", "volume disk is tied to a node"),
    (
        "a claim in use",
        [CLAIM, VOLUME, pod("r", MOUNT + ", nodeName: n1"), pod("p", MOUNT)],
        "NodesCannotHelp",
        "claim data is in use and ReadWriteOncePod",
    ),
    (
        "affinity without a match",
        [pod("p", AFFINITY.replace("KEY", "zone"))],
        "NodesCannotHelp",
        "no pod matches its required pod affinity",
    ),
    (
        "affinity to a full node",
        [
            pod("r", "nodeName: n1", cpu=4, labels="app: db"),
            pod("p", AFFINITY.replace("KEY", "kubernetes.io/hostname")),
        ],
        "NodesCannotHelp",
        "it must share the node of other pods",
    ),
    *(
        (f"{key} cannot be read", [noted("p", key, "x", gpus)], "NotReadyForScheduling", f"annotation {key} cannot be")
        for key, gpus in ((GPU_PARTITION_SPEC, 1), (GPU_MIN_BANDWIDTH, 1))
    ),
    (
        "GPUs by two names",
        [noted("p", "a", "x", 1, "koordinator.sh/gpu: 100")],
        "NotReadyForScheduling",
        "more than one",
    ),
    (
        "a part of a GPU, which is unsupported",
        [noted("p", "gpu-fraction", "0.5")],
        "NodesCannotHelp",
        "unsupported: annotation gpu-fraction",
    ),
    (
        "affinity within a zone",
        [FULL, pod("p", AFFINITY.replace("KEY", "zone"))],
        "Unschedulable",
        "",
    ),
]


@pytest.mark.parametrize(("texts", "reason", "text"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_reason_and_message(
    texts: list[str], reason: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = pending(texts, {}, tmp_path, capsys)
    assert said["reason"] == reason
    assert text in said["message"]
    assert (HELPLESS in said["message"]) == (reason == "NodesCannotHelp")
    # as kube-scheduler writes it: the same message with its one reason
    upstream = pending(texts, {"autoscaling": {"reasons": "upstream"}}, tmp_path, capsys)
    assert upstream["reason"] == "Unschedulable"
    assert upstream["message"] == said["message"]


GANG = (
    "{kind: PodGroup, apiVersion: scheduling.sigs.k8s.io/v1alpha1, metadata: {name: g, namespace: default},"
    " spec: {minMember: 2}}\n"
)
OF_GANG = "pod-group.scheduling.sigs.k8s.io: g"
ENDING = (
    "{kind: Pod, apiVersion: v1, metadata: {name: r, namespace: default, deletionGracePeriodSeconds: 30,"
    " deletionTimestamp: 2026-01-01T00:00:20Z}, spec: {schedulerName: koord-scheduler, nodeName: n1,"
    " containers: [{name: c, image: i, resources: {requests: {cpu: 4}}}]}}\n"
)


@pytest.mark.parametrize("nominated", [False, True])
def test_a_surplus_member_has_no_place_in_the_capacity_that_its_gang_awaits(
    nominated: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The members with a place have one reason and one message; an autoscaler may create a node for the third."""
    members = [pod(f"g-{i}", cpu=2, labels=OF_GANG) for i in range(2)]
    if nominated:
        members = [text.replace("]}}\n", "]}, status: {nominatedNodeName: n1}}\n") for text in members]
    (tmp_path / "in.yaml").write_text("---\n".join([NODES, GANG, ENDING, *members, pod("p", cpu=4, labels=OF_GANG)]))
    full = pod("full", "nodeName: n2", cpu=4)
    (tmp_path / "full.yaml").write_text(full)
    given = ["-f", str(tmp_path / "in.yaml"), "-f", str(tmp_path / "full.yaml"), "-o", "json"]
    assert main(["simulate", *given]) == 0
    found = {one["pod"]: one for one in json.loads(capsys.readouterr().out)["pending"]}
    assert {name: one["reason"] for name, one in found.items()} == {
        "g-0": "WaitingForTermination",
        "g-1": "WaitingForTermination",
        "p": "Unschedulable",
    }
    place = "0/2 nodes are available: waiting for terminating pods: capacity on n1 is reserved for it."
    assert all((place in one["message"]) == (name != "p") for name, one in found.items())


@pytest.mark.parametrize(
    ("sizes", "used", "reason", "text"),
    [
        ((4, 6, 7, 4, 8), True, "Undetermined", "not decided in time"),
        ((4, 6, 7, 4, 8), False, "NeverFits", "no placement on the empty cluster"),
        ((4, 6, 5, 4, 8), False, "", ""),
    ],
)
def test_a_gang_that_never_fits_is_decided_though_the_solver_is_not(
    sizes: tuple[int, ...], used: bool, reason: str, text: str
) -> None:
    """Pods of these cpus on nodes of 10 cpu, and a solver without time. used: there is a fourth node, which is full."""
    world = World().add(*(node(f"n{i}:10") for i in range(3 + used)), group("g", len(sizes)))
    world.add([scenario_pod(f"g-{i}", gang="g", cpu=str(size)) for i, size in enumerate(sizes)])
    if used:
        world.add(scenario_pod("r", at="n3", cpu="10"))
    config = KoordpyConfiguration(solver=Solver(deterministic_time=1e-6))
    plan = plan_round(world.snapshot(), config)
    assert {str(one.offline_reason) for one in plan.pending} == ({reason} if reason else set())
    for one in plan.pending:
        assert text in one.message
        assert ("not decided" in one.message) == (reason == "Undetermined")


def pending(
    texts: list[str], config: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """Returns the entry of pod p in `pending`, with the same reason as `explain` gives."""
    (folder / "in.yaml").write_text(NODES + "---\n".join(texts))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    given = ["-f", str(folder / "in.yaml"), "--config", str(folder / "config.yaml"), "-o", "json"]
    assert main(["simulate", *given]) == 0
    [found] = [one for one in json.loads(capsys.readouterr().out)["pending"] if one["pod"] == "p"]
    assert main(["explain", "--pod", "p", *given]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["reason"] == found["reason"]
    return dict(found)
