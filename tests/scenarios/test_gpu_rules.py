# SPDX-License-Identifier: Apache-2.0
"""Rules of gpu-topology.md 1 to 10 by manifests, as users write them: Devices, holders, classes, tables, notes.

Answers are worked out by hand from the text of the rules. A case says what stands in the Device, on the node and on
the pods, and which GPUs the pod `p` gets.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.cli.main import main
from koordpy.devices.gpu.gpu_variables import inject
from tests.planning.gpu.machines import M

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


def square(size: int, default: Any, **pairs: Any) -> list[list[Any]]:
    """A symmetric matrix; p1_2=90 sets the pair 1, 2."""
    rows = [["X" if isinstance(default, str) and i == j else default for j in range(size)] for i in range(size)]
    for name, value in pairs.items():
        i, j = map(int, name[1:].split("_"))
        rows[i][j] = rows[j][i] = value
    return rows


def device(
    size: int = 3,
    *,
    name: str = "n1",
    bandwidth: Any = None,
    links: Any = None,
    sick: Sequence[int] = (),
    ids: Sequence[str] | None = None,
    minors: Sequence[int] | None = None,
    **meta: Any,
) -> Json:
    given = [("bandwidth", bandwidth), ("links", links)]
    matrices = [
        {"name": kind, "topology": one if isinstance(one, str) else json.dumps(one)}
        for kind, one in given
        if one is not None
    ]
    entries = [
        {"type": "gpu", "minor": m, "id": ids[i] if ids is not None else f"GPU-{name}-{m}", "health": m not in sick}
        for i, m in enumerate(minors or range(size))
    ]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, **meta},
        "spec": {"topologies": {"gpu": matrices}, "devices": entries},
    }


def node(name: str = "n1", gpus: int = 8, *, resource: str = GPU, **meta: Any) -> Json:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", resource: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **meta},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(
    name: str = "p", *counts: int, at: str = "", held: Sequence[int] = (), resource: str = GPU, **more: Any
) -> Json:
    annotations = dict(more.pop("annotations", {}))
    if held:
        names = [str(i) for i in held]
        annotations[keys.GPU_ALLOCATION] = json.dumps({"allocatedGPUs": {"0": names}, "visibleGPUs": names})
    containers = [
        {"name": f"c{i}", "image": "img", "resources": {"limits": {resource: str(n)} if n else {}}}
        for i, n in enumerate(counts or (2,))
    ]
    spec = {"schedulerName": "koord-scheduler", "containers": containers, **more.pop("spec", {})}
    status = more.pop("status", {"phase": "Running"} if at else {})
    meta = {"name": name, "namespace": "default", "annotations": annotations, **more}
    found = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}
    return {**found, "spec": {**spec, "nodeName": at}} if at else found


class Outcome:
    """What `koordpy simulate` or `explain` said."""

    def __init__(self, out: Json, warnings: str) -> None:
        self.out, self.warnings = out, warnings

    @property
    def nodes(self) -> dict[str, str]:
        return {one["pod"]: one["node"] for one in self.out["bindings"]}

    def notes(self, name: str = "p") -> dict[str, str]:
        return next((one["annotations"] for one in self.out["bindings"] if one["pod"] == name), {})

    def gpus(self, name: str = "p") -> list[int] | None:
        """GPUs of a pod's containers, None where none are named."""
        text = self.notes(name).get(keys.GPU_ALLOCATION)
        if text is None:
            return None
        return sorted(int(minor) for one in json.loads(text)["allocatedGPUs"].values() for minor in one)

    @property
    def message(self) -> str:
        return next((one["message"] for one in self.out["pending"] if one["pod"] == "p"), "")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def go(*objects: Json, command: str = "simulate", config: Json | None = None) -> Outcome:
        (tmp_path / "in.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        words = [command, "-f", str(tmp_path / "in.json"), "-o", "json"]
        if command == "explain":
            words += ["--pod", "default/p"]
        if config is not None:
            (tmp_path / "config.yaml").write_text(yaml.safe_dump({"gpu": config}))
            words += ["--config", str(tmp_path / "config.yaml")]
        assert main(words) == 0
        found = capsys.readouterr()
        return Outcome(json.loads(found.out), found.err)

    return go


# -- section 1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[0,1,2],[1,0,3],[2,3,0]", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("null", "is not a list of lists"),
        ('{"a": 1}', "is not a list of lists"),
        ("[1,2,3]", "is not a list of lists"),
        ("[[0,1],[1,0]]", "has 2 rows"),
        ("[[0,1,2],[1,0,3]]", "has 2 rows"),
        ("[[0,1,2],[1,0],[2,3,0]]", "is not square"),
        ('[[0,"1",2],[1,0,3],[2,3,0]]', "cell [0][1] is not a number"),
        ("[[0,null,2],[1,0,3],[2,3,0]]", "cell [0][1] is not a number"),
        ("[[0,true,2],[1,0,3],[2,3,0]]", "cell [0][1] is not a number"),
        ("[[0,1,2],[1,0,-0.1],[2,3,0]]", "cell [1][2] is -0.1"),
        ("[[0,NaN,2],[1,0,3],[2,3,0]]", "cell [0][1] is nan"),
        ("[[0,Infinity,2],[1,0,3],[2,3,0]]", "cell [0][1] is inf"),
    ],
)
def test_a_malformed_matrix_is_ignored_and_named_in_one_line(run: Any, text: str, why: str) -> None:
    outcome = run(node(), device(bandwidth=text), pod())
    assert outcome.gpus() == [0, 1], "GPUs are given by name all the same"
    (line,) = outcome.warnings.splitlines()
    assert "Device/n1: spec.topologies.gpu[0].topology" in line
    assert why in line


@pytest.mark.parametrize(
    "cells",
    ['[["X","NV2","SYS"],["NV2","X","FOO"],["SYS","FOO","X"]]', '[["X",5,"SYS"],[5,"X","PIX"],["SYS","PIX","X"]]'],
)
def test_an_unknown_class_makes_a_matrix_of_links_malformed(run: Any, cells: str) -> None:
    outcome = run(node(), device(links=cells), pod())
    assert (outcome.gpus(), "not a link class" in outcome.warnings) == ([0, 1], True)


@pytest.mark.parametrize(
    "topologies",
    [
        {"bandwidth": '[["x",1,2],[1,null,3],[2,3,-5]]'},
        {"bandwidth": "[[0,0,0],[0,0,90],[0,90,0]]"},
        {"links": '[["?","SYS","SYS"],["SYS",3,"PIX"],["SYS","PIX",null]]'},
    ],
    ids=["bandwidth", "zero is valid", "links"],
)
def test_the_diagonal_is_never_read(run: Any, topologies: Any) -> None:
    outcome = run(node(), device(**topologies), pod())
    assert (outcome.gpus(), outcome.warnings) == ([1, 2], "")


@pytest.mark.parametrize(
    ("back", "config", "gpus", "reported"),
    [
        (90, {}, [0, 1], False),
        (31, {}, [1, 2], False),
        (30, {}, [1, 2], False),
        (29, {}, [1, 2], True),
        (31, {"asymmetry": "mean"}, [0, 1], False),
        (5, {"asymmetry": "mean"}, [0, 1], True),
    ],
)
def test_a_link_is_as_fast_as_its_slower_direction(
    run: Any, back: int, config: Json, gpus: list[int], reported: bool
) -> None:
    rows = [[0, 90, 10], [back, 0, 40], [10, 40, 0]]
    outcome = run(node(), device(bandwidth=rows), pod(), config=config)
    assert outcome.gpus() == gpus
    assert ("Device/n1" in outcome.warnings) == reported


def test_rows_belong_to_minors_in_their_order(run: Any) -> None:
    fast = square(3, 10, p1_2=90)
    assert run(node(), device(bandwidth=fast, minors=[5, 9, 3]), pod()).gpus() == [5, 9]


@pytest.mark.parametrize("minors", [[-1, 0, 1], [0, 1, 1]])
def test_gpus_that_minors_do_not_tell_apart_are_counted_only(run: Any, minors: Sequence[int]) -> None:
    outcome = run(node(), device(bandwidth=square(3, 10), minors=minors), pod())
    assert outcome.nodes == {"p": "n1"}
    assert outcome.notes() == {}
    assert "Device/n1: spec.devices: a GPU without a minor" in outcome.warnings


def test_gpus_of_one_id_are_counted_only(run: Any) -> None:
    """By name a pod would be given two of them and see one."""
    outcome = run(node(), device(bandwidth=square(3, 10), ids=["U-0", "U-1", "U-0"]), pod())
    assert outcome.nodes == {"p": "n1"}
    assert outcome.notes() == {}
    assert "Device/n1: spec.devices: a GPU without a minor, or a minor or id given twice" in outcome.warnings


def test_the_weaker_class_of_both_sides_counts(run: Any) -> None:
    links = [["X", "NV4", "SYS"], ["PHB", "X", "PIX"], ["SYS", "PIX", "X"]]
    assert run(node(), device(links=links), pod()).gpus() == [1, 2]


ORDER = ("NV2", "NV1", "PSB", "PIX", "PXB", "PHB", "NODE", "SYS", "HOST", "HOSTPIX")


@pytest.mark.parametrize(
    ("faster", "slower"),
    [*pairwise(ORDER), ("NV1+SYS", "PSB"), ("NV2+SYS", "NV1+PIX"), ("NV18", "NV12")],
)
def test_classes_rank_as_the_table_says(run: Any, faster: str, slower: str) -> None:
    assert run(node(), device(links=square(3, slower, p1_2=faster)), pod()).gpus() == [1, 2]


@pytest.mark.parametrize(("one", "other"), [("SOC", "SYS"), ("NV2+PHB", "NV2"), ("SYS", "SOC")])
def test_words_of_one_class_are_the_same(run: Any, one: str, other: str) -> None:
    assert run(node(), device(links=square(3, other, p1_2=one)), pod()).gpus() == [0, 1]


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ("Four NVLinks", "Three NVLinks"),
        ("Three NVLinks", "Two NVLinks"),
        ("Two NVLinks", "Single NVLink"),
        ("Single NVLink", "Same board"),
        ("Same board", "Single PCI switch"),
        ("Single PCI switch", "Multiple PCI switches"),
        ("Multiple PCI switches", "Host PCI bridge"),
        ("Host PCI bridge", "Same CPU socket"),
        ("Same CPU socket", "Cross CPU socket"),
        ("6", "5"),
        ("5", "4"),
        ("4", "3"),
        ("3", "2"),
        ("2", "1"),
        ("PHB", "Same CPU socket"),
        ("6", "Single PCI switch"),
    ],
)
def test_node_annotations_describe_links(run: Any, faster: str, slower: str) -> None:
    annotations = {"GSOC_ID_0_1": slower, "GSOC_ID_1_2": faster, "GSOC_ID_2_0": slower}
    outcome = run(node(annotations=annotations), device(), pod())
    assert (outcome.gpus(), outcome.warnings) == ([1, 2], "")


@pytest.mark.parametrize(
    ("ids", "annotations", "gpus"),
    [
        pytest.param(None, {"0_1": "NV4", "1_0": "SYS", "1_2": "PIX"}, [1, 2], id="given twice, the weaker counts"),
        pytest.param(None, {"1_2": "SYS"}, [1, 2], id="a missing pair is worth nothing"),
        pytest.param(["a-111", "b-222", "c-333"], {"222_333": "PIX"}, [1, 2], id="last parts of ids"),
        pytest.param(["a-1", "b-2", "c-0"], {"1_2": "PIX"}, [0, 1], id="an id that ends so goes before the minor"),
    ],
)
def test_described_pairs_are_found(run: Any, ids: Any, annotations: Mapping[str, str], gpus: list[int]) -> None:
    given = {f"GSOC_ID_{pair}": link for pair, link in annotations.items()}
    assert run(node(annotations=given), device(ids=ids), pod()).gpus() == gpus


def test_the_first_source_that_can_be_read_is_used(run: Any) -> None:
    on = node(annotations={"GSOC_ID_0_1": "NV4"})
    fast, near = square(3, 10, p0_2=90), square(3, "SYS", p1_2="NV2")
    assert run(on, device(bandwidth=fast, links=near), pod()).gpus() == [0, 2]
    assert run(on, device(bandwidth="[[0", links=near), pod()).gpus() == [1, 2]
    both = run(on, device(bandwidth="[[0", links="[["), pod())
    assert (both.gpus(), both.warnings.count("Device/n1")) == ([0, 1], 2)


def test_annotations_without_a_device_are_ignored_with_a_warning(run: Any) -> None:
    outcome = run(node(gpus=3, annotations={"GSOC_ID_1_2": "NV2"}), pod())
    assert (outcome.nodes, outcome.gpus(), "Node/n1" in outcome.warnings) == ({"p": "n1"}, None, True)


@pytest.mark.parametrize(("hundredths", "bound"), [("200", 2), ("100", 1), ("50", None), ("150", None), ("250", None)])
def test_hundredths_are_whole_cards_or_refused(run: Any, hundredths: str, bound: int | None) -> None:
    name = "koordinator.sh/gpu"
    wants = pod("p", int(hundredths), resource=name)
    outcome = run(node(gpus=800, resource=name), device(8, bandwidth=M), wants)
    assert (len(outcome.gpus()) if bound else outcome.gpus()) == bound
    assert ("fractional GPUs are not supported" in outcome.message) == (bound is None)


# -- section 2 --------------------------------------------------------------------------------------------------------

CARDS = json.dumps({"gpu": [{"minor": 0, "resources": {}}, {"minor": 3}]})
OURS = {keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"0": ["0", "3"]}, "visibleGPUs": ["0", "3"]})}


@pytest.mark.parametrize(
    ("annotations", "gpus"),
    [
        pytest.param(OURS, [1, 2], id="ours"),
        pytest.param({keys.DEVICE_ALLOCATED: CARDS}, [1, 2], id="Koordinator's"),
        pytest.param({"ALIYUN_COM_GPU_ID_0": "x", "ALIYUN_COM_GPU_ID_3": "y"}, [1, 2], id="gpushare's"),
        pytest.param({**OURS, "ALIYUN_COM_GPU_ID_1": "x", "ALIYUN_COM_GPU_ID_2": "y"}, [1, 2], id="ours first"),
        pytest.param({keys.DEVICE_ALLOCATED: CARDS, "ALIYUN_COM_GPU_ID_1": "x"}, [1, 2], id="Koordinator's next"),
        pytest.param({}, None, id="nothing"),
        pytest.param({keys.GPU_ALLOCATION: "{"}, None, id="unreadable"),
        pytest.param({keys.GPU_ALLOCATION: "{", keys.DEVICE_ALLOCATED: CARDS}, None, id="the first that is there"),
        pytest.param({"ALIYUN_COM_GPU_ID_0": "x"}, None, id="fewer than it asks for"),
        pytest.param({"ALIYUN_COM_GPU_ID_0": "x", "ALIYUN_COM_GPU_ID_9": "y"}, None, id="a GPU that the Device lacks"),
    ],
)
def test_holders_of_any_scheduler_are_read_or_make_a_node_count_only(
    run: Any, annotations: Mapping[str, str], gpus: list[int] | None
) -> None:
    holder = pod("x", 2, at="n1", annotations=annotations, spec={"schedulerName": "other"})
    outcome = run(node(), device(8, bandwidth=M), holder, pod())
    assert (outcome.nodes, outcome.gpus()) == ({"p": "n1"}, gpus)
    if gpus is None:
        written = [key for key in outcome.notes() if key.startswith("topology.") or "device" in key]
        assert written == []


@pytest.mark.parametrize("notes", [OURS, {keys.DEVICE_ALLOCATED: CARDS}, {"ALIYUN_COM_GPU_ID_0": "x"}])
def test_who_asks_for_no_gpu_holds_none_whatever_is_written_on_it(run: Any, notes: Mapping[str, str]) -> None:
    squatter = pod("x", 0, at="n1", annotations=notes, spec={"schedulerName": "other"})
    assert run(node(), device(8, bandwidth=M), squatter, pod("p", 8)).gpus() == list(range(8))


def test_more_gpus_than_a_pod_asks_for_are_not_kept_for_it(run: Any) -> None:
    greedy = pod("x", 1, at="n1", annotations=OURS, spec={"schedulerName": "other"})
    outcome = run(node(), device(8, bandwidth=M), greedy, pod("p", 7))
    assert (outcome.nodes, outcome.gpus()) == ({"p": "n1"}, None)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_who_is_done_holds_nothing(run: Any, phase: str) -> None:
    holder = pod("x", 2, at="n1", status={"phase": phase})
    assert run(node(), device(8, bandwidth=M), holder, pod()).gpus() == [0, 3]


def test_who_is_ending_holds_on(run: Any) -> None:
    holder = pod("x", 7, at="n1", held=range(7), deletionTimestamp="2026-01-01T00:00:00Z")
    assert run(node(), device(8, bandwidth=M), holder, pod("p", 1)).gpus() == [7]


@pytest.mark.parametrize(
    ("sick", "held", "size", "reason"),
    [
        ((0, 1), (), 7, ("UnschedulableAndUnresolvable", "Insufficient gpu devices")),
        ((0,), (1,), 7, ("Unschedulable", "Insufficient gpu devices")),
        ((0,), (1, 2), 7, ("Unschedulable", "Insufficient nvidia.com/gpu")),
        ((), (), 9, ("UnschedulableAndUnresolvable", "Insufficient nvidia.com/gpu")),
    ],
)
def test_too_few_gpus_are_said_as_what_they_are(
    run: Any, sick: Sequence[int], held: Sequence[int], size: int, reason: tuple[str, str]
) -> None:
    holders = [pod("x", len(held), at="n1", held=held)] if held else []
    outcome = run(node(), device(8, bandwidth=M, sick=sick), *holders, pod("p", size), command="explain")
    (on,) = outcome.out["nodes"]
    assert [(one["code"], one["message"]) for one in on["reasons"]] == [reason]


# -- section 3 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "config", "gpus"),
    [
        pytest.param(square(3, 100, p1_2=108), {}, [0, 1], id="eight per cent are noise"),
        pytest.param(square(3, 100, p1_2=108.1), {}, [1, 2], id="more are not"),
        pytest.param(square(3, 100, p1_2=110), {"classGap": 0.2}, [0, 1], id="the gap can be set"),
        pytest.param(
            square(4, 100, p0_1=107, p0_2=114, p1_2=121, p2_3=126), {}, [2, 3], id="a class is 25 per cent wide"
        ),
        pytest.param(
            square(4, 100, p0_1=107, p0_2=114, p1_2=121, p2_3=126), {"classWidth": 0.3}, [0, 1], id="width can be set"
        ),
    ],
)
def test_noise_makes_no_class(run: Any, rows: Any, config: Json, gpus: list[int]) -> None:
    assert run(node(), device(len(rows), bandwidth=rows), pod(), config=config).gpus() == gpus


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        pytest.param(100, 104, "n1", id="one class over all nodes: fewest GPUs left"),
        pytest.param(100, 109, "n2", id="a faster class before what is left"),
    ],
)
def test_nodes_are_compared_by_classes_of_all(run: Any, first: int, second: int, answer: str) -> None:
    machines = [device(2, bandwidth=square(2, first)), device(4, name="n2", bandwidth=square(4, second))]
    assert run(node(gpus=2), node("n2", 4), *machines, pod()).nodes == {"p": answer}


def test_figures_can_be_overridden(run: Any) -> None:
    rows = square(3, "PIX", p1_2="PHB")
    assert run(node(), device(links=rows), pod()).gpus() == [0, 1]
    assert run(node(), device(links=rows), pod(), config={"linkBandwidth": {"PHB": 50}}).gpus() == [1, 2]


@pytest.mark.parametrize("name", ["SYS", "SOC"])
def test_figures_go_by_both_names_of_a_class(run: Any, name: str) -> None:
    rows = square(3, "PIX", p1_2="SOC")
    assert run(node(), device(links=rows), pod(), config={"linkBandwidth": {name: 50}}).gpus() == [1, 2]


@pytest.mark.parametrize(
    ("rows", "size", "score"),
    [
        (square(2, "NV2"), 2, 8),
        (square(2, "NV18"), 2, 10),
        (square(2, "NV2+PHB"), 2, 8),
        (square(2, "HOST"), 2, 1),
        (square(3, "PIX", p0_1="NV1"), 3, 5.67),
        (square(2, "PIX"), 1, None),
    ],
)
def test_explain_shows_the_mean_mark_of_the_chosen_links(run: Any, rows: Any, size: int, score: float | None) -> None:
    outcome = run(node(), device(len(rows), links=rows), pod("p", size), command="explain")
    assert outcome.out["nodes"][0]["scores"].get("GPUTopology") == score


# -- sections 4 to 6 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "rows", "config", "held", "code"),
    [
        ("50", square(4, 10, p2_3=50), {}, (), None),
        ("50.1", square(4, 10, p2_3=50), {}, (), "UnschedulableAndUnresolvable"),
        ("50", square(4, 10, p2_3=50), {}, (2,), "Unschedulable"),
        ("60", [[0, 90, 10], [45, 0, 10], [10, 10, 0]], {"asymmetry": "mean"}, (), "UnschedulableAndUnresolvable"),
        ("5e1", square(4, 10, p2_3=50), {}, (), None),
    ],
)
def test_a_minimum_is_of_the_value_both_ways(
    run: Any, value: str, rows: Any, config: Json, held: Sequence[int], code: str | None
) -> None:
    holders = [pod("x", len(held), at="n1", held=held)] if held else []
    wants = pod("p", 2, annotations={keys.GPU_MIN_BANDWIDTH: value})
    machine = device(len(rows), bandwidth=rows)
    outcome = run(node(gpus=len(rows)), machine, *holders, wants, command="explain", config=config)
    reasons = [(one["code"], one["message"]) for one in outcome.out["nodes"][0]["reasons"]]
    text = f"node(s) lack free GPUs linked at {value} GB/s or more"
    assert reasons == ([(code, text)] if code else [])


@pytest.mark.parametrize(
    ("gpus", "slowest"), [((0, 1, 2, 3), "48.33"), ((0, 1, 2, 5), "15.52"), ((0, 1, 2, 4), "4.64")]
)
def test_the_slowest_pair_of_a_set_is_its_minimum(run: Any, gpus: Sequence[int], slowest: str) -> None:
    """Example 3: what the published comparison of three sets should have said."""
    holder = pod("x", 4, at="n1", held=[i for i in range(8) if i not in gpus])
    for value, bound in ((slowest, True), (f"{float(slowest) + 0.01:.2f}", False)):
        wants = pod("p", 4, annotations={keys.GPU_MIN_BANDWIDTH: value})
        assert (run(node(), device(8, bandwidth=M), holder, wants).gpus() == list(gpus)) == bound


def test_of_equal_links_the_node_with_fewer_gpus_left_is_taken(run: Any) -> None:
    """Example 12."""
    group = {keys.GPU_GROUP_NAME: "j", keys.GPU_GROUP_REPLICA: "3"}
    machines = [device(8, bandwidth=M), device(8, name="n2", bandwidth=M)]
    holder = pod("x", 2, at="n2", held=(4, 7))
    members = [pod(f"w-{i}", 2, labels=group) for i in range(3)]
    outcome = run(node(), node("n2"), *machines, holder, *members)
    assert set(outcome.nodes.values()) == {"n2"}


@pytest.mark.parametrize("value", ["0", "-5", "fast", "NaN", "inf", "", "1e400", "1_0"])
def test_a_minimum_that_is_no_positive_number_keeps_the_pod_waiting(run: Any, value: str) -> None:
    outcome = run(node(), device(bandwidth=square(3, 90)), pod("p", 2, annotations={keys.GPU_MIN_BANDWIDTH: value}))
    assert outcome.nodes == {}
    assert "is not a positive number of GB/s" in outcome.message
    assert "Pod/default/p" in outcome.warnings


def test_only_the_member_with_a_minimum_gets_the_fast_pair(run: Any) -> None:
    labels = {keys.GPU_GROUP_NAME: "j", keys.GPU_GROUP_REPLICA: "2"}
    fast = pod("p", 2, labels=labels, annotations={keys.GPU_MIN_BANDWIDTH: "90"})
    outcome = run(node(), device(4, bandwidth=square(4, 10, p0_1=96)), pod("a", 2, labels=labels), fast)
    assert (outcome.gpus("p"), outcome.gpus("a")) == ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("labels", "index", "first"),
    [
        pytest.param(["w-10", "w-2"], None, "w-2", id="natural names"),
        pytest.param(["w-10", "w-2"], {"w-10": "0", "w-2": "1"}, "w-10", id="the index before the name"),
    ],
)
def test_members_take_the_lowest_gpus_in_their_order(run: Any, labels: list[str], index: Any, first: str) -> None:
    group = {keys.GPU_GROUP_NAME: "j", keys.GPU_GROUP_REPLICA: "2"}
    members = [
        pod(name, 1, labels={**group, **({keys.RANK_INDEX_LABEL: index[name]} if index else {})}) for name in labels
    ]
    outcome = run(node(), device(8, bandwidth=square(8, 300)), *members)
    assert outcome.gpus(first) == [0]


# -- sections 7 and 8 -------------------------------------------------------------------------------------------------


def test_what_is_written_byte_for_byte(run: Any) -> None:
    wants = pod("p", 1, 0, 1)
    outcome = run(node(gpus=3), device(bandwidth=square(3, 10, p1_2=90), ids=["U-0", "U-1", "U-2"]), wants)
    notes = {key: text for key, text in outcome.notes().items() if key.startswith("topology.") or "device" in key}
    card = '"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory-ratio":"100"}'
    prefix = "topology.scheduling.koordinator.sh"
    assert notes == {
        f"{prefix}/gpu": '{"allocatedGPUs":{"0":["1"],"2":["2"]},"visibleGPUs":["1","2"]}',
        f"{prefix}/nvidia-visible-devices": "U-1,U-2",
        f"{prefix}/cuda-visible-devices.0": "U-1",
        f"{prefix}/cuda-visible-devices.2": "U-2",
        "scheduling.koordinator.sh/device-allocated": f'{{"gpu":[{{"minor":1,"id":"U-1",{card}}},'
        f'{{"minor":2,"id":"U-2",{card}}}]}}',
    }


def test_minors_stand_in_numeric_order_and_for_uuids_that_are_not_there(run: Any) -> None:
    holder = pod("x", 8, at="n1", held=(0, 1, 3, 4, 5, 6, 7, 8))
    machine = device(16, bandwidth=square(16, 300), ids=[""] * 16)
    outcome = run(node(gpus=16), machine, holder, pod("p", 8))
    assert outcome.notes()[keys.GPU_NVIDIA_VISIBLE] == "2,9,10,11,12,13,14,15"


def test_gpushare_names_a_pods_own_gpus(run: Any) -> None:
    group = {keys.GPU_GROUP_NAME: "j", keys.GPU_GROUP_REPLICA: "2"}
    machine = device(bandwidth=square(3, 10), ids=["GPU-1-a", "GPU-2-b", "GPU-3-c"])
    members = [pod("p", 1, labels=group), pod("q", 1, labels=group)]
    outcome = run(node(), machine, *members, config={"annotationStyle": "gpushare"})
    found = {key: text for key, text in outcome.notes().items() if key.startswith("ALIYUN")}
    assert found == {
        "ALIYUN_COM_GPU_ASSIGNED": "false",
        "ALIYUN_COM_GPU_ASSUME_TIME": "1767225600",
        "ALIYUN_COM_GPU_ID_0": "a",
    }


def _listed(*sets: tuple[list[int], int, str]) -> Json:
    table: dict[str, list[Json]] = {}
    for minors, score, bandwidth in sets:
        one = {"minors": minors, "gpuLinkType": "NVLink", "ringBusBandwidth": bandwidth, "allocationScore": score}
        table.setdefault(str(len(minors)), []).append(one)
    return {keys.GPU_PARTITIONS: json.dumps(table)}


PAIRS = _listed(([0, 5], 1, "400Gi"), ([2, 3], 3, "400Gi"), ([6, 7], 3, "300Gi"))


@pytest.mark.parametrize(
    ("policy", "held", "spec", "answer"),
    [
        pytest.param("", (), {}, [2, 3], id="the highest score"),
        pytest.param("", (2, 7), {}, [0, 5], id="of those that are free"),
        pytest.param("", (0, 2, 7), {}, [1, 3], id="none free: any set"),
        pytest.param("Honor", (0, 2, 7), {}, "Insufficient Partitioned GPU Devices", id="Honor: none"),
        pytest.param("", (), {"ringBusBandwidth": "350Gi"}, [2, 3], id="the bandwidth leaves out slower ones"),
        pytest.param("", (2,), {"ringBusBandwidth": "350Gi"}, [0, 5], id="before the score"),
        pytest.param("", (0, 2, 7), {"allocatePolicy": "Restricted"}, "Insufficient Partitioned", id="Restricted"),
        pytest.param("Honor", (), {"allocatePolicy": "BestEffort"}, [2, 3], id="BestEffort asks for nothing more"),
    ],
)
def test_listed_sets_are_preferred_or_honored(
    run: Any, policy: str, held: Sequence[int], spec: Json, answer: list[int] | str
) -> None:
    labels = {keys.GPU_PARTITION_POLICY: policy} if policy else {}
    holders = [pod("x", len(held), at="n1", held=held)] if held else []
    annotations = {keys.GPU_PARTITION_SPEC: json.dumps(spec)} if spec else {}
    machine = device(8, bandwidth=square(8, 300), annotations=PAIRS)
    outcome = run(node(labels=labels), machine, *holders, pod("p", 2, annotations=annotations))
    if isinstance(answer, str):
        assert answer in outcome.message
    else:
        assert outcome.gpus() == answer


@pytest.mark.parametrize(
    ("size", "table", "model", "answer"),
    [
        (3, PAIRS, "", "node(s) Unsupported number of GPU requests"),
        (2, {}, "", "node(s) missing GPU Partition Table"),
        (2, {}, "A100", "node(s) missing GPU Partition Table"),
        (2, {}, "NVIDIA-H100-80GB", [2, 3]),
        (2, {}, "H800", [2, 3]),
        (4, {}, "H20", [4, 5, 6, 7]),
        (3, {}, "H100", "node(s) Unsupported number of GPU requests"),
    ],
)
def test_honor_wants_a_table_with_the_number(
    run: Any, size: int, table: Json, model: str, answer: list[int] | str
) -> None:
    labels = {keys.GPU_PARTITION_POLICY: "Honor", keys.GPU_MODEL: model}
    machine = device(8, bandwidth=square(8, 300), annotations=table)
    outcome = run(node(labels=labels), machine, pod("x", 1, at="n1", held=(1,)), pod("p", size))
    if isinstance(answer, str):
        assert answer in outcome.message
    else:
        assert outcome.gpus() == answer


def test_as_many_pods_as_possible_get_listed_sets_before_scores_count(run: Any) -> None:
    table = _listed(([0, 1], 1, "1"), ([2, 3], 1, "1"), ([0, 2], 9, "1"))
    group = {keys.GPU_GROUP_NAME: "j", keys.GPU_GROUP_REPLICA: "2"}
    machine = device(4, bandwidth=square(4, 10, p0_2=90, p1_3=90), annotations=table)
    outcome = run(node(gpus=4), machine, pod("p", 2, labels=group), pod("q", 2, labels=group))
    assert (outcome.gpus("p"), outcome.gpus("q")) == ([0, 1], [2, 3])


# -- section 10 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "warned"), [("foreign", False), ("device-plugin", False), ("env", False), ("dra", True), ("mail", True)]
)
def test_simulate_binds_under_every_way_of_delivery(run: Any, way: str, warned: bool) -> None:
    labels = {keys.GPU_DELIVERY: way}
    outcome = run(node(), device(bandwidth=square(3, 10), labels=labels), pod())
    assert (outcome.nodes, "gpu-delivery" in outcome.warnings) == ({"p": "n1"}, warned)


def unavailable(machine: Json, status: str = "True") -> Json:
    """The Device with the condition by which an agent says that it cannot deliver."""
    condition = {"type": "DeliveryUnavailable", "status": status, "reason": "CannotDeliver", "message": "why"}
    return {**machine, "status": {"conditions": [condition]}}


UNAVAILABLE = "1 node(s) cannot deliver GPUs now (Device condition DeliveryUnavailable)"


@pytest.mark.parametrize(
    ("label", "config", "status", "refused"),
    [
        ("device-plugin", "foreign", "True", True),
        ("device-plugin", "foreign", "False", False),
        ("device-plugin", "foreign", "Unknown", False),
        ("env", "foreign", "True", True),
        ("foreign", "device-plugin", "True", False),
        ("dra", "device-plugin", "True", False),
        ("", "device-plugin", "True", True),
        ("mail", "device-plugin", "True", True),
        ("", "foreign", "True", False),
    ],
)
@pytest.mark.parametrize("held", [False, True], ids=["by name", "count only"])
def test_a_node_whose_agent_cannot_deliver_takes_no_pod_that_needs_its_delivery(
    run: Any, label: str, config: str, status: str, refused: bool, held: bool
) -> None:
    labels = {keys.GPU_DELIVERY: label} if label else {}
    machine = unavailable(device(bandwidth=square(3, 10), labels=labels), status)
    others = [pod("x", 1, at="n1")] if held and label != "env" else []
    asking = as_injected(pod()) if label == "env" else pod()
    outcome = run(node(), machine, *others, asking, pod("cpu", 0), config={"delivery": config})
    assert outcome.nodes == ({"cpu": "n1"} if refused else {"cpu": "n1", "p": "n1"})
    assert (UNAVAILABLE in outcome.message) == refused


def test_no_pod_is_evicted_from_a_node_that_cannot_deliver_and_another_node_is_used(run: Any) -> None:
    labels = {keys.GPU_DELIVERY: "device-plugin"}
    machine = unavailable(device(2, bandwidth=square(2, 10), labels=labels))
    low = pod("x", 2, at="n1", held=[0, 1], spec={"priority": 0})
    asking = pod("p", 2, spec={"priority": 5})
    outcome = run(node(gpus=2), machine, low, asking)
    assert (outcome.nodes, outcome.out["evictions"]) == ({}, [])
    other = device(2, name="n2", bandwidth=square(2, 1), labels=labels)
    assert run(node(gpus=2), machine, node("n2", 2), other, pod("p", 2)).nodes == {"p": "n2"}
    helped = run(node(gpus=2), machine, pod("p", 2), command="explain").out["wouldFitIf"]
    assert "Device n1 had no condition DeliveryUnavailable" in helped


def test_a_node_known_by_count_only_delivers_nothing_by_env(run: Any) -> None:
    machine = device(8, bandwidth=M, labels={keys.GPU_DELIVERY: "env"})
    outcome = run(node(), machine, pod("x", 1, at="n1"), pod())
    assert outcome.nodes == {}
    assert "deliver GPUs by env" in outcome.message


def as_injected(one: Json) -> Json:
    """A pod as the API server holds it behind the webhook."""
    typed = inject(msgspec.convert(one, Pod), keys.GPU_RESOURCES)
    env = msgspec.to_builtins([container.env for container in typed.spec.containers])
    containers = [{**own, "env": new} for own, new in zip(one["spec"]["containers"], env, strict=True)]
    return {**one, "spec": {**one["spec"], "containers": containers}}


def test_a_pod_with_injected_variables_gets_no_node_where_nothing_would_stand_in_them(run: Any) -> None:
    """The empty value would beat what a device plugin says, and the pod would see no GPU."""
    outcome = run(node(), as_injected(pod()))
    assert outcome.nodes == {}
    assert "1 node(s) have GPUs known by count only and the pod reads its own from injected" in outcome.message
    assert run(node(), pod()).nodes == {"p": "n1"}
    foreign = device(bandwidth=square(3, 10), labels={keys.GPU_DELIVERY: "foreign"})
    outcome = run(node(), foreign, as_injected(pod()))
    assert (outcome.nodes, outcome.gpus()) == ({"p": "n1"}, [0, 1])


def test_such_a_pod_waits_for_pods_whose_gpus_cannot_be_told(run: Any) -> None:
    machine = device(8, bandwidth=M, labels={keys.GPU_DELIVERY: "device-plugin"})
    asking = as_injected(pod(spec={"priority": 5}))
    outcome = run(node(), machine, pod("x", 1, at="n1", spec={"priority": 0}), asking)
    assert outcome.nodes["p"] == "n1" and [one["pod"] for one in outcome.out["evictions"]] == ["x"]


def test_where_one_node_delivers_by_env_the_webhook_is_there_for_all_pods(run: Any) -> None:
    machine = device(2, bandwidth=square(2, 10), labels={keys.GPU_DELIVERY: "env"})
    outcome = run(node(gpus=2), machine, node("n2"), pod("p", 4))
    assert outcome.nodes == {}
    assert "node(s) have GPUs known by count only" in outcome.message
    helped = run(node(gpus=2), machine, node("n2"), pod("p", 4), command="explain").out["wouldFitIf"]
    assert helped[0] == "it requested 2 nvidia.com/gpu (it requests 4)"
