# SPDX-License-Identifier: Apache-2.0
"""Binds PersistentVolumeClaims before their pods, as kube-scheduler's VolumeBinding in PreBind (kube-parity.md 2.8,
4.4).

If the plan has chosen an existing volume for a claim, the volume's claimRef is set. If a volume is to be provisioned,
the claim's selected-node annotation is set. The volume controller and the provisioner do the rest. This module waits
until all claims of a unit are bound; then the unit's Bindings are sent. Each write has the object's resourceVersion as
its precondition, so that a plan that was made on outdated objects fails.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from koordpy.api.counted_nouns import name_first
from koordpy.api.label_selectors import term_matches
from koordpy.api.objects import ObjectMeta, Wire
from koordpy.api.storage_objects import BOUND_BY_CONTROLLER, SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.client.api_client import Body
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_replies import reached
from koordpy.engine.client.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koordpy.engine.engine_context import Context
from koordpy.plan.round_plan import Placement
from koordpy.pods.claim_refs import CLAIMS, Grant
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import claim_key, is_bound

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 16
"""Maximum number of parallel writes of claims and volumes, so that they do not delay Bindings."""
TICK_SECONDS = 1.0
"""Interval of checks for conditions without an event, such as a deleted node or the end of leadership."""


OBSTACLES = {
    "not_sent": "this process no longer leads",
    "pod": "the pod was deleted or changed",
    "node": "the node was removed or changed",
    "room": "another scheduler has used up the node",
    "late": "the time limit of the gang has passed",
    "withdrawn": "another member cannot be bound",
}
"""Word of an obstacle (`Obstacles.of`) -> its text in messages. `obstacle_text` words the names of device families."""


def obstacle_text(why: str) -> str:
    """Returns the text of an obstacle. why: a word of `OBSTACLES`, or the name of a device family."""
    return OBSTACLES.get(why, f"a planned device ({why}) is no longer available")


class ClaimsFailed(Exception):
    """The claims of a unit could not be bound, so its plan is void.

    cause: `conflict` (a volume or claim differs from the plan), `void` (an object was deleted, or cannot be used on the
    node), `write` (an error of the API server), `timeout`, or an obstacle's name (`Obstacles.of`).
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Converts errors of the client into `ClaimsFailed`. A write with a lost reply may still take effect; the next
    plan then starts from its result."""
    try:
        yield
    except ApiError as error:
        cause = "conflict" if error.status in (404, 409) else "write"
        raise ClaimsFailed(cause, f"{what}: {error}") from error
    except Unreachable as error:
        raise ClaimsFailed("write", f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The unbound claims of one pod, as planned for a node.

    chosen: key of a volume claim -> the volume to bind it to; empty if a volume is to be provisioned on the node.
    followed: unbound volume claims that another pod of the plan binds, and that this pod waits for. devices: key of a
    resource claim -> the devices to allocate.
    """

    info: PodInfo
    node: str
    chosen: Mapping[str, str]
    followed: tuple[str, ...] = ()
    devices: Mapping[str, Grant] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A volume claim that must become bound, and the node of its pod. The state that the watch shows is ignored until
    it includes our write."""

    claim: PersistentVolumeClaim
    node: str
    volume: str = ""
    """Name of the existing volume for the claim; empty if a volume is to be provisioned, or if another pod binds the
    claim."""
    selected: bool = False
    """True if a volume is to be provisioned on `node`."""
    claim_version: str = ""
    """resourceVersion of the claim after our write; empty without a write."""
    volume_version: str = ""
    """resourceVersion of the volume after our write; empty without a write."""


def unbound_claims(state: ClusterState, info: PodInfo, placement: Placement) -> PodClaims | None:
    """Returns the claims that must be bound or reserved before a pod is bound; None for none."""
    devices = placement.devices.get(CLAIMS, {})
    # a name of a claim that is left in the status is removed, unless a new claim replaces it
    reserves = bool(info.pod.spec.resource_claims or devices or info.pod.status.extended_resource_claim_status)
    chosen = placement.claims
    followed: list[str] = []
    for volume in info.ties.volumes:
        key = claim_key(info.namespace, info.name, volume)
        if key and key not in chosen:
            claim = state.get(PersistentVolumeClaim, key)
            if claim is None or not is_bound(claim):
                followed.append(key)
    if not chosen and not followed and not reserves:
        return None
    return PodClaims(info, placement.node, chosen, tuple(dict.fromkeys(followed)), devices)


def claim_reference(claim: PersistentVolumeClaim, volume: PersistentVolume) -> Body | None:
    """Returns the merge patch that sets a volume's claimRef to a claim; None if it is set already."""
    meta, reference = claim.metadata, volume.spec.claim_ref
    if reference is not None and (reference.namespace, reference.name, reference.uid) == (
        meta.namespace,
        meta.name,
        meta.uid,
    ):
        return None
    patch: dict[str, object] = {"resourceVersion": volume.metadata.resource_version}
    if reference is None:
        # with this annotation the volume controller removes the claimRef if the claim is deleted; a claimRef that a
        # user has set lacks it
        patch["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
    named = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
    return {"metadata": patch, "spec": {"claimRef": named}}


def node_selection(claim: PersistentVolumeClaim, node: str) -> Body | None:
    """Returns the merge patch that requests a volume on a node for a claim; None if the claim requests it already."""
    if claim.metadata.annotations.get(SELECTED_NODE) == node:
        return None
    version = claim.metadata.resource_version
    return {"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE: node}}}


class ClaimBinder:
    """Binds the volume claims of units. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._client, self._state, self._may_write = context.client, context.state, context.may_write
        self._bind_seconds = context.settings.config.filters.volume_binding.bind_timeout
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        # `namespace/name` of a claim or pod, or name of a volume -> asyncio events of the units that wait for it
        self._listening: dict[str, set[asyncio.Event]] = {}
        for listeners in (context.feeds.listeners.claimed, context.feeds.listeners.pod_gone):
            listeners.append(self._changed)

    def _changed(self, key: str) -> None:
        """Called when a claim or pod (`namespace/name`) or a volume (name) changes."""
        for event in self._listening.get(key, ()):
            event.set()

    async def bind(self, pods: Sequence[PodClaims], *, obstacle: Callable[[], str]) -> None:
        """Writes the planned volumes and nodes for all pods, then waits until all their claims are bound.

        obstacle: returns why the unit cannot be bound any more; empty if it can. Called repeatedly. Raises
        ClaimsFailed; objects written before stay as they are, and the next plan continues from there.
        """
        awaited = self._to_await(pods)
        keys = [*awaited, *(one.volume for one in awaited.values() if one.volume), *(pod.info.key for pod in pods)]
        with self._listen(keys) as event:
            for write in (self._take_volume, self._select_node):
                # volumes first: a conflict on a volume voids the plan before a provisioner starts
                if why := obstacle():
                    raise ClaimsFailed(why, f"not written: {obstacle_text(why)}")
                written = await asyncio.gather(
                    *(write(key, one) for key, one in awaited.items()), return_exceptions=True
                )
                for key, outcome in zip(list(awaited), written, strict=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
                    awaited[key] = outcome
            try:
                async with asyncio.timeout(self._bind_seconds):
                    await self._wait(awaited, event, obstacle)
            except TimeoutError:
                raise ClaimsFailed("timeout", "timed out waiting for " + _some(awaited)) from None

    # -- writing ------------------------------------------------------------------------------------------------------

    def _to_await(self, pods: Sequence[PodClaims]) -> dict[str, _Awaited]:
        """Returns the unbound claims of the pods by key. Raises ClaimsFailed, before the first write, if one was
        deleted or contradicts the plan."""
        out: dict[str, _Awaited] = {}
        for pod in pods:
            for key in (*pod.chosen, *pod.followed):
                claim = self._state.get(PersistentVolumeClaim, key)
                if claim is None:
                    raise ClaimsFailed("void", f"claim {key} does not exist any more")
                volume = pod.chosen.get(key, "")
                mine = key in pod.chosen and not is_bound(claim)
                if mine or key not in out:
                    out[key] = _Awaited(claim, pod.node, volume if mine else "", mine and not volume)
        for key, one in out.items():
            if one.volume:
                self._volume_for(key, one)
        return out

    def _volume_for(self, key: str, one: _Awaited) -> PersistentVolume:
        """Returns the planned volume of a claim. Raises ClaimsFailed if it is deleted or reserved for another claim."""
        volume = self._state.get(PersistentVolume, one.volume)
        if volume is None or volume.metadata.deletion_timestamp:
            raise ClaimsFailed("void", f"volume {one.volume} does not exist any more")
        meta, reference = one.claim.metadata, volume.spec.claim_ref
        if reference is not None and (
            (reference.namespace, reference.name) != (meta.namespace, meta.name) or reference.uid not in ("", meta.uid)
        ):
            raise ClaimsFailed("conflict", f"volume {one.volume} is not free for claim {key} any more")
        return volume

    async def _take_volume(self, key: str, one: _Awaited) -> _Awaited:
        """Sets the claimRef of the planned volume, if any. Returns the record with the version of the write."""
        if not one.volume:
            return one
        body = claim_reference(one.claim, self._volume_for(key, one))
        if body is None:
            return one
        version = await self._patch(PERSISTENT_VOLUMES.path(name=one.volume), body, f"volume {one.volume}")
        return replace(one, volume_version=version)

    async def _select_node(self, key: str, one: _Awaited) -> _Awaited:
        """Sets the claim's selected node, if a volume is to be provisioned. Returns the record with the version of the
        write."""
        body = node_selection(one.claim, one.node) if one.selected else None
        if body is None:
            return one
        meta = one.claim.metadata
        path = PERSISTENT_VOLUME_CLAIMS.path(meta.namespace, meta.name)
        return replace(one, claim_version=await self._patch(path, body, f"claim {key}"))

    async def _patch(self, path: str, body: Body, what: str) -> str:
        """Patches an object. Returns its new version."""
        async with self._places:
            if not self._may_write():
                raise ClaimsFailed("not_sent", f"{what} was not written: not the leader")
            with failing(what):
                written = await self._client.patch(path, body, type=_Written)
        assert written is not None
        return written.metadata.resource_version

    # -- waiting ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _listen(self, keys: Sequence[str]) -> Iterator[asyncio.Event]:
        """Yields an event that is set whenever one of the objects changes: claims, volumes and pods, by key."""
        event = asyncio.Event()
        for key in keys:
            self._listening.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in set(keys):
                events = self._listening[key]
                events.discard(event)
                if not events:
                    del self._listening[key]

    async def _wait(self, awaited: dict[str, _Awaited], event: asyncio.Event, obstacle: Callable[[], str]) -> None:
        """Waits until all claims are bound, and removes them from `awaited`. Raises ClaimsFailed."""
        while True:
            event.clear()
            if why := obstacle():
                raise ClaimsFailed(why, f"given up while waiting for {_some(awaited)}: {obstacle_text(why)}")
            for key in [key for key, one in awaited.items() if self._is_through(key, one)]:
                del awaited[key]
            if not awaited:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await event.wait()

    def _is_through(self, key: str, one: _Awaited) -> bool:
        """Returns True if a claim is bound. Raises ClaimsFailed if it cannot be bound as planned."""
        claim = self._state.get(PersistentVolumeClaim, key)
        if claim is None or claim.metadata.uid != one.claim.metadata.uid:
            raise ClaimsFailed("void", f"claim {key} does not exist any more")
        if is_bound(claim):
            volume = self._state.get(PersistentVolume, claim.spec.volume_name)
            if volume is not None and not self._reaches(volume, one.node):
                raise ClaimsFailed("void", f"claim {key} is bound to a volume that {one.node} cannot access")
            # claim and volume arrive by different watches, in any order
            return volume is not None
        if one.selected:
            if reached(claim.metadata.resource_version, one.claim_version):
                self._check_selection(key, claim, one.node)
        elif one.volume:
            self._check_volume(key, one)
        elif key not in self._state.expected.promises():
            raise ClaimsFailed("void", f"claim {key}: the pod that was to bind it was not bound")
        return False

    def _check_selection(self, key: str, claim: PersistentVolumeClaim, node: str) -> None:
        """Raises ClaimsFailed if the provisioner has removed the selected-node annotation, because it cannot create the
        volume there."""
        if claim.metadata.annotations.get(SELECTED_NODE) != node:
            raise ClaimsFailed("void", f"claim {key} cannot be provided for node {node}: its selected node was removed")

    def _check_volume(self, key: str, one: _Awaited) -> None:
        """Raises ClaimsFailed if the volume was deleted, or is not reserved for the claim any more."""
        volume = self._state.get(PersistentVolume, one.volume)
        if volume is None:
            raise ClaimsFailed("void", f"volume {one.volume} does not exist any more")
        if not reached(volume.metadata.resource_version, one.volume_version):
            return
        reference = volume.spec.claim_ref
        if reference is None or reference.uid != one.claim.metadata.uid:
            raise ClaimsFailed("conflict", f"volume {one.volume} is not reserved for claim {key} any more")

    def _reaches(self, volume: PersistentVolume, name: str) -> bool:
        """Returns True if a node can access a volume. Also True for an unknown node: `Obstacles.of` reports it."""
        affinity, node = volume.spec.node_affinity, self._state.nodes.get(name)
        if affinity is None or affinity.required is None or node is None:
            return True
        return any(term_matches(term, "", node.labels) for term in affinity.required.node_selector_terms)


class _Written(Wire, frozen=True):
    """Reply to a write; only its metadata is decoded."""

    metadata: ObjectMeta = ObjectMeta()


def _some(awaited: Mapping[str, _Awaited]) -> str:
    return f"claim {name_first([*awaited] or ['nothing'], 1)}"
