# SPDX-License-Identifier: Apache-2.0
"""Names of resources and annotations by which pods request a part of a GPU or NPU, such as `nvidia.com/gpumem`.

For most of these names, the device plugin reads from the pod which device a particular scheduler (KAI, HAMi, Volcano)
has chosen. If koordpy bound such a pod, the pod would get no device, or a device that another pod uses. So koordpy
refuses these requests, unless the configuration says that the plugin itself assigns devices (`gpu.parts`). The kubelet
assigns shares of time-slicing (`nvidia.com/gpu.shared`), so these are counted like any resource. Source:
gpu-topology.md 1.
"""

import re
from collections.abc import Collection
from enum import Enum

from koordpy.api.bounded_memory import cached

FAMILIES = ("kai", "hami", "volcano", "aliyun")
"""Families of names that may be left to a device plugin that assigns devices itself (`gpu.parts.aliases`)."""
ANNOTATIONS = ("gpu-fraction", "gpu-fraction-num-devices", "gpu-memory")
"""KAI-Scheduler's annotations by which pods request parts, in natural order."""
# family -> its names; names of the family "" are always refused, unless `gpu.parts.byNumber` lists them
_NAMES = {
    "": (
        "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio",
        "koordinator.sh/gpu.shared",
        "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio",
        "volcano.sh/gpu-memory", "volcano.sh/gpu-number", "aliyun.com/gpu-core.percentage",
        "tencent.com/vcuda-core", "tencent.com/vcuda-memory",
        "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory",
        "amd.com/gpu-mem", "amd.com/gpu-core-pct", "hygon.com/dcumem", "hygon.com/dcucores",
        "huawei.com/npu-core", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore",
        "metax-tech.com/sgpu", "metax-tech.com/vcore", "metax-tech.com/vmemory",
        "mthreads.com/vgpu", "mthreads.com/sgpu-core", "mthreads.com/sgpu-memory",
        "enflame.com/drs-gcu", "enflame.com/gcu-core", "enflame.com/gcu-memory",
        "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory",
    ),
    "hami": ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
    "volcano": (
        "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
    ),
    "aliyun": ("aliyun.com/gpu-mem",),
}  # fmt: skip
_FAMILY_OF = {name: family for family, names in _NAMES.items() for name in names}
_PATTERNS = re.compile(
    r"huawei\.com/Ascend.+-[0-9]+c(?![0-9A-Za-z]).*"  # vNPU templates: Ascend910-2c, Ascend310P-4c.3cpu.ndvpp
    r"|huawei\.com/Ascend.*-(memory|core)"
    r"|iluvatar\.ai/(.+-vgpu|.+\.vCore|.+\.vMem)"
)
"""Further names of the family "": virtual NPUs of Ascend, and virtual GPUs of Iluvatar."""
# shares of time-slicing, as the NVIDIA device plugin names them if they are renamed
_SHARES = re.compile(r"nvidia\.com/(gpu|mig-.+)\.shared")
_MIG = "nvidia.com/mig-"


class PartHandling(Enum):
    """How a request for a part of a device is handled."""

    REFUSED = "refused"
    """The pod is not placed, and its message names the resource."""
    COUNTED = "counted"
    """The request is counted by number, the device plugin selects the device, and a warning is reported."""


@cached(1 << 12)
def _read(name: str) -> tuple[bool, str]:
    """Returns (True if the name means shares that the kubelet assigns, family of the name).

    Family: a name of `FAMILIES`; empty for a part that is in no family; `-` if the name does not mean a part.
    """
    if _SHARES.fullmatch(name):
        return True, ""
    family = _FAMILY_OF.get(name)
    if family is None:
        family = "" if _PATTERNS.fullmatch(name) else "-"
    return False, family


def handling_of(name: str, aliases: Collection[str], by_number: Collection[str]) -> PartHandling | None:
    """Returns how a request by a resource name is handled; None if the name does not mean a part of a device.

    aliases: families that are refused (`gpu.parts.aliases`). by_number: names that are counted (`gpu.parts.byNumber`).
    """
    if name in by_number:
        return PartHandling.COUNTED
    shares, family = _read(name)
    if shares:
        return PartHandling.COUNTED
    if family == "-":
        return None
    return PartHandling.COUNTED if family and family not in aliases else PartHandling.REFUSED


def means_gpus(name: str) -> bool:
    """Returns True if a resource name means parts of GPUs, shares, or MIG instances.

    False for names of whole GPUs: these are in the setting `gpu.resources`.
    """
    shares, family = _read(name)
    return shares or family != "-" or name.startswith(_MIG)
