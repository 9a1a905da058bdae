# SPDX-License-Identifier: Apache-2.0
"""A program on a GPU, by the driver's own library (libcuda) alone: no toolkit, no framework.

Run as a module it is the program of a container:
    python -m tests.hardware.cuda seen     UUIDs of the GPUs that CUDA shows to this process, one a line
    python -m tests.hardware.cuda fault    a kernel that writes where it may not: the driver reports an Xid
"""

import ctypes
import sys
from typing import Any

ILLEGAL_ADDRESS = 700
WRITE_TO_NOWHERE = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nowhere()
{
    .reg .b64 %to;
    .reg .b32 %what;
    mov.u64 %to, 4096;
    mov.u32 %what, 1;
    st.global.u32 [%to], %what;
    ret;
}
\0"""


class Driver:
    """libcuda, initialized. Raises OSError where there is none."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", 0)

    def call(self, name: str, *args: Any) -> int:
        return int(getattr(self.library, name)(*args))

    def must(self, name: str, *args: Any) -> None:
        if status := self.call(name, *args):
            raise RuntimeError(f"{name}: CUDA error {status}")

    def uuids(self) -> list[str]:
        """The GPUs that this process sees, as NVML writes them."""
        count = ctypes.c_int()
        self.must("cuDeviceGetCount", ctypes.byref(count))
        found: list[str] = []
        for ordinal in range(count.value):
            device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self.must("cuDeviceGet", ctypes.byref(device), ordinal)
            self.must("cuDeviceGetUuid_v2", raw, device)
            text = bytes(raw).hex()
            found.append("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
        return found

    def fault(self) -> int:
        """Writes to an address that is nobody's on GPU 0; the error that the program gets."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cuDeviceGet", ctypes.byref(device), 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.must("cuCtxSetCurrent", context)
        self.must("cuModuleLoadData", ctypes.byref(module), WRITE_TO_NOWHERE)
        self.must("cuModuleGetFunction", ctypes.byref(kernel), module, b"nowhere")
        self.must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        return self.call("cuCtxSynchronize")


def main(what: str) -> int:
    driver = Driver()
    if what == "fault":
        return 0 if driver.fault() == ILLEGAL_ADDRESS else 1
    print(*driver.uuids(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
