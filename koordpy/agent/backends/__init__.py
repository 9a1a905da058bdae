"""Sources of facts about the GPUs of a node; `open_backend` returns the one that `--backend` names.

A backend reads NVML, a YAML file with scripted errors, or the text of `nvidia-smi topo -m`.

Main types: `NvmlLibrary` (`nvml.py`): the driver; `FakeBackend` (`file_backend.py`): a file; `TopoBackend`
(`topo_backend.py`): a text.

Must not judge facts: health is decided by the agent. Only `nvml.py` imports pynvml, inside a function, because the
driver's library exists on nodes with GPUs only.
Start reading at `nvml.py`.
"""

from pathlib import Path

from koordpy.agent.gpu_facts import BackendError, GpuBackend


def open_backend(text: str) -> GpuBackend:
    """The backend of `nvml`, `fake:FILE` or `topo:FILE`. Raises BackendError."""
    kind, _, path = text.partition(":")
    if kind == "nvml" and not path:
        # the driver's library is there on nodes with GPUs only
        from koordpy.agent.backends.nvml import open_nvml

        return open_nvml()
    if kind == "fake" and path:
        from koordpy.agent.backends.file_backend import read_fake

        return read_fake(_text(path), name=path)
    if kind == "topo" and path:
        from koordpy.agent.backends.topo_backend import read_topo

        return read_topo(_text(path), name=path)
    raise BackendError(f"--backend {text}: neither nvml, fake:FILE nor topo:FILE")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as fault:
        raise BackendError(f"{path}: cannot be read: {fault.strerror or fault}") from None
