# SPDX-License-Identifier: Apache-2.0
"""Types of names and addresses in the configuration, each with the pattern that an API server requires.

The configuration, command-line flags and the JSON schema of the chart use the same patterns. Each pattern begins with
`^` and ends with `$`, because JSON schema and Go would otherwise accept a match anywhere in a text.
"""

from typing import Annotated

from msgspec import Meta

# _LABEL and _SUBDOMAIN are the forms of RFC 1123; a label has at most 63 characters, as in Kubernetes
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_PART = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _text(pattern: str, noun: str) -> Meta:
    """Returns the constraint of a type: a pattern, and at most 253 characters. noun: name of the value in messages."""
    return Meta(pattern=f"^{pattern}$", max_length=253, extra={"noun": noun})


# patterns of names, and types of fields in the configuration
OBJECT_NAME = _SUBDOMAIN
ObjectName = Annotated[str, _text(_SUBDOMAIN, "name of an object (as in koordpy)")]
NamespaceName = Annotated[str, _text(_LABEL, "name of a namespace (as in kube-system)")]
LABEL_KEY = f"({_SUBDOMAIN}/)?{_PART}"
LABEL_VALUE = f"({_PART})?"
CONTAINER_NAME = _LABEL
SchedulerName = Annotated[str, _text(LABEL_KEY, "name of a scheduler (as in koord-scheduler)")]
"""Name of a scheduler. It must be a qualified name, because the API server requires that for an event's reporter."""
ResourceName = Annotated[str, _text(LABEL_KEY, "name of a resource (as in cpu, nvidia.com/gpu)")]
ExtendedResourceName = Annotated[
    str, _text(f"{_SUBDOMAIN}/{_PART}", "name of an extended resource (as in nvidia.com/gpu)")
]
ResourceGroup = Annotated[str, _text(_SUBDOMAIN, "group of resources (as in example.com)")]
LayerName = Annotated[str, _text(".{1,63}", "name of a layer (as in blockLayer)")]
"""Name of a layer, with the pattern in the CRD of ClusterNetworkTopology."""
LinkClass = Annotated[
    str,
    _text(
        "(NV([1-9][0-9]{0,2})?|PSB|PIX|PXB|PHB|NODE|SYS|SOC|HOST|HOSTPIX)",
        "link class: NV (each), NV4, PSB, PIX, PXB, PHB, NODE, SYS, HOST, HOSTPIX",
    ),
]
"""Class of a link between GPUs (gpu-topology.md 3). `NV` without a number means each NVLink of any class NVn."""
ListenAddress = Annotated[str, Meta(extra={"format": "listen-address"})]


def split_address(address: str) -> tuple[str | None, int]:
    """Returns (host, port) of a bind address such as `:10259`, `127.0.0.1:0` or `[::1]:10259`.

    The host is None for all interfaces. Raises ValueError for an invalid address.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) <= 65535) or "/" in host or len(host.split()) > 1:
        raise ValueError(f"{address!r} is not a valid listen address (as in :10259 or 127.0.0.1:10259)")
    return host.strip("[]") or None, int(port)
