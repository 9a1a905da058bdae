"""Names as an API server takes them, and addresses: the types by which configuration, flags and the chart's schema are
checked alike.

Each pattern stands between `^` and `$`, so that it says the same to Python, JSON schema and Go. `noun` is what a fault
calls the value.
"""

from typing import Annotated

from msgspec import Meta

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_PART = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _text(pattern: str, noun: str) -> Meta:
    return Meta(pattern=f"^{pattern}$", max_length=253, extra={"noun": noun})


OBJECT_NAME = _SUBDOMAIN
ObjectName = Annotated[str, _text(_SUBDOMAIN, "name of an object (as in koordpy)")]
NamespaceName = Annotated[str, _text(_LABEL, "name of a namespace (as in kube-system)")]
LABEL_KEY = f"({_SUBDOMAIN}/)?{_PART}"
LABEL_VALUE = f"({_PART})?"
CONTAINER_NAME = _LABEL
SchedulerName = Annotated[str, _text(LABEL_KEY, "name of a scheduler (as in koord-scheduler)")]
"""A qualified name: events name their reporter by it, and the API server takes no other."""
ResourceName = Annotated[str, _text(LABEL_KEY, "name of a resource (as in cpu, nvidia.com/gpu)")]
ExtendedResourceName = Annotated[
    str, _text(f"{_SUBDOMAIN}/{_PART}", "name of an extended resource (as in nvidia.com/gpu)")
]
ResourceGroup = Annotated[str, _text(_SUBDOMAIN, "group of resources (as in example.com)")]
LayerName = Annotated[str, _text(".{1,63}", "name of a layer (as in blockLayer)")]
"""As the definition of ClusterNetworkTopology has it."""
LinkClass = Annotated[
    str,
    _text(
        "(NV([1-9][0-9]{0,2})?|PSB|PIX|PXB|PHB|NODE|SYS|SOC|HOST|HOSTPIX)",
        "link class: NV (each), NV4, PSB, PIX, PXB, PHB, NODE, SYS, HOST, HOSTPIX",
    ),
]
"""A class of links between GPUs (gpu-topology.md 3); NV alone is what each NVLink of a class NVn carries."""
ListenAddress = Annotated[str, Meta(extra={"format": "listen-address"})]


def split_address(address: str) -> tuple[str | None, int]:
    """(host, port) of a bind address such as `:10259`, `127.0.0.1:0` or `[::1]:10259`; no host means all of them.

    Raises ValueError where it is none.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) <= 65535) or "/" in host or len(host.split()) > 1:
        raise ValueError(f"{address!r} is no address to listen at (as in :10259 or 127.0.0.1:10259)")
    return host.strip("[]") or None, int(port)
