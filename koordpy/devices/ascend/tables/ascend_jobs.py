# SPDX-License-Identifier: Apache-2.0
"""The Ascend jobs of a snapshot: their settings, checked against the products; or the reason why a job is illegal.

Settings are labels and annotations of the PodGroup, else of the pods. They select the product rows, the switch
affinity, and the blocks in SuperPoDs of a job. Source: ascend.md 1, 2 and the beginnings of 4 and 5.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Ascend
from koordpy.devices.ascend.tables import npu_presets as table
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Blocks, ChipRequest, JobKeys, Tor, Want, asked_of
from koordpy.devices.ascend.tables.multilevel_policy import LevelsFaultError, check_levels
from koordpy.devices.ascend.tables.npu_book import npu_resource, npus_of, super_pod_of
from koordpy.devices.ascend.tables.npu_presets import Preset
from koordpy.devices.ascend.tables.switch_table import Switches, TableFaultError, read_table, resolve
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo

PADDING_BELOW = 4
"""A large-model job with fewer NPU pods is a padding job."""


class JobFaultError(ValueError):
    """The reason why a job is illegal, as the end of a message that begins with `JobValidateFailed: `."""


def read_keys(group: ObjectMeta | None, pods: Sequence[PodInfo]) -> JobKeys:
    """Returns the settings of the PodGroup, else of the NPU pods. Raises `JobFaultError` if members disagree on a
    key."""
    found: list[dict[str, str]] = []
    for names, field_name in ((keys.ASCEND_LABELS, "labels"), (keys.ASCEND_ANNOTATIONS, "annotations")):
        chosen: dict[str, str] = {}
        above: Mapping[str, str] = getattr(group, field_name) if group is not None else {}
        for name in names:
            if name in above:
                chosen[name] = above[name]
                continue
            values = dict.fromkeys(getattr(pod.pod.metadata, field_name).get(name) for pod in pods)
            if len(values) > 1:
                raise JobFaultError(f"members disagree on {name}")
            value = next(iter(values), None)
            if value is not None:
                chosen[name] = value
        found.append(chosen)
    return JobKeys(*found)


def group_meta(snapshot: Snapshot, ref: GangRef) -> ObjectMeta | None:
    """Returns the metadata of the PodGroup of a gang; None if it has none."""
    if ref.source is GangSource.GROUP and ref.key in snapshot.pod_groups:
        return snapshot.pod_groups[ref.key].metadata
    if ref.source is GangSource.UPSTREAM and ref.key in snapshot.upstream_groups:
        return snapshot.upstream_groups[ref.key].metadata
    return None


def tor_of(value: str | None, number: int) -> Tor | None:
    """Returns the switch affinity of a job of `number` NPU pods from its label; None for an unknown value.

    An empty value has the meaning of the word `null`, because the API server stores YAML's null as the empty string.
    """
    match value:
        case None | "" | "null":
            return Tor.NONE
        case "large-model-schema":
            return Tor.PADDING if number < PADDING_BELOW else Tor.FOUNDATION
        case "normal-schema":
            return Tor.COMMON
    return None


class AscendJobs:
    """The jobs of a snapshot, each read and checked on first use."""

    def __init__(self, snapshot: Snapshot, config: Ascend) -> None:
        self.snapshot = snapshot
        self.config = config
        self._gangs: dict[GangRef, AscendJob | str] = {}
        """Job of each gang, or the reason why it is illegal."""
        self._plain: dict[tuple[str, bytes], AscendJob | str] = {}
        """(namespace, shape) -> job of the first such plain pod, or the reason why it is illegal."""
        self._tor: dict[GangRef, Tor] = {}

    def of(self, pod: PodInfo) -> AscendJob | str:
        """Returns the job of a pending pod with an NPU request, or the reason (text) why it is illegal."""
        if pod.gang is not None:
            found = self._gangs.get(pod.gang)
            if found is None:
                found = self._gangs[pod.gang] = self._read(pod.gang)
            return found
        known = self._plain.get((pod.namespace, pod.shape))
        if known is None:
            known = self._plain[pod.namespace, pod.shape] = self._attempt(pod.key, (pod,), None)
        if isinstance(known, AscendJob) and known.pods[0] is not pod:
            return AscendJob(pod.key, (pod,), known.keys, known.wants, known.tor, known.needs_super_pod, known.blocks)
        return known

    def tor(self, ref: GangRef) -> Tor:
        """Returns the switch affinity of a gang, by the label alone; NONE for an illegal value.

        Also valid for an illegal job, because its bound pods use uplinks, too.
        """
        found = self._tor.get(ref)
        if found is None:
            pods = self.members(ref)
            meta = group_meta(self.snapshot, ref)
            value = meta.labels.get(keys.TOR_AFFINITY) if meta is not None else None
            if value is None:
                value = next((v for pod in pods if (v := pod.pod.metadata.labels.get(keys.TOR_AFFINITY))), None)
            found = self._tor[ref] = tor_of(value, len(pods)) or Tor.NONE
        return found

    def members(self, ref: GangRef) -> tuple[PodInfo, ...]:
        """Returns the NPU members of a gang, bound and pending, in rank order."""
        members = [
            pod
            for pod in self.snapshot.members.get(ref, ())
            if (pod.bound or pod.pending) and npu_resource(pod.requests) is not None
        ]
        return tuple(sorted(members, key=attrgetter("order")))

    @cached_property
    def switches(self) -> Switches | str:
        """The switch table on the nodes of the snapshot, or the reason (text) why it cannot be used."""
        try:
            found = read_table(npus_of(self.snapshot).config_maps.get(keys.SWITCH_TABLE))
            return resolve(found, self.snapshot.nodes)
        except TableFaultError as fault:
            return str(fault)

    @cached_property
    def super_pods(self) -> Mapping[int, str]:
        """Node position -> SuperPoD id, of the nodes that have one."""
        return {i: found for i, node in enumerate(self.snapshot.nodes) if (found := super_pod_of(node.node))}

    def preset_of(self, node: int) -> Preset | None:
        """Returns the product of a node with Ascend910 chips; None for an unknown label."""
        label = self.snapshot.nodes[node].labels.get(keys.ACCELERATOR_TYPE, "")
        return table.BY_LABEL.get(label) if label else table.MODULE

    @cached_property
    def _present(self) -> tuple[Preset, ...]:
        """Products of the nodes with Ascend910 chips."""
        reports, nodes = npus_of(self.snapshot).reports, self.snapshot.nodes
        own = {i: self.preset_of(i) for i, n in enumerate(nodes) if table.NPU_910 in reports.get(n.name, ())}
        present = set(own.values())
        return tuple(preset for preset in table.PRESETS if preset in present)

    @cached_property
    def _in_super_pods(self) -> tuple[Preset, ...]:
        """SuperPoD products of the nodes that have a SuperPoD id."""
        present = {self.preset_of(i) for i in self.super_pods}
        return tuple(preset for preset in (table.A3_X16, table.A3_X8) if preset in present)

    def _read(self, ref: GangRef) -> AscendJob | str:
        """Returns the job of a gang, or the reason (text) why it is illegal."""
        return self._attempt(ref.key, self.members(ref), group_meta(self.snapshot, ref))

    def _attempt(self, name: str, pods: tuple[PodInfo, ...], meta: ObjectMeta | None) -> AscendJob | str:
        """Returns the job, or the reason (text) why it is illegal. meta: metadata of the PodGroup; None for none."""
        try:
            return self._checked(name, pods, meta)
        except JobFaultError as fault:
            return str(fault)

    def _checked(self, name: str, pods: tuple[PodInfo, ...], meta: ObjectMeta | None) -> AscendJob:
        """Returns the job with the checks of ascend.md 1, 2, 4 and 5. Raises `JobFaultError` if it is illegal."""
        # one pod of each shape is checked; bound pods have no shape, so each of them is
        shapes = {pod.shape if pod.pending else pod.key: pod for pod in reversed(pods)}
        for pod in shapes.values():
            if sum(resource in pod.requests for resource in keys.NPU_RESOURCES) > 1:
                raise JobFaultError("more than one Ascend resource in one pod")
        own = read_keys(meta, pods)
        tor = tor_of(own.labels.get(keys.TOR_AFFINITY), len(pods))
        if tor is None:
            raise _unknown(own, keys.TOR_AFFINITY, "large-model-schema, normal-schema or null")
        policy = own.annotations.get(keys.SCHEDULE_POLICY)
        if policy is not None and policy not in table.POLICIES:
            raise JobFaultError(f"unknown {keys.SCHEDULE_POLICY} {policy}")
        wants: dict[ChipRequest, Want] = {}
        for pod in reversed(shapes.values()):
            asked = asked_of(pod)
            if asked not in wants:
                wants[asked] = self._want(asked, own, multi_pod=len(pods) > 1)
        in_blocks = keys.SP_BLOCK in own.annotations or (policy or "").endswith("-sp")
        if tor is not Tor.NONE:
            self._check_switches(tor, pods, in_blocks=in_blocks)
        if policy == table.MULTILEVEL:
            self._check_levels(own, pods)
        blocks = self._blocks(own, pods, wants) if in_blocks else None
        return AscendJob(name, pods, own, wants, tor, in_blocks, blocks)

    def _want(self, asked: ChipRequest, own: JobKeys, *, multi_pod: bool) -> Want:
        """Returns the request of pods with its legal product rows. Raises `JobFaultError` if the request is legal for
        none."""
        resource, request, selected = asked
        options = self._options(asked, own)
        if not options:
            raise JobFaultError(f"{resource} request {request} is illegal for unknown accelerator-type {selected}")
        if table.DUO_CHIP in options and multi_pod and own.labels.get(keys.NPU_DISTRIBUTED) == "true":
            raise JobFaultError(
                f"{resource} request {request} is illegal for {table.DUO_CHIP.name}:"
                f" a job labelled {keys.NPU_DISTRIBUTED} has one NPU pod"
            )
        legal = tuple(p for p in options if p.resource == resource and p.is_legal(request, multi_pod=multi_pod))
        if not legal:
            names = ", ".join(preset.name for preset in options)
            raise JobFaultError(f"{resource} request {request} is illegal for {names}{_served(options[0], resource)}")
        return Want(resource, request, legal)

    def _options(self, asked: ChipRequest, own: JobKeys) -> tuple[Preset, ...]:
        """Returns the product rows that a pod may use, whatever its request; empty for an unknown product.

        The first of these decides: schedule policy, SuperPoD blocks, resource, node selector, products of the nodes.
        Raises `JobFaultError` for an illegal setting.
        """
        resource, request, selected = asked
        policy = own.annotations.get(keys.SCHEDULE_POLICY)
        if resource == table.NPU and policy is None:
            raise JobFaultError(f"{table.NPU} needs annotation {keys.SCHEDULE_POLICY}")
        named = table.of_policy(policy, resource) if policy is not None else None
        if named is not None:
            return (named,)
        if keys.SP_BLOCK in own.annotations:
            both = self._in_super_pods
            fitting = tuple(preset for preset in both if preset.size == request)
            return (fitting if len(both) > 1 else both)[:1] or (table.A3_X16,)
        if resource == table.NPU_310:
            return (_strategy(own, table.CARD_310, table.CHIP_310),)
        if resource == table.NPU_310P:
            if own.labels.get(keys.NPU_DUO, "false") not in ("true", "false"):
                raise _unknown(own, keys.NPU_DUO, "true or false")
            if own.labels.get(keys.NPU_DUO) != "true":
                return (table.CARDS_310P,)
            if own.labels.get(keys.NPU_DISTRIBUTED, "false") not in ("true", "false"):
                raise _unknown(own, keys.NPU_DISTRIBUTED, "true or false")
            return (_strategy(own, table.DUO_CARD, table.DUO_CHIP),)
        if resource == table.NPU:
            return (table.MESH_X8, table.MESH_X16)
        if selected:
            return (table.BY_LABEL[selected],) if selected in table.BY_LABEL else ()
        return self._present or (table.MODULE,)

    def _check_switches(self, tor: Tor, pods: tuple[PodInfo, ...], *, in_blocks: bool) -> None:
        """Raises `JobFaultError` if a job with switch affinity is illegal or the switch table is unusable."""
        if in_blocks:
            raise JobFaultError(f"{keys.TOR_AFFINITY} cannot be combined with {keys.SP_BLOCK}")
        amounts = dict.fromkeys(asked_of(pod)[:2] for pod in pods)
        if len(amounts) > 1:
            listed = ", ".join(sorted((f"{r} {n}" for r, n in amounts), key=natural_key))
            raise JobFaultError(f"{keys.TOR_AFFINITY} needs equal requests of all pods, got {listed}")
        switches = self.switches
        if isinstance(switches, str):
            raise JobFaultError(switches)
        most = switches.table.positions
        if switches.table.single_layer and len(pods) > most:
            raise JobFaultError(f"single-layer network holds at most {most} pods of a job, got {len(pods)}")

    def _check_levels(self, own: JobKeys, pods: tuple[PodInfo, ...]) -> None:
        """Raises `JobFaultError` if the multilevel configuration of a job is missing or illegal."""
        text = own.annotations.get(keys.AFFINITY_CONFIG)
        if text is None:
            raise JobFaultError(
                f"{keys.AFFINITY_CONFIG} is missing: {keys.SCHEDULE_POLICY} {table.MULTILEVEL} needs it"
            )
        gang = pods[0].gang
        members = self.snapshot.members.get(gang, ()) if gang is not None else pods
        try:
            check_levels(text, self.snapshot.tree.layers, sum(pod.bound or pod.pending for pod in members))
        except LevelsFaultError as fault:
            raise JobFaultError(str(fault)) from None

    def _blocks(self, own: JobKeys, pods: tuple[PodInfo, ...], wants: Mapping[ChipRequest, Want]) -> Blocks | None:
        """Returns the logical SuperPoDs of a job; None for a job of one pod that requests less than a node.

        Raises `JobFaultError` if the size of a block is illegal. A text of more than 9 digits counts as illegal.
        """
        size = self.config.super_pod_size
        if size < 1:
            raise JobFaultError("superPodSize must be positive")
        strategy = own.labels.get(keys.SUPER_POD_AFFINITY, "hard")
        if strategy not in ("hard", "soft"):
            raise _unknown(own, keys.SUPER_POD_AFFINITY, "hard or soft")
        # the size of a block: annotation sp-block in chips, by default all chips of the job
        asked = [wants[asked_of(pod)] for pod in pods]
        total = sum(want.request for want in asked)
        whole = asked[0].presets[0].size
        text = own.annotations.get(keys.SP_BLOCK, str(total))
        chips = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
        if chips < 1:
            raise JobFaultError(f"{keys.SP_BLOCK} {text} is not a positive integer")
        if chips % whole and chips != total:
            raise JobFaultError(f"{keys.SP_BLOCK} {text} must be the total or a multiple of {whole} chips per node")
        nodes = max(1, chips // whole)
        if nodes > size:
            raise JobFaultError(f"{keys.SP_BLOCK} {text} is {nodes} nodes, more than superPodSize {size}")
        if total % chips:
            raise JobFaultError(f"{keys.SP_BLOCK} {text} does not divide the total of {total} chips")
        # the requests: whole nodes, except for a job of one pod
        for want in asked:
            if len(pods) > 1 and want.request != whole:
                raise JobFaultError(
                    f"request {want.request} is illegal: pods of a SuperPoD job need whole nodes of {whole} chips"
                )
        first = asked[0].request
        if len(pods) == 1:
            if first != 1 and (first % 2 or first > whole):
                raise JobFaultError(
                    f"request {first} is illegal: a SuperPoD job of one pod must request 1 or an even number"
                )
            if first != chips:
                raise JobFaultError(f"{keys.SP_BLOCK} {text} must equal the request {first} of a job of one pod")
            if first < whole:
                return None
        # a reserve of the whole SuperPoD would leave no node, so a small default replaces it
        reserve = self.config.reserve_nodes
        if reserve >= size:
            reserve = 2 if size > 2 else 0
        return Blocks(chips, nodes, whole, strategy == "soft", reserve)


def _strategy(own: JobKeys, card: Preset, chip: Preset) -> Preset:
    """Returns the preset of the job's label `npu-310-strategy`. Raises `JobFaultError` for an unknown value."""
    match own.labels.get(keys.NPU_310_STRATEGY, "chip"):
        case "chip":
            return chip
        case "card":
            return card
    raise _unknown(own, keys.NPU_310_STRATEGY, "card or chip")


def _unknown(own: JobKeys, key: str, known: str) -> JobFaultError:
    """Returns the fault of a label with an unknown value. known: the legal values as text."""
    return JobFaultError(f"label {key}={own.labels[key]} is unknown: it must be {known}")


def _served(preset: Preset, resource: str) -> str:
    """Returns the end of a message about an illegal request: which resource or which requests the preset serves."""
    if preset.resource != resource:
        return f": it serves {preset.resource}"
    return f": legal are {', '.join(map(str, sorted(preset.legal | preset.single_pod_requests)))}"
