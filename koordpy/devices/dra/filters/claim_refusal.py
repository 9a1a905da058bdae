# SPDX-License-Identifier: Apache-2.0
"""Refusals of a pod by its resource claims: before any node is tried, and of single nodes. Source: dra.md 9."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from koordpy.api import keys
from koordpy.decoding.wire_json import unreadable
from koordpy.devices.dra.filters.claim_requests import DERIVED, alternatives_of, claim_spec, has_derived_attributes
from koordpy.devices.dra.filters.device_matching import unsupported_selector
from koordpy.devices.dra.filters.gate_limits import request_limit
from koordpy.devices.dra.filters.min_bandwidth import bandwidth_fault
from koordpy.devices.dra.ledger.claim_ledger import ClaimLedger, ClaimView
from koordpy.framework.filter_protocol import Code, Refusal, wrong_ask
from koordpy.pods.claim_refs import MAX_CONSUMERS, ClaimName
from koordpy.pods.pod_info import PodInfo, non_preemptible, stays

PLUGIN = "DynamicResources"
"""Name of the filter in messages."""


def refuse(text: str, code: Code = Code.UNRESOLVABLE) -> Refusal:
    """Returns a refusal of the filter."""
    return Refusal(PLUGIN, code, (text,))


@dataclass(frozen=True, slots=True)
class LastingRefusal(Refusal):
    """A refusal of a node: its devices could not meet the claims of a pod even if no device was in use."""


def wait_for(text: str) -> Refusal:
    """Returns the refusal of a pod with an object that another controller must create or delete."""
    return Refusal(PLUGIN, Code.UNRESOLVABLE, (text,), not_ready=True)


CANNOT_TEXT = "cannot allocate all claims"
INVALID_TEXT = "invalid resource pools were encountered"
ELSEWHERE = refuse("resourceclaim not available on the node")
IN_USE = "resourceclaim in use"


def is_of_devices(refusal: Refusal) -> bool:
    """Returns whether kube-scheduler has the refusal, too, because it finds no devices on a node."""
    return refusal.reasons[0] in (CANNOT_TEXT, INVALID_TEXT) or refusal.reasons[0].startswith("claim ")


def slow_links(pod: PodInfo) -> str:
    """Returns the reason of a node without enough free devices that are linked at the minimum bandwidth of a pod."""
    text = pod.pod.metadata.annotations[keys.GPU_MIN_BANDWIDTH]
    return f"node(s) lack free GPUs linked at {text} GB/s or more"


def claims_refusal(pod: PodInfo, view: ClaimView, ledger: ClaimLedger) -> Refusal | None:
    """Returns why a pod's resource claims cannot be used, before any node is tried; None if they can."""
    objects = view.objects
    names = objects.names_of(pod.pod)
    if names and (fault := bandwidth_fault(pod)):
        return wrong_ask(PLUGIN, fault)
    for one in names:
        if one.name is None:
            return wait_for(f'waiting for the resourceclaim of "{one.entry}" to be created')
        key = f"{pod.namespace}/{one.name}"
        claim = objects.claims.get(key)
        if claim is None:
            return wait_for(f'resourceclaim "{one.name}" not found')
        if unreadable(claim.metadata):
            return wait_for(f'resourceclaim "{one.name}" cannot be read')
        if claim.metadata.deletion_timestamp:
            return wait_for(f'resourceclaim "{one.name}" is being deleted')
        if one.owner and not _is_owned(pod, claim.metadata.owner_references, one, view):
            return wait_for(_not_owner(pod, key, view))
        consumers = claim.status.reserved_for
        is_user = one.grouped or any(known.uid == pod.uid for known in consumers)
        if not is_user and len(consumers) + len(ledger.users.get(key, ())) >= MAX_CONSUMERS:
            cause = f"claim {one.name} is in use by {MAX_CONSUMERS} pods"
            return Refusal(PLUGIN, Code.UNRESOLVABLE, (IN_USE,), no_node_helps=cause)
        allocation = ledger.allocation(key)
        if allocation is None:
            spec = claim_spec(claim.spec.devices, objects.offers)
            if view.gates_off and (limit := request_limit(alternatives_of([spec]), view.gates_off)):
                return refuse(limit)
            if fault := spec_fault(spec):
                return wait_for(fault) if spec.missing else refuse(fault)
        elif has_derived_attributes(claim.spec.devices):
            return refuse(f"unsupported: {DERIVED}")
    return None


def spec_fault(spec: Any) -> str:
    """Returns why no device can be allocated to a claim, whatever devices are offered; empty if that depends on
    devices."""
    if spec.missing:
        return str(spec.missing)
    if spec.unsupported:
        return f"unsupported: {spec.unsupported}"
    for one in alternatives_of([spec]):
        if what := unsupported_selector(one):
            return f"unsupported: {what}"
    return ""


def _group_key(pod: PodInfo) -> str:
    group = pod.pod.spec.scheduling_group
    return f"{pod.namespace}/{group.pod_group_name if group is not None else ''}"


def _is_owned(pod: PodInfo, owners: Sequence[Any], one: ClaimName, view: ClaimView) -> bool:
    """Returns whether the pod, or the PodGroup for a claim of the group, controls a claim."""
    uid = pod.uid
    if one.grouped:
        group = view.objects.groups.get(_group_key(pod))
        uid = group.metadata.uid if group is not None else ""
    return any(owner.controller and owner.uid == uid for owner in owners)


def _not_owner(pod: PodInfo, key: str, view: ClaimView) -> str:
    text = f"ResourceClaim {key} was not created for Pod {pod.key}"
    group = view.objects.groups.get(_group_key(pod)) if pod.pod.spec.scheduling_group is not None else None
    if group is None:
        return f"{text} (Pod is not owner)"
    return f"{text} (neither Pod nor PodGroup {group.metadata.name} is the owner)"


def may_be_evicted(pod: PodInfo) -> bool:
    """Returns whether a bound pod may be evicted by some rule, or is terminating."""
    return not stays(pod) and not non_preemptible(pod.pod)
