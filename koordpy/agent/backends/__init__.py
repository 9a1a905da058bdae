"""Sources of facts about the GPUs of a node; `open_backend` gives the one that `--backend` names."""

from pathlib import Path

from koordpy.agent.machine import BackendError, GpuBackend


def open_backend(text: str) -> GpuBackend:
    """The backend of `nvml`, `fake:FILE` or `topo:FILE`. Raises BackendError."""
    kind, _, path = text.partition(":")
    if kind == "nvml" and not path:
        # the driver's library is there on nodes with GPUs only
        from koordpy.agent.backends.nvml import open_nvml

        return open_nvml()
    if kind == "fake" and path:
        from koordpy.agent.backends.fake import read_fake

        return read_fake(_text(path), name=path)
    if kind == "topo" and path:
        from koordpy.agent.backends.topo import read_topo

        return read_topo(_text(path), name=path)
    raise BackendError(f"--backend {text}: neither nvml, fake:FILE nor topo:FILE")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as fault:
        raise BackendError(f"{path}: cannot be read: {fault.strerror or fault}") from None
