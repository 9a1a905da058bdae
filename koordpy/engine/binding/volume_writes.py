"""Volumes before Bindings: what a plan chose is written, and waited for (kube-parity.md 2.8, 4.4).

A claim that takes a volume: the volume's claimRef names it. A claim whose volume is to be made: its annotation names
the node. The volume controller and the provisioner do the rest; a pod is bound once all its claims are. Each write has
the object's version as its precondition, so that a plan made on an older picture is void instead of half true.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from koordpy.api.counted_nouns import named
from koordpy.api.label_selectors import term_matches
from koordpy.api.objects import ObjectMeta, Wire
from koordpy.api.storage_objects import BOUND_BY_CONTROLLER, SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.dra.ledger.claim_book import CLAIMS, DeviceId
from koordpy.engine.client.api_client import Body
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_replies import reached
from koordpy.engine.client.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koordpy.engine.engine_context import Context
from koordpy.plan.round_plan import Placement
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import claim_key, is_bound

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 16
"""Writes of claims and volumes at a time; they must not crowd out Bindings."""
TICK_SECONDS = 1.0
"""What no event tells of (a node that is gone, leadership that ended) is seen after this long."""


class ClaimsFailed(Exception):
    """The claims of a unit were not bound; its plan is void.

    cause: `conflict` (a volume or claim is not as planned on), `void`, `write`, `timeout`, or what the obstacle was.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Has what the client raises void the plan. A write whose answer is lost may be carried out all the same; then the
    next plan finds it so."""
    try:
        yield
    except ApiError as error:
        cause = "conflict" if error.status in (404, 409) else "write"
        raise ClaimsFailed(cause, f"{what}: {error}") from error
    except Unreachable as error:
        raise ClaimsFailed("write", f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod that are not bound yet, as planned on a node.

    chosen: claim -> volume, empty for one that is to be made there. followed: claims that another pod has the say over.
    devices: resource claim -> (request, device) that it is to be allocated.
    """

    info: PodInfo
    node: str
    chosen: Mapping[str, str]
    followed: tuple[str, ...] = ()
    devices: Mapping[str, tuple[tuple[str, DeviceId], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A claim that is waited for. Versions are those of our writes: what the watch says of older ones is no news."""

    claim: PersistentVolumeClaim
    node: str
    volume: str = ""
    selected: bool = False
    claim_version: str = ""
    volume_version: str = ""


def unbound_claims(state: ClusterState, info: PodInfo, placement: Placement) -> PodClaims | None:
    """What has to be bound or reserved before a pod; None where nothing has."""
    reserves = bool(info.pod.spec.resource_claims)
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
    return PodClaims(info, placement.node, chosen, tuple(dict.fromkeys(followed)), placement.given.get(CLAIMS, {}))


def claim_reference(claim: PersistentVolumeClaim, volume: PersistentVolume) -> Body | None:
    """Merge patch of a volume that makes it the claim's; None where it is already."""
    meta, reference = claim.metadata, volume.spec.claim_ref
    if reference is not None and (reference.namespace, reference.name, reference.uid) == (
        meta.namespace,
        meta.name,
        meta.uid,
    ):
        return None
    patch: dict[str, object] = {"resourceVersion": volume.metadata.resource_version}
    if reference is None:
        # the volume controller lets go of such volumes when their claim is deleted; one reserved by hand stays so
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
    """Merge patch of a claim that asks for a volume on a node; None where it does already."""
    if claim.metadata.annotations.get(SELECTED_NODE) == node:
        return None
    version = claim.metadata.resource_version
    return {"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE: node}}}


class ClaimBinder:
    """Binds the claims of units. Lives on the event loop."""

    def __init__(self, context: Context) -> None:
        self._client, self._state, self._may_write = context.client, context.state, context.may_write
        self._bind_seconds = context.settings.config.filters.volume_binding.bind_timeout
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._listening: dict[str, set[asyncio.Event]] = {}
        for heard in (context.feeds.listeners.claimed, context.feeds.listeners.pod_gone):
            heard.append(self._changed)

    def _changed(self, key: str) -> None:
        """A claim or pod (`namespace/name`) or a volume (name) changed."""
        for event in self._listening.get(key, ()):
            event.set()

    async def bind(self, pods: Sequence[PodClaims], *, obstacle: Callable[[], str]) -> None:
        """Writes what was chosen for all the pods, then waits until all their claims are bound.

        obstacle: why the unit cannot be bound any more, empty where it can; asked again and again. Raises ClaimsFailed;
        what was written by then stays, for the next plan goes on from there.
        """
        awaited = self._to_await(pods)
        keys = [*awaited, *(one.volume for one in awaited.values() if one.volume), *(pod.info.key for pod in pods)]
        with self._listen(keys) as event:
            for write in (self._take_volume, self._select_node):
                # volumes first: another's claim on one voids the plan before any provisioner is set to work
                if why := obstacle():
                    raise ClaimsFailed(why, f"not written: {why}")
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
        """Every claim that is not bound, each once; nothing is written where one is void."""
        out: dict[str, _Awaited] = {}
        for pod in pods:
            for key in (*pod.chosen, *pod.followed):
                claim = self._state.get(PersistentVolumeClaim, key)
                if claim is None:
                    raise ClaimsFailed("void", f"claim {key} is gone")
                volume = pod.chosen.get(key, "")
                mine = key in pod.chosen and not is_bound(claim)
                if mine or key not in out:
                    out[key] = _Awaited(claim, pod.node, volume if mine else "", mine and not volume)
        for key, one in out.items():
            if one.volume:
                self._volume_for(key, one)
        return out

    def _volume_for(self, key: str, one: _Awaited) -> PersistentVolume:
        volume = self._state.get(PersistentVolume, one.volume)
        if volume is None or volume.metadata.deletion_timestamp:
            raise ClaimsFailed("void", f"volume {one.volume} is gone")
        meta, reference = one.claim.metadata, volume.spec.claim_ref
        if reference is not None and (
            (reference.namespace, reference.name) != (meta.namespace, meta.name) or reference.uid not in ("", meta.uid)
        ):
            raise ClaimsFailed("conflict", f"volume {one.volume} is not free for claim {key} any more")
        return volume

    async def _take_volume(self, key: str, one: _Awaited) -> _Awaited:
        if not one.volume:
            return one
        body = claim_reference(one.claim, self._volume_for(key, one))
        if body is None:
            return one
        version = await self._patch(PERSISTENT_VOLUMES.path(name=one.volume), body, f"volume {one.volume}")
        return replace(one, volume_version=version)

    async def _select_node(self, key: str, one: _Awaited) -> _Awaited:
        body = node_selection(one.claim, one.node) if one.selected else None
        if body is None:
            return one
        meta = one.claim.metadata
        path = PERSISTENT_VOLUME_CLAIMS.path(meta.namespace, meta.name)
        return replace(one, claim_version=await self._patch(path, body, f"claim {key}"))

    async def _patch(self, path: str, body: Body, what: str) -> str:
        """The version after a write."""
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
        while True:
            event.clear()
            if why := obstacle():
                raise ClaimsFailed(why, f"given up while waiting for {_some(awaited)}: {why}")
            for key in [key for key, one in awaited.items() if self._is_through(key, one)]:
                del awaited[key]
            if not awaited:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await event.wait()

    def _is_through(self, key: str, one: _Awaited) -> bool:
        """Whether a claim is bound. Raises ClaimsFailed where it will not be, or is bound to what the node lacks."""
        claim = self._state.get(PersistentVolumeClaim, key)
        if claim is None or claim.metadata.uid != one.claim.metadata.uid:
            raise ClaimsFailed("void", f"claim {key} is gone")
        if is_bound(claim):
            volume = self._state.get(PersistentVolume, claim.spec.volume_name)
            if volume is not None and not self._reaches(volume, one.node):
                raise ClaimsFailed("void", f"claim {key} is bound to a volume that {one.node} does not reach")
            # claim and volume come by different watches
            return volume is not None
        if one.selected:
            if reached(claim.metadata.resource_version, one.claim_version):
                self._check_selection(key, claim, one.node)
        elif one.volume:
            self._check_volume(key, one)
        elif key not in self._state.expected.promises():
            raise ClaimsFailed("void", f"claim {key} was left by the pod that it was to be bound with")
        return False

    def _check_selection(self, key: str, claim: PersistentVolumeClaim, node: str) -> None:
        if claim.metadata.annotations.get(SELECTED_NODE) != node:
            raise ClaimsFailed(
                "void", f"claim {key} cannot be provided for node {node}: its selected node was taken away"
            )

    def _check_volume(self, key: str, one: _Awaited) -> None:
        volume = self._state.get(PersistentVolume, one.volume)
        if volume is None:
            raise ClaimsFailed("void", f"volume {one.volume} is gone")
        if not reached(volume.metadata.resource_version, one.volume_version):
            return
        reference = volume.spec.claim_ref
        if reference is None or reference.uid != one.claim.metadata.uid:
            raise ClaimsFailed("conflict", f"volume {one.volume} was taken away from claim {key}")

    def _reaches(self, volume: PersistentVolume, name: str) -> bool:
        affinity, node = volume.spec.node_affinity, self._state.nodes.get(name)
        if affinity is None or affinity.required is None or node is None:
            return True
        return any(term_matches(term, "", node.labels) for term in affinity.required.node_selector_terms)


class _Written(Wire, frozen=True):
    """Reply to a write: only its metadata is looked at."""

    metadata: ObjectMeta = ObjectMeta()


def _some(awaited: Mapping[str, _Awaited]) -> str:
    return f"claim {named([*awaited] or ['nothing'], 1)}"
