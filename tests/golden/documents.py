# SPDX-License-Identifier: Apache-2.0
"""A plan as a document of all that users see of it, and the hash of a text.

Left out are seconds, the solver's times and runs, and the method that found a plan: a plan that another method finds is
the same plan. Hashes also leave out the wording: a sentence counts, not its words. A change of the planner's types
changes the functions of this module, not the hashes.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from koordpy.plan.round_plan import (
    Eviction,
    GangReport,
    PendingPod,
    Placement,
    RejectedPlan,
    RoundPlan,
    UnitReport,
)
from tests.given_devices import numbers_of

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SENTENCE = re.compile(r"[A-Za-z]+[ ,:;]+[A-Za-z]+[ ,:;]+[A-Za-z]+")
HASH_CHARACTERS = 4
"""Of the hash of one cluster: a difference is missed once in 65,536 times."""


def plan_document(plan: RoundPlan) -> dict[str, Any]:
    """The document of a plan, in its own order; of its gangs, which have none, by name."""
    start = plan.reservation
    return {
        "placements": [_placement(one) for one in plan.placements],
        "evictions": [_eviction(one) for one in plan.evictions],
        "nominations": _nominations(plan.nominations),
        "awaiting": _nominations(plan.awaiting_nominations),
        "benefits": [[one.unit, one.beneficiary, one.message] for one in plan.benefits],
        "pending": [_pending(one) for one in plan.pending],
        "gangs": [_gang(one) for one in sorted(plan.gangs, key=lambda gang: (gang.name, gang.source))],
        "units": [_unit(one) for one in plan.units],
        "warnings": [list(one) for one in plan.warnings],
        "counted": [list(one) for one in plan.parts_by_number],
        "rejected": [_rejected(one) for one in plan.rejected],
        "promised start": None
        if start is None
        else [start.unit, start.start, dict(start.nodes), dict(start.blocked_units)],
        "deferred": [[one.unit, str(one.reason)] for one in plan.deferred],
    }


def _placement(one: Placement) -> dict[str, Any]:
    return {
        "pod": one.pod_key,
        "node": one.node,
        "unit": one.unit,
        "annotations": dict(sorted(one.annotations.items())),
        "claims": dict(sorted(one.claims.items())),
        "devices": {
            claim: [[one.request, *one.device] for one in held]
            for claim, held in sorted(one.devices.get("claims", {}).items())
        },
        "chips": list(numbers_of(one)),
    }


def _eviction(one: Eviction) -> dict[str, Any]:
    return {
        "pod": one.pod_key,
        "node": one.node,
        "rule": str(one.rule),
        "beneficiary": one.beneficiary,
        "unit": one.unit,
        "reason": one.reason,
        "message": one.message,
        "grace": one.grace_seconds,
        "returns to": one.returns_to,
        "yields": one.victim_unit,
    }


def _nominations(all_of_them: Iterable[Placement]) -> list[list[str]]:
    return [[one.pod_key, one.node, one.unit] for one in all_of_them]


def _pending(one: PendingPod) -> dict[str, Any]:
    return {
        "pod": one.pod_key,
        "unit": one.unit,
        "gang": one.gang,
        "reason": str(one.offline_reason),
        "message": one.message,
        "gated": one.gated,
        "plugins": list(one.plugins),
    }


def _gang(one: GangReport) -> dict[str, Any]:
    return {
        "gang": one.name,
        "source": str(one.source),
        "members": [one.members, one.min_member, one.bound],
        "status": str(one.status),
        "domain": one.domain,
        "proof": None if one.proof is None else str(one.proof),
        "message": one.message,
        "origin": one.origin,
        "remark": one.remark,
        "awaits": one.awaits,
        "never": one.never,
    }


def _unit(one: UnitReport) -> dict[str, Any]:
    return {
        "unit": one.unit,
        "pods": list(one.pod_keys),
        "placed": one.placed,
        "proof": str(one.proof),
        "layer": one.layer,
        "pipeline": None if one.pipeline_crossings is None else dict(sorted(one.pipeline_crossings.items())),
        "ring": one.ring_crossings,
        "withheld": list(one.withheld),
        "bottlenecks": list(one.gpu_bottlenecks_gbps),
        "never": one.never,
        "faults": list(one.solver_faults),
    }


def _rejected(one: RejectedPlan) -> dict[str, Any]:
    return {"unit": one.unit, "faults": one.faults, "victims": one.victims, "nodes": one.nodes}


def text_of(document: Any) -> str:
    """A document as lines that can be compared."""
    return json.dumps(document, indent=1, ensure_ascii=False, default=str)


def without_wording(text: str) -> str:
    """Returns a document with each string that has three words in a row replaced by one mark."""
    return _STRING.sub(lambda found: '"..."' if _SENTENCE.search(found.group()) else found.group(), text)


def hash_of(text: str, characters: int = HASH_CHARACTERS) -> str:
    """The first characters of the hash of a document without its wording, hexadecimal."""
    text = without_wording(text)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()[:characters]
