# SPDX-License-Identifier: Apache-2.0
"""Names that mean parts of devices or virtual devices: refused by name, or counted by number and said so."""

from collections.abc import Mapping

import pytest

from koordpy.api.objects import Pod
from koordpy.config.configuration import Gpu, GpuParts, KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.engine.engine_settings import empty_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, gang_pods, group, node, pod

KOORDINATOR = [f"koordinator.sh/{name}" for name in ("gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared")]
HAMI = ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"]
VOLCANO = [f"volcano.sh/vgpu-{name}" for name in ("number", "memory", "memory-percentage", "cores")]
ALIYUN = ["aliyun.com/gpu-mem"]
ALWAYS = [
    *KOORDINATOR,
    *(f"kubernetes.io/{name}" for name in ("gpu-core", "gpu-memory", "gpu-memory-ratio")),
    *("volcano.sh/gpu-memory", "volcano.sh/gpu-number", "aliyun.com/gpu-core.percentage"),
    *("tencent.com/vcuda-core", "tencent.com/vcuda-memory"),
    *("tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"),
    *("amd.com/gpu-mem", "amd.com/gpu-core-pct", "hygon.com/dcumem", "hygon.com/dcucores"),
    "huawei.com/npu-core",
    *("huawei.com/Ascend910-2c", "huawei.com/Ascend310P-4c.3cpu.ndvpp", "huawei.com/Ascend910-12c.3cpu.32g"),
    *("huawei.com/Ascend910B3-5c.1cpu.16g", "huawei.com/Ascend910B4-1-memory", "huawei.com/Ascend310P-memory"),
    "huawei.com/Ascend910A-core",
    *("cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"),
    *("iluvatar.ai/BI-V150-vgpu", "iluvatar.ai/MR-V100.vCore", "iluvatar.ai/MR-V100.vMem"),
    *("metax-tech.com/sgpu", "metax-tech.com/vcore", "metax-tech.com/vmemory"),
    *("mthreads.com/vgpu", "mthreads.com/sgpu-core", "mthreads.com/sgpu-memory"),
    *("enflame.com/drs-gcu", "enflame.com/gcu-core", "enflame.com/gcu-memory"),
    *("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"),
]
TOLD = ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb.shared", "nvidia.com/mig-1g.5gb.me.shared"]
QUIET = [
    *("nvidia.com/gpu", "aliyun.com/gpu", "aliyun.com/gpu-count", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"),
    *("amd.com/gpu", "intel.com/gpu", "gpu.intel.com/i915", "hygon.com/dcu", "cambricon.com/mlu", "iluvatar.ai/gpu"),
    *("metax-tech.com/gpu", "mthreads.com/gpu", "enflame.com/gcu", "kunlunxin.com/xpu", "tencent.com/vcuda"),
    *("koordinator.sh/rdma", "koordinator.sh/gpu-cores", "volcano.sh/vgpu", "nvidia.com/gpumemory"),
    *("example.com/gpu-core", "example.com/gpu.shared", "nvidia.com/gpu.sharedx", "huawei.com/Ascend910-cores"),
    *("huawei.com/Ascend910-2", "huawei.com/Ascend910-2cores"),
]
"""Whole devices, instances of MIG, and names that only look like those of the table."""


def _config(aliases: tuple[str, ...] | None = None, by_number: tuple[str, ...] = ()) -> KoordpyConfiguration:
    parts = GpuParts(by_number=by_number) if aliases is None else GpuParts(aliases=aliases, by_number=by_number)
    return KoordpyConfiguration(gpu=Gpu(parts=parts))


def _plan(asks: Mapping[str, str], config: KoordpyConfiguration | None = None, **settings: object) -> RoundPlan:
    """The plan of one pod that asks for this, on a node that registers all of it."""
    config = config or _config()
    there = dict.fromkeys(asks, "1000")
    world = World(empty_state(config)).add(node("n1:8", **there), pod("p", requests=dict(asks), **settings))  # type: ignore[arg-type]
    return plan_round(world.snapshot(), config)


def _refusal(plan: RoundPlan) -> str:
    """Why the pod is refused before any node is looked at; the warning and the message are one text."""
    assert not plan.placements and not plan.parts_by_number
    ((about, text),) = plan.warnings
    assert about == "Pod/default/p"
    assert plan.pending[0].message.startswith(
        f"0/1 nodes are available: {text}. preemption: 0/1 nodes are available: 1"
    )
    said = plan.pending[0].message.partition(" no new node would help: ")
    assert said[0].partition(" never fits: ")[0].endswith("Preemption is not helpful for scheduling.")
    assert said[2] == (text if text.startswith("unsupported: ") else "")
    return text


@pytest.mark.parametrize("name", [*ALWAYS, *HAMI, *VOLCANO, *ALIYUN])
def test_a_part_is_refused_by_its_name(name: str) -> None:
    assert _refusal(_plan({name: "1"})) == f"unsupported: {name} asks for a part of a device"


@pytest.mark.parametrize("name", QUIET)
def test_whole_devices_and_neighbours_are_numbers(name: str) -> None:
    plan = _plan({name: "1"})
    assert plan.placements and not plan.warnings and not plan.parts_by_number


@pytest.mark.parametrize("name", TOLD)
def test_shares_that_the_kubelet_gives_out_are_numbers_and_said_so(name: str) -> None:
    plan = _plan({name: "1"})
    assert plan.placements and plan.parts_by_number == (("Pod/default/p", name),) and not plan.warnings


@pytest.mark.parametrize(
    ("aliases", "names"),
    [
        ((), [*HAMI, *VOLCANO, *ALIYUN]),
        (("kai", "volcano", "aliyun"), HAMI),
        (("kai", "hami", "aliyun"), VOLCANO),
        (("kai", "hami", "volcano"), ALIYUN),
    ],
)
def test_a_family_that_is_no_alias_is_counted_by_number(aliases: tuple[str, ...], names: list[str]) -> None:
    for name in names:
        plan = _plan({name: "1"}, _config(aliases))
        assert plan.placements and plan.parts_by_number == (("Pod/default/p", name),)
    for name in {*ALWAYS, *HAMI, *VOLCANO, *ALIYUN} - set(names):
        assert not _plan({name: "1"}, _config(aliases)).placements


@pytest.mark.parametrize("name", ["huawei.com/Ascend910-2c", "koordinator.sh/gpu-core", "nvidia.com/gpumem"])
def test_a_name_of_by_number_is_counted(name: str) -> None:
    plan = _plan({name: "1"}, _config(by_number=(name,)))
    assert plan.placements and plan.parts_by_number == (("Pod/default/p", name),)
    others = _plan({name: "1", "amd.com/gpu-mem": "1"}, _config(by_number=(name,)))
    assert _refusal(others) == "unsupported: amd.com/gpu-mem asks for a part of a device"


def test_the_naturally_first_refused_name_is_told() -> None:
    asks = {"koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-core": "50", "nvidia.com/gpu": "1"}
    assert _refusal(_plan(asks)) == "unsupported: koordinator.sh/gpu-core asks for a part of a device"
    asks = {"koordinator.sh/gpu": "50", "koordinator.sh/gpu-memory": "1"}
    assert _refusal(_plan(asks)) == "unsupported: koordinator.sh/gpu-memory asks for a part of a device"


def test_hundredths_keep_their_text() -> None:
    assert _refusal(_plan({"koordinator.sh/gpu": "50"})) == "fractional GPUs are not supported"
    other = KoordpyConfiguration(gpu=Gpu(resources=("nvidia.com/gpu",)))
    assert _refusal(_plan({"koordinator.sh/gpu": "50"}, other)) == "fractional GPUs are not supported"
    assert _plan({"koordinator.sh/gpu": "200"}, other).placements


def test_amounts_of_0_ask_for_nothing() -> None:
    plan = _plan(dict.fromkeys([*ALWAYS, *HAMI, *TOLD], "0"))
    assert plan.placements and not plan.warnings and not plan.parts_by_number


def test_limits_and_init_containers_ask_too() -> None:
    config = _config()
    wire: Pod = pod("p")
    spec = {
        "schedulerName": "koord-scheduler",
        "containers": [{"name": "main"}],
        "initContainers": [{"name": "i", "resources": {"limits": {"koordinator.sh/gpu-core": "10"}}}],
    }
    from msgspec import convert, to_builtins

    made = convert({**to_builtins(wire), "spec": spec}, Pod)
    world = World(empty_state(config)).add(node("n1:8"), made)
    assert _refusal(plan_round(world.snapshot(), config)).startswith("unsupported: koordinator.sh/gpu-core")


# -- annotations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notes", "named"),
    [
        ({"gpu-fraction": "0.5"}, "gpu-fraction"),
        ({"gpu-memory": "2000"}, "gpu-memory"),
        ({"gpu-fraction-num-devices": "2"}, "gpu-fraction-num-devices"),
        ({"gpu-memory": "1", "gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, "gpu-fraction"),
    ],
)
def test_an_annotation_of_kai_is_refused_by_its_name(notes: dict[str, str], named: str) -> None:
    text = _refusal(_plan({}, annotations=notes))
    assert text == f"unsupported: annotation {named} asks for a part of a device"


@pytest.mark.parametrize(
    ("asks", "by"),
    [
        ({"nvidia.com/gpu": "1"}, "nvidia.com/gpu"),
        ({"nvidia.com/mig-1g.10gb": "1"}, "nvidia.com/mig-1g.10gb"),
        ({"nvidia.com/gpu.shared": "1"}, "nvidia.com/gpu.shared"),
        ({"nvidia.com/gpu": "1", "aliyun.com/gpu.other": "1"}, "nvidia.com/gpu"),
    ],
)
def test_a_pod_that_asks_by_resources_keeps_that_ask(asks: dict[str, str], by: str) -> None:
    plan = _plan(asks, annotations={"gpu-memory": "2000"})
    assert plan.placements
    assert plan.warnings == (("Pod/default/p", f"annotation gpu-memory ignored: the pod asks for GPUs by {by}"),)


@pytest.mark.parametrize("pods", [1, 3])
def test_a_refused_pod_with_npus_waits_and_its_gang_goes_on(pods: int) -> None:
    asks = {"huawei.com/Ascend910": "1"}
    members = [pod(f"p-{i}", gang="g" if pods > 1 else "", requests=asks) for i in range(1, pods)]
    refused = pod("p-0", gang="g" if pods > 1 else "", requests=asks, annotations={"gpu-memory": "2000"})
    world = World().add(node("n1:8", **{"huawei.com/Ascend910": "8"}), group("g", pods - 1), members, refused)
    plan = plan_round(world.snapshot())
    assert len(plan.placements) == pods - 1
    assert "annotation gpu-memory asks for a part" in next(one.message for one in plan.pending)


def test_annotations_beside_other_resources_are_refused() -> None:
    plan = _plan({"huawei.com/Ascend910": "1"}, annotations={"gpu-memory": "2000"})
    assert not plan.placements and "annotation gpu-memory asks for a part" in plan.pending[0].message
    refused = _plan({"koordinator.sh/gpu-core": "50"}, annotations={"gpu-memory": "2000"})
    assert [text for _, text in refused.warnings] == [
        "unsupported: koordinator.sh/gpu-core asks for a part of a device",
        "annotation gpu-memory ignored: the pod asks for GPUs by koordinator.sh/gpu-core",
    ]


def test_annotations_mean_nothing_where_kai_is_no_alias() -> None:
    plan = _plan({}, _config(("hami",)), annotations={"gpu-fraction": "0.5"})
    assert plan.placements
    text = "annotation gpu-fraction of KAI-Scheduler is ignored: the pod gets no part of a GPU"
    assert plan.warnings == (("Pod/default/p", text),)


# -- others ----------------------------------------------------------------------------------------------------------


def test_other_pods_and_members_go_on() -> None:
    members = [
        pod("p-0", gang="g", requests={"koordinator.sh/gpu-core": "50"}),
        *(pod(f"p-{i}", gang="g") for i in (1, 2)),
    ]
    world = World().add(node("n1:8", **{"koordinator.sh/gpu-core": "400"}), group("g", 2), members, pod("other"))
    plan = plan_round(world.snapshot())
    assert {one.pod_key for one in plan.placements} == {"default/p-1", "default/p-2", "default/other"}
    whole = World().add(node("n1:8"), group("g", 3), members)
    assert not plan_round(whole.snapshot()).placements


def test_of_many_pods_the_first_is_named() -> None:
    world = World().add(node("n1:8", **{"nvidia.com/gpu.shared": "8"}))
    world.add(group("g", 3), gang_pods("g", 3, requests={"nvidia.com/gpu.shared": "1"}))
    assert plan_round(world.snapshot()).parts_by_number == (("Pod/default/p-0", "nvidia.com/gpu.shared"),)


def test_bound_pods_stay_and_hold_what_they_held() -> None:
    asks = {"koordinator.sh/gpu-core": "50", "nvidia.com/gpu": "1"}
    world = World().add(
        node("n1:8", **{"nvidia.com/gpu": "1", "koordinator.sh/gpu-core": "100"}),
        pod("there", at="n1", requests=asks),
        pod("p", requests={"nvidia.com/gpu": "1"}),
    )
    plan = plan_round(world.snapshot())
    assert not plan.placements and not plan.evictions
    assert "Insufficient nvidia.com/gpu" in plan.pending[0].message


@pytest.mark.parametrize("name", [*ALWAYS[:4], *HAMI, *TOLD, "huawei.com/Ascend910-2c"])
def test_no_such_name_counts_as_a_gpu(name: str) -> None:
    state = make_state()
    World(state).add(node("n1:8", **{name: "8"}), pod("p", at="n1", requests={name: "4"}))
    quotas = state.snapshot(0.0).quotas
    assert quotas.cards == 0 and not any(sums.get("cards") for sums in quotas.usage.values())
