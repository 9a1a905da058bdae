# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as read from its Device (`Machine`), and the GPU requests of pods (`GpuAsk`).

A Device is the object in which the agent of a node reports its GPUs: health, links, NUMA nodes, partitions and
delivery. `Machine` is the Device in the form that the choice of GPUs reads. A GPU is known by its position in the order
of minors (numbers of the driver), and a set of GPUs is a mask of these positions. Machines with equal links share a
`Pattern`, by which choices are cached. Source: docs/rules/gpu-topology.md 1, 3 and 8.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

from koordpy.api import keys
from koordpy.api.custom_objects import Device, DeviceEntry, is_delivery_unavailable
from koordpy.api.objects import Pod, Quantities
from koordpy.api.quantity import units
from koordpy.config.configuration import Gpu
from koordpy.devices.gpu.gpu_links import (
    Bandwidths,
    Links,
    MatrixFault,
    Measured,
    class_floors,
    read_bandwidth,
    read_described,
    read_links,
)
from koordpy.devices.gpu.gpu_partitions import (
    PartitionTable,
    TableFault,
    aligned_table,
    has_built_in_table,
    read_table,
)
from koordpy.devices.links.link_pattern import Pattern, pattern_of

GPUS = "gpus"
"""Name of the family."""
BANDWIDTH, LINKS, GSOC, UNKNOWN = "bandwidth", "links", "gsoc", ""
"""Sources of the link values of a node; empty for unknown links."""
OWN_DELIVERIES = ("env", "device-plugin")
"""Ways of delivery by which a container gets the GPUs that koordpy chose."""

# -- the request of a pod ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """GPU request of a pod."""

    count: int
    """GPUs of the whole pod; init containers may raise it above the sum of the containers."""
    containers: tuple[tuple[int, int], ...]
    """(index in spec.containers, GPUs) of the containers with GPUs."""
    fault: str = ""
    """Reason why the pod is never placed; empty for none."""
    resources: tuple[str, ...] = ()
    """Names of the resources by which the pod requests GPUs."""
    inits: tuple[tuple[int, int, bool], ...] = ()
    """(index in spec.initContainers, GPUs, True if it is a restartable sidecar) of the init containers with GPUs."""

    @property
    def per_container(self) -> tuple[int, ...]:
        """GPUs of each container that runs at the same time as other containers.

        First the containers, then the restartable init containers (sidecars).
        """
        return (*(n for _, n in self.containers), *(n for _, n, restarts in self.inits if restarts))


FRACTIONAL = "fractional GPUs are not supported"
"""Message about a request for a part of a GPU."""


def gpu_ask(pod: Pod, resources: Collection[str] = keys.GPU_RESOURCES) -> GpuAsk | None:
    """Returns the GPU request of a pod by the configured resources; None for a pod without GPUs.

    As for any resource of a pod, init containers run before the containers, and sidecars run next to both. A part of a
    card counts as a whole card, and is a fault.
    """
    faults: list[str] = []
    names: set[str] = set()

    def of(requests: Quantities, limits: Quantities, name: str) -> int:
        """Returns the number of GPUs that a container (name) requests; records faults and resource names."""
        asked = {r: units(r, raw) for r, raw in {**limits, **requests}.items() if r in resources}
        asked = {r: amount for r, amount in asked.items() if amount > 0}
        if len(asked) > 1:
            faults.append(f"container {name} asks for GPUs by more than one resource name: {', '.join(sorted(asked))}")
        names.update(asked)
        cards = 0
        for resource, amount in asked.items():
            whole = 100 if resource in keys.HUNDREDTHS else 1
            if amount % whole:
                faults.append(FRACTIONAL)
            cards += -(-amount // whole)
        return cards

    spec = pod.spec
    if not any(
        r in resources
        for c in (*spec.containers, *spec.init_containers)
        for r in (*c.resources.requests, *c.resources.limits)
    ):
        return None
    # the sum of containers and sidecars, or the peak while an init container runs
    containers = [(i, of(c.resources.requests, c.resources.limits, c.name)) for i, c in enumerate(spec.containers)]
    total, sidecars, peak = sum(count for _, count in containers), 0, 0
    inits: list[tuple[int, int, bool]] = []
    for i, container in enumerate(spec.init_containers):
        count = of(container.resources.requests, container.resources.limits, container.name)
        peak = max(peak, sidecars + count)
        restarts = container.restart_policy == "Always"
        sidecars += count if restarts else 0
        if count:
            inits.append((i, count, restarts))
    count = max(total + sidecars, peak)
    if not count:
        return None
    with_gpus = tuple((i, n) for i, n in containers if n)
    return GpuAsk(count, with_gpus, faults[0] if faults else "", tuple(sorted(names)), tuple(inits))


# -- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Matrix:
    """The links of a machine."""

    pattern: Pattern
    """Link class of each pair."""
    floors: tuple[int, ...]
    """kB/s of each class of the pattern."""
    lowest: tuple[tuple[int, ...], ...]
    """[GPUs][GPUs] kB/s of each pair, the lower of both directions."""
    source: str
    """Where the links are from: one of BANDWIDTH, LINKS, GSOC and UNKNOWN."""
    links: Links | None = None
    """[GPUs][GPUs] link class of each pair; None if they are not known."""
    measured: tuple[tuple[int, ...], ...] | None = None
    """[GPUs][GPUs] measured kB/s of each pair; None if they are not measured."""


@dataclass(frozen=True, eq=False)
class Machine:
    """The GPUs of one node, as its Device and the node's labels and annotations describe them."""

    minors: tuple[int, ...]
    """Minor of each GPU, ascending: position -> minor."""
    ids: tuple[str, ...]
    """UUID of each GPU; empty if the Device does not state it."""
    entries: tuple[DeviceEntry, ...]
    """Entry of each GPU in the Device."""
    healthy: int
    """Mask of the healthy GPUs."""
    matrix: Matrix
    """Links between the GPUs."""
    numa: tuple[int, ...] | None
    """NUMA node of each GPU; None if it is unknown for one of them."""
    roots: tuple[str, ...] | None
    """PCIe root of each GPU; None if it is unknown for one of them."""
    table: PartitionTable | None
    """Partition table; None if the machine has none."""
    honor: bool
    """True if only sets of the partition table may be allocated."""
    delivery: str
    """Way in which containers get their GPUs; empty if the Device does not state one."""
    faults: tuple[tuple[str, str], ...] = ()
    """(type of a condition or empty, text) of settings that cannot be used."""
    delivers: bool = True
    """False if koordpy delivers the node's GPUs and the Device's condition DeliveryUnavailable is True."""

    @property
    def size(self) -> int:
        """Number of GPUs, also unhealthy ones."""
        return len(self.minors)

    @property
    def has_matrix(self) -> bool:
        """True if the links between the GPUs are known."""
        return self.matrix.source != UNKNOWN

    def mask(self, minors: Collection[int]) -> int:
        """Returns the mask of the GPUs with the given minors; minors that the machine lacks are left out."""
        wanted = set(minors)
        return sum(1 << i for i, minor in enumerate(self.minors) if minor in wanted)

    def minors_of(self, mask: int) -> tuple[int, ...]:
        """Returns the minors of a mask, ascending."""
        return tuple(minor for i, minor in enumerate(self.minors) if mask >> i & 1)

    def bottleneck_kbs(self, minors: Collection[int]) -> int | None:
        """Returns kB/s of the slowest pair of a set; None for fewer than two GPUs, or if links are not known."""
        at = [i for i, minor in enumerate(self.minors) if minor in minors]
        if len(at) < 2 or not self.has_matrix:
            return None
        return min(self.matrix.lowest[i][j] for i, j in combinations(at, 2))


@dataclass(slots=True)
class _Faults:
    """Collects faults of a Device or node while its machine is read."""

    found: list[tuple[str, str]] = field(default_factory=list)
    """(type of a condition of the Device or empty, text)."""

    def add(self, text: str, condition: str = "") -> None:
        """Adds a fault. condition: type of the Device's condition that reports it."""
        self.found.append((condition, text))


@lru_cache(maxsize=8192)
def _bandwidth(text: str, size: int, mean: bool) -> Measured | MatrixFault:
    """Returns a parsed matrix of bandwidths, or the fault of the text; cached for equal texts."""
    try:
        return read_bandwidth(text, size, mean=mean)
    except MatrixFault as fault:
        return fault


@lru_cache(maxsize=8192)
def _links(text: str, size: int, bandwidths: Bandwidths) -> Links | MatrixFault:
    """Returns a parsed matrix of link classes, or the fault of the text; cached for equal texts."""
    try:
        return read_links(text, size, bandwidths)
    except MatrixFault as fault:
        return fault


def _pairs(value: Sequence[Sequence[int]]) -> list[int]:
    """Returns the values of all pairs of a symmetric matrix."""
    return [row[j] for i, row in enumerate(value) for j in range(i)]


@lru_cache(maxsize=8192)
def _measured_matrix(found: Measured, gap: float, width: float, links: Links | None) -> Matrix:
    """Returns the links by measured values, grouped into classes. gap, width: see `class_floors`."""
    floors = class_floors(_pairs(found.value), gap=gap, width=width)
    pattern, levels = pattern_of(found.value, floors)
    return Matrix(pattern, levels, found.lowest, BANDWIDTH, links, found.value)


@lru_cache(maxsize=1024)
def _link_matrix(links: Links, source: str) -> Matrix:
    """Returns the links by link classes: each assumed bandwidth is a class."""
    value = tuple(tuple(one.bandwidth_kbs if one is not None else 0 for one in row) for row in links)
    pattern, levels = pattern_of(value, {v: v for v in _pairs(value)})
    return Matrix(pattern, levels, value, source, links)


@lru_cache(maxsize=256)
def _no_matrix(size: int) -> Matrix:
    """Returns the links of a machine with `size` GPUs and unknown links: one class."""
    return Matrix(Pattern((bytes(size),) * size, 1), (0,), ((0,) * size,) * size, UNKNOWN)


def read_machine(
    device: Device, annotations: Mapping[str, str], labels: Mapping[str, str], config: Gpu
) -> Machine | None:
    """Returns the GPUs of a node; None if its Device names no GPU or cannot identify its GPUs.

    A Device cannot identify its GPUs if minors are missing, negative or duplicate. It cannot either if two GPUs have
    one id, because a container that is allocated both would see one. annotations, labels: of the node.
    """
    entries = [entry for entry in device.spec.devices if entry.type == "gpu"]
    minors = [entry.minor for entry in entries if entry.minor is not None and entry.minor >= 0]
    ids = [entry.id for entry in entries if entry.id]
    if not entries or len(set(minors)) < len(entries) or len(set(ids)) < len(ids):
        return None
    entries.sort(key=lambda entry: entry.minor or 0)
    ordered = tuple(sorted(minors))
    size = len(entries)
    faults = _Faults()
    bandwidths: Bandwidths = tuple(sorted(config.link_bandwidth.items()))
    matrix = _matrix(device, annotations, ordered, [entry.id for entry in entries], config, bandwidths, faults)
    places = [entry.topology for entry in entries]
    numa = [place.node_id for place in places if place is not None and place.node_id is not None]
    roots = [place.pcie_id for place in places if place is not None and place.pcie_id]
    table = _table(device, labels, ordered, faults)
    policy = labels.get(keys.GPU_PARTITION_POLICY, "")
    if policy not in ("", "Honor", "Prefer"):
        faults.add(f"node label {keys.GPU_PARTITION_POLICY}: must be Honor or Prefer, not {policy!r}")
    delivery = device.metadata.labels.get(keys.GPU_DELIVERY, "")
    if delivery == "dra":
        faults.add(f"metadata.labels[{keys.GPU_DELIVERY}]: 'dra' is reserved, no claim is allocated: read as foreign")
        delivery = "foreign"
    elif delivery not in ("", "foreign", "env", "device-plugin"):
        faults.add(f"metadata.labels[{keys.GPU_DELIVERY}]: must be env, device-plugin or foreign, not {delivery!r}")
        delivery = ""
    return Machine(
        minors=ordered,
        ids=tuple(entry.id for entry in entries),
        entries=tuple(entries),
        healthy=sum(1 << i for i, entry in enumerate(entries) if entry.health),
        matrix=matrix,
        numa=tuple(numa) if len(numa) == size else None,
        roots=tuple(roots) if len(roots) == size else None,
        table=table,
        honor=policy == "Honor",
        delivery=delivery,
        faults=tuple(faults.found),
        delivers=(delivery or config.delivery) not in OWN_DELIVERIES or not is_delivery_unavailable(device),
    )


def _matrix(
    device: Device,
    annotations: Mapping[str, str],
    minors: Sequence[int],
    ids: Sequence[str],
    config: Gpu,
    bandwidths: Bandwidths,
    faults: _Faults,
) -> Matrix:
    """Returns the links of a node: by the first of bandwidth matrix, link classes, GSOC annotations of the node, else
    unknown.

    minors, ids: of the GPUs, by position. bandwidths: configured, of link classes. Matrices that cannot be read are
    added to `faults`.
    """
    size = len(minors)
    measured: Measured | None = None
    links: Links | None = None
    source = LINKS
    for i, one in enumerate(device.spec.topologies.gpu):
        field_name = f"spec.topologies.gpu[{i}].topology"
        if one.name == BANDWIDTH and measured is None:
            found = _bandwidth(one.topology, size, config.asymmetry == "mean")
            if isinstance(found, MatrixFault):
                faults.add(f"{field_name}: the bandwidth matrix {found}: ignored", "TopologyMalformed")
                continue
            measured = found
            if found.lopsided:
                pairs = ", ".join(f"{minors[a]} to {minors[b]}" for a, b in found.lopsided[:8])
                text = (
                    f"{field_name}: bandwidth from GPU {pairs} is below a third of the other direction, used as it is"
                )
                faults.add(text, "AsymmetricLink")
        elif one.name == LINKS and links is None:
            classes = _links(one.topology, size, bandwidths)
            if isinstance(classes, MatrixFault):
                faults.add(f"{field_name}: the matrix of links {classes}: ignored", "TopologyMalformed")
            else:
                links = classes
    if links is None:
        links, wrong = read_described(
            annotations, prefix=keys.GSOC_PREFIX, minors=minors, ids=ids, bandwidths=bandwidths
        )
        source = GSOC
        for text in wrong:
            faults.add(f"node {device.metadata.name}: {text}")
    if measured is not None:
        return _measured_matrix(measured, config.class_gap, config.class_width, links)
    return _link_matrix(links, source) if links is not None else _no_matrix(size)


def _table(device: Device, labels: Mapping[str, str], minors: Sequence[int], faults: _Faults) -> PartitionTable | None:
    """Returns the partition table of a Device, else the built-in table of the node's GPU model; None for none."""
    text = device.metadata.annotations.get(keys.GPU_PARTITIONS)
    if text is not None:
        try:
            return read_table(text, minors)
        except TableFault as fault:
            faults.add(f"metadata.annotations[{keys.GPU_PARTITIONS}]: {fault}: ignored")
            return None
    return aligned_table(len(minors)) if has_built_in_table(labels.get(keys.GPU_MODEL, "")) else None
