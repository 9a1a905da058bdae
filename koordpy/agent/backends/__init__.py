# SPDX-License-Identifier: Apache-2.0
"""Backends of the agent: sources of facts about the GPUs of a node. `open_backend` opens the one that `--backend`
names.

There are three: NVML (the library of NVIDIA's driver), a YAML file of a simulated machine with scripted errors, and the
text of `nvidia-smi topo -m`.

Main types: `NvmlLibrary` (`nvml.py`), `FakeBackend` (`file_backend.py`) and `TopoBackend` (`topo_backend.py`).

Must not decide on the health of GPUs: the agent does. Only `nvml.py` imports pynvml, and inside a function, because the
driver's library exists only on nodes with GPUs.
Start reading at `nvml.py`.
"""

from pathlib import Path

from koordpy.agent.gpu_facts import BackendError, GpuBackend


def open_backend(text: str) -> GpuBackend:
    """Opens the backend `nvml`, `fake:FILE` or `topo:FILE`. Raises BackendError."""
    kind, _, path = text.partition(":")
    if kind == "nvml" and not path:
        # imported here, because the driver's library exists only on nodes with GPUs
        from koordpy.agent.backends.nvml import open_nvml

        return open_nvml()
    if kind == "fake" and path:
        from koordpy.agent.backends.file_backend import read_fake

        return read_fake(_text(path), name=path)
    if kind == "topo" and path:
        from koordpy.agent.backends.topo_backend import read_topo

        return read_topo(_text(path), name=path)
    raise BackendError(f"--backend {text}: must be nvml, fake:FILE or topo:FILE")


def _text(path: str) -> str:
    """Returns the text of a file. Raises BackendError."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as fault:
        raise BackendError(f"{path}: cannot be read: {fault.strerror or fault}") from None
