# SPDX-License-Identifier: Apache-2.0
"""What is written on two pods that got each other's GPUs."""

import json

from koordpy.agent.gpu_facts import MachineGpu
from koordpy.agent.plugin.gpu_annotations import annotation_changes, both
from koordpy.devices.gpu.held_gpus import named_minors

GPU = "topology.scheduling.koordinator.sh/gpu"
VISIBLE = "topology.scheduling.koordinator.sh/nvidia-visible-devices"
CUDA = "topology.scheduling.koordinator.sh/cuda-visible-devices."
CARDS = "scheduling.koordinator.sh/device-allocated"
GPUS = [MachineGpu(index=n, minor=n, uuid=f"GPU-{n}") for n in range(8)]


def notes(*containers: list[int], visible: list[int] | None = None, side: list[int] | None = None) -> dict[str, str]:
    """side: GPUs of a sidecar, the second init container."""
    own = [minor for minors in (*containers, side or []) for minor in minors]
    shown = visible if visible is not None else sorted(own)
    cards = [{"minor": n, "id": f"GPU-{n}", "resources": {"koordinator.sh/gpu-core": "100"}} for n in sorted(own)]
    return {
        GPU: json.dumps(
            {
                "allocatedGPUs": {str(i): [str(n) for n in minors] for i, minors in enumerate(containers)},
                "visibleGPUs": [str(n) for n in shown],
            },
            separators=(",", ":"),
        ),
        VISIBLE: ",".join(f"GPU-{n}" for n in shown),
        **{f"{CUDA}{i}": ",".join(f"GPU-{n}" for n in minors) for i, minors in enumerate(containers)},
        **({f"{CUDA}init-1": ",".join(f"GPU-{n}" for n in side)} if side else {}),
        CARDS: json.dumps({"gpu": cards}, separators=(",", ":")),
    }


def test_everything_that_named_the_old_gpus_names_the_new_ones() -> None:
    old = notes([0, 1])
    assert {**old, **annotation_changes(old, {"0": GPUS[4:6]})} == notes([4, 5])


def test_containers_and_sidecars_change_together() -> None:
    old, places = notes([0], [1], side=[2]), {"0": [GPUS[3]], "1": [GPUS[4]], "init-1": [GPUS[5]]}
    assert {**old, **annotation_changes(old, places)} == notes([3], [4], side=[5])


def test_gpus_of_the_pod_s_group_stay_visible() -> None:
    old = notes([0, 1], visible=[0, 1, 2, 3])
    assert {**old, **annotation_changes(old, {"0": GPUS[4:6]})} == notes([4, 5], visible=[2, 3, 4, 5])


def test_while_the_exchange_is_written_a_pod_holds_both_sets() -> None:
    old = notes([0, 1], side=[2])
    written = {key: text for key, text in both(old, {"0": GPUS[4:6], "init-1": [GPUS[6]]}).items() if text}
    assert named_minors({**old, **written}, 3) == (0, 1, 2, 4, 5, 6)


def test_a_key_that_the_pod_lacks_is_not_added() -> None:
    old = {GPU: notes([0])[GPU]}
    assert set(annotation_changes(old, {"0": [GPUS[1]]})) == {GPU}


def test_the_keys_of_the_gpushare_form_follow() -> None:
    old = {**notes([0]), "ALIYUN_COM_GPU_ID_0": "0"}
    changed = annotation_changes(old, {"0": [GPUS[3]]})
    assert changed["ALIYUN_COM_GPU_ID_0"] is None
    assert changed["ALIYUN_COM_GPU_ID_3"] == "3"


def test_an_annotation_that_cannot_be_read_is_left_alone() -> None:
    assert annotation_changes({GPU: "{"}, {"0": [GPUS[1]]}) == both({GPU: "{"}, {"0": [GPUS[1]]}) == {}
