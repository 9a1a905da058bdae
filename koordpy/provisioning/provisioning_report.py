# SPDX-License-Identifier: Apache-2.0
"""Computes the states of all units that ask for nodes, within the limit of open requests (repair.md 3.2, 3.3 and 7).

Also composes `provisioning[]` of a SimulationResult from these states.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.api.natural_order import natural_key
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Provisioning
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import RoundPlan
from koordpy.plan.wanted_nodes import WantedNodes
from koordpy.provisioning.request_states import RequestPhase, RequestState, is_open, state_of, unit_of

UNDECIDED = frozenset((Reason.SCHEDULER_ERROR, Reason.UNDETERMINED))
"""Reasons of pending pods that do not show whether the unit lacks nodes, so that its requests are kept."""


def undecided_gangs(plan: RoundPlan) -> frozenset[str]:
    """Returns the gangs (`namespace/name`) for which the round did not decide whether they lack nodes."""
    return frozenset(one.gang for one in plan.pending if one.reason in UNDECIDED and one.gang is not None)


def concerns(request: ProvisioningRequest, gangs: Collection[str]) -> bool:
    """Returns True if a request is for one of the gangs."""
    return any(gang in gangs for gang in unit_of(request).split(","))


def states_of(
    wanted: Sequence[WantedNodes],
    requests: Iterable[ProvisioningRequest],
    undecided: Collection[str],
    settings: Provisioning,
    now: float,
) -> list[tuple[WantedNodes, RequestState]]:
    """Returns the state of each unit that asks for nodes, in the order of `wanted`, which must be the queue order.

    At most `maxOpen` requests may be open: units after that are QUEUED. requests: all requests of koordpy. undecided:
    gangs with requests that are kept although the gangs are not in `wanted`; they count as open.
    """
    by_title: dict[tuple[str, str], list[ProvisioningRequest]] = {}
    for request in requests:
        by_title.setdefault((request.metadata.namespace, unit_of(request)), []).append(request)
    found = [(one, state_of(one, by_title.pop((one.namespace, one.title), ()), settings, now)) for one in wanted]
    kept = [one for own in by_title.values() for one in own if concerns(one, undecided)]
    kept += [state.request for _, state in found if state.request is not None]
    opened = sum(map(is_open, kept))
    out = []
    for one, state in found:
        if state.phase is RequestPhase.WANTED:
            if opened >= settings.max_open:
                state = replace(state, phase=RequestPhase.QUEUED)
            else:
                opened += 1
        out.append((one, state))
    return out


def provisioning_document(
    plan: RoundPlan, requests: Iterable[ProvisioningRequest], config: KoordpyConfiguration, now: datetime
) -> list[dict[str, object]]:
    """Returns `provisioning[]` of a SimulationResult, by namespace and name in natural order. plan: the last round."""
    if not plan.wanted_nodes:
        return []
    own = [one for one in requests if unit_of(one)]
    settings = config.autoscaling.provisioning
    found = states_of(plan.wanted_nodes, own, undecided_gangs(plan), settings, now.timestamp())
    entries = [_entry(wanted, state) for wanted, state in found]
    return sorted(entries, key=lambda one: (natural_key(str(one["namespace"])), natural_key(str(one["name"]))))


def _entry(wanted: WantedNodes, state: RequestState) -> dict[str, object]:
    spec = state.request.spec if state.request is not None else None
    name = state.request.metadata.name if state.request is not None else wanted.name(state.attempt)
    templates = [one.pod_template_ref.name for one in spec.pod_sets] if spec is not None else []
    return {
        "namespace": wanted.namespace,
        "name": name,
        "gang": wanted.gang,
        "attempt": state.attempt,
        "state": str(state.phase),
        "provisioningClassName": spec.provisioning_class_name if spec is not None else wanted.class_name,
        "parameters": dict(sorted((spec.parameters if spec is not None else wanted.parameters).items())),
        "podSets": [
            {
                "template": templates[number] if templates else wanted.template(state.attempt, number),
                "count": one.count,
                "pods": list(one.pods),
            }
            for number, one in enumerate(wanted.sets)
        ],
    }
